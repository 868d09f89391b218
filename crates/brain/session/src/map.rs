//! The map of file bytes: the services, processes and files that they go to and come from, by pair
//! of nodes.
//!
//! **Problem.** A person who asks whether locality matters on a machine thinks in services, not in
//! threads, and in minutes, not in windows.
//!
//! **Approach.** Windows are added up. A row has the bytes of each pair of a node that read (or
//! wrote) and the node that the bytes came from (or went to): a [`Flow`]. Control groups stand for
//! services: systemd, containers and pods each have one.
//!
//! **Limits.** What threads read that ended within a window counts for their service and its files,
//! and for no process; where nobody knows their group, and out of scope, it is in
//! `unlisted_read_bytes`. The bytes of a window are put down to the node
//! where the thread ran at its end; `remote_bytes` is counted as they are read. At most [`MOST`]
//! rows of each kind are kept, those with the fewest bytes go first; their bytes still count in the
//! sums. A group's processes are counted up to [`MOST`].

use std::collections::{BTreeMap, BTreeSet};

use placement::flow::Flow;
use placement::{NodeBytes, Snapshot};
use serde::Serialize;
use topology::{FileId, NodeId};

use crate::services;

/// Rows of each kind that are kept between windows.
pub const MOST: usize = 10_000;

/// Kinds of notes that are kept. There are some twenty, but they can have names and causes in them.
const NOTES_MAX: usize = 100;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Service {
    /// Path of the group; empty if it is not known.
    pub cgroup: String,
    /// Name of the service ([`crate::services::name`]); empty as the path is.
    pub service: String,
    /// How many of its processes used file bytes, those not counted that ended within a window;
    /// [`MOST`] stands for that many or more.
    pub processes: usize,
    #[serde(flatten)]
    pub bytes: Flow,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Process {
    pub pid: u32,
    /// Name of the thread that was seen first.
    pub comm: String,
    pub cgroup: String,
    pub service: String,
    #[serde(flatten)]
    pub bytes: Flow,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct File {
    /// File id: `major:minor:inode`.
    pub file: String,
    /// Its path, if it is known.
    pub path: Option<String>,
    /// Its length, if it is known.
    pub size: Option<u64>,
    /// Its bytes in memory by node, as last seen.
    pub nodes: NodeBytes,
    #[serde(flatten)]
    pub bytes: Flow,
}

#[derive(Clone, Debug, Default)]
pub struct Map {
    pub(crate) windows: u32,
    pub(crate) seconds: f64,
    pub(crate) sum: Flow,
    pub(crate) unlisted: NodeBytes,
    pub(crate) services: BTreeMap<String, (Service, BTreeSet<(u32, u64)>)>,
    pub(crate) processes: BTreeMap<(u32, u64), Process>,
    pub(crate) files: BTreeMap<FileId, File>,
    /// The last note of each kind: its text without figures.
    notes: BTreeMap<String, String>,
}

/// A map for people and programs: rows by falling bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Format version, 1.
    pub version: u32,
    pub windows: u32,
    /// Their length together, in seconds.
    pub seconds: f64,
    /// Of the history: when the first of these windows began and the last ended, in seconds since
    /// 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between_unix_s: Option<(f64, f64)>,
    /// All bytes of the listed threads.
    #[serde(flatten)]
    pub sum: Flow,
    /// Bytes that others read, by node: threads out of scope, and threads that ended within a
    /// window if nobody knows their service.
    pub unlisted_read_bytes: NodeBytes,
    pub services: Vec<Service>,
    /// The processes with most bytes.
    pub processes: Vec<Process>,
    /// The files with most bytes.
    pub files: Vec<File>,
    /// Where bytes that were handed on can leave the machine; empty if none were.
    pub network_devices: Vec<NetworkDevice>,
    /// Limits of these observations.
    pub notes: Vec<String>,
}

/// A network device, and the node that it is attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkDevice {
    pub name: String,
    pub node: NodeId,
}

impl Map {
    pub fn add(&mut self, snapshot: &Snapshot) {
        self.windows += 1;
        self.seconds += snapshot.window_s;
        for note in &snapshot.notes {
            let kind: String = note.chars().filter(|c| !c.is_ascii_digit()).collect();
            if self.notes.len() < NOTES_MAX || self.notes.contains_key(&kind) {
                self.notes.insert(kind, note.clone());
            }
        }
        for node in &snapshot.nodes {
            let listed = snapshot.touched().map(|thread| thread.read_bytes.get(node.id)).sum();
            let others = node.read_bytes.saturating_sub(listed);
            if others > 0 {
                self.unlisted.add(node.id, others);
            }
        }
        for thread in snapshot.touched() {
            self.sum.add_thread(thread);
            let cgroup = thread.group.as_deref().unwrap_or_default();
            let (service, seen) = self.services.entry(cgroup.to_owned()).or_insert_with(|| {
                let service = thread.group.as_deref().map_or_else(String::new, services::name);
                (Service { cgroup: cgroup.to_owned(), service, ..Service::default() }, BTreeSet::new())
            });
            service.bytes.add_thread(thread);
            if thread.tid != 0 {
                let id = (thread.pid, thread.process_start_ns.unwrap_or(0));
                let process = self.processes.entry(id).or_insert_with(|| Process {
                    pid: thread.pid,
                    comm: thread.comm.clone(),
                    ..Process::default()
                });
                (process.cgroup, process.service) = (service.cgroup.clone(), service.service.clone());
                process.bytes.add_thread(thread);
                if seen.len() < MOST {
                    seen.insert(id);
                }
            }
            for used in &thread.files {
                self.files.entry(used.file).or_default().bytes.add_use(thread, used);
            }
        }
        for seen in &snapshot.files {
            if let Some(file) = self.files.get_mut(&seen.file) {
                file.path = seen.path.clone().or_else(|| file.path.take());
                file.size = seen.size.or(file.size);
                if seen.bytes.total() > 0 {
                    file.nodes = seen.bytes.clone();
                }
            }
        }
        self.bound();
    }

    pub(crate) fn bound(&mut self) {
        keep_most(&mut self.services, |service| service.0.bytes.total());
        keep_most(&mut self.processes, |process| process.bytes.total());
        keep_most(&mut self.files, |file| file.bytes.total());
    }

    /// What has been added so far, with at most `most` processes and files.
    pub fn report(&self, most: usize) -> Report {
        let services = self.services.values().map(|(service, seen)| {
            let processes = service.processes.max(seen.len());
            Service { processes, ..service.clone() }
        });
        let files = self.files.iter().map(|(id, file)| File { file: id.to_string(), ..file.clone() });
        Report {
            version: 1,
            windows: self.windows,
            seconds: self.seconds,
            between_unix_s: None,
            sum: self.sum.clone(),
            unlisted_read_bytes: self.unlisted.clone(),
            services: falling(services, usize::MAX, |service| &service.bytes),
            processes: falling(self.processes.values().cloned(), most, |process| &process.bytes),
            files: falling(files, most, |file| &file.bytes),
            network_devices: Vec::new(),
            notes: self.notes.values().cloned().collect(),
        }
    }
}

/// The first `most` of these by falling bytes.
fn falling<T>(rows: impl Iterator<Item = T>, most: usize, bytes: impl Fn(&T) -> &Flow) -> Vec<T> {
    let mut rows: Vec<T> = rows.collect();
    rows.sort_by_key(|row| std::cmp::Reverse(bytes(row).total()));
    rows.truncate(most);
    rows
}

/// Forgets the rows with the fewest bytes once there are a half too many, so that it seldom has to.
pub(crate) fn keep_most<K: Ord + Clone, V>(rows: &mut BTreeMap<K, V>, bytes: impl Fn(&V) -> u64) {
    if rows.len() <= MOST + MOST / 2 {
        return;
    }
    let mut all: Vec<(u64, K)> = rows.iter().map(|(key, row)| (bytes(row), key.clone())).collect();
    all.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    for (_, key) in all.split_off(MOST) {
        rows.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use placement::{FileUse, NodeLoad, ObservedFile, Thread};

    use super::*;
    use topology::NodeId;

    fn bytes(of: &[(u32, u64)]) -> NodeBytes {
        of.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect()
    }

    fn file(pid: u32) -> FileId {
        FileId { dev: FileId::device(8, 1), ino: pid.into(), generation: 0 }
    }

    /// Thread `tid` of process `pid`, which runs on a node and read these bytes of file `pid`.
    fn thread(pid: u32, tid: u32, node: u32, read: &[(u32, u64)]) -> Thread {
        Thread {
            tid,
            pid,
            comm: format!("p{pid}"),
            group: Some("/g0".into()),
            node: NodeId(node),
            allowed_nodes: vec![NodeId(0), NodeId(1)],
            read_bytes: bytes(read),
            files: vec![FileUse { file: file(pid), read_bytes: bytes(read), ..FileUse::default() }],
            ..Thread::default()
        }
    }

    fn snapshot(threads: Vec<Thread>) -> Snapshot {
        Snapshot { version: 1, window_s: 1.0, threads, ..Snapshot::default() }
    }

    #[test]
    fn bytes_are_added_up_by_group_process_file_and_pair_of_nodes() {
        let mut map = Map::default();
        // Processes 1 and 2 in one group, 11 in another. Of thread 3, nothing.
        let first = vec![
            thread(1, 1, 0, &[(0, 10), (1, 30)]),
            thread(2, 2, 1, &[(1, 5)]),
            Thread { group: Some("/g1".into()), ..thread(11, 11, 1, &[(0, 7)]) },
            thread(3, 3, 0, &[]),
        ];
        map.add(&snapshot(first));
        map.add(&snapshot(vec![thread(1, 1, 1, &[(1, 100)])]));
        let report = map.report(2);
        assert_eq!((report.windows, report.seconds, report.sum.read_bytes), (2, 2.0, 152));
        // 30 of thread 1 and 7 of thread 11; at its home, thread 1 would have read 10 remotely.
        assert_eq!((report.sum.remote_bytes, report.sum.could_be_local_bytes), (37, 20 + 7));
        let services: Vec<_> =
            report.services.iter().map(|s| (s.cgroup.as_str(), s.processes, s.bytes.read_bytes)).collect();
        assert_eq!(services, [("/g0", 2, 145), ("/g1", 1, 7)]);
        let pairs: Vec<_> =
            report.services[0].bytes.pairs.iter().map(|p| (p.cpu_node.0, p.data_node.0, p.read_bytes)).collect();
        assert_eq!(pairs, [(0, 0, 10), (0, 1, 30), (1, 1, 105)]);
        assert_eq!(report.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [1, 11], "the largest two");
        assert_eq!((report.files[0].file.as_str(), report.files[0].bytes.remote_bytes), ("8:1:1", 30));
    }

    /// A shell puts itself into a service's group and then becomes the service; the window has what
    /// it read before apart.
    #[test]
    fn what_ended_or_was_in_another_group_counts_for_its_service_and_file() {
        let mut map = Map::default();
        let of = |group: &str, thread: Thread| Thread { group: Some(group.into()), ..thread };
        let gone =
            |group, node, read: &[(u32, u64)]| of(group, Thread { allowed_nodes: vec![], ..thread(0, 0, node, read) });
        let db = "/system.slice/db.service";
        let window = Snapshot {
            ended: vec![gone("/", 0, &[(0, 5)]), gone(db, 1, &[(0, 2), (1, 4)])],
            nodes: vec![NodeLoad { id: NodeId(0), read_bytes: 20, ..NodeLoad::default() }],
            ..snapshot(vec![of(db, thread(1, 1, 0, &[(0, 10)]))])
        };
        map.add(&window);
        let report = map.report(9);
        let services: Vec<_> =
            report.services.iter().map(|s| (s.service.as_str(), s.processes, s.bytes.read_bytes)).collect();
        assert_eq!(services, [("db.service", 1, 16), ("/", 0, 5)]);
        let pairs: Vec<_> =
            report.services[0].bytes.pairs.iter().map(|p| (p.cpu_node.0, p.data_node.0, p.read_bytes)).collect();
        assert_eq!(pairs, [(0, 0, 10), (1, 0, 2), (1, 1, 4)]);
        assert_eq!((report.sum.read_bytes, report.sum.could_be_local_bytes), (21, 0));
        assert_eq!(
            report.processes.iter().map(|p| (p.pid, p.service.as_str())).collect::<Vec<_>>(),
            [(1, "db.service")]
        );
        assert_eq!(report.files.iter().map(|f| f.bytes.read_bytes).collect::<Vec<_>>(), [11, 10]);
        assert_eq!(report.unlisted_read_bytes, bytes(&[(0, 3)]));
    }

    #[test]
    fn bytes_of_threads_that_ended_are_told_apart() {
        let mut map = Map::default();
        let node = |id, read_bytes| NodeLoad { id: NodeId(id), read_bytes, ..NodeLoad::default() };
        let window = snapshot(vec![thread(1, 1, 0, &[(0, 10), (1, 30)])]);
        for _ in 0..2 {
            map.add(&Snapshot { nodes: vec![node(0, 10), node(1, 34)], ..window.clone() });
        }
        let report = map.report(1);
        assert_eq!((report.sum.read_bytes, report.unlisted_read_bytes), (80, bytes(&[(1, 8)])));
    }

    #[test]
    fn what_may_not_move_could_not_become_local() {
        let away = thread(1, 1, 0, &[(1, 8)]);
        let pinned = Thread { pinned: Some("has a custom affinity: 0".to_owned()), ..away.clone() };
        let confined = Thread { allowed_nodes: vec![NodeId(0)], ..away.clone() };
        let of = |thread: Thread| {
            let mut map = Map::default();
            map.add(&snapshot(vec![thread]));
            map.report(1).sum.could_be_local_bytes
        };
        assert_eq!([of(away), of(pinned), of(confined)], [8, 0, 0]);
    }

    #[test]
    fn a_file_keeps_its_path_and_the_last_count_of_its_nodes() {
        let mut map = Map::default();
        let seen = |path: Option<&str>, nodes: &[(u32, u64)]| Snapshot {
            files: vec![ObservedFile {
                file: file(1),
                path: path.map(str::to_owned),
                bytes: bytes(nodes),
                ..ObservedFile::default()
            }],
            ..snapshot(vec![thread(1, 1, 0, &[(0, 1)])])
        };
        for (path, nodes) in [(Some("/a"), [(0, 5)].as_slice()), (None, &[]), (None, &[(1, 6)])] {
            map.add(&seen(path, nodes));
        }
        let file = &map.report(1).files[0];
        assert_eq!((file.path.as_deref(), file.nodes.get(NodeId(0)), file.nodes.get(NodeId(1))), (Some("/a"), 0, 6));
    }

    #[test]
    fn memory_is_bounded_and_the_sums_are_not_cut() {
        let mut map = Map::default();
        for window in 0..4u32 {
            let threads = (0..6_000).map(|i| thread(window * 6_000 + i, i, 0, &[(0, 1)])).collect();
            map.add(&snapshot(threads));
        }
        assert!(map.processes.len() <= MOST * 3 / 2 && map.files.len() <= MOST * 3 / 2);
        assert_eq!(map.report(10).sum.read_bytes, 24_000);
    }

    /// Of a kind of note the last one is kept: eight windows had eleven notes of two kinds.
    #[test]
    fn notes_are_kept_by_kind_whatever_their_figures() {
        let mut map = Map::default();
        for window in 0..1_000 {
            let notes = vec![
                format!("{window}.5 MB count for threads and nodes but not for files"),
                format!("{window} of 18860 files are not listed"),
                format!("process {window}: its memory"),
                format!("files: file {} cannot be opened", "x".repeat(window)),
            ];
            map.add(&Snapshot { notes, ..snapshot(vec![]) });
        }
        let notes = map.report(1).notes;
        assert!(
            notes.len() == NOTES_MAX
                && notes.contains(&"999.5 MB count for threads and nodes but not for files".to_owned())
        );
    }

    /// Each build step of a service is a process.
    #[test]
    fn a_group_counts_its_processes_up_to_a_limit() {
        let mut map = Map::default();
        for window in 0..3u32 {
            let threads = (0..6_000).map(|i| thread(window * 6_000 + i, i, 0, &[(0, 1)])).collect();
            map.add(&snapshot(threads));
        }
        let services = map.report(1).services;
        assert_eq!((services[0].cgroup.as_str(), services[0].processes), ("/g0", MOST));
    }
}
