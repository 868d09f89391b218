//! The sub-commands, one module each.

mod doctor;
mod explain;
pub mod export;
mod hot;
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

use clap::CommandFactory;
use command::pages;

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
        Command::Completions(args) => pages::completions(Cli::command(), args),
        Command::Man(args) => pages::man(Cli::command(), args),
        Command::Exec(args) => child::become_command(args, cli.global.json),
    }
}
