//! The command line. Definitions only: the doc comments are the manual, both `--help` and the man
//! pages.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use command::args::policy_or_program;
pub use command::args::{Global, PolicyArgs, pid, seconds};
use command::output::{escape, units};
use command::pages::{CompletionsArgs, ManArgs};
use linux::cpuset::Hierarchies;

use crate::commands::export::ExportArgs;
use crate::commands::r#move::MoveArgs;
use crate::commands::report::ReportArgs;
use crate::commands::warm::WarmArgs;

/// The control group of this path or name. Neither: what uses it says so.
fn group(name: OsString) -> Result<PathBuf, String> {
    let path = PathBuf::from(&name);
    if path.exists() {
        return Ok(path);
    }
    let groups = Hierarchies::new(Path::new(command::machine::PROC)).unified();
    named(&linux::shown(&name), groups).map(|found| found.unwrap_or(path))
}

/// The one of these control groups that has this name; none, if there is none.
fn named(name: &str, groups: Vec<(String, PathBuf)>) -> Result<Option<PathBuf>, String> {
    let is = |group: &str| session::services::path(group) == group && session::services::name(group) == name;
    let mut found: Vec<PathBuf> = groups.into_iter().filter(|(group, _)| is(group)).map(|(_, dir)| dir).collect();
    found.sort();
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => {
            let all: Vec<String> = found.iter().map(|dir| escape(&dir.display().to_string())).collect();
            Err(format!("several control groups have this name: give one by its path: {}", all.join(", ")))
        }
    }
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  some of the work failed, or doctor found something missing
  2  wrong usage, or input that cannot be used (snapshot, configuration)
  3  not permitted, or not supported by this kernel
  4  in use: another homenode has the state directory or the recording, or moves the file
  5  reading or writing failed (file missing, disk full, …)
`homenode run -- CMD` returns what CMD returned.";

/// Keep threads next to the file data they read, on NUMA machines.
///
/// Every file byte that a thread reads comes from the memory of some node. If the thread runs on
/// another node, the read crosses the interconnect between the sockets. homenode observes such
/// reads of the page cache and moves each thread to its home node: the node that most of its file
/// bytes come from.
///
/// `homenode doctor` shows what works on this machine, `homenode top` which threads read from
/// where, and `homenode plan` which threads would move and why. `sudo homenode run` moves them, and
/// undoes that when it stops.
#[derive(Debug, Parser)]
#[command(name = "homenode", version, after_help = EXIT_CODES, max_term_width = 100)]
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
    /// Show the machine's nodes: CPUs, memory, distances, bandwidth; or measure them
    ///
    /// Needs no privileges. Memory bandwidth is what homenode.toml says, or what --measure has
    /// found, or what the firmware tells Linux (ACPI HMAT), or `unknown`.
    ///
    /// With --measure, all CPUs load the memory of each node for as long as --seconds says. Other
    /// programs run slower meanwhile, so do it when nothing important runs. For each node with CPUs
    /// and each node with memory it measures the latency of a load, alone and under reads, writes
    /// and two reads for each write; the highest bandwidth of each; and what a `pread` of 4 KiB and
    /// of 1 MiB of a cached file takes. The last shows what a local read saves. It writes the
    /// figures to the file that homenode reads them from (docs/nodes.schema.json). It refuses where
    /// others use more than a tenth of the CPUs, on a battery, where memory is short, and where a
    /// container hides nodes.
    #[command(after_help = "\
Examples:
  homenode nodes
  sudo homenode nodes --measure
  homenode nodes --measure --seconds 20 --output /tmp/nodes.json
  homenode nodes --json
  homenode nodes --capture /tmp/mymachine     # for a bug report
  homenode nodes --sys /tmp/mymachine")]
    Nodes(NodesArgs),

    /// Show which node holds each file's cached data
    ///
    /// Prints each file's size, how much of it is in memory, and on which nodes. Of a file on DAX
    /// or on a volume of homenode's own that is mounted, it shows the blocks. Reads nothing in and
    /// changes nothing. The kernel may hide this from users who do not own the file; the output
    /// then says so. On a volume, anyone who may read the file may see this.
    #[command(after_help = "\
Examples:
  homenode where /var/lib/postgresql/15/main/base/16384/*
  homenode where --json /data/kv/000123.sst

An error for one file does not stop the others; the exit code is then 1.")]
    Where(WhereArgs),

    /// Move files or a process to a node, once
    ///
    /// Moves the cached pages of each FILE. Pages that are not cached are not read in, and pages
    /// that are read in later go to the reader's node: to keep a file on a node, let its readers
    /// run there. Readers and writers go on meanwhile; a program that has the file mapped waits
    /// while the mebibyte that it touches is moved. Pages that are in use for direct I/O or in a
    /// pipe stay; the output says how many. Ctrl-C stops the move; what has been moved stays.
    ///
    /// Of a file on a mounted volume of homenode's own, the mount's server moves the blocks, to a
    /// node of the volume. This takes CAP_SYS_ADMIN. What the kernel has of it in its cache moves,
    /// too, where the node is one of this machine.
    ///
    /// With --pid, moves a process: binds its threads to the CPUs of the node, then moves its
    /// memory, batch by batch, while it runs. Threads with an affinity of their own keep it. Memory
    /// that only this process maps moves: anonymous memory, shared memory, huge pages. What other
    /// processes map too, and what a memory policy keeps elsewhere, stays. The affinity remains
    /// when the command ends; the output says how to undo it. A move that is stopped or fails puts
    /// the affinities back, and after a crash `homenode restore` does.
    ///
    /// Needs CAP_SYS_NICE, and CAP_SYS_PTRACE for processes of other users, as root has them.
    #[command(after_help = "\
Examples:
  sudo homenode move /data/kv/*.sst --to 1
  sudo homenode move --rate 1GB/s --to 0 /var/lib/postgresql/15/main/base/16384/2619
  sudo homenode move --json --to 1 big.db | jq .moved[0].failed_bytes
  sudo homenode move --pid 4121 --to 1

An error for one file does not stop the others. The exit code is 1 if a file was refused,
bytes stayed behind, or a signal stopped the move.")]
    Move(MoveArgs),

    /// Read files into the page cache of chosen nodes
    ///
    /// Reads each FILE in, so that the kernel puts its pages on the nodes that you name, whatever
    /// CPU homenode runs on: on one node, in turns on several, or by the kernel's weights. Then it
    /// asks the kernel where the pages are, and says so. A file that all sockets read, such as the
    /// weights of a language model, is best interleaved; a file that one service reads belongs on
    /// that service's node.
    ///
    /// What is cached already stays where it is: `homenode move` moves it, and --drop-first drops
    /// it from the cache first and reads it in anew. Pages that are dirty or mapped by a process
    /// are never dropped. A file that does not fit in the nodes' free memory is refused. Pages that
    /// the kernel evicts later come back where their next reader runs.
    ///
    /// Needs no privileges, only files that you may read. Of a file that you neither own nor may
    /// write, the kernel does not tell where the pages are: the output says so, and the exit code
    /// is 1. The cached pages are charged to the control group that homenode runs in.
    #[command(after_help = "\
Examples:
  homenode warm --interleave /models/weights.gguf
  homenode warm --to 1 --drop-first /data/kv/*.sst
  homenode warm --to 0 --range 1GiB+256MiB big.db
  homenode warm --weighted --rate 1GB/s --json big.db | jq .warmed[0].nodes

An error for one file does not stop the others. The exit code is 1 if a file was refused,
bytes are elsewhere than asked, where they are is unknown, or a signal stopped it.")]
    Warm(WarmArgs),

    /// Show which parts of files are read, or which mapped file data a process uses, and on which
    /// node it is
    ///
    /// With FILE, homenode counts reads by parts of 2 MiB and shows for each how much of it was
    /// read lately, from which node and by the CPUs of which.
    ///
    /// With --pid it looks at mappings. Programs that map files read them with loads, which no byte
    /// counter sees. The processor marks the pages it accesses; homenode reads and clears these
    /// marks eight times, and shows how often each part of a file was accessed. A page is hot if it
    /// was accessed in at least half of the samples. Moves nothing. Ctrl-C ends early and shows
    /// what was seen.
    ///
    /// Needs root and an x86-64 processor. Before Linux 6.16 the marks of persistent memory cannot
    /// be cleared: its pages then show as touched, not as hot.
    #[command(after_help = "\
Examples:
  sudo homenode hot /var/lib/db/table
  sudo homenode hot /var/lib/db/table --json | jq '.files[].ranges[] | select(.node != .by)'
  sudo homenode hot --pid 4121
  sudo homenode hot --pid 4121 --seconds 60
  sudo homenode hot --pid 4121 --json | jq '.regions[] | {path, nodes}'")]
    Hot(HotArgs),

    /// Watch nodes, threads and mounted volumes live: load, CPU, home nodes, remote share, moves
    ///
    /// Observes only and moves nothing. It can run beside `homenode run` and then shows its moves.
    /// Volumes that `homenode-fs mount --policy` observes have a line each; Tab shows the nodes,
    /// threads and files of the next one. Keys: q quit, ? help, p pause, s next sort column, r
    /// reverse, / filter, u services in the place of threads, a all threads, + and - window length.
    #[command(after_help = "\
Examples:
  sudo homenode top
  sudo homenode top --window 5 --sort bytes
  sudo homenode top --once
  sudo homenode top --once --by service
  sudo homenode top --once --json | jq .remote_share")]
    Top(TopArgs),

    /// Show which services read file bytes from which node, and which files they are
    ///
    /// Observes some windows and prints one map: for each service (a systemd unit, a container,
    /// a pod) the nodes that its threads ran on, the nodes that their file bytes came from, and how
    /// much could become local; then the processes and files with most bytes. Moves nothing. Ctrl-C
    /// ends early and shows what was seen.
    #[command(after_help = "\
Examples:
  sudo homenode map
  sudo homenode map --windows 60 --top 50
  sudo homenode map --json | jq -r '.services[] | [.service, .read_bytes, .remote_bytes] | @tsv'")]
    Map(MapArgs),

    /// Observe, and move threads to their home nodes, until stopped
    ///
    /// Prints one line for each move, with its reason, and one for each window. On SIGTERM or
    /// SIGINT (Ctrl-C), it restores the affinity of every thread it moved. At the start, it first
    /// restores what a crashed run left behind.
    ///
    /// With `-- CMD`, it starts CMD, manages only CMD and its children, ends when CMD ends and
    /// returns CMD's exit code.
    ///
    /// The policies dragonfly, arc, arc-guarded and auto also move cached files or processes with
    /// their memory; their descriptions below say what a host cannot do. Memory and file data stay
    /// where they are at the end. With --move-back they return page by page to where they were,
    /// newest move first, as far as the processes still run and the pages are still cached. A
    /// second signal stops that. Nothing does it after a crash: where the data was is known only in
    /// memory.
    ///
    /// Once its BPF programs are loaded, homenode gives up root's capabilities. It keeps
    /// CAP_SYS_NICE, CAP_KILL if it started CMD, and what its policy needs to move files or
    /// processes.
    #[command(after_help = "\
Examples:
  sudo homenode run --dry-run                  # only say which threads would move
  sudo homenode run                            # all processes
  sudo homenode run --cgroup /sys/fs/cgroup/system.slice/postgresql.service
  sudo homenode run --policy nthread-rl -- fio job.fio
  sudo homenode run --policy arc --move-back   # leave memory as it was found
  sudo homenode run --observe-only --quiet     # only count, for `homenode export`
  sudo homenode run --json | jq -c 'select(.kind==\"window\") | [.window, .remote_share]'")]
    Run(RunArgs),

    /// Serve what a running homenode counts as metrics, for Prometheus
    ///
    /// Shows file bytes by service and pair of nodes, moves by result, and what homenode itself
    /// costs, in the text forms of Prometheus and OpenMetrics (docs/metrics.md). Reads the file
    /// that `homenode run` writes after each window; `run --observe-only` counts and moves nothing.
    /// A process of its own, which needs no privileges and gives up those it has: the daemon itself
    /// never listens. Where no daemon runs, `homenode_up` is 0 and the counters are absent.
    ///
    /// Listens on a loopback address or a Unix socket only. For other machines, let a proxy that
    /// authenticates its users, or node_exporter (--textfile), pass the metrics on.
    #[command(after_help = "\
Examples:
  homenode export                                       # http://127.0.0.1:9951/metrics
  homenode export --listen [::1]:9951
  homenode export --listen unix:/run/homenode-export/socket
  homenode export --textfile /var/lib/prometheus/node-exporter/homenode.prom
  homenode export --once")]
    Export(ExportArgs),

    /// Find out whether a policy helps the load of this machine: with and without it, in random
    /// order
    ///
    /// Alternates periods with homenode off, when it moves nothing, and periods with each policy,
    /// in an order that is drawn at random. At the end of each period everything is put back. It
    /// then tells how much each policy changed what the threads did, with an interval of 95 %:
    /// *helps*, *hurts* or *no difference seen*, and the smallest effect that a trial of this
    /// length would have seen. A policy that clearly hurts is stopped early. Nothing is assumed
    /// about the load but that the effect is the same in each round. It refuses a machine with one
    /// node.
    ///
    /// What counts is the number that --metric prints at the end of each period, or else the file
    /// bytes read per second of CPU time. Also shown: file bytes read per second, the share of them
    /// from other nodes, and the time that threads waited for a CPU.
    ///
    /// With `-- CMD`, it starts CMD and tries the policies on it and its children, until the trial
    /// or CMD ends; then it ends CMD.
    ///
    /// A trial that a signal or the end of CMD cuts short shows its intervals but gives no verdict:
    /// its rounds were seen before.
    ///
    /// Threads go back at the end of each period. Memory and file data that a policy moved go back,
    /// too; a round in which some stayed is left out. The trial ends as soon as more than a quarter
    /// of its rounds are left out, because then there is no verdict.
    #[command(after_help = "\
Examples:
  sudo homenode trial                                   # nthread, 30 minutes, all processes
  sudo homenode trial --policy auto,nthread --minutes 60
  sudo homenode trial --cgroup /sys/fs/cgroup/system.slice/postgresql.service --metric ./transactions-per-second
  sudo homenode trial --minutes 10 -- fio job.fio
  sudo homenode trial --json | jq -c 'select(.kind==\"end\") | .results'

The exit code is 0 if every policy was judged, and 1 if the trial was too short for that,
or cut short, or something could not be put back.")]
    Trial(TrialArgs),

    /// Show which threads would move, and why, without moving them
    ///
    /// Observes one window, or reads a snapshot that `homenode record` or a person wrote. With
    /// `--snapshot` it needs no privileges.
    #[command(after_help = "\
Examples:
  sudo homenode plan
  homenode plan --snapshot window.json --policy nthread-rl
  homenode plan --snapshot - --json < window.json")]
    Plan(PlanArgs),

    /// Record each window to a file, one JSON snapshot per line
    ///
    /// Appends whole lines to FILE, so a recording stays usable if the disk fills up or recording
    /// is interrupted.
    #[command(after_help = "\
Examples:
  sudo homenode record --windows 60 busy.jsonl
  sudo homenode record --cgroup /sys/fs/cgroup/db busy.jsonl      # until Ctrl-C")]
    Record(RecordArgs),

    /// Show what a policy would have done during a recording
    ///
    /// Runs the policy and the safety rails over the snapshots in FILE and prints one plan per
    /// window. Moves nothing and needs no privileges.
    #[command(after_help = "\
Examples:
  homenode replay busy.jsonl
  homenode replay --policy nthread-cpu --json busy.jsonl")]
    Replay(ReplayArgs),

    /// Show when and why a thread or a file was moved
    ///
    /// Reads the journals that `homenode run` and `homenode-fs mount --policy` write. Without an
    /// argument, shows the moves of all threads and files. A move on a mounted volume is shown with
    /// the mount point.
    #[command(after_help = "\
Examples:
  homenode explain 4121
  homenode explain rocksdb:low3
  homenode explain /data/db/000017.sst
  homenode explain --json")]
    Explain(ExplainArgs),

    /// Undo the moves that a crashed `homenode run` left behind
    ///
    /// Restores the affinity of each moved thread that still has the value homenode set. Memory and
    /// file data stay where they are, also of a `homenode run --move-back` that crashed.
    /// `homenode run` does the same at its start. Needs no configuration. Fails while
    /// `homenode run` is using the same state directory.
    #[command(after_help = "\
Examples:
  sudo homenode restore")]
    Restore,

    /// Check this machine: what homenode can use, what is missing and why, and what interferes
    ///
    /// Exits with 0 if homenode can observe and move threads here, with 1 if something it needs is
    /// missing.
    #[command(after_help = "\
Examples:
  sudo homenode doctor
  homenode doctor --json")]
    Doctor(DoctorArgs),

    /// Write a report of this machine that can be sent: what works, its nodes, who reads from where
    ///
    /// One Markdown file with what doctor, nodes, map and the last trial say, and the same as JSON:
    /// for a bug report, or to compare machines (docs/results.md). Services, processes and files
    /// have numbers; names and paths are left out unless --names is given. Observes ten windows and
    /// moves nothing. What cannot be had without root is said and left out.
    #[command(after_help = "\
Examples:
  sudo homenode report --output report.md
  sudo homenode report --windows 60 --json > report.json
  sudo homenode report --names --output for-ourselves.md")]
    Report(ReportArgs),

    /// Print a shell completion script
    #[command(after_help = "\
Examples:
  homenode completions bash > /usr/share/bash-completion/completions/homenode
  homenode completions zsh  > /usr/share/zsh/site-functions/_homenode
  homenode completions fish > ~/.config/fish/completions/homenode.fish")]
    Completions(CompletionsArgs),

    /// Print the manual page, or write the pages of all sub-commands to a directory
    #[command(after_help = "\
Examples:
  homenode man | man -l -
  homenode man /usr/share/man/man1")]
    Man(ManArgs),

    /// Stop, then become CMD once continued: this is how `run -- CMD` observes CMD from its first
    /// moment
    #[command(hide = true, name = "__exec")]
    Exec(ExecArgs),
}

/// `homenode nodes`.
#[derive(Debug, Args)]
pub struct NodesArgs {
    /// Save the kernel's description of this machine's nodes to DIR, for tests and bug reports
    #[arg(long, value_name = "DIR")]
    pub capture: Option<PathBuf>,
    /// Show the machine saved in DIR instead of this one
    #[arg(long, value_name = "DIR", conflicts_with = "measure")]
    pub sys: Option<PathBuf>,
    /// Measure latency, bandwidth and cached reads between all nodes
    #[arg(long, conflicts_with = "capture")]
    pub measure: bool,
    /// Longest time for measuring
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, requires = "measure")]
    pub seconds: f64,
    /// File for what was measured [default: /var/lib/homenode/nodes.json, or `measured` of
    /// homenode.toml]
    #[arg(long, value_name = "FILE", requires = "measure")]
    pub output: Option<PathBuf>,
    /// Measure although others use the CPUs, or on a battery; the figures say so
    #[arg(long, requires = "measure")]
    pub force: bool,
}

/// `homenode where`.
#[derive(Debug, Args)]
pub struct WhereArgs {
    /// Files to look at
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// `homenode hot`.
#[derive(Debug, Args)]
pub struct HotArgs {
    /// Files whose reads to look at
    #[arg(value_name = "FILE", required_unless_present = "pid", conflicts_with = "pid")]
    pub files: Vec<PathBuf>,
    /// Process whose mapped files to look at
    #[arg(long, value_name = "PID", value_parser = pid)]
    pub pid: Option<u32>,
    /// Watch for so long; longer if sampling would slow the process down by more than 5 %
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub seconds: f64,
}

/// Which threads to manage.
#[derive(Debug, Clone, Default, Args)]
pub struct ScopeArgs {
    /// Only these processes (repeat the option, or separate ids with commas)
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = pid)]
    pub pid: Vec<u32>,
    /// Only processes in this control group and below: a directory under /sys/fs/cgroup, or a
    /// service as `homenode map` calls it, such as postgresql.service
    #[arg(long, value_name = "GROUP", conflicts_with = "pid", value_parser = OsStringValueParser::new().try_map(group))]
    pub cgroup: Option<PathBuf>,
    /// Also move threads with a custom affinity, within their cpuset; it is restored on exit
    #[arg(long)]
    pub touch_own_affinity: bool,
    /// Also bind threads while a sched_ext scheduler runs, which may treat them worse than others
    /// then
    #[arg(long)]
    pub beside_sched_ext: bool,
}

/// How to observe.
#[derive(Debug, Clone, Default, Args)]
pub struct ObserveArgs {
    /// Length of a window in seconds [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub window: Option<f64>,
    /// Count every read instead of a sample; this slows the observed threads down more
    #[arg(long)]
    pub exact: bool,
    /// Keep the read hook attached: reads cost some 60 ns more, but no CPU is interrupted to attach
    /// it again [default with nohz_full]
    #[arg(long)]
    pub steady: bool,
    /// Which threads to manage.
    #[command(flatten)]
    pub scope: ScopeArgs,
}

/// `homenode top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// Print one window as text (or JSON) and end
    #[arg(long)]
    pub once: bool,
    /// What has a row
    #[arg(long, value_enum, default_value_t = By::Thread)]
    pub by: By,
    /// Column to sort rows by, largest first
    #[arg(long, value_enum, default_value_t)]
    pub sort: Sort,
    /// Also show threads that touched no file data
    #[arg(short, long)]
    pub all: bool,
    /// Show only threads whose name, tid or pid contains TEXT, and services whose name does
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
}

/// What a row of `top` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// A thread
    Thread,
    /// A service: the threads of a systemd unit, a container or a pod together
    Service,
}

/// Columns that `top` sorts by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Bytes/s read from another node
    #[default]
    Remote,
    /// Share of file bytes read from another node
    Share,
    /// File bytes read and written
    Bytes,
    /// CPU use
    Cpu,
    /// Node the thread runs on
    Node,
    /// Thread id
    Tid,
    /// Name
    Name,
}

/// `homenode map`.
#[derive(Debug, Args)]
pub struct MapArgs {
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// Observe so many windows
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u64).range(1..))]
    pub windows: u64,
    /// Show so many processes and files
    #[arg(long, value_name = "N", default_value = "10")]
    pub top: usize,
}

/// `homenode run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// How to decide.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// Print the moves without making them
    #[arg(long)]
    pub dry_run: bool,
    /// Move nothing and only count, for `homenode export`
    #[arg(long, conflicts_with_all = ["dry_run", "policy", "margin", "min_bytes", "move_back"])]
    pub observe_only: bool,
    /// At the end, also send memory and file data back to the nodes that it was on, at the rate of
    /// all moves
    #[arg(long, conflicts_with = "dry_run")]
    pub move_back: bool,
    /// Print only windows with moves or news
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
    /// End after N windows. CMD goes on, and homenode waits for its end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub windows: Option<u64>,
    /// Command to start and manage
    #[arg(last = true, value_name = "CMD", conflicts_with_all = ["pid", "cgroup"])]
    pub command: Vec<OsString>,
}

/// `homenode trial`.
#[derive(Debug, Args)]
pub struct TrialArgs {
    /// Policies to try (repeat, or separate with commas)
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "nthread", value_parser = policy_or_program())]
    pub policy: Vec<String>,
    /// User as which root starts the program of `exec:` [default: who called sudo]
    #[arg(long, value_name = "USER")]
    pub policy_user: Option<String>,
    /// Least excess of a thread's reads from its home node over any other node [default: 200MB/s]
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate)]
    pub margin: Option<f64>,
    /// Leave alone threads that read and wrote less than this in a window [default: 4MiB]
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub min_bytes: Option<u64>,
    /// Length of the trial
    #[arg(long, value_name = "MINUTES", default_value = "30", value_parser = minutes)]
    pub minutes: f64,
    /// Length of a period in seconds [default: as many as give 15 rounds, at least 20 and at most
    /// 120]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub period: Option<f64>,
    /// Seconds at the begin of each period that do not count [default: a quarter of it]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub wash_out: Option<f64>,
    /// What counts: `sh -c CMD` prints a number, as the last line, at the end of each period, and once
    /// before the first
    #[arg(long, value_name = "CMD")]
    pub metric: Option<String>,
    /// A lower number is better
    #[arg(long, requires = "metric")]
    pub lower_is_better: bool,
    /// Random seed: the same one gives the same order [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// Command to start and manage
    #[arg(last = true, value_name = "CMD", conflicts_with_all = ["pid", "cgroup"])]
    pub command: Vec<OsString>,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(m) if (0.1..=10_080.0).contains(&m) => Ok(m),
        Ok(_) => Err("must be between 0.1 and 10080 minutes".to_owned()),
        Err(_) => Err("not a number of minutes".to_owned()),
    }
}

/// `homenode plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// How to decide.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// Decide from this snapshot (`-` for stdin) instead of observing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["window", "exact", "steady", "pid", "cgroup", "touch_own_affinity", "beside_sched_ext"])]
    pub snapshot: Option<PathBuf>,
}

/// `homenode record`.
#[derive(Debug, Args)]
#[command(
    mut_arg("touch_own_affinity", |arg| arg.help("Record threads with a custom affinity as `run` with this option \
        sees them: as ones that may move")),
    mut_arg("beside_sched_ext", |arg| arg.help("Record threads as `run` with this option sees them: as ones that may \
        move while a sched_ext scheduler runs")),
)]
pub struct RecordArgs {
    /// File to append to
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// End after N windows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub windows: Option<u64>,
}

/// `homenode replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Recording that `homenode record` wrote (`-` for stdin)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How to decide.
    #[command(flatten)]
    pub policy: PolicyArgs,
}

/// `homenode explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Thread id, part of the name of a thread, or path or id of a file
    #[arg(value_name = "TID|NAME|FILE")]
    pub about: Option<String>,
}

/// `homenode doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Check the needs of `--exact`
    #[arg(long)]
    pub exact: bool,
}

/// `homenode __exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Command to become
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--cgroup postgresql.service`, as homenode prints it, was "no such file".
    #[test]
    fn a_group_is_found_by_the_name_that_homenode_gives_it() {
        let groups =
            |all: &[&str]| all.iter().map(|group| (group.to_string(), Path::new("/cg").join(&group[1..]))).collect();
        let all = groups(&[
            "/",
            "/system.slice",
            "/system.slice/db.service",
            "/system.slice/db.service/workers",
            "/system.slice/db.service/db.service",
            "/user.slice/user-1.slice/user@1.service",
            "/user.slice/user-1.slice/user@1.service/app.slice/web.service",
            "/user.slice/user-1.slice/user@1.service/app.slice/db.service",
            "/other.slice/web.scope",
            "/third.slice/web.scope",
            "/kubepods/pod8c/3f2a",
        ]);
        let of = |name: &str| named(name, Vec::clone(&all)).map(|found| found.map(|dir| dir.display().to_string()));
        assert_eq!(of("db.service"), Ok(Some("/cg/system.slice/db.service".to_owned())));
        let web = "/cg/user.slice/user-1.slice/user@1.service/app.slice/web.service";
        assert_eq!(of("user@1.service/web.service"), Ok(Some(web.to_owned())));
        assert_eq!(of("/kubepods/pod8c/3f2a"), Ok(Some("/cg/kubepods/pod8c/3f2a".to_owned())));
        assert_eq!((of("workers"), of("web.service"), of("")), (Ok(None), Ok(None), Ok(None)));
        let error = of("web.scope").unwrap_err();
        assert!(error.ends_with("/cg/other.slice/web.scope, /cg/third.slice/web.scope"), "{error}");
    }
}
