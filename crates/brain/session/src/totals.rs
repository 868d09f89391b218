//! What the daemon has seen and done since it began, for everybody: the file that
//! `homenode export` turns into metrics.
//!
//! **Problem.** Counters must not miss a window and must not go down, so only the daemon can keep
//! them; but the daemon must not listen. Metrics must not grow with the number of threads, files or
//! short-lived services, and whoever may read them must not learn another user's paths.
//!
//! **Approach.** After each window the daemon adds the bytes of each thread to its service and pair
//! of nodes, and writes the sums to [`FILE`] in its state directory, as a whole and by rename. At
//! most [`SHOWN`] services have a row of their own; the bytes of all others are in [`OTHER`]. A
//! service that comes to read more than twice as much as the least of those takes its row, first
//! the rows of those whose control group is gone. Bytes stay where they were counted, so no counter
//! goes down: a service that loses its row and gets one again goes on where its own had stopped.
//! The file has names of services, which systemd shows to everybody, and no paths of files, names
//! of threads or ids. Whether it is up to date follows from the clock that counts from boot alone:
//! a reader in a container sees other process ids.
//!
//! **Limits.** A restart of the daemon begins at 0. Rows that were idle for longest are forgotten
//! beyond [`KEPT`] services; one of them that comes back begins at 0, too. The bytes of a window
//! are put down to the node where the thread ran at its end. What threads read
//! that ended within a window is in their service's row, too.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use command::exit::Failure;
use engine::{Tally, WindowReport};
use linux::clock::boot_s;
use linux::cpuset::Hierarchies;
use placement::flow::Flow;
use placement::{NodeBytes, Snapshot};
use serde::{Deserialize, Serialize};

use crate::history::Recorder;
use crate::published::{self, boot};
use crate::services::{self, Names, OTHER, RULES, UNKNOWN};
use crate::status::Status;

pub const FILE: &str = "totals.json";

pub const SHOWN: usize = 100;
pub const KEPT: usize = 4096;

/// Windows after which the bytes that a service has read count half.
const HALF_LIFE: f64 = 300.0;
/// So much more than the least of those with a row must a service read to take its place.
const MORE: f64 = 2.0;
/// Rows that may change hands in one window.
const CHANGES: usize = 10;

/// Windows, and seconds, after which a daemon that has written nothing counts as gone. It may
/// stretch windows, and stop for a while on a busy machine.
const LATE: (f64, f64) = (4.0, 5.0);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Format version, 1.
    pub version: u32,
    /// Version of the daemon.
    pub program: String,
    /// Process of the daemon.
    pub pid: u32,
    /// The boot in which it was written; empty if the kernel does not tell.
    pub boot: String,
    /// When the last window ended: seconds since boot, suspended time included.
    pub boot_s: f64,
    /// The same in seconds since 1970.
    pub unix_s: f64,
    pub policy: String,
    /// Length of the last window, seconds.
    pub window_s: f64,
    pub windows: u64,
    /// Threads that used file bytes in the last window.
    pub threads: u64,
    pub bound_threads: u64,
    /// Copies that the kernel does not return from.
    #[serde(default)]
    pub stuck_copies: u64,
    pub services: u64,
    /// CPU time of homenode, without that of copies, seconds; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observer_cpu_s: Option<f64>,
    /// Memory of homenode with its BPF maps, bytes; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observer_memory_bytes: Option<u64>,
    /// Bytes that are in no row, by node of the data: of threads out of scope, and of threads that
    /// ended within a window and whose service is not known.
    pub unlisted_read_bytes: NodeBytes,
    pub moves: Vec<Moves>,
    /// What `homenode status` shows beside.
    #[serde(default)]
    pub status: Status,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moves {
    /// `thread`, `process` or `file`.
    pub kind: String,
    /// What became of them ([`engine::tally`]).
    pub result: String,
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Its name ([`crate::services::name`]), [`OTHER`] or [`UNKNOWN`].
    pub service: String,
    /// The rules that applied to its threads when it was last seen, the first [`RULES`]; of
    /// [`OTHER`] and [`UNKNOWN`] none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Arc<str>>,
    #[serde(flatten)]
    pub bytes: Flow,
}

#[derive(Debug, Default)]
struct Service {
    /// Bytes that were counted while it had a row.
    bytes: Flow,
    shown: bool,
    /// Bytes read and written, those of long ago counting less; as of this window.
    recent: f64,
    window: u64,
    /// Rules that applied to it in that window.
    rules: Vec<Arc<str>>,
    /// Its control group, as of the last process that was asked.
    group: Option<Arc<str>>,
    /// That was gone when rows last changed hands.
    ended: bool,
}

impl Service {
    /// What it has read lately; nothing counts of a group that has ended: its row goes first.
    fn recent(&self, window: u64) -> f64 {
        if self.ended { 0.0 } else { self.recent * 0.5f64.powf((window - self.window) as f64 / HALF_LIFE) }
    }
}

/// The sums so far. Dropping it removes the file: the daemon has ended.
#[derive(Debug)]
pub struct Totals {
    dir: PathBuf,
    hierarchies: Hierarchies,
    told: Told,
    services: HashMap<Arc<str>, Service>,
    shown: usize,
    /// Services without a row that read something in the last window.
    candidates: Vec<Arc<str>>,
    other: Flow,
    unknown: Flow,
    history: Option<Recorder>,
}

impl Totals {
    /// Nothing yet. `dir` is the state directory, `proc_root` a proc mount (`/proc`).
    pub fn new(dir: &Path, proc_root: &Path, policy: &str) -> Self {
        let told = Told {
            version: 1,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            boot: boot(),
            policy: policy.to_owned(),
            status: Status::begun(),
            ..Told::default()
        };
        Self {
            dir: dir.to_owned(),
            hierarchies: Hierarchies::new(proc_root),
            told,
            services: HashMap::new(),
            shown: 0,
            candidates: Vec::new(),
            other: Flow::default(),
            unknown: Flow::default(),
            history: None,
        }
    }

    /// Keeps a history of the same rows, too.
    pub fn keep(&mut self, history: Recorder) {
        self.history = Some(history);
    }

    pub fn status(&mut self) -> &mut Status {
        &mut self.told.status
    }

    /// Adds a window and writes the file. The daemon goes on without: a failure is only logged.
    pub fn window(&mut self, report: &WindowReport, tally: &Tally) {
        self.add(&report.snapshot);
        if let Some(history) = &mut self.history {
            history.window(&report.snapshot, &report.plan);
        }
        self.told.rows = self.rows();
        let told = &mut self.told;
        told.policy.clone_from(&report.plan.policy);
        told.status.window(report);
        told.bound_threads = report.owned_threads as u64;
        told.stuck_copies = report.stuck as u64;
        if let Some(cost) = report.cost {
            told.observer_cpu_s = Some(told.observer_cpu_s.unwrap_or(0.0) + cost.cpu * report.snapshot.window_s);
            told.observer_memory_bytes = Some(cost.memory_bytes);
        }
        told.moves = tally
            .iter()
            .map(|(kind, result, count)| Moves { kind: kind.to_owned(), result: result.to_owned(), count })
            .collect();
        told.boot_s = boot_s();
        told.unix_s = SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64());
        if let Err(error) = self.write() {
            tracing::warn!("{}: {error}: `homenode export` does not see this window", self.dir.join(FILE).display());
        }
    }

    fn add(&mut self, snapshot: &Snapshot) {
        self.change_hands();
        let told = &mut self.told;
        told.windows += 1;
        told.window_s = snapshot.window_s;
        told.threads = 0;
        let window = told.windows;
        let mut listed = NodeBytes::default();
        let mut names = Names::default();
        for thread in snapshot.touched().filter(|thread| thread.file_bytes() > 0) {
            told.threads += u64::from(thread.tid != 0);
            thread.read_bytes.iter().for_each(|(node, bytes)| listed.add(node, bytes));
            let name = thread.group.as_ref().map(|group| names.of(group));
            let (row, called) = match thread.group.as_ref().zip(name.as_ref()) {
                None => (&mut self.unknown, UNKNOWN),
                Some((group, name)) => {
                    let service = self.services.entry(name.clone()).or_default();
                    if !service.shown && self.shown < SHOWN {
                        service.shown = true;
                        self.shown += 1;
                    }
                    if service.window != window && !service.shown {
                        self.candidates.push(name.clone());
                    }
                    // One that was started again is the same service.
                    service.ended = false;
                    service.recent = service.recent(window) + thread.file_bytes() as f64;
                    if service.window != window {
                        service.rules.clear();
                    }
                    let more = thread.rule.iter().filter(|rule| !service.rules.contains(rule)).cloned();
                    let more: Vec<_> = more.take(RULES.saturating_sub(service.rules.len())).collect();
                    service.rules.extend(more);
                    service.window = window;
                    // A service may go on in another group.
                    service.group = Some(group.clone());
                    if service.shown { (&mut service.bytes, &**name) } else { (&mut self.other, OTHER) }
                }
            };
            row.add_thread(thread);
            if let Some(history) = &mut self.history {
                history.thread(called, name.as_deref().unwrap_or_default(), thread);
            }
        }
        for node in &snapshot.nodes {
            let unlisted = node.read_bytes.saturating_sub(listed.get(node.id));
            told.unlisted_read_bytes.add(node.id, unlisted);
            if let Some(history) = &mut self.history {
                history.unlisted(node.id, unlisted);
            }
        }
        self.forget(window);
        self.told.services = self.services.len() as u64;
    }

    /// Gives rows to services that read much more in the last window than some that have one. The
    /// window has been written by then, with the bytes that their rows had.
    fn change_hands(&mut self) {
        let (window, mut candidates) = (self.told.windows, std::mem::take(&mut self.candidates));
        if candidates.is_empty() {
            return;
        }
        // Rows of groups that have ended go first.
        for service in self.services.values_mut().filter(|service| service.shown && service.window < window) {
            let there = service.group.as_deref().and_then(|group| self.hierarchies.has(services::path(group)));
            service.ended = there == Some(false);
        }
        let recent = |name: &Arc<str>| self.services.get(name).map_or(0.0, |service| service.recent(window));
        let mut shown: Vec<Arc<str>> =
            self.services.iter().filter(|(_, service)| service.shown).map(|(name, _)| name.clone()).collect();
        candidates.sort_by(|a, b| recent(b).total_cmp(&recent(a)).then_with(|| a.cmp(b)));
        shown.sort_by(|a, b| recent(a).total_cmp(&recent(b)).then_with(|| a.cmp(b)));
        let takes: Vec<_> = candidates
            .into_iter()
            .zip(shown)
            .take(CHANGES)
            .take_while(|(new, old)| recent(new) > MORE * recent(old))
            .collect();
        for (new, old) in takes {
            for (name, shown) in [(new, true), (old, false)] {
                if let Some(service) = self.services.get_mut(&name) {
                    service.shown = shown;
                }
            }
        }
    }

    fn forget(&mut self, window: u64) {
        if self.services.len() <= KEPT + KEPT / 2 {
            return;
        }
        let mut idle: Vec<(f64, Arc<str>)> = self
            .services
            .iter()
            .filter(|(_, service)| !service.shown)
            .map(|(name, service)| (service.recent(window), name.clone()))
            .collect();
        idle.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, name) in idle.into_iter().take(self.services.len() - KEPT) {
            self.services.remove(&name);
        }
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        let row = |service: &str, rules: &[Arc<str>], bytes: &Flow| {
            let (service, bytes, rules) = (service.to_owned(), bytes.clone(), rules.to_vec());
            Row { service, bytes, rules }
        };
        let shown = self.services.iter().filter(|(_, service)| service.shown);
        let mut rows: Vec<Row> = shown.map(|(name, of)| row(name, &of.rules, &of.bytes)).collect();
        rows.sort_by(|a, b| a.service.cmp(&b.service));
        rows.extend([row(OTHER, &[], &self.other), row(UNKNOWN, &[], &self.unknown)]);
        rows
    }

    #[cfg(test)]
    pub(crate) fn unlisted(&self) -> &NodeBytes {
        &self.told.unlisted_read_bytes
    }

    fn write(&self) -> std::io::Result<()> {
        // Everybody may read it.
        published::write(&self.dir, FILE, &self.told, 0o644)
    }
}

impl Drop for Totals {
    fn drop(&mut self) {
        published::remove(&self.dir, FILE);
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// The daemon runs.
    Now(Box<Told>),
    /// It does not, or hangs: why, and when it wrote last (seconds since 1970), if it ever did.
    Stale(String, Option<f64>),
}

/// Reads the file of the daemon that has this state directory.
///
/// # Errors
///
/// The file is there and may not be read, or is none of a daemon's.
pub fn read(dir: &Path) -> Result<Found, Failure> {
    let path = dir.join(FILE);
    let failure = |e: &std::io::Error| Failure::io("read", &path, e);
    let text = match published::text(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Found::Stale(format!("no homenode run publishes in {}", dir.display()), None));
        }
        Err(error) => return Err(failure(&error)),
    };
    let told: Told = serde_json::from_slice(&text).map_err(|e| failure(&std::io::Error::from(e)))?;
    if told.version != 1 {
        let why = format!("its version is {}, this homenode knows version 1", told.version);
        return Err(failure(&std::io::Error::new(ErrorKind::InvalidData, why)));
    }
    Ok(match told.stale() {
        None => Found::Now(Box::new(told)),
        Some(why) => Found::Stale(why, Some(told.unix_s)),
    })
}

impl Told {
    /// Why the daemon that wrote this runs no more, or hangs.
    pub fn stale(&self) -> Option<String> {
        let (boot, age) = (boot(), boot_s() - self.boot_s);
        if !self.boot.is_empty() && !boot.is_empty() && self.boot != boot {
            Some("it was written before this boot".to_owned())
        } else if !(-1.0..=self.window_s * LATE.0 + LATE.1).contains(&age) {
            Some(format!("homenode (pid {}) has ended or hangs: it has written nothing for {age:.0} s", self.pid))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use placement::{FileUse, NodeLoad, Thread};
    use topology::{FileId, NodeId};

    use super::*;

    fn bytes(of: &[(u32, u64)]) -> NodeBytes {
        of.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect()
    }

    /// Process N is in `/uN.service`; of 1, it is not known.
    fn thread(pid: u32, node: u32, read: &[(u32, u64)]) -> Thread {
        let files = vec![FileUse { file: FileId::default(), read_bytes: bytes(read), ..FileUse::default() }];
        let group = (pid > 1).then(|| format!("/u{pid}.service").into());
        Thread { tid: pid, pid, group, node: NodeId(node), read_bytes: bytes(read), files, ..Thread::default() }
    }

    fn snapshot(threads: Vec<Thread>) -> Snapshot {
        Snapshot { version: 1, window_s: 1.0, threads, ..Snapshot::default() }
    }

    fn pairs(totals: &Totals, service: &str) -> Vec<(u32, u32, u64)> {
        let row = totals.rows().into_iter().find(|row| row.service == service);
        row.map_or_else(Vec::new, |row| {
            row.bytes.pairs.iter().map(|p| (p.cpu_node.0, p.data_node.0, p.read_bytes)).collect()
        })
    }

    #[test]
    fn bytes_go_to_their_service_and_pair_of_nodes() {
        let root = tempfile::tempdir().unwrap();
        let mut totals = Totals::new(root.path(), root.path(), "nthread");
        for _ in 0..2 {
            let node = |id, read_bytes| NodeLoad { id: NodeId(id), read_bytes, ..NodeLoad::default() };
            let threads = vec![thread(1, 0, &[(0, 1)]), thread(2, 0, &[(0, 10), (1, 30)]), thread(3, 1, &[(1, 5)])];
            let ended = vec![Thread { tid: 0, pid: 0, ..thread(3, 0, &[(1, 4)]) }];
            totals.add(&Snapshot { nodes: vec![node(0, 11), node(1, 40)], ended, ..snapshot(threads) });
        }
        assert_eq!(pairs(&totals, "u2.service"), [(0, 0, 20), (0, 1, 60)]);
        assert_eq!(pairs(&totals, "u3.service"), [(0, 1, 8), (1, 1, 10)]);
        assert_eq!(pairs(&totals, UNKNOWN), [(0, 0, 2)]);
        assert_eq!((totals.told.windows, totals.told.threads, totals.told.services), (2, 3, 2));
        assert_eq!(totals.told.unlisted_read_bytes, bytes(&[(0, 0), (1, 2)]));
    }

    /// They are labels of metrics.
    #[test]
    fn a_row_has_the_rules_of_the_last_window_and_few_of_them() {
        let root = tempfile::tempdir().unwrap();
        let mut totals = Totals::new(root.path(), root.path(), "nthread");
        let by = |pid: u32, rule: &str| Thread { rule: Some(rule.into()), ..thread(pid, 0, &[(0, 1)]) };
        let rules = |totals: &Totals| {
            let rows = totals.rows();
            rows.into_iter().map(|row| row.rules.iter().map(|rule| rule.to_string()).collect()).collect::<Vec<Vec<_>>>()
        };
        totals.add(&snapshot(vec![by(2, "a"), by(2, "b"), by(2, "a"), by(1, "a"), thread(3, 0, &[(0, 1)])]));
        let none: Vec<String> = Vec::new();
        assert_eq!(rules(&totals), [vec!["a".to_owned(), "b".to_owned()], none.clone(), none.clone(), none]);
        totals.add(&snapshot((0..10).map(|i| by(2, &i.to_string())).collect()));
        assert_eq!(rules(&totals)[0], ["0", "1", "2", "3"][..RULES]);
    }

    /// Rows come and go with what services read; no counter goes down, and no byte is lost.
    #[test]
    fn no_counter_goes_down_when_a_service_loses_its_row() {
        let last = SHOWN as u32 + 11;
        let root = tempfile::tempdir().unwrap();
        let mut totals = Totals::new(root.path(), root.path(), "nthread");
        let mut before: HashMap<String, u64> = HashMap::new();
        let mut read = 0;
        let mut had_one: std::collections::BTreeSet<String> = Default::default();
        for window in 0..40u64 {
            // The last ten read much in every other five windows, the others a little in all.
            let much = if window / 5 % 2 == 1 { 1_000_000 } else { 1 };
            let of = |pid| if pid > SHOWN as u32 + 1 { much } else { 10 };
            read += (2..=last).map(of).sum::<u64>();
            totals.add(&snapshot((2..=last).map(|pid| thread(pid, 0, &[(1, of(pid))])).collect()));
            let rows = totals.rows();
            assert!(rows.len() <= SHOWN + 2);
            for row in &rows {
                let now = row.bytes.read_bytes;
                let was = before.insert(row.service.clone(), now).unwrap_or(0);
                assert!(now >= was, "{}: {was}, then {now}", row.service);
            }
            had_one.extend(rows.into_iter().map(|row| row.service));
        }
        assert_eq!(had_one.len(), last as usize - 1 + 2, "each service had a row for some time");
        // What rows without a place had counted is in `before`, too.
        assert_eq!(before.values().sum::<u64>(), read);
    }

    /// Rows of services that had ended were 42 of 100, and a service that read little had none.
    #[test]
    fn services_that_have_ended_give_their_rows_back_first() {
        let last = SHOWN as u32 + 1;
        let root = tempfile::tempdir().unwrap();
        let groups = root.path().join("cg");
        std::fs::create_dir(root.path().join("self")).unwrap();
        let mounts = format!("30 23 0:28 / {} rw - cgroup2 cgroup2 rw\n", groups.display());
        std::fs::write(root.path().join("self/mountinfo"), mounts).unwrap();
        let group = |pid: u32| groups.join(format!("u{pid}.service"));
        (2..=last + 2).for_each(|pid| std::fs::create_dir_all(group(pid)).unwrap());
        let mut totals = Totals::new(root.path(), root.path(), "nthread");
        totals.add(&snapshot((2..=last).map(|pid| thread(pid, 0, &[(1, 1_000_000)])).collect()));
        let small = || snapshot(vec![thread(last + 1, 0, &[(1, 10)]), thread(last + 2, 0, &[(1, 5)])]);
        for _ in 0..3 {
            totals.add(&small());
        }
        assert_eq!(pairs(&totals, &format!("u{}.service", last + 1)), [], "all others are there and have read more");
        std::fs::remove_dir(group(7)).unwrap();
        let before = pairs(&totals, "u7.service");
        for _ in 0..3 {
            totals.add(&small());
        }
        assert!(!pairs(&totals, &format!("u{}.service", last + 1)).is_empty());
        assert_eq!(pairs(&totals, &format!("u{}.service", last + 2)), []);
        assert_eq!((totals.rows().len(), pairs(&totals, "u7.service")), (SHOWN + 2, vec![]));
        // It was started again, and goes on where it was.
        std::fs::create_dir(group(7)).unwrap();
        for _ in 0..3 {
            totals.add(&snapshot(vec![thread(7, 0, &[(1, 1_000)])]));
        }
        assert!(pairs(&totals, "u7.service")[0].2 > before[0].2);
    }

    #[test]
    fn memory_is_bounded() {
        let last = KEPT as u32 * 2;
        let root = tempfile::tempdir().unwrap();
        let mut totals = Totals::new(root.path(), root.path(), "nthread");
        for first in (2..=last).step_by(400) {
            totals.add(&snapshot((first..first + 400).map(|pid| thread(pid, 0, &[(0, 10)])).collect()));
        }
        assert!(totals.services.len() <= KEPT * 3 / 2, "{}", totals.services.len());
        assert_eq!(totals.services.values().filter(|service| service.shown).count(), SHOWN);
    }

    #[test]
    fn a_daemon_that_has_ended_or_hangs_is_told_from_one_that_runs() {
        let root = tempfile::tempdir().unwrap();
        let why = |dir: &Path| match read(dir).unwrap() {
            Found::Now(_) => "runs".to_owned(),
            Found::Stale(why, _) => why,
        };
        assert!(why(root.path()).contains("publishes"), "{}", why(root.path()));
        let mut totals = Totals::new(root.path(), root.path(), "nthread");
        totals.add(&snapshot(vec![thread(2, 0, &[(1, 9)])]));
        totals.told.boot_s = boot_s();
        totals.told.rows = totals.rows();
        totals.write().unwrap();
        assert_eq!(read(root.path()).unwrap(), Found::Now(Box::new(totals.told.clone())));
        assert_eq!(std::fs::metadata(root.path().join(FILE)).unwrap().permissions().mode() & 0o777, 0o644);
        totals.told.boot_s -= 60.0;
        totals.write().unwrap();
        assert!(why(root.path()).contains("nothing for 60 s"), "{}", why(root.path()));
        totals.told.boot_s += 60.0;
        // A reader in a container sees no process of this id, or another one.
        totals.told.pid = u32::MAX;
        totals.write().unwrap();
        assert_eq!(why(root.path()), "runs");
        totals.told.pid = std::process::id();
        totals.told.boot = "another".to_owned();
        totals.write().unwrap();
        assert!(why(root.path()).contains("this boot"), "{}", why(root.path()));
        std::fs::write(root.path().join(FILE), "{}").unwrap();
        assert!(read(root.path()).unwrap_err().line().contains("totals.json"));
        drop(totals);
        assert!(!root.path().join(FILE).exists());
    }

    /// Paths, ids and names of threads have no place in what everybody may read.
    #[test]
    fn the_file_has_no_paths_no_ids_and_no_names_of_threads() {
        let root = tempfile::tempdir().unwrap();
        let mut totals = Totals::new(root.path(), root.path(), "nthread");
        let secret = |text: &str| format!("secret-{text}");
        let mut reader = Thread { comm: secret("comm"), pinned: Some(secret("why")), ..thread(2, 0, &[(1, 9)]) };
        let id = FileId { dev: 0, ino: 123_456_789, generation: 0 };
        reader.files[0].file = id;
        let file = placement::ObservedFile { file: id, path: Some(secret("path")), ..Default::default() };
        totals.add(&Snapshot { files: vec![file], notes: vec![secret("note")], ..snapshot(vec![reader]) });
        totals.told.rows = totals.rows();
        totals.write().unwrap();
        let text = std::fs::read_to_string(root.path().join(FILE)).unwrap();
        assert!(text.contains("u2.service") && !text.contains("secret") && !text.contains("123456789"), "{text}");
    }
}
