//! How a program that decides is started and ended, for [`super::External`].
//!
//! **Problem.** `run`, `trial` and `mount` give up root's privileges before their first window.
//! From then on they can start no program as another user, nor end one.
//!
//! **Approach.** Three places where a program can live: below this process ([`Here`]), for commands
//! that only decide; below a keeper ([`Keeper`]), a process of homenode's that starts before the
//! privileges go, keeps those to change its user and to signal, has one socket and no other
//! descriptor of ours, and starts, starts again and ends the program when it is told to; and behind
//! a socket ([`Behind`]), where systemd starts it as a unit of its own. Each gives the two ends of
//! its conversation. None has homenode's terminal: its errors come by a pipe ([`super::errors`]).
//!
//! **Limits.** A child of a program that leaves its process group outlives the run.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::CapabilitySet;

use super::{ANSWER, errors};

/// The hidden sub-command of a keeper, and what it is told.
const KEEPER: &str = "policy-keeper";
const START: &[u8] = b"start";
const END: &[u8] = b"end";
/// Longest answer of a keeper that says why it could not start the program, in bytes.
const WHY: usize = 1024;
/// Address space of the program, in bytes.
const ADDRESS_SPACE: u64 = 4 << 30;
/// How long its end is waited for.
const ENDS: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

impl User {
    /// The user of this name or number or, without one, who called `sudo`. None without root's
    /// powers. Root itself is an error.
    pub fn of(name: Option<&str>) -> Result<Option<Self>, String> {
        if !rustix::process::geteuid().is_root() {
            return match name {
                Some(_) => Err("only root starts a program as another user (--policy-user)".to_owned()),
                None => Ok(None),
            };
        }
        let user = match name {
            Some(name) => Self::named(name)?,
            None => match (sudo("SUDO_UID"), sudo("SUDO_GID")) {
                (Some(uid), Some(gid)) => Self { uid, gid },
                _ => Self { uid: 0, gid: 0 },
            },
        };
        match user {
            Self { uid: 0, .. } | Self { gid: 0, .. } => Err("a program that decides does not run as root: start \
                 homenode as another user or by sudo, or name one (--policy-user)"
                .to_owned()),
            user => Ok(Some(user)),
        }
    }

    /// Asks id(1), which knows whatever the machine's name service does.
    fn named(name: &str) -> Result<Self, String> {
        let id = |what| {
            let said = Command::new("id").args([what, "--", name]).output().map_err(|e| format!("id: {e}"))?;
            let id = String::from_utf8_lossy(&said.stdout).trim().parse();
            id.map_err(|_| format!("--policy-user {name}: no such user"))
        };
        Ok(Self { uid: id("-u")?, gid: id("-g")? })
    }
}

/// A number of who called sudo.
fn sudo(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}

/// The ends of a conversation: what the program reads, and what it writes.
pub type Ends = (File, File);

/// A program, wherever it lives.
pub trait Program: Send + Sync {
    /// Starts it, after ending what it was before.
    fn open(&self) -> Result<Ends, String>;
    /// Ends it. Waits for at most a second.
    fn end(&self);
}

pub struct Here {
    command: String,
    user: Option<User>,
    /// With what is closed once its errors were shown.
    child: Mutex<Option<(Child, Receiver<()>)>>,
}

impl Here {
    /// Of this command, with its arguments.
    pub fn new(command: &str, user: Option<User>) -> Self {
        Self { command: command.to_owned(), user, child: Mutex::new(None) }
    }
}

impl Program for Here {
    fn open(&self) -> Result<Ends, String> {
        self.end();
        let mut words = self.command.split_ascii_whitespace();
        let program = words.next().ok_or("no program behind `exec:`")?;
        let mut start = Command::new(program);
        start.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(User { uid, gid }) = self.user {
            // The standard library drops root's other groups, too.
            start.uid(uid).gid(gid);
            // Root's variables are none of its business.
            let plain = |name: &str| ["PATH", "LANG", "TZ"].contains(&name) || name.starts_with("LC_");
            let kept = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(plain));
            start.env_clear().envs(kept);
        }
        // SAFETY: between fork and exec it makes system calls alone, and allocates nothing.
        unsafe { start.pre_exec(bound) };
        let mut child = start.spawn().map_err(|e| format!("{program}: {e}"))?;
        let ends = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
        let (ends, errors) = ends.ok_or_else(|| format!("{program}: no pipes"))?;
        // If there is no thread for it, it has nobody to complain to.
        let shown = errors::show(errors).unwrap_or_else(|_| channel().1);
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = Some((child, shown));
        Ok((File::from(OwnedFd::from(ends.0)), File::from(OwnedFd::from(ends.1))))
    }

    fn end(&self) {
        // Once: as soon as it was waited for, its number can be another's.
        let Some((mut child, shown)) = self.child.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let patience = Instant::now() + ENDS;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Its last words. Who left its group may still have the pipe.
        let _ = shown.recv_timeout(patience.saturating_duration_since(Instant::now()));
    }
}

/// In the new process, as its user: keeps it from taking the machine along, from the terminal, from
/// rights by set-user-ID, and from outliving who started it.
fn bound() -> io::Result<()> {
    // A session of its own is a group of its own, too, which it cannot leave.
    rustix::process::setsid()?;
    rustix::thread::set_no_new_privs(true)?;
    // What whoever started homenode left open. Linux before 5.11 cannot, and keeps it.
    // SAFETY: the call has no memory of ours, and closes nothing before exec.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    for (resource, most) in [(Resource::As, ADDRESS_SPACE), (Resource::Core, 0)] {
        let allowed = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX).min(most);
        rustix::process::setrlimit(resource, Rlimit { current: Some(allowed), maximum: Some(allowed) })?;
    }
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// A program below a keeper, which ends with this.
#[derive(Debug)]
pub struct Keeper {
    /// One asks at a time.
    socket: Mutex<OwnedFd>,
}

impl Keeper {
    /// Starts a keeper: this program once more, as root if we are.
    pub fn start(command: &str, user: Option<User>) -> Result<Self, String> {
        let failed = |e: io::Error| format!("cannot keep a program: {e}");
        let pair = || rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (socket, its) = pair().map_err(|e| failed(e.into()))?;
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(ANSWER))
            .map_err(|e| failed(e.into()))?;
        let id = |id: Option<u32>| id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let mut keeper = Command::new("/proc/self/exe");
        keeper.arg0("homenode").arg(KEEPER).args([id(user.map(|u| u.uid)), id(user.map(|u| u.gid))]).arg(command);
        // It ends when the socket does. Nobody waits for it.
        keeper.stdin(Stdio::from(its)).stdout(Stdio::null()).spawn().map_err(failed)?;
        Ok(Self { socket: Mutex::new(socket) })
    }
}

impl Program for Keeper {
    fn open(&self) -> Result<Ends, String> {
        let gone = |e: rustix::io::Errno| match e {
            rustix::io::Errno::AGAIN => "its keeper does not answer".to_owned(),
            e => format!("its keeper: {}", io::Error::from(e)),
        };
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        rustix::net::send(&*socket, START, SendFlags::NOSIGNAL).map_err(gone)?;
        let (why, ends) = receive(socket.as_fd()).map_err(|e| {
            // A late answer would be taken for the next one.
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
            gone(e)
        })?;
        match <[OwnedFd; 2]>::try_from(ends) {
            Ok([to, from]) => Ok((File::from(to), File::from(from))),
            Err(_) if why.is_empty() => Err("its keeper ended".to_owned()),
            Err(_) => Err(String::from_utf8_lossy(&why).into_owned()),
        }
    }

    fn end(&self) {
        // While a program starts, another thread has it; the end of the run ends that program, too.
        if let Ok(socket) = self.socket.try_lock() {
            let _ = rustix::net::send(&*socket, END, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}

/// A message and the descriptors in it. At the end of the socket both are empty.
fn receive(socket: BorrowedFd<'_>) -> rustix::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut message = vec![0; WHY];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut message)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            got => break got?,
        }
    };
    message.truncate(got.bytes);
    let rights = |message| if let RecvAncillaryMessage::ScmRights(fds) = message { Some(fds) } else { None };
    let ends = ancillary.drain().filter_map(rights).flatten().collect();
    Ok((message, ends))
}

/// The end of a keeper, if these are its arguments: `policy-keeper UID GID COMMAND`, with its
/// socket as standard input. `-` keeps the user.
pub fn keeper(arguments: &[OsString]) -> Option<ExitCode> {
    let [_, keeper, uid, gid, command] = arguments else { return None };
    let command = command.to_str().filter(|_| keeper == KEEPER)?;
    let id = |id: &OsString| id.to_str().and_then(|id| id.parse().ok());
    Some(keep(command, id(uid).zip(id(gid)).map(|(uid, gid)| User { uid, gid })))
}

fn keep(command: &str, user: Option<User>) -> ExitCode {
    let keeps = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
    if linux::privileges::keep_only(keeps).is_err() {
        return ExitCode::FAILURE;
    }
    // Control-C is for homenode, and root's terminal for nobody else. What saves a file server from
    // the kernel's hunt for memory must not save a program.
    let _ = rustix::process::setsid();
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    let program = Here::new(command, user);
    let socket = io::stdin();
    while let Ok((told, _)) = receive(socket.as_fd()) {
        let sent = match told.as_slice() {
            START => match program.open() {
                Ok((to, from)) => {
                    let ends = [to.as_fd(), from.as_fd()];
                    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
                    let mut ancillary = SendAncillaryBuffer::new(&mut space);
                    ancillary.push(SendAncillaryMessage::ScmRights(&ends));
                    sendmsg(&socket, &[IoSlice::new(START)], &mut ancillary, SendFlags::NOSIGNAL)
                }
                Err(why) => {
                    let why = &why.as_bytes()[..why.len().min(WHY)];
                    rustix::net::send(&socket, why, SendFlags::NOSIGNAL)
                }
            },
            END => {
                program.end();
                continue;
            }
            _ => break,
        };
        if sent.is_err() {
            break;
        }
    }
    program.end();
    ExitCode::SUCCESS
}

/// A program that somebody else starts for each connection to a socket.
pub struct Behind {
    path: PathBuf,
    stream: Mutex<Option<UnixStream>>,
}

impl Behind {
    pub fn new(path: &str) -> Self {
        Self { path: path.into(), stream: Mutex::new(None) }
    }

    /// Connects, or fails at once where too many wait before us.
    fn connect(&self) -> io::Result<UnixStream> {
        let address = SocketAddrUnix::new(&self.path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &address)?;
        let (user, own) = (listener(&socket)?, rustix::process::geteuid().as_raw());
        if user != 0 && user != own && sudo("SUDO_UID") != Some(user) {
            return Err(io::Error::other(format!("user {user} listens there, not root or the caller")));
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

/// The user that listens at the other end.
fn listener(socket: &OwnedFd) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `peer`, which has as many.
    let got = unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut peer).cast(), &raw mut length)
    };
    if got == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}

impl Program for Behind {
    fn open(&self) -> Result<Ends, String> {
        self.end();
        let ends = || -> io::Result<_> {
            let stream = self.connect()?;
            let ends = (stream.try_clone()?, stream.try_clone()?);
            *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
            Ok((File::from(OwnedFd::from(ends.0)), File::from(OwnedFd::from(ends.1))))
        };
        ends().map_err(|e| format!("{}: {e}", self.path.display()))
    }

    fn end(&self) {
        if let Some(stream) = self.stream.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
