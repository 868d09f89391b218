//! The real binary, run as a user would: what needs no privileges and no particular kernel.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use placement::{FileUse, NodeLoad, ObservedFile, Snapshot, Thread};
use topology::{NodeBytes, NodeId};

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homenode"));
    // Nothing of the machine's own configuration takes part.
    if !args.contains(&"--config") {
        command.args(["--config", &input("empty.toml")]);
    }
    command.args(args).env_remove("HOMENODE_LOG").env("COLUMNS", "100").env("NO_COLOR", "1");
    command
}

fn homenode(args: &[&str]) -> Output {
    command(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Exit code, stdout, stderr.
fn ends(args: &[&str]) -> (i32, String, String) {
    let output = homenode(args);
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn input(name: &str) -> String {
    format!("{}/tests/inputs/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn machine(name: &str) -> String {
    format!("{}/../../ground/topology/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))
}

const SUB_COMMANDS: [&str; 23] = [
    "check",
    "config",
    "reload",
    "status",
    "nodes",
    "where",
    "move",
    "warm",
    "map",
    "export",
    "report",
    "hot",
    "top",
    "run",
    "trial",
    "plan",
    "record",
    "replay",
    "explain",
    "restore",
    "doctor",
    "completions",
    "man",
];

#[test]
fn every_sub_command_explains_itself_with_examples() {
    for name in SUB_COMMANDS {
        let (code, help, _) = ends(&[name, "--help"]);
        assert_eq!(code, 0, "{name}");
        assert!(help.contains(&format!("Usage: homenode {name}")) && help.contains("Examples:"), "{name}: {help}");
    }
    let (_, help, _) = ends(&["--help"]);
    for name in SUB_COMMANDS {
        assert!(help.contains(&format!("\n  {name} ")), "{name}");
    }
    assert!(!help.contains("__exec") && help.lines().all(|line| line.chars().count() <= 100), "{help}");
    assert!(help.contains("Usage: homenode [OPTIONS] <COMMAND>"), "{help}");
    for group in ["Look", "Act", "Prove", "Other programs"] {
        assert!(help.contains(&format!("\n{group}:\n")), "{group}: {help}");
    }
    for (typed, meant) in [("rn", "'run'"), ("wher", "'where'"), ("paln", "'plan'")] {
        let (code, _, err) = ends(&[typed]);
        assert!(code == 2 && err.contains(meant), "{typed}: {err}");
    }
}

#[test]
fn config_check_names_each_fault_and_questions_what_is_hardly_meant() {
    let dir = tempfile::tempdir().unwrap();
    let (file, drop) = (dir.path().join("homenode.toml"), dir.path().join("conf.d/1.toml"));
    fs::create_dir(dir.path().join("conf.d")).unwrap();
    fs::write(&file, "[engine]\nwindow_s = \"long\"\n").unwrap();
    fs::write(&drop, "[[service]]\nunit = \"a\"\npolicy = \"arc\"\nx = 1\n").unwrap();
    let (file, drop) = (file.to_str().unwrap(), drop.to_str().unwrap());
    // A file of conf.d is checked with the file that it belongs to.
    for named in [file, drop] {
        let (code, out, err) = ends(&["config", "check", named]);
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains("homenode.toml:2: window_s must be a number") && err.contains("1.toml:4: "), "{err}");
    }
    fs::write(file, "[engine.budget]\ncpu = 300\n").unwrap();
    fs::write(drop, "[[service]]\nunit = \"a\"\npolicy = \"arc\"\n").unwrap();
    let (code, out, err) = ends(&["config", "check", drop]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("warning: ") && out.contains("homenode.toml:2: engine.budget.cpu is 300 CPUs"), "{out}");
    assert!(out.ends_with("homenode.toml: right, 1 rule\n"), "{out}");
    // Files that the service does not read are not right, whatever is in them.
    for (name, why) in [
        ("conf.d/none.toml", "No such file"),
        ("conf.d/a.conf", "it is not read"),
        ("conf.d/.a.toml", "it is not read"),
    ] {
        let path = dir.path().join(name);
        if !name.ends_with("none.toml") {
            fs::write(&path, "junk\n").unwrap();
        }
        let (code, out, err) = ends(&["config", "check", path.to_str().unwrap()]);
        assert!(code == 1 && out.is_empty() && err.contains(why) && err.contains(name), "{name}: {out}{err}");
    }
    let nodes = "[node.0]\nfile_data = true\n\n[node.77]\nfile_data = true\n";
    fs::write(file, nodes).unwrap();
    let (code, _, err) = ends(&["--config", file, "config", "check"]);
    assert!(code == 1 && err.contains("homenode.toml:4: ") && err.contains("no node 77"), "{err}");
    let (code, out, _) = ends(&["config", "check", "--json", file, "/nosuch.toml"]);
    assert_eq!(
        (code, serde_json::from_str::<serde_json::Value>(&out).unwrap()["files"][1]["right"].clone()),
        (1, false.into()),
        "{out}"
    );
}

#[test]
fn exit_codes_are_the_same_in_help_and_guide() {
    let (_, help, _) = ends(&["--help"]);
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/guide.md")).unwrap();
    for code in 0..=5 {
        let line = help.lines().find(|l| l.starts_with(&format!("  {code}  "))).unwrap();
        let meaning = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        assert!(guide.contains(&format!("| {code} | {meaning}")), "docs/guide.md does not say: {code} {meaning}");
    }
}

#[test]
fn nodes_of_captured_machines() {
    for name in ["two-sockets-pmem", "sparse-ids", "cxl-cpuless", "memory-less", "offline-cpus"] {
        let (code, out, err) = ends(&["nodes", "--sys", &machine(name)]);
        assert_eq!((code, err.as_str()), (0, ""), "{name}");
        insta::assert_snapshot!(format!("nodes_{name}"), out);
    }
}

#[test]
fn nodes_as_json_has_what_the_table_has() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.toml");
    fs::write(&config, "[node.8]\nread_bw_max = \"6.8 GB/s\"\n").unwrap();
    let (code, out, _) =
        ends(&["nodes", "--json", "--sys", &machine("sparse-ids"), "--config", config.to_str().unwrap()]);
    assert_eq!(code, 0);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["nodes"][1]["id"], 8);
    assert_eq!(json["nodes"][1]["read_bw_max"], 6.8e9);
    assert_eq!(json["nodes"][1]["memory_free"], 137_438_953_472u64);
    assert!(json["regions"].is_array(), "a list without entries is there: {out}");
}

/// Figures that `nodes --measure` wrote are used where the configuration says nothing, if they are
/// of this machine.
#[test]
fn measured_figures_are_used_and_those_of_another_machine_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let (file, config) = (dir.path().join("nodes.json"), dir.path().join("c.toml"));
    let (_, out, _) = ends(&["nodes", "--json"]);
    let mut topology: serde_json::Value = serde_json::from_str(&out).unwrap();
    let node = topology["nodes"][0]["id"].clone();
    let write = |topology: &serde_json::Value| {
        let points = |rate: f64| serde_json::json!([{"threads": 1, "bytes_per_s": rate}]);
        let measured = serde_json::json!({
            "version": 1, "homenode": "0.1.0", "unix_s": 1, "took_s": 1.0, "topology": topology,
            "buffer_bytes": 1, "writes": "non_temporal",
            "pairs": [{
                "cpu_node": node, "memory_node": node, "latency_s": 1e-7, "others_cpus": 0.0, "cached": [],
                "reads": points(8e9), "writes": points(4e9), "reads_2_writes_1": points(6e9),
            }],
        });
        fs::write(&file, measured.to_string()).unwrap();
    };
    write(&topology);
    fs::write(&config, format!("measured = {file:?}\n[node.{node}]\nwrite_bw_max = \"1GB/s\"\n")).unwrap();
    let config = config.to_str().unwrap();
    let (code, out, err) = ends(&["nodes", "--json", "--config", config]);
    assert_eq!((code, err.as_str()), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let first = &json["nodes"][0];
    assert_eq!((&first["read_bw_max"], &first["read_bw_from"]), (&8e9.into(), &"measured".into()));
    assert_eq!((&first["write_bw_max"], &first["write_bw_from"]), (&1e9.into(), &"configuration".into()));
    assert_eq!(json["measured"]["file"], file.to_str().unwrap());

    topology["nodes"][0]["cpus"] = "900-901".into();
    write(&topology);
    let (code, _, err) = ends(&["nodes", "--config", config]);
    assert_eq!(code, 2);
    assert!(err.contains("measured on a machine with other nodes or CPUs") && err.contains("--measure"), "{err}");
    fs::write(&file, "{}").unwrap();
    let (code, _, err) = ends(&["nodes", "--config", config]);
    assert_eq!(code, 2);
    assert!(err.contains("not measured figures"), "{err}");
}

#[test]
fn measuring_needs_a_file_that_can_be_written_and_enough_time() {
    let (code, _, err) = ends(&["nodes", "--measure", "--output", "/no/such/dir/nodes.json"]);
    assert_eq!(code, 5);
    assert!(err.contains("/no/such/dir/nodes.json") && err.contains("--output"), "{err}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nodes.json");
    // A rename would put a file in the place of the link, as it would in that of /dev/stdout.
    std::os::unix::fs::symlink("elsewhere", &file).unwrap();
    let (code, _, err) = ends(&["nodes", "--measure", "--seconds", "0.02", "--output", file.to_str().unwrap()]);
    assert!(code == 2 && err.contains("symbolic link"), "{code}: {err}");
    assert!(fs::symlink_metadata(&file).unwrap().is_symlink());
    fs::remove_file(&file).unwrap();
    let (code, _, err) =
        ends(&["nodes", "--measure", "--force", "--seconds", "0.02", "--output", file.to_str().unwrap()]);
    // Or memory is short here.
    assert!(code == 2 && err.contains("takes at least 1 s") || code == 1, "{err}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_trial_that_can_show_nothing_is_refused() {
    let (code, _, err) = ends(&["trial", "--minutes", "1"]);
    assert_eq!(code, 2);
    assert!(
        err.contains("--minutes: 1 round cannot show anything; 6 rounds of 2 periods of 20.0 s take 4.0 minutes"),
        "{err}"
    );
}

#[test]
fn this_machine_is_captured_and_shown_again() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("m");
    let (code, out, err) = ends(&["nodes", "--capture", capture.to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("saved "), "{out}");
    let (_, live, _) = ends(&["nodes", "--json"]);
    let (_, saved, _) = ends(&["nodes", "--json", "--sys", capture.to_str().unwrap()]);
    let strip = |text: &str| {
        let mut json: serde_json::Value = serde_json::from_str(text).unwrap();
        json["nodes"].as_array_mut().unwrap().iter_mut().for_each(|n| {
            n.as_object_mut().unwrap().remove("memory_free");
        });
        json
    };
    assert_eq!(strip(&live), strip(&saved));
    let (code, _, err) = ends(&["nodes", "--capture", capture.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(err.contains("is not empty"), "{err}");
}

#[test]
fn plan_of_a_snapshot() {
    let plan = |name: &str, policy: &str| ends(&["plan", "--snapshot", &input(name), "--policy", policy]);
    for (name, policy) in [("two-nodes.json", "nthread"), ("two-nodes.json", "nthread-rl"), ("quiet.json", "nthread")] {
        let (code, out, err) = plan(name, policy);
        assert_eq!((code, err.as_str()), (0, ""), "{name}");
        insta::assert_snapshot!(format!("plan_{name}_{policy}"), out);
    }
}

#[test]
fn plan_from_stdin_as_json() {
    let mut child =
        command(&["plan", "--json", "--snapshot", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&fs::read(input("two-nodes.json")).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let plan: placement::Plan = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((plan.version, plan.policy.as_str(), plan.moves.len()), (2, "nthread", 2));
}

#[test]
fn margins_and_sizes_take_units() {
    let moves = |options: &[&str]| {
        let path = input("two-nodes.json");
        let args = [&["plan", "--json", "--snapshot", &path], options].concat();
        let plan: placement::Plan = serde_json::from_slice(&homenode(&args).stdout).unwrap();
        plan.moves.len()
    };
    assert_eq!(moves(&[]), 2);
    assert_eq!(moves(&["--margin", "700MB/s"]), 1); // `postgres` reads 620 MB/s, the other 812 − 18
    assert_eq!(moves(&["--margin", "900MB/s"]), 0);
    assert_eq!(moves(&["--margin", "1 MB/s", "--min-bytes", "1MiB"]), 3); // `backup` too
}

#[test]
fn a_bad_snapshot_is_named_with_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let good = fs::read_to_string(input("quiet.json")).unwrap();
    let cases = [
        ("version.json", good.replace("\"version\": 2", "\"version\": 9"), "version 9"),
        ("negative.json", good.replace("\"memory_free\": 8000000000", "\"memory_free\": -1"), "-1"),
    ];
    for (name, text, names) in cases {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        let (code, out, err) = ends(&["plan", "--snapshot", path.to_str().unwrap()]);
        assert_eq!((code, out.as_str()), (2, ""), "{name}: {err}");
        assert!(err.starts_with("homenode: ") && err.contains(name) && err.contains(names), "{name}: {err}");
        assert_eq!(err.lines().count(), 1, "{name}: {err}");
    }
}

#[test]
fn a_snapshot_that_is_not_there_is_an_io_error_with_its_errno() {
    let (code, _, err) = ends(&["plan", "--snapshot", "/nonexistent/x.json"]);
    assert_eq!(code, 5);
    assert_eq!(err, "homenode: cannot read /nonexistent/x.json: No such file or directory (ENOENT)\n");
    let (code, _, err) = ends(&["plan", "--snapshot", "/nonexistent/x.json", "--json"]);
    assert_eq!(code, 5);
    let json: serde_json::Value = serde_json::from_str(&err).unwrap();
    assert_eq!((&json["error"]["errno"], &json["error"]["exit_code"]), (&"ENOENT".into(), &5.into()));
}

#[test]
fn a_bad_configuration_is_named_with_key_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("h.toml");
    for (text, line, key) in [
        ("[engine]\nwindow_s = 1.0\nwindows_s = 2\n", ":3:", "windows_s"),
        ("[nthread]\nlocality_margin = -1\n", ":2:", "-1"),
        ("[engine]\nwindow_s = 0.0\n", ":", "window_s"),
        ("[node.77]\nread_bw_max = \"1GB/s\"\n", ":", "node.77"),
        ("[nthread]\nlocality_margin = 20\n", ":2:", "the unit is missing, as in \"20MB/s\""),
    ] {
        fs::write(&config, text).unwrap();
        let (code, out, err) = ends(&["nodes", "--config", config.to_str().unwrap()]);
        assert_eq!((code, out.as_str()), (2, ""), "{text}: {err}");
        let place = format!("homenode: {}{line}", config.display());
        assert!(err.starts_with(&place) && err.contains(key), "{text}: {err}");
    }
    // It was exit code 5.
    fs::write(&config, b"[engine]\n# \xff\n").unwrap();
    let (code, _, err) = ends(&["nodes", "--config", config.to_str().unwrap()]);
    assert_eq!((code, err), (2, format!("homenode: {}: it is not UTF-8 text\n", config.display())));
    let (code, _, err) = ends(&["nodes", "--config", "/nonexistent.toml"]);
    assert_eq!(code, 5);
    assert!(err.contains("/nonexistent.toml") && err.contains("ENOENT"), "{err}");
}

#[test]
fn wrong_usage_is_exit_code_2_and_json_where_asked() {
    for args in [
        &["plan", "--policy", "magic"][..],
        &["run", "--window", "0"],
        &["run", "--window", "-1"],
        &["run", "--window", "1e9"],
        &["run", "--margin", "fast"],
        &["run", "--pid", "0"],
        &["run", "--pid", "abc"],
        &["move", "--to", "0", "--pid", "2147483648"],
        &["run", "--pid", "1", "--by-rules"],
        &["run", "--unit", ""],
        &["run", "--pid", "1", "--", "true"],
        &["trial", "--unit", "x", "--", "true"],
        &["run", "--windows", "0"],
        &["plan", "--snapshot", "x", "--exact"],
        &["where"],
        &["move", "--to", "0"],
        &["move", "file"],
        &["move", "--to", "0", "--rate", "0", "file"],
        &["move", "--to", "1023", "file"],
        &["frobnicate"],
        &[],
    ] {
        let (code, out, err) = ends(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        let ours = err.contains("no such node");
        let whole_help = args.is_empty() && err.contains("Usage:");
        assert!(ours || whole_help || err.starts_with("homenode: usage: "), "{args:?}: {err}");
        assert!(whole_help || err.lines().count() <= 2, "{args:?}: {err}");
    }
    let (code, _, err) = ends(&["plan", "--json", "--policy", "magic"]);
    assert_eq!(code, 2);
    let json: serde_json::Value = serde_json::from_str(&err).unwrap();
    assert!(json["error"]["why"].as_str().unwrap().contains("magic"), "{err}");
}

/// On a terminal, it opened the live view.
#[test]
fn the_live_view_is_no_json() {
    let (code, out, err) = ends(&["top", "--json"]);
    assert_eq!((code, out.as_str()), (2, ""));
    let json: serde_json::Value = serde_json::from_str(&err).unwrap();
    assert!(json["error"]["why"].as_str().unwrap().contains("--once"), "{err}");
}

#[test]
fn where_refuses_what_has_no_pages_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, vec![1; 10_000]).unwrap();
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let paths = [dir.path(), &fifo, Path::new("/nonexistent"), Path::new("/dev/null"), &file];
    let args: Vec<_> = ["where"].into_iter().chain(paths.iter().map(|p| p.to_str().unwrap())).collect();
    let (code, out, err) = ends(&args);
    assert_eq!(code, 1, "{err}");
    assert_eq!(out.lines().count(), 2, "{out}");
    assert!(out.contains(file.to_str().unwrap()) && out.contains("9.8 KiB"), "{out}");
    let lines: Vec<_> = err.lines().collect();
    assert_eq!(lines.len(), 4, "{err}");
    for (line, (path, why)) in lines.iter().zip(paths.iter().zip(["directory", "pipe", "(ENOENT)", "character device"]))
    {
        assert!(line.contains(path.to_str().unwrap()) && line.contains(why), "{line}");
    }
}

#[test]
fn where_looks_at_directories_lists_and_processes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, vec![1; 10_000]).unwrap();
    // A file with two names counts once, and a directory's pipes and links are no files.
    fs::hard_link(&file, dir.path().join("name")).unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("sub/more"), vec![1; 10_000]).unwrap();
    std::os::unix::fs::symlink(&file, dir.path().join("sub/link")).unwrap();
    let (code, out, err) = ends(&["where", "-r", dir.path().to_str().unwrap()]);
    assert_eq!((code, err.as_str(), out.lines().count()), (0, "", 4), "{out}");
    let total: Vec<_> = out.lines().last().unwrap().split_whitespace().take(3).collect();
    assert_eq!(total, ["total", "19.5", "KiB"], "{out}");
    let listed = |args: &[&str], list: &str| {
        let mut from = command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        from.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
        text(&from.wait_with_output().unwrap().stdout)
    };
    let out = listed(&["where", "-"], &format!("{}\n", file.display()));
    assert!(out.contains(file.to_str().unwrap()), "{out}");
    // A name may have a newline.
    let odd = dir.path().join("a\nb");
    fs::write(&odd, "x").unwrap();
    let list = format!("{}\0{}\0", odd.display(), file.display());
    let out = listed(&["--json", "where", "-0", "-"], &list);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["files"].as_array().map(Vec::len), Some(2), "{out}");
    let (code, _, err) = ends(&["where", "-0", file.to_str().unwrap()]);
    assert!(code == 2 && err.contains("stdin"), "{err}");
    // Of the test itself: its memory and its program.
    let (code, out, err) = ends(&["where", "--pid", &std::process::id().to_string()]);
    let own = std::env::current_exe().unwrap();
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("memory of process") && out.contains(own.to_str().unwrap()), "{out}");
    let (code, out, err) = ends(&["where", "--pid", "2147483647"]);
    assert_eq!((code, out.as_str(), err.as_str()), (1, "", "homenode: process 2147483647: no such process\n"));
}

#[test]
fn hot_takes_no_kernel_thread() {
    let kernel_thread = fs::read_to_string("/proc/2/stat").is_ok_and(|stat| stat.starts_with("2 (kthreadd)"));
    let (code, out, err) = ends(&["hot", "--pid", "2"]);
    assert!(
        !kernel_thread || (code, out.as_str(), err.as_str()) == (2, "", "homenode: process 2: is a kernel thread\n")
    );
}

#[test]
fn hot_names_a_process_that_is_not_there() {
    // Beyond the kernel's highest process id (2^22).
    let (code, out, err) = ends(&["hot", "--pid", "2147483647"]);
    assert_eq!((code, out.as_str(), err.as_str()), (2, "", "homenode: process 2147483647: no such process\n"));
}

#[test]
fn where_as_json_is_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, vec![1; 10_000]).unwrap();
    let (code, out, _) = ends(&["where", "--json", file.to_str().unwrap(), "/nonexistent"]);
    assert_eq!(code, 1);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let first = &json["files"][0];
    assert_eq!((&first["size"], &first["resident"]), (&10_000.into(), &10_000.into()), "{out}");
    let placed: u64 = first["nodes"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(placed, 10_000, "{out}");
    assert_eq!(json["files"].as_array().unwrap().len(), 1);
}

/// On this machine's first node, where a machine with one node has everything.
#[test]
fn move_refuses_what_has_no_pages_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("file"), vec![1; 10_000]).unwrap();
    assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
    let node = fs::read_dir("/sys/devices/system/node").unwrap().find_map(|entry| {
        let name = entry.unwrap().file_name();
        name.to_str()?.strip_prefix("node")?.parse::<u32>().ok()
    });
    let node = node.unwrap().to_string();
    let asked = [path("fifo"), path("none"), path("file")].map(|p| p.to_str().unwrap().to_owned());
    let [fifo, none, file] = asked.each_ref().map(String::as_str);
    let (code, out, err) = ends(&["--json", "move", "--to", &node, fifo, none, file]);
    if !rustix::process::geteuid().is_root() {
        assert!(code == 3 && err.contains("CAP_SYS_NICE"), "{code}: {err}");
        return;
    }
    assert_eq!(code, 1);
    assert!(err.lines().count() == 2 && err.contains("is a pipe") && err.contains("ENOENT"), "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let moved = json["moved"].as_array().unwrap();
    assert_eq!(moved.iter().map(|m| m["path"].as_str().unwrap()).collect::<Vec<_>>(), asked);
    assert!(moved[0]["why"].as_str().unwrap().contains("is a pipe"), "{out}");
    assert!(moved[1]["why"].as_str().unwrap().contains("(ENOENT)"), "{out}");
    let last = &moved[2];
    assert_eq!(
        (&last["why"], &last["to"], &last["failed_bytes"]),
        (&serde_json::Value::Null, &node.parse::<u32>().unwrap().into(), &0.into())
    );
    // With several nodes, the file may have been elsewhere.
    assert!([0, 10_000].contains(&last["bytes"].as_u64().unwrap()) && last["bytes"] == last["moved_bytes"], "{out}");
    let (code, out, err) = ends(&["move", "--to", &node, "--range", "100GiB+1", file]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains(file) && err.contains("the range begins at 100.0 GiB, and the file ends at 9.8 KiB"), "{err}");
    let (code, out, err) = ends(&["move", "--to", &node, file]);
    assert_eq!((code, out, err), (0, format!("{file}: 9.8 KiB are on node {node} already\n"), String::new()));
}

/// Needs no privileges.
#[test]
fn warm_reads_in_what_was_asked_and_goes_on() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (file, none, short) = (path("file"), path("none"), path("short"));
    fs::write(&file, vec![1; 3 << 20]).unwrap();
    fs::write(&short, "text").unwrap();
    let open = fs::File::open(&file).unwrap();
    open.sync_all().unwrap();
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let cached = || lab::pages::cached(Path::new(&file)).unwrap();
    let pages = |mib: usize| (mib << 20) / rustix::param::page_size();
    let (code, out, err) = ends(&["--json", "warm", "--interleave", "--drop-first", "--range", "1MiB+1MiB", &file]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let first = pages(1) as u64;
    assert!(cached().iter().map(|page| page.0).eq(first..2 * first), "{:?}", cached());
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let one = &json["warmed"][0];
    assert_eq!(
        (&one["offset"], &one["bytes"], &one["already_bytes"]),
        (&(1 << 20).into(), &(1 << 20).into(), &0.into())
    );

    let (code, out, err) = ends(&["warm", "--interleave", &none, dir.path().to_str().unwrap(), &file, &short]);
    assert_eq!(code, 1);
    assert!(err.contains("ENOENT") && err.contains("is a directory") && err.lines().count() == 2, "{err}");
    assert!(
        out.contains("3.0 MiB cached, node ") && out.contains("2.0 MiB were missing") && out.lines().count() == 2,
        "{out}"
    );
    assert_eq!(cached().len(), pages(3));
    // It was a success that read in nothing.
    let (code, out, err) = ends(&["warm", "--interleave", "--range", "1GiB+1MiB", &file]);
    let why = "the range begins at 1.0 GiB, and the file ends at 3.0 MiB";
    assert_eq!((code, out.as_str(), err), (1, "", format!("homenode: warm: cannot warm {file}: {why}\n")));
    for (args, why) in [
        (["warm", "--to", "4000", &file].as_slice(), "no such node"),
        (&["warm", &file], "--to"),
        (&["warm", "--interleave", "--range", "5", &file], "OFFSET+LENGTH"),
        (&["warm", "--interleave", "--range", "0+0", &file], "OFFSET+LENGTH"),
        (&["warm", "--interleave", "--weighted", &file], "cannot be used with"),
    ] {
        let (code, _, err) = ends(args);
        assert!(code == 2 && err.contains(why), "{args:?}: {code}: {err}");
    }
}

/// A recording of the same window, some seconds apart.
fn recording(path: &Path, times: &[f64]) {
    let mut snapshot: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(input("two-nodes.json")).unwrap()).unwrap();
    let mut lines = String::new();
    for time in times {
        snapshot["time_s"] = (*time).into();
        lines.push_str(&(snapshot.to_string() + "\n"));
    }
    fs::write(path, lines).unwrap();
}

#[test]
fn a_program_decides_in_plan_and_replay() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let script = |name: &str, text: &str| {
        let path = dir.path().join(name);
        // The tests' PATH may lead through a home of root's, where another user has no way.
        fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        format!("exec:{}", path.display())
    };
    let first = r#"echo '{"homenode":1,"name":"mine"}'; read hello"#;
    let mv = r#"{"kind":"thread","tid":4121,"pid":4100,"from":1,"to":0,"reason":"external","why":"uid '$(id -u)'"}"#;
    let decides =
        format!("{first}; while read window; do echo '{{\"version\":2,\"policy\":\"\",\"moves\":[{mv}]}}'; done");
    let (decides, ends_at_once) = (script("decides", &decides), script("ends", first));
    let input = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/inputs/two-nodes.json");
    let recording = dir.path().join("windows.jsonl");
    let window: serde_json::Value = serde_json::from_str(&fs::read_to_string(input).unwrap()).unwrap();
    fs::write(&recording, format!("{window}\n{window}\n")).unwrap();
    let (plan, replay) = (["plan", "--snapshot", input], ["replay", recording.to_str().unwrap()]);
    // Root asks by sudo: the program is that user's.
    let root = rustix::process::geteuid().is_root();
    let asks = |args: &[&str], policy: &str| {
        let mut command = command(args);
        command.args(["--policy", policy]).env("SUDO_UID", "65534").env("SUDO_GID", "65534");
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for args in [&plan[..], &replay[..]] {
        let (code, out, err) = asks(args, &decides);
        let uid = if root { 65534 } else { rustix::process::geteuid().as_raw() };
        assert_eq!(code, Some(0), "{out}{err}");
        assert!(out.contains("4121") && out.contains(&format!("uid {uid}")), "{out}");
        let (code, out, err) = asks(args, &ends_at_once);
        assert_eq!((code, err.as_str()), (Some(1), "homenode: the policy ended: exec:mine: it ended\n"), "{out}");
        let (code, _, err) = asks(args, "exec:/nowhere/at/all");
        assert!(code == Some(2) && err.contains("/nowhere/at/all: No such file"), "{err}");
    }
    if root {
        let output = command(&plan).args(["--policy", &decides]).env_remove("SUDO_UID").output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && err.contains("does not run as root"), "{err}");
    }
}

/// Root's terminal would have taken what it writes for its own commands.
#[test]
fn a_program_that_decides_writes_to_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("complains");
    fs::write(&path, "#!/bin/sh\nprintf '\\033[6n\\rwhy\\nnot' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let mut plan = command(&["plan", "--snapshot", &input("two-nodes.json"), "--policy"]);
    plan.arg(format!("exec:{}", path.display())).env("SUDO_UID", "65534").env("SUDO_GID", "65534");
    let output = plan.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let mut lines = said.lines();
    assert_eq!((lines.next(), lines.next()), (Some(r"exec: \u{1b}[6n\rwhy"), Some("exec: not")), "{said}");
    assert!(lines.next().unwrap().ends_with("its first line: it ended"), "{said}");
}

/// A name as somebody may choose it: neither a line of its own, nor what a terminal obeys.
const ODD: &str = "a\u{1b}]0;x\u{7}\nforged: b\u{202e}c\u{9b}";

#[track_caller]
fn only_shows_odd_names(said: &str) {
    let shown = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
    assert!(said.contains("forged") && said.chars().all(shown), "{said:?}");
    assert!(!said.lines().any(|line| line.starts_with("forged")), "{said}");
}

#[test]
fn odd_names_write_no_line_and_nothing_to_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (file, none, state) = (path(ODD), path(&format!("no {ODD}")), path("state"));
    fs::write(&file, vec![1; 10_000]).unwrap();
    fs::create_dir(&state).unwrap();
    let moved = serde_json::json!({
        "time": 1e9, "tid": 41, "pid": 4, "comm": ODD, "event": "moved", "from": 1, "to": 0,
        "reason": "read_locality", "why": ODD,
    });
    fs::write(format!("{state}/journal.jsonl"), format!("{moved}\n")).unwrap();
    for args in [
        &["where", &file, &none][..],
        &["move", "--to", "0", &file, &none],
        &["warm", "--interleave", &file, &none],
        &["explain", "--state-dir", &state],
        &["explain", "--state-dir", &state, ODD],
        &["explain", "--state-dir", &path(ODD)],
    ] {
        for json in [&[][..], &["--json"]] {
            let (_, out, err) = ends(&[args, json].concat());
            only_shows_odd_names(&(out + &err));
        }
    }
}

/// Names that users choose, in what a daemon has kept.
#[test]
fn what_was_kept_is_found_and_its_names_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state").to_str().unwrap().to_owned();
    let look = |args: &[&str]| ends(&[args, &["--state-dir", &state]].concat());
    let (code, _, err) = look(&["map", "--since", "1h ago"]);
    assert!(code == 1 && err.contains("history has none"), "{err}");
    let mut recorder = session::history::Recorder::start(&Path::new(&state).join("history"), 1 << 20);
    let read_bytes: NodeBytes = [(NodeId(0), 1_000), (NodeId(1), 3_000)].into_iter().collect();
    let thread = Thread {
        tid: 7,
        pid: 7,
        comm: ODD.to_owned(),
        rule: Some(ODD.into()),
        allowed_nodes: vec![NodeId(0), NodeId(1)],
        files: vec![FileUse { read_bytes: read_bytes.clone(), ..FileUse::default() }],
        read_bytes,
        ..Thread::default()
    };
    let files = vec![ObservedFile { path: Some(ODD.to_owned()), ..ObservedFile::default() }];
    let nodes = [0, 1].map(|id| NodeLoad { id: NodeId(id), ..NodeLoad::default() }).to_vec();
    let snapshot = Snapshot { window_s: 1.0, nodes, files, ..Snapshot::default() };
    for _ in 0..3 {
        recorder.thread(ODD, ODD, &thread);
        recorder.window(&snapshot, &placement::Plan::new("off"));
    }
    // The end of the daemon.
    drop(recorder);
    for args in [
        &["map", "--since", "1 min ago"][..],
        &["map", "--at", "1s ago"],
        &["top", "--once", "--at", "1s ago"],
        &["top", "--once", "--at", "1s ago", "--by", "service"],
        &["report", "--names", "--since", "1 min ago"],
    ] {
        for json in [&[][..], &["--json"]] {
            let (code, out, err) = look(&[args, json].concat());
            assert_eq!(code, 0, "{args:?}: {err}");
            only_shows_odd_names(&(out + &err));
        }
    }
    let (_, out, _) = look(&["map", "--since", "1 min ago", "--json"]);
    let map: serde_json::Value = serde_json::from_str(&out).unwrap();
    let row = &map["services"][0];
    assert_eq!(
        [&map["windows"], &map["remote_bytes"], &row["read_bytes"]].map(|n| n.as_u64()),
        [3, 9_000, 12_000].map(Some)
    );
    assert_eq!([&row["could_be_local_bytes"], &row["processes"]].map(|n| n.as_u64()), [6_000, 1].map(Some));
    assert_eq!((map["processes"][0]["pid"].as_u64(), map["files"][0]["read_bytes"].as_u64()), (Some(7), Some(12_000)));
    assert!(map["between_unix_s"][0].as_f64() < map["between_unix_s"][1].as_f64());
    let (_, out, _) = look(&["report", "--since", "1 min ago"]);
    assert!(out.contains("service 1") && !out.contains("forged"), "{out}");
    let (code, _, err) = look(&["map", "--since", "2h ago", "--until", "1h ago"]);
    assert!(code == 1 && err.contains("no history of") && err.contains("it has "), "{err}");
    for command in ["map", "check", "report"] {
        let (code, _, err) = look(&[command, "--since", "@2000000000", "--until", "@1000000000"]);
        assert!(code == 2 && err.contains("2033-") && err.contains("2001-"), "{command}: {err}");
    }
    for with in [&["map", "--at", "now", "--until", "now"][..], &["top", "--once", "--at", "now", "--pid", "1"]] {
        let (code, _, err) = look(with);
        assert!(code == 2 && err.contains("cannot be used with"), "{err}");
    }
    let (code, _, err) = look(&["map", "--since", "yesterday noon"]);
    assert!(code == 2 && err.contains("\"yesterday 3am\""), "{err}");
}

#[test]
fn a_replay_passes_the_rails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    recording(&path, &[1.0, 2.0, 3.0, 12.0]);
    let (code, out, err) = ends(&["replay", path.to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (0, ""));
    insta::assert_snapshot!("replay", out);
    let (code, out, _) = ends(&["replay", "--json", path.to_str().unwrap()]);
    assert_eq!(code, 0);
    let windows: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(windows.len(), 4);
    // The recorded threads never go anywhere, so after the dwell time (10 s) the two are moved
    // again; the third of the first window is one that is bound where it is, once.
    let moves: Vec<_> = windows.iter().map(|w| w["moves"].as_array().unwrap().len()).collect();
    assert_eq!(moves, [3, 0, 0, 2]);
    // As text (the snapshot above) what is held back on end is said once; programs get it every
    // time.
    for window in &windows[1..3] {
        assert_eq!(window["held_back"][0]["rail"], "dwell");
    }
    let from_stdin = command(&["replay", "--json", "-"]).stdin(fs::File::open(&path).unwrap()).output().unwrap();
    assert_eq!(text(&from_stdin.stdout), out);
}

#[test]
fn a_recording_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    fs::write(&path, "").unwrap();
    let (code, _, err) = ends(&["replay", path.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(err.contains("r.jsonl") && err.contains("contains no window"), "{err}");
    recording(&path, &[1.0, 2.0]);
    let broken = fs::read_to_string(&path).unwrap().replacen("\"version\":2", "\"version\":7", 1);
    fs::write(&path, broken).unwrap();
    let (code, _, err) = ends(&["replay", path.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(err.contains("r.jsonl:1: ") && err.contains("version 7"), "{err}");
    fs::write(&path, "{\"version\":2,").unwrap();
    let (_, _, err) = ends(&["replay", path.to_str().unwrap()]);
    assert!(err.contains("not a snapshot: EOF"), "{err}");
}

/// `trailing characters at line 2 column 1`, `EOF while parsing an object` and `invalid utf-8
/// sequence of 1 bytes` did not say which command reads what.
#[test]
fn a_recording_is_no_snapshot_and_a_snapshot_no_recording() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    let path = path.to_str().unwrap();
    recording(Path::new(path), &[1.0, 2.0]);
    let (code, out, err) = ends(&["plan", "--snapshot", path]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("a recording of several windows") && err.contains("hint: `homenode replay`"), "{err}");
    let (code, out, err) = ends(&["replay", &input("two-nodes.json")]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("two-nodes.json:1: not a recording") && err.contains("plan --snapshot"), "{err}");
    fs::write(path, b"\x7fELF\xff\n").unwrap();
    for (args, why) in [(&["replay", path][..], "not a recording"), (&["plan", "--snapshot", path], "not a snapshot")] {
        let (code, _, err) = ends(args);
        assert!(code == 2 && err.contains(&format!("{why}: no UTF-8 text")) && err.contains(path), "{err}");
    }
}

#[test]
fn explain_reads_a_journal_and_says_when_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let (code, _, err) = ends(&["explain", "--state-dir", state]);
    assert_eq!(code, 5);
    assert!(err.contains("journal.jsonl") && err.contains("ENOENT") && err.contains("hint:"), "{err}");
    assert!(!err.contains("since boot"), "{err}");
    let moved = r#"{"time":1000000000.0,"tid":4121,"pid":41,"comm":"rocksdb:low3","event":"moved","from":1,"to":0,"reason":"read_locality","why":"812.0 MB of 830.0 MB read from node 0","remote_share":0.98}
{"time":1000000003.0,"tid":4121,"pid":41,"comm":"rocksdb:low3","event":"audited","before":0.98,"after":0.01}
{"time":1000000009.0,"tid":5,"pid":5,"comm":"x","event":"held_back","from":1,"to":0,"rail":"dwell","why":"moved 3 s ago"}
{"time":1000000300.0,"tid":4121,"pid":41,"comm":"rocksdb:low3","event":"undone","result":"restored","affinity":"0-31","occasion":"on exit"}
"#;
    fs::write(dir.path().join("journal.jsonl"), moved).unwrap();
    let explain = |args: &[&str]| explained(state, args);
    insta::assert_snapshot!("explain_one", explain(&["4121"]));
    insta::assert_snapshot!("explain_all", explain(&[]));
    assert_eq!(explain(&["low3"]).lines().count(), 2);
    assert_eq!(explain(&["nobody"]), "no journal entries for nobody; without a name, explain shows all moves\n");
    assert_eq!(explain(&["--json"]).lines().count(), 4);
    // A process has the id of its first thread.
    let process = r#"{"time":1000000400.0,"tid":77,"pid":77,"comm":"postgres","kind":"process","event":"copy_ended","from":0,"to":1,"bytes":9,"done":9}"#;
    fs::write(dir.path().join("journal.jsonl"), format!("{moved}{process}\n")).unwrap();
    assert!(explain(&["77"]).contains("copied 9 B of 9 B"), "{}", explain(&["77"]));
    // All that became of what a rule has moved, and of nothing else.
    let by_rule = r#"{"time":1000000500.0,"tid":90,"pid":9,"comm":"load","start_ns":5,"event":"moved","from":1,"to":0,"reason":"read_locality","why":"it reads there","rule":"shop"}
{"time":1000000501.0,"tid":90,"pid":9,"comm":"load","start_ns":6,"event":"gone"}
{"time":1000000502.0,"tid":90,"pid":9,"comm":"load","start_ns":5,"event":"undone","result":"restored","affinity":"0-31","occasion":"on exit"}"#;
    fs::write(dir.path().join("journal.jsonl"), format!("{moved}{by_rule}\n")).unwrap();
    assert_eq!(explain(&["shop"]).lines().count(), 2, "{}", explain(&["shop"]));
}

fn explained(state: &str, args: &[&str]) -> String {
    let output = command(&[&["explain", "--state-dir", state], args].concat()).env("TZ", "UTC").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn explain_reads_the_journals_of_mounts_and_finds_files_by_path_and_id() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let volume = dir.path().join("volumes/nowhere");
    fs::create_dir_all(&volume).unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let stat = fs::metadata(&file).unwrap();
    let id = format!("{}:{}:{}", rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev()), stat.ino());
    let moved = r#"{"time":1000000000.0,"tid":41,"pid":4,"comm":"fio","event":"moved","from":1,"to":0,"reason":"read_locality","why":"x"}"#;
    let copied = |time: u32, file: &str| {
        format!(
            r#"{{"time":{time},"tid":0,"pid":0,"comm":"{file}","kind":"file","file":"{file}","event":"copy_ended","from":0,"to":1,"bytes":9,"done":9}}"#
        )
    };
    let journal = format!("{moved}\n{}\n{}\n", copied(1_000_000_001, &id), copied(1_000_000_002, "0:0:1"));
    fs::write(volume.join("journal.jsonl"), journal).unwrap();
    let explain = |args: &[&str]| explained(state, args);
    // No host's journal is needed, and its lines stand between those of mounts by their time.
    assert_eq!(explain(&["41"]), "2001-09-09 01:46:40  on nowhere  node 1 → 0   read_locality   x\n");
    let hosts = moved.replace("00.0", "01.5").replace("fio", "psql");
    fs::write(dir.path().join("journal.jsonl"), hosts + "\n").unwrap();
    let all = explain(&[]);
    let names: Vec<&str> = all.lines().map(|line| line[21..].split("  ").next().unwrap()).collect();
    let of_file = format!("file {id} on nowhere");
    assert_eq!(names, ["fio (tid 41) on nowhere", of_file.as_str(), "psql (tid 41)", "file 0:0:1 on nowhere"]);
    let one = format!("2001-09-09 01:46:41  {of_file}  node 0 → 1   copied 9 B of 9 B\n");
    assert_eq!((explain(&[file.to_str().unwrap()]), explain(&[&id])), (one.clone(), one));
    assert!(explain(&["--json", "fio"]).contains(r#""volume":"nowhere""#));
}

#[test]
fn a_closed_stdout_is_a_quiet_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    let times: Vec<f64> = (0..2000).map(f64::from).collect();
    recording(&path, &times);
    for args in [&["replay", path.to_str().unwrap()][..], &["replay", "--json", path.to_str().unwrap()]] {
        let mut child = command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 10]).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{args:?}");
    }
}

#[test]
fn a_full_stdout_is_an_error() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["nodes"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert!(text(&output.stderr).contains("(ENOSPC)"), "{}", text(&output.stderr));
}

/// It was silent, with exit code 0.
#[test]
fn help_that_cannot_be_printed_is_an_error() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["--help"]).stdout(full).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(5) && said.contains("(ENOSPC)") && said.lines().count() == 1, "{said}");
}

/// Whatever was wrong, it was exit code 1 without an errno, and the process was named twice.
#[test]
fn a_process_that_cannot_be_moved_is_an_error_as_a_file_is() {
    let error = |args: &[&str]| {
        let (code, out, err) = ends(&[&["--json", "move"], args].concat());
        assert_eq!(out, "");
        let error: serde_json::Value = serde_json::from_str(&err).unwrap();
        assert_eq!(error["error"]["exit_code"], code);
        let word = |key: &str| error["error"][key].as_str().map(str::to_owned);
        (code, word("errno"), format!("{}: {}", word("what").unwrap(), word("why").unwrap()))
    };
    let (code, errno, said) = error(&["--pid", "2147483647", "--to", "0"]);
    assert_eq!((code, errno.as_deref()), (2, Some("ESRCH")), "{said}");
    assert_eq!(said, "process 2147483647: there is no such process (ESRCH)");
    let own = std::process::id().to_string();
    let (code, _, said) = error(&["--pid", &own, "--to", "1023"]);
    assert_eq!((code, said), (2, format!("process {own}: there is no node 1023")));
}

#[test]
fn restore_without_anything_to_restore() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("none");
    let (code, out, err) = ends(&["restore", "--state-dir", state.to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("nothing to restore"), "{out}");
    assert!(!state.exists());
}

#[test]
fn a_broken_configuration_does_not_keep_restore_from_undoing() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("h.toml");
    fs::write(&config, "[engin]\n").unwrap();
    let config = config.to_str().unwrap();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    // A thread of an earlier boot: its record is void, so restoring succeeds and leaves no state
    // file.
    let record = r#"{"record":"run","version":2,"epoch":"another"}
{"record":"hold","comm":"x","undo":{"subject":{"kind":"thread","tid":1,"start":1},"pid":1,"masks":{"before":"0","ours":"1"}}}
"#;
    fs::write(state.join("state.jsonl"), record).unwrap();
    let (code, out, err) = ends(&["restore", "--config", config, "--state-dir", state.to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(!state.join("state.jsonl").exists());
    // What moves threads still refuses it, and doctor names it among the rest.
    let (code, _, err) = ends(&["run", "--config", config, "--windows", "1", "--state-dir", state.to_str().unwrap()]);
    assert!(code == 2 && err.contains("h.toml:1: unknown key `engin`"), "{err}");
    let (code, out, err) = ends(&["doctor", "--config", config]);
    assert_eq!((code, err.as_str()), (1, ""));
    assert!(out.contains("missing  configuration") && out.contains("h.toml:1: unknown key `engin`"), "{out}");
    let (code, _, err) = ends(&["where", "--config", config, config]);
    assert_eq!((code, err.as_str()), (0, ""));
}

#[test]
fn completions_for_every_shell() {
    for (shell, mark) in [("bash", "complete -F"), ("zsh", "#compdef homenode"), ("fish", "complete -c homenode")] {
        let (code, out, err) = ends(&["completions", shell]);
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.contains(mark) && out.contains("cgroup") && out.contains("nthread-rl"), "{shell}");
        assert!(!out.contains("__exec'"), "{shell}");
    }
}

#[test]
fn a_manual_page_for_every_sub_command() {
    let subs = [&SUB_COMMANDS[..], &["config-check"]].concat();
    let subs: Vec<_> = subs.into_iter().map(str::to_owned).collect();
    let pages = testing::pages::manual_pages(env!("CARGO_BIN_EXE_homenode"), &subs, &["homenode.toml.5"]);
    let run = &pages["homenode-run.1"];
    assert!(run.contains(".TH") && run.contains("dry\\-run"), "{run}");
}

#[test]
fn the_command_that_run_starts_never_starts_when_nothing_can_be_observed() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("started");
    let state = dir.path().join("file");
    fs::write(&state, "").unwrap();
    let (code, _, err) = ends(&["run", "--state-dir", state.to_str().unwrap(), "--", "touch", mark.to_str().unwrap()]);
    assert_ne!(code, 0);
    assert!(err.contains("state directory"), "{err}");
    assert!(!mark.exists());
}

#[test]
fn what_another_program_does_is_named() {
    for args in [&["mkfs", "--size", "64MiB", "/nowhere"][..], &["--json", "fsck", "/nowhere"], &["help", "drain"]] {
        let (code, out, err) = ends(args);
        let name = args.iter().find(|word| ["mkfs", "fsck", "drain"].contains(word)).unwrap();
        // fsck(8) has codes of its own.
        let wanted = if *name == "fsck" { 16 } else { 2 };
        assert!(code == wanted && out.is_empty() && err.contains(&format!("`homenode-fs {name}` does that")), "{err}");
    }
    assert!(!ends(&["nothing"]).2.contains("homenode-fs"));
}

/// A test without a path is in the file that is named before it.
#[test]
fn every_test_that_security_md_names_is_there() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let named = fs::read_to_string(tree.join("SECURITY.md")).unwrap();
    let (mut source, mut text, mut tests) = (String::new(), String::new(), 0);
    for word in named.split('`').skip(1).step_by(2) {
        let (path, test) = word.split_once("::").map_or((word, None), |(path, test)| (path, Some(test)));
        let in_vm = path.starts_with("vm/") && test.is_some();
        if path.ends_with(".rs") || in_vm {
            source = if in_vm { path.to_owned() } else { format!("crates/{path}") };
            text = fs::read_to_string(tree.join(&source)).unwrap_or_else(|error| panic!("{word}: {error}"));
        }
        if let Some(test) = test {
            let forms = [format!("fn {test}("), format!("    {test} = ")];
            let there = if in_vm { text.contains(test) } else { forms.iter().any(|form| text.contains(form)) };
            assert!(there, "{word}: not in {source}");
            tests += 1;
        }
    }
    assert!(tests > 100, "{tests}");
}

/// The README's blocks are what the program prints, and the commands that it names are there.
#[test]
fn the_readme_shows_what_the_program_prints() {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
    let readme = fs::read_to_string(format!("{top}/README.md")).unwrap();
    let makefile = fs::read_to_string(format!("{top}/Makefile")).unwrap();
    let run = |args: &[&str]| text(&command(args).current_dir(top).stdin(Stdio::null()).output().unwrap().stdout);
    let (mut shown, mut named) = (0, 0);
    for block in readme.split("```").skip(1).step_by(2) {
        if let Some((typed, printed)) = block.split_once("$ ").and_then(|(_, block)| block.split_once('\n')) {
            let args: Vec<_> = typed.split_whitespace().skip_while(|word| *word != "homenode").skip(1).collect();
            shown += 1;
            if args == ["check"] && nodes_with_memory() > 1 {
                println!("skipped: {typed}: this machine has several nodes");
                continue;
            }
            assert_eq!(run(&args), printed, "{typed}");
        }
        for line in block.lines().filter_map(|line| line.strip_prefix("sudo homenode ")) {
            let args = line.split(" #").next().unwrap().split_whitespace();
            let args: Vec<_> = args.chain(["--help"]).collect();
            let (code, help, err) = ends(&args);
            assert!(code == 0 && help.contains(&format!("Usage: homenode {}", args[0])), "{line}: {err}");
            named += 1;
        }
    }
    assert!(shown == 2 && named >= 4, "{shown} {named}");
    let targets = readme.split('`').filter_map(|span| span.strip_prefix("make "));
    let missing: Vec<_> = targets.filter(|target| !makefile.contains(&format!("\n{target}: ##"))).collect();
    assert_eq!(missing, [""; 0]);
    assert!(readme.lines().count() <= 80);
}

fn nodes_with_memory() -> usize {
    let nodes = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    nodes.filter(|entry| entry.path().join("meminfo").exists()).count()
}

#[test]
fn check_says_at_once_that_one_node_is_none_too_many() {
    if nodes_with_memory() > 1 {
        return; // in_vm has the others
    }
    let (code, out, err) = ends(&["--json", "check"]);
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &said["verdict"], &said["seconds"]), (0, &"not_worth_it".into(), &0.0.into()), "{said} {err}");
    assert_eq!(said["because"], "this machine has one node with memory");
}
