//! A process that hangs in `execve()`: its files in `/proc` do not answer.
//!
//! **Problem.** Tests need a process that the kernel does not let anybody look at, and must not
//! leave one behind.
//!
//! **Approach.** A small FUSE server, a thread of the test, has one file. A program opens it
//! close-on-exec and calls exec. The kernel closes the file, asks the server (FLUSH), and gets no
//! answer until [`Hung`] is dropped. If the test is killed, its server ends, and the program goes
//! on, too. The file system is unmounted lazily as soon as the program hangs.
//!
//! **Limits.** Needs root and `/dev/fuse`.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Requests (include/uapi/linux/fuse.h).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
/// Bytes that a request takes at most here: the kernel wants room for this much.
const ROOM: usize = 8192 + 65_536;
/// How long the program may take to hang: a bound against a test that never ends.
const LIMIT: Duration = Duration::from_secs(60);

/// A process that hangs until this is dropped.
#[derive(Debug)]
pub struct Hung {
    /// Its id.
    pub pid: u32,
    /// The contents of its `/proc/PID/stat`, read before it hung.
    pub stat: String,
    server: File,
    /// The request that is not answered.
    request: u64,
    spawned: Option<JoinHandle<io::Result<Child>>>,
}

/// Processes that hang until this is dropped, with one server for all.
#[derive(Debug)]
pub struct Crowd {
    /// Their ids, and when they started, in the units of `/proc/PID/stat`.
    pub processes: Vec<(u32, u64)>,
    server: File,
    /// The requests that are not answered.
    requests: Vec<u64>,
}

impl Crowd {
    /// Starts so many. `dir`: an empty directory to mount on for a moment.
    pub fn start(dir: &Path, count: usize) -> io::Result<Self> {
        let server = File::options().read(true).write(true).open("/dev/fuse")?;
        mount(dir, &server)?;
        let mounted = Mounted(dir);
        let (tell, told) = channel();
        let mut serving = server.try_clone()?;
        std::thread::spawn(move || while serve(&mut serving, &tell).is_ok() {});
        let file = path(&dir.join("f"))?;
        let arguments = [c"sleep".as_ptr(), c"600".as_ptr(), std::ptr::null()];
        let mut crowd = Self { processes: Vec::new(), server, requests: Vec::new() };
        for _ in 0..count {
            // SAFETY: the child makes system calls only, on strings that exist already.
            let pid = unsafe {
                let pid = libc::fork();
                if pid == 0 {
                    libc::close_range(3, libc::c_uint::MAX, 0);
                    libc::open(file.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                    libc::execv(c"/bin/sleep".as_ptr(), arguments.as_ptr());
                    libc::_exit(1);
                }
                pid
            };
            let pid = u32::try_from(pid).map_err(|_| io::Error::last_os_error())?;
            crowd.processes.push((pid, 0));
            while crowd.requests.len() < crowd.processes.len() {
                match next(&told)? {
                    Seen::Opened(stat) => {
                        let start = start_ticks(&stat?);
                        crowd.processes.iter_mut().filter(|process| process.0 == pid).for_each(|p| p.1 = start);
                    }
                    Seen::Flushes(_, request) => crowd.requests.push(request),
                }
            }
        }
        drop(mounted);
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // SAFETY: these are our children, and nobody has waited for them.
        self.processes.iter().for_each(|(pid, _)| unsafe { _ = libc::kill(*pid as i32, libc::SIGKILL) });
        self.requests.iter().for_each(|request| _ = answer(&mut self.server, *request, 0, &[]));
        // SAFETY: as above; no status is asked for.
        self.processes.iter().for_each(|(pid, _)| unsafe { _ = libc::waitpid(*pid as i32, std::ptr::null_mut(), 0) });
    }
}

/// A file system whose server never answers, until this is dropped.
#[derive(Debug)]
pub struct Silent<'a> {
    _mounted: Mounted<'a>,
    _server: File,
}

impl<'a> Silent<'a> {
    /// Mounts it on this directory.
    pub fn mount(dir: &'a Path) -> io::Result<Self> {
        let server = File::options().read(true).write(true).open("/dev/fuse")?;
        mount(dir, &server)?;
        Ok(Self { _mounted: Mounted(dir), _server: server })
    }
}

/// When the process of this `stat` started, in its units.
fn start_ticks(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// What the server has seen.
enum Seen {
    /// The process has opened the file; its `stat`.
    Opened(io::Result<String>),
    /// It is in exec: its id, and the request that waits.
    Flushes(u32, u64),
}

impl Hung {
    /// Starts `sleep`, which hangs before it begins. `dir`: an empty directory to mount on for a
    /// moment.
    pub fn start(dir: &Path) -> io::Result<Self> {
        Self::start_after(dir, None)
    }

    /// The same; the process first syncs another file, often, so that the server of that one knows
    /// it.
    pub fn start_after(dir: &Path, used: Option<&Path>) -> io::Result<Self> {
        let used = used.map(path).transpose()?;
        let server = File::options().read(true).write(true).open("/dev/fuse")?;
        mount(dir, &server)?;
        let mounted = Mounted(dir);
        let (tell, told) = channel();
        let mut serving = server.try_clone()?;
        std::thread::Builder::new()
            .name("hung-server".into())
            .spawn(move || while serve(&mut serving, &tell).is_ok() {})?;
        let file = path(&dir.join("f"))?;
        let mut command = Command::new("sleep");
        command.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let open = move || {
            // SAFETY: neither call touches memory but the path, which outlives it. All descriptors
            // but the standard ones are closed: a copy of the server's would keep the file system
            // alive for as long as this process hangs.
            let opened = unsafe {
                libc::close_range(3, libc::c_uint::MAX, 0);
                for _ in 0..if used.is_some() { 200 } else { 0 } {
                    let used = used.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
                    let open = libc::open(used, libc::O_RDONLY | libc::O_CLOEXEC);
                    libc::fsync(open);
                    libc::close(open);
                    // Long enough for the server to look who it was.
                    libc::usleep(1_000);
                }
                libc::open(file.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)
            };
            if opened < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        // SAFETY: between fork and exec it makes system calls only.
        unsafe { command.pre_exec(open) };
        // On a thread of its own, as it returns when exec has succeeded.
        let spawned = std::thread::Builder::new().spawn(move || command.spawn())?;
        let stat = match next(&told)? {
            Seen::Opened(stat) => stat?,
            Seen::Flushes(..) => return Err(io::Error::other("it closed the file before it opened it")),
        };
        let Seen::Flushes(pid, request) = next(&told)? else {
            return Err(io::Error::other("it opened the file twice"));
        };
        drop(mounted);
        Ok(Self { pid, stat, server, request, spawned: Some(spawned) })
    }

    /// When it started, in the units of `/proc/PID/stat`.
    pub fn start_ticks(&self) -> u64 {
        start_ticks(&self.stat)
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // Ends the request, and the program begins. An error means that it was killed meanwhile.
        let _ = answer(&mut self.server, self.request, 0, &[]);
        if let Some(Ok(Ok(mut child))) = self.spawned.take().map(JoinHandle::join) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Unmounts when dropped. What is open stays so.
#[derive(Debug)]
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Ok(dir) = path(self.0) {
            // SAFETY: the path outlives the call.
            unsafe { libc::umount2(dir.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

fn path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

fn next(told: &Receiver<Seen>) -> io::Result<Seen> {
    told.recv_timeout(LIMIT).map_err(|_| io::Error::other("the program does not open the file, or does not hang"))
}

fn mount(dir: &Path, server: &File) -> io::Result<()> {
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", server.as_raw_fd());
    let (dir, options) = (path(dir)?, CString::new(options).map_err(io::Error::other)?);
    // SAFETY: all strings outlive the call.
    let result = unsafe {
        libc::mount(c"hung".as_ptr(), dir.as_ptr(), c"fuse.hung".as_ptr(), libc::MS_NODEV, options.as_ptr().cast())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Answers one request. An error ends the server.
fn serve(server: &mut File, tell: &Sender<Seen>) -> io::Result<()> {
    let mut bytes = vec![0; ROOM];
    let length = match server.read(&mut bytes) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT | libc::EAGAIN)) => return Ok(()),
        read => read?,
    };
    let request = bytes.get(..length).unwrap_or_default();
    let u32_at = |at: usize| request.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    let u64_at = |at: usize| request.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    let (operation, unique, node, pid) = (u32_at(4), u64_at(8), u64_at(16), u32_at(32));
    match operation {
        INIT => {
            let words: [u32; 4] = [7, 31, 0, 0];
            let mut init: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            // 12 requests in the background, 9 of them congest; writes of 4096 bytes; times in
            // nanoseconds.
            init.extend([12, 0, 9, 0]);
            init.extend(4096_u32.to_le_bytes());
            init.extend(1_u32.to_le_bytes());
            init.resize(64, 0);
            answer(server, unique, 0, &init)
        }
        GETATTR => answer(server, unique, 0, &[&[0; 16][..], &attributes(node)].concat()),
        LOOKUP => {
            let entry = [2_u64.to_le_bytes(), [0; 8], [0; 8], [0; 8], [0; 8]].concat();
            answer(server, unique, 0, &[entry, attributes(2)].concat())
        }
        OPEN => {
            let _ = tell.send(Seen::Opened(std::fs::read_to_string(format!("/proc/{pid}/stat"))));
            answer(server, unique, 0, &[0; 16])
        }
        FLUSH => {
            let _ = tell.send(Seen::Flushes(pid, unique));
            Ok(())
        }
        FORGET | BATCH_FORGET | INTERRUPT => Ok(()),
        RELEASE => answer(server, unique, 0, &[]),
        _ => answer(server, unique, -libc::ENOSYS, &[]),
    }
}

/// `struct fuse_attr`: the root, or the file of one page.
fn attributes(node: u64) -> Vec<u8> {
    let (size, mode): (u64, u32) = if node == 1 { (0, 0o40_755) } else { (4096, 0o100_666) };
    let mut bytes: Vec<u8> = [node, size, 1, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].iter().flat_map(|word: &u32| word.to_le_bytes()));
    bytes
}

fn answer(server: &mut File, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(16 + body.len()).map_err(io::Error::other)?;
    let header = [&length.to_le_bytes()[..], &error.to_le_bytes(), &unique.to_le_bytes(), body].concat();
    match server.write_all(&header) {
        // Its asker was killed.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        written => written,
    }
}
