//! `homenode-lab run` as a user runs it.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

/// `homenode-lab run` with these arguments.
fn lab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homenode-lab"));
    command.arg("run").args(args).env_remove("HOMENODE_LOG").stdin(Stdio::null());
    command
}

/// Exit code, stdout, stderr.
fn ended(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn ends(args: &[&str]) -> (i32, String, String) {
    ended(lab(args).output().unwrap())
}

const SMALL: &str = r#"
    paper = "none"
    figure = "1"
    title = "Two readers"
    value = "weighted_mb_s"
    seconds = 4.0
    paper_seconds = 4.0
    factor = 400.0
    [machine]
    nodes = 2
    cores = 2
    memory = "optane"
    [[point]]
    name = "read-only"
    load = { kind = "fio", threads = 2, block = 4096, file_bytes = 4e8, read = 1.0 }
    [[series]]
    name = "NOVA"
    placement = "node0"
    [[series]]
    name = "rl"
    placement = "local"
    policy = "nthread-rl"
    [[effect]]
    of = "rl"
    over = "NOVA"
    paper = 1.2
    kind = "predicted"
    source = "nowhere"
"#;

#[test]
fn a_number_that_no_run_has_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("odd.toml");
    let path = file.to_str().unwrap();
    for (from, to, what) in [
        ("factor = 400.0", "factor = 0.0", "factor is 0"),
        ("factor = 400.0", "factor = nan", "factor is NaN"),
        ("\n    seconds = 4.0", "\n    seconds = 0.0", "seconds is 0"),
        ("nodes = 2", "nodes = 50000", "machine.nodes is 50000"),
        ("cores = 2", "cores = 4000000000", "machine.cores is 4000000000"),
        ("cores = 2", "cores = 2\nlink_bw = 0.0", "machine.link_bw is 0"),
        ("threads = 2", "threads = 40000", "threads is 40000"),
        ("block = 4096", "block = 1000000000000000000", "block is 1000000000000000000"),
        ("file_bytes = 4e8", "file_bytes = 1e25", "file_bytes is 1"),
        ("read = 1.0", "read = 1.0, think_s = 1e12", "think_s is 1000000000000"),
    ] {
        assert!(SMALL.contains(from), "{from}");
        fs::write(&file, SMALL.replace(from, to)).unwrap();
        let (code, out, err) = ends(&[path]);
        assert!(code == 2 && out.is_empty() && err.contains(what), "{to}: {code} {err}");
    }
    // What one machine, or one table, does not have: these ran, and showed figures.
    let load = "load = { kind = \"fio\", threads = 2, block = 4096, file_bytes = 4e8, read = 1.0 }";
    let again = format!("{load}\n    [[point]]\n    name = \"read-only\"\n    {load}");
    let others = format!("[[point.loads]]\n    files_on = 9\n    {load}");
    for (from, to, what) in [
        ("weighted_mb_s", "runtime_s", "only programs of a host have a value in s"),
        ("name = \"rl\"", "name = \"NOVA\"", "series NOVA is there twice"),
        ("paper = 1.2", "paper = 1.2\nover_points = [\"read-only\"]", "as many `over_points` as `points`"),
        ("name = \"rl\"", "name = \"rl\"\nkernel = { start = 2 }", "kernel.start is 2: 0 to 1"),
        (load, &again, "point read-only is there twice"),
        (load, &others, "files_on is 9: 0 to 1"),
    ] {
        assert!(SMALL.contains(from), "{from}");
        fs::write(&file, SMALL.replace(from, to)).unwrap();
        let (code, out, err) = ends(&[path]);
        assert!(code == 2 && out.is_empty() && err.contains(what), "{to}: {code} {err}");
    }
    fs::write(&file, SMALL).unwrap();
    for (args, what) in [
        (&["--config", path][..], "experiments have their settings in their own files"),
        (&["--nodes", "0"], "machine.nodes is 0"),
        (&["--factor", "3e9"], "factor is 3000000000"),
        (&["--factor", "0.5"], "factor is 0.5"),
        (&["--series", "typo"], "series typo"),
        (&["--seeds", "1000000000000"], "--seeds"),
    ] {
        let (code, _, err) = ends(&[&[path], args].concat());
        assert!(code == 2 && err.contains(what), "{args:?}: {code} {err}");
    }
}

#[test]
fn figures_are_listed_and_a_wrong_name_or_file_is_refused() {
    let (code, out, _) = ends(&[]);
    assert_eq!(code, 0);
    assert!(out.lines().any(|line| line == "nthread-5a"), "{out}");
    let (code, _, err) = ends(&["nthread-99"]);
    assert!(code == 5 && err.contains("nthread-99 is no figure"), "{code} {err}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("wrong.toml");
    fs::write(&file, SMALL.replace("nthread-rl", "nthread-lr")).unwrap();
    let (code, _, err) = ends(&[file.to_str().unwrap()]);
    assert!(code == 2 && err.contains("there is no policy called nthread-lr"), "{code} {err}");
}

#[test]
fn an_experiment_gives_the_same_tables_each_time_and_writes_them() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = (dir.path().join("small.toml"), dir.path().join("out"));
    fs::write(&file, SMALL).unwrap();
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    let args = [file, "--seeds", "2", "--out", out];
    let first = ends(&args);
    assert_eq!((first.0, first.2.as_str()), (0, ""));
    assert!(first.1.contains("| effect | paper | measured | kind | null | verdict |"), "{}", first.1);
    assert!(first.1.contains("| rl / NOVA, average (nowhere) | 1.20 | "), "{}", first.1);
    assert_eq!(ends(&args), first);
    let csv = fs::read_to_string(format!("{out}/small.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * 2, "{csv}");
    assert_eq!(fs::read_to_string(format!("{out}/small.md")).unwrap(), first.1);
    let (_, one, _) = ends(&[file, "--series", "NOVA"]);
    assert!(one.contains("| not run |"), "{one}");
    let picture = format!("{out}/small.png");
    assert!(fs::read(&picture).unwrap().starts_with(b"\x89PNG"));
    fs::remove_file(&picture).unwrap();
    fs::create_dir(&picture).unwrap();
    let (code, _, err) = ends(&args);
    assert!(code == 5 && err.contains("small.png"), "{code} {err}");
}

/// The figures 6.1 and 6.2 overwrote each other, and a comma in a name made one field two.
#[test]
fn each_figure_has_its_own_files_and_each_field_its_column() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for (name, point) in [("a.1", "x, y"), ("a.2", "\\\"z\\\"")] {
        let file = dir.path().join(format!("{name}.toml"));
        fs::write(&file, SMALL.replace("name = \"read-only\"", &format!("name = \"{point}\""))).unwrap();
        assert_eq!(ends(&[file.to_str().unwrap(), "--out", out.to_str().unwrap()]).0, 0);
    }
    let first = |name: &str| fs::read_to_string(out.join(name)).unwrap().lines().nth(1).unwrap().to_owned();
    assert!(first("a.1.csv").starts_with("\"1\",\"x, y\",\"NOVA\",1,"), "{}", first("a.1.csv"));
    assert!(first("a.2.csv").starts_with("\"1\",\"\"\"z\"\"\",\"NOVA\",1,"), "{}", first("a.2.csv"));
    for kind in ["md", "png"] {
        assert!(["a.1", "a.2"].iter().all(|name| out.join(format!("{name}.{kind}")).exists()), "{kind}");
    }
}

/// A program decides as a user's, whoever runs the test. The tests' PATH may lead through a home of
/// root's, where that user has no way.
fn by_a_user(args: &[&str]) -> (i32, String, String) {
    let variables = [("SUDO_UID", "65534"), ("SUDO_GID", "65534"), ("PATH", "/usr/bin:/bin")];
    ended(lab(args).envs(variables).output().unwrap())
}

/// The bars of a series.
fn column(table: &str, series: &str) -> Vec<f64> {
    let mut rows = table.lines().filter(|line| line.starts_with('|')).map(|line| line.split('|').collect::<Vec<_>>());
    let at = rows.next().unwrap().iter().position(|name| name.trim() == series).unwrap();
    rows.skip(1).map_while(|row| row.get(at)?.trim().parse().ok()).collect()
}

#[test]
fn a_program_decides_in_the_place_of_a_policy() {
    let dir = tempfile::tempdir().unwrap();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/policies");
    // Not below a directory that only its owner may enter.
    let programs = ["nthread_rl.py", "spread.py"].map(|name| {
        let path = dir.path().join(name);
        fs::copy(format!("{examples}/{name}"), &path).unwrap();
        format!("exec:{}", path.display())
    });
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Twice as many readers as cores of the node that their data is on.
    let load = SMALL.replace("threads = 2", "threads = 4");
    let file = dir.path().join("small.toml");
    fs::write(&file, load).unwrap();
    let file = file.to_str().unwrap();
    let (code, out, err) = by_a_user(&[file, "--policy", &programs[0], "--policy", &programs[1], "--seeds", "2"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let [ours, theirs, spread] = ["rl", &programs[0], &programs[1]].map(|series| column(&out, series));
    assert_eq!((ours.len(), &ours), (1, &theirs), "{out}");
    assert!(spread[0] > 1.1 * ours[0], "{out}");

    let quits = dir.path().join("quits");
    fs::write(&quits, "#!/bin/sh\necho '{\"homenode\":1,\"name\":\"quits\"}'\n").unwrap();
    fs::set_permissions(&quits, fs::Permissions::from_mode(0o755)).unwrap();
    let (code, out, err) = by_a_user(&[file, "--policy", &format!("exec:{}", quits.display())]);
    assert!(
        code == 1 && out.is_empty() && err.contains("the policy ended: exec:quits: it ended"),
        "{code} {out} {err}"
    );
}

#[test]
fn points_are_swept_and_the_machine_has_other_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("small.toml");
    fs::write(&file, SMALL).unwrap();
    let file = file.to_str().unwrap();
    let (code, out, err) = ends(&[file, "--sweep", "threads=1,2,3", "--nodes", "3", "--series", "NOVA"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for threads in 1..4 {
        assert!(out.contains(&format!("| read-only, threads {threads} |")), "{out}");
    }
    let bars = column(&out, "NOVA");
    assert!(bars[1] > 1.5 * bars[0] && bars[2] > bars[1], "{out}");
    assert_eq!(out.matches(" %, ").count(), 2, "one series, three controllers: {out}");
    // No paper has stated anything about them.
    assert!(!out.contains("missed"), "{out}");
    for (sweep, why) in [("typo=1", "no load of the point read-only has it"), ("threads=x", "x is no number")] {
        let (code, _, err) = ends(&[file, "--sweep", sweep]);
        assert!(code == 2 && err.contains(why), "{code} {err}");
    }
}

#[test]
fn a_manual_page_for_every_sub_command() {
    let subs = ["completions", "man", "regret", "run"].map(str::to_owned);
    let pages = testing::pages::manual_pages(env!("CARGO_BIN_EXE_homenode-lab"), &subs, &[]);
    // Experiments have their settings in their own files.
    assert!(pages.values().all(|page| !page.contains("state\\-dir") && !page.contains("\\-\\-config")));
    assert!(pages["homenode-lab-run.1"].contains("\\-\\-seeds"));
}
