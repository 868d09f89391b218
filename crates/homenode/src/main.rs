//! `homenode`: keeps threads next to the file data they read.

mod child;
mod cli;
mod commands;
mod config;
mod exit;
mod log;
mod notify;
mod output;
mod recording;
mod signals;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    log::init(&cli);
    let exit = match commands::dispatch(&cli) {
        Ok(exit) => exit,
        Err(failure) if failure.is_broken_pipe() => exit::Exit::Done,
        Err(failure) => {
            failure.report(cli.global.json);
            failure.exit()
        }
    };
    ExitCode::from(exit.code())
}
