//! `homenode-fs`: makes, checks and mounts volumes, and looks into them. `homenode mkfs`, `fsck`,
//! `mount` and `fs` start it; `mkfs.homenode`, `fsck.homenode` and `mount.homenode` are names of
//! it.

mod content;
mod fs_files;
mod fs_volume;
mod mount;
mod volume_policy;

use std::process::ExitCode;

use clap::Parser;
use command::args::Global;
use command::volume_args::{VolumeCommand, command_line, usage_code};
use command::{exit, log};

/// Make, check and mount volumes: file systems over the memory of several nodes.
///
/// `homenode mkfs`, `homenode fsck`, `homenode mount` and `homenode fs` are the same commands.
#[derive(Debug, Parser)]
#[command(name = "homenode-fs", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: VolumeCommand,
}

fn main() -> ExitCode {
    let arguments = command_line(std::env::args_os());
    let Cli { global, command } = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error, usage_code(&arguments)),
    };
    log::init(&global);
    let result = match &command {
        VolumeCommand::Mkfs(args) => fs_volume::mkfs(&global, args),
        VolumeCommand::Fsck(args) => fs_volume::fsck(&global, args),
        VolumeCommand::Mount(args) => mount::run(&global, args),
        VolumeCommand::Fs(command) => fs_files::run(&global, command),
    };
    exit::end(result, global.json)
}
