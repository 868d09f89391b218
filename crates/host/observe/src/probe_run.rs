//! The smallest BPF program of each kind: what the kernel makes of it ([`super::probe`]).

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::Once;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link, OpenObject, PrintLevel};
use linux::threads::own_tid;

use super::{cause, pass};

skeleton!(mod probe_run_skel = "probe_run.skel.rs");

use probe_run_skel::{ProbeRunSkel, ProbeRunSkelBuilder};

/// The smallest program of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeRun {
    Tracepoint,
    Function,
    Pass,
    /// [`ProbeRuns::pos_advanced`].
    Write,
}

/// What the kernel made of the smallest program of each kind.
#[derive(Debug)]
pub(super) struct ProbeRuns {
    pub load: Result<(), String>,
    pub tracepoint: Result<(), String>,
    pub function: Result<(), String>,
    pub pass: Result<(), String>,
    /// Whether `generic_perform_write` advances the file position before it returns. The version
    /// does not tell, as long-term kernels have adopted the change.
    pub pos_advanced: Result<bool, String>,
}

impl ProbeRuns {
    /// Loads, attaches and removes each program: [`ProbeRun::Function`] at `function`, and
    /// [`ProbeRun::Write`] if `write` (the kernel has its function). All are in one object, because
    /// each object reads all types of the kernel anew; where that does not load, each is in its
    /// own.
    pub fn run(function: Option<&str>, write: bool) -> Self {
        let mut runs = vec![ProbeRun::Tracepoint, ProbeRun::Pass];
        runs.extend(function.map(|_| ProbeRun::Function));
        runs.extend(write.then_some(ProbeRun::Write));
        let mut storage = MaybeUninit::uninit();
        let together = ProbeRun::load(&runs, function, &mut storage).ok();
        let with = |run: ProbeRun, then: &dyn Fn(&ProbeRunSkel<'_>) -> Result<bool, String>| match &together {
            _ if !runs.contains(&run) => Err("this kernel does not have the function".to_owned()),
            Some(loaded) => then(loaded),
            None => then(&ProbeRun::load(&[run], function, &mut MaybeUninit::uninit())?),
        };
        let attached = |run: ProbeRun| {
            let attach = |loaded: &ProbeRunSkel<'_>| run.attach(loaded).map(|_| true);
            with(run, &attach).map(drop)
        };
        Self {
            load: with(ProbeRun::Tracepoint, &|_| Ok(true)).map(drop),
            tracepoint: attached(ProbeRun::Tracepoint),
            function: attached(ProbeRun::Function),
            pass: attached(ProbeRun::Pass),
            pos_advanced: with(ProbeRun::Write, &pos_advanced),
        }
    }
}

impl ProbeRun {
    fn load<'a>(
        runs: &[Self],
        function: Option<&str>,
        storage: &'a mut MaybeUninit<OpenObject>,
    ) -> Result<ProbeRunSkel<'a>, String> {
        silence_libbpf();
        let mut open = ProbeRunSkelBuilder::default().open(storage).map_err(|e| cause::of_bpf(&e))?;
        open.progs.probe_tracepoint.set_autoload(runs.contains(&Self::Tracepoint));
        open.progs.probe_pass.set_autoload(runs.contains(&Self::Pass));
        open.progs.probe_write.set_autoload(runs.contains(&Self::Write));
        if runs.contains(&Self::Function) {
            open.progs.probe_function.set_autoload(true);
            let target = open.progs.probe_function.set_attach_target(0, function.map(str::to_owned));
            target.map_err(|e| cause::of_bpf(&e))?;
        }
        if let Some(tunables) = open.maps.rodata_data.as_mut() {
            tunables.probe_tid = own_tid();
        }
        open.load().map_err(|e| format!("loading: {}", cause::of_bpf(&e)))
    }

    fn attach(self, loaded: &ProbeRunSkel<'_>) -> Result<Link, String> {
        let program = match self {
            Self::Tracepoint => &loaded.progs.probe_tracepoint,
            Self::Function => &loaded.progs.probe_function,
            Self::Pass => &loaded.progs.probe_pass,
            Self::Write => &loaded.progs.probe_write,
        };
        program.attach().map_err(|e| format!("attaching: {}", cause::of_bpf(&e)))
    }
}

/// Writes a byte to a file in memory and looks at the position.
fn pos_advanced(loaded: &ProbeRunSkel<'_>) -> Result<bool, String> {
    const AT: u64 = 4096;
    let _link = ProbeRun::Write.attach(loaded)?;
    let file =
        rustix::fs::memfd_create("homenode-probe", rustix::fs::MemfdFlags::CLOEXEC).map_err(|e| e.to_string())?;
    std::os::unix::fs::FileExt::write_all_at(&std::fs::File::from(file), &[0], AT).map_err(|e| e.to_string())?;
    match loaded.maps.data_data.as_ref().map(|data| data.probe_pos) {
        Some(pos) if pos == AT as i64 => Ok(false),
        Some(pos) if pos == AT as i64 + 1 => Ok(true),
        pos => Err(format!("a write at {AT} was seen at {pos:?}")),
    }
}

/// The flags of the first page of a file that the calling thread has open.
pub(super) fn page_flags(fd: RawFd) -> Result<u64, String> {
    silence_libbpf();
    let mut storage = MaybeUninit::uninit();
    let mut open = ProbeRunSkelBuilder::default().open(&mut storage).map_err(|e| cause::of_bpf(&e))?;
    open.progs.probe_page.set_autoload(true);
    if let Some(tunables) = open.maps.rodata_data.as_mut() {
        tunables.probe_tid = own_tid();
        tunables.probe_fd = fd.cast_unsigned();
    }
    let loaded = open.load().map_err(|e| format!("loading: {}", cause::of_bpf(&e)))?;
    let link = loaded.progs.probe_page.attach().map_err(|e| format!("attaching: {}", cause::of_bpf(&e)))?;
    let mut iter = Iter::new(&link).map_err(|e| cause::of_bpf(&e))?;
    // The program writes nothing.
    _ = pass::read(&mut iter, pass::TASKS, |_| None, |_| ()).map_err(|e| cause::of_io(&e))?;
    match loaded.maps.bss_data.as_ref().map_or(0, |data| data.probe_flags) {
        0 => Err("no page was found in a file of our own".to_owned()),
        flags => Ok(flags),
    }
}

/// Messages of libbpf go to the log: our own errors hold what matters of them.
pub(super) fn silence_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Info, |_, text| tracing::debug!("libbpf: {}", text.trim_end()))));
    });
}
