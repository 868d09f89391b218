//! Who a thread is, without a lock: [`Tasks`], for those who undo moves.
//!
//! **Problem.** A thread is known again by its start time, and `/proc/TID/stat` may wait for a
//! process that hangs in `execve()`. A thousand of those kept homenode from undoing anything.
//!
//! **Approach.** A task iterator that is asked for one id (Linux 6.1) looks it up in the kernel's
//! table and reads a few fields. [`Who::open`] compares its answers with procfs's own, for a first
//! thread and another one: some kernels do not find the latter, and in a PID namespace ids differ.
//!
//! **Limits.** Loading takes what observing takes (CAP_BPF, CAP_PERFMON). Who cannot open it asks
//! procfs.

use std::io::{self, ErrorKind, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use linux::threads::{Stat, Tasks, Threads, as_shown, own_tid};
use topology::ThreadId;

use crate::cause;
use crate::mapped::kernel::pass;
use crate::probe_run::silence_libbpf;
use crate::records::intf::who;
use crate::records::{Record, text};

skeleton!(mod skel = "who.skel.rs");

/// The kernel's list of tasks, where it can be asked; the log has the reason why not.
pub fn tasks(proc_root: &Path) -> Option<Arc<dyn Tasks>> {
    match Who::open(proc_root) {
        Ok(who) => Some(Arc::new(who)),
        Err(error) => {
            tracing::info!(%error, "procfs is asked who a thread is");
            None
        }
    }
}

#[derive(Debug)]
pub struct Who {
    program: OwnedFd,
}

impl Who {
    /// Loads the program, and checks that it answers as this procfs does.
    ///
    /// # Errors
    ///
    /// The kernel refuses, or its answers are others.
    pub fn open(proc_root: &Path) -> io::Result<Self> {
        silence_libbpf();
        let mut storage = MaybeUninit::uninit();
        let loaded = skel::WhoSkelBuilder::default().open(&mut storage).and_then(OpenSkel::load);
        let skel = loaded.map_err(|e| io::Error::other(cause::of_bpf(&e)))?;
        // The program stays for as long as its descriptor does.
        let who = Self { program: skel.progs.who.as_fd().try_clone_to_owned()? };
        let threads = Threads::new(proc_root);
        let pid = std::process::id();
        who.check(&threads, pid)?;
        std::thread::scope(|scope| scope.spawn(|| who.check(&threads, own_tid())).join())
            .map_err(|_| io::Error::other("a thread has panicked"))??;
        Ok(who)
    }

    fn check(&self, threads: &Threads, tid: u32) -> io::Result<()> {
        let alike = |stat: Stat| (stat.id, stat.ppid, stat.session, stat.kernel_thread, stat.comm);
        let (ours, shown) = (self.stat(tid)?.map(alike), threads.stat(tid)?.map(alike));
        match ours == shown {
            true => Ok(()),
            false => {
                Err(io::Error::other(format!("thread {tid} is {ours:?} in the list of tasks, {shown:?} in procfs")))
            }
        }
    }
}

impl Tasks for Who {
    fn stat(&self, tid: u32) -> io::Result<Option<Stat>> {
        // 0 would be all tasks.
        if tid == 0 {
            return Ok(None);
        }
        let mut pass = match pass(self.program.as_fd(), tid) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            pass => pass?,
        };
        let mut bytes = [0; 2 * who::BYTES];
        // Once: a second read may find the task again.
        let length = loop {
            match pass.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        match bytes.get(..length).unwrap_or_default() {
            [] => Ok(None),
            answer => {
                decode(answer).filter(|stat| stat.id.tid == tid).map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
            }
        }
    }
}

fn decode(bytes: &[u8]) -> Option<Stat> {
    let who { start_ns, tid, ppid, session, cpu, kernel_thread, comm, .. } = Record::decode(bytes)?;
    let id = ThreadId::new(tid, as_shown(start_ns));
    Some(Stat { id, comm: text(&comm), ppid, session, kernel_thread: kernel_thread != 0, cpu })
}
