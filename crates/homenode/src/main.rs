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
    let arguments = commands::command_line(std::env::args_os());
    let cli = match cli::Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // fsck(8) and mount(8) have their own codes for wrong usage.
            let is = |at: usize, word: &str| arguments.get(at).is_some_and(|arg| arg == word);
            let code = match () {
                () if is(1, "fsck") => 16,
                () if is(1, "mount") && is(2, "--helper") => commands::mount::HELPER_USAGE,
                () => exit::Exit::Usage.code(),
            };
            return exit::usage(&error, code);
        }
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
