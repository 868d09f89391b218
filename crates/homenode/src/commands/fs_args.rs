//! What the user can type after `homenode mkfs`, `homenode fsck` and `homenode fs`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::output::units;

/// The command line, where `mkfs.homenode` and `fsck.homenode` are names of `homenode mkfs` and `homenode fsck`: mkfs(8)
/// and fsck(8) look for programs of such names.
pub fn command_line(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut given: Vec<OsString> = given.collect();
    let name = given.first().and_then(|name| Path::new(name).file_name());
    let command = name.and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".homenode"));
    if let Some(command @ ("mkfs" | "fsck")) = command {
        let command = command.into();
        given.insert(1, command);
    }
    given
}

/// `homenode mkfs`.
#[derive(Debug, Args)]
pub struct MkfsArgs {
    /// Create the files, each of SIZE; without it the regions exist already
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub size: Option<u64>,
    /// Keep a checksum of every block of file data, and check it at each read
    #[arg(long)]
    pub data_checksums: bool,
    /// Overwrite a volume
    #[arg(long)]
    pub force: bool,
    /// The regions, one per node: DAX devices, or files on DAX, hugetlbfs, tmpfs or any other file system
    #[arg(required = true, value_name = "REGION[@NODE]")]
    pub regions: Vec<String>,
}

/// Which volume.
#[derive(Debug, Args)]
pub struct VolumeArgs {
    /// Any one region of the volume
    #[arg(value_name = "VOLUME")]
    pub volume: PathBuf,
    /// A region that is not where it was at mkfs (repeat the option)
    #[arg(long, value_name = "PATH")]
    pub region: Vec<PathBuf>,
}

/// `homenode fsck`.
#[derive(Debug, Args)]
pub struct FsckArgs {
    /// Finish what a crash interrupted, and restore superblocks from their copies
    #[arg(long, short = 'y', short_aliases = ['a', 'p'])]
    pub repair: bool,
    /// Which volume
    #[command(flatten)]
    pub volume: VolumeArgs,
}

/// `homenode fs`.
#[derive(Debug, Subcommand)]
pub enum FsCommand {
    /// Show the regions of a volume: nodes, space, how stores become durable
    Info(VolumeArgs),
    /// List a directory
    Ls(PathArgs),
    /// Copy a file into the volume, on the node where this command runs
    Put(PutArgs),
    /// Copy a file out of the volume
    Get(GetArgs),
    /// Show on which nodes a file is
    Where(PathArgs),
    /// Move a file to another node
    Migrate(MigrateArgs),
    /// Show what is on the medium
    #[command(subcommand)]
    Debug(DebugCommand),
}

/// A file or directory of a volume.
#[derive(Debug, Args)]
pub struct PathArgs {
    /// Which volume
    #[command(flatten)]
    pub volume: VolumeArgs,
    /// Path within the volume
    #[arg(value_name = "PATH")]
    pub path: String,
}

/// `homenode fs put`.
#[derive(Debug, Args)]
pub struct PutArgs {
    /// Which volume
    #[command(flatten)]
    pub volume: VolumeArgs,
    /// The file to copy
    #[arg(value_name = "LOCAL")]
    pub local: PathBuf,
    /// Path within the volume; a file that exists is replaced
    #[arg(value_name = "PATH")]
    pub path: String,
}

/// `homenode fs get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Which file
    #[command(flatten)]
    pub file: PathArgs,
    /// Where to; `-` is stdout
    #[arg(value_name = "LOCAL|-")]
    pub local: PathBuf,
}

/// `homenode fs migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Which file
    #[command(flatten)]
    pub file: PathArgs,
    /// The node to move it to
    #[arg(long, value_name = "NODE")]
    pub to: u32,
}

/// `homenode fs debug`.
#[derive(Debug, Subcommand)]
pub enum DebugCommand {
    /// Print the log of an inode
    Log(LogArgs),
}

/// `homenode fs debug log`.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Which volume
    #[command(flatten)]
    pub volume: VolumeArgs,
    /// Number of the inode, as `fs ls --json` prints it; 1 is the root
    #[arg(value_name = "INO")]
    pub ino: u64,
}
