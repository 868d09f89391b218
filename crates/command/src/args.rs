//! Options of every command, and of those that another program than `homenode` does.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, Command, Subcommand, ValueEnum};
use placement::Traits;

use crate::output::units;

/// Default configuration file; it need not exist.
pub const CONFIG_FILE: &str = "/etc/homenode/homenode.toml";

/// Default state directory: undo records and the journal.
pub const STATE_DIR: &str = "/run/homenode";

/// Default file of `homenode nodes --measure`; it need not exist.
pub const MEASURED_FILE: &str = "/var/lib/homenode/nodes.json";

/// Options for every sub-command.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// Print JSON instead of text, also for errors (on stderr)
    #[arg(long, global = true, help_heading = "General options")]
    pub json: bool,
    /// Configuration file [default: /etc/homenode/homenode.toml, if it exists]
    #[arg(long, global = true, help_heading = "General options", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory for undo records and the journal
    #[arg(long, global = true, help_heading = "General options", value_name = "DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Log more to stderr: -v actions and all limits, -vv every detail (HOMENODE_LOG=… filters)
    #[arg(short, long, global = true, help_heading = "General options", action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// Commands that `homenode-lab` does.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Simulate a machine and a load, and compare policies on them
    ///
    /// Runs policies in virtual time, through the same loop and rails as `homenode run`. Shows the
    /// throughput, the moves and the load of each node. The load comes from a scenario file, from a
    /// snapshot that `homenode record` wrote on a host, or from random scenarios. Moves nothing and
    /// needs no privileges. docs/simulate.md lists every key of scenario files and the limits of
    /// the model.
    #[command(after_help = "\
Examples:
  homenode simulate scenarios/fio-away-from-its-data.toml
  homenode simulate scenarios/page-cache.toml --policy all
  homenode simulate scenarios/page-cache.toml --policy none,auto --topology /tmp/mymachine
  sudo homenode record --windows 1 busy.json && homenode simulate --snapshot busy.json --topology /tmp/four-sockets
  homenode simulate --regret 200 --seed 1 --json
  homenode simulate --random 17 --print > scenario17.toml")]
    Simulate(SimulateArgs),

    /// Run the papers' experiments on a simulated machine and compare the results with the papers
    ///
    /// Writes report.html (self-contained), results.csv and one PNG per figure to DIR. Needs no
    /// privileges and no particular machine. Mismatches are reported with their cause and are not
    /// errors: the exit code is 0 whatever the score, and 5 (or 3) if DIR cannot be written.
    #[command(after_help = "\
Examples:
  homenode reproduce --out /tmp/papers
  homenode reproduce dragonfly --out /tmp/dragonfly --seeds 10
  homenode reproduce --out /tmp/papers --json | jq .scores")]
    Reproduce(ReproduceArgs),
}

/// `homenode simulate`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["scenario", "snapshot", "regret", "random"]))]
pub struct SimulateArgs {
    /// Scenario file
    #[arg(value_name = "SCENARIO")]
    pub scenario: Option<PathBuf>,
    /// Policies to compare (repeat, or separate with commas) [default: none and the scenario's own,
    /// or auto]
    #[arg(long, value_name = "POLICY", value_delimiter = ',', value_parser = simulated_policies())]
    pub policy: Vec<String>,
    /// Seed of random start placements and random scenarios [default: the scenario's own, or 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Run it on the machine saved by `homenode nodes --capture` (a directory) or `--measure` (a
    /// file)
    #[arg(long, value_name = "DIR|FILE", conflicts_with_all = ["regret", "random"])]
    pub topology: Option<PathBuf>,
    /// Run the load of this snapshot (`-` for stdin) on the machine of --topology
    #[arg(long, value_name = "FILE", requires = "topology")]
    pub snapshot: Option<PathBuf>,
    /// Compare all policies with the best one on the papers' scenarios and N random ones
    #[arg(long, value_name = "N", conflicts_with = "policy", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub regret: Option<u32>,
    /// With --regret: the same again on machines whose latencies, bandwidths and other numbers are
    /// drawn within 30 % of those that `auto` assumes
    #[arg(long, requires = "regret")]
    pub unknown: bool,
    /// Run the K-th random scenario of the seed
    #[arg(long, value_name = "K")]
    pub random: Option<u32>,
    /// Print the random scenario as a scenario file instead of running it
    #[arg(long, requires = "random", conflicts_with_all = ["policy", "scenario", "snapshot", "regret"])]
    pub print: bool,
}

/// `homenode reproduce`.
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// Paper whose experiments to run
    #[arg(value_enum, default_value_t = PaperChoice::All, value_name = "PAPER")]
    pub paper: PaperChoice,
    /// Output directory; created if missing
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Run each experiment with N random start placements and report the mean
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Also repeat everything with each constant of the model 30 % lower and higher, and calibrated
    /// on one paper only: minutes
    #[arg(long)]
    pub sensitivity: bool,
}

/// A paper, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PaperChoice {
    /// NUMA-aware thread migration (MSST 2020)
    Nthread,
    /// Data migration when a controller is overloaded
    Dragonfly,
    /// SysMon-N and N-Policy (NPC 2020)
    Npolicy,
    /// Task migration in the ZFS cache (thesis, 2021)
    Arc,
    /// All of them
    All,
}

/// The policies, and two words that only a simulation knows.
fn simulated_policies() -> PossibleValuesParser {
    with_policies(&[("none", "the kernel alone, without homenode"), ("all", "none, and every policy")])
}

/// These words and the policies.
fn with_policies(words: &[(&'static str, &'static str)]) -> PossibleValuesParser {
    let all = words.iter().chain(placement::POLICIES);
    PossibleValuesParser::new(all.map(|(name, about)| PossibleValue::new(*name).help(*about)))
}

/// How to decide.
#[derive(Debug, Clone, Args)]
pub struct PolicyArgs {
    /// Policy that decides what moves, or `exec:` and a program of your own (of plan and replay;
    /// docs/snapshot.md)
    #[arg(long, value_name = "POLICY", default_value = "nthread", value_parser = PolicyOrProgram(policy_names()))]
    pub policy: String,
    /// Least excess of a thread's reads from its home node over any other node [default: 200MB/s]
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate)]
    pub margin: Option<f64>,
    /// Leave alone threads that read and wrote less than this in a window [default: 4MiB]
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub min_bytes: Option<u64>,
}

/// What `--policy` begins with for a program.
pub const PROGRAM: &str = "exec:";

/// A policy, or a program.
#[derive(Clone)]
struct PolicyOrProgram(PossibleValuesParser);

impl TypedValueParser for PolicyOrProgram {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        match value.to_str().filter(|value| value.starts_with(PROGRAM)) {
            Some(program) => Ok(program.to_owned()),
            None => self.0.parse_ref(command, arg, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}

/// The policies that can decide on a host.
pub fn policy_names() -> PossibleValuesParser {
    let value = |(name, about): &(&'static str, &str)| {
        let policy = placement::policy(name, &placement::nthread::Settings::default());
        let host = policy.and_then(|policy| on_a_host(policy.traits(), false));
        let host = host.map_or(String::new(), |less| format!(" ({less})"));
        PossibleValue::new(*name).help(format!("{about}{host}"))
    };
    PossibleValuesParser::new(placement::POLICIES.iter().map(value))
}

/// The policy of a mount that has none.
pub const MOUNT_OFF: &str = "off";

/// The policies that can decide on a mount, and `off`.
pub fn mount_policies() -> PossibleValuesParser {
    with_policies(&[(MOUNT_OFF, "nothing moves")])
}

/// A process id.
pub fn pid(text: &str) -> Result<u32, String> {
    let pid = text.trim().parse().ok().filter(|pid| (1..=i32::MAX as u32).contains(pid));
    pid.ok_or_else(|| "not the id of a process".to_owned())
}

/// A window must be long enough to show something and short enough for a prompt stop.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('s').trim().parse::<f64>() {
        Ok(s) if (0.01..=3600.0).contains(&s) => Ok(s),
        Ok(_) => Err("must be between 0.01 and 3600 seconds".to_owned()),
        Err(_) => Err("not a number of seconds".to_owned()),
    }
}

/// Moves that a policy makes in a simulation but not on a host. `dax`: files on DAX are moved.
pub fn on_a_host(policy: Traits, dax: bool) -> Option<&'static str> {
    let cached = "on a host it moves cached files only, unless homenode.toml has `dax = true` for files on DAX";
    (policy.moves_files && !dax).then_some(cached)
}
