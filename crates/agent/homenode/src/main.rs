//! `homenode`: keeps threads next to the file data they read.

mod child;
mod cli;
mod commands;

use std::process::ExitCode;

use clap::Parser;
use command::{config, exit, log, machine, notify, output, recording, signals};

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
    // The live view owns the terminal: nothing is logged over it.
    if !matches!(&cli.command, cli::Command::Top(top) if !top.once) {
        log::init(&cli.global);
    }
    exit::end(commands::dispatch(&cli), cli.global.json)
}
