//! `homenode-lab`: what homenode would do on machines that are not there.

mod bars;
mod changes;
mod page;
mod regret;
mod run;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use command::args::Global;
use command::exit::{self, Exit, Failure};
use command::log;
use command::pages::About;

/// Run the shipped code in virtual time: the papers' experiments, and your own.
#[derive(Debug, Parser)]
#[command(name = "homenode-lab", version, max_term_width = 100)]
// Experiments have their settings in their own files, and move nothing.
#[command(mut_arg("config", |arg| arg.hide(true)), mut_arg("state_dir", |arg| arg.hide(true)))]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run figures of the papers: the shipped file system and policies in virtual time
    ///
    /// Everything that decides, stores or moves is the shipped code; memory, cores, links and the
    /// programs are modelled. docs/lab.md says how. The same seed gives the same numbers. Without a
    /// figure, lists them.
    Run(run::RunArgs),
    /// Draw machines and loads, and compare policies with the best placement of each
    ///
    /// The best placement is searched for by running placements, not by equations of a policy.
    /// Programs read and write files in the page cache or the ARC of a host, in virtual time.
    Regret(regret::RegretArgs),

    #[command(flatten)]
    About(About),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error, Exit::Usage.code()),
    };
    log::init(&cli.global);
    let result = match &cli.command {
        _ if cli.global.config.is_some() => {
            Err(Failure::new(Exit::Usage, "--config", "experiments have their settings in their own files"))
        }
        Command::Run(args) => run::run(&cli.global, args),
        Command::Regret(args) => regret::run(&cli.global, args),
        Command::About(about) => about.run(Cli::command(), Vec::new()),
    };
    exit::end(result, cli.global.json)
}
