//! A volume, its mount, and a process of its own that serves it: this program again, so that it can
//! be killed and stopped.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fs::medium::{Mapped, Medium, RegionFile};
use fs::{Layout, Volume};
use mount::{Cache, Options, Unmounted};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testing::{Case, Tried, cases, mounting, need, skip};

/// Longest time that a process between fork and exec, or a server with something to do, can be
/// thought to take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Set: all mounts are served by io_uring.
const RING: &str = "HOMENODE_TEST_RING";

/// Whether mounts are served by io_uring.
pub fn rings() -> bool {
    std::env::var_os(RING).is_some()
}

pub const CASES: &[Case] = cases![[mounting(), ring()] all_of_this_holds_by_io_uring];

/// Runs all tests once more, with mounts that are served by io_uring.
fn all_of_this_holds_by_io_uring() {
    let run = Command::new(std::env::current_exe().unwrap()).arg("--test-threads=2").env(RING, "1").output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
}

/// Needs a kernel that serves mounts by io_uring, and that this is not such a run already.
fn ring() -> Tried {
    let switch = "/sys/module/fuse/parameters/enable_uring";
    need(!rings(), "this is that run")?;
    match std::fs::read_to_string(switch) {
        Ok(on) => need(on.trim() == "Y", "fuse.enable_uring is off"),
        Err(error) => skip(format!("{switch}: {error}")),
    }
}

/// Serves a volume until somebody unmounts it, or closes our stdin.
pub fn be_server(args: &[String]) {
    let [cache, dir, regions @ ..] = args else { panic!("CACHE DIR REGION...") };
    let cache = match cache.as_str() {
        "direct" => Cache::Direct,
        "writeback" => Cache::Writeback,
        _ => Cache::Kernel,
    };
    let volume = Volume::mount(Box::new(map(regions)), fs::Options::default()).unwrap();
    let volume = Arc::new(volume);
    let ring = rings();
    let options = Options { source: "test".to_owned(), cache, ring, ..Options::default() };
    let session = Arc::new(mount::serve(Arc::clone(&volume), Path::new(dir), &options).unwrap());
    assert_eq!(session.by_ring(), ring);
    println!("mounted");
    let stopper = Arc::clone(&session);
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        if stopper.unmount().unwrap() == Unmounted::Busy {
            println!("busy");
        }
    });
    session.wait().unwrap();
    Arc::into_inner(volume).unwrap().unmount().unwrap();
    println!("ended");
}

fn map(regions: &[impl AsRef<Path>]) -> Mapped {
    let begin = Instant::now();
    loop {
        match Mapped::new(&regions.iter().map(|path| region(path.as_ref())).collect::<Vec<_>>()) {
            // A process that another test forks has our files until it execs.
            Err(fs::Error::InUse) if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(1)),
            mapped => return mapped.unwrap(),
        }
    }
}

fn region(path: &Path) -> RegionFile {
    RegionFile { file: OpenOptions::new().read(true).write(true).open(path).unwrap(), bind: None }
}

/// A mounted volume in memory.
pub struct Mount {
    regions: Vec<PathBuf>,
    cache: Cache,
    server: Option<(Child, BufReader<std::process::ChildStdout>)>,
    dir: PathBuf,
    _place: TempDir,
}

impl Mount {
    /// Makes and mounts a volume of two regions, of so many MiB each.
    pub fn new(cache: Cache, mib: u64) -> Self {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let regions: Vec<_> = (0..2).map(|i| place.path().join(format!("region{i}"))).collect();
        for region in &regions {
            File::create(region).unwrap().set_len(mib << 20).unwrap();
        }
        let layout = Layout { volume: [7; 16], nodes: vec![Some(0), Some(1)], journals: 2, ..Layout::default() };
        fs::mkfs(Box::new(map(&regions)) as Box<dyn Medium>, &layout).unwrap();
        let dir = place.path().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        let mut this = Self { regions, cache, server: None, dir, _place: place };
        this.start();
        this
    }

    /// Starts a server.
    pub fn start(&mut self) {
        let cache = match self.cache {
            Cache::Direct => "direct",
            Cache::Writeback => "writeback",
            Cache::Kernel => "kernel",
        };
        let mut server = testing::myself("server")
            .arg(cache)
            .arg(&self.dir)
            .args(&self.regions)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(server.stdout.take().unwrap());
        self.server = Some((server, out));
        assert_eq!(self.says(), "mounted");
    }

    /// The next line that the server writes.
    pub fn says(&mut self) -> String {
        let mut line = String::new();
        self.server.as_mut().unwrap().1.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The root directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The server's process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.server.as_ref().unwrap().0)
    }

    /// Calls by which the server has read and written until now (proc_pid_io(5)).
    pub fn calls(&self) -> [u64; 2] {
        let text = std::fs::read_to_string(format!("/proc/{}/io", self.pid().as_raw_nonzero())).unwrap();
        ["syscr: ", "syscw: "].map(|name| text.lines().find_map(|l| l.strip_prefix(name)).unwrap().parse().unwrap())
    }

    /// Memory of the server that is not the volume's: RssAnon, in bytes (proc_pid_status(5)).
    pub fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid().as_raw_nonzero())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// Sends the server a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Stops the server, and waits until each of its threads has stopped: the signal alone does not
    /// wait.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid().as_raw_nonzero());
        let stopped = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        while !std::fs::read_dir(&tasks).unwrap().all(|task| stopped(task.unwrap())) {
            std::thread::yield_now();
        }
    }

    /// Kills the server. The dead mount stays.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.server.take().unwrap().0.wait().unwrap();
    }

    /// Takes the dead mount away, checks the volume, and mounts it again.
    pub fn recover(&mut self) {
        unmount(&self.dir, UnmountFlags::DETACH).unwrap();
        self.check();
        self.start();
    }

    /// Asks the server to unmount. It says what came of that.
    pub fn ask_to_unmount(&mut self) {
        drop(self.server.as_mut().unwrap().0.stdin.take());
    }

    /// Unmounts, and checks the volume.
    pub fn end(mut self) {
        self.ask_to_unmount();
        self.ended();
    }

    /// Waits for the end of the server, and checks the volume.
    pub fn ended(&mut self) {
        // A process that another test forks has our files until it execs.
        while self.says() == "busy" {}
        assert!(self.server.take().unwrap().0.wait().unwrap().success());
        self.check();
    }

    /// Checks the volume, which is not mounted.
    pub fn check(&self) {
        let report = fs::fsck::check(Box::new(map(&self.regions))).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some((mut server, _)) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
            let _ = unmount(&self.dir, UnmountFlags::DETACH);
        }
    }
}
