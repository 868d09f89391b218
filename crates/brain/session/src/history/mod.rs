//! What the daemon has seen in up to a week, for those who look at the wrong time.
//!
//! **Problem.** Who asks what happened at 3 in the morning asks at 9. Every command observes
//! windows of its own, and the metrics have sums only.
//!
//! **Approach.** The daemon adds up ten seconds of windows to a [`Summary`] and keeps it in
//! [`DIR`], with its services as the metrics have them ([`crate::totals`]), its nodes, and the
//! [`BUSIEST`] threads and files. A thread of its own writes ([`write`]), so no disk keeps a window
//! waiting; [`read`] finds times again. [`form`] is the form of a file. A [`Summary`] added to a
//! [`crate::map::Map`] counts like a window.
//!
//! **Limits.** Each node makes summaries larger: `[history]` has room for a week of two nodes with
//! 100 busy services, of one to three days of four nodes, and of some hours of eight. Of threads
//! and files that are not among the busiest of a summary nothing is known but the bytes of their
//! service. Times are those of the clock when a summary ended: while it was wrong, they are, too.
//! What is not yet written, ten seconds at most, is lost with the machine.

mod form;
pub mod read;
#[cfg(test)]
mod tests;
pub mod write;

use std::collections::{BTreeMap, BTreeSet};

use command::output::units::{percent, seconds};
use placement::flow::Flow;
use placement::services::cut;
use placement::{Plan, Snapshot, Thread};
use topology::{FileId, NodeId};

use crate::map::{File, Map, keep_most};
use crate::services::{OTHER, RULES, UNKNOWN};
use crate::window::{NodeRow, Rates, ServiceRow, ThreadRow, Window};

pub use form::{decode, decode_any};
pub use read::{Cursor, Found, Range};
pub use write::{Recorder, forget};

/// Threads, and files, that a summary keeps.
pub const BUSIEST: usize = 20;
/// Length of a summary, seconds: of the last day, and of those before.
pub const LENGTHS: [f64; 2] = [10.0, 60.0];

/// What passes between two windows, at most, and is in neither: planning and moving. It is two
/// windows of the usual length. Seconds.
const BETWEEN: f64 = 2.0;
/// Longest path that is kept, bytes: 20 of the longest that there are would be ten times a summary.
const PATH: usize = 512;

impl Map {
    /// Adds a summary of earlier windows: of processes and files it has those of the busiest
    /// threads, and the busiest.
    pub fn add_summary(&mut self, summary: &Summary) {
        self.windows = self.windows.saturating_add(summary.windows as u32);
        self.seconds += summary.seconds;
        summary.nodes.iter().filter(|(_, node)| node.unlisted_read_bytes > 0).for_each(|(id, node)| {
            self.unlisted.add(*id, node.unlisted_read_bytes);
        });
        for (name, of) in &summary.services {
            self.sum.add(&of.bytes);
            let (service, _) = self.services.entry(name.clone()).or_default();
            service.service.clone_from(name);
            service.processes = service.processes.max(of.processes as usize);
            service.bytes.add(&of.bytes);
        }
        for thread in summary.threads.values() {
            let process = self.processes.entry((thread.pid, thread.process_start_ns)).or_default();
            (process.pid, process.service) = (thread.pid, thread.service.clone());
            process.comm.clone_from(&thread.comm);
            process.bytes.add(&thread.bytes);
        }
        for (id, of) in &summary.files {
            let file = self.files.entry(*id).or_default();
            file.bytes.add(&of.bytes);
            (file.path, file.size) = (of.path.clone().or_else(|| file.path.take()), of.size.or(file.size));
            if of.nodes.total() > 0 {
                file.nodes.clone_from(&of.nodes);
            }
        }
        self.bound();
    }
}

/// Some windows in a row, added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// When the last window ended, seconds since 1970.
    pub unix_s: f64,
    /// Length of the windows together, seconds.
    pub seconds: f64,
    pub windows: u64,
    /// Summaries before this one that the disk was too slow or too full for.
    pub lost: u64,
    /// By their names in the metrics.
    pub services: BTreeMap<String, Service>,
    pub nodes: BTreeMap<NodeId, Node>,
    /// By id and start time; of those that are kept, the [`BUSIEST`].
    pub threads: BTreeMap<(u32, u64), Busy>,
    /// The same of files.
    pub files: BTreeMap<FileId, File>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Service {
    /// The rules that applied to its threads, the first [`RULES`].
    pub rules: Vec<String>,
    /// Processes and threads that used file bytes; of a longer summary the most of its parts.
    pub processes: u64,
    pub threads: u64,
    /// CPU time of these threads, seconds.
    pub cpu_s: f64,
    pub bytes: Flow,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    pub cpus: u64,
    /// Share of its CPUs that was used, and load of its controller as a fraction of its capacity,
    /// each times seconds; absent where it is not known.
    pub cpu_s: Option<f64>,
    pub controller_s: Option<f64>,
    pub read_bytes: u64,
    pub write_bytes: u64,
    /// Bytes read that are in no service.
    pub unlisted_read_bytes: u64,
    /// Bytes, at the end.
    pub memory_free: u64,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Busy {
    pub pid: u32,
    /// When its process began, nanoseconds since boot; 0 if it is not known.
    pub process_start_ns: u64,
    pub comm: String,
    /// The name of its service; empty if it is not known.
    pub service: String,
    /// Empty if none applies.
    pub rule: String,
    /// Where it ran at the end.
    pub node: NodeId,
    pub cpu_s: f64,
    pub bytes: Flow,
}

impl Summary {
    /// When its first window began, seconds since 1970.
    pub fn begin_s(&self) -> f64 {
        self.unix_s - self.seconds
    }

    /// Whether this time is within it, or in the moment after it, seconds since 1970.
    pub fn has(&self, unix_s: f64) -> bool {
        (self.begin_s()..=self.unix_s + BETWEEN).contains(&unix_s)
    }

    /// Adds a thread of the window under way. Its bytes are in this row of the metrics; `service`
    /// is its own name.
    pub fn add_thread(&mut self, row: &str, service: &str, thread: &Thread) {
        if !self.services.contains_key(row) {
            self.services.insert(row.to_owned(), Service::default());
        }
        if let Some(of) = self.services.get_mut(row) {
            of.bytes.add_thread(thread);
            of.cpu_s += thread.cpu_s;
            let rule = thread.rule.iter().filter(|_| ![OTHER, UNKNOWN].contains(&row));
            rule.for_each(|rule| add_rule(&mut of.rules, rule));
        }
        for used in &thread.files {
            self.files.entry(used.file).or_default().bytes.add_use(thread, used);
        }
        if thread.tid == 0 {
            return;
        }
        let busy = self.threads.entry((thread.tid, thread.start_ns.unwrap_or(0))).or_insert_with(|| Busy {
            pid: thread.pid,
            process_start_ns: thread.process_start_ns.unwrap_or(0),
            comm: thread.comm.clone(),
            service: service.to_owned(),
            rule: thread.rule.as_deref().unwrap_or_default().to_owned(),
            ..Busy::default()
        });
        busy.node = thread.node;
        busy.cpu_s += thread.cpu_s;
        busy.bytes.add_thread(thread);
    }

    /// Ends the window under way.
    pub fn add_window(&mut self, snapshot: &Snapshot, plan: &Plan, unix_s: f64) {
        self.unix_s = unix_s;
        self.seconds += snapshot.window_s;
        self.windows += 1;
        let forecasts = plan.predicted.as_ref().map_or(&[][..], |predicted| &predicted.nodes);
        for seen in &snapshot.nodes {
            let forecast = forecasts.iter().find(|forecast| forecast.node == seen.id);
            let controller = forecast.and_then(|forecast| forecast.controller_before);
            let node = self.nodes.entry(seen.id).or_default();
            node.cpus = seen.cpus.len() as u64;
            if let Some(cpu_s) = seen.cpu_s.filter(|_| !seen.cpus.is_empty()) {
                *node.cpu_s.get_or_insert_default() += cpu_s / node.cpus as f64;
            }
            if let Some(controller) = controller {
                *node.controller_s.get_or_insert_default() += controller * snapshot.window_s;
            }
            node.read_bytes = node.read_bytes.saturating_add(seen.read_bytes);
            node.write_bytes = node.write_bytes.saturating_add(seen.write_bytes);
            node.memory_free = seen.memory_free;
        }
        for seen in &snapshot.files {
            let Some(file) = self.files.get_mut(&seen.file) else { continue };
            if seen.path.is_some() && file.path != seen.path {
                file.path.clone_from(&seen.path);
            }
            file.size = seen.size.or(file.size);
            if seen.bytes.total() > 0 {
                file.nodes = seen.bytes.clone();
            }
        }
        keep_most(&mut self.threads, |thread| thread.bytes.total());
        keep_most(&mut self.files, |file| file.bytes.total());
    }

    /// Adds bytes of a window that are in no service, by node.
    pub fn add_unlisted(&mut self, node: NodeId, bytes: u64) {
        let unlisted = &mut self.nodes.entry(node).or_default().unlisted_read_bytes;
        *unlisted = unlisted.saturating_add(bytes);
    }

    /// Counts the processes and threads of each service, and forgets all but the busiest threads
    /// and files.
    fn end(&mut self) {
        let mut pids: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for thread in self.threads.values() {
            let row = match thread.service.as_str() {
                "" => UNKNOWN,
                name if self.services.contains_key(name) => name,
                _ => OTHER,
            };
            let Some(service) = self.services.get_mut(row) else { continue };
            service.threads += 1;
            service.processes += u64::from(pids.entry(row).or_default().insert(thread.pid));
        }
        self.cut();
        self.files.values_mut().for_each(|file| file.path = file.path.take().map(|path| cut(path, PATH)));
    }

    fn cut(&mut self) {
        busiest(&mut self.threads, |thread| thread.bytes.total());
        busiest(&mut self.files, |file| file.bytes.total());
    }

    /// Adds a later summary.
    fn add(&mut self, more: Self) {
        self.unix_s = more.unix_s;
        self.seconds += more.seconds;
        self.windows = self.windows.saturating_add(more.windows);
        self.lost = self.lost.saturating_add(more.lost);
        for (name, of) in more.services {
            let service = self.services.entry(name).or_default();
            of.rules.iter().for_each(|rule| add_rule(&mut service.rules, rule));
            service.processes = service.processes.max(of.processes);
            service.threads = service.threads.max(of.threads);
            service.cpu_s += of.cpu_s;
            service.bytes.add(&of.bytes);
        }
        for (id, of) in more.nodes {
            let node = self.nodes.entry(id).or_default();
            let sum = |a: Option<f64>, b: Option<f64>| a.map_or(b, |a| Some(a + b.unwrap_or(0.0)));
            *node = Node {
                cpu_s: sum(node.cpu_s, of.cpu_s),
                controller_s: sum(node.controller_s, of.controller_s),
                read_bytes: node.read_bytes.saturating_add(of.read_bytes),
                write_bytes: node.write_bytes.saturating_add(of.write_bytes),
                unlisted_read_bytes: node.unlisted_read_bytes.saturating_add(of.unlisted_read_bytes),
                ..of
            };
        }
        for (id, of) in more.threads {
            let thread = self.threads.entry(id).or_default();
            let (mut bytes, cpu_s) = (std::mem::take(&mut thread.bytes), thread.cpu_s + of.cpu_s);
            bytes.add(&of.bytes);
            *thread = Busy { bytes, cpu_s, ..of };
        }
        for (id, of) in more.files {
            let file = self.files.entry(id).or_default();
            file.bytes.add(&of.bytes);
            (file.path, file.size) = (of.path.or(file.path.take()), of.size.or(file.size));
            if of.nodes.total() > 0 {
                file.nodes = of.nodes;
            }
        }
    }

    /// As `top` shows a window.
    pub fn window(&self, heading: String) -> Window {
        let per_s = |value: f64| if self.seconds > 0.0 { value / self.seconds } else { 0.0 };
        let rates = |bytes: &Flow| Rates::of(bytes, self.seconds);
        let node = |(id, node): (&NodeId, &Node)| NodeRow {
            node: *id,
            cpus: node.cpus as usize,
            cpu: node.cpu_s.map(per_s),
            controller: node.controller_s.map(per_s),
            read_bytes_per_s: per_s(node.read_bytes as f64),
            write_bytes_per_s: per_s(node.write_bytes as f64),
            memory_free: node.memory_free,
        };
        let thread = |((tid, start), of): (&(u32, u64), &Busy)| ThreadRow {
            tid: *tid,
            pid: of.pid,
            start_ns: Some(*start).filter(|start| *start > 0),
            comm: of.comm.clone(),
            node: of.node,
            home: of.home(),
            rates: rates(&of.bytes),
            cpu: per_s(of.cpu_s),
            rule: Some(of.rule.as_str().into()).filter(|_| !of.rule.is_empty()),
            last_move: None,
            pinned: None,
        };
        let service = |(name, of): (&String, &Service)| ServiceRow {
            service: name.clone(),
            processes: of.processes as usize,
            threads: of.threads as usize,
            nodes: of.bytes.pairs.iter().map(|p| p.cpu_node).collect::<BTreeSet<_>>().into_iter().collect(),
            rules: of.rules.iter().map(|rule| rule.as_str().into()).collect(),
            rates: rates(&of.bytes),
            could_be_local_share: of.bytes.could_be_local_share(),
            cpu: per_s(of.cpu_s),
        };
        let mut sum = Flow::default();
        self.services.values().for_each(|service| sum.add(&service.bytes));
        let share = sum.remote_share().map_or("-".to_owned(), percent);
        Window {
            version: 1,
            window_s: self.seconds,
            remote_share: sum.remote_share(),
            nodes: self.nodes.iter().map(node).collect(),
            threads: self.threads.iter().map(thread).collect(),
            ended_unix_s: Some(self.unix_s),
            services: Some(self.services.iter().map(service).collect()),
            headings: [
                format!("{heading} · {} · remote share {share}", seconds(self.seconds)),
                format!("{heading} · {share}"),
                heading,
            ],
            ..Window::default()
        }
    }
}

impl Busy {
    /// Its home node over all these windows.
    fn home(&self) -> Option<NodeId> {
        let read_bytes = self.bytes.pairs.iter().map(|pair| (pair.data_node, pair.read_bytes)).collect();
        Thread { node: self.node, read_bytes, ..Thread::default() }.home()
    }
}

fn add_rule(rules: &mut Vec<String>, rule: &str) {
    if rules.len() < RULES && !rules.iter().any(|known| known == rule) {
        rules.push(rule.to_owned());
    }
}

fn busiest<K: Ord + Copy, V>(rows: &mut BTreeMap<K, V>, bytes: impl Fn(&V) -> u64) {
    let mut all: Vec<(u64, K)> = rows.iter().map(|(key, row)| (bytes(row), *key)).collect();
    all.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    all.iter().skip(BUSIEST).for_each(|(_, key)| _ = rows.remove(key));
}
