//! Workloads as threads see them: one operation, over and over, each time as soon as the last one
//! is done.
//!
//! **Problem.** A benchmark is a program; a machine model needs the cost of one round of it, and
//! the bytes it touches.
//!
//! **Approach.** A [`Job`] has [`Role`]s of threads and [`FileSet`]s. A role's [`Operation`] gives
//! the CPU time of its software, the part of it that only one thread can run at a time, and the
//! bytes that it reads and writes in each file set. The benchmarks of the papers are built from
//! their published parameters: [`fio`], [`filebench`] (NThread Table III, Dragonfly Table II),
//! [`rocksdb`] (`db_bench`, NThread V-E), [`simpleread`] (thesis listing 5.1).
//!
//! **Limits.** Every round is the average round. A file set is one object, however many files it
//! has: which of them a round picks is a matter of chance only, and decides no more than whether
//! threads meet in one file.

pub mod filebench;
pub mod fio;
pub mod rocksdb;
pub mod simpleread;

use crate::filesystem::FileSystem;

/// One running program.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name, as in the scenario.
    pub name: String,
    /// File system its files are on.
    pub fs: FileSystem,
    /// Node index of the file system's device, for those that have one.
    pub device: usize,
    /// Its threads.
    pub roles: Vec<Role>,
    /// Its files.
    pub files: Vec<FileSet>,
    /// Bytes of memory of the process.
    pub process_bytes: f64,
    /// Seconds from the start of the process to its first operation.
    pub start_s: f64,
}

/// Identical threads of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// Name of its threads.
    pub comm: String,
    /// Number of threads.
    pub threads: u32,
    /// One round of each thread.
    pub op: Operation,
    /// Whether its operations count for the job's throughput.
    pub counts: bool,
    /// Operations after which a thread ends; none: never.
    pub limit: Option<f64>,
}

/// One round of a thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operation {
    /// CPU seconds of software, all of it.
    pub cpu_s: f64,
    /// Of that, what is done under the job's lock.
    pub serial_s: f64,
    /// Whether the media is written under the lock, too.
    pub serial_media: bool,
    /// Seconds asleep.
    pub off_s: f64,
    /// Operations that the benchmark itself counts in one round.
    pub counted: f64,
    /// Reads and writes.
    pub parts: Vec<Part>,
}

/// Reads and writes of one round in one file set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// Which file set of the job.
    pub files: usize,
    /// Bytes read.
    pub read: f64,
    /// Bytes written.
    pub write: f64,
    /// Of the bytes written, the file system's own.
    pub own: f64,
    /// Bytes per read call.
    pub call: f64,
    /// Whether reads go on where the last one ended.
    pub sequential: bool,
    /// Files of the set that are picked, where it has several.
    pub picks: f64,
}

/// Identical files with identical use.
#[derive(Clone, Debug, PartialEq)]
pub struct FileSet {
    /// Name, for output.
    pub name: String,
    /// Size when full, in bytes; per thread if `private`.
    pub size: f64,
    /// Size at the start, as a fraction of `size`.
    pub filled: f64,
    /// Whether each thread has its own.
    pub private: bool,
    /// Number of files, of which each round picks [some](Part::picks) at random.
    pub files: f64,
    /// Chance that another thread of the job reads the same data at the same time, so that one
    /// node's last-level cache can serve both (NThread III-D).
    pub together: f64,
    /// Where the bytes are at the start.
    pub place: Place,
}

/// Where a file set's bytes are at the start.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// On one node, by index; what does not fit there on the nearest others.
    Node(usize),
    /// Spread evenly over the nodes with memory.
    Spread,
    /// On the nodes where its threads start.
    Threads,
    /// These shares, by node index.
    Shares(Vec<f64>),
    /// It is a file of another job, which is started before: the job's position, and that of its
    /// file set. Not `private`.
    Same(usize, usize),
}

impl FileSet {
    /// One full file for all threads, of which no two read the same data at the same time.
    pub fn new(name: String, size: f64, place: Place) -> Self {
        Self { name, size, filled: 1.0, private: false, files: 1.0, together: 0.0, place }
    }
}

impl Job {
    /// Threads of all roles.
    pub fn threads(&self) -> u32 {
        self.roles.iter().map(|r| r.threads).sum()
    }

    /// Bytes of all its files.
    pub fn file_bytes(&self) -> f64 {
        let private = f64::from(self.threads());
        self.files.iter().map(|f| f.size * if f.private { private } else { 1.0 }).sum()
    }
}
