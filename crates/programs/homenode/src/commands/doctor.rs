//! `homenode doctor`: what homenode uses, what is missing and why, what interferes, and how to fix
//! each.
//!
//! The host crate's probes give the facts; this module explains them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use command::args::Global;
use linux::interference::Interference;
use linux::{mounts, patient};
use observe::hooks::Kind;
use observe::{Capabilities, Configuration, Fact, Hook, Observer};
use rustix::fs::{Access, AtFlags, CWD, StatxFlags, access, statx};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use serde::Serialize;
use topology::{NodeId, Topology};

use crate::commands::{nodes, plane};
use crate::config::Config;
use crate::exit::{self, Exit, Failure};
use crate::machine::{self, Machine};
use crate::output::units::count;
use crate::output::{self, escape, words};

/// `homenode doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Check the needs of `--exact`
    #[arg(long)]
    pub exact: bool,
}

/// Findings about files that the user has named.
const CONFIGURATION: &str = "configuration";
const STATE_DIRECTORY: &str = "state directory";

const AS_ROOT: &str = "run it as root: sudo homenode doctor";

const NOT_TO_ROOT: &str = "root may not do it here: give homenode its capabilities, or look for a container or a kernel lockdown that forbids it";

/// Everything that `doctor` has to say.
#[derive(Serialize)]
pub struct Report {
    /// Whether everything needed to observe and move is available.
    ok: bool,
    kernel: String,
    nodes: usize,
    facts: Vec<Finding>,
    hooks: Vec<String>,
    /// Limits of observation, each with its cause.
    limits: Vec<String>,
    interference: Vec<Interference>,
    /// Mount points of volumes whose server has ended.
    dead_mounts: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Finding {
    name: String,
    available: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Whether homenode can observe or move nothing without it.
    needed: bool,
    /// The source of the finding, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<&'static str>,
}

impl Finding {
    fn new(name: &str, cause: Option<String>, needed: bool, fix: &'static str) -> Self {
        // A refusal says nothing about the kernel until root has asked.
        let refused = cause.as_ref().is_some_and(|cause| cause.contains("EPERM"));
        Self::fixed(
            name,
            cause,
            needed,
            if needed && refused { AS_ROOT } else { fix },
            rustix::process::geteuid().is_root(),
        )
    }

    /// `root`: it is root who asks.
    fn fixed(name: &str, cause: Option<String>, needed: bool, fix: &'static str, root: bool) -> Self {
        let available = cause.is_none();
        let fix = if fix == AS_ROOT && root { NOT_TO_ROOT } else { fix };
        Self {
            name: name.to_owned(),
            available,
            cause,
            needed,
            source: None,
            fix: (!available && !fix.is_empty()).then_some(fix),
        }
    }
}

impl Report {
    /// Leaves out why a file that the user has named cannot be used.
    pub fn without_names(&mut self) {
        for fact in self.facts.iter_mut().filter(|fact| [CONFIGURATION, STATE_DIRECTORY].contains(&fact.name.as_str()))
        {
            fact.cause = fact.cause.as_ref().map(|_| "left out: it names a file".to_owned());
        }
    }
}

pub fn run(global: &Global, args: &DoctorArgs) -> Result<Exit, Failure> {
    let report = examine(global, args.exact)?;
    output::tell(global.json, &report, || text(&report))?;
    Ok(if report.ok { Exit::Done } else { Exit::Partly })
}

/// Finds out what this machine allows; with `exact` also what `--exact` needs.
pub fn examine(global: &Global, exact: bool) -> Result<Report, Failure> {
    let (machine, configuration) = configured(global)?;
    let topology = &machine.topology;
    let capabilities = Capabilities::probe();
    let settings = observe::Settings { exact, ..observe::Settings::default() };
    let (capabilities, chosen, refused) = tried(capabilities, &settings, topology);
    let mut facts = observing(&capabilities, &chosen);
    facts.extend(refused);
    facts.extend(moving(global, &machine));
    facts.push(configuration);
    Ok(Report {
        ok: facts.iter().all(|f| f.available || !f.needed),
        kernel: capabilities.kernel.clone(),
        nodes: topology.nodes.len(),
        facts,
        hooks: chosen.hooks.iter().map(|hook| format!("{} ({})", hook.target(), kind(hook.kind()))).collect(),
        limits: chosen.notes,
        interference: plane::interference(&|| false),
        dead_mounts: dead_mounts(),
    })
}

/// The mounts of volumes whose server has ended: every use of them fails.
fn dead_mounts() -> Vec<PathBuf> {
    let table = std::fs::read(Path::new(plane::PROC).join("self/mountinfo")).unwrap_or_default();
    let points = mounts::list(&table).filter(|mount| mount.fs_type == "fuse.homenode").map(|mount| mount.point);
    // A server that is stopped never answers.
    let dead = |(id, point): &(u32, PathBuf)| {
        let point = point.clone();
        let asked = patient::ask(*id, "mount", move || {
            let flags = AtFlags::STATX_FORCE_SYNC;
            Ok(statx(CWD, &point, flags, StatxFlags::TYPE).map(drop)?)
        });
        asked.is_err_and(|e| e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()))
    };
    (0..).zip(points).filter(dead).map(|(_, point)| point).collect()
}

/// The machine, and a finding on the configuration. A broken configuration is left out.
fn configured(global: &Global) -> Result<(Machine, Finding), Failure> {
    let sys = Path::new(machine::SYS);
    let used = Config::load(global.config.as_deref()).and_then(|config| Machine::read(sys, &config));
    let cause = used.as_ref().err().map(Failure::line);
    let finding = Finding::new(CONFIGURATION, cause, true, "correct it; `homenode restore` needs none");
    Ok((used.or_else(|_| Machine::read(sys, &Config::default()))?, finding))
}

/// Loads and attaches the real programs for a moment: the kernel can refuse them although the
/// probes succeed.
fn tried(
    capabilities: Capabilities,
    settings: &observe::Settings,
    topology: &Topology,
) -> (Capabilities, Configuration, Option<Finding>) {
    let chosen = observe::choose(&capabilities, settings);
    if chosen.blocked.is_some() {
        return (capabilities, chosen, None);
    }
    match Observer::open(settings, topology) {
        Ok(observer) => (observer.capabilities().clone(), observer.configuration().clone(), None),
        Err(error) => {
            let cause = Some(exit::chain(&error));
            let finding =
                Finding::new("homenode's own BPF programs", cause, true, "`homenode -vv top --once` says more");
            (capabilities, chosen, Some(finding))
        }
    }
}

fn observing(facts: &Capabilities, chosen: &Configuration) -> Vec<Finding> {
    let fact = |name, fact: &Fact, needed, fix| Finding::new(name, fact.cause().map(str::to_owned), needed, fix);
    let newer_kernel = "use a kernel with CONFIG_BPF_SYSCALL and CONFIG_DEBUG_INFO_BTF, 6.1 or later";
    let mut findings = vec![
        fact("BTF (the kernel describes its types)", &facts.btf, true, newer_kernel),
        // Without BTF nobody can load them.
        fact("loading BPF programs", &facts.load, true, if facts.btf.available() { AS_ROOT } else { newer_kernel }),
        fact("BPF at tracepoints", &facts.tracepoints, true, newer_kernel),
        fact("BPF task iterator", &facts.task_pass, true, newer_kernel),
        fact(
            "thread ids of the whole machine",
            &facts.pid_namespace,
            true,
            "run it outside the container, or with --pid=host",
        ),
        fact(
            "start times of the machine's processes",
            &facts.time_namespace,
            true,
            "run it in the machine's own time namespace (without unshare --time)",
        ),
        fact("pages of 4 KiB", &facts.page_size, true, "use a kernel with pages of 4 KiB"),
        fact(
            "BPF at functions (fexit)",
            &facts.functions,
            false,
            "tracepoints are used instead; fexit needs root, CONFIG_FUNCTION_TRACER, and a hypervisor and policy that permit it",
        ),
        fact(
            "affinities that programs set themselves",
            &facts.asked_affinity,
            false,
            "use Linux 6.2 or later; until then an affinity that equals homenode's is treated as homenode's",
        ),
    ];
    let node = &facts.node_bits;
    let source = node.as_ref().ok().map(|found| format!("{} ({} bits)", found.source, found.bits));
    let node = Finding::new("the node in a page's flags", node.as_ref().err().cloned(), true, newer_kernel);
    findings.push(Finding { source, ..node });
    let arc = [Hook::ArcCall, Hook::ArcRead].into_iter().find_map(|hook| facts.hooks.get(&hook)?.cause());
    findings.push(Finding::new(
        "reads of OpenZFS from its cache (ARC)",
        arc.map(str::to_owned),
        false,
        if facts.zfs { "" } else { "where there is OpenZFS: load its module before homenode starts" },
    ));
    // A blocked configuration whose cause is none of the above: no hook on the read path.
    if let Some((what, cause)) = &chosen.blocked
        && findings.iter().all(|f| f.available || !f.needed)
    {
        findings.push(Finding::new(what, Some(cause.clone()), true, newer_kernel));
    }
    findings
}

/// What is missing for moving threads, each with its cause.
pub fn cannot_move(global: &Global) -> Vec<String> {
    let found = [("setting other threads' affinity", may_move()), (STATE_DIRECTORY, may_write(&global.state_dir))];
    found.into_iter().filter_map(|(name, cause)| Some(format!("{name}: {}", cause?))).collect()
}

fn moving(global: &Global, machine: &Machine) -> Vec<Finding> {
    let topology = &machine.topology;
    let one = (topology.nodes.len() < 2)
        .then(|| "this machine has one node: every read is local, there is nothing to move".to_owned());
    let unknown: Vec<_> = topology.without_bandwidth().iter().map(NodeId::to_string).collect();
    let told = |node| [false, true].map(|write| machine.source(node, write)).into_iter().flatten();
    let told: BTreeSet<&str> = topology.nodes.iter().flat_map(told).collect();
    let source = (!told.is_empty()).then(|| Vec::from_iter(told).join(" and "));
    let unknown =
        (!unknown.is_empty()).then(|| format!("read_bw_max or write_bw_max unknown for node {}", unknown.join(", ")));
    vec![
        Finding::new("setting other threads' affinity", may_move(), true, AS_ROOT),
        Finding::new(
            STATE_DIRECTORY,
            may_write(&global.state_dir),
            true,
            "run it as root, or name another with --state-dir",
        ),
        Finding::new("two nodes or more", one, false, ""),
        Finding::new("the kind of each node's memory", nodes::of_unknown_kind(topology), false, ""),
        Finding {
            source,
            ..Finding::new(
                "bandwidth of each node",
                unknown,
                false,
                "`homenode nodes --measure` measures it; until then controller contention is not judged and dragonfly moves no files",
            )
        },
        Finding::new(
            "counters of the memory controllers",
            match host::bandwidth::Meter::open(Path::new(machine::SYS), Path::new(plane::PROC), topology) {
                Ok(meter) => meter.gap(),
                Err(why) => Some(why),
            },
            false,
            "the file bytes that homenode counts are used instead; virtual machines seldom have such counters",
        ),
    ]
}

/// Why we may not set the affinity of other users' threads.
fn may_move() -> Option<String> {
    match capabilities(None) {
        Ok(sets) if sets.effective.contains(CapabilitySet::SYS_NICE) => None,
        Ok(_) => Some("CAP_SYS_NICE is missing: only threads of the same user could be moved (EPERM)".to_owned()),
        Err(e) => Some(exit::errno_names(&format!("the capabilities of homenode are unknown: {e}"))),
    }
}

/// Why the state directory cannot be written to. Creates nothing.
fn may_write(dir: &Path) -> Option<String> {
    if let Err(error) = engine::state::trusted(dir) {
        return Some(exit::chain(&error));
    }
    // The ancestors of a relative path end in "", which does not exist.
    let dir = &std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let nearest = dir.ancestors().find(|path| path.exists()).unwrap_or(dir);
    let refused =
        if nearest.is_dir() { access(nearest, Access::WRITE_OK | Access::EXEC_OK) } else { Err(Errno::NOTDIR) };
    let error = refused.err()?;
    Some(exit::errno_names(&format!("{}: {}", nearest.display(), std::io::Error::from(error))))
}

/// The limits as lines. Limits that share a cause are grouped below it.
fn limits(limits: &[String], facts: &[Finding]) -> Vec<String> {
    let mut rest = limits.to_vec();
    let mut lines = Vec::new();
    for (name, cause) in facts.iter().filter_map(|f| Some((&f.name, f.cause.as_deref()?))) {
        let (shared, others): (Vec<_>, Vec<_>) = rest.iter().cloned().partition(|limit| limit.contains(cause));
        if shared.len() < 2 {
            continue;
        }
        lines.push(format!("without {name} (see above):"));
        let plain = |limit: &String| limit.replace(&format!(" ({cause})"), "").replace(&format!(": {cause}"), "");
        lines.extend(shared.iter().map(|limit| format!("  {}", plain(limit))));
        rest = others;
    }
    rest.into_iter().chain(lines).collect()
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Function => "function",
        Kind::Tracepoint => "tracepoint",
        Kind::Probe => "kprobe",
    }
}

pub fn text(report: &Report) -> String {
    let mut text = format!(
        "kernel {} · {} · homenode {}\n\n",
        escape(&report.kernel),
        count(report.nodes, "node"),
        env!("CARGO_PKG_VERSION")
    );
    for fact in &report.facts {
        let verdict = match (fact.available, fact.needed) {
            (true, _) => "ok",
            (false, true) => "missing",
            (false, false) => "without",
        };
        text.push_str(&format!("{verdict:<8} {}\n", fact.name));
        for (word, what) in [("by", fact.source.as_deref()), ("why", fact.cause.as_deref()), ("fix", fact.fix)] {
            if let Some(what) = what {
                text.push_str(&format!("         {word}: {}\n", escape(what)));
            }
        }
    }
    let mut list = |head: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text.push_str(&format!("\n{head}\n"));
            lines.iter().for_each(|line| text.push_str(&format!("  {}\n", escape(line))));
        }
    };
    list("hooks", report.hooks.clone());
    list("not observed", limits(&report.limits, &report.facts));
    let none = || vec!["nothing was found".to_owned()];
    let interference: Vec<_> = report.interference.iter().map(words::interference).collect();
    list("interferes", if interference.is_empty() { none() } else { interference });
    let remove = |point: &PathBuf| format!("{}: its server has ended: umount -l {0}", point.display());
    list("dead mounts", report.dead_mounts.iter().map(remove).collect());
    text.push_str(match (report.ok, report.nodes) {
        (true, 0..=1) => "\neverything needed is available; one node: there is nothing to gain here\n",
        (true, _) => "\neverything needed is available to observe and to move\n",
        (false, _) => "\nsomething needed is missing\n",
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root was told to be root.
    #[test]
    fn root_is_not_told_to_run_it_as_root() {
        let fix = |cause: &str, root| Finding::fixed("x", Some(cause.to_owned()), true, AS_ROOT, root).fix.unwrap();
        assert_eq!(fix("EPERM", false), AS_ROOT);
        for cause in ["EPERM", "ESRCH"] {
            assert!(!fix(cause, true).contains("as root"), "{}", fix(cause, true));
        }
        assert_eq!(Finding::fixed("x", None, true, AS_ROOT, true).fix, None);
    }

    #[test]
    fn a_shared_cause_is_named_once() {
        let cause = "refused: EPERM (Operation not permitted)";
        let facts = [Finding::new("BPF at functions (fexit)", Some(cause.to_owned()), false, "")];
        let notes = [
            format!("reads: by tracepoint ({cause}): parts of pages count as whole pages"),
            "writes count once per page".to_owned(),
            format!("tmpfs reads are not seen: {cause}"),
        ];
        let expected = [
            "writes count once per page",
            "without BPF at functions (fexit) (see above):",
            "  reads: by tracepoint: parts of pages count as whole pages",
            "  tmpfs reads are not seen",
        ];
        assert_eq!(limits(&notes, &facts), expected);
        assert_eq!(limits(&notes[..2], &facts), notes[..2]);
    }
}
