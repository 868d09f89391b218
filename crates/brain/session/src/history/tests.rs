//! The history from the windows of a daemon to what is found again.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use engine::{Tally, WindowReport};
use placement::flow::{Flow, Pair};
use placement::{FileUse, NodeLoad, ObservedFile, Plan, Snapshot, Thread};
use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use topology::{FileId, NodeBytes, NodeId};

use super::form::{MAGIC, Texts, decode, encode};
use super::read::segments;
use super::write::Writer;
use super::*;
use crate::map::Map;
use crate::totals::Totals;

const EVER: Range = Range { since_s: 0.0, until_s: f64::INFINITY };

/// Reads and writes some of two nodes, the more the higher `n`, by process `n` of service `n`; of
/// every seventh the service is not known.
fn thread(n: u32, chance: &mut ChaCha12Rng) -> Thread {
    let mut some =
        || -> NodeBytes { (0..2).map(|node| (NodeId(node), chance.random_range(0..1u64 << (20 + n / 10)))).collect() };
    let (read_bytes, write_bytes) = (some(), some());
    let file = FileId { dev: 8 << 20, ino: n.into(), generation: 1 };
    Thread {
        tid: 1000 + n,
        pid: n,
        start_ns: Some(u64::from(n) << 40),
        comm: format!("c{n}"),
        group: (!n.is_multiple_of(7)).then(|| format!("/s{n}.service").into()),
        rule: n.is_multiple_of(3).then(|| "rule".into()),
        node: NodeId(chance.random_range(0..2)),
        allowed_nodes: vec![NodeId(0), NodeId(1)],
        cpu_s: 0.25,
        files: vec![FileUse { file, read_bytes: read_bytes.clone(), ..FileUse::default() }],
        read_bytes,
        write_bytes,
        ..Thread::default()
    }
}

fn report(threads: Vec<Thread>) -> WindowReport {
    let file = |t: &Thread| ObservedFile {
        file: t.files[0].file,
        path: Some(format!("/data/{}", t.comm)),
        size: Some(7),
        bytes: t.read_bytes.clone(),
        ..ObservedFile::default()
    };
    let node = |id| NodeLoad {
        id: NodeId(id),
        cpus: vec![0, 1],
        cpu_s: Some(1.0),
        // A hundred bytes more than these threads read.
        read_bytes: threads.iter().map(|t| t.read_bytes.get(NodeId(id))).sum::<u64>() + 100,
        ..NodeLoad::default()
    };
    let (nodes, files) = ((0..2).map(node).collect(), threads.iter().map(file).collect());
    let snapshot = Snapshot { version: 2, window_s: 1.0, nodes, files, threads, ..Snapshot::default() };
    WindowReport {
        snapshot,
        plan: Plan::new("off"),
        outcomes: Vec::new(),
        remote_share: None,
        jobs: Vec::new(),
        queued: 0,
        stuck: 0,
        owned_threads: 0,
        inherited_restored: 0,
        notes: Vec::new(),
        cost: None,
    }
}

/// A summary that ends at this time.
fn summary(unix_s: f64, chance: &mut ChaCha12Rng) -> Summary {
    of_threads(30, unix_s, chance)
}

fn of_threads(threads: u32, unix_s: f64, chance: &mut ChaCha12Rng) -> Summary {
    let mut summary = Summary::default();
    for _ in 0..10 {
        let threads: Vec<Thread> = (0..threads).map(|n| thread(n, chance)).collect();
        threads.iter().for_each(|thread| {
            // As totals.rs says it.
            let name = thread.group.is_some().then(|| format!("s{}.service", thread.pid));
            summary.add_thread(name.as_deref().unwrap_or(UNKNOWN), name.as_deref().unwrap_or_default(), thread);
        });
        (0..2).for_each(|node| summary.add_unlisted(NodeId(node), 100));
        summary.add_window(&report(threads).snapshot, &Plan::new("off"), unix_s);
    }
    summary.end();
    summary
}

fn chance() -> ChaCha12Rng {
    ChaCha12Rng::seed_from_u64(1)
}

fn sums<'a>(summaries: impl IntoIterator<Item = &'a Summary>) -> BTreeMap<String, Flow> {
    let mut sums: BTreeMap<String, Flow> = BTreeMap::new();
    for summary in summaries {
        summary.services.iter().for_each(|(name, of)| sums.entry(name.clone()).or_default().add(&of.bytes));
    }
    sums
}

fn all(dir: &Path) -> (Vec<Summary>, Found) {
    let mut all = Vec::new();
    let found = read::read(dir, EVER, |summary| all.push(summary.clone())).unwrap();
    (all, found)
}

fn writer(dir: &Path) -> Writer {
    Writer::new(dir, 200_000_000)
}

/// The rows of the metrics, also of services that have lost theirs, and what is in no row.
#[test]
fn the_map_of_the_history_has_the_sums_of_the_metrics() {
    let root = tempfile::tempdir().unwrap();
    let history = root.path().join("history");
    let mut totals = Totals::new(root.path(), root.path(), "off");
    totals.keep(Recorder::start(&history, 200_000_000));
    let mut chance = chance();
    let mut metrics: BTreeMap<String, Flow> = BTreeMap::new();
    for window in 0..43 {
        // Others come to read more than those that have rows, and 30 have none.
        let first = window / 10 * 25;
        let threads = (first..first + 130).map(|n| thread(n, &mut chance)).collect();
        totals.window(&report(threads), &Tally::default());
        metrics.extend(totals.rows().into_iter().map(|row| (row.service, row.bytes)));
    }
    let unlisted = totals.unlisted().clone();
    drop(totals);
    let mut map = Map::default();
    let found = read::read(&history, EVER, |summary| {
        assert_eq!((summary.threads.len(), summary.files.len()), (BUSIEST, BUSIEST));
        map.add_summary(summary);
    })
    .unwrap();
    assert_eq!((found.summaries, found.lost, found.damaged), (5, 0, 0), "the last one has three windows");
    let report = map.report(10);
    assert_eq!((report.windows, report.seconds, report.unlisted_read_bytes), (43, 43.0, unlisted));
    assert!(metrics.len() > 110 && metrics["other"].read_bytes > 0 && metrics[UNKNOWN].read_bytes > 0);
    let rows: BTreeMap<String, Flow> = report.services.into_iter().map(|row| (row.service, row.bytes)).collect();
    assert_eq!(rows, metrics);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&history), 0o700);
    segments(&history).unwrap().iter().for_each(|segment| assert_eq!(mode(&segment.path), 0o600));
}

#[test]
fn a_summary_is_read_as_it_was_written() {
    let (mut chance, mut texts) = (chance(), Texts::default());
    let mut odd = summary(1e9, &mut chance);
    // Users choose names of groups, threads and files.
    for name in ["", "\n\u{1b}[31m", "\u{202e}", "é".repeat(3000).as_str(), "other"] {
        let of = odd.services.entry(name.to_owned()).or_default();
        of.rules = vec![name.to_owned()];
        let pair = Pair { read_bytes: u64::MAX, ..Pair::default() };
        of.bytes.add(&Flow {
            sums: placement::flow::Sums { read_bytes: u64::MAX, ..Default::default() },
            pairs: vec![pair],
        });
        odd.threads.values_mut().for_each(|thread| thread.comm = name.to_owned());
        odd.files.values_mut().for_each(|file| file.path = Some(name.to_owned()));
    }
    let written = [odd, Summary::default(), summary(1e9 + 10.0, &mut chance)];
    let mut file = MAGIC.to_vec();
    written.iter().for_each(|summary| file.extend(encode(&mut summary.clone(), &mut texts).unwrap()));
    assert_eq!(decode(&file), (written.to_vec(), 0));
    assert!(texts.values().max().map_or(0, |last| last + 1) == texts.len() as u64);
    // Nothing could be read behind a longer one.
    let mut long = Summary::default();
    long.services.insert("x".repeat(5 << 20), Service::default());
    assert!(encode(&mut long, &mut Texts::default()).is_err());
}

/// Threads of no known service count for its row, and not for the one of all others.
#[test]
fn the_row_of_the_unknown_has_its_threads_and_no_rules() {
    let mut summary = Summary::default();
    let mut chance = chance();
    for (row, service, n) in
        [(UNKNOWN, "", 0), (UNKNOWN, "", 21), (OTHER, "s3.service", 3), ("s6.service", "s6.service", 6)]
    {
        summary.add_thread(row, service, &thread(n, &mut chance));
    }
    summary.end();
    let of = |row: &str| (summary.services[row].threads, summary.services[row].rules.len());
    assert_eq!([UNKNOWN, OTHER, "s6.service"].map(of), [(2, 0), (1, 0), (1, 1)]);
}

/// The second process has the id of the first one, which has ended.
#[test]
fn processes_with_the_same_id_are_told_apart_and_long_paths_are_cut() {
    let mut chance = chance();
    let mut map = Map::default();
    for start in [1, 2] {
        let mut summary = Summary::default();
        let one = Thread { tid: 9, start_ns: Some(start), process_start_ns: Some(start), ..thread(6, &mut chance) };
        summary.add_thread("a", "a", &one);
        let mut window = report(vec![one]).snapshot;
        window.files[0].path = Some("/é".repeat(2000));
        // Of the second one it is not known where it is.
        window.files[0].bytes = if start == 1 { window.files[0].bytes.clone() } else { NodeBytes::default() };
        summary.add_window(&window, &Plan::new("off"), 1e9);
        summary.end();
        let path = summary.files.values().next().unwrap().path.clone().unwrap();
        assert!(path.len() <= 512 && path.starts_with("/é/é"), "{path}");
        let file = [MAGIC.as_slice(), &encode(&mut summary, &mut Texts::default()).unwrap()].concat();
        map.add_summary(&decode(&file).0[0]);
    }
    let report = map.report(9);
    assert_eq!(report.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [6, 6]);
    assert!(report.files[0].nodes.total() > 0);
}

/// Wherever a crash cuts the last one short, and whichever byte of one in the middle is damaged.
#[test]
fn what_is_torn_or_damaged_costs_one_summary() {
    let (mut chance, mut texts) = (chance(), Texts::default());
    let mut written: Vec<Summary> = (0..3).map(|n| of_threads(3, 1e9 + 10.0 * f64::from(n), &mut chance)).collect();
    // Each has a text that the others have not.
    for (n, summary) in written.iter_mut().enumerate() {
        summary.services.insert(format!("only in {n}"), Service::default());
    }
    let frames: Vec<Vec<u8>> =
        written.iter().map(|summary| encode(&mut summary.clone(), &mut texts).unwrap()).collect();
    let file = [MAGIC.as_slice(), &frames.concat()].concat();
    let last = file.len() - frames[2].len();
    for cut in last..file.len() {
        let (found, damaged) = decode(&file[..cut]);
        assert_eq!((found.len(), damaged), (2, u64::from(cut > last)), "cut at {cut}");
        assert!(found == written[..2]);
    }
    let begin = last - frames[1].len();
    for at in begin + 4..last {
        let mut file = file.clone();
        file[at] ^= 0x10;
        let (found, damaged) = decode(&file);
        assert_eq!((found.len(), damaged), (2, 1), "byte {at}");
        assert!(found[0] == written[0] && found[1] == written[2], "byte {at}");
    }
    // Without its length nobody knows where it ends.
    for at in begin..begin + 4 {
        let mut file = file.clone();
        file[at] ^= 0x10;
        let (found, damaged) = decode(&file);
        assert!(!found.is_empty() && found[0] == written[0] && damaged > 0, "byte {at}");
    }
}

#[test]
fn a_day_later_there_are_minutes_with_the_same_sums_and_a_week_later_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (mut chance, mut writer) = (chance(), writer(root.path()));
    let at = |n: u32| 1e9 + 10.0 * f64::from(n);
    // The daemon stopped for a while within the hour.
    let written: Vec<Summary> =
        (0..40).filter(|n| !(20..23).contains(n)).map(|n| summary(at(n), &mut chance)).collect();
    written.iter().for_each(|summary| writer.take(summary.clone(), summary.unix_s));
    let (before, found) = all(root.path());
    assert!(before == written);
    let late = |days: f64| summary(at(0) + days * 86_400.0 + 2.0 * 3600.0, &mut ChaCha12Rng::seed_from_u64(2));
    let next = late(1.0);
    writer.take(next.clone(), next.unix_s);
    let (mut after, _) = all(root.path());
    assert!(after.pop() == Some(next.clone()));
    assert_eq!(sums(&after), sums(&written));
    let lengths: Vec<u64> = after.iter().map(|summary| summary.windows).collect();
    assert_eq!(lengths, [60, 60, 60, 20, 60, 60, 50]);
    assert_eq!((after[0].unix_s, after[3].unix_s), (at(5), at(19)), "none spans the stop");
    assert!(after.iter().all(|s| s.threads.len() == BUSIEST && s.files.len() == BUSIEST));
    let between = (found.between_s.unwrap().0, after.last().unwrap().unix_s);
    assert_eq!(found.between_s.unwrap(), between);
    let extensions = |dir: &Path| segments(dir).unwrap().iter().map(|s| s.minutes).collect::<Vec<_>>();
    assert_eq!(extensions(root.path()), [true, false]);
    // A crash had come before the file of seconds was removed.
    let seconds = segments(root.path()).unwrap()[0].path.with_extension("10s");
    std::fs::write(&seconds, MAGIC).unwrap();
    assert_eq!(all(root.path()).0.len(), 8);
    let last = [late(2.0), late(7.1)];
    writer.take(last[0].clone(), last[0].unix_s);
    assert!(!seconds.exists() && all(root.path()).0.len() == 9);
    writer.take(last[1].clone(), last[1].unix_s);
    let (after, _) = all(root.path());
    assert_eq!(sums(&after), sums([&next, &last[0], &last[1]]));
}

#[test]
fn the_oldest_go_when_there_are_too_many_bytes() {
    let root = tempfile::tempdir().unwrap();
    let (mut chance, mut writer) = (chance(), Writer::new(root.path(), 200_000));
    let one = summary(0.0, &mut chance);
    for n in 0..400 {
        let unix_s = 1e9 + 10.0 * f64::from(n);
        writer.take(Summary { unix_s, ..one.clone() }, unix_s);
        let bytes: u64 = segments(root.path()).unwrap().iter().map(|s| s.bytes).sum();
        assert!(bytes <= 200_000, "{bytes}");
    }
    let (kept, _) = all(root.path());
    assert_eq!(kept.last().unwrap().unix_s, 1e9 + 3990.0);
    assert!(kept.windows(2).all(|two| two[1].unix_s == two[0].unix_s + 10.0) && kept.len() > 20, "{}", kept.len());
}

#[test]
fn times_are_found_after_the_clock_was_put_back() {
    let root = tempfile::tempdir().unwrap();
    let (mut chance, mut writer) = (chance(), writer(root.path()));
    // From 10000 to 11000; then it was 9500.
    for n in 0..200 {
        let back = if n < 100 { 0.0 } else { 1500.0 };
        let boot_s = 10.0 * f64::from(n);
        writer.take(summary(10_000.0 + boot_s - back, &mut chance), boot_s);
    }
    assert_eq!(segments(root.path()).unwrap().len(), 2);
    let of = |since_s, until_s| {
        let mut ends = Vec::new();
        read::read(root.path(), Range { since_s, until_s }, |summary| ends.push(summary.unix_s)).unwrap();
        ends
    };
    assert_eq!(of(9_520.0, 9_540.0), [9_530.0, 9_540.0]);
    assert_eq!(of(10_000.0, 10_020.0), [10_010.0, 10_020.0, 10_010.0, 10_020.0], "this time there was twice");
    assert_eq!(of(10_600.0, 10_620.0), [10_610.0, 10_620.0], "only before");
    let at = |unix_s| Cursor::at(root.path(), unix_s).unwrap().unwrap().summary().unwrap().unix_s;
    assert_eq!([9_545.0, 10_005.0, 10_605.0].map(at), [9_550.0, 10_010.0, 10_610.0]);
    // Before the first one the first, and after the last one the last.
    assert_eq!([0.0, 1e9].map(at), [10_000.0, 10_490.0]);
    let mut cursor = Cursor::at(root.path(), 9_495.0).unwrap().unwrap();
    let mut ends = Vec::new();
    for _ in 0..2 {
        assert!(cursor.step(true).unwrap());
        ends.push(cursor.summary().unwrap().unix_s);
    }
    while cursor.step(false).unwrap() {}
    ends.push(cursor.summary().unwrap().unix_s);
    assert_eq!(ends, [10_990.0, 10_980.0, 10_490.0], "in the order in which they were written");
}

/// What the first start left is cut short; the second adds nothing behind it.
#[test]
fn each_start_has_a_file_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let mut chance = chance();
    let written: Vec<Summary> = (1..4).map(|n| summary(1e9 + 10.0 * f64::from(n), &mut chance)).collect();
    let mut first = writer(root.path());
    written[..2].iter().for_each(|summary| first.take(summary.clone(), summary.unix_s));
    drop(first);
    let [torn] = segments(root.path()).unwrap().try_into().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&torn.path).unwrap();
    file.set_len(torn.bytes - 5).unwrap();
    writer(root.path()).take(written[2].clone(), written[2].unix_s);
    let (found, of) = all(root.path());
    assert!(found == [written[0].clone(), written[2].clone()]);
    assert_eq!((of.summaries, of.damaged, segments(root.path()).unwrap().len()), (2, 1, 2));
}

#[test]
fn a_disk_that_cannot_be_written_costs_summaries_and_says_how_many() {
    let root = tempfile::tempdir().unwrap();
    let (dir, mut chance) = (root.path().join("history"), chance());
    let mut writer = writer(&dir);
    let mut put = |n: u32| {
        // Of some the thread that reads windows had lost one before.
        let lost = u64::from(n == 402);
        let summary = Summary { lost, ..summary(1e9 + 10.0 * f64::from(n), &mut chance) };
        writer.take(summary.clone(), summary.unix_s);
    };
    put(0);
    std::fs::rename(&dir, root.path().join("away")).unwrap();
    std::fs::write(&dir, "").unwrap();
    // The open file can be written; the next one cannot be made.
    put(1);
    (400..403).for_each(&mut put);
    std::fs::remove_file(&dir).unwrap();
    std::fs::rename(root.path().join("away"), &dir).unwrap();
    put(403);
    let (found, of) = all(&dir);
    let ends: Vec<u32> = found.iter().map(|s| ((s.unix_s - 1e9) / 10.0) as u32).collect();
    assert_eq!((ends, of.lost), (vec![0, 1, 403], 4));
}

/// A file that cannot be read may be of a later version: it stays for its week. What is damaged in
/// one that can be read is counted.
#[test]
fn what_cannot_be_read_is_not_folded_away() {
    let root = tempfile::tempdir().unwrap();
    let mut chance = chance();
    let mut put = |n: u32| {
        let summary = summary(1e9 + f64::from(n), &mut chance);
        writer(root.path()).take(summary.clone(), summary.unix_s);
    };
    (0..2).for_each(|n| put(n * 10));
    let files = segments(root.path()).unwrap();
    std::fs::write(&files[0].path, "HNPAST9\nwhatever").unwrap();
    let mut bytes = std::fs::read(&files[1].path).unwrap();
    bytes.extend([1; 20]);
    std::fs::write(&files[1].path, bytes).unwrap();
    let begun = files[1].path.with_extension("new");
    std::fs::write(&begun, "half of it").unwrap();
    put(2 * 86_400);
    assert!(!begun.exists());
    let kept: Vec<_> = segments(root.path()).unwrap().iter().map(|s| (s.number, s.minutes)).collect();
    assert_eq!(kept, [(0, false), (1, true), (2, false)]);
    let (_, found) = all(root.path());
    assert_eq!((found.summaries, found.lost, found.damaged), (2, 1, 1));
    put(8 * 86_400);
    assert_eq!(segments(root.path()).unwrap().iter().map(|s| s.number).collect::<Vec<_>>(), [2, 3]);
}

/// One summary is longer than any that can be read again: it is lost, once, and its file is not
/// begun.
#[test]
fn a_summary_that_is_too_long_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = writer(root.path());
    let mut long = Summary { unix_s: 1e9, windows: 1, ..Summary::default() };
    long.services.insert("x".repeat(5 << 20), Service::default());
    writer.take(long, 1e9);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    let next = summary(1e9 + 10.0, &mut chance());
    writer.take(next, 1e9 + 10.0);
    let (_, found) = all(root.path());
    assert_eq!((found.summaries, found.lost, found.damaged), (1, 1, 0));
}

/// A directory, a pipe and a link with such names; two files with one number; and a file whose
/// directory was removed.
#[test]
fn odd_files_keep_nobody_from_reading_and_writing() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("history");
    let (mut chance, mut writer) = (chance(), writer(&dir));
    let mut put = |n: u32| {
        let summary = summary(1e9 + 10.0 * f64::from(n), &mut chance);
        writer.take(summary.clone(), summary.unix_s);
    };
    put(0);
    let first = segments(&dir).unwrap()[0].path.clone();
    std::fs::create_dir(dir.join("0000000000-5.10s")).unwrap();
    std::os::unix::fs::symlink(&first, dir.join("0000000000-6.10s")).unwrap();
    let pipe = dir.join("0000000000-7.10s");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let twin = dir.join("0000000000-900000000.60s");
    std::fs::copy(&first, &twin).unwrap();
    put(400);
    assert!(!twin.exists() && first.exists(), "its week is over");
    std::fs::copy(&first, dir.join("0000000000-999999000.60s")).unwrap();
    put(800);
    assert!(first.exists());
    assert_eq!(all(&dir).0.len(), 4);
    std::fs::remove_dir_all(&dir).unwrap();
    put(801);
    assert_eq!(all(&dir).0.len(), 1);
}

/// The first file is damaged, and the wanted time before all.
#[test]
fn the_first_is_that_of_the_first_file_with_any() {
    let root = tempfile::tempdir().unwrap();
    let mut chance = chance();
    for n in 0..3 {
        let summary = summary(1e9 + 10.0 * f64::from(n), &mut chance);
        writer(root.path()).take(summary.clone(), summary.unix_s);
    }
    std::fs::write(&segments(root.path()).unwrap()[0].path, "").unwrap();
    let at = |unix_s| Cursor::at(root.path(), unix_s).unwrap().unwrap().summary().unwrap().unix_s;
    assert_eq!([0.0, 1e9 + 5.0, 1e9 + 15.0, 2e9].map(at), [10.0, 10.0, 20.0, 20.0].map(|s| 1e9 + s));
}

#[test]
fn who_keeps_nothing_has_nothing_left() {
    let root = tempfile::tempdir().unwrap();
    let one = summary(1e9, &mut chance());
    writer(root.path()).take(one, 1e9);
    std::fs::write(root.path().join("notes"), "").unwrap();
    forget(root.path()).unwrap().join().unwrap();
    assert_eq!(std::fs::read_dir(root.path()).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>(), ["notes"]);
    let missing = root.path().join("missing");
    forget(&missing).unwrap().join().unwrap();
    assert!(!missing.exists());
}

/// Size and CPU time of a week in which 100 of 1,000 services read, with four threads each that run
/// on two nodes and read from both; each file is read for 100 s. Windows take a second on the first
/// day, then ten, to be done sooner. `bench/README.md` has the figures.
#[test]
#[ignore = "a measurement: HOMENODE_HISTORY=DIR cargo test --release -p homenode-session a_week -- --ignored --nocapture"]
fn a_week() {
    const DAY: u32 = 86_400;
    let root = tempfile::tempdir_in(std::env::var_os("HOMENODE_HISTORY").unwrap_or(".".into())).unwrap();
    let (mut writer, mut chance) = (writer(root.path()), chance());
    let mut report = report((0..400).map(|n| thread(n, &mut chance)).collect());
    let names: Vec<String> = (0..400).map(|n| format!("service-{}.service", n / 4)).collect();
    let cpu_s = || linux::clock::s(linux::clock::ClockId::ThreadCPUTime);
    let (mut summary, mut spent_s, mut at, mut largest) = (Summary::default(), [0.0; 2], 0, 0);
    while at < 8 * DAY {
        let later = usize::from(at >= DAY);
        let length = [1, 10][later];
        at += length;
        let unix_s = 1e9 + f64::from(at);
        report.snapshot.window_s = f64::from(length);
        for (n, thread) in report.snapshot.threads.iter_mut().enumerate() {
            let most = 100_000_000 * u64::from(length);
            thread.node = NodeId(n as u32 % 2);
            thread.read_bytes = (0..2).map(|node| (NodeId(node), chance.random_range(0..most))).collect();
            thread.write_bytes = NodeBytes::default();
            let used = &mut thread.files[0];
            used.read_bytes.clone_from(&thread.read_bytes);
            let number = u64::from(at / 100) * 400 + n as u64;
            let seen = &mut report.snapshot.files[n];
            if seen.path.is_none() || used.file.ino != number {
                used.file.ino = number;
                seen.path = Some(format!("/var/lib/service-{n}/data/base/16384/{number:012}.data"));
            }
            (seen.file, seen.bytes) = (used.file, thread.read_bytes.clone());
        }
        let begin_s = cpu_s();
        report.snapshot.threads.iter().zip(&names).for_each(|(thread, name)| summary.add_thread(name, name, thread));
        summary.add_window(&report.snapshot, &report.plan, unix_s);
        if at.is_multiple_of(10) {
            summary.end();
            writer.take(std::mem::take(&mut summary), unix_s);
        }
        spent_s[later] += cpu_s() - begin_s;
        if at.is_multiple_of(3600) {
            largest = largest.max(segments(root.path()).unwrap().iter().map(|s| s.bytes).sum::<u64>());
        }
    }
    let (begin_s, mut read) = (cpu_s(), 0);
    read::read(root.path(), EVER, |_| read += 1).unwrap();
    println!(
        "{} MB at most; {:.3} % of a CPU with windows of 1 s, {:.3} % with those of 10 s; {read} summaries are read in \
         {:.1} s",
        largest / 1_000_000,
        100.0 * spent_s[0] / f64::from(DAY),
        100.0 * spent_s[1] / f64::from(7 * DAY),
        cpu_s() - begin_s
    );
    assert!(largest <= 200_000_000);
}
