//! Contents of `top`: nodes and rows of one window, sorted and filtered. No terminal here.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use clap::ValueEnum;
use command::output::table::Table;
use command::output::units::{percent, rate, size};
use session::window::{FileRow, NodeRow, ProcessRow, Rates, ServiceRow, ThreadRow, Window};

/// What a row of `top` is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// A thread
    #[default]
    Thread,
    /// A process: its threads together
    Process,
    /// A service: the threads of a systemd unit, a container or a pod together
    Service,
}

/// Columns that `top` sorts by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Bytes/s read from another node
    #[default]
    Remote,
    /// Share of file bytes read from another node
    Share,
    /// File bytes read and written
    Bytes,
    /// CPU use
    Cpu,
    /// Node the thread runs on
    Node,
    /// Thread id
    Tid,
    /// Name
    Name,
}

/// Sorts the rows, largest (or for names, nodes and ids: first) on top; equal ones by bytes and
/// id, so that rows do not jump.
pub fn sort(window: &mut Window, by: Sort, reverse: bool) {
    window.volumes.iter_mut().for_each(|volume| sort(&mut volume.window, by, reverse));
    window.threads.sort_by(|a, b| {
        let order = match by {
            Sort::Cpu => b.cpu.total_cmp(&a.cpu),
            Sort::Node => a.node.cmp(&b.node),
            Sort::Tid => a.tid.cmp(&b.tid),
            Sort::Name => a.comm.cmp(&b.comm),
            _ => by_bytes(&a.rates, &b.rates, by),
        };
        let order = order.then(by_bytes(&a.rates, &b.rates, Sort::Bytes)).then(a.tid.cmp(&b.tid));
        if reverse { order.reverse() } else { order }
    });
    window.processes.as_deref_mut().unwrap_or_default().sort_by(|a, b| {
        let order = match by {
            Sort::Cpu => b.cpu.total_cmp(&a.cpu),
            Sort::Node => a.nodes.cmp(&b.nodes),
            Sort::Tid => a.pid.cmp(&b.pid),
            Sort::Name => a.comm.cmp(&b.comm),
            _ => by_bytes(&a.rates, &b.rates, by),
        };
        let order = order.then(by_bytes(&a.rates, &b.rates, Sort::Bytes)).then(a.pid.cmp(&b.pid));
        if reverse { order.reverse() } else { order }
    });
    window.services.as_deref_mut().unwrap_or_default().sort_by(|a, b| {
        let order = match by {
            Sort::Cpu => b.cpu.total_cmp(&a.cpu),
            Sort::Node => a.nodes.cmp(&b.nodes),
            Sort::Name => a.service.cmp(&b.service),
            // A service has no thread id.
            _ => by_bytes(&a.rates, &b.rates, by),
        };
        let order = order.then(by_bytes(&a.rates, &b.rates, Sort::Bytes)).then(a.service.cmp(&b.service));
        if reverse { order.reverse() } else { order }
    });
}

/// By falling bytes: remote ones, their share, or all.
fn by_bytes(a: &Rates, b: &Rates, by: Sort) -> Ordering {
    let of = |rates: &Rates| match by {
        Sort::Remote => rates.remote_bytes_per_s,
        Sort::Share => rates.remote_share.unwrap_or(-1.0),
        _ => rates.touched(),
    };
    of(b).total_cmp(&of(a))
}

/// Keeps the threads and processes whose name, tid or pid contains the text, and the services whose
/// name does; unless `all`, only threads that touched file data.
pub fn filter(window: &mut Window, all: bool, text: &str) {
    window.volumes.iter_mut().for_each(|volume| filter(&mut volume.window, all, text));
    let has = |name: &str, ids: &[u32]| name.contains(text) || ids.iter().any(|id| id.to_string().contains(text));
    let shown = |rates: &Rates| all || rates.touched() > 0.0;
    window.threads.retain(|t| shown(&t.rates) && has(&t.comm, &[t.tid, t.pid]));
    window.processes.iter_mut().for_each(|rows| rows.retain(|p| shown(&p.rates) && has(&p.comm, &[p.pid])));
    window.services.iter_mut().for_each(|rows| rows.retain(|row| has(&row.service, &[])));
}

/// What a row of the live view is about, whatever its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    Thread {
        tid: u32,
        start_ns: Option<u64>,
        comm: String,
    },
    Process {
        pid: u32,
        comm: String,
    },
    /// A service; without a name if it is not known.
    Service(String),
}

impl Who {
    pub fn at(window: &Window, by: By, row: usize) -> Option<Self> {
        match by {
            By::Thread => {
                window.threads.get(row).map(|t| Self::Thread { tid: t.tid, start_ns: t.start_ns, comm: t.comm.clone() })
            }
            By::Process => {
                let process = window.processes.as_ref()?.get(row)?;
                Some(Self::Process { pid: process.pid, comm: process.comm.clone() })
            }
            By::Service => window.services.as_ref()?.get(row).map(|row| Self::Service(row.service.clone())),
        }
    }
}

/// The number of such rows.
pub fn count(window: &Window, by: By) -> usize {
    match by {
        By::Thread => window.threads.len(),
        By::Process => window.processes.as_ref().map_or(0, Vec::len),
        By::Service => window.services.as_ref().map_or(0, Vec::len),
    }
}

pub struct Column<R> {
    /// Head; `>` stands before heads of figures.
    pub head: &'static str,
    pub width: u16,
    /// Which columns go first when the terminal is narrow: the highest.
    pub expendable: u8,
    pub cell: fn(&R) -> String,
}

pub const NODE_COLUMNS: [Column<NodeRow>; 7] = [
    Column { head: ">node", width: 4, expendable: 0, cell: |n| n.node.to_string() },
    Column { head: ">CPUs", width: 5, expendable: 5, cell: |n| n.cpus.to_string() },
    Column { head: ">CPU", width: 6, expendable: 0, cell: |n| or_dash(n.cpu, percent) },
    Column { head: ">controller", width: 10, expendable: 2, cell: |n| or_dash(n.controller, percent) },
    Column { head: ">read", width: 10, expendable: 0, cell: |n| rate(n.read_bytes_per_s) },
    Column { head: ">written", width: 10, expendable: 3, cell: |n| rate(n.write_bytes_per_s) },
    Column { head: ">free memory", width: 11, expendable: 4, cell: |n| size(n.memory_free) },
];

pub const THREAD_COLUMNS: [Column<ThreadRow>; 11] = [
    Column { head: ">tid", width: 7, expendable: 1, cell: |t| t.tid.to_string() },
    Column { head: ">pid", width: 7, expendable: 8, cell: |t| t.pid.to_string() },
    Column { head: "name", width: 15, expendable: 0, cell: |t| t.comm.clone() },
    Column { head: ">node", width: 4, expendable: 2, cell: |t| t.node.to_string() },
    Column { head: ">home", width: 4, expendable: 2, cell: |t| or_dash(t.home, |n| n.to_string()) },
    Column { head: ">remote", width: 6, expendable: 0, cell: |t| or_dash(t.rates.remote_share, percent) },
    Column { head: ">read", width: 10, expendable: 3, cell: |t| rate(t.rates.read_bytes_per_s) },
    Column { head: ">written", width: 10, expendable: 6, cell: |t| rate(t.rates.write_bytes_per_s) },
    Column { head: ">CPU", width: 6, expendable: 4, cell: |t| percent(t.cpu) },
    Column { head: "rule", width: 12, expendable: 9, cell: |t| or_dash(t.rule.as_deref(), str::to_owned) },
    Column { head: "last move", width: 15, expendable: 5, cell: last_move },
];

pub const PROCESS_COLUMNS: [Column<ProcessRow>; 9] = [
    Column { head: ">pid", width: 7, expendable: 1, cell: |p| p.pid.to_string() },
    Column { head: "name", width: 15, expendable: 0, cell: |p| p.comm.clone() },
    Column { head: ">threads", width: 7, expendable: 5, cell: |p| p.threads.to_string() },
    Column { head: "on nodes", width: 8, expendable: 2, cell: |p| list(&p.nodes) },
    Column { head: ">remote", width: 6, expendable: 0, cell: |p| or_dash(p.rates.remote_share, percent) },
    Column { head: ">read", width: 10, expendable: 3, cell: |p| rate(p.rates.read_bytes_per_s) },
    Column { head: ">written", width: 10, expendable: 6, cell: |p| rate(p.rates.write_bytes_per_s) },
    Column { head: ">CPU", width: 7, expendable: 4, cell: |p| percent(p.cpu) },
    Column { head: "rule", width: 12, expendable: 9, cell: |p| rules(&p.rules) },
];

pub const SERVICE_COLUMNS: [Column<ServiceRow>; 10] = [
    Column { head: "service", width: 28, expendable: 0, cell: service },
    Column { head: "rule", width: 12, expendable: 9, cell: |u| rules(&u.rules) },
    Column { head: ">processes", width: 9, expendable: 8, cell: |u| u.processes.to_string() },
    Column { head: ">threads", width: 7, expendable: 5, cell: |u| u.threads.to_string() },
    Column { head: "on nodes", width: 8, expendable: 3, cell: |u| list(&u.nodes) },
    Column { head: ">remote", width: 6, expendable: 0, cell: |u| or_dash(u.rates.remote_share, percent) },
    Column { head: ">could be local", width: 14, expendable: 4, cell: |u| or_dash(u.could_be_local_share, percent) },
    Column { head: ">read", width: 10, expendable: 1, cell: |u| rate(u.rates.read_bytes_per_s) },
    Column { head: ">written", width: 10, expendable: 7, cell: |u| rate(u.rates.write_bytes_per_s) },
    Column { head: ">CPU", width: 7, expendable: 6, cell: |u| percent(u.cpu) },
];

fn service(row: &ServiceRow) -> String {
    if row.service.is_empty() { "(unknown)".to_owned() } else { row.service.clone() }
}

fn rules(rules: &BTreeSet<Arc<str>>) -> String {
    or_dash(Some(list(rules)).filter(|rules| !rules.is_empty()), |rules| rules)
}

/// `0, 1`.
fn list(all: impl IntoIterator<Item = impl ToString>) -> String {
    all.into_iter().map(|one| one.to_string()).collect::<Vec<_>>().join(", ")
}

/// Most characters of a file's name.
const NAME: u16 = 24;

pub const FILE_COLUMNS: [Column<FileRow>; 6] = [
    Column { head: "file", width: NAME, expendable: 0, cell: name },
    Column { head: ">threads", width: 7, expendable: 2, cell: |f| f.threads.to_string() },
    Column { head: ">remote", width: 6, expendable: 0, cell: |f| or_dash(f.rates.remote_share, percent) },
    Column { head: ">read", width: 10, expendable: 1, cell: |f| rate(f.rates.read_bytes_per_s) },
    Column { head: ">written", width: 10, expendable: 3, cell: |f| rate(f.rates.write_bytes_per_s) },
    Column { head: "data", width: 15, expendable: 0, cell: data },
];

/// The last [`NAME`] characters of the path, or the id.
fn name(file: &FileRow) -> String {
    let Some(path) = &file.path else { return file.file.to_string() };
    let cut = path.chars().count().saturating_sub(NAME.into());
    if cut == 0 { path.clone() } else { format!("…{}", path.chars().skip(cut + 1).collect::<String>()) }
}

/// `4.0 MiB on 0, 1.0 MiB on 1`.
fn data(file: &FileRow) -> String {
    list(file.bytes.iter().map(|(node, bytes)| format!("{} on {node}", size(bytes))))
}

/// The files of a row: where they are, and what came from which node, in a window of so long.
pub fn files(rows: &[FileRow], window_s: f64) -> String {
    let mut table = Table::new(&[">remote", ">read", ">written", "read from", "data", "file"]);
    for file in rows {
        let from = |(node, bytes)| format!("{} from {node}", rate(bytes as f64 / window_s));
        table.row([
            or_dash(file.rates.remote_share, percent),
            rate(file.rates.read_bytes_per_s),
            rate(file.rates.write_bytes_per_s),
            list(file.read.iter().filter(|(_, bytes)| *bytes > 0).map(from)),
            or_dash(Some(data(file)).filter(|data| !data.is_empty()), |data| data),
            file.path.clone().unwrap_or_else(|| file.file.to_string()),
        ]);
    }
    table.render()
}

fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or("-".to_owned(), show)
}

fn last_move(thread: &ThreadRow) -> String {
    match (&thread.last_move, &thread.pinned) {
        (Some(mv), _) => mv.clone(),
        (None, Some(pinned)) => format!("left alone: {pinned}"),
        (None, None) => "-".to_owned(),
    }
}
