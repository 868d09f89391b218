//! Other software on this machine that moves threads or memory.
//!
//! **Problem.** Two programs that each move threads for their own reasons undo each other's work,
//! and the user only sees that nothing settles.
//!
//! **Approach.** Look for the programs that users have met: numad, the kernel's NUMA balancing,
//! demotion and DAMON schemes, a sched_ext scheduler, the kubelet's CPU manager, and NRI plugins
//! that place containers. Report for each what was found, how it affects homenode's moves, and what
//! to do. homenode turns nothing off.
//!
//! Any user may name a process `kubelet` and choose its arguments. So only processes of root in the
//! first PID and mount namespaces count. Of the files that a kubelet names, only regular ones are
//! read, without waiting and up to a size. The search is a question of [`patient`], because a file
//! system may never answer.
//!
//! **Limits.** Processes that /proc hides from the caller (`hidepid`, another PID namespace), and
//! those in containers, are not found. The kubelet's policy is read from its command line, its
//! state file and its configuration file; a policy set in another way reads as unknown.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::thread::CapabilitySet;
use serde::Serialize;

use crate::threads::field;
use crate::{patient, privileges};

/// Larger files are not read.
const FILE_BYTES: u64 = 1 << 20;

/// The name of what stands for a search that did not end.
pub const NOT_KNOWN: &str = "not known";

/// How long to wait for the search. It takes some ms where nothing hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Something else on this machine that places threads or memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interference {
    /// Its name, such as `numad`.
    pub name: String,
    /// The evidence, such as `process 812`.
    pub found: String,
    /// How it affects homenode, in one sentence.
    pub effect: String,
    pub advice: String,
}

impl Interference {
    fn new(name: &str, found: String, effect: &str, advice: &str) -> Self {
        Self { name: name.to_owned(), found, effect: effect.to_owned(), advice: advice.to_owned() }
    }
}

/// Looks for programs and kernel settings that place threads or memory too. `proc_root` is a proc
/// mount (`/proc`), `sys_root` a sysfs mount (`/sys`). Whatever cannot be read is taken as absent.
/// Returns after a few seconds at most, and without a result soon after `stop` is true.
pub fn detect(proc_root: &Path, sys_root: &Path, stop: &dyn Fn() -> bool) -> Vec<Interference> {
    let (proc_root, sys_root) = (proc_root.to_owned(), sys_root.to_owned());
    let found = patient::ask_until(stop, PATIENCE, 0, "other programs", move || {
        // It reads what others control, and may stay behind for ever.
        if let Err(error) = privileges::keep_only(CapabilitySet::SYS_PTRACE) {
            tracing::debug!(%error, "the search for other programs keeps its privileges");
        }
        Ok(search(&proc_root, &sys_root))
    });
    // Other questions need the privileges that this one gave up.
    patient::forget_worker();
    match found {
        Ok(found) => found,
        Err(_) if stop() => Vec::new(),
        Err(_) => vec![Interference::new(
            NOT_KNOWN,
            "the search for other programs did not end".to_owned(),
            "another program may place threads without homenode's knowledge",
            "look for processes whose files are on a file system that does not answer",
        )],
    }
}

fn search(proc_root: &Path, sys_root: &Path) -> Vec<Interference> {
    let mut found = Vec::new();
    let processes = processes(proc_root);
    let own = fs::read_link(proc_root.join("self")).ok().and_then(|own| own.to_str()?.parse().ok());
    for process in &processes {
        match process.name.as_str() {
            "numad" => found.push(numad(process)),
            "kubelet" => found.extend(kubelet(process)),
            "homenode" => found.extend(homenode(process).filter(|_| own != Some(process.pid))),
            name if name.starts_with("nri-resource-po") => found.push(nri(process)),
            _ => (),
        }
    }
    found.extend(numa_balancing(proc_root));
    found.extend(demotion(sys_root));
    found.extend(damon(sys_root));
    found.extend(sched_ext(sys_root));
    found
}

/// A process of root in the first PID and mount namespaces.
struct Process {
    pid: u32,
    /// `comm`: at most 15 characters.
    name: String,
    /// Its directory in /proc, open: never that of a later process with its id.
    dir: OwnedFd,
    /// Its mount namespace is known to be the first, so its files may be read.
    first_mounts: bool,
}

/// The processes of interest that can be trusted, by rising id.
fn processes(proc_root: &Path) -> Vec<Process> {
    let first_mounts = fs::read_link(proc_root.join("1/ns/mnt")).ok();
    let mut found: Vec<Process> = fs::read_dir(proc_root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
            let dir = rustix::fs::open(entry.path(), flags, Mode::empty()).ok()?;
            let name = text(&dir, "comm")?;
            if !is_of_interest(&name) || !is_first_root(&text(&dir, "status")?) {
                return None;
            }
            // Without the right to compare, believe the process, but do not open its files.
            let mounts = rustix::fs::readlinkat(&dir, "ns/mnt", Vec::new()).ok();
            let same = first_mounts.as_ref().zip(mounts).map(|(first, own)| {
                use std::os::unix::ffi::OsStrExt;
                first.as_os_str().as_bytes() == own.as_bytes()
            });
            (same != Some(false)).then_some(Process { pid, name, dir, first_mounts: same == Some(true) })
        })
        .collect();
    found.sort_unstable_by_key(|p| p.pid);
    found
}

fn is_of_interest(name: &str) -> bool {
    matches!(name, "numad" | "kubelet" | "homenode") || name.starts_with("nri-resource-po")
}

/// Whether `/proc/<pid>/status` describes a process with root's ids only, in the PID namespace of
/// procfs. The owner of the directory proves nothing: root owns those of all processes that may not
/// be dumped.
fn is_first_root(status: &str) -> bool {
    let words = |name: &str| field(status, name).unwrap_or_default().split_whitespace().collect::<Vec<_>>();
    words("Uid") == ["0"; 4] && words("NSpid").len() == 1
}

/// The trimmed text of a regular file. `None` if the file is of another kind, cannot be read at
/// once, or is too large.
fn text(dir: &OwnedFd, path: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, path, flags, Mode::empty()).ok()?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file).ok()?.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut text = String::new();
    File::from(file).take(FILE_BYTES + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= FILE_BYTES).then(|| text.trim().to_owned())
}

/// The trimmed text of one of the kernel's own files.
fn kernel_text(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

fn numad(process: &Process) -> Interference {
    Interference::new(
        "numad",
        format!("process {}", process.pid),
        "numad binds whole processes to nodes by their memory and does not see file data, so it and homenode may move the \
         same threads back and forth",
        "stop one of the two, or take processes from numad with `numad -x PID`",
    )
}

/// `kernel.numa_balancing` is a bit mask: 1 is AutoNUMA, 2 is memory tiering
/// (Documentation/admin-guide/sysctl/kernel.rst).
fn numa_balancing(proc_root: &Path) -> Vec<Interference> {
    let mode: u32 = kernel_text(&proc_root.join("sys/kernel/numa_balancing")).and_then(|t| t.parse().ok()).unwrap_or(0);
    let mut found = Vec::new();
    if mode & 1 != 0 {
        found.push(Interference::new(
            "numa_balancing",
            format!("kernel.numa_balancing = {mode}"),
            "AutoNUMA does not see read() and cannot move a thread off the node that homenode chose, but it moves a thread's \
             own memory after it and takes page faults to find out what to move",
            "leave it on unless `homenode top` shows threads that return; then try `sysctl kernel.numa_balancing=0`",
        ));
    }
    if mode & 2 != 0 {
        found.push(Interference::new(
            "memory tiering",
            format!("kernel.numa_balancing = {mode}"),
            "the kernel moves hot pages from slow memory nodes to fast ones, so a file's home node can change by itself",
            "none needed: homenode looks again in every window; a longer `dwell_s` makes it follow less eagerly",
        ));
    }
    found
}

/// Reclaim that sends pages to slower nodes (Documentation/ABI/testing/sysfs-kernel-mm-numa).
fn demotion(sys_root: &Path) -> Option<Interference> {
    let enabled = kernel_text(&sys_root.join("kernel/mm/numa/demotion_enabled"))?;
    matches!(enabled.as_str(), "true" | "1").then(|| {
        Interference::new(
            "demotion",
            format!("/sys/kernel/mm/numa/demotion_enabled = {enabled}"),
            "when a node has no free memory, the kernel moves pages of it to slower nodes, and what is read by read() does \
             not come back by itself; `promote` brings back what is hot and leaves a node alone where the kernel has just demoted",
            "none needed",
        )
    })
}

/// What DAMON does to the pages that its schemes match (`enum damos_action`), in so far as that
/// changes where file data is.
const DAMON_MOVES: [(&str, &str); 4] = [
    ("migrate_hot", "moves hot memory to a node"),
    ("migrate_cold", "moves cold memory to a node"),
    ("pageout", "reclaims cold memory"),
    ("cold", "reclaims cold memory"),
];

/// Running DAMON schemes that move or reclaim pages, and DAMON's own modules that do
/// (Documentation/admin-guide/mm/damon/usage.rst).
fn damon(sys_root: &Path) -> Vec<Interference> {
    let mut found = Vec::new();
    let new = |found: String, does: &str| {
        Interference::new(
            "DAMON",
            found,
            &format!(
                "it {does}, and knows no file and no reader: it may move a range back that homenode has promoted, or promote \
                 it to another node; homenode leaves a range for a minute after its move"
            ),
            "let only one of the two move cached file data: stop the scheme, or keep file pages out of it by a filter, or use \
             another policy than `promote`",
        )
    };
    for kdamond in entries(&sys_root.join("kernel/mm/damon/admin/kdamonds")) {
        if kernel_text(&kdamond.join("state")).as_deref() != Some("on") {
            continue;
        }
        for context in entries(&kdamond.join("contexts")) {
            for scheme in entries(&context.join("schemes")) {
                let action = kernel_text(&scheme.join("action")).unwrap_or_default();
                let Some((_, does)) = DAMON_MOVES.iter().find(|(name, _)| *name == action) else { continue };
                let to = kernel_text(&scheme.join("target_nid")).filter(|_| action.starts_with("migrate"));
                let to = to.map(|to| format!(" to node {to}")).unwrap_or_default();
                found.push(new(format!("{}: {action}{to}", scheme.display()), does));
            }
        }
    }
    for (module, does) in [("damon_reclaim", "reclaims cold memory"), ("damon_lru_sort", "sorts pages for reclaim")] {
        let enabled = sys_root.join("module").join(module).join("parameters/enabled");
        if kernel_text(&enabled).as_deref() == Some("Y") {
            found.push(new(format!("{module}.enabled = Y"), does));
        }
    }
    found
}

/// The directories in one of sysfs that have a number for a name, in order.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut numbered: Vec<(u32, PathBuf)> =
        all.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()))).collect();
    numbered.sort();
    numbered.into_iter().map(|(_, path)| path).collect()
}

/// The sched_ext scheduler that runs, and its state. Cheap: one small file where none does.
pub fn scheduler(sys_root: &Path) -> Option<String> {
    let dir = sys_root.join("kernel/sched_ext");
    let state = kernel_text(&dir.join("state")).filter(|state| state != "disabled")?;
    let scheduler = kernel_text(&dir.join("root/ops")).unwrap_or_else(|| "of unknown name".to_owned());
    Some(format!("scheduler {scheduler}, {state}"))
}

fn sched_ext(sys_root: &Path) -> Option<Interference> {
    Some(Interference::new(
        "sched_ext",
        scheduler(sys_root)?,
        "a BPF scheduler chooses the CPUs instead of the kernel's: it has to keep inside a thread's mask, but may \
         take a thread with a mask of its own off its normal path (scx_layered does), so homenode binds no thread",
        "stop the scheduler; or use --beside-sched-ext, and compare with the kernel's scheduler if threads starve after a move",
    ))
}

/// Another homenode that moves threads. Of one with the same state directory, this one never
/// starts.
fn homenode(process: &Process) -> Option<Interference> {
    let line = text(&process.dir, "cmdline")?;
    let words: Vec<&str> = line.split('\0').skip(1).take_while(|word| *word != "--").collect();
    let mut left = words.iter();
    let command = loop {
        match *left.next()? {
            "--config" | "--state-dir" => _ = left.next(),
            word if word.starts_with('-') => {}
            word => break word,
        }
    };
    let only_looks = ["--dry-run", "--observe-only"].iter().any(|option| words.contains(option));
    let moves = matches!(command, "run" | "trial") && !only_looks;
    moves.then(|| {
        Interference::new(
            "another homenode",
            format!("process {} (homenode {command})", process.pid),
            "it moves threads, too, and takes what the other one has bound for affinities that programs chose",
            "let only one of them manage the same threads: stop one, or give each its own --pid or --cgroup",
        )
    })
}

fn nri(process: &Process) -> Interference {
    Interference::new(
        "NRI resource policy",
        format!("process {} ({})", process.pid, process.name),
        "an NRI plugin gives containers their CPUs and memory nodes through cpusets, and may change them at any time; \
         homenode moves threads only inside their cpuset",
        "let the plugin allow each container the nodes that its files are on",
    )
}

/// Reports the kubelet, unless its CPU manager leaves CPUs alone.
fn kubelet(process: &Process) -> Option<Interference> {
    let policy = cpu_manager_policy(process);
    if policy.as_deref() == Some("none") {
        return None;
    }
    let shown = policy.unwrap_or_else(|| "unknown".to_owned());
    Some(Interference::new(
        "kubelet",
        format!("process {}, CPU manager policy {shown}", process.pid),
        "the CPU manager gives containers CPUs of their own through cpusets and writes them again every few seconds; homenode \
         moves threads only inside their cpuset, so a container on one node's CPUs stays there",
        "for containers that read files, leave CPUs of the files' node in their cpuset, or keep them out of the static pool",
    ))
}

/// The policy in force: from the state file of the running kubelet or, before that exists, from its
/// flag or configuration.
fn cpu_manager_policy(kubelet: &Process) -> Option<String> {
    if !kubelet.first_mounts {
        return None;
    }
    // Paths are the kubelet's own, so they start at its root directory.
    let inside = |path: &str| text(&kubelet.dir, &format!("root/{}", path.trim_start_matches('/')));
    let command = text(&kubelet.dir, "cmdline").unwrap_or_default();
    let words: Vec<_> = command.split('\0').collect();
    let flag = |name: &str| {
        words.iter().enumerate().find_map(|(i, word)| match word.strip_prefix(name)? {
            "" => words.get(i + 1).filter(|next| !next.is_empty()).map(|next| next.to_string()),
            value => value.strip_prefix('=').map(str::to_owned),
        })
    };
    let root = flag("--root-dir").unwrap_or_else(|| "/var/lib/kubelet".to_owned());
    let state = inside(&format!("{root}/cpu_manager_state"))
        .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok())
        .and_then(|state| Some(state.get("policyName")?.as_str()?.to_owned()));
    let configured = || {
        let config = inside(&flag("--config")?)?;
        // A scalar at the top level of a YAML document: one line is enough.
        let value = config.lines().find_map(|line| line.strip_prefix("cpuManagerPolicy:"))?;
        let value = value.split('#').next()?.trim().trim_matches(['"', '\'']);
        Some(value.to_owned())
    };
    state.or_else(|| flag("--cpu-manager-policy")).or_else(configured)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "Name:\tx\nUid:\t0\t0\t0\t0\nNSpid:\t700\n";

    /// A proc or sysfs root with these files. Processes are root's in the first namespaces unless
    /// their files say otherwise.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let comms = files.iter().filter_map(|(file, _)| file.strip_suffix("/comm"));
        for pid in comms.chain(["1"]) {
            write(&format!("{pid}/status"), ROOT);
            fs::create_dir_all(dir.path().join(pid).join("ns")).unwrap();
            let _ = std::os::unix::fs::symlink("mnt:[1]", dir.path().join(pid).join("ns/mnt"));
        }
        files.iter().for_each(|(file, text)| write(file, text));
        dir
    }

    /// (name, found) of what is found in a proc root.
    fn in_proc(files: &[(&str, &str)]) -> Vec<(String, String)> {
        let found = detect(root(files).path(), Path::new("/nonexistent"), &|| false);
        assert!(found.iter().all(|i| !i.effect.is_empty() && !i.advice.is_empty()));
        found.into_iter().map(|i| (i.name, i.found)).collect()
    }

    fn one(name: &str, found: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), found.to_owned())]
    }

    #[test]
    fn a_quiet_machine_has_no_interference() {
        let quiet = [("1/comm", "systemd\n"), ("9/comm", "numactl\n"), ("sys/kernel/numa_balancing", "0\n")];
        assert_eq!(in_proc(&quiet), []);
        assert_eq!(in_proc(&[]), []);
        assert_eq!(detect(Path::new("/nonexistent"), Path::new("/nonexistent"), &|| false), []);
    }

    /// With another state directory, a second daemon said nothing of the first.
    #[test]
    fn another_homenode_that_moves_is_found_by_what_it_does() {
        let with = |line: &str| in_proc(&[("812/comm", "homenode\n"), ("812/cmdline", line)]);
        let found = |command: &str| one("another homenode", &format!("process 812 (homenode {command})"));
        assert_eq!(with("homenode\0run\0"), found("run"));
        assert_eq!(with("/usr/bin/homenode\0--state-dir\0top\0-v\0trial\0--minutes\09\0"), found("trial"));
        assert_eq!(with("homenode\0run\0--\0cp\0--dry-run\0"), found("run"));
        for line in ["homenode\0top\0", "homenode\0run\0--dry-run\0", "homenode\0__exec\0--\0run\0", "homenode\0", ""] {
            assert_eq!(with(line), [], "{line:?}");
        }
        let own = root(&[("812/comm", "homenode\n"), ("812/cmdline", "homenode\0run\0")]);
        std::os::unix::fs::symlink("812", own.path().join("self")).unwrap();
        assert_eq!(detect(own.path(), Path::new("/nonexistent"), &|| false), []);
    }

    #[test]
    fn numad_is_found_by_name() {
        assert_eq!(in_proc(&[("812/comm", "numad\n"), ("self/comm", "numad\n")]), one("numad", "process 812"));
    }

    #[test]
    fn only_root_in_the_first_namespaces_is_believed() {
        let numad = ("812/comm", "numad\n");
        let with = |status: &str| in_proc(&[numad, ("812/status", status)]).len();
        assert_eq!(with(ROOT), 1);
        assert_eq!(with("Uid:\t1000\t1000\t1000\t1000\nNSpid:\t812\n"), 0);
        assert_eq!(with("Uid:\t1000\t0\t0\t0\nNSpid:\t812\n"), 0);
        assert_eq!(with("Uid:\t0\t0\t0\t0\nNSpid:\t812\t7\n"), 0); // in a container
        assert_eq!(with("Name:\tnumad\n"), 0);
        let elsewhere = root(&[numad]);
        fs::remove_file(elsewhere.path().join("812/ns/mnt")).unwrap();
        std::os::unix::fs::symlink("mnt:[2]", elsewhere.path().join("812/ns/mnt")).unwrap();
        assert_eq!(detect(elsewhere.path(), Path::new("/nonexistent"), &|| false), []);
    }

    #[test]
    fn pipes_links_and_large_files_are_not_read() {
        let command = ("700/cmdline", "kubelet\0--config=/config\0");
        let unknown = one("kubelet", "process 700, CPU manager policy unknown");
        let found = |replace: &dyn Fn(&Path)| {
            let dir = root(&[("700/comm", "kubelet\n"), command, ("700/root/config", "cpuManagerPolicy: static\n")]);
            replace(&dir.path().join("700/root/config"));
            let found = detect(dir.path(), Path::new("/nonexistent"), &|| false);
            found.into_iter().map(|i| (i.name, i.found)).collect::<Vec<_>>()
        };
        assert_eq!(found(&|_| ()), one("kubelet", "process 700, CPU manager policy static"));
        let fifo = |config: &Path| {
            fs::remove_file(config).unwrap();
            rustix::fs::mknodat(rustix::fs::CWD, config, FileType::Fifo, Mode::RUSR, 0).unwrap();
        };
        assert_eq!(found(&fifo), unknown);
        let link = |config: &Path| {
            fs::rename(config, config.with_extension("yaml")).unwrap();
            std::os::unix::fs::symlink("config.yaml", config).unwrap();
        };
        assert_eq!(found(&link), unknown);
        let long = |config: &Path| File::options().write(true).open(config).unwrap().set_len(FILE_BYTES + 1).unwrap();
        assert_eq!(found(&long), unknown);
        let directory = |config: &Path| {
            fs::remove_file(config).unwrap();
            fs::create_dir(config).unwrap();
        };
        assert_eq!(found(&directory), unknown);
    }

    #[test]
    fn numa_balancing_is_a_mask() {
        let with =
            |value| in_proc(&[("sys/kernel/numa_balancing", value)]).into_iter().map(|f| f.0).collect::<Vec<_>>();
        assert_eq!(with("1\n"), ["numa_balancing"]);
        assert_eq!(with("2\n"), ["memory tiering"]);
        assert_eq!(with("3\n"), ["numa_balancing", "memory tiering"]);
        assert_eq!(with("on\n"), [""; 0]);
    }

    #[test]
    fn what_moves_pages_between_tiers_is_named() {
        let found = |files: &[(&str, &str)]| {
            let sys = root(files);
            let found = detect(Path::new("/nonexistent"), sys.path(), &|| false);
            let at = format!("{}/", sys.path().display());
            found.into_iter().map(|i| (i.name, i.found.replace(&at, ""))).collect::<Vec<_>>()
        };
        let file = "kernel/mm/numa/demotion_enabled";
        assert_eq!(found(&[(file, "false\n")]), []);
        assert_eq!(found(&[(file, "true\n")]), one("demotion", "/sys/kernel/mm/numa/demotion_enabled = true"));
        let of = |kdamond: u32, file: &str| format!("kernel/mm/damon/admin/kdamonds/{kdamond}/{file}");
        let (on, off) = (of(0, "state"), of(1, "state"));
        let (hot, stat, there) = (
            of(0, "contexts/0/schemes/0/action"),
            of(0, "contexts/0/schemes/1/action"),
            of(0, "contexts/0/schemes/0/target_nid"),
        );
        let idle = of(1, "contexts/0/schemes/0/action");
        let files = [(&*on, "on\n"), (&off, "off\n"), (&hot, "migrate_hot\n"), (&there, "0\n"), (&stat, "stat\n")];
        let scheme = format!("{}: migrate_hot to node 0", of(0, "contexts/0/schemes/0"));
        assert_eq!(found(&[&files[..], &[(&idle, "pageout\n")]].concat()), one("DAMON", &scheme));
        assert_eq!(found(&[("module/damon_reclaim/parameters/enabled", "N\n")]), []);
        let module = [("module/damon_reclaim/parameters/enabled", "Y\n")];
        assert_eq!(found(&module), one("DAMON", "damon_reclaim.enabled = Y"));
    }

    #[test]
    fn a_sched_ext_scheduler_has_a_name() {
        let found = |files: &[(&str, &str)]| {
            detect(Path::new("/nonexistent"), root(files).path(), &|| false)
                .into_iter()
                .map(|i| i.found)
                .collect::<Vec<_>>()
        };
        let state = ("kernel/sched_ext/state", "enabled\n");
        let ops = ("kernel/sched_ext/root/ops", "rusty_1.0.5_x86_64\n");
        assert_eq!(found(&[state, ops]), ["scheduler rusty_1.0.5_x86_64, enabled"]);
        assert_eq!(found(&[state]), ["scheduler of unknown name, enabled"]);
        assert_eq!(found(&[("kernel/sched_ext/state", "disabled\n")]), [""; 0]);
    }

    #[test]
    fn the_kubelets_policy_is_read_from_its_state_file() {
        let comm = ("700/comm", "kubelet\n");
        let state = "700/root/var/lib/kubelet/cpu_manager_state";
        let said = |policy: &str| one("kubelet", &format!("process 700, CPU manager policy {policy}"));

        let running = (state, r#"{"policyName":"static","defaultCpuSet":"0-7","checksum":1}"#);
        let flag = ("700/cmdline", "/usr/bin/kubelet\0--cpu-manager-policy=none\0");
        assert_eq!(in_proc(&[comm, running, flag]), said("static"));
        assert_eq!(in_proc(&[comm, (state, r#"{"policyName":"none"}"#)]), []);
        assert_eq!(in_proc(&[comm, (state, "{")]), said("unknown"));
        assert_eq!(in_proc(&[comm]), said("unknown"));

        let elsewhere = ("700/root/data/kubelet/cpu_manager_state", r#"{"policyName":"static"}"#);
        assert_eq!(
            in_proc(&[comm, ("700/cmdline", "kubelet\0--root-dir\0/data/kubelet\0"), elsewhere]),
            said("static")
        );
    }

    #[test]
    fn the_kubelets_policy_is_read_from_its_flag_or_configuration() {
        let comm = ("700/comm", "kubelet\n");
        let said = |policy: &str| one("kubelet", &format!("process 700, CPU manager policy {policy}"));
        assert_eq!(in_proc(&[comm, ("700/cmdline", "kubelet\0--cpu-manager-policy\0static\0")]), said("static"));
        assert_eq!(in_proc(&[comm, ("700/cmdline", "kubelet\0--cpu-manager-policy")]), said("unknown"));
        let command = ("700/cmdline", "kubelet\0--config=/etc/kubelet.yaml\0--cpu-manager-policy-options=a=b\0");
        let config = |text| in_proc(&[comm, command, ("700/root/etc/kubelet.yaml", text)]);
        assert_eq!(
            config("kind: KubeletConfiguration\ncpuManagerPolicy: \"static\" # for the databases\n"),
            said("static")
        );
        assert_eq!(config("cpuManagerPolicy: none\n"), []);
        assert_eq!(config("cpuManagerPolicyOptions:\n  full-pcpus-only: \"true\"\n"), said("unknown"));
    }

    #[test]
    fn an_nri_resource_policy_is_found_by_name() {
        let found = in_proc(&[("55/comm", "nri-resource-po\n")]);
        assert_eq!(found, one("NRI resource policy", "process 55 (nri-resource-po)"));
    }
}
