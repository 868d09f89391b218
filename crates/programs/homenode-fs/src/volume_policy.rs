//! Policies on a mounted volume, on the machine's nodes or on emulated ones.
//!
//! **Problem.** The loop of `homenode run` needs a plane, and the server of a mount has the best
//! one: it sees every request.
//!
//! **Approach.** [`Nodes`] says which nodes the volume is on, before it is mounted; [`run`] is the
//! loop of `homenode run` on [`VolumePlane`], beside the server. Emulated memory is slower by the
//! profile's scale, and so are the thresholds of policies and rails ([`Config::slower`]), unless
//! the user gives them as options.
//!
//! **Limits.** The process keeps its privileges: it unmounts at the end.

use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::args::NodesArgs;
use command::args::{Global, PolicyArgs, STATE_DIR};
use command::config::Config;
use command::exit::{Exit, Failure};
use command::machine;
use command::output::{self, limits::Limits};
use command::recording::Writer;
use engine::{Engine, StateDir};
use fs::medium::{Emulated, Mapped, Medium, Monotonic, Profile};
use fs::{Placement, Volume};
use linux::interference;
use mount::Cache;
use mount::plane::{Callers, Settings, VolumePlane};
use placement::Policy;
use session::policies::Programs;
use session::published::{self, Publisher};
use session::windows::{self, Output};
use session::{policies, report, undo};
use topology::{FileId, Topology};

/// Threads that serve emulated memory: each sleeps as long as its access takes.
const SLEEPERS: usize = 32;
/// Longer names of state directories are hashed, in bytes: a file name has at most 255.
const LONGEST_NAME: usize = 200;

/// The nodes that a volume is on.
pub struct Nodes {
    mapped: Arc<Mapped>,
    /// The machine, as policies and placement see it.
    pub topology: Topology,
    /// The threads that use the mount; none where all are on one node and nobody wants to know.
    pub callers: Option<Arc<Callers>>,
    emulated: Option<Arc<Emulated<Arc<Mapped>>>>,
}

impl Nodes {
    /// The nodes that the user asks for, of a volume with this memory.
    pub fn of(global: &Global, args: &NodesArgs, mapped: &Arc<Mapped>) -> Result<Self, Failure> {
        let real = machine::read(Path::new(machine::SYS), &Config::load(global.config.as_deref())?)?;
        let Some(count) = args.emulate_nodes else {
            let wanted = real.nodes.len() > 1 || args.policy();
            let callers = wanted.then(|| start(&real)).transpose()?;
            return Ok(Self { mapped: Arc::clone(mapped), topology: real, callers, emulated: None });
        };
        let profile = profile(args)?;
        let superblock = fs::superblock_of(&**mapped, 0).map_err(|e| crate::fs_volume::failure("mount", e))?;
        let of_region: Vec<Option<u32>> = superblock.regions.iter().map(|region| region.node).collect();
        if let Some(node) = (0..count).find(|node| !of_region.contains(&Some(*node))) {
            let why = format!("the volume has no region on node {node}");
            return Err(Failure::new(Exit::Usage, format!("--emulate-nodes {count}"), why)
                .hint("homenode-fs mkfs a@0 b@1 makes a volume with a region on each of two nodes"));
        }
        let bytes = (0..mapped.regions()).map(|region| mapped.len(region)).max().unwrap_or(0);
        // In a container, or started by taskset, only these CPUs are there for the mount's users,
        // too.
        let mine = linux::affinity::get(0)
            .map_err(|e| Failure::from_error(Exit::Io, "cannot read the CPUs that this process may use", &e))?;
        let topology = profile.topology(&real.cpus().intersection(&mine), count, bytes);
        let medium = Emulated::new(Arc::clone(mapped), &of_region, profile, topology.clone(), Arc::new(Monotonic));
        let (emulated, callers) = (Arc::new(medium), start(&topology)?);
        let (callers, emulated) = (Some(callers), Some(emulated));
        Ok(Self { mapped: Arc::clone(mapped), topology, callers, emulated })
    }

    /// The volume's memory, as it is or as it is emulated.
    pub fn medium(&self) -> Box<dyn Medium> {
        match &self.emulated {
            Some(emulated) => Box::new(Arc::clone(emulated)),
            None => Box::new(Arc::clone(&self.mapped)),
        }
    }

    /// Options of the server. Reads that stay in the kernel's cache are seen by nobody, so a policy
    /// or emulated memory asks for every read, unless the user wants otherwise.
    pub fn serve(&self, options: &mut mount::Options, args: &NodesArgs, chosen: (bool, bool)) {
        let (cache_chosen, workers_chosen) = chosen;
        options.callers.clone_from(&self.callers);
        options.counts_opens = args.policy();
        if !cache_chosen && (args.policy() || self.emulated.is_some()) {
            options.cache = Cache::Direct;
        }
        // Threads that sleep are needed in numbers, and whoever asks for a number of threads gets
        // it.
        options.ring = !workers_chosen && self.emulated.is_none();
        if !workers_chosen && self.emulated.is_some() {
            options.workers = options.workers.max(SLEEPERS);
        }
        if let Some(emulated) = &self.emulated {
            emulated.start();
        }
    }

    /// Label of the emulation, for every line that has a figure.
    pub fn label(&self) -> Option<String> {
        let profile = self.emulated.as_ref()?.profile();
        Some(format!("emulated {}, scale {}", profile.name, profile.scale))
    }

    fn scale(&self) -> f64 {
        self.emulated.as_ref().map_or(1.0, |emulated| emulated.profile().scale)
    }

    fn notes(&self) -> Vec<String> {
        let Some(emulated) = &self.emulated else { return Vec::new() };
        let profile = emulated.profile();
        let groups: Vec<String> =
            self.topology.nodes.iter().map(|n| format!("node {} is CPUs {}", n.id, n.cpus)).collect();
        vec![format!(
            "emulated: {}; memory as in profile {}, {} times as slow; all bandwidths and times are those of emulated memory",
            groups.join(", "),
            profile.name,
            profile.scale
        )]
    }
}

fn profile(args: &NodesArgs) -> Result<Profile, Failure> {
    let name = args.profile.as_deref().unwrap_or("optane");
    let mut profile = match Profile::named(name) {
        Some(profile) => profile,
        None => {
            let path = Path::new(name);
            let text = std::fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
            let wrong = |why: String| Failure::new(Exit::Usage, name, why.trim().replace('\n', " "));
            match path.extension().is_some_and(|extension| extension == "json") {
                true => serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?,
                false => toml::from_str(&text).map_err(|e| wrong(e.to_string()))?,
            }
        }
    };
    profile.scale = args.scale.unwrap_or(profile.scale);
    profile.check().map_err(|why| Failure::new(Exit::Usage, format!("profile {name}"), why))?;
    Ok(profile)
}

fn chosen(args: &NodesArgs, config: &Config) -> Result<Box<dyn Policy>, Failure> {
    let policy = args.policy.clone().unwrap_or_else(|| "off".to_owned());
    let programs = Programs::kept([policy.as_str()], args.policy_user.as_deref())?;
    let policy_user = args.policy_user.clone();
    policies::chosen(
        &PolicyArgs { policy: Some(policy), policy_user, margin: args.margin, min_bytes: args.min_bytes },
        config,
        &programs,
    )
}

fn start(topology: &Topology) -> Result<Arc<Callers>, Failure> {
    Callers::start(topology.clone())
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot watch where callers run", &e))
}

/// The state directory of a mount: the one that the user names, or one of its own.
fn state_dir(global: &Global, dir: &Path) -> PathBuf {
    if global.state_dir != Path::new(STATE_DIR) {
        return global.state_dir.clone();
    }
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let name = published::escape(&dir);
    let name = if name.len() > LONGEST_NAME { format!("{:016x}", fnv(dir.as_os_str().as_bytes())) } else { name };
    Path::new(STATE_DIR).join("volumes").join(name)
}

/// FNV-1a: the same in every version of homenode.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Policy of a mount, prepared: everything that can be had, or fail, before the volume is mounted.
pub struct Prepared {
    policy: Box<dyn Policy>,
    settings: engine::Settings,
    state: Option<StateDir>,
    record: Option<Writer>,
    out: Output,
}

impl Prepared {
    /// Opens what a policy needs; `None` without a policy. Then what a crashed server of this mount
    /// left behind is undone here.
    pub fn new(global: &Global, args: &NodesArgs, nodes: &Nodes, dir: &Path) -> Result<Option<Self>, Failure> {
        let global = &Global { state_dir: state_dir(global, dir), ..global.clone() };
        if !args.policy() {
            undo_crashed(global);
            return Ok(None);
        }
        let config = Config::load(global.config.as_deref())?.slower(nodes.scale());
        let policy = chosen(args, &config)?;
        let settings = engine::Settings {
            window_s: args.window.unwrap_or(config.engine.window_s),
            dry_run: args.dry_run || config.engine.dry_run,
            ..config.engine()
        };
        let record = args.record.as_deref().map(Writer::open).transpose()?;
        let state = if settings.dry_run { None } else { Some(undo::open_state(&global.state_dir)?) };
        // A dry run also tells `top` its windows there.
        engine::state::trusted(&global.state_dir).map_err(|e| undo::unusable(&e))?;
        let out = Output::of_volume(
            global.json,
            args.quiet,
            Limits::recorded(global.verbose.max(1)),
            Publisher::new(&global.state_dir, dir, policy.name(), nodes.label()),
        );
        Ok(Some(Self { policy, settings, state, record, out }))
    }

    /// Begins to observe the volume, mounted on `dir`. First undoes what a crashed server of this
    /// mount left behind.
    pub fn start(
        self,
        nodes: &Nodes,
        volume: &Arc<Volume>,
        (dir, placement): (&Path, Placement),
    ) -> Result<Decider, Failure> {
        let stat = rustix::fs::stat(dir).map_err(|e| Failure::io("look at", dir, &e.into()))?;
        let device = FileId::device(rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        let directory = dir.canonicalize().map_err(|e| Failure::io("look at", dir, &e))?;
        let emulated = nodes.emulated.is_some();
        let (notes, wants) = (nodes.notes(), self.policy.traits());
        let ranges = wants.wants_ranges.is_granted(nodes.topology.has_slow_memory());
        let idle = ranges && wants.wants_idle;
        let plane = Settings { device, directory, notes, emulated, placement, ranges, idle, ..Settings::default() };
        let unsupported =
            |what: &str, e: &(dyn std::error::Error + 'static)| Failure::from_error(Exit::Unsupported, what, e);
        let callers = match &nodes.callers {
            Some(callers) => Arc::clone(callers),
            None => start(&nodes.topology)?,
        };
        let plane = VolumePlane::open(Arc::clone(volume), callers, plane)
            .map_err(|e| unsupported("cannot observe the mount", &e))?;
        let plane = match self.record {
            Some(mut writer) => plane.telling(move |window| writer.append(window).map_err(|f| f.line().into())),
            None => plane,
        };
        let engine = Engine::new(plane, self.policy, self.settings.clone(), self.state)
            .map_err(|e| unsupported("cannot start", &e))?;
        Ok(Decider { engine, out: self.out, settings: self.settings })
    }
}

/// Undoes what a crashed server left behind, if there is anything. The mount works without it, so
/// it only warns.
fn undo_crashed(global: &Global) {
    if !global.state_dir.is_dir() {
        return;
    }
    match undo::undo(&global.state_dir, None) {
        Ok(finished) if finished.complete() => {}
        Ok(finished) => {
            output::complain(&format!("homenode: after a crash: {}\n", report::finished(&finished).trim_end()));
        }
        // The process that has it undoes it.
        Err(failure) if failure.exit() == Exit::Busy => {}
        Err(failure) => failure.report(global.json),
    }
}

/// Policy of a mount, ready to run.
pub struct Decider {
    engine: Engine<VolumePlane>,
    out: Output,
    settings: engine::Settings,
}

impl Decider {
    /// Window after window until it is time to stop; then undoes all moves of threads, also after a
    /// panic.
    pub fn run(mut self, stop: &dyn Fn() -> bool) -> Result<(), Failure> {
        let ran = guarded(|| {
            let nodes = engine::Plane::topology(self.engine.plane_mut()).nodes.len();
            let interference = interference::detect(Path::new("/proc"), Path::new(machine::SYS), stop);
            self.out.start(self.engine.policy(), &self.settings, nodes, &interference, None)?;
            self.out.recovered(self.engine.recovered())?;
            windows::windows(&mut self.engine, &mut self.out, stop, &mut || false, &mut |_, _| Ok(()), None)
        });
        self.engine.plane().ends();
        let finished = guarded(|| self.out.finished(&self.engine.finish()));
        ran.and(finished)
    }
}

/// A panic as a failure: users of a mount do not lose it for a mistake in a policy.
fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Failure::new(Exit::Unsupported, "policy", "panicked: this is a bug of homenode")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(profile: &str) -> NodesArgs {
        NodesArgs {
            policy: None,
            policy_user: None,
            margin: None,
            min_bytes: None,
            window: None,
            dry_run: false,
            quiet: false,
            record: None,
            emulate_nodes: Some(2),
            profile: Some(profile.to_owned()),
            scale: None,
        }
    }

    #[test]
    fn profiles_are_read_from_files_and_what_is_wrong_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let memory =
            "read_bw = 1e9\nwrite_bw = 5e8\nread_latency_s = 1e-6\nwrite_latency_s = 1e-6\nremote_read = 1.5\n";
        let toml = format!("name = \"slow\"\nscale = 4\n[memory]\n{memory}remote_write = 2\n");
        let profile = super::profile(&args(&write("a.toml", &toml))).unwrap();
        assert_eq!((profile.name.as_str(), profile.scale, profile.memory.remote_load), ("slow", 4.0, 1.0));
        let json = r#"{"name":"x","scale":1,"memory":{"read_bw":1e6,"write_bw":1e6,"read_latency_s":0,"write_latency_s":0,
            "remote_read":1,"remote_write":1}}"#;
        let again = NodesArgs { scale: Some(9.0), ..args(&write("a.json", json)) };
        assert_eq!(super::profile(&again).unwrap().scale, 9.0);
        let error = |text: &str| super::profile(&args(&write("bad.toml", text))).unwrap_err().line();
        assert!(error(&format!("name = \"x\"\nscale = 1\n[memory]\n{memory}")).contains("remote_write"));
        assert!(error(&toml.replace("5e8", "-1")).contains("write_bw is -1"));
        assert!(super::profile(&args("/nonexistent")).unwrap_err().line().contains("/nonexistent"));
    }

    /// `auto` left out programs with less than 4 MiB a window, a seventh of what a node of the
    /// default scale can carry.
    #[test]
    fn auto_takes_its_thresholds_by_the_scale_too() {
        let text = r#"{"version":2,"time_s":10,"window_s":1,"nodes":[
            {"id":0,"cpus":[0],"distance":{"0":10,"1":21},"read_bw_max":34e6,"write_bw_max":9.25e6},
            {"id":1,"cpus":[1],"distance":{"0":21,"1":10},"read_bw_max":34e6,"write_bw_max":9.25e6}],
            "threads":[{"tid":1,"pid":1,"start_ns":5000000000,"node":0,"allowed_nodes":[0,1],"cpu_s":0.02,"wait_s":0,
            "served_s":0.9,"read_bytes":{"1":3000000},"files":[{"file":"0:43:9","read_bytes":{"1":3000000}}]}],
            "files":[{"file":"0:43:9","bytes":{"1":9000000},"writes":"follow","movable":true,"readers":[1]}]}"#;
        let snapshot = placement::Snapshot::from_json(text).unwrap();
        let mut args = args("optane");
        args.policy = Some("auto".to_owned());
        let moves = |scale: f64| {
            super::chosen(&args, &Config::default().slower(scale))
                .ok()
                .unwrap()
                .decide(&snapshot.topology(), &snapshot)
                .moves
                .len()
        };
        assert_eq!((moves(1.0), moves(200.0)), (0, 1));
    }

    #[test]
    fn every_mount_has_a_state_directory_of_its_own() {
        let global = |dir: &str| Global { json: false, config: None, state_dir: dir.into(), verbose: 0 };
        let of = |dir: &str| state_dir(&global(STATE_DIR), Path::new(dir));
        assert_eq!(of("/nonexistent/a"), Path::new("/run/homenode/volumes/nonexistent-a"));
        assert_eq!(of("/nonexistent-a"), Path::new("/run/homenode/volumes/nonexistent\\x2da"));
        assert_eq!(of("/nonexistent/x2da"), Path::new("/run/homenode/volumes/nonexistent-x2da"));
        assert_eq!(of("/nonexistent\\x2da"), Path::new("/run/homenode/volumes/nonexistent\\x5cx2da"));
        let long = |end: &str| of(&format!("/{}/{end}", "é/".repeat(100)));
        assert!(long("a") != long("b") && long("a").file_name().unwrap().len() <= LONGEST_NAME);
        assert_eq!(state_dir(&global("/tmp/s"), Path::new("/a")), Path::new("/tmp/s"));
    }
}
