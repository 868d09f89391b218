//! `homenode-fs mount`: a volume for all programs.
//!
//! **Problem.** A user who mounts must learn at once whether it worked, and the server goes on
//! afterwards.
//!
//! **Approach.** The command starts itself again as the server and waits until that says that the
//! mount works, or fails. The server's messages go to the same stderr up to that moment.
//!
//! **Limits.** The later messages of a server in the background are lost, except that its policy
//! has ended, that its memory has failed, that an unmount failed, or that files are still open:
//! these go to the system's log.

use std::cell::Cell;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use crate::args::{CacheArg, HELPER_USAGE, MountArgs, NodesArgs, PlacementArg, VolumeArgs, apart, command_line};
use ::mount::{Cache, Error, Flags, Options, Unmounted};

use crate::fs_volume::{self, map, map_to_look, unmount};
use crate::hold;
use crate::volume_policy::{Nodes, Prepared};
use command::args::Global;
use command::exit::{Exit, Failure};
use command::notify;
use command::output::{self, units::count};
use command::signals::Stop;

/// Flags of mount(2) by the names that mount(8) has for them: to set, or to clear.
const FLAGS: &[(&str, Flags, bool)] = &[
    ("ro", Flags::RDONLY, true),
    ("rw", Flags::RDONLY, false),
    ("noexec", Flags::NOEXEC, true),
    ("exec", Flags::NOEXEC, false),
    ("nosuid", Flags::NOSUID, true),
    ("suid", Flags::NOSUID, false),
    ("nodev", Flags::NODEV, true),
    ("dev", Flags::NODEV, false),
    ("sync", Flags::SYNCHRONOUS, true),
    ("async", Flags::SYNCHRONOUS, false),
    ("dirsync", Flags::DIRSYNC, true),
    ("noatime", Flags::NOATIME, true),
    ("atime", Flags::NOATIME, false),
    ("nodiratime", Flags::NODIRATIME, true),
    ("diratime", Flags::NODIRATIME, false),
    ("relatime", Flags::RELATIME, true),
    ("norelatime", Flags::RELATIME, false),
    ("strictatime", Flags::STRICTATIME, true),
    ("lazytime", Flags::LAZYTIME, true),
    ("nolazytime", Flags::LAZYTIME, false),
    ("nosymfollow", Flags::NOSYMFOLLOW, true),
    ("symfollow", Flags::NOSYMFOLLOW, false),
    ("silent", Flags::SILENT, true),
    ("loud", Flags::SILENT, false),
];

/// SELinux's labels for all files, which the kernel takes.
const LABELS: &[&str] = &["context", "fscontext", "defcontext", "rootcontext"];

/// Options that always hold, or that are meant for mount(8) and systemd.
const IGNORED: &[&str] = &[
    "defaults",
    "default_permissions",
    "allow_other",
    "auto",
    "noauto",
    "fail",
    "nofail",
    "nouser",
    "_netdev",
    "iversion",
    "noiversion",
    "mand",
    "nomand",
    "user_xattr",
    "seclabel",
    // What a volume does whose memory has failed.
    "errors=remount-ro",
];

/// The server's environment has it where the command has started itself again.
const BACKGROUND: &str = "HOMENODE_MOUNT_BACKGROUND";

/// Options with values that the kernel shows, and mount(8) hands back for a remount.
const SHOWN: &[&str] = &["fd", "rootmode", "user_id", "group_id", "comment"];

/// For the OOM killer, of proc_pid_oom_score_adj(5).
const NEVER_KILLED: &str = "-1000";

/// Exists where SELinux is on.
const SELINUX: &str = "/sys/fs/selinux/enforce";

/// Whether the kernel offers requests by io_uring.
const URING: &str = "/sys/module/fuse/parameters/enable_uring";

const LOG: &str = "/dev/log";

/// Exit code of mount(8) for a mount that failed.
const HELPER_FAILED: u8 = 32;

pub fn run(global: &Global, args: &MountArgs) -> Result<Exit, Failure> {
    if !args.helper {
        return mount(global, args, &Wanted::of(args)?);
    }
    let wanted = Wanted::of(args).map_err(|failure| failure.exiting(Exit::Command(HELPER_USAGE)))?;
    if wanted.may_be_missing && !args.volume.volume.exists() {
        return Ok(Exit::Done);
    }
    mount(global, args, &wanted).map_err(|failure| failure.exiting(Exit::Command(HELPER_FAILED)))
}

fn mount(global: &Global, args: &MountArgs, wanted: &Wanted) -> Result<Exit, Failure> {
    if wanted.nodes.dry_run && !args.foreground {
        let why = "it prints what it would move, and in the background nobody sees that";
        return Err(Failure::new(Exit::Usage, "--dry-run", why).hint("add --foreground"));
    }
    if wanted.remount {
        remount(args, wanted.options.flags)
    } else if args.fake {
        map_to_look(&wanted.volume)?;
        Ok(Exit::Done)
    } else if args.foreground {
        serve_held(global, args, wanted, false)
    } else if std::env::var_os(BACKGROUND).is_some() {
        serve_held(global, args, wanted, true)
    } else {
        let started = start(args)?;
        // mount(8) and its users expect silence.
        if started == Exit::Done && !args.helper {
            wanted.tell(global, &args.dir);
        }
        Ok(started)
    }
}

/// Changes the flags of a mount. Where its server only looks at the volume it stays read-only.
fn remount(args: &MountArgs, flags: Flags) -> Result<Exit, Failure> {
    ::mount::remount(&args.dir, flags).map_err(|e| failure(&e))?;
    // A change of nothing, which only such a server refuses.
    let refused = || std::os::unix::fs::chown(&args.dir, None, None).err().and_then(|e| e.raw_os_error());
    if !flags.contains(Flags::RDONLY) && refused() == Some(libc::EROFS) {
        ::mount::remount(&args.dir, flags | Flags::RDONLY).map_err(|e| failure(&e))?;
        let why = "it was mounted with ro, so its server only looks at the volume (EROFS)";
        return Err(Failure::new(Exit::Io, args.dir.display().to_string(), why).hint("unmount it and mount it again"));
    }
    Ok(Exit::Done)
}

struct Wanted {
    volume: VolumeArgs,
    options: Options,
    placement: ::fs::Placement,
    nodes: NodesArgs,
    /// Bytes that inodes may take in memory.
    memory: u64,
    /// Whether the user says who keeps data, and how many threads serve.
    chosen: (bool, bool),
    remount: bool,
    /// Whether its server has a holder, where the user says.
    hold: Option<bool>,
    /// `nofail`: a volume that is not there is no failure of mount(8).
    may_be_missing: bool,
}

impl Wanted {
    fn of(args: &MountArgs) -> Result<Self, Failure> {
        let usage = |option: &str, why: &str| Failure::new(Exit::Usage, format!("option {option:?}"), why);
        let (volume, nodes) = (args.volume.clone(), args.nodes.clone());
        let (mut remount, mut hold) = (false, args.no_hold.then_some(false));
        let mut options = Options { source: volume.volume.display().to_string(), ..Options::default() };
        options.idmap = args.idmap;
        options.workers = args.workers.map_or(options.workers, usize::from);
        let given: Vec<String> = args.options.iter().flat_map(|list| apart(list)).collect();
        let given = || given.iter().map(String::as_str);
        if given().any(|option| option == "remount") {
            remount = true;
            let shown = ::mount::shown(&args.dir).map_err(|e| failure(&e))?;
            let set = |shown: &str| FLAGS.iter().find(|(known, _, set)| *set && *known == shown);
            options.flags = shown.split(',').filter_map(set).map(|(_, flag, _)| *flag).collect();
        }
        for option in given() {
            let name = option.split('=').next().unwrap_or_default();
            if let Some((_, flag, set)) = FLAGS.iter().find(|(known, ..)| *known == option) {
                options.flags.set(*flag, *set);
                continue;
            }
            match name {
                "idmap" => options.idmap = true,
                "remount" => {}
                "hold" => hold = Some(true),
                "nohold" => hold = Some(false),
                // As mount(8) has it; later options may allow them again.
                "user" | "users" => options.flags |= Flags::NOEXEC | Flags::NOSUID | Flags::NODEV,
                "owner" | "group" => options.flags |= Flags::NOSUID | Flags::NODEV,
                // Without SELinux the kernel knows none, and mount(8) drops them.
                _ if LABELS.contains(&name) => {
                    if !remount && Path::new(SELINUX).exists() {
                        options.labels.push(option.to_owned());
                    }
                }
                // mount(8) has done what they say.
                _ if name.starts_with("X-") && args.helper => {}
                _ if name.starts_with("X-") => {
                    let hint = "mount(8) does what it says: mount -t homenode -o … VOLUME DIR";
                    return Err(usage(option, "is for mount(8)").hint(hint));
                }
                _ if IGNORED.contains(&option) || name.starts_with("x-") || SHOWN.contains(&name) => {}
                _ => return Err(usage(option, "unknown").hint("homenode-fs mount --help lists them at -o")),
            }
        }
        let chosen = (args.cache.is_some(), args.workers.is_some());
        options.cache = match args.cache {
            Some(CacheArg::Direct) => Cache::Direct,
            Some(CacheArg::Writeback) if nodes.policy() => {
                let why = "is not for a policy, which wants to know who writes";
                return Err(
                    usage("cache=writeback", why).hint("cache=direct tells it; without a policy all caches work")
                );
            }
            Some(CacheArg::Writeback) => Cache::Writeback,
            _ => Cache::Kernel,
        };
        let placement = match args.placement.unwrap_or(PlacementArg::Local) {
            PlacementArg::Local => ::fs::Placement::Local,
            PlacementArg::Random => ::fs::Placement::Random,
            PlacementArg::Interleave => ::fs::Placement::Interleave,
            PlacementArg::Node(node) => ::fs::Placement::Node(node),
        };
        let may_be_missing = !remount && given().any(|option| option == "nofail");
        let memory = args.memory.unwrap_or_else(own_memory);
        Ok(Self { volume, options, placement, nodes, memory, chosen, remount, hold, may_be_missing })
    }

    /// Whether a holder keeps the mount: by default where the kernel can send requests again, and
    /// does not offer what cannot.
    fn hold(&self) -> bool {
        let emulated = self.nodes.emulate_nodes.is_some();
        let ring = || !self.chosen.1 && std::fs::read_to_string(URING).is_ok_and(|on| on.trim() == "Y");
        self.hold.unwrap_or_else(|| !emulated && !ring() && linux_release() >= Some((6, 9)))
    }

    /// What moves threads and files of the mount, for a person.
    fn tell(&self, global: &Global, dir: &Path) {
        if global.json {
            return;
        }
        let dir = dir.display().to_string();
        let dir = output::escape(&dir);
        let emulated =
            self.nodes.emulate_nodes.map_or(String::new(), |n| format!(", {}", count(n as usize, "emulated node")));
        let dir = format!("{dir}{emulated}");
        let text = match self.nodes.policy.as_deref().filter(|_| self.nodes.policy()) {
            Some(policy) => format!("mounted on {dir}: policy {policy} decides; homenode top shows it"),
            None => {
                format!(
                    "mounted on {dir}: no policy, so threads and files stay where they are (-o policy=auto starts one)"
                )
            }
        };
        // It is mounted, whether or not somebody reads that.
        if let Err(error) = output::print(&format!("{text}\n")) {
            tracing::warn!("stdout: {error}");
        }
    }
}

/// The first two numbers of the kernel's release.
fn linux_release() -> Option<(u32, u32)> {
    let name = rustix::system::uname();
    let mut numbers = name.release().to_str().ok()?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Starts the server in the background, and waits until the mount works.
fn start(args: &MountArgs) -> Result<Exit, Failure> {
    let failure = |e: std::io::Error| Failure::from_error(Exit::Io, "cannot start the server", &e);
    let mut server = Command::new("/proc/self/exe")
        .arg0("homenode-fs")
        .args(command_line(std::env::args_os()).into_iter().skip(1))
        .env(BACKGROUND, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failure)?;
    let mut said = String::new();
    if let Some(out) = server.stdout.take() {
        BufReader::new(out).read_line(&mut said).map_err(failure)?;
    }
    if !said.is_empty() {
        return Ok(Exit::Done);
    }
    let status = server.wait().map_err(failure)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    let ended = || Failure::new(Exit::Io, args.dir.display().to_string(), format!("the server ended: {status}"));
    code.filter(|code| *code != 0).map(Exit::Command).ok_or_else(ended)
}

/// Serves, or holds the mount of a server that this starts.
fn serve_held(global: &Global, args: &MountArgs, wanted: &Wanted, background: bool) -> Result<Exit, Failure> {
    let server = hold::Server::of_holder()?;
    if server.is_none() && wanted.hold() {
        never_killed();
        linux::files::raise_limit();
        return hold::run(wanted.options.workers, background);
    }
    serve(global, args, wanted, (background, server))
}

/// Its memory is everybody's files: to kill it frees none of a volume's, and its users lose the
/// mount. What users can make it hold is bounded. Only with CAP_SYS_RESOURCE; else it stays as it
/// is.
fn never_killed() {
    let _ = std::fs::write("/proc/self/oom_score_adj", NEVER_KILLED);
}

/// Mounts, or takes a mount over, and serves it until it ends.
fn serve(
    global: &Global,
    args: &MountArgs,
    wanted: &Wanted,
    (background, mut server): (bool, Option<hold::Server>),
) -> Result<Exit, Failure> {
    let taken = server.as_ref().is_some_and(|server| server.held.is_mounted());
    let stop = Stop::on_signals()?;
    // Nobody waits for output from here on, so that nothing keeps moves from being undone, or the
    // mount from ending.
    output::detach();
    log_failures();
    // Each thread that uses the mount takes up to two.
    linux::files::raise_limit();
    never_killed();
    // Before the volume is recovered.
    if !taken {
        ::mount::check(&args.dir).map_err(|e| failure(&e))?;
    }
    let looks = wanted.options.flags.contains(Flags::RDONLY);
    let mapped = if looks { map_to_look(&wanted.volume)? } else { map(&wanted.volume)? };
    let nodes = Nodes::of(global, &wanted.nodes, &mapped)?;
    let prepared = match Prepared::new(global, &wanted.nodes, &nodes, &args.dir) {
        // Users of a mount do not lose it for a policy that cannot be had any more.
        Err(failure) if taken => {
            say(&format!("nothing moves: {}", failure.line()));
            None
        }
        prepared => prepared?,
    };
    let mut options = wanted.options.clone();
    let (topology, medium) = (Some(nodes.topology.clone()), nodes.medium());
    let with = ::fs::Options { topology, placement: wanted.placement, inherits: taken, ..::fs::Options::default() };
    let volume = if looks { ::fs::Volume::look(medium, with) } else { ::fs::Volume::mount(medium, with) };
    let volume = volume.map_err(|e| {
        let damaged = matches!(e, ::fs::Error::Damaged(_));
        let failure = fs_volume::failure(wanted.volume.volume.display().to_string(), e);
        if damaged {
            failure.hint("-o ro reaches what is whole; homenode-fs fsck lists the damage, and with --repair mends it")
        } else {
            failure
        }
    })?;
    fs_volume::damage_lines(&volume, &wanted.volume.volume).iter().for_each(|line| say(line));
    nodes.serve(&mut options, &wanted.nodes, wanted.chosen);
    options.held = server.as_ref().map(|server| Arc::clone(&server.held));
    if wanted.options.cache == Cache::Writeback {
        check_writeback(&volume, wanted)?;
    }
    volume.bound_memory(wanted.memory);
    let volume = Arc::new(volume);
    let session = match ::mount::serve(Arc::clone(&volume), &args.dir, &options) {
        Ok(session) => session,
        Err(error) => {
            // The next server takes over what the last one left.
            if !taken {
                end(volume)?;
            }
            return Err(failure(&error));
        }
    };
    let ready = prepared.map(|prepared| prepared.start(&nodes, &volume, (&args.dir, wanted.placement))).transpose();
    let ready = ready.and_then(|decider| {
        let lost = |e: std::io::Error| Failure::from_error(Exit::Io, "cannot go to the background", &e);
        let go = || leave_terminal().and_then(|()| go_to_background()).map_err(lost);
        if background { go().map(|()| decider) } else { Ok(decider) }
    });
    let decider = match ready {
        Ok(decider) => decider,
        Err(failure) => {
            if taken {
                std::mem::forget(session); // the next server goes on
            } else if session.give_up() {
                end(volume)?;
            }
            return Err(failure);
        }
    };
    notify::ready(None);
    server.iter_mut().for_each(hold::Server::works);
    if !background && !taken && !wanted.nodes.policy() {
        wanted.tell(global, &args.dir);
    }
    let session = Arc::new(session);
    let (waited, waiting) = (Arc::clone(&session), thread::current());
    let watcher = thread::spawn(move || {
        let ended = waited.wait();
        waiting.unpark();
        ended
    });
    let doubt = Cell::new(false);
    let tell_doubt = || {
        if volume.in_doubt() && !doubt.replace(true) {
            say(&format!(
                "{}: the volume's memory has failed: it only reads until it is mounted again",
                args.dir.display()
            ));
        }
    };
    let failed = Cell::new(0);
    let tell_failed = || {
        // Again only for twice as many: a program may meet one after the other.
        let blocks = volume.failed_count();
        if blocks > 0 && blocks >= 2 * failed.get() {
            failed.set(blocks);
            say(&format!(
                "{}: the memory of {} has failed: using them is an error (EIO), and no file gets them before the next \
                 mount",
                args.dir.display(),
                count(blocks, "block"),
            ));
        }
    };
    let over = || {
        tell_failed();
        tell_doubt();
        stop.requested() || watcher.is_finished()
    };
    let decided = decider.map_or(Ok(()), |decider| decider.run(&over));
    if let Err(failure) = &decided {
        say(&format!("{}: nothing decides any more, but the mount goes on: {}", args.dir.display(), failure.line()));
    }
    let (mut left, mut told) = (false, false);
    while !watcher.is_finished() {
        tell_failed();
        tell_doubt();
        if stop.requested() && !left {
            if !told {
                notify::stopping();
            }
            match session.unmount() {
                Ok(how) => {
                    left = true;
                    if how == Unmounted::Busy {
                        say(&format!("{}: in use: the mount ends when the last file is closed", args.dir.display()));
                    }
                }
                // Its users must not lose it: the server tries again.
                Err(error) if !told => say(&failure(&error).line()),
                Err(_) => {}
            }
            told = true;
        }
        // The end of the mount or a signal unparks this thread; the limit is for a wake-up that
        // came before.
        thread::park_timeout(std::time::Duration::from_millis(500));
    }
    let ended = watcher.join().unwrap_or(Ok(()));
    end(volume)?;
    ended.map_err(|e| failure(&e))?;
    decided?;
    Ok(Exit::Done)
}

/// Write-back comes from a thread of the kernel, so that data that should be near its writer would
/// be near that.
fn check_writeback(volume: &::fs::Volume, wanted: &Wanted) -> Result<(), Failure> {
    let nodes: std::collections::BTreeSet<_> = volume.usage().regions.iter().map(|region| region.node).collect();
    if wanted.placement != ::fs::Placement::Local || nodes.len() < 2 {
        return Ok(());
    }
    let why = "with placement=local new data would be where the kernel writes it back, not where its writer runs";
    Err(Failure::new(Exit::Usage, "option \"cache=writeback\"", why).hint("name another placement, such as interleave"))
}

/// Memory for inodes where nobody says how much: an eighth of the machine's, and no less than a
/// server of some files takes.
fn own_memory() -> u64 {
    let machine = rustix::system::sysinfo();
    ((machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit)) / 8).max(64 << 20)
}

/// One line for stderr, and for the system's log, as stderr leads nowhere in the background.
pub fn say(line: &str) {
    let line = command::output::escape(line);
    output::complain(&format!("homenode: {line}\n"));
    // Facility daemon, severity error (RFC 3164).
    log(Path::new(LOG), &format!("<27>homenode[{}]: {line}\n", std::process::id()));
}

/// Hands a line to the system's log. It is lost where that takes no more, such as a stopped one:
/// who waited for it would neither undo moves nor end the mount.
fn log(to: &Path, entry: &str) {
    let logged = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(entry.as_bytes(), to)
    });
    if logged.is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
        let kernel = std::fs::OpenOptions::new().write(true).open("/dev/kmsg");
        // Where nobody listens nothing can be said.
        let _ = kernel.and_then(|mut kernel| kernel.write_all(entry.as_bytes()));
    }
}

/// Where memory fails so that the server must end, the system's log says why: in the background
/// nobody sees stderr.
fn log_failures() {
    let socket = UnixDatagram::unbound().and_then(|socket| socket.connect(LOG).map(|()| socket.into()));
    let kernel = || std::fs::OpenOptions::new().write(true).open("/dev/kmsg").map(Into::into);
    // Where nobody listens nothing can be said.
    if let Ok(log) = socket.or_else(|_: std::io::Error| kernel()) {
        ::fs::medium::log_failures_to(log);
    }
}

/// Ends the use of the volume, so that the next mount is quick.
fn end(volume: Arc<::fs::Volume>) -> Result<(), Failure> {
    match Arc::into_inner(volume) {
        Some(volume) => unmount(volume).map(|_| ()),
        None => Ok(()),
    }
}

/// Lets go of the caller's terminal and directory.
pub fn leave_terminal() -> std::io::Result<()> {
    // It was started as /proc/self/exe.
    rustix::thread::set_name(c"homenode-fs")?;
    rustix::process::setsid()?;
    Ok(rustix::process::chdir("/")?)
}

/// Says that the mount works, and lets go of the caller's output.
fn go_to_background() -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "mounted")?;
    stdout.flush()?;
    leave_output()
}

/// Lets go of the caller's output.
pub fn leave_output() -> std::io::Result<()> {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

fn failure(error: &Error) -> Failure {
    let failed = |exit| Failure::from_error(exit, "mount", error);
    match error {
        Error::Dead(dir) => {
            let dir = dir.display();
            Failure::new(Exit::Io, dir.to_string(), "a mount is here whose server has ended (ENOTCONN)")
                .hint(format!("umount -l {dir}, then mount again: whatever was acknowledged is there"))
        }
        Error::NotADirectory(dir) => Failure::new(Exit::Usage, dir.display().to_string(), "not a directory (ENOTDIR)"),
        _ => failed(Exit::Io),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stopped journald kept a mount whose memory had failed from undoing its moves.
    #[test]
    fn a_log_that_takes_no_more_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let reader = UnixDatagram::bind(&path).unwrap();
        let (told, ended) = std::sync::mpsc::channel();
        let to = path.clone();
        // More than net.unix.max_dgram_qlen, which systemd sets to 512.
        let writer = thread::spawn(move || {
            (0..1000).for_each(|number| log(&to, &format!("line {number}")));
            told.send(()).unwrap();
        });
        let waited = ended.recv_timeout(std::time::Duration::from_secs(60));
        let mut line = [0; 16];
        let len = reader.recv(&mut line).unwrap();
        drop(reader);
        std::fs::remove_file(&path).unwrap();
        writer.join().unwrap();
        assert_eq!((waited, &line[..len]), (Ok(()), &b"line 0"[..]));
    }
}
