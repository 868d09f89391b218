//! Options of every command, and values of options.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, Command};
use placement::Traits;

use crate::output::units;

/// Default configuration file; it need not exist.
pub const CONFIG_FILE: &str = "/etc/homenode/homenode.toml";

/// Default state directory: undo records and the journal.
pub const STATE_DIR: &str = "/run/homenode";

/// Default file of `homenode nodes --measure`; it need not exist.
pub const MEASURED_FILE: &str = "/var/lib/homenode/nodes.json";

/// The history of the daemon with the default state directory, which is in memory.
pub const HISTORY_DIR: &str = "/var/lib/homenode/history";

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

impl Global {
    /// Where the daemon with this state directory keeps its history.
    pub fn history_dir(&self) -> PathBuf {
        if self.state_dir == Path::new(STATE_DIR) { HISTORY_DIR.into() } else { self.state_dir.join("history") }
    }
}

/// How to decide.
#[derive(Debug, Clone, Args)]
pub struct PolicyArgs {
    /// Policy that decides what moves, or `exec:` and a program of your own, or `unix:` and the
    /// socket of one (docs/snapshot.md) [default: nthread]
    #[arg(long, value_name = "POLICY", value_parser = policy_or_program())]
    pub policy: Option<String>,
    /// User as which root starts the program of `exec:` [default: who called sudo]
    #[arg(long, value_name = "USER")]
    pub policy_user: Option<String>,
    /// Least excess of a thread's reads from its home node over any other node [default: 200MB/s]
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate)]
    pub margin: Option<f64>,
    /// Leave alone threads that read and wrote less than this in a window [default: 4MiB]
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub min_bytes: Option<u64>,
}

impl PolicyArgs {
    pub fn name(&self) -> &str {
        self.policy.as_deref().unwrap_or("nthread")
    }
}

/// What `--policy` begins with for a program.
pub const PROGRAM: &str = "exec:";
/// What it begins with for a socket behind which a program is.
pub const SOCKET: &str = "unix:";

/// A policy that can decide on a host, or a program.
pub fn policy_or_program() -> impl TypedValueParser<Value = String> {
    or_program(policy_names())
}

/// One of these policies, or a program.
pub fn or_program(policies: PossibleValuesParser) -> impl TypedValueParser<Value = String> {
    PolicyOrProgram(policies)
}

pub fn is_program(policy: &str) -> bool {
    policy.starts_with(PROGRAM) || policy.starts_with(SOCKET)
}

#[derive(Clone)]
struct PolicyOrProgram(PossibleValuesParser);

impl TypedValueParser for PolicyOrProgram {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        match value.to_str().filter(|value| is_program(value)) {
            Some(program) => Ok(program.to_owned()),
            None => self.0.parse_ref(command, arg, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}

/// The policies that can decide on a host.
fn policy_names() -> PossibleValuesParser {
    let value = |(name, about): &(&'static str, &str)| {
        let policy = placement::policy(name, &placement::nthread::Settings::default());
        let host = policy.and_then(|policy| on_a_host(policy.traits()));
        let host = host.map_or(String::new(), |less| format!(" ({less})"));
        PossibleValue::new(*name).help(format!("{about}{host}"))
    };
    PossibleValuesParser::new(placement::POLICIES.iter().map(value))
}

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

/// Moves that a policy makes in a simulation but not on a host.
pub fn on_a_host(policy: Traits) -> Option<&'static str> {
    policy.moves_files.then_some("on a host it moves cached files only")
}
