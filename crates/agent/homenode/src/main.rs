//! `homenode`: keeps threads next to the file data they read.

mod child;
mod cli;
mod commands;

use std::process::ExitCode;

use clap::Parser;
use command::volume_args::usage_code;
use command::{config, exit, log, machine, mounted, notify, output, recording, signals};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let Some(ended) = session::external::program::keeper(&arguments) {
        return ended;
    }
    let cli = match cli::Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error, usage_code(&arguments)),
    };
    // The live view owns the terminal: nothing is logged over it.
    if !matches!(&cli.command, cli::Command::Top(top) if !top.once) {
        log::init(&cli.global);
    }
    exit::end(commands::dispatch(&cli), cli.global.json)
}
