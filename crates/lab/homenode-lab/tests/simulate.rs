//! `homenode simulate` as a user runs it: tables, JSON, and what bad input is told.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Exit code, stdout, stderr.
fn ends(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_homenode-lab"))
        .args(["--config", &format!("{}/tests/inputs/empty.toml", env!("CARGO_MANIFEST_DIR")), "simulate"])
        .args(args)
        .env_remove("HOMENODE_LOG")
        .env("COLUMNS", "100")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn json(args: &[&str]) -> Value {
    let (code, out, err) = ends(&[args, &["--json"]].concat());
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
    serde_json::from_str(&out).unwrap()
}

fn root(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    path.canonicalize().unwrap().display().to_string()
}

fn fixture(name: &str) -> String {
    root(&format!("crates/topology/tests/fixtures/{name}"))
}

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

const SMALL: &str = "duration_s = 5
[machine]
nodes = 2
cpus = 4
memory = \"16 GiB\"
[[workload]]
name = \"w\"
kind = \"fio\"
threads = 4
block = \"64 KiB\"
file_size = \"1 GiB\"
data = 0
start = 1
";

#[test]
fn every_example_runs_and_shows_what_was_done() {
    for entry in fs::read_dir(root("scenarios")).unwrap() {
        let path = entry.unwrap().path().display().to_string();
        let (code, out, err) = ends(&[&path]);
        assert_eq!((code, err.as_str()), (0, ""), "{path}");
        for word in ["policy", "remote share", "last move", "none ", "node 0", "throughput"] {
            assert!(out.contains(word), "{path}: {out}");
        }
    }
}

#[test]
fn policies_stand_side_by_side_and_their_parts_add_up() {
    let dir = Dir::new();
    let path = dir.write("x.toml", SMALL);
    let all = json(&[&path, "--policy", "all"]);
    let outcomes = all["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.len(), 1 + placement::POLICIES.len());
    assert_eq!((all["scenario"].as_str(), outcomes[0]["policy"].as_str()), (Some("x"), Some("none")));
    let two = json(&[&path, "--policy", "nthread,none", "--policy", "nthread"]);
    let names: Vec<_> = two["outcomes"].as_array().unwrap().iter().map(|o| o["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["nthread", "none"]);
    let nthread = &two["outcomes"][0];
    // Three of four: with the fourth, four CPUs would be above their limit of 90 %.
    assert_eq!((&nthread["moves"]["threads"], &nthread["last_move"]), (&3.into(), &1.into()));
    let (_, out, _) = ends(&[&path, "--policy", "none,nthread"]);
    let row = |name: &str| out.lines().find(|l| l.starts_with(name)).unwrap().to_owned();
    assert!(row("none").contains("100 %") && row("none").ends_with("never"), "{out}");
    assert!(row("nthread").ends_with("window 1"), "{out}");
    // Without a word from the user: the kernel alone, and what the file asks for.
    let (_, out, _) = ends(&[&path]);
    assert!(out.contains("\nnone ") && out.contains("\nnthread "), "{out}");
}

#[test]
fn same_seed_same_bytes_out() {
    let dir = Dir::new();
    let path = dir.write("x.toml", &SMALL.replace("start = 1\n", ""));
    let run = |seed: &str| ends(&[&path, "--seed", seed, "--policy", "all", "--json"]).1;
    assert_eq!(run("5"), run("5"));
    assert_ne!(run("5"), run("6"));
    let regret = || ends(&["--random", "3", "--seed", "9", "--policy", "all", "--json"]).1;
    assert_eq!(regret(), regret());
}

#[test]
fn bad_scenarios_are_told_file_line_and_key() {
    let dir = Dir::new();
    let with = |line: &str, new: &str| {
        assert!(SMALL.contains(line), "{line}");
        dir.write("x.toml", &SMALL.replace(line, new))
    };
    for (line, new, place, why) in [
        ("threads = 4", "thread = 4", "9: workload[0].thread", "unknown field"),
        ("cpus = 4", "sockets = 4", "4: machine.sockets", "unknown field"),
        ("threads = 4", "threads = 0", "9: workload[0].threads", "0 threads do nothing"),
        ("1 GiB", "64 GiB", "11: workload[0].file_size", "all memory of the machine is 32.0 GiB"),
        ("cpus = 4", "cpus = 0", "2: machine", "the topology has no CPUs"),
        ("cpus = 4", "cpus = 4\nread_bw = nan", "5: machine.read_bw", "NaN"),
        ("cpus = 4", "cpus = 4\nread_bw = -1.0", "5: machine.read_bw", "`-1` is not an amount"),
        ("cpus = 4", "cpus = 4\ninterconnect = inf", "5: machine.interconnect", "not an amount"),
        ("data = 0", "read = -0.5", "12: workload[0].read", "-0.5 is not a number from 0 to 1"),
        ("data = 0", "think_s = nan", "12: workload[0].think_s", "NaN"),
        ("duration_s = 5", "duration_s = -5", "1: duration_s", "-5 is not a number above 0"),
        ("data = 0", "data = 7", "12: workload[0].data", "there is no node 7"),
        ("[machine]", "[machine", "2: ", ""),
    ] {
        let path = with(line, new);
        let (code, out, err) = ends(&[&path]);
        assert_eq!((code, out.as_str()), (2, ""), "{new}: {err}");
        assert!(
            err.contains(&format!("x.toml:{place}")) && err.contains(why) && err.lines().count() == 1,
            "{new}: {err}"
        );
        let (code, _, err) = ends(&[&path, "--json"]);
        let error: Value = serde_json::from_str(&err).unwrap();
        assert_eq!((code, &error["error"]["exit_code"]), (2, &2.into()), "{err}");
    }
    let (code, _, err) = ends(&["/nowhere/x.toml"]);
    assert_eq!(code, 5, "{err}");
    assert!(err.contains("/nowhere/x.toml") && err.contains("ENOENT"), "{err}");
}

#[test]
fn bad_usage_is_told() {
    let dir = Dir::new();
    let path = dir.write("x.toml", SMALL);
    for args in [
        &[][..],
        &[&path, "--regret", "5"],
        &["--regret", "0"],
        &["--regret", "5", "--policy", "auto"],
        &[&path, "--policy", "best"],
        &[&path, "--seed", "-1"],
        &["--snapshot", "x.json"],
        &[&path, "--print"],
    ] {
        assert_eq!(ends(args).0, 2, "{args:?}");
    }
}

#[test]
fn a_scenario_runs_on_another_machine() {
    let dir = Dir::new();
    let path = dir.write("x.toml", SMALL);
    let there = json(&[&path, "--topology", &fixture("four-sockets-ring")]);
    assert_eq!(there["outcomes"][0]["windows"][0]["nodes"].as_array().unwrap().len(), 4);
    // Its nodes are another machine's, and so are the complaints.
    let (code, _, err) = ends(&[&path, "--topology", &fixture("one-node")]);
    assert!(code == 2 && err.contains("x.toml:13: workload[0].start: there is no node 1"), "{err}");
    let (code, _, err) = ends(&[&path, "--topology", "/nowhere"]);
    assert!(code == 5 && err.contains("/nowhere"), "{code} {err}");
}

#[test]
fn a_topology_without_cpus_is_refused() {
    let dir = Dir::new();
    let node = dir.0.path().join("devices/system/node/node0");
    fs::create_dir_all(&node).unwrap();
    fs::create_dir_all(dir.0.path().join("devices/system/cpu")).unwrap();
    fs::write(dir.0.path().join("devices/system/node/online"), "0\n").unwrap();
    fs::write(dir.0.path().join("devices/system/cpu/online"), "\n").unwrap();
    fs::write(node.join("cpulist"), "\n").unwrap();
    fs::write(node.join("distance"), "10\n").unwrap();
    fs::write(node.join("meminfo"), "Node 0 MemTotal: 16777216 kB\nNode 0 MemFree: 16777216 kB\n").unwrap();
    let machine = dir.0.path().display().to_string();
    let path = dir.write("x.toml", &SMALL.replace("start = 1\n", ""));
    let (code, out, err) = ends(&[&path, "--topology", &machine]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("has no CPUs") || err.contains("no CPU"), "{err}");
}

#[test]
fn a_recorded_load_is_compared_with_what_was_recorded() {
    let snapshot = format!("{}/tests/inputs/two-nodes.json", env!("CARGO_MANIFEST_DIR"));
    let here = json(&["--snapshot", &snapshot, "--topology", &fixture("two-sockets"), "--policy", "none,nthread"]);
    let recorded = &here["recorded"];
    let observed = recorded["read_bw"].as_f64().unwrap() + recorded["write_bw"].as_f64().unwrap();
    let again: f64 = here["outcomes"][0]["workloads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w["read_bw"].as_f64().unwrap() + w["write_bw"].as_f64().unwrap())
        .sum();
    assert!((again / observed - 1.0).abs() < 0.05, "{again} {observed} {recorded}");
    let (_, out, _) = ends(&["--snapshot", &snapshot, "--topology", &fixture("epyc-nps4")]);
    assert!(out.contains("recorded: ") && out.contains("node 7"), "{out}");
    let dir = Dir::new();
    let (code, _, err) = ends(&["--snapshot", &dir.write("s.json", "{}"), "--topology", &fixture("two-sockets")]);
    assert!(code == 2 && err.contains("s.json") && err.contains("version"), "{err}");
    let empty =
        dir.write("e.json", r#"{"version":2,"window_s":1.0,"nodes":[{"id":0,"cpus":[0],"distance":{"0":10}}]}"#);
    let (code, _, err) = ends(&["--snapshot", &empty, "--topology", &fixture("two-sockets")]);
    assert!(code == 2 && err.contains("e.json") && err.contains("no thread"), "{err}");
}

#[test]
fn a_random_scenario_that_is_printed_is_the_one_that_runs() {
    let (code, text, _) = ends(&["--random", "3", "--seed", "9", "--print"]);
    assert_eq!(code, 0);
    let dir = Dir::new();
    let path = dir.write("x.toml", &text);
    assert_eq!(json(&[&path]), json(&["--random", "3", "--seed", "9"]));
    assert_ne!(ends(&["--random", "4", "--seed", "9", "--print"]).1, text);
}

#[test]
fn the_manual_documents_every_key_of_a_scenario() {
    let manual = fs::read_to_string(root("docs/simulate.md")).unwrap();
    let dir = Dir::new();
    for (line, table) in [("duration_s = 5", ""), ("cpus = 4", "machine"), ("threads = 4", "workload")] {
        let (_, _, err) = ends(&[&dir.write("x.toml", &SMALL.replacen(line, "nonsense = 1", 1))]);
        let known = err.split("expected one of ").nth(1).unwrap_or_else(|| panic!("{table}: {err}"));
        for key in known.trim().split(", ") {
            let key = key.trim_matches('`');
            assert!(manual.contains(&format!("| {key} |")), "{table} {key} is not in docs/simulate.md");
        }
    }
}

/// Its figures were those of constants that had been chosen anew.
#[test]
fn the_manual_shows_what_the_program_prints() {
    let manual = fs::read_to_string(root("docs/simulate.md")).unwrap();
    let (code, out, _) = ends(&[&root("scenarios/page-cache.toml")]);
    assert_eq!(code, 0);
    let shown = manual.split("$ homenode simulate scenarios/page-cache.toml\n").nth(1).unwrap();
    assert_eq!(shown.split("```").next().unwrap(), out);
}
