//! Nothing that other users do keeps homenode from starting or from stopping.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use testing::{Case, Ends, Tried, cases, root, skip};

/// What takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);
/// Nobody's user and group id.
const NOBODY: u32 = 65_534;

const CASES: &[Case] = cases![[root()]
    somebody_elses_kubelet_does_not_hold_doctor_up = || beside_a_fake_kubelet(&["doctor", "--json"]),
    somebody_elses_kubelet_does_not_hold_run_up = || beside_a_fake_kubelet(&["run", "--dry-run", "--windows", "1"]),
    sigterm_ends_run_while_it_starts,
    a_program_that_places_threads_and_comes_later_is_told,
];

fn main() {
    testing::run(&[], CASES.to_vec());
}

fn homenode(args: &[&str]) -> Ends {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homenode"));
    command.args(args).env_remove("HOMENODE_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    Ends(command.spawn().unwrap())
}

/// A process of nobody's that calls itself kubelet and names a FIFO, which nobody writes to, as its
/// configuration.
fn beside_a_fake_kubelet(args: &[&str]) -> Tried {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (program, fifo) = (dir.path().join("kubelet"), dir.path().join("fifo"));
    std::fs::write(&program, "#!/bin/sh\nsleep 600 & wait\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    let mut command = Command::new(&program);
    command.arg(format!("--config={}", fifo.display())).uid(NOBODY).gid(NOBODY).process_group(0).current_dir("/");
    let kubelet = match command.spawn() {
        Ok(kubelet) => Ends(kubelet),
        Err(error) => return skip(format!("nobody cannot run {}: {error}", program.display())),
    };
    let comm = || std::fs::read_to_string(format!("/proc/{}/comm", kubelet.0.id())).unwrap();
    while comm() != "kubelet\n" {
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = homenode(args).end("homenode", LIMIT);
    assert!(status.code().is_some(), "{status}");
    Ok(())
}

/// numad was found only if it was there at the start.
fn a_program_that_places_threads_and_comes_later_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let numad = dir.path().join("numad");
    std::fs::copy("/bin/sleep", &numad).unwrap();
    let mut run = homenode(&["--json", "run", "--dry-run", "--window", "0.1", "--windows", "400"]);
    let mut lines = BufReader::new(run.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    // By then it has searched once.
    assert_eq!(lines.by_ref().filter(|line| line.contains("\"kind\":\"window\"")).take(20).count(), 20);
    let mut told = |what: &str| {
        let line = lines.find(|line| line.contains("\"kind\":\"interference\"")).unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let names = line[what].as_array().unwrap().iter().filter(|it| it["name"] == "numad").count();
        assert_eq!(names, 1, "{what}: {line}");
    };
    let mut command = Command::new(&numad);
    let running = Ends(command.arg("600").process_group(0).spawn().unwrap());
    told("came");
    drop(running);
    told("gone");
    run.terminate();
    run.end("homenode", LIMIT);
}

fn sigterm_ends_run_while_it_starts() {
    // At any moment from the first on, up to the first line.
    for pause in [Some(0), Some(5), Some(50), Some(200), None] {
        let mut run = homenode(&["run", "--dry-run"]);
        match pause {
            Some(ms) => std::thread::sleep(Duration::from_millis(ms)),
            None => _ = BufReader::new(run.0.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap(),
        }
        run.terminate();
        run.end("homenode", LIMIT);
    }
}
