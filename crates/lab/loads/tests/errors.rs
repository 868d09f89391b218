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
