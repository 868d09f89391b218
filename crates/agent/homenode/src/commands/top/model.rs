//! Contents of `top`: nodes and threads of one window, sorted and filtered. No terminal here.

use std::collections::BTreeMap;

use placement::{NodeBytes, ObservedFile, Plan, Snapshot, Thread};
use serde::{Deserialize, Serialize};
use topology::NodeId;

use super::last_moves::{Copy, LastMoves};
use crate::cli::Sort;
use crate::commands::mounts::Mounted;
use crate::output::limits::Limits;
use crate::output::units::{count, percent, rate, seconds, size};
use crate::output::words;

/// Files of a volume that are shown, at most.
const MOST_FILES: usize = 20;

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Node id.
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

/// One thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadRow {
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Start time, nanoseconds since boot, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ns: Option<u64>,
    /// Name.
    pub comm: String,
    /// Node it runs on.
    pub node: NodeId,
    /// Its home node; absent where it read nothing.
    pub home: Option<NodeId>,
    /// Share of its file bytes read from another node; absent where it read nothing.
    pub remote_share: Option<f64>,
    /// File bytes read from another node, bytes/s.
    pub remote_bytes_per_s: f64,
    /// File bytes read, bytes/s.
    pub read_bytes_per_s: f64,
    /// File bytes written, bytes/s.
    pub write_bytes_per_s: f64,
    /// CPU use as a fraction of one CPU.
    pub cpu: f64,
    /// Its last move by a running homenode, from the journal.
    pub last_move: Option<String>,
    /// Why homenode leaves it alone.
    pub held: Option<String>,
}

/// One file of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileRow {
    /// File id: `major:minor:inode`.
    pub file: String,
    /// Its path, if it is known.
    #[serde(default)]
    pub path: Option<String>,
    /// Bytes of data on each node.
    pub bytes: NodeBytes,
    /// How many threads touched it.
    pub threads: usize,
    /// Share of the bytes read that was read from another node; absent where nothing was read.
    pub remote_share: Option<f64>,
    /// Bytes read from another node, bytes/s.
    pub remote_bytes_per_s: f64,
    /// Bytes read, bytes/s.
    pub read_bytes_per_s: f64,
    /// Bytes written, bytes/s.
    pub write_bytes_per_s: f64,
}

/// One window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Format version, 1.
    pub version: u32,
    /// Length in seconds.
    pub window_s: f64,
    /// Share of file bytes read from another node; absent where nothing was read.
    pub remote_share: Option<f64>,
    /// The nodes.
    pub nodes: Vec<NodeRow>,
    /// The threads that touched file data.
    pub threads: Vec<ThreadRow>,
    /// The files that were touched most, of a volume; none of a host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileRow>,
    /// The mounted volumes that homenode observes, of a host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Mounted>,
    /// Copies of a running homenode.
    pub copies: Vec<Copy>,
    /// Limits of this observation.
    pub notes: Vec<String>,
    /// The same as the text shows it.
    #[serde(skip)]
    pub shown_notes: Vec<String>,
    /// The first line: long, shorter, shortest.
    #[serde(skip)]
    pub headings: [String; 3],
}

impl Window {
    /// Builds the contents from a snapshot. `plan` is a policy's, whose forecast knows the load of nodes.
    pub fn new(snapshot: &Snapshot, plan: &Plan, last_moves: &LastMoves, limits: &Limits) -> Self {
        let per_s = |bytes: u64| if snapshot.window_s > 0.0 { bytes as f64 / snapshot.window_s } else { 0.0 };
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
        let thread = |t: &Thread| {
            let read = t.read_bytes.total();
            let remote = t.remote_bytes();
            ThreadRow {
                tid: t.tid,
                pid: t.pid,
                start_ns: t.start_ns,
                comm: t.comm.clone(),
                node: t.node,
                home: t.home(),
                remote_share: (read > 0).then(|| remote as f64 / read as f64),
                remote_bytes_per_s: per_s(remote),
                read_bytes_per_s: per_s(read),
                write_bytes_per_s: per_s(t.write_bytes.total()),
                cpu: if snapshot.window_s > 0.0 { t.cpu_s / snapshot.window_s } else { 0.0 },
                last_move: last_moves.of(t.tid, t.start_ns),
                held: t.held.clone(),
            }
        };
        Self {
            version: 1,
            window_s: snapshot.window_s,
            remote_share: snapshot.remote_share(),
            nodes,
            threads: snapshot.threads.iter().map(thread).collect(),
            files: Vec::new(),
            volumes: Vec::new(),
            copies: last_moves.copies().to_vec(),
            notes: snapshot.notes.clone(),
            shown_notes: limits.lines(&snapshot.notes),
            headings: [
                words::window(snapshot),
                words::read_summary(snapshot),
                format!("remote share {}", or_dash(snapshot.remote_share(), percent)),
            ],
        }
    }

    /// Builds the contents from a snapshot of a volume. Its journal knows moves and copies.
    pub fn of_volume(snapshot: &Snapshot, plan: &Plan) -> Self {
        let mut window = Self::new(snapshot, plan, &LastMoves::default(), &Limits::recorded(1));
        // Bytes read, of these from another node, and bytes written, of each file.
        let mut sums: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
        for thread in &snapshot.threads {
            for used in &thread.files {
                let [read, remote, written] = sums.entry(&used.file).or_default();
                *read += used.read_bytes.total();
                *remote += used.read_bytes.total() - used.read_bytes.get(thread.node);
                *written += used.write_bytes.total();
            }
        }
        let per_s = |bytes: u64| if snapshot.window_s > 0.0 { bytes as f64 / snapshot.window_s } else { 0.0 };
        let row = |file: &ObservedFile| {
            let [read, remote, written] = sums.get(file.file.as_str()).copied().unwrap_or_default();
            FileRow {
                file: file.file.clone(),
                path: file.path.clone(),
                bytes: file.bytes.clone(),
                threads: file.readers.len(),
                remote_share: (read > 0).then(|| remote as f64 / read as f64),
                remote_bytes_per_s: per_s(remote),
                read_bytes_per_s: per_s(read),
                write_bytes_per_s: per_s(written),
            }
        };
        window.files = snapshot.files.iter().map(row).collect();
        let touched = |f: &FileRow| f.read_bytes_per_s + f.write_bytes_per_s;
        window.files.sort_by(|a, b| touched(b).total_cmp(&touched(a)).then_with(|| a.file.cmp(&b.file)));
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

    /// `4 threads read 3.4 MB/s, 11 % remote`.
    fn summary(&self) -> String {
        let read = rate(self.threads.iter().map(|t| t.read_bytes_per_s).sum());
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

    /// Sorts the threads, largest (or for names, nodes and ids: first) on top; equal ones by bytes and tid, so
    /// that rows do not jump.
    pub fn sort(&mut self, by: Sort, reverse: bool) {
        self.volumes.iter_mut().for_each(|volume| volume.window.sort(by, reverse));
        let falling = |a: f64, b: f64| b.total_cmp(&a);
        self.threads.sort_by(|a, b| {
            let order = match by {
                Sort::Remote => falling(a.remote_bytes_per_s, b.remote_bytes_per_s),
                Sort::Share => falling(a.remote_share.unwrap_or(-1.0), b.remote_share.unwrap_or(-1.0)),
                Sort::Bytes => falling(a.bytes_per_s(), b.bytes_per_s()),
                Sort::Cpu => falling(a.cpu, b.cpu),
                Sort::Node => a.node.cmp(&b.node),
                Sort::Tid => a.tid.cmp(&b.tid),
                Sort::Name => a.comm.cmp(&b.comm),
            };
            let order = order.then(falling(a.bytes_per_s(), b.bytes_per_s())).then(a.tid.cmp(&b.tid));
            if reverse { order.reverse() } else { order }
        });
    }

    /// Keeps the threads whose name, tid or pid contains the text; unless `all`, only those that touched file data.
    pub fn filter(&mut self, all: bool, text: &str) {
        self.volumes.iter_mut().for_each(|volume| volume.window.filter(all, text));
        self.threads.retain(|t| (all || t.bytes_per_s() > 0.0) && t.matches(text));
    }
}

impl ThreadRow {
    fn bytes_per_s(&self) -> f64 {
        self.read_bytes_per_s + self.write_bytes_per_s
    }

    fn matches(&self, text: &str) -> bool {
        text.is_empty()
            || self.comm.contains(text)
            || self.tid.to_string().contains(text)
            || self.pid.to_string().contains(text)
    }
}

/// A column of a table.
pub struct Column<R> {
    /// Head; `>` stands before heads of figures.
    pub head: &'static str,
    /// Width in the live view.
    pub width: u16,
    /// Which columns go first when the terminal is narrow: the highest.
    pub expendable: u8,
    /// The cell's text.
    pub cell: fn(&R) -> String,
}

/// Columns of the node table.
pub const NODE_COLUMNS: [Column<NodeRow>; 7] = [
    Column { head: ">node", width: 4, expendable: 0, cell: |n| n.node.to_string() },
    Column { head: ">CPUs", width: 5, expendable: 5, cell: |n| n.cpus.to_string() },
    Column { head: ">CPU", width: 6, expendable: 0, cell: |n| or_dash(n.cpu, percent) },
    Column { head: ">controller", width: 10, expendable: 2, cell: |n| or_dash(n.controller, percent) },
    Column { head: ">read", width: 10, expendable: 0, cell: |n| rate(n.read_bytes_per_s) },
    Column { head: ">written", width: 10, expendable: 3, cell: |n| rate(n.write_bytes_per_s) },
    Column { head: ">free memory", width: 11, expendable: 4, cell: |n| size(n.memory_free) },
];

/// Columns of the thread table.
pub const THREAD_COLUMNS: [Column<ThreadRow>; 10] = [
    Column { head: ">tid", width: 7, expendable: 1, cell: |t| t.tid.to_string() },
    Column { head: ">pid", width: 7, expendable: 8, cell: |t| t.pid.to_string() },
    Column { head: "name", width: 15, expendable: 0, cell: |t| t.comm.clone() },
    Column { head: ">node", width: 4, expendable: 2, cell: |t| t.node.to_string() },
    Column { head: ">home", width: 4, expendable: 2, cell: |t| or_dash(t.home, |n| n.to_string()) },
    Column { head: ">remote", width: 6, expendable: 0, cell: |t| or_dash(t.remote_share, percent) },
    Column { head: ">read", width: 10, expendable: 3, cell: |t| rate(t.read_bytes_per_s) },
    Column { head: ">written", width: 10, expendable: 6, cell: |t| rate(t.write_bytes_per_s) },
    Column { head: ">CPU", width: 6, expendable: 4, cell: |t| percent(t.cpu) },
    Column { head: "last move", width: 15, expendable: 5, cell: last_move },
];

/// Most characters of a file's name.
const NAME: u16 = 24;

/// Columns of the table of files.
pub const FILE_COLUMNS: [Column<FileRow>; 6] = [
    Column { head: "file", width: NAME, expendable: 0, cell: name },
    Column { head: ">threads", width: 7, expendable: 2, cell: |f| f.threads.to_string() },
    Column { head: ">remote", width: 6, expendable: 0, cell: |f| or_dash(f.remote_share, percent) },
    Column { head: ">read", width: 10, expendable: 1, cell: |f| rate(f.read_bytes_per_s) },
    Column { head: ">written", width: 10, expendable: 3, cell: |f| rate(f.write_bytes_per_s) },
    Column { head: "data", width: 15, expendable: 0, cell: data },
];

/// The last [`NAME`] characters of the path, or the id.
fn name(file: &FileRow) -> String {
    let Some(path) = &file.path else { return file.file.clone() };
    let cut = path.chars().count().saturating_sub(NAME.into());
    if cut == 0 { path.clone() } else { format!("…{}", path.chars().skip(cut + 1).collect::<String>()) }
}

/// `4.0 MiB on 0, 1.0 MiB on 1`.
fn data(file: &FileRow) -> String {
    let on = |(node, bytes)| format!("{} on {node}", size(bytes));
    file.bytes.iter().map(on).collect::<Vec<_>>().join(", ")
}

fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or("-".to_owned(), show)
}

fn last_move(thread: &ThreadRow) -> String {
    match (&thread.last_move, &thread.held) {
        (Some(mv), _) => mv.clone(),
        (None, Some(held)) => format!("left alone: {held}"),
        (None, None) => "-".to_owned(),
    }
}
