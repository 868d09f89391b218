//! The sub-commands, one module each.

mod completions;
mod doctor;
mod explain;
pub mod export;
mod hot;
mod man;
mod map;
pub mod r#move;
mod nodes;
mod off;
mod pace;
mod plan;
mod plane;
mod readers;
mod record;
mod replace;
mod replay;
pub mod report;
mod restore;
mod run;
mod top;
mod trial;
pub mod warm;
mod where_;

use command::sibling;
use command::volume_args::{FSCK_FAILED, VolumeCommand};

use crate::child;
use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};

/// Runs the sub-command.
pub fn dispatch(cli: &Cli) -> Result<Exit, Failure> {
    let global = &cli.global;
    match &cli.command {
        Command::Nodes(args) => nodes::run(global, args),
        Command::Where(args) => where_::run(global, args),
        Command::Move(args) => r#move::run(global, args),
        Command::Warm(args) => warm::run(global, args),
        Command::Hot(args) => hot::run(global, args),
        Command::Top(args) => top::run(global, args),
        Command::Map(args) => map::run(global, args),
        Command::Run(args) => run::run(global, args),
        Command::Export(args) => export::run(global, args),
        Command::Trial(args) => trial::run(global, args),
        Command::Plan(args) => plan::run(global, args),
        Command::Record(args) => record::run(global, args),
        Command::Replay(args) => replay::run(global, args),
        Command::Explain(args) => explain::run(global, args),
        Command::Report(args) => report::run(global, args),
        Command::Restore => restore::run(global),
        Command::Doctor(args) => doctor::run(global, args),
        // fsck(8) has codes of its own.
        Command::Volume(VolumeCommand::Fsck(_)) => {
            Err(sibling::become_program(sibling::FS).exiting(Exit::Command(FSCK_FAILED)))
        }
        Command::Volume(_) => Err(sibling::become_program(sibling::FS)),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
        Command::Exec(args) => child::become_command(args, cli.global.json),
    }
}
