//! Errors of the laboratory's programs.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::process::{Command, Output};

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).env("RUST_BACKTRACE", "1").output().unwrap()
}

#[test]
fn an_error_is_one_line_with_its_cause() {
    let load = env!("CARGO_BIN_EXE_homenode-load");
    let output = run(load, &["--seconds", "0.01", "/no/such/file"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "homenode-load: /no/such/file: No such file or directory (os error 2)\n");
    assert_eq!(output.status.code(), Some(1));
}

/// The process of one act took the list of all acts for its own, and would have started others
/// without end.
#[test]
fn each_of_several_acts_is_shown_once() {
    let out = tempfile::tempdir().unwrap();
    let dir = out.path().to_str().unwrap();
    let args = ["--homenode", "/bin/true", "--load", "/bin/true", "--data", dir, "--out", dir, "--where", "vm"];
    let output = run(env!("CARGO_BIN_EXE_homenode-demo"), &[&args[..], &["--acts", "file,mapped"]].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    for act in ["file", "mapped"] {
        assert_eq!(said.matches(&format!("act {act} failed")).count(), 1, "{said}");
    }
    assert!(said.ends_with("0 of 2 acts came out as claimed\n"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}
