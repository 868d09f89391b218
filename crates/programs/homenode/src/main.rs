//! `homenode`: keeps threads next to the file data they read.

mod child;
mod cli;
mod commands;
mod options;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use command::{config, exit, log, machine, mounted, notify, output, recording, signals};

/// Sub-commands of `homenode-fs`.
const OF_FS: [&str; 6] = ["mkfs", "fsck", "mount", "upgrade", "drain", "fs"];

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let Some(ended) = session::external::program::keeper(&arguments) {
        return ended;
    }
    let matches = cli::grouped().try_get_matches_from(&arguments);
    let cli = match matches.and_then(|matches| cli::Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let (error, code) = elsewhere(error);
            return exit::usage(&error, code);
        }
    };
    // The live view owns the terminal: nothing is logged over it.
    if !matches!(&cli.command, cli::Command::Top(top) if !top.once) {
        log::init(&cli.global);
    }
    exit::end(cli::dispatch(&cli), cli.global.json)
}

/// What another program does is an unknown sub-command here; the error says which program. With its
/// exit code. A letter that is missing in a short name is too much for clap's own suggestions.
fn elsewhere(mut error: clap::Error) -> (clap::Error, u8) {
    let usage = exit::Exit::Usage.code();
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) if OF_FS.contains(&name.as_str()) => {
            let code = if name == "fsck" { exit::FSCK_USAGE } else { usage };
            let why = format!("`homenode-fs {name}` does that");
            (cli::Cli::command().error(ErrorKind::InvalidSubcommand, why), code)
        }
        Some(ContextValue::String(name)) if error.get(ContextKind::SuggestedSubcommand).is_none() => {
            let command = cli::Cli::command();
            let near = |sub: &&clap::Command| strsim::osa_distance(sub.get_name(), name) == 1;
            if let Some(sub) = command.get_subcommands().find(near) {
                let names = ContextValue::Strings(vec![sub.get_name().to_owned()]);
                error.insert(ContextKind::SuggestedSubcommand, names);
            }
            (error, usage)
        }
        _ => (error, usage),
    }
}
