//! Contents of `top`: nodes and threads of one window, sorted and filtered. No terminal here.

use std::cmp::Ordering;

use clap::ValueEnum;
use command::output::units::{percent, rate, size};
use session::window::{FileRow, NodeRow, Rates, ServiceRow, ThreadRow, Window};

/// What a row of `top` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// A thread
    Thread,
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

/// Sorts the threads, largest (or for names, nodes and ids: first) on top; equal ones by bytes and
/// tid, so that rows do not jump.
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

/// Keeps the threads whose name, tid or pid contains the text, and the services whose name does;
/// unless `all`, only threads that touched file data.
pub fn filter(window: &mut Window, all: bool, text: &str) {
    window.volumes.iter_mut().for_each(|volume| filter(&mut volume.window, all, text));
    window.threads.retain(|t| (all || t.rates.touched() > 0.0) && matches(t, text));
    window.services.iter_mut().for_each(|rows| rows.retain(|row| row.service.contains(text)));
}

fn matches(thread: &ThreadRow, text: &str) -> bool {
    text.is_empty()
        || thread.comm.contains(text)
        || thread.tid.to_string().contains(text)
        || thread.pid.to_string().contains(text)
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

pub const SERVICE_COLUMNS: [Column<ServiceRow>; 10] = [
    Column { head: "service", width: 28, expendable: 0, cell: service },
    Column { head: "rule", width: 12, expendable: 9, cell: rules },
    Column { head: ">processes", width: 9, expendable: 8, cell: |u| u.processes.to_string() },
    Column { head: ">threads", width: 7, expendable: 5, cell: |u| u.threads.to_string() },
    Column { head: "on nodes", width: 8, expendable: 3, cell: on_nodes },
    Column { head: ">remote", width: 6, expendable: 0, cell: |u| or_dash(u.rates.remote_share, percent) },
    Column { head: ">could be local", width: 14, expendable: 4, cell: |u| or_dash(u.could_be_local_share, percent) },
    Column { head: ">read", width: 10, expendable: 1, cell: |u| rate(u.rates.read_bytes_per_s) },
    Column { head: ">written", width: 10, expendable: 7, cell: |u| rate(u.rates.write_bytes_per_s) },
    Column { head: ">CPU", width: 7, expendable: 6, cell: |u| percent(u.cpu) },
];

fn service(row: &ServiceRow) -> String {
    if row.service.is_empty() { "(unknown)".to_owned() } else { row.service.clone() }
}

fn rules(row: &ServiceRow) -> String {
    let rules = row.rules.iter().map(|rule| &**rule).collect::<Vec<_>>().join(", ");
    or_dash(Some(rules).filter(|rules| !rules.is_empty()), |rules| rules)
}

/// `0, 1`.
fn on_nodes(row: &ServiceRow) -> String {
    row.nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
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
    let on = |(node, bytes)| format!("{} on {node}", size(bytes));
    file.bytes.iter().map(on).collect::<Vec<_>>().join(", ")
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
