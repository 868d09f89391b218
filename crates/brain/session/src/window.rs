//! The contents of one window, as `top` shows them and as the server of a mount publishes them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use command::output::limits::Limits;
use command::output::units::{count, percent, rate, seconds, size};
use command::output::words;
use engine::Cost;
use placement::flow::Sums;
use placement::{NodeBytes, ObservedFile, Plan, Snapshot, Thread};
use serde::{Deserialize, Serialize};
use topology::{FileId, NodeId};

use crate::services::Names;

/// Files of a volume that are shown, at most.
const MOST_FILES: usize = 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    pub node: NodeId,
    /// How many CPUs it has online.
    pub cpus: usize,
    /// CPU use as a fraction of its CPUs; absent for a node without CPUs.
    pub cpu: Option<f64>,
    /// Controller load as a fraction of its capacity; absent where the capacity is not known.
    pub controller: Option<f64>,
    /// File bytes read from its memory, bytes/s.
    pub read_bytes_per_s: f64,
    /// File bytes written to its memory, bytes/s.
    pub write_bytes_per_s: f64,
    /// Free memory, bytes.
    pub memory_free: u64,
}

/// File bytes of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Share of the bytes read from another node; absent where nothing was read.
    pub remote_share: Option<f64>,
    /// Read from another node, bytes/s.
    pub remote_bytes_per_s: f64,
    pub read_bytes_per_s: f64,
    pub write_bytes_per_s: f64,
}

impl Rates {
    pub(crate) fn of(sums: &Sums, window_s: f64) -> Self {
        Self {
            remote_share: sums.remote_share(),
            remote_bytes_per_s: per_s(sums.remote_bytes, window_s),
            read_bytes_per_s: per_s(sums.read_bytes, window_s),
            write_bytes_per_s: per_s(sums.write_bytes, window_s),
        }
    }

    fn add(&mut self, more: &Self) {
        self.remote_bytes_per_s += more.remote_bytes_per_s;
        self.read_bytes_per_s += more.read_bytes_per_s;
        self.write_bytes_per_s += more.write_bytes_per_s;
        self.remote_share = (self.read_bytes_per_s > 0.0).then(|| self.remote_bytes_per_s / self.read_bytes_per_s);
    }

    /// Read and written, bytes/s.
    pub fn touched(&self) -> f64 {
        self.read_bytes_per_s + self.write_bytes_per_s
    }
}

fn per_s(bytes: u64, window_s: f64) -> f64 {
    if window_s > 0.0 { bytes as f64 / window_s } else { 0.0 }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadRow {
    pub tid: u32,
    pub pid: u32,
    /// Start time, nanoseconds since boot, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ns: Option<u64>,
    pub comm: String,
    pub node: NodeId,
    /// Its home node; absent where it read nothing.
    pub home: Option<NodeId>,
    #[serde(flatten)]
    pub rates: Rates,
    /// CPU use as a fraction of one CPU.
    pub cpu: f64,
    /// The rule of homenode.toml that applies to it; absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Arc<str>>,
    /// Its last move by a running homenode, from the journal.
    pub last_move: Option<String>,
    /// Why homenode leaves it alone.
    #[serde(alias = "held")]
    pub pinned: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceRow {
    /// Its name ([`crate::services::name`]); empty if it is not known.
    pub service: String,
    pub processes: usize,
    pub threads: usize,
    pub nodes: Vec<NodeId>,
    /// The rules of homenode.toml that apply to its threads.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rules: BTreeSet<Arc<str>>,
    #[serde(flatten)]
    pub rates: Rates,
    /// Share that would be local if each thread ran at its home node; absent where nothing was
    /// read.
    pub could_be_local_share: Option<f64>,
    /// CPU use of these threads, in CPUs.
    pub cpu: f64,
}

pub fn service_rows(snapshot: &Snapshot) -> Vec<ServiceRow> {
    let mut names = Names::default();
    let mut services: BTreeMap<Option<Arc<str>>, Vec<&Thread>> = BTreeMap::new();
    for thread in snapshot.touched().filter(|thread| thread.file_bytes() > 0) {
        services.entry(thread.group.as_ref().map(|group| names.of(group))).or_default().push(thread);
    }
    let row = |(service, threads): (Option<Arc<str>>, Vec<&Thread>)| {
        let mut sums = Sums::default();
        threads.iter().for_each(|thread| sums.add(Sums::of_thread(thread)));
        let listed = || threads.iter().filter(|thread| thread.tid != 0);
        ServiceRow {
            service: service.map_or_else(String::new, |service| service.to_string()),
            processes: listed().map(|thread| thread.pid).collect::<BTreeSet<u32>>().len(),
            threads: listed().count(),
            nodes: threads.iter().map(|thread| thread.node).collect::<BTreeSet<NodeId>>().into_iter().collect(),
            rules: threads.iter().filter_map(|thread| thread.rule.clone()).collect(),
            rates: Rates::of(&sums, snapshot.window_s),
            could_be_local_share: sums.could_be_local_share(),
            cpu: match snapshot.window_s {
                s if s > 0.0 => threads.iter().map(|thread| thread.cpu_s).sum::<f64>() / s,
                _ => 0.0,
            },
        }
    };
    services.into_iter().map(row).collect()
}

/// Threads that are listed, by process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessRow {
    pub pid: u32,
    /// Name of its first thread; of the one that touched most, where the first is not listed.
    pub comm: String,
    pub threads: usize,
    /// Where its threads run.
    pub nodes: BTreeSet<NodeId>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rules: BTreeSet<Arc<str>>,
    #[serde(flatten)]
    pub rates: Rates,
    /// CPU use of these threads, in CPUs.
    pub cpu: f64,
}

pub fn process_rows(threads: &[ThreadRow]) -> Vec<ProcessRow> {
    let mut rows: BTreeMap<u32, (ProcessRow, f64)> = BTreeMap::new();
    for thread in threads {
        let (row, most) =
            rows.entry(thread.pid).or_insert_with(|| (ProcessRow { pid: thread.pid, ..ProcessRow::default() }, -1.0));
        let touched = if thread.tid == thread.pid { f64::INFINITY } else { thread.rates.touched() };
        if touched > *most {
            (row.comm, *most) = (thread.comm.clone(), touched);
        }
        row.threads += 1;
        row.nodes.insert(thread.node);
        row.rules.extend(thread.rule.clone());
        row.rates.add(&thread.rates);
        row.cpu += thread.cpu;
    }
    rows.into_values().map(|(row, _)| row).collect()
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileRow {
    /// File id: `major:minor:inode`.
    pub file: FileId,
    /// Its path, if it is known.
    #[serde(default)]
    pub path: Option<String>,
    /// Bytes of data on each node.
    pub bytes: NodeBytes,
    /// Bytes read in the window, by the node of the data.
    #[serde(default, skip_serializing_if = "NodeBytes::is_empty")]
    pub read: NodeBytes,
    pub threads: usize,
    #[serde(flatten)]
    pub rates: Rates,
}

/// What these threads touched of each file, most bytes first.
pub fn file_rows<'a>(snapshot: &Snapshot, threads: impl Iterator<Item = &'a Thread>) -> Vec<FileRow> {
    let mut sums: BTreeMap<FileId, (Sums, NodeBytes, usize)> = BTreeMap::new();
    for thread in threads {
        for used in &thread.files {
            let (sums, read, threads) = sums.entry(used.file).or_default();
            sums.add(Sums::of_use(thread, used));
            used.read_bytes.iter().for_each(|(node, bytes)| read.add(node, bytes));
            *threads += 1;
        }
    }
    let known: BTreeMap<FileId, &ObservedFile> = snapshot.files.iter().map(|file| (file.file, file)).collect();
    let row = |(file, (sums, read, threads)): (FileId, (Sums, NodeBytes, usize))| FileRow {
        file,
        path: known.get(&file).and_then(|known| known.path.clone()),
        bytes: known.get(&file).map(|known| known.bytes.clone()).unwrap_or_default(),
        read,
        threads,
        rates: Rates::of(&sums, snapshot.window_s),
    };
    let mut rows: Vec<_> = sums.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.rates.touched().total_cmp(&a.rates.touched()).then_with(|| a.file.cmp(&b.file)));
    rows
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Format version, 1.
    pub version: u32,
    /// Length in seconds.
    pub window_s: f64,
    /// Share of file bytes read from another node; absent where nothing was read.
    pub remote_share: Option<f64>,
    pub nodes: Vec<NodeRow>,
    pub threads: Vec<ThreadRow>,
    /// The services that touched file data; absent unless they are asked for, and of a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Vec<ServiceRow>>,
    /// The processes of the threads; absent unless they are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<ProcessRow>>,
    /// What observing costs; absent of a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The files that were touched most, of a volume; none of a host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileRow>,
    /// The mounted volumes that homenode observes, of a host.
    #[serde(default)]
    pub volumes: Vec<Mounted>,
    /// Copies of a running homenode.
    pub copies: Vec<Copy>,
    /// Of the history: when it ended, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_s: Option<f64>,
    /// Limits of this observation.
    pub notes: Vec<String>,
    #[serde(skip)]
    pub shown_notes: Vec<String>,
    /// The first line: long, shorter, shortest.
    #[serde(skip)]
    pub headings: [String; 3],
}

impl Window {
    /// Builds the contents from a snapshot. `plan` is a policy's: its forecast has the load of
    /// nodes.
    pub fn new(snapshot: &Snapshot, plan: &Plan, limits: &Limits) -> Self {
        let per_s = |bytes| per_s(bytes, snapshot.window_s);
        let forecasts = plan.predicted.as_ref().map_or(&[][..], |p| &p.nodes);
        let forecast = |node| forecasts.iter().find(|f| f.node == node);
        let nodes = snapshot
            .nodes
            .iter()
            .map(|node| NodeRow {
                node: node.id,
                cpus: node.cpus.len(),
                cpu: forecast(node.id).and_then(|f| f.cpu_before),
                controller: forecast(node.id).and_then(|f| f.controller_before),
                read_bytes_per_s: per_s(node.read_bytes),
                write_bytes_per_s: per_s(node.write_bytes),
                memory_free: node.memory_free,
            })
            .collect();
        let thread = |t: &Thread| ThreadRow {
            tid: t.tid,
            pid: t.pid,
            start_ns: t.start_ns,
            comm: t.comm.clone(),
            node: t.node,
            home: t.home(),
            rates: Rates::of(&Sums::of_thread(t), snapshot.window_s),
            cpu: if snapshot.window_s > 0.0 { t.cpu_s / snapshot.window_s } else { 0.0 },
            rule: t.rule.clone(),
            last_move: None,
            pinned: t.pinned.clone(),
        };
        Self {
            version: 1,
            window_s: snapshot.window_s,
            remote_share: snapshot.remote_share(),
            nodes,
            threads: snapshot.threads.iter().map(thread).collect(),
            notes: snapshot.notes.clone(),
            shown_notes: limits.lines(&snapshot.notes),
            headings: [
                words::window(snapshot),
                words::read_summary(snapshot),
                format!("remote share {}", snapshot.remote_share().map_or("-".to_owned(), percent)),
            ],
            ..Self::default()
        }
    }

    /// Builds the contents from a snapshot of a volume. Its journal knows moves and copies.
    pub fn of_volume(snapshot: &Snapshot, plan: &Plan) -> Self {
        let mut window = Self::new(snapshot, plan, &Limits::recorded(1));
        window.files = file_rows(snapshot, snapshot.threads.iter());
        window.files.truncate(MOST_FILES);
        window
    }

    /// The window of a mount, as the view shows it.
    pub fn of_mount(mounted: &Mounted) -> Self {
        let mut window = mounted.window.clone();
        let (name, summary) = (mounted.name(), window.summary());
        window.headings =
            [format!("{name} · window {} · {summary}", seconds(window.window_s)), format!("{name} · {summary}"), name];
        window.shown_notes.clone_from(&window.notes);
        window
    }

    /// `top itself: 0.4 % of a CPU, 31.2 MiB`.
    pub fn own_cost(&self) -> Option<String> {
        let Cost { cpu, memory_bytes } = self.cost?;
        Some(format!("top itself: {:.1} % of a CPU, {}", cpu * 100.0, size(memory_bytes)))
    }

    /// `4 threads read 3.4 MB/s, 11 % remote`.
    fn summary(&self) -> String {
        let read = rate(self.threads.iter().map(|t| t.rates.read_bytes_per_s).sum());
        let share = self.remote_share.map_or(String::new(), |share| format!(", {} remote", percent(share)));
        format!("{} read {read}{share}", count(self.threads.len(), "thread"))
    }

    /// What is below the nodes: copies, then the volumes in a line each.
    pub fn lines(&self) -> Vec<String> {
        let volume = |mounted: &Mounted| {
            let copies = match mounted.window.copies.len() {
                0 => String::new(),
                n => format!(", {n} being copied"),
            };
            format!("{} · {}{copies}", mounted.name(), mounted.window.summary())
        };
        self.copies.iter().map(Copy::line).chain(self.volumes.iter().map(volume)).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Copy {
    /// Subject of the copy: a file or a process.
    pub name: String,
    pub from: NodeId,
    pub to: NodeId,
    /// Bytes to copy; 0 before the first tenth is done.
    pub bytes: u64,
    /// Of these, copied.
    pub done: u64,
    /// Bytes that could not be moved.
    pub failed: u64,
}

impl Copy {
    /// `copying file /db/x: node 0 → 1, 50.0 MB of 256.0 MB`.
    pub fn line(&self) -> String {
        let left = if self.failed > 0 { format!(", {} left behind", size(self.failed)) } else { String::new() };
        let far = match self.bytes {
            0 => "begun".to_owned(),
            bytes => format!("{} of {}{left}", size(self.done), size(bytes)),
        };
        format!("copying {}: {}, {far}", self.name, words::direction(self.from, self.to))
    }
}

/// A server that has published nothing for this many windows, and [`SLACK_S`], is late.
const LATE_WINDOWS: f64 = 2.0;
/// Seconds that a decision may take.
const SLACK_S: f64 = 2.0;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mounted {
    /// Format version, 1.
    pub version: u32,
    pub mount: PathBuf,
    pub pid: u32,
    pub policy: String,
    /// Label of emulated memory; absent for real memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated: Option<String>,
    /// Seconds since the window ended; 0 while it is written.
    #[serde(default)]
    pub age_s: f64,
    /// The boot in which the window was written, and when, in seconds since then; only in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<(String, f64)>,
    pub window: Window,
}

impl Mounted {
    /// `volume /data · policy nthread · emulated optane, scale 200`.
    pub fn name(&self) -> String {
        let emulated = self.emulated.as_ref().map_or(String::new(), |label| format!(" · {label}"));
        let late = self.age_s > LATE_WINDOWS * self.window.window_s + SLACK_S;
        let late = if late { format!(" · silent for {}", seconds(self.age_s)) } else { String::new() };
        format!("volume {} · policy {}{emulated}{late}", self.mount.display(), self.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up_by_the_service_of_their_process() {
        let groups = [None, Some("/system.slice/db.service"), Some("/system.slice/db.service/worker"), Some("/other")];
        let thread = |pid: u32, node: u32, read: &[(u32, u64)]| Thread {
            tid: 10 * pid,
            pid,
            node: NodeId(node),
            cpu_s: 0.5,
            rule: (pid == 2).then(|| "db".into()),
            group: groups.get(pid as usize).copied().flatten().map(Into::into),
            allowed_nodes: vec![NodeId(0), NodeId(1)],
            read_bytes: read.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect(),
            ..Thread::default()
        };
        let threads = vec![
            thread(1, 0, &[(0, 100), (1, 300)]),
            thread(1, 1, &[(1, 200)]),
            thread(2, 1, &[(0, 200)]),
            thread(3, 0, &[]),
            thread(4, 0, &[(0, 7)]),
        ];
        let gone = Thread { tid: 0, pid: 0, cpu_s: 0.0, ..thread(3, 1, &[(1, 9)]) };
        let snapshot = Snapshot { window_s: 2.0, threads, ended: vec![gone], ..Snapshot::default() };
        // Services that were asked for are there, even without a row.
        let json = |services| serde_json::to_string(&Window { services, ..Window::default() }).unwrap();
        assert!(json(Some(Vec::new())).contains("\"services\":[]") && !json(None).contains("services"));
        let rows = service_rows(&snapshot);
        // Of process 4 nobody knows the group; process 3 touched nothing, others of its group have.
        assert_eq!(rows.iter().map(|row| row.service.as_str()).collect::<Vec<_>>(), ["", "/other", "db.service"]);
        let (other, db) = (&rows[1], &rows[2]);
        assert_eq!((other.processes, other.threads, other.rates.read_bytes_per_s), (0, 0, 4.5));
        assert_eq!((db.processes, db.threads, &db.nodes[..]), (2, 3, &[NodeId(0), NodeId(1)][..]));
        assert_eq!(db.rules.iter().map(|rule| &**rule).collect::<Vec<_>>(), ["db"]);
        assert!(other.rules.is_empty());
        assert_eq!((db.rates.read_bytes_per_s, db.rates.remote_bytes_per_s, db.cpu), (400.0, 250.0, 0.75));
        assert_eq!((db.rates.remote_share, db.could_be_local_share), (Some(500.0 / 800.0), Some(400.0 / 800.0)));
    }
}
