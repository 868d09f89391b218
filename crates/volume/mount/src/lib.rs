//! A volume as a directory of the machine: a FUSE server for homenode's own file system.
//!
//! **Problem.** Programs use files through the kernel. The kernel has to be told what each request
//! did, and must be kept from remembering what is no longer so.
//!
//! **Approach.** What a request means is in `fs`; `server` translates. The volume has no other user
//! while it is mounted, so the kernel may remember names and attributes for long, keeps the locks
//! of programs by itself, and checks permissions by itself (`default_permissions`). An inode lives
//! as long as the kernel knows its number (`fs::Volume::remember`). Where the kernel offers
//! io_uring, each CPU has a queue and a worker (`ring`); elsewhere as many workers as CPUs take
//! what comes by `/dev/fuse` (`connection`), not bound to CPUs: the kernel gives a request to
//! whichever waits longest, so a bound worker would be on the wrong CPU most of the time.
//!
//! The protocol is our own (`wire`), because crate `fuser` 0.18 would not do: it panics on a file
//! time that any user can set (`touch -d @-9223372036854775807.5`), which ends the mount; it hides
//! which requests take set-user-ID bits; and it has no place for a worker's CPU.
//!
//! **Limits.** Mounting takes root.

mod asker;
mod caller;
mod connection;
mod control;
mod draining;
mod held;
mod listing;
mod mountpoint;
#[cfg(feature = "null")]
pub mod null;
pub mod plane;
mod ring;
mod scrubs;
mod server;
mod session;
mod stale;
mod trim;
mod wire;

use std::sync::Arc;

pub use draining::told;
pub use held::{Held, inherited_file};
pub use mountpoint::{Error, Flags, Unmounted, check, remount, shown};
pub use session::{Session, serve};

/// Cache that keeps file data after a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// The kernel, in its page cache. Only what it asks for is seen and counted.
    #[default]
    Kernel,
    /// Nobody: every read and write reaches the volume and is counted. Pages that a program maps
    /// are cached all the same.
    Direct,
    /// The kernel, which also keeps what was written: it writes it back later, or when a program
    /// asks for that. Such a write says neither who wrote nor from where.
    Writeback,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Source in the table of mounts.
    pub source: String,
    pub cache: Cache,
    /// Threads that answer requests by `/dev/fuse`: at least 1.
    pub workers: usize,
    /// Where the kernel offers io_uring, requests come by it, to a worker for each CPU. Not for
    /// memory whose accesses sleep: the requests of a CPU wait for each other.
    pub ring: bool,
    /// Mounts of it may be idmapped. Most requests then say no user.
    pub idmap: bool,
    /// Limits for users of the mount.
    pub flags: Flags,
    /// Whether opened files are counted, as a policy wants it. It takes a round trip for each open
    /// and one for each close, which [`Cache::Direct`] needs anyway.
    pub counts_opens: bool,
    /// Labels for SELinux, such as `context=…`, as mount(2) has them.
    pub labels: Vec<String>,
    /// Where to ask for the nodes of threads; without it, local is where the server's threads run.
    pub callers: Option<Arc<plane::Callers>>,
    /// What outlives this server; with it requests come by `/dev/fuse`. Where it has a mount
    /// already, that one is taken over, and the volume [inherits](fs::Options::inherits).
    pub held: Option<Arc<Held>>,
}

impl Default for Options {
    fn default() -> Self {
        let workers = std::thread::available_parallelism().map_or(1, usize::from).max(2);
        Self {
            source: "homenode".to_owned(),
            cache: Cache::default(),
            workers,
            ring: false,
            idmap: false,
            flags: Flags::empty(),
            counts_opens: false,
            labels: Vec::new(),
            callers: None,
            held: None,
        }
    }
}
