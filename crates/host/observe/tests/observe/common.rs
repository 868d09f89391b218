//! Helpers of the tests that observe the real kernel.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::Duration;

use observe::{Hooks, Observed, ObservedThread, Observer, Settings};
use placement::{FileUse, NodeBytes, Thread};
use testing::{Tried, ensure};
use topology::FileId;

pub use testing::files::*;
pub use testing::kill_group;

/// Keeps a file's pages in the page cache until it is dropped: a kernel may take cached pages at
/// any moment, with memory to spare (DAMON's proactive reclaim). The file counts as open once more
/// meanwhile.
pub struct Held {
    at: *mut libc::c_void,
    len: usize,
}

pub fn hold(path: &Path) -> Tried<Held> {
    use rustix::mm::{MapFlags, ProtFlags};
    let file = File::open(path)?;
    let len = file.metadata()?.len() as usize;
    // SAFETY: a new mapping that nothing reads.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0)? };
    let held = Held { at, len };
    // SAFETY: the mapping made above.
    unsafe { rustix::mm::mlock(at, len)? };
    Ok(held)
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the mapping that `hold` made; nothing refers to it.
        _ = unsafe { rustix::mm::munmap(self.at, self.len) };
    }
}

pub fn settings(exact: bool, hooks: Hooks) -> Settings {
    Settings { exact, hooks, ..Settings::default() }
}

/// A new observer, and no other beside it.
pub fn open(settings: &Settings) -> Tried<Observer> {
    KEPT.take();
    Ok(Observer::open(settings, &topology()?)?)
}

thread_local! {
    /// The observer of the last test that counted every event. All tests run in one thread.
    static KEPT: RefCell<Option<(Hooks, Observer)>> = const { RefCell::new(None) };
}

/// An observer that counts every event, at the beginning of a window. One test leaves it to the
/// next: to load and remove its programs takes an emulated machine several seconds.
pub struct Exact(Option<(Hooks, Observer)>);

impl Exact {
    pub fn observer(&mut self) -> Tried<&mut Observer> {
        Ok(&mut self.0.as_mut().ok_or("no observer")?.1)
    }
}

impl Drop for Exact {
    fn drop(&mut self) {
        KEPT.set(self.0.take());
    }
}

pub fn exact_observer(hooks: Hooks) -> Tried<Exact> {
    let kept = KEPT.take().filter(|(its, _)| *its == hooks);
    let mut observer = match kept {
        Some((_, observer)) => observer,
        None => open(&settings(true, hooks))?,
    };
    observer.window(Duration::ZERO)?;
    Ok(Exact(Some((hooks, observer))))
}

/// Bytes that some threads read of and wrote to one file over some windows.
#[derive(Debug, Default)]
pub struct Sum {
    pub read: NodeBytes,
    pub written: NodeBytes,
}

impl Sum {
    pub fn add(&mut self, observed: &Observed, file: FileId, of: impl Fn(&Thread) -> bool) {
        for thread in observed.threads.iter().map(|t| &t.thread).filter(|t| of(t)) {
            for used in thread.files.iter().filter(|used| used.file == file) {
                used.read_bytes.iter().for_each(|(node, bytes)| self.read.add(node, bytes));
                used.write_bytes.iter().for_each(|(node, bytes)| self.written.add(node, bytes));
            }
        }
    }
}

/// Bytes read and written, from fio's report.
#[derive(Debug)]
pub struct Fio {
    pub read: u64,
    pub written: u64,
}

/// Runs fio on a file under `observer`. Returns fio's figures, the sums observed for its process
/// and this file, and all windows.
pub fn fio(observer: &mut Observer, file: &Path, arguments: &[&str]) -> Tried<(Fio, Sum, Vec<Observed>)> {
    let mut child = Command::new("fio")
        .args(["--name=job", "--output-format=json", "--thread", "--invalidate=0", "--fallocate=none"])
        // An ended thread is not reported, so fio stays until its last window is over.
        .args(["--exec_postrun=sleep 0.5", &format!("--filename={}", file.display())])
        .args(arguments)
        .current_dir(file.parent().ok_or("a file without a directory")?)
        .arg("--output=report.json")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = child.id();
    let report = file.with_file_name("report.json");
    let file = id(file)?;
    let mut sum = Sum::default();
    let mut windows = Vec::new();
    loop {
        let done = child.try_wait()?.is_some();
        let observed = observer.window(Duration::from_millis(100))?;
        sum.add(&observed, file, |t| t.pid == pid);
        windows.push(observed);
        if done {
            break;
        }
    }
    // fio may print some lines before the report.
    let text = std::fs::read_to_string(report)?;
    let json = text.find("\n{").and_then(|at| text.get(at..)).unwrap_or(&text);
    let report: serde_json::Value = serde_json::from_str(json).map_err(|e| format!("fio's report: {e}: {text}"))?;
    let job = &report["jobs"][0];
    ensure!(job["error"] == 0, "fio failed: {job}");
    let bytes = |way: &str| {
        report["jobs"].as_array().map_or(0, |jobs| jobs.iter().filter_map(|j| j[way]["io_bytes"].as_u64()).sum())
    };
    Ok((Fio { read: bytes("read"), written: bytes("write") }, sum, windows))
}

/// The work of one thread.
pub type Job<'a> = Box<dyn FnOnce() -> std::io::Result<()> + Send + 'a>;

/// The observation of one job.
#[derive(Debug, Default)]
pub struct Seen {
    pub tid: u32,
    /// The thread, if it was reported.
    pub thread: Option<ObservedThread>,
}

impl Seen {
    /// Its use of a file.
    pub fn of(&self, file: FileId) -> FileUse {
        let mut files = self.thread.iter().flat_map(|t| &t.thread.files);
        files.find(|used| used.file == file).cloned().unwrap_or_default()
    }

    pub fn read(&self, path: &Path) -> Tried<u64> {
        Ok(self.of(id(path)?).read_bytes.total())
    }

    pub fn written(&self, path: &Path) -> Tried<u64> {
        Ok(self.of(id(path)?).write_bytes.total())
    }
}

/// Runs each job in its own thread, all at once, within one window. The threads live until the
/// window is over.
pub fn watch(observer: &mut Observer, jobs: Vec<Job<'_>>) -> Tried<(Vec<Seen>, Observed)> {
    let n = jobs.len();
    let (start, worked, end) = (Barrier::new(n + 1), Barrier::new(n + 1), Barrier::new(n + 1));
    std::thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .into_iter()
            .map(|job| {
                scope.spawn(|| {
                    let tid = linux::threads::own_tid();
                    start.wait();
                    let result = job();
                    worked.wait();
                    end.wait();
                    result.map(|()| tid)
                })
            })
            .collect();
        // Reads by the start of the threads are in the window before.
        let before = observer.window(Duration::ZERO);
        start.wait();
        worked.wait();
        let observed = observer.window(Duration::from_millis(5));
        end.wait();
        let mut all = Vec::new();
        for thread in threads {
            let tid = thread.join().map_err(|_| "a job panicked")??;
            all.push(Seen { tid, thread: None });
        }
        before?;
        let observed = observed?;
        for seen in &mut all {
            seen.thread = observed.threads.iter().find(|t| t.thread.tid == seen.tid).cloned();
        }
        Ok((all, observed))
    })
}

/// [`watch`] for one job.
pub fn watch_one<'a>(
    observer: &mut Observer,
    job: impl FnOnce() -> std::io::Result<()> + Send + 'a,
) -> Tried<(Seen, Observed)> {
    let (mut seen, observed) = watch(observer, vec![Box::new(job)])?;
    Ok((seen.pop().ok_or("no job")?, observed))
}

/// Reads a whole file with preads of this size.
pub fn pread_all(path: &Path, size: usize) -> std::io::Result<()> {
    let file = File::open(path)?;
    let mut buffer = vec![0; size];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at)? {
            0 => return Ok(()),
            n => at += n as u64,
        }
    }
}

/// Whether all hooks count writes of the file's file system byte by byte: ext4 and xfs.
pub fn file_system_is_exact(path: &Path) -> Tried<bool> {
    let magic = rustix::fs::statfs(path)?.f_type as u64;
    Ok([0xEF53, 0x5846_5342].contains(&magic))
}
