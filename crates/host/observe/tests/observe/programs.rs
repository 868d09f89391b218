//! Tests of the observer with BPF programs for the tests (`observe`'s `src/bpf/checks.bpf.c`).

use std::fs::File;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use libbpf_rs::Iter;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use observe::checks::ChecksSkelBuilder;
use observe::{Capabilities, Hooks, NodeBits, NodeSource};
use testing::{Error, Tried, ensure, skip};
use topology::CpuSet;

use crate::common::*;
use crate::{Case, cases};

pub const CASES: &[Case] = cases![
    WithKernels:
        a_window_waits_for_programs_that_run,
        a_dax_file_without_a_block_device_has_no_node,
        the_mask_of_a_thread_that_may_not_migrate_is_its_affinity,
        pages_of_our_own_tell_the_width_of_a_node_as_types_do;
    WithStructures: programs_are_quick_to_verify;
];

/// A kernel whose types do not tell it is observed all the same.
fn pages_of_our_own_tell_the_width_of_a_node_as_types_do(_: Hooks) -> Tried {
    let by_types = Capabilities::probe().node_bits?;
    let by_pages = NodeBits::by_probe_run(Path::new("/sys"))?;
    println!("{by_types:?}, {by_pages:?}");
    ensure!(
        by_pages.source == NodeSource::ProbeRun && by_types.source != NodeSource::ProbeRun,
        "{by_types:?}, {by_pages:?}"
    );
    // Where no node but node 0 has memory, any width does.
    let others = topology()?.nodes.iter().any(|node| node.id.0 > 0 && node.memory_bytes > 0);
    let expected = if others { by_types.bits } else { 0 };
    ensure!(by_pages.bits == expected, "{by_types:?}, {by_pages:?}");
    Ok(())
}

/// The kernel refuses a program after a million steps of its verifier, and takes half a minute to
/// get there.
fn programs_are_quick_to_verify(hooks: Hooks) -> Tried {
    const MOST_STEPS: u64 = 200_000;
    for exact in [false, true] {
        let observer = open(&settings(exact, hooks))?;
        let notes = &observer.configuration().notes;
        ensure!(!notes.iter().any(|note| note.contains("E2BIG")), "{notes:?}");
        let mut steps = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fdinfo")? {
            // Other threads of this program close theirs.
            let text = std::fs::read_to_string(entry?.path()).unwrap_or_default();
            let number = text.lines().find_map(|line| line.strip_prefix("verified_insns:"));
            steps.extend(number.map(|number| number.trim().parse::<u64>()).transpose()?);
        }
        println!("exact {exact}: {steps:?} steps");
        ensure!(!steps.is_empty() && steps.iter().all(|steps| *steps < MOST_STEPS), "{steps:?}");
    }
    Ok(())
}

/// A window is reported after every program that started before its end has ended, so that it has
/// what they count.
fn a_window_waits_for_programs_that_run(hooks: Hooks) -> Tried {
    let mut storage = MaybeUninit::uninit();
    let mut checks = ChecksSkelBuilder::default().open(&mut storage)?;
    checks.progs.hold.set_autoload(true);
    let loaded = checks.load()?;
    let inside = || -> Tried<u32> {
        let bss = loaded.maps.bss_data.as_ref().ok_or("the programs have no data")?;
        // SAFETY: a live, aligned word, which the program changes.
        Ok(unsafe { std::ptr::read_volatile(&raw const bss.inside) })
    };
    let mut observer = open(&settings(true, hooks))?;
    let program = loaded.progs.hold.as_fd().as_raw_fd();
    // On a busy machine this thread may get no CPU for as long as the program runs: then it runs
    // again.
    for _ in 0..100 {
        let ended = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let runner = scope.spawn(|| {
                let result = run(program, None);
                ended.store(true, Ordering::Release);
                result
            });
            while inside()? == 0 {
                if ended.load(Ordering::Acquire) {
                    runner.join().map_err(|_| "the thread panicked")??;
                    return Ok::<_, Error>(false);
                }
                std::thread::yield_now();
            }
            let window = observer.window(Duration::ZERO).map(drop);
            let still = inside()?;
            runner.join().map_err(|_| "the thread panicked")??;
            window?;
            ensure!(still == 0, "the window was reported while a program of its time still ran");
            Ok(true)
        })?;
        if seen {
            return Ok(());
        }
    }
    Err("the program always ended before it was seen to run".into())
}

/// Virtiofs with DAX has no block device; neither has tmpfs. The node is then -1, not 0.
fn a_dax_file_without_a_block_device_has_no_node(_: Hooks) -> Tried {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        return skip("/dev/shm is not there");
    }
    let file = tempfile::tempfile_in(shm)?;
    let mut storage = MaybeUninit::uninit();
    let mut checks = ChecksSkelBuilder::default().open(&mut storage)?;
    checks.progs.device_of_file.set_autoload(true);
    let tunables = checks.maps.rodata_data.as_mut().ok_or("the programs have no constants")?;
    (tunables.own_pid, tunables.asked_fd) = (std::process::id(), file.as_raw_fd() as u32);
    let loaded = checks.load()?;
    let link = loaded.progs.device_of_file.attach()?;
    Iter::new(&link)?.read_to_end(&mut Vec::new())?;
    let bss = loaded.maps.bss_data.as_ref().ok_or("the programs have no data")?;
    ensure!(bss.files_seen == 1, "the file was seen {} times", bss.files_seen);
    ensure!(bss.device_node == -1, "node {} for a file without a device", bss.device_node);
    Ok(())
}

/// While the kernel keeps a thread from migrating, its `cpus_ptr` is one CPU, but its affinity
/// stays the same.
fn the_mask_of_a_thread_that_may_not_migrate_is_its_affinity(hooks: Hooks) -> Tried {
    let mut storage = MaybeUninit::uninit();
    let mut checks = ChecksSkelBuilder::default().open(&mut storage)?;
    checks.progs.copy_user_word.set_autoload(true);
    let loaded = checks.load()?;
    let faults = match Faults::new() {
        Ok(faults) => faults,
        Err(error) => return skip(format!("userfaultfd: {error}")),
    };
    let mut observer = open(&settings(false, hooks))?;
    observer.window(Duration::ZERO)?;
    let tid = AtomicU32::new(0);
    let (address, program) = (faults.page as u64, loaded.progs.copy_user_word.as_fd().as_raw_fd());
    std::thread::scope(|scope| {
        let runner = scope.spawn(|| {
            tid.store(linux::threads::own_tid(), Ordering::Release);
            run(program, Some(address))
        });
        let seen = (|| -> Tried<(CpuSet, CpuSet)> {
            faults.wait()?;
            let tid = tid.load(Ordering::Acquire);
            let stat = format!("/proc/self/task/{tid}/stat");
            while std::fs::read_to_string(&stat)?.contains(") R ") {
                std::thread::yield_now();
            }
            let observed = observer.window(Duration::ZERO)?;
            let thread = observed.threads.iter().find(|t| t.thread.tid == tid).ok_or("the thread was not reported")?;
            let status = std::fs::read_to_string(format!("/proc/self/task/{tid}/status"))?;
            let mask = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).ok_or("status")?;
            Ok((thread.mask.clone(), mask.trim().parse()?))
        })();
        // Gives the page, so that the thread ends.
        drop(faults);
        runner.join().map_err(|_| "the thread panicked")??;
        let (seen, affinity) = seen?;
        if affinity.len() == 1 {
            return skip("this thread may run on one CPU only");
        }
        ensure!(seen == affinity, "mask {seen}, affinity {affinity}");
        Ok(())
    })
}

/// Runs a program in this thread. Its context is one number, or nothing.
fn run(program: i32, context: Option<u64>) -> std::io::Result<()> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    if let Some(context) = &context {
        (options.ctx_in, options.ctx_size_in) = (std::ptr::from_ref(context).cast(), 8);
    }
    // SAFETY: the descriptor is open; options and context outlive the call.
    match unsafe { libbpf_sys::bpf_prog_test_run_opts(program, &mut options) } {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(-error)),
    }
}

/// A page of memory whose first use waits until this is dropped.
struct Faults {
    fd: Option<File>,
    page: usize,
}

impl Faults {
    const PAGE: usize = 4096;

    fn new() -> std::io::Result<Self> {
        let checked = |result: libc::c_long| match result {
            -1 => Err(std::io::Error::last_os_error()),
            n => Ok(n),
        };
        // SAFETY: makes a new descriptor.
        let fd = unsafe {
            let fd = checked(libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC))?;
            OwnedFd::from_raw_fd(fd as i32)
        };
        let (protection, flags) = (rustix::mm::ProtFlags::all(), rustix::mm::MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address the kernel chooses.
        let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), Self::PAGE, protection, flags)? };
        let faults = Self { fd: Some(fd.into()), page: page as usize };
        // UFFDIO_API: version, features, answer. UFFDIO_REGISTER: start, length, mode (missing
        // pages), answer.
        let mut api = [0xAA_u64, 0, 0];
        let mut register = [faults.page as u64, Self::PAGE as u64, 1, 0];
        for (request, argument) in [(0xc018_aa3f, api.as_mut_ptr()), (0xc020_aa00, register.as_mut_ptr())] {
            let fd = faults.fd.as_ref().map_or(-1, |fd| fd.as_raw_fd());
            // SAFETY: the argument is as long as the request says and outlives the call.
            checked(unsafe { libc::ioctl(fd, request, argument) }.into())?;
        }
        Ok(faults)
    }

    /// Until a thread waits for the page.
    fn wait(&self) -> std::io::Result<()> {
        let mut message = [0; 32];
        self.fd.as_ref().ok_or(std::io::ErrorKind::NotConnected)?.read_exact(&mut message)
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        // A thread that waits for the page gets it now. The page itself stays mapped.
        drop(self.fd.take());
    }
}
