//! Who else on this machine moves threads or memory.
//!
//! **Problem.** Two programs that each move threads for reasons of their own undo one another, and the user sees only
//! that nothing settles.
//!
//! **Approach.** Look for those that users of such programs have met: numad, the kernel's NUMA balancing, a sched_ext
//! scheduler, the kubelet's CPU manager, and NRI plugins that place containers. Each is reported with what was found, what
//! it does to homenode's moves, and what to do; homenode itself turns nothing off.
//!
//! **Limits.** What /proc does not show to the caller (`hidepid`, another PID namespace) is not found. The kubelet's policy
//! is read from its command line, its state file and its configuration file; a policy set in another way reads as unknown.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Something on this machine that places threads or memory too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interference {
    /// What it is, such as `numad`.
    pub name: String,
    /// What was found, such as `process 812`.
    pub found: String,
    /// What it does to what homenode does, in one sentence.
    pub effect: String,
    /// What to do about it.
    pub advice: String,
}

impl Interference {
    fn new(name: &str, found: String, effect: &str, advice: &str) -> Self {
        Self { name: name.to_owned(), found, effect: effect.to_owned(), advice: advice.to_owned() }
    }
}

/// Looks for programs and kernel settings that place threads or memory too. `proc_root` is a proc mount (`/proc`),
/// `sys_root` a sysfs mount (`/sys`). What cannot be read is taken as not there.
pub fn detect(proc_root: &Path, sys_root: &Path) -> Vec<Interference> {
    let mut found = Vec::new();
    let processes = processes(proc_root);
    for process in &processes {
        match process.name.as_str() {
            "numad" => found.push(numad(process)),
            "kubelet" => found.extend(kubelet(process)),
            name if name.starts_with("nri-resource-po") => found.push(nri(process)),
            _ => (),
        }
    }
    found.extend(numa_balancing(proc_root));
    found.extend(sched_ext(sys_root));
    found
}

/// A process of interest.
struct Process {
    pid: u32,
    /// `comm`: at most 15 characters.
    name: String,
    /// Its directory in /proc.
    dir: PathBuf,
}

/// Every process that can be seen, by rising id.
fn processes(proc_root: &Path) -> Vec<Process> {
    let mut found: Vec<Process> = fs::read_dir(proc_root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let dir = entry.path();
            Some(Process { pid, name: text(&dir.join("comm"))?, dir })
        })
        .collect();
    found.sort_unstable_by_key(|p| p.pid);
    found
}

/// A file's text without the white space around it; `None` where it cannot be read.
fn text(file: &Path) -> Option<String> {
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

/// `kernel.numa_balancing` is a bit mask: 1 is AutoNUMA, 2 is memory tiering (Documentation/admin-guide/sysctl/kernel.rst).
fn numa_balancing(proc_root: &Path) -> Vec<Interference> {
    let mode: u32 = text(&proc_root.join("sys/kernel/numa_balancing")).and_then(|t| t.parse().ok()).unwrap_or(0);
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

fn sched_ext(sys_root: &Path) -> Option<Interference> {
    let dir = sys_root.join("kernel/sched_ext");
    let state = text(&dir.join("state")).filter(|state| state != "disabled")?;
    let scheduler = text(&dir.join("root/ops")).unwrap_or_else(|| "of unknown name".to_owned());
    Some(Interference::new(
        "sched_ext",
        format!("scheduler {scheduler}, {state}"),
        "a BPF scheduler chooses the CPUs instead of the kernel's: it has to keep inside a thread's mask, but how it balances \
         within a node, and whether threads in a mask still get their share, is its own",
        "compare with the kernel's scheduler if threads starve after a move",
    ))
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

/// The kubelet, unless its CPU manager is known to leave CPUs alone.
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

/// The policy in force: the state file says what the running kubelet does; before it exists, its flag or configuration.
fn cpu_manager_policy(kubelet: &Process) -> Option<String> {
    // The kubelet's files are where *it* sees them: through its root directory.
    let inside = |path: &str| kubelet.dir.join("root").join(path.trim_start_matches('/'));
    let command = fs::read(kubelet.dir.join("cmdline")).unwrap_or_default();
    let words: Vec<_> = command.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
    let flag = |name: &str| {
        words.iter().enumerate().find_map(|(i, word)| match word.strip_prefix(name)? {
            "" => words.get(i + 1).map(|next| next.to_string()),
            value => value.strip_prefix('=').map(str::to_owned),
        })
    };
    let root = flag("--root-dir").unwrap_or_else(|| "/var/lib/kubelet".to_owned());
    let state = text(&inside(&root).join("cpu_manager_state"))
        .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok())
        .and_then(|state| Some(state.get("policyName")?.as_str()?.to_owned()));
    let configured = || {
        let config = text(&inside(&flag("--config")?))?;
        // One scalar of a flat YAML document, for which a line will do.
        let value = config.lines().find_map(|line| line.strip_prefix("cpuManagerPolicy:"))?;
        let value = value.split('#').next()?.trim().trim_matches(['"', '\'']);
        Some(value.to_owned())
    };
    state.or_else(|| flag("--cpu-manager-policy")).or_else(configured)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proc or sysfs root with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    /// (name, found) of what is found in a proc root.
    fn in_proc(files: &[(&str, &str)]) -> Vec<(String, String)> {
        let found = detect(root(files).path(), Path::new("/nonexistent"));
        assert!(found.iter().all(|i| !i.effect.is_empty() && !i.advice.is_empty()));
        found.into_iter().map(|i| (i.name, i.found)).collect()
    }

    fn one(name: &str, found: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), found.to_owned())]
    }

    #[test]
    fn a_quiet_machine_has_none() {
        let quiet = [("1/comm", "systemd\n"), ("9/comm", "numactl\n"), ("sys/kernel/numa_balancing", "0\n")];
        assert_eq!(in_proc(&quiet), []);
        assert_eq!(in_proc(&[]), []);
        assert_eq!(detect(Path::new("/nonexistent"), Path::new("/nonexistent")), []);
    }

    #[test]
    fn numad_is_a_process() {
        assert_eq!(in_proc(&[("812/comm", "numad\n"), ("self/comm", "numad\n")]), one("numad", "process 812"));
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
    fn a_sched_ext_scheduler_has_a_name() {
        let found = |files: &[(&str, &str)]| {
            detect(Path::new("/nonexistent"), root(files).path()).into_iter().map(|i| i.found).collect::<Vec<_>>()
        };
        let state = ("kernel/sched_ext/state", "enabled\n");
        let ops = ("kernel/sched_ext/root/ops", "rusty_1.0.5_x86_64\n");
        assert_eq!(found(&[state, ops]), ["scheduler rusty_1.0.5_x86_64, enabled"]);
        assert_eq!(found(&[state]), ["scheduler of unknown name, enabled"]);
        assert_eq!(found(&[("kernel/sched_ext/state", "disabled\n")]), [""; 0]);
    }

    #[test]
    fn the_kubelets_policy_is_what_its_state_says() {
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
    fn the_kubelets_policy_may_be_a_flag_or_configured() {
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
    fn an_nri_resource_policy_is_a_process() {
        let found = in_proc(&[("55/comm", "nri-resource-po\n")]);
        assert_eq!(found, one("NRI resource policy", "process 55 (nri-resource-po)"));
    }
}
