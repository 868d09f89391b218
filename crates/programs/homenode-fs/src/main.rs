//! `homenode-fs`: makes, checks and mounts volumes, and looks into them. `mkfs.homenode`,
//! `fsck.homenode` and `mount.homenode` are names of it.

mod args;
mod background;
mod content;
mod drain;
mod fs_files;
mod fs_volume;
mod hold;
mod mount;
mod quota;
mod scrub;
mod volume_policy;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use command::{exit, log, pages};

use args::{Cli, Command, command_line, usage_code};

/// Sub-commands that are programs of their own by the name of a link, and what users of that give.
const NAMES: &[(&str, &str)] = &[
    ("mkfs", "mkfs.homenode [OPTIONS] <REGION[@NODE]>..."),
    ("fsck", "fsck.homenode [OPTIONS] <VOLUME>"),
    ("mount", "mount.homenode <VOLUME> <DIR> [-o <OPTION,…>]"),
];

fn beside() -> Result<Vec<pages::Beside>, exit::Failure> {
    let page = |(name, usage): &(&str, &'static str)| pages::as_program(&Cli::command(), name, usage);
    let mut pages = NAMES.iter().map(page).collect::<Result<Vec<_>, _>>()?;
    let text = ".so man8/mount.homenode.8\n".to_owned();
    pages.push(pages::Beside { file: "mount.fuse.homenode.8".to_owned(), text });
    Ok(pages)
}

/// Whether this program was called by the name that a usage begins with.
fn called(arguments: &[OsString], usage: &str) -> bool {
    let name = arguments.first().and_then(|name| Path::new(name).file_name()).and_then(|name| name.to_str());
    name.is_some_and(|name| name.replace(".fuse.", ".") == usage.split(' ').next().unwrap_or_default())
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(ended) = session::external::program::keeper(&arguments) {
        return ended;
    }
    let arguments = command_line(arguments.into_iter());
    let known = NAMES.iter().fold(Cli::command(), |known, (name, usage)| match called(&arguments, usage) {
        true => known.mut_subcommand(name, |command| command.override_usage(*usage)),
        false => known,
    });
    let parsed = known.try_get_matches_from(&arguments).and_then(|matches| Cli::from_arg_matches(&matches));
    let Cli { global, command } = match parsed {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error, usage_code(&arguments)),
    };
    log::init(&global);
    let result = match &command {
        Command::Mkfs(args) => fs_volume::mkfs(&global, args),
        Command::Fsck(args) => fs_volume::fsck(&global, args),
        Command::Mount(args) => mount::run(&global, args),
        Command::Upgrade(args) => hold::upgrade(&global, args),
        Command::Drain(args) => drain::run(&global, args),
        Command::Fs(command) => fs_files::run(&global, command),
        Command::About(about) => beside().and_then(|beside| about.run(Cli::command(), beside)),
    };
    exit::end(result, global.json)
}
