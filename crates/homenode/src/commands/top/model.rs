//! Contents of `top`: nodes and threads of one window, sorted and filtered. No terminal here.

use placement::{Plan, Snapshot, Thread};
use serde::Serialize;
use topology::NodeId;

use super::last_moves::{Copy, LastMoves};
use crate::cli::Sort;
use crate::output::limits::Limits;
use crate::output::units::{percent, rate, size};
use crate::output::words;

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadRow {
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
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

/// One window.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
                comm: t.comm.clone(),
                node: t.node,
                home: t.home(),
                remote_share: (read > 0).then(|| remote as f64 / read as f64),
                remote_bytes_per_s: per_s(remote),
                read_bytes_per_s: per_s(read),
                write_bytes_per_s: per_s(t.write_bytes.total()),
                cpu: if snapshot.window_s > 0.0 { t.cpu_s / snapshot.window_s } else { 0.0 },
                last_move: last_moves.of(t),
                held: t.held.clone(),
            }
        };
        Self {
            version: 1,
            window_s: snapshot.window_s,
            remote_share: snapshot.remote_share(),
            nodes,
            threads: snapshot.threads.iter().map(thread).collect(),
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

    /// Sorts the threads, largest (or for names, nodes and ids: first) on top; equal ones by bytes and tid, so
    /// that rows do not jump.
    pub fn sort(&mut self, by: Sort, reverse: bool) {
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
