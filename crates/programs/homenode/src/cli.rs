//! The command line: the sub-commands and what each runs. The doc comments are the manual, both
//! `--help` and the man pages; the options of a sub-command stand in its module.

use clap::{CommandFactory, Parser, Subcommand};
use command::args::Global;
use command::pages::{self, About};

use crate::child;
use crate::commands::{
    check, config, doctor, explain, export, hot, map, r#move, nodes, plan, record, reload, replay, report, restore,
    run, status, top, trial, warm, where_,
};
use crate::exit::{Exit, Failure};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  some of the work failed, doctor found something missing, or check cannot tell
  2  wrong usage, or input that cannot be used (snapshot, configuration)
  3  not permitted, or not supported by this kernel
  4  in use: another homenode has the state directory or the recording, or moves the file
  5  reading or writing failed (file missing, disk full, …)
`homenode run -- CMD` returns what CMD returned.";

/// The commented configuration.
const EXAMPLE: &str = include_str!("../../../../docs/homenode.toml");

/// Keep threads next to the file data they read, on NUMA machines.
///
/// Every file byte that a thread reads comes from the memory of some node. If the thread runs on
/// another node, the read crosses the interconnect between the sockets. homenode observes such
/// reads of the page cache and moves each thread to its home node: the node that most of its file
/// bytes come from.
///
/// `homenode check` says whether that matters on this machine, `homenode top` which threads read
/// from where, and `homenode plan` which threads would move and why. `sudo homenode run` moves
/// them, and undoes that when it stops.
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
    /// figures to the file that homenode reads them from (docs/nodes.schema.json). Where others use
    /// more than a tenth of the CPUs, the file says so, and does not take the place of one from a
    /// quiet time. It refuses on a battery, where memory is short, and where a container hides
    /// nodes.
    #[command(after_help = "\
Examples:
  homenode nodes
  sudo homenode nodes --measure
  homenode nodes --measure --seconds 20 --output /tmp/nodes.json
  homenode nodes --json
  homenode nodes --capture /tmp/mymachine     # for a bug report
  homenode nodes --sys /tmp/mymachine")]
    Nodes(nodes::NodesArgs),

    /// Show which node holds each file's cached data
    ///
    /// Prints each file's size, how much of it is in memory, and on which nodes. Of a file on DAX
    /// or on a volume of homenode's own that is mounted, it shows the blocks. Reads nothing in and
    /// changes nothing. The kernel may hide this from users who do not own the file; the output
    /// then says so. On a volume, anyone who may read the file may see this. A file with several
    /// names counts once. Of a process it shows the memory that the process alone has, by a sample
    /// of its pages.
    #[command(after_help = "\
Examples:
  homenode where /var/lib/postgresql/15/main/base/16384/*
  sudo homenode where -r /var/lib/postgresql
  sudo homenode where --pid 4121
  find /data -name '*.sst' -size +64M | homenode where -
  homenode where --json /data/kv/000123.sst

An error for one file does not stop the others; the exit code is then 1.")]
    Where(where_::WhereArgs),

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
    Move(r#move::MoveArgs),

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
    Warm(warm::WarmArgs),

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
    Hot(hot::HotArgs),

    /// Watch nodes, threads and mounted volumes live: load, CPU, home nodes, remote share, moves
    ///
    /// Observes only and moves nothing. It can run beside `homenode run` and then shows its moves.
    /// Volumes that `homenode-fs mount --policy` observes have a line each; Tab shows the nodes,
    /// threads and files of the next one. Keys: q quit, ? help, p pause, s next sort column, r
    /// reverse, / filter, u threads, processes and services in turn, a all threads, + and - window
    /// length; up and down select a row, Enter shows its files and last moves.
    #[command(after_help = "\
Examples:
  sudo homenode top
  sudo homenode top --window 5 --sort bytes
  sudo homenode top --once
  sudo homenode top --once --by service
  sudo homenode top --once --json | jq .remote_share")]
    Top(top::TopArgs),

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
    Map(map::MapArgs),

    /// Observe, and move threads to their home nodes, until stopped
    ///
    /// Prints one line for each move, with its reason, and one for each window. On SIGTERM or
    /// SIGINT (Ctrl-C), it restores the affinity of every thread it moved. At the start, it first
    /// restores what a crashed run left behind.
    ///
    /// With `-- CMD`, it starts CMD, manages only CMD and its children, ends when CMD ends and
    /// returns CMD's exit code. With --unit, --pid or --cgroup it manages only what they name.
    /// Where homenode.toml has rules (`[[service]]`) and no such option is given, it moves only
    /// what they allow, each service by the policy of its rule, and observes all others.
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
  sudo homenode run --unit postgresql --unit mysql
  sudo homenode run --policy nthread-rl -- fio job.fio
  sudo homenode run --policy arc --move-back   # leave memory as it was found
  sudo homenode run --observe-only --quiet     # only count, for `homenode export`
  sudo homenode run --json | jq -c 'select(.kind==\"window\") | [.window, .remote_share]'")]
    Run(run::RunArgs),

    /// Show whether homenode runs, by which rules, and why nothing moves
    ///
    /// Shows what `homenode run` publishes after each window: since when it runs, each rule with
    /// the services that it applies to and the moves that were made for them, the last reload and
    /// its error, and why threads of the last window stayed. Needs no privileges.
    #[command(after_help = "\
Examples:
  homenode status
  homenode status --json | jq .status.rules

The exit code is 0 if homenode runs, 1 if it runs and something is wrong (the last reload failed, a
copy hangs), and 5 if it does not run.")]
    Status(status::StatusArgs),

    /// Have the running homenode read its rules again
    ///
    /// Reads `[[service]]` and the settings of policies from homenode.toml and conf.d/*.toml.
    /// Threads that no rule allows any more get their affinity back within a window. If a file is
    /// wrong, all stays as it was; the error names the file and the line. Other settings
    /// ([engine], [moves], [node]) need a restart, and so does a policy that moves or looks at more
    /// than those of the start. SIGUSR1 asks for the same, and SIGHUP where a service manager
    /// started homenode; elsewhere SIGHUP ends it.
    #[command(after_help = "\
Examples:
  sudo homenode reload
  sudo systemctl reload homenode")]
    Reload,

    /// Check configuration files before a service reads them
    #[command(
        subcommand_required = true,
        after_help = "\
Examples:
  homenode config check
  homenode config check ./homenode.toml"
    )]
    Config(config::ConfigArgs),

    /// Serve what a running homenode counts as metrics, for Prometheus
    ///
    /// Shows file bytes by service and pair of nodes, moves by result, and what homenode itself
    /// costs, in the text form of Prometheus (docs/metrics.md). Reads the file that `homenode run`
    /// writes after each window; `run --observe-only` counts and moves nothing. A process of its
    /// own, which needs no privileges and gives up those it has: the daemon itself never listens.
    /// Where no daemon runs, `homenode_up` is 0 and the counters are absent.
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
    Export(export::ExportArgs),

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
  sudo homenode trial --unit postgresql --metric ./transactions-per-second
  sudo homenode trial --minutes 10 -- fio job.fio
  sudo homenode trial --json | jq -c 'select(.kind==\"end\") | .results'

The exit code is 0 if every policy was judged, and 1 if the trial was too short for that,
or cut short, or something could not be put back.")]
    Trial(trial::TrialArgs),

    /// Show which threads would move, and why, without moving them
    ///
    /// Observes one window, or reads a snapshot that `homenode record` or a person wrote. With
    /// `--snapshot` it needs no privileges.
    #[command(after_help = "\
Examples:
  sudo homenode plan
  homenode plan --snapshot window.json --policy nthread-rl
  homenode plan --snapshot - --json < window.json")]
    Plan(plan::PlanArgs),

    /// Record each window to a file, one JSON snapshot per line
    ///
    /// Appends whole lines to FILE, so a recording stays usable if the disk fills up or recording
    /// is interrupted.
    #[command(after_help = "\
Examples:
  sudo homenode record --windows 60 busy.jsonl
  sudo homenode record --unit postgresql busy.jsonl      # until Ctrl-C")]
    Record(record::RecordArgs),

    /// Show what a policy would have done during a recording
    ///
    /// Runs the policy and the safety rails over the snapshots in FILE and prints one plan per
    /// window. Moves nothing and needs no privileges.
    #[command(after_help = "\
Examples:
  homenode replay busy.jsonl
  homenode replay --policy nthread-cpu --json busy.jsonl")]
    Replay(replay::ReplayArgs),

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
    Explain(explain::ExplainArgs),

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
    Doctor(doctor::DoctorArgs),

    /// Find out in two minutes whether a trial is worth its time on this machine
    ///
    /// Moves nothing. Says what works here, what a read from another node costs, which services
    /// read how much from other nodes, how much of that could become local, and how much CPU time
    /// that would save; then a verdict of one line: *worth a trial*, *not worth it*, or *cannot
    /// tell*, with its reason, and what to run next. On a machine with one node it says so at once.
    ///
    /// What a remote read costs is taken from what `nodes --measure` found. Where it has not run,
    /// check measures for 20 s with all CPUs; if others use more than a tenth of them, only the
    /// time of cached reads, with one thread. Such figures are not kept. Then it observes sixty
    /// windows: run it while the load runs. The saving is that of a quiet machine, from calls of 1
    /// MiB to calls of 4 KiB. At the end it writes report.md to the state directory, for others:
    /// what `homenode report` says of these windows, without names.
    #[command(after_help = "\
Examples:
  sudo homenode check
  sudo homenode check --unit postgresql --windows 300
  sudo homenode check --no-measure --json | jq -r .verdict

The exit code is 0 for *worth a trial* and *not worth it*, and 1 for *cannot tell*.")]
    Check(check::CheckArgs),

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
    Report(report::ReportArgs),

    #[command(flatten)]
    About(About),

    /// Stop, then become CMD once continued: this is how `run -- CMD` observes CMD from its first
    /// moment
    #[command(hide = true, name = "__exec")]
    Exec(child::ExecArgs),
}

/// The sub-commands as `--help` lists them.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Look", &["check", "doctor", "nodes", "map", "top", "where", "hot", "status", "explain", "export", "report"]),
    ("Act", &["run", "config", "reload", "restore", "move", "warm"]),
    ("Prove", &["plan", "trial", "record", "replay"]),
    ("Pages and completions", &["man", "completions"]),
];

const OTHERS: &str = "\
Other programs:
  homenode-fs  Make, check and mount volumes over the memory of several nodes
  homenode-lab Run the shipped code on machines that are not there, in virtual time
";

/// The command line; its help has the sub-commands in groups, which clap does not know.
pub fn grouped() -> clap::Command {
    let plain = Cli::command();
    let mut list = String::new();
    for (group, names) in GROUPS {
        list += &format!("{group}:\n");
        for name in names {
            let about = plain.find_subcommand(name).and_then(clap::Command::get_about);
            list += &format!("  {name:11}");
            let mut column = 13;
            for word in about.map(ToString::to_string).unwrap_or_default().split(' ') {
                if column + 1 + word.len() > 99 {
                    list += &format!("\n{:13}", "");
                    column = 13;
                }
                list += &format!(" {word}");
                column += 1 + word.len();
            }
            list += "\n";
        }
        list += "\n";
    }
    plain.mut_subcommands(|sub| sub.hide(true)).override_usage("homenode [OPTIONS] <COMMAND>").help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{OTHERS}\n{{all-args}}{{after-help}}"
    ))
}

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
        Command::Status(args) => status::run(global, args),
        Command::Reload => reload::run(global),
        Command::Config(args) => config::run(global, args),
        Command::Export(args) => export::run(global, args),
        Command::Trial(args) => trial::run(global, args),
        Command::Plan(args) => plan::run(global, args),
        Command::Record(args) => record::run(global, args),
        Command::Replay(args) => replay::run(global, args),
        Command::Explain(args) => explain::run(global, args),
        Command::Check(args) => check::run(global, args),
        Command::Report(args) => report::run(global, args),
        Command::Restore => restore::run(global),
        Command::Doctor(args) => doctor::run(global, args),
        Command::About(about) => about.run(Cli::command(), vec![pages::of_configuration(EXAMPLE)]),
        Command::Exec(args) => child::become_command(args, cli.global.json),
    }
}
