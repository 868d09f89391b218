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
        Err(failure) => ended(&failure, cli.global.json),
    };
    // What a command that nobody waits for has written last.
    let exit = match output::drain().map_err(exit::Failure::from) {
        Err(failure) if exit == exit::Exit::Done => ended(&failure, cli.global.json),
        _ => exit,
    };
    ExitCode::from(exit.code())
}

/// Says why homenode ends, unless its reader has left.
fn ended(failure: &exit::Failure, json: bool) -> exit::Exit {
    if failure.is_broken_pipe() {
        return exit::Exit::Done;
    }
    failure.report(json);
    failure.exit()
}
