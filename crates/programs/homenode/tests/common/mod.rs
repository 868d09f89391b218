//! What several test programs share: the real binary, and what observing needs.
#![allow(dead_code, reason = "each test program uses a part of this")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use serde_json::Value;
use testing::Tried;

/// Needs root and all that observing the machine takes.
pub fn observing() -> Tried {
    testing::root()?;
    static MISSING: LazyLock<Option<String>> = LazyLock::new(|| {
        let doctor = json(&homenode(&["doctor", "--json"]).stdout);
        let missing = doctor["facts"].as_array()?.iter().find(|f| f["needed"] == true && f["available"] == false)?;
        Some(format!("nothing can be observed here: {}: {}", missing["name"], missing["cause"]))
    });
    MISSING.clone().map_or(Ok(()), testing::skip)
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homenode"));
    command.args(args).env_remove("HOMENODE_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

pub fn homenode(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// The program `homenode-fs`, which is built beside.
pub fn homenode_fs(args: &[&str]) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_homenode")).with_file_name("homenode-fs"));
    command.args(args).env_remove("HOMENODE_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|e| panic!("{e}: {}", text(bytes)))
}
