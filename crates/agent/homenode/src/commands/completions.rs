//! `homenode completions`: scripts made from the same definitions as `--help`.

use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs};
use crate::exit::{Exit, Failure};
use crate::output;

/// Prints the script. It is made in memory first: clap_complete panics when stdout is closed early.
pub fn run(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "homenode", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
