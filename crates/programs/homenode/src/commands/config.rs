//! `homenode config check`: what is wrong in configuration files, before a service reads them.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use command::args::{CONFIG_FILE, Global};
use command::rules;
use serde_json::json;
use session::policies;

use super::absent;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::machine::{self, Machine};
use crate::output::{self, escape, units};

/// `homenode config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what is wrong in configuration files, with the line
    ///
    /// Reads each FILE, and the files of conf.d beside it, as `homenode run` does, and compares it
    /// with this machine. A file of a conf.d is read with the homenode.toml that it belongs to.
    /// Values that can be and are hardly meant, such as a memory of 6 B/s, are warnings, and so are
    /// rules for services that are not there now. Changes nothing and needs no privileges.
    #[command(after_help = "\
Examples:
  homenode config check
  homenode config check ./homenode.toml
  homenode config check /etc/homenode/conf.d/10-database.toml && sudo homenode reload

The exit code is 0 if homenode would start with each file, and 1 if not.")]
    Check {
        /// Configuration files [default: that of --config, or /etc/homenode/homenode.toml]
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

/// Checks each file. A fault in one does not stop the others.
pub fn run(global: &Global, args: &ConfigArgs) -> Result<Exit, Failure> {
    let Command::Check { files } = &args.command;
    let usual: Vec<PathBuf> = global.config.iter().cloned().collect();
    let named = if files.is_empty() { &usual } else { files };
    let mut exit = Exit::Done;
    let (mut text, mut list) = (String::new(), Vec::new());
    let mut all: Vec<(PathBuf, bool)> = Vec::new();
    for file in named {
        let Some(fault) = unread(file) else {
            all.push(of(file));
            continue;
        };
        fault.report(global.json);
        exit = Exit::Partly;
        list.push(json!({"path": file.display().to_string(), "right": false, "rules": 0, "warnings": []}));
    }
    if named.is_empty() {
        all.push((CONFIG_FILE.into(), false));
    }
    // One homenode.toml may have several files beside it.
    all.dedup();
    for (path, must) in all {
        let (faults, doubts, rules) = check(&path, must);
        for fault in &faults {
            fault.report(global.json);
            exit = Exit::Partly;
        }
        text.extend(doubts.iter().map(|doubt| format!("warning: {}\n", escape(doubt))));
        let name = path.display().to_string();
        if !must && matches!(path.try_exists(), Ok(false)) {
            text += &format!("note: {} is not there: defaults hold\n", escape(&name));
        }
        if faults.is_empty() {
            text += &format!("{}: right, {}\n", escape(&name), units::count(rules, "rule"));
        }
        list.push(json!({"path": name, "right": faults.is_empty(), "rules": rules, "warnings": doubts}));
    }
    output::tell(global.json, &json!({"files": list}), || text)?;
    Ok(exit)
}

/// The file to read, and whether it must be there.
fn of(file: &Path) -> (PathBuf, bool) {
    let whole = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    match whole.parent() {
        Some(dir) if dir.ends_with("conf.d") => (dir.with_file_name("homenode.toml"), false),
        _ => (file.to_owned(), true),
    }
}

/// Why a file of a conf.d is not read.
fn unread(file: &Path) -> Option<Failure> {
    let whole = std::path::absolute(file).ok()?;
    whole.parent().filter(|dir| dir.ends_with("conf.d"))?;
    let name = file.display().to_string();
    if let Err(error) = whole.metadata() {
        return Some(Failure::from_error(Exit::Usage, name, &error));
    }
    let read = rules::is_drop(&whole);
    (!read).then(|| Failure::new(Exit::Usage, name, "it is not read: names there end in .toml and begin with no dot"))
}

fn check(path: &Path, must: bool) -> (Vec<Failure>, Vec<String>, usize) {
    let (config, mut faults) = Config::gather(path, must);
    let mut doubts = config.doubts();
    if faults.is_empty() {
        match Machine::read(Path::new(machine::SYS), &config) {
            Ok(machine) => doubts.extend(machine.unused.map(|why| format!("measured figures are not used: {why}"))),
            Err(fault) => faults.push(fault),
        }
        doubts.extend(absent::told(&config.rules()).into_iter().map(|absent| format!("rule {absent}")));
        faults.extend(policies::by_rules(&config).err());
    }
    (faults, doubts, config.service.len())
}
