//! `homenode warm`: reads files into the page cache of chosen nodes.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use act::warm::{self, Warm, WarmError};
use clap::{Args, ValueEnum};
use command::args::{Global, seconds};
use linux::allocation::Spread;
use linux::residency;
use placement::RangeHeat;
use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};
use topology::{NodeBytes, NodeId};

use super::hot::files::{Named, watch};
use super::pace::Pace;
use super::readers;
use crate::config::Config;
use crate::exit::{Exit, Failure, chain};
use crate::machine;
use crate::output::units::{parse_positive_rate, parse_range, percent, size, within};
use crate::output::{self, escape};
use crate::signals::Stop;

/// `homenode warm`.
#[derive(Debug, Args)]
pub struct WarmArgs {
    /// Files to read in
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Where the pages go.
    #[command(flatten)]
    pub place: Place,
    /// Only these nodes [default: those with CPUs and memory]
    #[arg(long, value_name = "NODES", value_delimiter = ',', conflicts_with = "to")]
    pub nodes: Vec<u32>,
    /// Only this part of each file: OFFSET+LENGTH, such as 1GiB+256MiB
    #[arg(long, value_name = "RANGE", value_parser = parse_range)]
    pub range: Option<Range<u64>>,
    /// First drop what is cached of it, except dirty and mapped pages
    #[arg(long)]
    pub drop_first: bool,
    /// With --to-readers: watch who reads for so long
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub seconds: f64,
    /// Most bytes to read in a second, such as 1GB/s [default: as fast as possible]
    #[arg(long, value_name = "RATE", value_parser = parse_positive_rate)]
    pub rate: Option<f64>,
    /// End after this time at the latest, with success and what was read in by then: a server or
    /// disk that does not answer keeps no service from starting
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub at_most: Option<f64>,
}

/// Where the pages go.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Place {
    /// All on this node
    #[arg(long, value_name = "NODE")]
    pub to: Option<u32>,
    /// On the nodes with CPUs in turn, or with `all` on every node with memory: on some machines a
    /// node without CPUs is slow memory, on others a GPU's
    #[arg(long, value_name = "all", num_args = 0..=1, require_equals = true)]
    pub interleave: Option<Option<Which>>,
    /// The same, as often as the kernel's weights say, which it has from the firmware's bandwidth
    /// or from an administrator (/sys/kernel/mm/mempolicy/weighted_interleave; Linux 6.9)
    #[arg(long, value_name = "all", num_args = 0..=1, require_equals = true)]
    pub weighted: Option<Option<Which>>,
    /// Each part of 2 MiB on the node whose CPUs read most of it (they are watched first), what
    /// nobody reads on the node of most reads
    #[arg(long, conflicts_with = "nodes")]
    pub to_readers: bool,
}

/// The nodes of a spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// All with memory
    All,
}

pub fn run(global: &Global, args: &WarmArgs) -> Result<Exit, Failure> {
    let topology = machine::read(Path::new(machine::SYS), &Config::default())?;
    let how = match args.place {
        Place { to: Some(_), .. } | Place { to_readers: true, .. } => Spread::Bind,
        Place { weighted: Some(_), .. } => Spread::Weighted,
        Place { .. } => Spread::Interleave,
    };
    let named: Vec<NodeId> = args.place.to.iter().chain(&args.nodes).map(|node| NodeId(*node)).collect();
    let all = [args.place.interleave, args.place.weighted].contains(&Some(Some(Which::All)));
    let nodes = warm::nodes(&topology, &named, all).map_err(|e| Failure::from_error(Exit::Usage, "warm", &e))?;
    // Tried once, before anything is dropped or read.
    drop(linux::allocation::spread(how, &nodes).map_err(|e| {
        let old = how == Spread::Weighted && e.raw_os_error() == Some(libc::EINVAL);
        let what = if old { "spread by weight (Linux 6.9 and later can)" } else { "set a memory policy" };
        Failure::new(Exit::Unsupported, format!("cannot {what}"), crate::exit::errno_names(&e.to_string()))
    })?);
    // What is bound to a full node makes the kernel end a process. It is to be this one.
    if let Err(e) = fs::write("/proc/self/oom_score_adj", "1000") {
        tracing::debug!("/proc/self/oom_score_adj: {e}");
    }
    let stop = Stop::on_signals()?;
    let over = Arc::new(AtomicBool::new(false));
    if let Some(seconds) = args.at_most {
        end_after(seconds, Arc::clone(&over)).map_err(|e| Failure::from_error(Exit::Io, "--at-most", &e))?;
    }
    let read = args.place.to_readers.then(|| read(global, args, &stop)).transpose()?;
    let job = Job { args, how, nodes, read, json: global.json, stop };
    output::detach();
    let mut done = Vec::new();
    for path in &args.files {
        let one = job.one(path).unwrap_or_else(|e| {
            Failure::from_error(Exit::Partly, "warm", &e).report(job.json);
            Done { why: Some(chain(&e)), ..Done::new(path) }
        });
        if !global.json && one.tried {
            output::print(&one.line())?;
        }
        done.push(one);
    }
    if global.json {
        output::print_json(&json!({"warmed": done.iter().map(|one| one.json(&job)).collect::<Vec<_>>()}))?;
    }
    Ok(if over.load(Ordering::Relaxed) || done.iter().all(|one| one.why.is_none()) { Exit::Done } else { Exit::Partly })
}

/// How long a step may take that is stopped: then it waits for what does not answer.
const GRACE: Duration = Duration::from_secs(2);

/// Stops after so many seconds as a signal does, and sets `over`; ends the program if it does not.
fn end_after(seconds: f64, over: Arc<AtomicBool>) -> io::Result<()> {
    let wait = move || {
        std::thread::sleep(Duration::from_secs_f64(seconds));
        over.store(true, Ordering::Relaxed);
        output::complain(&format!("homenode: warm: {seconds} s are over (--at-most): the rest is not read in\n"));
        let _ = kill_process(getpid(), Signal::TERM);
        std::thread::sleep(GRACE);
        let _ = output::background::OUT.settle();
        std::process::exit(0);
    };
    std::thread::Builder::new().name("at-most".into()).spawn(wait).map(drop)
}

/// Most parts of a file of which is said why they are not where they should be.
const MOST_WHYS: usize = 8;

/// What was read of each file, in the order in which they were named.
fn read(global: &Global, args: &WarmArgs, stop: &Stop) -> Result<Vec<(PathBuf, Vec<RangeHeat>)>, Failure> {
    let mut files = Named::all(&args.files)?;
    // What it takes to read in files of others is still needed.
    watch(global, &mut files, args.seconds, stop, || Ok(()))?;
    Ok(args.files.iter().cloned().zip(files.iter().map(|file| file.heat().collect())).collect())
}

/// The request, the same for each file.
struct Job<'a> {
    args: &'a WarmArgs,
    how: Spread,
    nodes: Vec<NodeId>,
    /// With --to-readers: what was read of each file.
    read: Option<Vec<(PathBuf, Vec<RangeHeat>)>>,
    json: bool,
    stop: Stop,
}

struct Done {
    path: PathBuf,
    /// It was opened, and not refused.
    tried: bool,
    range: Range<u64>,
    /// Bytes that were cached before; `None` where the kernel does not tell.
    before: Option<u64>,
    /// Bytes that are cached now, by node; `None` where the kernel does not tell.
    now: Option<NodeBytes>,
    seconds: f64,
    /// Why not all of it is where it should be.
    why: Option<String>,
    /// With --to-readers: its parts and their nodes.
    parts: Vec<(Range<u64>, NodeId)>,
}

impl Job<'_> {
    fn one(&self, path: &Path) -> Result<Done, WarmError> {
        let new = Done::new(path);
        if self.stop.requested() {
            return Ok(Done { why: Some("stopped by a signal before its turn".to_owned()), tried: true, ..new });
        }
        let mut work = Warm::open(path, self.args.range.clone(), self.how, &self.nodes)?;
        let refused = |why: String| WarmError::Refused { path: path.to_owned(), why };
        self.args.range.as_ref().map_or(Ok(()), |range| within(range, work.file().size)).map_err(refused)?;
        let parts = match &self.read {
            Some(read) => Some(self.parts_of(path, read, &work).map_err(refused)?),
            None => None,
        };
        let mut whys = Vec::new();
        if self.args.drop_first {
            work.drop_cached()?;
            if let Some(kept @ 1..) = work.before() {
                whys.push(format!("{} were dirty or mapped and not dropped", size(kept)));
            }
        }
        match parts {
            Some(parts) => {
                work.parts_fit(&parts)?;
                Ok(self.parts(path, work, parts, whys))
            }
            None => {
                work.fits()?;
                self.part(path, &mut work, &self.nodes, whys)
            }
        }
    }

    /// The parts of a file with their nodes, or why there are none.
    fn parts_of(
        &self,
        path: &Path,
        read: &[(PathBuf, Vec<RangeHeat>)],
        work: &Warm,
    ) -> Result<Vec<(Range<u64>, NodeId)>, String> {
        let heat = read.iter().find(|(file, _)| file == path).map(|(_, heat)| heat.as_slice()).unwrap_or_default();
        let parts = readers::parts(heat, work.range().clone())
            .ok_or_else(|| format!("nobody has read it in {} s", self.args.seconds))?;
        match parts.iter().map(|part| part.1).find(|node| !self.nodes.contains(node)) {
            Some(node) => Err(format!("it is read from node {node}, where this process may have no memory")),
            None => Ok(parts),
        }
    }

    /// Reads in the parts of a file, each on its node. A part that fails does not stop the others.
    fn parts(&self, path: &Path, mut work: Warm, parts: Vec<(Range<u64>, NodeId)>, mut whys: Vec<String>) -> Done {
        let (range, before, now) = (work.range().clone(), Some(0), Some(NodeBytes::default()));
        let mut all = Done { tried: true, range, before, now, ..Done::new(path) };
        let (mut failed, mut stopped) = (0, false);
        for (range, node) in parts {
            if self.stop.requested() {
                stopped = true;
                whys.push(format!("stopped by a signal: not read in from byte {} on", range.start));
                break;
            }
            work.only(range.clone(), &[node]);
            let part = self.part(path, &mut work, &[node], Vec::new());
            let part = part.unwrap_or_else(|e| Done {
                why: Some(chain(&e)),
                before: Some(0),
                now: Some(NodeBytes::default()),
                ..Done::new(path)
            });
            all.before = all.before.zip(part.before).map(|(sum, more)| sum.saturating_add(more));
            all.now = all.now.zip(part.now).map(|(mut sum, more)| {
                more.iter().for_each(|(node, bytes)| sum.add(node, bytes));
                sum
            });
            all.seconds += part.seconds;
            if let Some(why) = part.why {
                failed += 1;
                if failed <= MOST_WHYS {
                    whys.push(format!("of bytes {} to {} for node {node}, {why}", range.start, range.end));
                }
            }
            all.parts.push((range, node));
        }
        if failed > MOST_WHYS {
            whys.push(format!("and {} more parts", failed - MOST_WHYS));
        }
        // What was not dropped is where it should be.
        if failed == 0 && !stopped {
            whys.clear();
        }
        all.why = (!whys.is_empty()).then(|| whys.join("; "));
        all
    }

    /// Reads in what is to be read of an open file, on these nodes.
    fn part(&self, path: &Path, work: &mut Warm, nodes: &[NodeId], mut whys: Vec<String>) -> Result<Done, WarmError> {
        let new = Done::new(path);
        let pace = Pace { rate: self.args.rate, json: self.json, stop: &self.stop };
        let (took, stopped) = pace.drive(&path.display().to_string(), work);
        whys.extend(stopped.iter().cloned());
        let now = match work.file().hidden_cause()? {
            Some(why) => {
                whys.push(format!("where it is cached is unknown: {why}"));
                None
            }
            None => Some(residency::of_range(work.file(), work.range(), &mut |_, _| ())?),
        };
        if let Some(now) = &now {
            let astray: u64 = now.iter().filter(|(node, _)| !nodes.contains(node)).map(|(_, n)| n).sum();
            let missing = (work.range().end - work.range().start).saturating_sub(now.total());
            if astray > 0 {
                let before =
                    if work.before() != Some(0) { " (cached before: move them, or try --drop-first)" } else { "" };
                whys.push(format!("{} are on other nodes{before}", size(astray)));
            }
            if missing > 0 && stopped.is_none() {
                whys.push(format!("{} are not cached (any more)", size(missing)));
            }
            // What stayed is where it should be.
            if astray == 0 && missing == 0 {
                whys.clear();
            }
        }
        Ok(Done {
            tried: true,
            range: work.range().clone(),
            before: work.before(),
            now,
            seconds: took.as_secs_f64(),
            why: (!whys.is_empty()).then(|| whys.join("; ")),
            ..new
        })
    }
}

impl Done {
    fn new(path: &Path) -> Self {
        let (range, path) = (0..0, path.to_owned());
        Self { path, tried: false, range, before: None, now: None, seconds: 0.0, why: None, parts: Vec::new() }
    }

    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn json(&self, job: &Job) -> Value {
        let part = |(range, node): &(Range<u64>, NodeId)| json!({"offset": range.start, "bytes": range.end - range.start, "to": node});
        let parts: Option<Vec<Value>> = job.read.is_some().then(|| self.parts.iter().map(part).collect());
        json!({
            "path": linux::shown(self.path.as_os_str()),
            "policy": if parts.is_some() { "readers" } else { job.how.name() },
            "to": job.nodes,
            "parts": parts,
            "offset": self.range.start,
            "bytes": self.len(),
            "already_bytes": self.before,
            "nodes": self.now,
            "seconds": self.seconds,
            "why": self.why,
        })
    }

    fn line(&self) -> String {
        let name = escape(&self.path.display().to_string());
        let mut line = match &self.now {
            _ if self.len() == 0 => format!("{name}: nothing to read in"),
            Some(now) => {
                let total = now.total();
                let share = |node: NodeId, n: u64| format!("node {node} {}", percent(n as f64 / total.max(1) as f64));
                let mut shares: Vec<String> =
                    now.iter().filter(|(_, n)| *n > 0).map(|(node, n)| share(node, n)).collect();
                if shares.is_empty() {
                    shares.push("on no node".to_owned());
                }
                format!("{name}: {} cached, {}", size(total), shares.join(", "))
            }
            None => format!("{name}: {} read", size(self.len())),
        };
        let missing = self.before.map(|before| format!("; {} were missing", size(self.len().saturating_sub(before))));
        line.push_str(&format!("{}, {:.1} s", missing.unwrap_or_default(), self.seconds));
        if let Some(why) = &self.why {
            line.push_str("; ");
            line.push_str(&escape(why));
        }
        line + "\n"
    }
}
