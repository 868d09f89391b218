//! The sub-commands, one module each.

mod completions;
mod content;
mod doctor;
mod explain;
pub mod fs_args;
mod fs_files;
mod fs_volume;
mod hot;
mod man;
pub mod mount;
mod mounts;
pub mod r#move;
mod nodes;
mod plan;
pub mod policies;
mod record;
mod replay;
mod report;
mod restore;
mod run;
mod session;
mod top;
pub mod volume_policy;
mod where_;

use command::sibling;

use crate::child;
use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};

pub use fs_args::command_line;

/// Runs the sub-command.
pub fn dispatch(cli: &Cli) -> Result<Exit, Failure> {
    let global = &cli.global;
    match &cli.command {
        Command::Nodes(args) => nodes::run(global, args),
        Command::Where(args) => where_::run(global, args),
        Command::Move(args) => r#move::run(global, args),
        Command::Hot(args) => hot::run(global, args),
        Command::Top(args) => top::run(global, args),
        Command::Run(args) => run::run(global, args),
        Command::Plan(args) => plan::run(global, args),
        Command::Record(args) => record::run(global, args),
        Command::Replay(args) => replay::run(global, args),
        Command::Explain(args) => explain::run(global, args),
        Command::Restore => restore::run(global),
        Command::Doctor(args) => doctor::run(global, args),
        Command::Mkfs(args) => fs_volume::mkfs(global, args),
        Command::Fsck(args) => fs_volume::fsck(global, args),
        Command::Mount(args) => mount::run(global, args),
        Command::Fs(command) => fs_files::run(global, command),
        Command::Lab(_) => Err(sibling::become_program(sibling::LAB)),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
        Command::Exec(args) => child::become_command(args, cli.global.json),
    }
}
