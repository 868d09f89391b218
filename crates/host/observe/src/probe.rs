//! Finds out what this kernel lets us do; each missing capability has its cause.
//!
//! **Problem.** Whether a program can be loaded and attached depends on the kernel's version, its
//! configuration, security modules and the caller's rights. Only trying tells.
//!
//! **Approach.** Look names up in the kernel's BTF, and try the smallest program of each kind
//! (`bpf/probe_run.bpf.c`). [`super::choose`] decides from these facts.
//!
//! **Limits.** The kernel can still refuse a single function when it is attached (inlined,
//! blacklisted); that becomes a fact then.

use std::collections::BTreeMap;
use std::path::Path;

use libbpf_rs::btf::types::{Func, FuncProto, Ptr, Struct, Typedef};
use libbpf_rs::btf::{Btf, BtfType};
use serde::Serialize;
use topology::CpuSet;

use super::arc;
use super::fact::Fact;
use super::hooks::{Hook, Kind};
use super::page_nodes::NodeBits;
#[cfg(test)]
use super::page_nodes::NodeSource;
use super::probe_run::ProbeRuns;

const SYS: &str = "/sys";

#[derive(Clone, Debug, Serialize)]
pub struct Capabilities {
    /// Release, such as `6.12.117+deb12-amd64`.
    pub kernel: String,
    /// Whether the kernel describes its types (BTF).
    pub btf: Fact,
    /// Whether this process may load programs.
    pub load: Fact,
    /// Whether programs attach to functions (fexit).
    pub functions: Fact,
    /// Whether programs attach to tracepoints (tp_btf).
    pub tracepoints: Fact,
    /// Whether a program can iterate over all tasks (iter/task).
    pub task_pass: Fact,
    /// Whether `generic_perform_write` advances the file position before it returns, or why that is
    /// not known.
    #[serde(skip)]
    pub(super) pos_advanced: Result<bool, String>,
    /// Whether the kernel records which affinity was asked for (since 6.2), so that one set by a
    /// program shows as its own even if it equals ours.
    pub asked_affinity: Fact,
    /// Whether this process sees the thread ids of the whole machine.
    pub pid_namespace: Fact,
    /// Whether this process sees the start times of the machine.
    pub time_namespace: Fact,
    /// Whether pages have the size that the programs assume.
    pub page_size: Fact,
    /// Where a page's flags hold its node, or why that is not known.
    pub node_bits: Result<NodeBits, String>,
    /// CPUs that run without a timer tick (`nohz_full`): interrupting them does most harm.
    #[serde(skip_serializing_if = "CpuSet::is_empty")]
    pub nohz_full: CpuSet,
    pub zfs: bool,
    pub hooks: BTreeMap<Hook, Fact>,
}

impl Capabilities {
    /// Asks the running kernel: loads and removes a few small programs, and changes nothing else.
    pub fn probe() -> Self {
        super::probe_run::silence_libbpf();
        let btf = Btf::from_vmlinux();
        let names = Names { btf: btf.as_ref().ok() };
        let mut hooks: BTreeMap<Hook, Fact> = Hook::ALL.into_iter().map(|hook| (hook, names.fact(hook))).collect();
        hooks.extend(arc::facts(Path::new(SYS)));
        let function = hooks.iter().find(|(hook, fact)| hook.kind() == Kind::Function && fact.available());
        let has = |hook| hooks.get(&hook).is_some_and(Fact::available);
        let runs = ProbeRuns::run(function.map(|(hook, _)| hook.target()), has(Hook::WriteGeneric));
        let functions = match function {
            Some(_) => Fact::from(runs.function).named("function hooks (fexit) refused"),
            None => Fact::missing("the kernel's BTF has none of the functions to hook"),
        };
        Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            btf: match std::fs::metadata("/sys/kernel/btf/vmlinux") {
                Err(error) => Fact::missing(super::cause::of_io(&error)),
                Ok(_) => btf.as_ref().map(|_| ()).map_err(super::cause::of_bpf).into(),
            },
            load: runs.load.into(),
            functions,
            tracepoints: runs.tracepoint.into(),
            task_pass: runs.pass.into(),
            pos_advanced: runs.pos_advanced,
            asked_affinity: match btf.as_ref().ok().and_then(|btf| btf.type_by_name::<Struct<'_>>("affinity_context")) {
                Some(_) => Fact::Available,
                None => {
                    Fact::missing("this kernel does not record which affinity was asked for (Linux 6.2 and later do)")
                }
            },
            pid_namespace: pid_namespace(),
            time_namespace: time_namespace(),
            page_size: match rustix::param::page_size() {
                4096 => Fact::Available,
                other => Fact::missing(format!("this kernel has pages of {other} bytes")),
            },
            node_bits: NodeBits::find(btf.as_ref().ok(), Path::new(SYS)),
            nohz_full: nohz_full(Path::new(SYS)),
            zfs: arc::loaded(Path::new(SYS)),
            hooks,
        }
    }

    /// A kernel with every capability, for tests of the rules.
    #[cfg(test)]
    pub(super) fn everything() -> Self {
        Self {
            kernel: "6.12.0".to_owned(),
            btf: Fact::Available,
            load: Fact::Available,
            functions: Fact::Available,
            tracepoints: Fact::Available,
            task_pass: Fact::Available,
            pos_advanced: Ok(true),
            asked_affinity: Fact::Available,
            pid_namespace: Fact::Available,
            time_namespace: Fact::Available,
            page_size: Fact::Available,
            node_bits: Ok(NodeBits { bits: 10, source: NodeSource::CacheNode }),
            nohz_full: CpuSet::default(),
            zfs: true,
            hooks: Hook::ALL.into_iter().map(|hook| (hook, Fact::Available)).collect(),
        }
    }
}

/// Without such CPUs the file is absent, empty or `(null)`.
fn nohz_full(sys: &Path) -> CpuSet {
    let text = std::fs::read_to_string(sys.join("devices/system/cpu/nohz_full")).unwrap_or_default();
    text.parse().unwrap_or_default()
}

/// `PROC_PID_INIT_INO`, the inode number of the initial pid namespace (include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

fn pid_namespace() -> Fact {
    match std::fs::read_link("/proc/self/ns/pid") {
        Ok(link) if link == Path::new(INITIAL_PID_NAMESPACE) => Fact::Available,
        Ok(link) => Fact::missing(format!(
            "this process is in {}, where thread ids are not those of the machine",
            link.display()
        )),
        Err(error) => Fact::missing(format!("/proc/self/ns/pid: {}", super::cause::of_io(&error))),
    }
}

/// The times at which processes started are those of this process's time namespace, and BPF
/// programs see those of the machine.
fn time_namespace() -> Fact {
    match linux::clock::time_namespace() {
        None => Fact::Available,
        Some(seconds) => Fact::missing(format!(
            "this process is in a time namespace, {seconds} s off: processes would not be recognised by their start"
        )),
    }
}

/// Names in the kernel's BTF.
struct Names<'a> {
    btf: Option<&'a Btf<'a>>,
}

impl Names<'_> {
    fn fact(&self, hook: Hook) -> Fact {
        let Some(btf) = self.btf else { return Fact::missing("there is no BTF to look it up in") };
        let target = hook.target();
        match hook.kind() {
            Kind::Tracepoint => {
                let name = format!("btf_trace_{target}");
                let found = btf.type_by_name::<Typedef<'_>>(&name).is_some();
                match found || hook.module().is_some_and(|module| module_has(module, &name)) {
                    true => Fact::Available,
                    false => Fact::missing(format!("this kernel has no tracepoint {target}")),
                }
            }
            Kind::Function => match btf.type_by_name::<Func<'_>>(target) {
                None => Fact::missing(format!("this kernel has no function {target} (inlined, or not configured)")),
                Some(function) => self.form(hook, &function),
            },
            // The module has no BTF: `arc` knows.
            Kind::Probe => Fact::missing("not looked up"),
        }
    }

    /// Which of the two forms of filemap_get_pages this is.
    fn form(&self, hook: Hook, function: &Func<'_>) -> Fact {
        let iterator = || {
            let proto: FuncProto<'_> = function.next_type()?.try_into().ok()?;
            let second = proto.iter().nth(1)?;
            let ty = self.btf?.type_by_id::<BtfType<'_>>(second.ty)?;
            Some(Ptr::try_from(ty.skip_mods_and_typedefs()).is_ok())
        };
        match (hook, iterator()) {
            (Hook::ReadFunction, Some(true)) => Fact::missing("filemap_get_pages has the form from before 6.3"),
            (Hook::ReadFunctionIter, Some(false)) => Fact::missing("filemap_get_pages has the form since 6.3"),
            (Hook::ReadFunction | Hook::ReadFunctionIter, None) => {
                Fact::missing("filemap_get_pages has an unknown form")
            }
            _ => Fact::Available,
        }
    }
}

/// Whether a loaded module's BTF has this name. Its string section holds each name between two zero
/// bytes.
fn module_has(module: &str, name: &str) -> bool {
    let Ok(bytes) = std::fs::read(Path::new("/sys/kernel/btf").join(module)) else { return false };
    let needle: Vec<u8> = [&[0], name.as_bytes(), &[0]].concat();
    bytes.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_cpus_without_a_tick() {
        let sys = tempfile::tempdir().unwrap();
        assert!(nohz_full(sys.path()).is_empty());
        std::fs::create_dir_all(sys.path().join("devices/system/cpu")).unwrap();
        for (text, cpus) in [("\n", ""), ("(null)\n", ""), ("  (null)\n", ""), ("2-7,9\n", "2-7,9")] {
            std::fs::write(sys.path().join("devices/system/cpu/nohz_full"), text).unwrap();
            assert_eq!(nohz_full(sys.path()).to_string(), cpus);
        }
    }
}
