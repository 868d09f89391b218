//! Scenario files: what is refused, and with which words; and that the ones in `scenarios/` run.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::path::Path;

use simulate::ScenarioFile;

const GOOD: &str = r#"
duration_s = 10
policy = "nthread"

[machine]
nodes = 2
cpus = 4
memory = "16 GiB"

[[workload]]
kind = "fio"
threads = 4
file_size = "1 GiB"
data = 0
"#;

fn error(text: &str) -> String {
    ScenarioFile::parse(text, Path::new("x.toml")).unwrap_err().to_string()
}

/// The scenario with a line replaced.
fn with(line: &str, new: &str) -> String {
    assert!(GOOD.contains(line), "{line}");
    GOOD.replace(line, new)
}

#[test]
fn a_good_file_is_accepted() {
    let file = ScenarioFile::parse(GOOD, Path::new("x.toml")).unwrap();
    assert_eq!((file.policy.as_str(), file.seed), ("nthread", 1));
}

#[test]
fn what_cannot_be_is_refused_with_key_and_line() {
    for (text, key, line, why) in [
        (with("threads = 4", "threads = 0"), "workload[0].threads", 12, "0 threads"),
        (
            with("file_size = \"1 GiB\"", "file_size = \"64 GiB\""),
            "workload[0].file_size",
            13,
            "all memory of the machine is 32.0 GiB",
        ),
        (with("cpus = 4", "cpus = 0"), "machine", 5, "no CPUs"),
        (with("memory = \"16 GiB\"", "memory = 0"), "machine", 5, "no memory"),
        (with("nodes = 2", "nodes = 0"), "machine.nodes", 6, "0 is not a number from 1"),
        (with("nodes = 2", "nodes = 100000"), "machine.nodes", 6, "100000"),
        (with("duration_s = 10", "duration_s = 0"), "duration_s", 2, "0 is not a number above 0"),
        (with("duration_s = 10", "duration_s = nan"), "duration_s", 2, "NaN"),
        (with("duration_s = 10", "duration_s = inf"), "duration_s", 2, "inf"),
        (with("duration_s = 10", "duration_s = 10\nwarmup_s = 11"), "warmup_s", 3, "11"),
        (with("policy = \"nthread\"", "policy = \"best\""), "policy", 3, "`best` is not a policy: none, nthread"),
        (with("data = 0", "data = 2"), "workload[0].data", 14, "no node 2"),
        (with("data = 0", "data = \"here\""), "workload[0].data", 14, "`here`"),
        (with("data = 0", "data = [0.5, -0.5]"), "workload[0].data", 14, "none negative"),
        (with("data = 0", "data = [0.5]"), "workload[0].data", 14, "2 numbers"),
        (with("data = 0", "read = 1.5"), "workload[0].read", 14, "1.5 is not a number from 0 to 1"),
        (with("data = 0", "read = nan"), "workload[0].read", 14, "NaN"),
        (with("data = 0", "keys = 5"), "workload[0].keys", 14, "does not apply to `fio`"),
        (with("data = 0", "start = 7"), "workload[0].start", 14, "no node 7"),
        (with("data = 0", "start = 0\npin = 1"), "workload[0].start", 14, "`pin`"),
        (with("data = 0", "device = 1"), "workload[0].device", 14, "not on one device"),
        (with("data = 0", "fs = \"nova\"\ndata = 0"), "workload[0].data", 15, "`device`"),
        (
            with("kind = \"fio\"", "kind = \"foi\""),
            "workload[0].kind",
            11,
            "`foi` is not one of fio, simpleread, fileserver",
        ),
        (with("file_size = \"1 GiB\"", ""), "workload[0].file_size", 11, "is missing"),
        (with("memory = \"16 GiB\"", "memory = \"16 GiB\"\nread_bw = 0"), "machine.read_bw", 9, "not above 0"),
        (
            with("memory = \"16 GiB\"", "memory = \"16 GiB\"\ninterconnect = 0"),
            "machine.interconnect",
            9,
            "not above 0",
        ),
        (
            with("memory = \"16 GiB\"", "memory = \"16 GiB\"\noptane_modules = 0"),
            "machine.optane_modules",
            9,
            "0 modules",
        ),
        (
            with("memory = \"16 GiB\"", "memory = \"16 GiB\"\noptane_modules = 1\nread_bw = 1"),
            "machine.optane_modules",
            9,
            "one or the other",
        ),
        (with("memory = \"16 GiB\"", "memory = \"16 GiB\"\ndistance = [[10]]"), "machine.distance", 9, "2 rows of 2"),
        (with("memory = \"16 GiB\"", "memory = \"16 GiB\"\ndistance = 9"), "machine.distance", 9, "10 to 254"),
        (with("memory = \"16 GiB\"", "memory = \"16 GiB\"\n[machine.node.5]"), "machine.node.5", 9, "no node 5"),
        (
            with("memory = \"16 GiB\"", "memory = \"16 GiB\"\n[machine.node.1]\ncpus = 9"),
            "machine.node.1.cpus",
            10,
            "9 CPUs",
        ),
        (with("memory = \"16 GiB\"", "memory = \"16 GiB\"\n[engine]\nwindow_s = 0"), "engine", 9, "window_s"),
        (with("nodes = 2\n", ""), "machine.nodes", 5, "is missing"),
        (with("nodes = 2\n", "nodes = 2\ntopology = \"dir\"\n"), "machine.nodes", 6, "the topology sets it"),
        (GOOD[..GOOD.find("[[workload]]").unwrap()].to_owned(), "workload", 5, "nothing would run"),
    ] {
        let error = error(&text);
        assert!(error.starts_with(&format!("x.toml:{line}: {key}: ")), "{error}\n{text}");
        assert!(error.contains(why), "{error} should say {why}");
    }
}

#[test]
fn unknown_keys_and_wrong_types_are_refused_with_key_and_line() {
    for (text, place, why) in [
        (with("threads = 4", "thread = 4"), "12: workload[0].thread", "unknown field `thread`"),
        (with("cpus = 4", "cpu = 4"), "7: machine.cpu", "unknown field `cpu`"),
        (with("duration_s = 10", "duration = 10"), "2: duration", "unknown field `duration`"),
        (with("threads = 4", "threads = -1"), "12: workload[0].threads", "`-1`, expected u32"),
        (with("threads = 4", "threads = 2.5"), "12: workload[0].threads", "`2.5`, expected u32"),
        (with("file_size = \"1 GiB\"", "file_size = -1"), "13: workload[0].file_size", "not an amount"),
        (with("file_size = \"1 GiB\"", "file_size = nan"), "13: workload[0].file_size", "not an amount"),
        (
            with("file_size = \"1 GiB\"", "file_size = \"1 gib\""),
            "13: workload[0].file_size",
            "`1 gib` is not an amount",
        ),
        (with("nodes = 2", "nodes = 2\nread_bw = nan"), "7: machine.read_bw", "`NaN` is not an amount"),
        (with("nodes = 2", "nodes = 2\nwrite_bw = -1e9"), "7: machine.write_bw", "`-1000000000` is not an amount"),
        (with("nodes = 2", "nodes = 2\nread_bw = inf"), "7: machine.read_bw", "`inf` is not an amount"),
        (with("nodes = 2", "nodes = 2\nread_bw = 1e300"), "7: machine.read_bw", "`1e300` is too much"),
        (with("nodes = 2", "nodes = 2\nwrite_bw = 1e-300"), "7: machine.write_bw", "`1e-300` is less than a byte"),
        (with("memory = \"16 GiB\"", "memory = \"1e30 TB\""), "8: machine.memory", "`1e30 TB` is too much"),
        (with("data = 0", "block = 1e300"), "14: workload[0].block", "`1e300` is too much"),
        (with("data = 0", "think_s = inf"), "14: workload[0].think_s", "inf is not a number from 0"),
        (with("duration_s = 10", "duration_s = 1e300"), "2: duration_s", "1e300 is not a number above 0"),
        (with("threads = 4", "threads = 4\nthreads = 5"), "13: ", "duplicate key"),
        ("".to_owned(), "1: ", "missing field `duration_s`"),
        (with("data = 0", "fs = \"ntfs\""), "14: workload[0].fs", "unknown variant `ntfs`"),
        (with("policy = \"nthread\"", "[nthread]\nread_wait = 1"), "4: nthread.read_wait", "unknown field `read_wait`"),
        (with("policy = \"nthread\"", "[engine]\nwindow = 1"), "4: engine.window", "unknown field `window`"),
        (with("policy = \"nthread\"", "policy = nthread"), "3: ", "invalid"),
        (with("[[workload]]", "[[workload]"), "10: ", ""),
        (with("duration_s = 10", ""), "1: ", "missing field `duration_s`"),
    ] {
        let error = error(&text);
        assert!(error.starts_with(&format!("x.toml:{place}")) && error.contains(why), "{error}\n{text}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn two_workloads_of_one_name_are_refused() {
    let second = &GOOD[GOOD.find("[[workload]]").unwrap()..];
    ScenarioFile::parse(&format!("{GOOD}{second}"), Path::new("x.toml")).unwrap(); // `fio 0` and `fio 1`
    let named = format!("{GOOD}name = \"a\"\n{second}name = \"a\"\n");
    let error = error(&named);
    assert!(error.starts_with("x.toml:16: workload[1].name: workload[0] is named `a` already"), "{error}");
}

#[test]
fn what_is_no_text_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let error = ScenarioFile::read(dir.path()).unwrap_err();
    assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
    let garbage = dir.path().join("garbage.toml");
    // Bytes of no encoding, and what is text by chance.
    for seed in 0u32..64 {
        let byte = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 13) as u8;
        let ascii = seed % 2 == 0;
        let bytes: Vec<u8> = (0..500).map(|i| if ascii { byte(i) % 95 + 32 } else { byte(i) }).collect();
        std::fs::write(&garbage, bytes).unwrap();
        let error = ScenarioFile::read(&garbage).unwrap_err();
        assert!(error.to_string().contains("garbage.toml"), "{error}");
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = ScenarioFile::read(Path::new("/nowhere/x.toml")).unwrap_err().to_string();
    assert!(error.contains("cannot read /nowhere/x.toml"), "{error}");
}

#[test]
fn a_captured_machine_is_read_beside_the_scenario() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topology/tests/fixtures");
    let fixture =
        std::fs::read_dir(&fixtures).unwrap().map(|e| e.unwrap().path()).find(|p| p.join("devices").exists()).unwrap();
    let machine = GOOD.find("nodes").unwrap()..GOOD.find("[[workload]]").unwrap();
    let mut text = GOOD.to_owned();
    text.replace_range(machine, &format!("topology = {:?}\n", fixture.file_name().unwrap()));
    ScenarioFile::parse(&text, &fixtures.join("x.toml")).unwrap();
    let error = error(&text.replace("topology = \"", "topology = \"nowhere/"));
    assert!(error.starts_with("x.toml:6: machine.topology: "), "{error}");
}

#[test]
fn the_scenarios_that_come_with_homenode_run() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let file = ScenarioFile::read(&path).unwrap_or_else(|e| panic!("{e}"));
        let outcome = simulate::run(&file.scenario, file.policy(), file.seed).unwrap();
        assert!(outcome.ops_per_s() > 0.0, "{}", path.display());
        assert!(file.policy == "none" || outcome.policy == file.policy);
        seen += 1;
    }
    assert!(seen >= 5);
}
