//! A policy that is a program of the user's: `--policy exec:PROGRAM` or `unix:SOCKET`.
//!
//! **Problem.** A researcher has a policy of his own, in any language, and wants to see it decide
//! on the same windows as those that homenode has.
//!
//! **Approach.** The program is started once and talks in lines of JSON. It first announces itself
//! ([`Announcement`]), then reads the topology, and from then on reads a snapshot a line and writes
//! a plan a line (`docs/snapshot.md`). What it writes is untrusted: a line has a limit, each answer
//! has one, too, and what a policy may not ask for is left out of the plan and counted in its notes
//! ([`checked`]). A program that ends, floods, hangs or speaks out of turn is ended and decides
//! nothing any more ([`Policy::trouble`] says why). Started by root it runs as the user that asked.
//! How it is started and ended is in [`program`].
//!
//! A command that only decides waits for each answer. A loop that observes and moves never waits
//! ([`Patience::Window`]): the answer to a window counts at the end of the next one, a later one
//! counts for nothing, and three of those in a row end the policy.
//!
//! **Limits.** In such a loop a plan is one window old: what is not as it was is left out.

mod errors;
pub mod program;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use placement::{FileRange, Move, ObservedFile, Plan, Policy, Process, Snapshot, Subject, Thread, Traits, Why, Wish};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};
use topology::{ProcessId, ThreadId, Topology};

use self::program::{Ends, Program};

/// The only version of the lines before the first snapshot.
const VERSION: u32 = 1;
/// Longest line that is read from the program, in bytes.
const LINE: u64 = 16 << 20;
/// Longest sentence that is kept of its words, in characters.
const SENTENCE: usize = 300;
/// Why there is no answer of a program that ended.
const ENDED: &str = "it ended";
/// Most notes that are kept of a plan.
const NOTES: usize = 8;
/// How long it may think about one line, where it is waited for.
pub const ANSWER: Duration = Duration::from_secs(10);
/// So many answers in a row that come too late end the policy.
const LATE: u32 = 3;
/// So often a program that ended in a loop is started again.
const STARTS_AGAIN: u32 = 3;

/// The program's first line.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Announcement {
    /// Version of these lines, 1.
    homenode: u32,
    /// Letters, digits, `-`, `_` and `.`.
    name: String,
    /// Seconds between its decisions; 0: it decides in each window.
    #[serde(default)]
    period_s: f64,
    #[serde(default)]
    moves_files: bool,
    #[serde(default)]
    moves_processes: bool,
    /// What it looks at beside threads and files, where it can be observed.
    #[serde(default)]
    wants: Vec<Wants>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wants {
    /// Mapped memory of processes.
    Mapped,
    /// Ranges of files that were read, and what the kernel reclaims.
    Ranges,
    /// Ranges that were not read.
    Idle,
}

/// The first line that the program reads.
#[derive(Serialize)]
struct Hello<'a> {
    homenode: u32,
    topology: &'a Topology,
    seed: u64,
}

/// How long a caller waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// A command that only decides: this long.
    Waits(Duration),
    /// A loop: not at all.
    Window,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Nothing,
    /// Its first line, after it was started again then.
    Announcement(Instant),
    /// Its plan; whether its window is over.
    Plan {
        late: bool,
    },
}

pub struct External {
    /// `exec:` or `unix:`, and what the program calls itself.
    name: &'static str,
    announced: Announcement,
    seed: u64,
    program: Arc<dyn Program>,
    requests: Option<Sender<String>>,
    answers: Receiver<Result<String, String>>,
    patience: Patience,
    greeted: bool,
    awaits: Awaits,
    late: u32,
    starts_left: u32,
    trouble: Option<String>,
}

impl External {
    /// Starts a program and waits for its first line. `prefix` is what its name begins with.
    pub fn start(prefix: &str, program: Arc<dyn Program>, seed: u64, patience: Patience) -> Result<Self, String> {
        let ends = program.open()?;
        let (requests, answers) = converse(move || Ok(ends))?;
        let mut policy = Self {
            name: "",
            announced: Announcement::default(),
            seed,
            program,
            requests: Some(requests),
            answers,
            patience,
            greeted: false,
            awaits: Awaits::Nothing,
            late: 0,
            starts_left: STARTS_AGAIN,
            trouble: None,
        };
        let line = policy.answer().map_err(|why| format!("its first line: {why}"))?;
        policy.announced = announcement(&line).map_err(|why| format!("its first line: {why}"))?;
        // The name of a policy lives as long as the program, which has one.
        policy.name = format!("{prefix}{}", policy.announced.name).leak();
        Ok(policy)
    }

    /// The next line of the program.
    fn answer(&mut self) -> Result<String, String> {
        let limit = if let Patience::Waits(limit) = self.patience { limit } else { ANSWER };
        match self.answers.recv_timeout(limit) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => Err(format!("no answer within {} s", limit.as_secs_f64())),
            Err(RecvTimeoutError::Disconnected) => Err(ENDED.to_owned()),
        }
    }

    fn tell(&mut self, topology: &Topology, snapshot: &Snapshot) -> Result<(), String> {
        let mut lines = String::new();
        if !std::mem::replace(&mut self.greeted, true) {
            let hello = Hello { homenode: VERSION, topology, seed: self.seed };
            lines = serde_json::to_string(&hello).map_err(|e| e.to_string())? + "\n";
        }
        lines += &serde_json::to_string(snapshot).map_err(|e| e.to_string())?;
        lines.push('\n');
        Ok(self.requests.as_ref().and_then(|requests| requests.send(lines).ok()).ok_or(ENDED)?)
    }

    /// Its plan, as far as a policy may ask for it in this window.
    fn plan(&self, line: &str, topology: &Topology, snapshot: &Snapshot) -> Result<Plan, String> {
        let plan: Plan = serde_json::from_str(line).map_err(|e| sentence(&format!("its plan: {e}")))?;
        if plan.version != placement::plan::VERSION {
            return Err(format!("its plan has version {}, not {}", plan.version, placement::plan::VERSION));
        }
        let most = snapshot.threads.len() + snapshot.processes.len() + snapshot.files.len();
        if plan.moves.len() > most {
            return Err(format!("its plan has {} moves, and the window {most} subjects", plan.moves.len()));
        }
        Ok(checked(plan, self.name, self.traits(), topology, snapshot))
    }

    fn ask(&mut self, topology: &Topology, snapshot: &Snapshot) -> Result<Plan, String> {
        self.tell(topology, snapshot)?;
        let line = self.answer()?;
        self.plan(&line, topology, snapshot)
    }

    /// The plan for the window before this one, if there is one by now. Tells the program this
    /// window unless it still thinks.
    fn ask_without_waiting(&mut self, topology: &Topology, snapshot: &Snapshot) -> Result<Plan, String> {
        let mut plan = Plan::new(self.name);
        if self.awaits != Awaits::Nothing {
            let line = match self.answers.try_recv() {
                Ok(line) => line?,
                Err(TryRecvError::Disconnected) => return Err(ENDED.to_owned()),
                // It may take as long as at first, and knows of no window yet.
                Err(TryRecvError::Empty) if matches!(self.awaits, Awaits::Announcement(at) if at.elapsed() < ANSWER) => {
                    return Ok(plan);
                }
                Err(TryRecvError::Empty) => {
                    self.late += 1;
                    if self.late >= LATE {
                        return Err(format!("no answer in time in {LATE} windows"));
                    }
                    if let Awaits::Plan { late } = &mut self.awaits {
                        *late = true;
                    }
                    plan.notes.push(format!("{}: no answer within its window ({} of {LATE})", self.name, self.late));
                    return Ok(plan);
                }
            };
            match self.awaits {
                Awaits::Announcement(_) if announcement(&line)? != self.announced => {
                    return Err("it was started again and announced something else".to_owned());
                }
                Awaits::Announcement(_) => {}
                Awaits::Plan { late: true } => {
                    plan.notes.push(format!("{}: its answer came too late and counts for nothing", self.name));
                }
                Awaits::Plan { late: false } | Awaits::Nothing => {
                    plan = self.plan(&line, topology, snapshot)?;
                    self.late = 0;
                }
            }
        }
        self.tell(topology, snapshot)?;
        self.awaits = Awaits::Plan { late: false };
        Ok(plan)
    }

    /// Starts a program again that ended in a loop.
    fn start_again(&mut self) -> Result<(), String> {
        let program = Arc::clone(&self.program);
        let (requests, answers) = converse(move || program.open())?;
        (self.requests, self.answers) = (Some(requests), answers);
        (self.greeted, self.awaits, self.late) = (false, Awaits::Announcement(Instant::now()), 0);
        Ok(())
    }

    /// Ends the program, once.
    fn end(&mut self) {
        if self.requests.take().is_some() {
            self.program.end();
        }
    }
}

impl Drop for External {
    fn drop(&mut self) {
        self.end();
    }
}

impl Policy for External {
    fn name(&self) -> &'static str {
        self.name
    }

    fn period_s(&self) -> f64 {
        self.announced.period_s
    }

    fn traits(&self) -> Traits {
        let wants = |what| self.announced.wants.contains(&what);
        let wish = |what| if wants(what) { Wish::IfPossible } else { Wish::No };
        Traits {
            moves_files: self.announced.moves_files,
            moves_processes: self.announced.moves_processes,
            wants_mapped: wish(Wants::Mapped),
            wants_ranges: wish(Wants::Ranges),
            wants_idle: wants(Wants::Idle),
            without_bandwidth: None,
        }
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        let nothing = Plan::new(self.name);
        // Once is enough in a loop.
        let tells = self.trouble.is_none() || self.patience != Patience::Window;
        if self.trouble.is_none() {
            let asked = match self.patience {
                Patience::Waits(_) => self.ask(topology, snapshot),
                Patience::Window => self.ask_without_waiting(topology, snapshot),
            };
            let why = match asked {
                Ok(plan) => return plan,
                Err(why) => why,
            };
            if self.patience == Patience::Window && why == ENDED && self.starts_left > 0 {
                self.starts_left -= 1;
                let notes = vec![format!("{}: {why}; it is started again", self.name)];
                match self.start_again() {
                    Ok(()) => return Plan { notes, ..nothing },
                    Err(why) => tracing::warn!("{why}"),
                }
            }
            self.trouble = Some(format!("{}: {why}", self.name));
            self.end();
        }
        Plan { notes: self.trouble.iter().filter(|_| tells).cloned().collect(), ..nothing }
    }

    fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

/// A thread that talks with a program.
type Conversation = (Sender<String>, Receiver<Result<String, String>>);

fn converse(open: impl FnOnce() -> Result<Ends, String> + Send + 'static) -> Result<Conversation, String> {
    let (requests, asked) = channel();
    let (answered, answers) = channel();
    let talk = move || {
        // It reads what somebody else writes.
        if let Err(error) = linux::privileges::keep_only(CapabilitySet::empty()) {
            tracing::warn!(%error, "the conversation with a program keeps privileges");
        }
        match open() {
            Ok((to, from)) => talk(to, BufReader::new(from), &asked, &answered),
            Err(why) => _ = answered.send(Err(why)),
        }
    };
    std::thread::Builder::new().name("policy".to_owned()).spawn(talk).map_err(|e| format!("no thread: {e}"))?;
    Ok((requests, answers))
}

/// Reads the first line, then writes what is asked and reads a line for each, until either ends.
fn talk(mut to: File, mut from: BufReader<File>, asked: &Receiver<String>, answered: &Sender<Result<String, String>>) {
    let mut answer = line(&mut from);
    loop {
        let ended = answer.is_err();
        if answered.send(answer).is_err() || ended {
            return;
        }
        let Ok(lines) = asked.recv() else { return };
        answer = spoke_up(&mut from)
            .and_then(|()| to.write_all(lines.as_bytes()).map_err(|_| ENDED.to_owned()).and_then(|()| line(&mut from)));
    }
}

/// An error if there is something to read already. The end of a socket can be read, too.
fn spoke_up(from: &mut BufReader<File>) -> Result<(), String> {
    let mut ready = [PollFd::from_borrowed_fd(from.get_ref().as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let polled = poll(&mut ready, Some(&now)).is_ok();
    let is_ready = polled && ready.iter().any(|ready| ready.revents().contains(PollFlags::IN));
    if from.buffer().is_empty() && !is_ready {
        return Ok(());
    }
    match from.fill_buf() {
        Ok([_, ..]) => Err("it wrote a line that nobody asked for".to_owned()),
        _ => Err(ENDED.to_owned()),
    }
}

/// One line, which has a limit.
fn line(from: &mut impl BufRead) -> Result<String, String> {
    let mut line = Vec::new();
    from.take(LINE).read_until(b'\n', &mut line).map_err(|_| ENDED.to_owned())?;
    if line.pop() != Some(b'\n') {
        return Err(if line.len() as u64 + 1 < LINE { ENDED.to_owned() } else { format!("a line above {LINE} bytes") });
    }
    String::from_utf8(line).map_err(|_| "no UTF-8".to_owned())
}

fn announcement(line: &str) -> Result<Announcement, String> {
    let said: Announcement = serde_json::from_str(line).map_err(|e| sentence(&e.to_string()))?;
    if said.homenode != VERSION {
        return Err(format!("version {} is not supported, this build speaks version {VERSION}", said.homenode));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if said.name.is_empty() || said.name.len() > 32 || !said.name.chars().all(plain) {
        let name = sentence(&said.name);
        return Err(format!("the name {name:?}: 1 to 32 letters, digits, `-`, `_` and `.`"));
    }
    if !(0.0..=3600.0).contains(&said.period_s) {
        return Err(format!("a period of {} s: 0 to 3600", said.period_s));
    }
    Ok(said)
}

/// Shortens a sentence of the program's.
fn sentence(text: &str) -> String {
    text.chars().take(SENTENCE).collect()
}

/// What a policy may ask for, of a plan by a program. The rest is left out, with a note.
fn checked(plan: Plan, name: &str, traits: Traits, topology: &Topology, snapshot: &Snapshot) -> Plan {
    let threads: HashMap<u32, &Thread> = snapshot.threads.iter().map(|thread| (thread.tid, thread)).collect();
    let window = Window {
        threads: &threads,
        processes: snapshot.processes.iter().map(|process| (process.pid, process)).collect(),
        files: snapshot.files.iter().map(|file| (Subject::file(file), file)).collect(),
        traits,
        topology,
    };
    let mut checked = Plan::new(name);
    let (mut left_out, mut first) = (0, None);
    let mut moved = HashSet::new();
    for mut mv in plan.moves {
        mv.why = Why::from(sentence(&mv.why.text()));
        match window.refuses(&mv).or((!moved.insert(mv.subject)).then_some("moved twice")) {
            None => checked.moves.push(mv),
            Some(why) => {
                left_out += 1;
                first.get_or_insert_with(|| format!("{}: {why}", mv.subject));
            }
        }
    }
    checked.declined = plan.declined.into_iter().filter(|d| threads.contains_key(&d.tid)).take(threads.len()).collect();
    for declined in &mut checked.declined {
        (declined.reason, declined.why) = (sentence(&declined.reason), sentence(&declined.why));
    }
    checked.keeps = plan.keeps.into_iter().filter(|tid| threads.contains_key(tid)).take(threads.len()).collect();
    checked.notes = plan.notes.iter().take(NOTES).map(|note| sentence(note)).collect();
    if let Some(first) = first {
        checked.notes.push(format!("left out of the program's plan: {left_out} of its moves ({first})"));
    }
    checked
}

struct Window<'a> {
    threads: &'a HashMap<u32, &'a Thread>,
    processes: HashMap<u32, &'a Process>,
    files: HashMap<Subject, &'a ObservedFile>,
    traits: Traits,
    topology: &'a Topology,
}

impl Window<'_> {
    /// Why this move is none that a policy may ask for.
    fn refuses(&self, mv: &Move) -> Option<&'static str> {
        let Some(to) = self.topology.nodes.iter().find(|node| node.id == mv.to) else { return Some("no such node") };
        if mv.from == mv.to {
            return Some("it is there");
        }
        if self.topology.nodes.iter().all(|node| node.id != mv.from) {
            return Some("it is elsewhere");
        }
        let is_wrong = |range: &FileRange| range.bytes == 0 || range.start.checked_add(range.bytes).is_none();
        let meet = |two: &[FileRange]| matches!(two, [one, next] if one.end() >= next.start);
        if mv.ranges.iter().any(is_wrong) || mv.ranges.windows(2).any(meet) {
            return Some("its ranges are wrong");
        }
        match mv.subject {
            Subject::Thread(ThreadId { tid, .. }) => match self.threads.get(&tid) {
                None => Some("not in the window"),
                Some(thread) if mv.subject != Subject::thread(thread) || mv.pid != thread.pid => Some("another one"),
                Some(thread) if thread.pinned.is_some() => Some("pinned"),
                Some(thread) if thread.node != mv.from => Some("it is elsewhere"),
                Some(thread) if !thread.allowed_nodes.contains(&mv.to) || to.cpus.is_empty() => {
                    Some("it may not run there")
                }
                Some(_) => None,
            },
            Subject::Process(ProcessId { pid, .. }) => {
                let observed = self.processes.get(&pid).map(|process| Subject::process(pid, process.start_ns));
                let of_it = || self.threads.values().filter(|thread| thread.pid == pid);
                let known = observed.or_else(|| of_it().next().map(|t| Subject::process(pid, t.process_start_ns)));
                match known {
                    _ if !self.traits.moves_processes => Some("it did not announce that it moves processes"),
                    None => Some("not in the window"),
                    Some(known) if known != mv.subject => Some("another one"),
                    Some(_) if of_it().any(|thread| thread.pinned.is_some()) => Some("pinned"),
                    Some(_) if to.cpus.is_empty() || of_it().any(|thread| !thread.allowed_nodes.contains(&mv.to)) => {
                        Some("it may not run there")
                    }
                    Some(_) => None,
                }
            }
            Subject::File(_) => match self.files.get(&mv.subject) {
                _ if !self.traits.moves_files => Some("it did not announce that it moves files"),
                None => Some("not in the window"),
                Some(file) if file.movable == Some(false) || file.pinned.is_some() => Some("pinned"),
                Some(_) => None,
            },
        }
    }
}

#[cfg(test)]
mod tests;
