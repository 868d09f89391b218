//! The command line. The doc comments are the manual, both `--help` and the man pages.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use command::args::{Global, or_program, seconds};
use command::exit::{Exit, FSCK_USAGE};
use command::output::units;
use command::pages::About;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  some of the work failed
  2  wrong usage, or input that cannot be used
  3  not permitted, or not supported by this kernel
  4  in use: another process has the volume
  5  reading or writing failed (file missing, disk full, …)
`homenode-fs fsck` has the codes of fsck(8), and the helper mount.fuse.homenode those of mount(8).";

/// Make, check and mount volumes: file systems over the memory of several nodes.
#[derive(Debug, Parser)]
#[command(name = "homenode-fs", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// Options for every sub-command.
    #[command(flatten)]
    pub global: Global,
    /// Sub-command.
    #[command(subcommand)]
    pub command: Command,
}

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a volume: a file system over the memory of several nodes
    ///
    /// All that was in the regions is lost.
    #[command(after_help = "\
Examples:
  sudo homenode-fs mkfs /dev/dax0.0@0 /dev/dax1.0@1
  homenode-fs mkfs --size 1G /dev/shm/a@0 /dev/shm/b@1")]
    Mkfs(MkfsArgs),

    /// Check a volume that is not in use
    ///
    /// The exit codes are those of fsck(8): 0 when all is well, 1 when it was repaired, 4 when it
    /// is damaged, 8 when it could not be checked, 16 for wrong usage, 32 when a signal ended the
    /// check.
    #[command(after_help = "\
Examples:
  homenode-fs fsck /dev/shm/a
  homenode-fs fsck --repair /dev/shm/a")]
    Fsck(FsckArgs),

    /// Mount a volume on a directory, for all programs
    ///
    /// When the command returns, the mount works, and goes on in the background until `umount DIR`.
    /// With --foreground, it ends on SIGTERM or SIGINT (Ctrl-C) too: if files are open, the
    /// directory is free at once, and the mount ends when the last of them is closed. Whatever a
    /// program was told is done survives the end of the server, also by `kill -9`. Where a holder
    /// keeps the mount, the next server goes on then, and programs wait meanwhile; elsewhere
    /// `umount DIR` and mount again. `umount` of a mount in the background works as for any file
    /// system.
    ///
    /// Options of -o: ro, rw, exec, noexec, suid, nosuid, dev, nodev, sync, dirsync, noatime and
    /// the other filesystem-independent options of mount(8); cache=, placement=, workers=, memory=,
    /// idmap and region= equal the options of these names; nohold is --no-hold, and hold the
    /// opposite. The kernel checks permissions, as for a local file system, and all users may use
    /// the mount. Reading never changes the access time.
    ///
    /// Also with -o, and so in /etc/fstab: policy=, policy-user=, margin=, min-bytes=, window=,
    /// record=, emulate-nodes=, profile= and scale=. Without a policy the server counts nothing and
    /// moves nothing, and the kernel may keep file data in its page cache; with one it asks for
    /// every read (cache=direct).
    #[command(after_help = "\
Examples:
  sudo homenode-fs mount /dev/shm/a /mnt
  sudo homenode-fs mount --cache direct --placement interleave /dev/dax0.0 /mnt
  sudo mount -t fuse.homenode /dev/dax0.0 /mnt -o noexec,cache=direct
  sudo umount /mnt

In /etc/fstab (`mount -a`, systemd; both look for mount.fuse.homenode in /sbin):
  /dev/dax0.0  /data  fuse.homenode  nosuid,nodev,nofail              0  0
  /dev/dax0.0  /data  fuse.homenode  nosuid,nodev,nofail,policy=auto  0  0

As a service of systemd: ExecStart=homenode-fs mount --foreground /dev/dax0.0 /data, Type=notify")]
    Mount(Box<MountArgs>),

    /// Have a newer program serve a mount that goes on
    ///
    /// The server ends, and the next one is what the program's file is by now. What programs do on
    /// the mount waits until it works, as a rule less than a second; none gets an error. If it does
    /// not work, the program that served before goes on. The mount needs a holder (mount -o hold).
    #[command(after_help = "\
Examples:
  sudo homenode-fs upgrade /mnt")]
    Upgrade(UpgradeArgs),

    /// Empty a region of a volume before its memory goes
    ///
    /// Data, logs and inodes move to other regions, while the volume is used if it is mounted, and
    /// the region gets nothing new until the volume is unmounted. A file that has its number in the
    /// region gets another one, unless it is open, or the kernel remembers it. What stays is listed
    /// with the reason, and the exit code is 1 then. Ctrl-C stops it; what has moved stays where it
    /// is now. On a mount it takes root (CAP_SYS_ADMIN).
    #[command(after_help = "\
Examples:
  sudo homenode-fs drain /data 1             # a mounted volume
  sudo homenode-fs drain /data 1 --use-again # its memory stays after all
  homenode-fs drain /dev/shm/a 1             # a volume that is not mounted")]
    Drain(DrainArgs),

    /// Look at a volume and its files, and move them between nodes
    #[command(
        subcommand,
        after_help = "\
Examples:
  homenode-fs fs put /dev/shm/a data.db /data.db
  homenode-fs fs where /dev/shm/a /data.db
  homenode-fs fs migrate /dev/shm/a /data.db --to 1
  homenode-fs fs migrate /mnt/data.db --to 1        # while the volume is mounted on /mnt
  homenode-fs fs get /dev/shm/a /data.db - | sha256sum"
    )]
    Fs(FsCommand),

    #[command(flatten)]
    About(About),
}

/// The policy of a mount that has none.
const MOUNT_OFF: &str = "off";

/// A policy that can decide on a mount, `off`, or a program.
fn policy_or_program() -> impl TypedValueParser<Value = String> {
    let all = [(MOUNT_OFF, "nothing moves")];
    let all = all.iter().chain(placement::POLICIES);
    or_program(PossibleValuesParser::new(all.map(|(name, about)| PossibleValue::new(*name).help(*about))))
}

/// Exit code of mount(8) for incorrect use.
pub const HELPER_USAGE: u8 = 1;
/// Exit code of fsck(8) for a check that could not be made, or told.
pub const FSCK_FAILED: u8 = 8;

/// The exit code for wrong usage: fsck(8) and mount(8) have their own.
pub fn usage_code(arguments: &[OsString]) -> u8 {
    let is = |at: usize, word: &str| arguments.get(at).is_some_and(|arg| arg == word);
    match () {
        () if is(1, "fsck") => FSCK_USAGE,
        () if is(1, "mount") && arguments.iter().any(|arg| arg == "--helper") => HELPER_USAGE,
        () => Exit::Usage.code(),
    }
}

/// The command line, where `mkfs.homenode`, `fsck.homenode` and `mount.homenode` are names of
/// `homenode-fs mkfs`, `homenode-fs fsck` and `homenode-fs mount`: mkfs(8), fsck(8) and mount(8)
/// look for programs of such names.
pub fn command_line(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut given: Vec<OsString> = given.collect();
    let name = given.first().and_then(|name| Path::new(name).file_name());
    match name.and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".homenode")) {
        Some(command @ ("mkfs" | "fsck")) => {
            let command = command.into();
            given.insert(1, command);
        }
        Some("mount" | "mount.fuse") => {
            // mount(8) passes on what is its own: -n, -s, -f ("fake") and -t TYPE.
            let mut rest = given.split_off(1).into_iter();
            given.extend(["mount".into(), "--helper".into()]);
            while let Some(word) = rest.next() {
                match word.to_str() {
                    Some("-n" | "-s") => {}
                    Some("-t") => drop(rest.next()),
                    Some("-f") => given.push("--fake".into()),
                    _ => given.push(word),
                }
            }
        }
        _ => {}
    }
    if given.get(1).is_some_and(|command| command == "mount") {
        let rest = spread(given.split_off(2));
        given.extend(rest);
    }
    given
}

/// What `mount` is given, where options that have a value may also be among those of -o: makes them
/// options of the command line. Of one that -o has twice the last counts.
fn spread(words: Vec<OsString>) -> Vec<OsString> {
    let known = MountArgs::augment_args(clap::Command::new("mount"));
    let is_known =
        |name: &str| known.get_arguments().any(|arg| arg.get_long() == Some(name) && arg.get_action().takes_values());
    let (mut own, mut rest): (Vec<String>, Vec<OsString>) = (Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let list = match word.to_str().map(|text| (text, text.strip_prefix("-o"))) {
            Some((_, Some(""))) => words.next(),
            Some((_, Some(list))) => Some(list.into()),
            Some(("--", _)) => {
                rest.push(word);
                rest.extend(words);
                break;
            }
            _ => None,
        };
        let Some(list) = list else {
            rest.push(word);
            continue;
        };
        let mut others = Vec::new();
        for option in list.to_str().map(apart).unwrap_or_default() {
            match option.split_once('=') {
                Some((name, _)) if is_known(name) => {
                    let same = format!("--{name}=");
                    own.retain(|before| name == "region" || !before.starts_with(&same));
                    own.push(format!("--{option}"));
                }
                _ => others.push(option),
            }
        }
        let list = if list.to_str().is_some() { others.join(",").into() } else { list };
        rest.extend(["-o".into(), list]);
    }
    own.into_iter().map(OsString::from).chain(rest).collect()
}

/// The options of -o. A value in quotes may have commas: `context="u:r:t:s0:c1,c2"`.
pub fn apart(list: &str) -> Vec<String> {
    let mut quoted = false;
    let end = |c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    };
    list.split(end).map(|option| option.trim().to_owned()).filter(|option| !option.is_empty()).collect()
}

/// `homenode-fs mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// Which volume
    #[command(flatten)]
    pub volume: VolumeArgs,
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Started by mount(8): with the exit codes that it expects
    #[arg(long, hide = true)]
    pub helper: bool,
    /// Stay in the foreground, until the volume is unmounted
    #[arg(short, long)]
    pub foreground: bool,
    /// Mount options, separated by commas: ro, noexec, nosuid, nodev, …; also cache=…, placement=…,
    /// policy=… and the other options that mount --help lists
    #[arg(short, value_name = "OPTION,…")]
    pub options: Vec<String>,
    /// Cache that keeps file data after a read: `kernel` makes reading again fast, but such reads
    /// reach no counter of homenode; with `direct`, each read and write reaches the volume;
    /// `writeback` is `kernel`, and writes are durable only after fsync or close [default: kernel]
    #[arg(long, value_name = "CACHE")]
    pub cache: Option<CacheArg>,
    /// Where new blocks go: to the node of the writing thread, by chance, to one node after the
    /// other, or to one node [default: local]
    #[arg(long, value_name = "local|random|interleave|nodeN", value_parser = parse_placement)]
    pub placement: Option<PlacementArg>,
    /// Threads that serve the mount [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Without a process that holds the mount: when its server dies, so does the mount
    #[arg(long)]
    pub no_hold: bool,
    /// Memory that names, extents and attributes of cached files may take; those of one owner a
    /// quarter of it [default: an eighth of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub memory: Option<u64>,
    /// Let the mount be idmapped, as for containers with user namespaces (Linux 6.12)
    #[arg(long)]
    pub idmap: bool,
    /// Which nodes, and what moves
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Check everything, but do not mount: what `mount -f` asks for
    #[arg(long, hide = true)]
    pub fake: bool,
}

/// `homenode-fs upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// The directory that the volume is mounted on
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Which nodes, and what moves.
#[derive(Debug, Clone, Args)]
pub struct NodesArgs {
    /// Policy that moves threads and files of the mount [default: off]
    #[arg(long, value_name = "POLICY", value_parser = policy_or_program(), help_heading = "Policy")]
    pub policy: Option<String>,
    /// User as which root starts the program of `exec:` [default: who called sudo]
    #[arg(long, value_name = "USER", requires = "policy", help_heading = "Policy")]
    pub policy_user: Option<String>,
    /// Least excess of a thread's reads from its home node over any other node [default: 200MB/s,
    /// divided by the scale of emulated memory]
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate, requires = "policy", help_heading = "Policy")]
    pub margin: Option<f64>,
    /// Leave alone threads that read and wrote less than this in a window [default: 4MiB, divided
    /// by the scale of emulated memory]
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes, requires = "policy", help_heading = "Policy")]
    pub min_bytes: Option<u64>,
    /// Length of a window in seconds [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "policy", help_heading = "Policy")]
    pub window: Option<f64>,
    /// Print the moves without making them; in the foreground
    #[arg(long, requires = "policy", help_heading = "Policy")]
    pub dry_run: bool,
    /// Print only windows with moves or news
    #[arg(short, long, conflicts_with = "json", requires = "policy", help_heading = "Policy")]
    pub quiet: bool,
    /// Also write each window to FILE, for `homenode replay`
    #[arg(long, value_name = "FILE", requires = "policy", help_heading = "Policy")]
    pub record: Option<PathBuf>,
    /// Share out the machine's CPUs among N emulated nodes, and let every access take the time that
    /// it would take there
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "Emulated nodes")]
    pub emulate_nodes: Option<u32>,
    /// Memory to emulate: `optane`, `optane-6` (six modules a node), `cxl`, `dram`, or a file with
    /// figures (TOML, or JSON) [default: optane]
    #[arg(
        long,
        value_name = "optane|optane-6|cxl|dram|FILE",
        requires = "emulate_nodes",
        help_heading = "Emulated nodes"
    )]
    pub profile: Option<String>,
    /// How many times as long emulated memory takes as the real one [default: the profile's]
    #[arg(long, value_name = "FACTOR", requires = "emulate_nodes", help_heading = "Emulated nodes")]
    pub scale: Option<f64>,
}

impl NodesArgs {
    /// Whether a policy is to decide.
    pub fn policy(&self) -> bool {
        self.policy.as_deref().is_some_and(|policy| policy != MOUNT_OFF)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementArg {
    /// To the node of the writing thread.
    Local,
    Random,
    /// To one node after the other.
    Interleave,
    Node(u32),
}

/// Cache of file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheArg {
    /// The kernel's page cache
    Kernel,
    /// No cache
    Direct,
    /// The kernel's page cache, which also holds what was written until it is asked to write it
    Writeback,
}

/// `local`, `random`, `interleave` or `nodeN`.
pub fn parse_placement(text: &str) -> Result<PlacementArg, String> {
    match text {
        "local" => Ok(PlacementArg::Local),
        "random" => Ok(PlacementArg::Random),
        "interleave" => Ok(PlacementArg::Interleave),
        _ => {
            let node = text.strip_prefix("node").and_then(|node| node.parse().ok());
            node.map(PlacementArg::Node).ok_or_else(|| "local, random, interleave or nodeN".to_owned())
        }
    }
}

/// `--logs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogsArg {
    /// On one region
    Once,
    /// On that one and the next
    Twice,
}

/// `homenode-fs mkfs`.
#[derive(Debug, Args)]
pub struct MkfsArgs {
    /// Create the files, each of SIZE (8GiB; 8G and 8GB are 8,000,000,000 bytes), with memory for
    /// all of it; without it the regions exist already
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub size: Option<u64>,
    /// Keep no checksums of file data: a write is faster, and damage of data is not found
    #[arg(long)]
    pub no_data_checksums: bool,
    /// Keep names, attributes and logs once, or twice, each on two regions: a region that is lost,
    /// or a damaged line, then takes no name along; a create takes a tenth to a sixth longer
    #[arg(long, value_name = "HOW", value_enum, default_value = "once")]
    pub logs: LogsArg,
    /// Make an inode for so many bytes (4KiB or more): a volume of small files needs more of them,
    /// each of 64 bytes; with `--logs twice`, each of 64 bytes and a page of a log, both twice: 8.1
    /// KiB [default: 16KiB, with `--logs twice` 64KiB]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub bytes_per_inode: Option<u64>,
    /// Overwrite a volume, or whatever else is there (without --size, which only makes new files)
    #[arg(long)]
    pub force: bool,
    /// The regions, one per node: DAX devices, or files on DAX, hugetlbfs, tmpfs or any other file
    /// system; a path with an @ in it ends with @NODE, or with @ alone
    #[arg(required = true, value_name = "REGION[@NODE]")]
    pub regions: Vec<String>,
}

/// Which volume.
#[derive(Clone, Debug, Args)]
pub struct VolumeArgs {
    /// Any one region of the volume
    #[arg(value_name = "VOLUME")]
    pub volume: PathBuf,
    /// A region that is not where it was at mkfs (repeat the option)
    #[arg(long, value_name = "PATH")]
    pub region: Vec<PathBuf>,
}

/// `homenode-fs fsck`.
#[derive(Debug, Args)]
pub struct FsckArgs {
    /// Finish what a crash interrupted; restore superblocks and a checkpoint; write damaged logs
    /// anew with all that can be read of them, and put what has lost its name into lost+found.
    /// Where something is lost for good it says what, changes nothing, and asks for --yes
    #[arg(long, short = 'p', short_alias = 'a')]
    pub repair: bool,
    /// Repair, also where something is lost for good: lines of logs, with the names or the file
    /// blocks that they told of, and all of what has no line left
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Which volume
    #[command(flatten)]
    pub volume: VolumeArgs,
}

/// `homenode-fs drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The directory where the volume is mounted; or, if it is not, any one region of it
    #[command(flatten)]
    pub volume: VolumeArgs,
    /// The region, as `homenode-fs fs info` numbers them
    #[arg(value_name = "REGION")]
    pub index: usize,
    /// Put new blocks there again instead, on a mount
    #[arg(long)]
    pub use_again: bool,
}

/// `homenode-fs fs`.
#[derive(Debug, Subcommand)]
pub enum FsCommand {
    /// Show the regions of a volume: nodes, space, how stores become durable
    Info(VolumeArgs),
    /// List a directory
    Ls(LsArgs),
    /// Copy a file into the volume, on the node where this command runs
    Put(PutArgs),
    /// Copy a file out of the volume
    Get(GetArgs),
    /// Remove a file, or an empty directory
    Rm(PathArgs),
    /// Show on which nodes a file is, also of a mounted volume
    Where(FileArgs),
    /// Move a file to another node, also of a mounted volume
    ///
    /// On a mount it takes root (CAP_SYS_ADMIN), and the file is used meanwhile. Ctrl-C stops the
    /// migration; what has moved stays.
    Migrate(MigrateArgs),
    /// Read all of a mounted volume, in the background, and say what is damaged
    ///
    /// It takes root (CAP_SYS_ADMIN). The volume is used meanwhile. What has a second copy is put
    /// right: superblocks, inodes and logs. File data has one copy: restore the file that is named.
    /// Ctrl-C or --stop stops the scrub, and the next one goes on there, also after another mount.
    /// Exit codes: 0 when all is well, 1 when it was stopped, 4 when something is damaged.
    #[command(after_help = "\
Examples:
  sudo homenode-fs fs scrub /mnt --rate 200MB/s
  sudo homenode-fs fs scrub /mnt --background      # --status says how far it is
  homenode-fs fs scrub /mnt --status --json")]
    Scrub(ScrubArgs),
    /// Show what users and projects use of a mounted volume, and limit it
    ///
    /// It takes root (CAP_SYS_ADMIN). Limits are kept on the volume and hold at once: what would
    /// pass one fails with EDQUOT. The blocks of a file's data and of its log count, for its owner
    /// and for its project. Root has no limit.
    #[command(after_help = "\
Examples:
  homenode-fs fs quota /mnt
  homenode-fs fs quota /mnt --user alice --bytes 10GiB --files 100000
  homenode-fs fs quota /mnt --project 7 --assign /mnt/build --bytes 50GiB
  homenode-fs fs quota /mnt --user alice --bytes 0                        # no limit")]
    Quota(QuotaArgs),
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

/// A file of a volume, mounted or not.
#[derive(Debug, Args)]
pub struct FileArgs {
    /// A file on a mount; or, with PATH, any one region of a volume that is not mounted
    #[arg(value_name = "FILE|VOLUME")]
    pub file: PathBuf,
    /// Path within the volume
    #[arg(value_name = "PATH")]
    pub path: Option<String>,
    /// A region that is not where it was at mkfs (repeat the option)
    #[arg(long, value_name = "PATH", requires = "path")]
    pub region: Vec<PathBuf>,
}

impl FileArgs {
    /// The volume and the path within it; `None`: a file on a mount.
    pub fn within(&self) -> Option<(VolumeArgs, &str)> {
        let volume = VolumeArgs { volume: self.file.clone(), region: self.region.clone() };
        self.path.as_deref().map(|path| (volume, path))
    }
}

/// `homenode-fs fs ls`.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// Which volume
    #[command(flatten)]
    pub volume: VolumeArgs,
    /// Path of the directory within the volume
    #[arg(value_name = "PATH", default_value = "/")]
    pub path: String,
}

/// `homenode-fs fs put`.
#[derive(Debug, Args)]
pub struct PutArgs {
    /// Which volume
    #[command(flatten)]
    pub volume: VolumeArgs,
    /// The file to copy
    #[arg(value_name = "LOCAL")]
    pub local: PathBuf,
    /// Path within the volume; a file that exists is replaced once the copy is complete, until then
    /// the copy has no name
    #[arg(value_name = "PATH")]
    pub path: String,
}

/// `homenode-fs fs get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Which file
    #[command(flatten)]
    pub file: PathArgs,
    /// Where to; `-` is stdout
    #[arg(value_name = "LOCAL|-")]
    pub local: PathBuf,
    /// Also what is damaged: zeros for blocks that are lost; says which bytes are lost, or older
    /// than they should be
    #[arg(long)]
    pub damaged: bool,
}

/// `homenode-fs fs migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Which file
    #[command(flatten)]
    pub file: FileArgs,
    /// The node to move it to
    #[arg(long, value_name = "NODE")]
    pub to: u32,
    /// Move at most so many bytes in a second, such as 1GB/s [default: as fast as possible]
    #[arg(long, value_name = "RATE", value_parser = units::parse_positive_rate)]
    pub rate: Option<f64>,
}

/// `homenode-fs fs scrub`.
#[derive(Debug, Args)]
pub struct ScrubArgs {
    /// The directory on which the volume is mounted, or any directory or file below it
    #[arg(value_name = "MOUNT")]
    pub mount: PathBuf,
    /// Read at most so many bytes in a second, such as 200MB/s [default: as fast as possible]
    #[arg(long, value_name = "RATE", value_parser = units::parse_positive_rate)]
    pub rate: Option<f64>,
    /// Start it, and do not wait for the end
    #[arg(long)]
    pub background: bool,
    /// Start nothing: say how far the one is that runs, or how the last one ended
    #[arg(long, conflicts_with_all = ["rate", "background"])]
    pub status: bool,
    /// Stop the one that runs
    #[arg(long, conflicts_with_all = ["rate", "background", "status"])]
    pub stop: bool,
}

/// `homenode-fs fs quota`.
#[derive(Debug, Args)]
pub struct QuotaArgs {
    /// The directory that the volume is mounted on
    #[arg(value_name = "MOUNT")]
    pub mount: PathBuf,
    /// A user, by name or number
    #[arg(long, value_name = "USER", conflicts_with = "project")]
    pub user: Option<String>,
    /// A project: a number that files have from their directory
    #[arg(long, value_name = "ID")]
    pub project: Option<u32>,
    /// Most bytes of data and logs that the user or project may have; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub bytes: Option<u64>,
    /// Most files, directories and others; 0: no limit
    #[arg(long, value_name = "N")]
    pub files: Option<u64>,
    /// Give a file, or a directory with all that is in it and will be, to the project
    #[arg(long, value_name = "PATH", requires = "project")]
    pub assign: Option<PathBuf>,
}
