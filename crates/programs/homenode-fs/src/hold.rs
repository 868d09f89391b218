//! The holder: the parent of a mount's server, which starts the next one when that dies.
//!
//! **Problem.** A server that crashes, or that is killed for an upgrade, takes the mount from
//! everybody who uses it.
//!
//! **Approach.** The holder has what the kernel's end of the mount hangs on (`mount::Held`), and
//! does next to nothing, so that nothing happens to it: it waits for its server, for signals, and
//! for the one byte by which a server says that it works. When the server is killed by a signal it
//! starts the next one, which inherits the same files. SIGUSR2 replaces the server by what the
//! program is by then; if that does not work, the program that it was goes on.
//!
//! **Limits.** After [`TRIES`] failed starts, or [`LONGEST`] after the death, it lets go: then the
//! mount fails with ENOTCONN. So it does where the kernel cannot send requests again (before Linux
//! 6.9). A server that ends by itself has ended the mount, and the holder ends with it. If the
//! holder is killed, its server goes on without one.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::args::UpgradeArgs;
use ::mount::Held;
use command::args::Global;
use command::exit::{Exit, Failure};
use command::signals::is_ignored;
use command::{notify, output};
use linux::volume;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};

use crate::background::{leave_output, leave_terminal, say};

/// The server's environment has it: the number of the file by which it says that it works, and
/// those of [`Held`].
const HELD: &str = "HOMENODE_MOUNT_HELD";
/// What the name of a holder's program begins with: ` (deleted)` may follow.
const PROGRAM: &[u8] = b"homenode-fs";
/// Rest after a start that failed.
const REST: Duration = Duration::from_secs(1);
/// Starts that fail in a row.
const TRIES: u32 = 3;
/// Time without a server.
const LONGEST: Duration = Duration::from_secs(30);
/// A server that a fault of its own ends earlier than this is a failed start, too.
const YOUNG: Duration = Duration::from_secs(10);

/// What a server has from its holder.
pub struct Server {
    pub held: Arc<Held>,
    works: UnixStream,
}

impl Server {
    /// What the holder gave this process, if that is a held server.
    pub fn of_holder() -> Result<Option<Self>, Failure> {
        let Some(told) = std::env::var(HELD).ok() else { return Ok(None) };
        let failed = |error: io::Error| Failure::from_error(Exit::Io, "cannot take over from the holder", &error);
        let (works, held) = told.split_once(',').unwrap_or_default();
        let held = Held::inherited(held).map_err(failed)?;
        let works = ::mount::inherited_file(works).map_err(failed)?;
        Ok(Some(Self { held: Arc::new(held), works: works.into() }))
    }

    pub fn works(&mut self) {
        if let Err(error) = self.works.write_all(&[1]) {
            tracing::warn!("the holder does not hear that the mount works: {error}");
        }
    }
}

/// Starts a server in the way of this process, and holds its mount until it ends.
pub fn run(workers: usize, background: bool) -> Result<Exit, Failure> {
    let failed = |error: io::Error| Failure::from_error(Exit::Io, "cannot hold the mount", &error);
    Holder::new(workers, background).and_then(Holder::run).map_err(failed)
}

struct Holder {
    held: Held,
    background: bool,
    /// Where the user is, for paths: the directory itself, as its path may be gone by then, or lead
    /// into the mount.
    cwd: OwnedFd,
    /// Where the program is found after an upgrade.
    path: PathBuf,
    /// A newer program that has worked, and one that is about to be tried.
    newer: Option<File>,
    tried: Option<File>,
    /// Somebody wants the mount to end.
    stopping: bool,
    /// A byte for each server that works, and the end that it inherits.
    works: (UnixStream, UnixStream),
    /// A byte for each signal that ends the mount, and for each that asks for an upgrade.
    stop: UnixStream,
    upgrade: UnixStream,
}

/// Bytes that came.
fn came(from: &mut UnixStream) -> usize {
    from.read(&mut [0; 64]).unwrap_or(0)
}

impl Holder {
    fn new(workers: usize, background: bool) -> io::Result<Self> {
        let held = Held::new(workers)?;
        let works = UnixStream::pair()?;
        fcntl_setfd(&works.1, FdFlags::empty())?;
        let on = |signals: &[i32]| {
            let (read, write) = UnixStream::pair()?;
            for signal in signals {
                signal_hook::low_level::pipe::register(*signal, write.try_clone()?)?;
            }
            read.set_nonblocking(true)?;
            Ok::<_, io::Error>(read)
        };
        // As elsewhere, `nohup` keeps its effect.
        let ends = if is_ignored(SIGHUP) { &[SIGTERM, SIGINT][..] } else { &[SIGTERM, SIGINT, SIGHUP] };
        let (stop, upgrade) = (on(ends)?, on(&[SIGUSR2])?);
        works.0.set_nonblocking(true)?;
        let cwd = open(".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = std::env::current_exe()?;
        let (newer, tried, stopping) = (None, None, false);
        Ok(Self { held, background, cwd, path, newer, tried, stopping, works, stop, upgrade })
    }

    fn start(&self) -> io::Result<(Child, OwnedFd)> {
        let program = match self.tried.as_ref().or(self.newer.as_ref()) {
            Some(file) => format!("/proc/self/fd/{}", file.as_raw_fd()),
            None => "/proc/self/exe".to_owned(),
        };
        let child = Command::new(program)
            .arg0("homenode-fs")
            .args(crate::args::command_line(std::env::args_os()).into_iter().skip(1))
            .env(HELD, format!("{},{}", self.works.1.as_raw_fd(), self.held.told()))
            .env_remove("NOTIFY_SOCKET")
            .current_dir(format!("/proc/self/fd/{}", self.cwd.as_raw_fd()))
            .stdin(Stdio::null())
            .spawn()?;
        let watch = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        Ok((child, watch))
    }

    fn run(mut self) -> io::Result<Exit> {
        let mut first = true;
        // When the last server died, and how many starts have failed since.
        let (mut died, mut failed) = (None, 0);
        if self.background {
            leave_terminal()?;
        }
        loop {
            let mut server = match self.start() {
                Ok(server) => server,
                Err(error) if first => return Err(error),
                Err(error) => {
                    failed += 1;
                    say(&format!("{}: no server can be started: {error}", self.held.dir().display()));
                    if failed >= TRIES {
                        return Err(error);
                    }
                    self.tried = None;
                    std::thread::sleep(REST);
                    continue;
                }
            };
            let begun = Instant::now();
            let Served { ended, worked, upgraded } = self.serve(&mut server, &mut first, &mut died)?;
            let signal = ended.signal();
            let dir = self.held.dir();
            let dir = dir.display();
            // A server that ends by itself once it works has ended the mount.
            let over = worked && signal.is_none();
            if first || over || (self.stopping && worked) || !self.held.is_mounted() {
                return Ok(match (ended.code(), signal) {
                    (Some(code), _) => u8::try_from(code).map_or(Exit::Io, Exit::Command),
                    (None, _) => Exit::Io,
                });
            }
            let fault = signal.is_some_and(|signal| signal != Signal::KILL.as_raw());
            if !worked && !upgraded {
                std::thread::sleep(REST); // another process may be at the volume's files
            }
            failed = if !worked || (fault && begun.elapsed() < YOUNG) { failed + 1 } else { 0 };
            let since = *died.get_or_insert_with(Instant::now);
            if failed >= TRIES || since.elapsed() >= LONGEST {
                say(&format!("{dir}: no server works any more ({ended}): the mount ends (ENOTCONN)"));
                return Ok(Exit::Io);
            }
            if upgraded {
                self.tried = File::open(&self.path).ok();
            } else {
                say(&format!("{dir}: its server ended ({ended}): the next one takes over"));
                if !worked {
                    self.tried = None;
                }
            }
        }
    }

    /// Waits for the end of a server, and does what signals ask for meanwhile.
    fn serve(
        &mut self,
        (child, watch): &mut (Child, OwnedFd),
        first: &mut bool,
        died: &mut Option<Instant>,
    ) -> io::Result<Served> {
        let pid = Pid::from_child(child);
        let (mut worked, mut upgraded, mut told, mut killed) = (false, false, false, false);
        loop {
            notify::alive();
            let left = died.map(|died: Instant| LONGEST.saturating_sub(died.elapsed())).filter(|_| !killed);
            let timeout = left.into_iter().chain(notify::watchdog()).min();
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let mut fds = [watch.as_fd(), self.works.0.as_fd(), self.stop.as_fd(), self.upgrade.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) if died.is_some_and(|died| died.elapsed() >= LONGEST) => {
                    killed = true;
                    kill_process(pid, Signal::KILL)?; // it hangs
                }
                Ok(_) => {}
                Err(error) if io::Error::from(error).kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            let [dead, ..] = fds.map(|fd| !fd.revents().is_empty());
            if came(&mut self.works.0) > 0 {
                worked = true;
                if let Some(tried) = self.tried.take() {
                    self.newer = Some(tried);
                }
                if let Some(died) = died.take() {
                    let dir = self.held.dir();
                    say(&format!("{}: a server has taken over after {:.2?}", dir.display(), died.elapsed()));
                }
                if std::mem::take(first) {
                    notify::ready(None);
                    if self.background {
                        leave_output()?;
                    }
                }
            }
            if came(&mut self.stop) > 0 {
                self.stopping = true;
                notify::stopping();
            }
            // One that is still beginning would die of it, and leave the mount.
            if self.stopping && !told && !dead && (worked || *first) {
                told = true;
                kill_process(pid, Signal::TERM)?;
            }
            if came(&mut self.upgrade) > 0 && !dead && worked && self.held.is_mounted() {
                upgraded = true;
                *died = Some(Instant::now());
                kill_process(pid, Signal::KILL)?;
            }
            if dead {
                return Ok(Served { ended: child.wait()?, worked, upgraded });
            }
        }
    }
}

/// Has the holder of a mount replace its server, and waits for the next one.
pub fn upgrade(global: &Global, args: &UpgradeArgs) -> Result<Exit, Failure> {
    let name = args.dir.display().to_string();
    let failed = |error: io::Error| Failure::from_error(Exit::Io, name.clone(), &error);
    let dir = File::open(&args.dir).map_err(failed)?;
    let before = volume::server(&dir).map_err(|error| match error.raw_os_error() {
        Some(libc::ENODATA | libc::EOPNOTSUPP) => Failure::new(Exit::Usage, name.clone(), "no mount of homenode"),
        _ => failed(error),
    })?;
    let Some(holder) = before.holder.and_then(Pid::from_raw) else {
        let why = "nothing holds this mount while its server is replaced";
        return Err(Failure::new(Exit::Unsupported, name, why).hint("unmount it, and mount it again with -o hold"));
    };
    let begun = Instant::now();
    let signal = || {
        // Any file server can name any process, and one of another PID namespace names somebody
        // else.
        let watch = pidfd_open(holder, PidfdFlags::empty())?;
        if !holds(holder.as_raw_nonzero().get(), &before) {
            return Ok(false);
        }
        pidfd_send_signal(&watch, Signal::USR2).map(|()| true)
    };
    if !signal().map_err(|errno| failed(errno.into()))? {
        return Err(Failure::new(Exit::Unsupported, name, "the process that holds it is none that is seen here"));
    }
    let after = loop {
        // Waits while there is no server.
        let now = volume::server(&dir).map_err(failed)?;
        if now.pid != before.pid {
            break now;
        }
        if begun.elapsed() > LONGEST {
            return Err(Failure::new(Exit::Io, name, "its holder does not replace the server"));
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let pause = begun.elapsed();
    let own = std::fs::metadata("/proc/self/exe").map_err(failed)?;
    if after.program != (own.dev(), own.ino()) {
        let why = "the program that served before goes on, as the new one did not take over";
        return Err(Failure::new(Exit::Io, name, why).hint("the system's log says more"));
    }
    if !global.json {
        let (old, new, name) = (before.version, after.version, output::escape(&name));
        output::print(&format!("{name}: version {new} serves it, {old} did; that took {pause:.2?}\n"))?;
    }
    Ok(Exit::Done)
}

/// Whether a process is the parent of this server, which runs the program that it names, and waits
/// for the signal that asks for an upgrade. The file server names all three, and may be anybody's:
/// root's or the caller's process must be `homenode-fs`, which may have been replaced since.
fn holds(holder: i32, server: &volume::Server) -> bool {
    let field = |pid: i32, name: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()))
    };
    let program = std::fs::metadata(format!("/proc/{}/exe", server.pid)).map(|file| (file.dev(), file.ino()));
    let own = rustix::process::geteuid().as_raw();
    let trusted = |user: &str| user.parse().is_ok_and(|user: u32| user == 0 || user == own);
    let is_ours = field(holder, "Uid:").is_some_and(|users| users.split_whitespace().all(trusted));
    let runs = std::fs::read_link(format!("/proc/{holder}/exe"));
    let is_this = runs.is_ok_and(|path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(PROGRAM)));
    let caught = field(holder, "SigCgt:").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    field(server.pid, "PPid:").and_then(|parent| parent.parse().ok()) == Some(holder)
        && caught.is_some_and(|mask| mask >> (SIGUSR2 - 1) & 1 == 1)
        && program.is_ok_and(|program| program == server.program)
        && is_ours
        && is_this
}

/// How a server ended.
struct Served {
    ended: ExitStatus,
    worked: bool,
    upgraded: bool,
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::Path;

    use super::*;

    /// A shell that waits for the signal, with a child, by these names.
    fn family(shell: &Path, user: Option<u32>) -> (Child, volume::Server) {
        let mut start = Command::new(shell);
        start.args(["-c", "trap : USR2; sleep 1000 & echo $!; wait"]).stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some(user) = user {
            start.uid(user);
        }
        let mut parent = loop {
            match start.spawn() {
                // A process that another test forks has the copy open for writing until it execs.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {}
                started => break started.unwrap(),
            }
        };
        let mut line = String::new();
        BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = line.trim().parse().unwrap();
        // It has none for a moment.
        let exe = || std::fs::metadata(format!("/proc/{pid}/exe")).map(|file| (file.dev(), file.ino()));
        let shell = std::fs::metadata(shell).map(|file| (file.dev(), file.ino())).unwrap();
        // It is the shell until it calls exec.
        let end = Instant::now() + Duration::from_secs(60);
        let looks = std::iter::repeat_with(exe).take_while(|_| Instant::now() < end).flatten();
        let program = looks.into_iter().find(|program| *program != shell).expect("sleep runs");
        let server = volume::Server { pid, holder: None, version: String::new(), program };
        (parent, server)
    }

    /// Root would signal any process that a file server of somebody's names.
    #[test]
    fn only_a_holder_of_roots_or_the_callers_is_signalled() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let holder = dir.path().join("homenode-fs");
        std::fs::copy("/bin/sh", &holder).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        let stranger = is_root.then_some((holder.as_path(), Some(65_533), false));
        let cases = [(holder.as_path(), None, true), (Path::new("/bin/sh"), None, false)];
        for (shell, user, expected) in cases.into_iter().chain(stranger) {
            let (mut parent, server) = family(shell, user);
            let holds = holds(i32::try_from(parent.id()).unwrap(), &server);
            let child = Pid::from_raw(server.pid).unwrap();
            kill_process(child, Signal::KILL).unwrap();
            parent.kill().unwrap();
            parent.wait().unwrap();
            assert_eq!(holds, expected, "{} {user:?}", shell.display());
        }
    }
}
