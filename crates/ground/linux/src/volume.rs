//! Files of a mounted volume: where they are, and moving them, by asking the mount.
//!
//! **Problem.** One process has a volume while it is mounted, its server, and only the server knows
//! the nodes of a file's blocks, or can move them.
//!
//! **Approach.** The server answers extended attributes that no file has: [`NODES`], [`MIGRATE`],
//! [`MIGRATION`] and [`DRAIN`], which any tool for attributes can use, too. None is listed, so that
//! no copy of a file takes one along. The kernel checks who may: [`NODES`] is for those who may
//! read the file, `trusted.` for those with CAP_SYS_ADMIN. This module has their forms for both
//! sides, and the asking side.
//!
//! **Limits.** A migration that was started goes on in the server when whoever asked for it ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, fstatfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use topology::{NodeBytes, NodeId};

/// Read: bytes of the file by node, as JSON: `{"0":4096,"1":8192}`. Bytes of regions without a node
/// are under [`UNKNOWN`].
pub const NODES: &str = "homenode.nodes";
/// Set: starts a migration ([`Order`]), or stops the one that runs.
pub const MIGRATE: &str = "trusted.homenode.migrate";
/// Read: the file's migration that runs, or the last one, as JSON ([`Migration`]).
pub const MIGRATION: &str = "trusted.homenode.migration";
/// Of any file. Set: starts a scrub of the whole volume ([`ScrubOrder`]), or stops it. Read: the
/// scrub that runs, or the last one, as JSON ([`Scrub`]).
pub const SCRUB: &str = "trusted.homenode.scrub";
/// The same for everybody, without the places of what was found.
pub const SCRUBBED: &str = "homenode.scrub";

const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// Read: who serves the mount, as JSON ([`Server`]).
pub const SERVER: &str = "homenode.server";

/// Of the root directory. Set: `1` starts to empty region 1, which gets nothing new from then on,
/// `cancel` stops that, and after `use 1` it gets new blocks again. Read: the drain that runs, or
/// the last one, as JSON ([`Drain`]).
pub const DRAIN: &str = "trusted.homenode.drain";

/// No node.
pub const UNKNOWN: &str = "unknown";

/// Most bytes of an answer.
const LONGEST: usize = 64 << 10;
/// The first pause between two looks at a migration; each further one is twice as long, up to the
/// second.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];
/// How long a migration that is to stop is waited for. A step takes less than a second, also on
/// emulated memory.
const STOPPING: Duration = Duration::from_secs(30);

/// What [`MIGRATE`] can be set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `1`, or `1 rate=100000000`: to this node, at most so many bytes a second.
    To(NodeId, Option<u64>),
    Cancel,
}

impl Order {
    /// Reads a value. `None`: it has no such form.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(value).ok()?.split_ascii_whitespace();
        let order = match words.next()? {
            "cancel" => Self::Cancel,
            node => {
                let rate = |word: &str| word.strip_prefix("rate=")?.parse().ok().filter(|rate| *rate > 0);
                let node = node.parse().ok()?;
                Self::To(NodeId(node), words.next().map(|word| rate(word).ok_or(())).transpose().ok()?)
            }
        };
        words.next().is_none().then_some(order)
    }
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::To(node, None) => write!(f, "{node}"),
            Self::To(node, Some(rate)) => write!(f, "{node} rate={rate}"),
            Self::Cancel => f.write_str("cancel"),
        }
    }
}

/// The emptying of a region. Units: bytes and seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drain {
    pub region: usize,
    /// Whether it runs, or how it ended.
    pub state: State,
    /// Bytes of data and logs that were there when it began.
    pub bytes: u64,
    /// Those that are there now.
    pub left_bytes: u64,
    /// Inodes that have their numbers there now.
    pub left_inodes: u64,
    /// What stays, and why, as far as an answer has room for it.
    pub stays: Vec<Stays>,
    /// How many more stay.
    pub more: usize,
    pub seconds: f64,
    pub errno: Option<i32>,
    pub why: Option<String>,
}

impl Drain {
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A file or directory of which something stays in a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stays {
    pub inode: u64,
    /// A path to it from the root of the volume, if one was found.
    pub path: Option<String>,
    pub why: String,
}

/// State of a migration, or of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Running,
    Done,
    /// Somebody stopped it, or the mount ended.
    Stopped,
    Failed,
}

/// A migration of a file. Units: bytes and seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Migration {
    pub to: u32,
    /// Whether it runs, or how it ended.
    pub state: State,
    /// Bytes that were elsewhere when it began.
    pub bytes: u64,
    /// Bytes that it has moved: more, if the file has grown meanwhile.
    pub moved_bytes: u64,
    /// Bytes that were there before.
    pub already_bytes: u64,
    pub seconds: f64,
    pub errno: Option<i32>,
    pub why: Option<String>,
}

impl Migration {
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubOrder {
    /// `start`, or `start rate=100000000`: goes on where the last one was stopped, or begins; at
    /// most so many bytes a second.
    Start(Option<u64>),
    Cancel,
}

impl ScrubOrder {
    /// Reads a value. `None`: it has no such form.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let words: Vec<&str> = std::str::from_utf8(value).ok()?.split_ascii_whitespace().collect();
        match words[..] {
            ["start"] => Some(Self::Start(None)),
            ["start", rate] => {
                let rate = rate.strip_prefix("rate=")?.parse().ok().filter(|rate| *rate > 0)?;
                Some(Self::Start(Some(rate)))
            }
            ["cancel"] => Some(Self::Cancel),
            _ => None,
        }
    }
}

impl std::fmt::Display for ScrubOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start(None) => f.write_str("start"),
            Self::Start(Some(rate)) => write!(f, "start rate={rate}"),
            Self::Cancel => f.write_str("cancel"),
        }
    }
}

/// A scrub of a mounted volume. Units: bytes and seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scrub {
    /// Whether it runs, or how it ended; `None`: there was none since the mount.
    pub state: Option<State>,
    /// Bytes of file data read, with those before it was stopped.
    pub bytes: u64,
    /// Bytes of blocks that the volume has in use.
    pub used_bytes: u64,
    /// Files and directories read.
    pub inodes: u64,
    /// Faults that are left.
    pub damaged: u64,
    /// Faults that were put right from a second copy.
    pub mended: u64,
    /// How long it has taken since it was started last.
    pub seconds: f64,
    /// When one last came to the end, seconds since 1970.
    pub completed: Option<u64>,
    /// Whether file data has checksums; without them only memory that cannot be read is found.
    pub data_checksums: bool,
    pub errno: Option<i32>,
    pub faults: Vec<ScrubFault>,
}

impl Scrub {
    /// Its form as an attribute's value, with as many faults as have room there.
    pub fn to_json(mut self) -> String {
        loop {
            let json = serde_json::to_string(&self).unwrap_or_default();
            if json.len() < LONGEST || self.faults.pop().is_none() {
                return json;
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScrubFault {
    /// The inode; `None`: it is a superblock.
    pub ino: Option<u64>,
    /// A path of the file within the volume, once it is known.
    pub path: Option<String>,
    /// The bytes of the file, from and to; `None`: it is no data.
    pub bytes: Option<(u64, u64)>,
    pub what: String,
    pub mended: bool,
}

/// Starts a scrub of a volume, by any file or directory of its mount, or stops it.
///
/// # Errors
///
/// EPERM: it takes CAP_SYS_ADMIN. EBUSY: it runs already. ENODATA: there is nothing to stop.
/// EOPNOTSUPP: the file is on no mounted volume.
pub fn order_scrub(file: &File, order: ScrubOrder) -> io::Result<()> {
    scrub(file)?; // another file system would keep the attribute
    Ok(fsetxattr(file, SCRUB, order.to_string().as_bytes(), XattrFlags::empty())?)
}

/// How far the scrub is, or how the last one ended.
///
/// # Errors
///
/// The file is on no mounted volume.
pub fn scrub(file: &File) -> io::Result<Scrub> {
    let none = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    if fstatfs(file)?.f_type as i64 != FUSE_SUPER_MAGIC {
        return Err(none());
    }
    let told = match get(file, SCRUB) {
        // Who may not see everything.
        Err(error) if error.raw_os_error() == Some(libc::ENODATA) => get(file, SCRUBBED),
        told => told,
    };
    // Another server may answer anything.
    serde_json::from_slice(&told?).map_err(|_| none())
}

/// Where the bytes of a file of a mounted volume are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Those in regions that have a node.
    pub nodes: NodeBytes,
    /// The others.
    pub unknown: u64,
}

/// Who serves a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    pub pid: i32,
    /// The process that starts the next one when it dies, if there is one.
    pub holder: Option<i32>,
    pub version: String,
    /// Device and inode of its program.
    pub program: (u64, u64),
}

impl Server {
    /// This process, which may be `held` by its parent.
    pub fn own(held: Option<i32>) -> Self {
        let program = rustix::fs::stat("/proc/self/exe").map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        // The parent may have ended.
        let parent = || rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get());
        let holder = held.filter(|held| parent() == Some(*held));
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Self { pid, holder, version: env!("CARGO_PKG_VERSION").to_owned(), program }
    }

    /// The form of [`SERVER`].
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Who serves the mount that has a file.
///
/// # Errors
///
/// ENODATA, EOPNOTSUPP: it is on no mount of homenode.
pub fn server(file: &File) -> io::Result<Server> {
    serde_json::from_slice(&get(file, SERVER)?).map_err(io::Error::other)
}

/// The form of [`NODES`], of bytes by node.
pub fn nodes_to_json(nodes: impl IntoIterator<Item = (Option<u32>, u64)>) -> String {
    let name = |node: Option<u32>| node.map_or_else(|| UNKNOWN.to_owned(), |node| node.to_string());
    let nodes: BTreeMap<_, _> = nodes.into_iter().map(|(node, bytes)| (name(node), bytes)).collect();
    serde_json::to_string(&nodes).unwrap_or_default()
}

/// Where the bytes of a file are, if a mounted volume has it.
///
/// # Errors
///
/// The kernel or the server refuses: EACCES to who may not read the file.
pub fn place(file: &File) -> io::Result<Option<Place>> {
    if fstatfs(file)?.f_type as i64 != FUSE_SUPER_MAGIC {
        return Ok(None);
    }
    let answer = match get(file, NODES) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => return Ok(None),
        answer => answer?,
    };
    // Another server may answer anything.
    let Ok(nodes) = serde_json::from_slice::<BTreeMap<String, u64>>(&answer) else { return Ok(None) };
    let mut place = Place::default();
    for (node, bytes) in nodes {
        match node.parse() {
            Ok(node) => place.nodes.add(NodeId(node), bytes),
            Err(_) => place.unknown = place.unknown.saturating_add(bytes),
        }
    }
    Ok(Some(place))
}

/// Starts to move a file to a node, or stops that.
///
/// # Errors
///
/// EPERM: it takes CAP_SYS_ADMIN. ENXIO: no region of the volume is on the node. EBUSY: the file is
/// being moved already. EUSERS: too many others are. EROFS: the mount is read-only. ENODATA: there
/// is nothing to stop.
pub fn order(file: &File, order: Order) -> io::Result<()> {
    Ok(fsetxattr(file, MIGRATE, order.to_string().as_bytes(), XattrFlags::empty())?)
}

/// How far the file's migration is, or how the last one ended.
///
/// # Errors
///
/// ENODATA: it has not been moved, or that was long ago.
pub fn migration(file: &File) -> io::Result<Migration> {
    serde_json::from_slice(&get(file, MIGRATION)?).map_err(io::Error::other)
}

/// Follows the file's migration to its end, telling `go_on` how far it is. Once that says no, the
/// migration is stopped, which is waited for, but not for ever: any file server can answer here.
///
/// # Errors
///
/// Those of [`migration`]; the mount has ended.
pub fn follow(file: &File, go_on: impl FnMut(&Migration) -> bool) -> io::Result<Migration> {
    follow_any(|| migration(file), |now| now.state == State::Running, || order(file, Order::Cancel), go_on)
}

/// The same for a scrub.
///
/// # Errors
///
/// Those of [`scrub`]; the mount has ended.
pub fn follow_scrub(file: &File, go_on: impl FnMut(&Scrub) -> bool) -> io::Result<Scrub> {
    let runs = |now: &Scrub| now.state == Some(State::Running);
    follow_any(|| scrub(file), runs, || order_scrub(file, ScrubOrder::Cancel), go_on)
}

/// The same for a drain, of the root directory of a mount.
///
/// # Errors
///
/// Those of [`draining`]; the mount has ended.
pub fn follow_drain(root: &File, go_on: impl FnMut(&Drain) -> bool) -> io::Result<Drain> {
    follow_any(|| draining(root), |now| now.state == State::Running, || drain(root, "cancel"), go_on)
}

/// Begins or ends the emptying of a region of a mounted volume, by its root directory ([`DRAIN`]).
///
/// # Errors
///
/// EPERM: it takes CAP_SYS_ADMIN. EINVAL: there is no such region, or none that could take what is
/// written. EBUSY: one is being emptied. EROFS: the mount is read-only. ENODATA: nothing is to
/// stop.
pub fn drain(root: &File, order: &str) -> io::Result<()> {
    Ok(fsetxattr(root, DRAIN, order.as_bytes(), XattrFlags::empty())?)
}

/// How far it is, or how the last one ended.
///
/// # Errors
///
/// ENODATA: none was drained since the mount.
pub fn draining(root: &File) -> io::Result<Drain> {
    serde_json::from_slice(&get(root, DRAIN)?).map_err(io::Error::other)
}

fn follow_any<T>(
    look: impl Fn() -> io::Result<T>,
    runs: impl Fn(&T) -> bool,
    cancel: impl Fn() -> io::Result<()>,
    mut go_on: impl FnMut(&T) -> bool,
) -> io::Result<T> {
    let ([mut pause, longest], mut stopped) = (PAUSES, None::<Instant>);
    loop {
        let now = look()?;
        let on = go_on(&now);
        if !runs(&now) || stopped.is_some_and(|at| at.elapsed() > STOPPING) {
            return Ok(now);
        }
        if !on && stopped.is_none() {
            stopped = Some(Instant::now());
            pause = PAUSES[0];
            unless_ended(cancel())?;
        }
        // A signal unparks.
        thread::park_timeout(pause);
        pause = (2 * pause).min(longest);
    }
}

/// Stops the file's migration, if there is one.
///
/// # Errors
///
/// As [`order`]; that it has ended is none.
pub fn cancel(file: &File) -> io::Result<()> {
    unless_ended(order(file, Order::Cancel))
}

fn unless_ended(stopped: io::Result<()>) -> io::Result<()> {
    match stopped {
        Err(error) if error.raw_os_error() == Some(libc::ENODATA) => Ok(()),
        done => done,
    }
}

fn get(file: &File, name: &str) -> io::Result<Vec<u8>> {
    let mut value = vec![0; LONGEST];
    loop {
        match fgetxattr(file, name, value.as_mut_slice()) {
            Err(Errno::INTR) => {}
            len => {
                value.truncate(len?);
                return Ok(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_are_written() {
        for order in [Order::Cancel, Order::To(NodeId(0), None), Order::To(NodeId(12), Some(1_000_000))] {
            assert_eq!(Order::parse(order.to_string().as_bytes()), Some(order));
        }
        assert_eq!(Order::parse(b" 1\n"), Some(Order::To(NodeId(1), None)));
        for wrong in [&b""[..], b"x", b"-1", b"1 2", b"1 rate=0", b"1 rate=1 1", b"cancel 1", b"\xff", b"4294967296"] {
            assert_eq!(Order::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn orders_of_scrubs_are_read_as_they_are_written() {
        for order in [ScrubOrder::Cancel, ScrubOrder::Start(None), ScrubOrder::Start(Some(1_000_000))] {
            assert_eq!(ScrubOrder::parse(order.to_string().as_bytes()), Some(order));
        }
        for wrong in [&b""[..], b"1", b"start 1", b"start rate=0", b"start rate=1 1", b"cancel 1", b"\xff"] {
            assert_eq!(ScrubOrder::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_file_of_another_file_system_is_on_no_volume() {
        assert_eq!(place(&tempfile::tempfile().unwrap()).unwrap(), None);
    }

    #[test]
    fn nodes_and_progress_have_a_form_of_json() {
        assert_eq!(nodes_to_json([(Some(1), 8192), (None, 1), (Some(0), 4096)]), r#"{"0":4096,"1":8192,"unknown":1}"#);
        let migration = Migration {
            to: 1,
            state: State::Failed,
            bytes: 8,
            moved_bytes: 4,
            already_bytes: 0,
            seconds: 0.5,
            errno: Some(libc::ENOSPC),
            why: Some("full".to_owned()),
        };
        let json = migration.to_json();
        assert!(json.starts_with(r#"{"to":1,"state":"failed","bytes":8,"moved_bytes":4,"already_bytes":0"#), "{json}");
        assert_eq!(serde_json::from_str::<Migration>(&json).unwrap(), migration);
    }
}
