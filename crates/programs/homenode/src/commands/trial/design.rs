//! How many rounds of how long periods.

use std::ffi::OsString;

use clap::Args;
use command::args::{policy_or_program, seconds};
use trial::{Better, FEWEST, Settings};

use super::outcome::{CPU_EFFICIENCY, METRIC, Outcome};
use crate::exit::{Exit, Failure};
use crate::options::ObserveArgs;
use crate::output::units::{self, count};

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
    /// What counts: `sh -c CMD` prints a number, as the last line, at the end of each period, and
    /// once before the first
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
    #[arg(last = true, value_name = "CMD", conflicts_with_all = ["pid", "unit", "not_unit", "cgroup"])]
    pub command: Vec<OsString>,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(m) if (0.1..=10_080.0).contains(&m) => Ok(m),
        Ok(_) => Err("must be between 0.1 and 10080 minutes".to_owned()),
        Err(_) => Err("not a number of minutes".to_owned()),
    }
}

/// Rounds of a trial whose periods have no length given.
const ROUNDS: f64 = 15.0;

/// Shortest and longest such period in seconds: a policy needs some windows, and a load drifts.
const PERIOD_S: (f64, f64) = (20.0, 120.0);

/// Share of a period that does not count.
const WASH_OUT: f64 = 0.25;

/// A trial before it begins.
#[derive(Debug)]
pub struct Design {
    /// Names of the policies, each once.
    pub policies: Vec<String>,
    pub rounds: usize,
    pub period_s: f64,
    pub wash_out_s: f64,
    pub window_s: f64,
    pub seed: u64,
    pub metric: Option<String>,
    /// Of the metric.
    pub better: Better,
}

impl Design {
    /// `nodes`: how many the machine has.
    pub fn of(args: &TrialArgs, window_s: f64, nodes: usize) -> Result<Self, Failure> {
        let wrong = |what: &str, why: String| Err(Failure::new(Exit::Usage, what.to_owned(), why));
        let mut policies: Vec<String> = Vec::new();
        for name in &args.policy {
            if !policies.contains(name) {
                policies.push(name.clone());
            }
        }
        let arms = 1.0 + policies.len() as f64;
        let all_s = 60.0 * args.minutes;
        let period_s = args.period.unwrap_or_else(|| (all_s / arms / ROUNDS).clamp(PERIOD_S.0, PERIOD_S.1));
        let wash_out_s = args.wash_out.unwrap_or(WASH_OUT * period_s);
        if period_s - wash_out_s < window_s {
            let why = format!("{period_s} s with {wash_out_s} s of wash-out leave less than a window of {window_s} s");
            return wrong("--period", why);
        }
        // Rounding must not cost a round.
        let rounds = (all_s / (arms * period_s) + 1e-9).floor() as usize;
        let needed = fewest(policies.len());
        if rounds < needed {
            let minutes = needed as f64 * arms * period_s / 60.0;
            let why = format!(
                "{} cannot show anything; {needed} rounds of {arms} periods of {} take {minutes:.1} minutes",
                count(rounds, "round"),
                units::seconds(period_s)
            );
            return wrong("--minutes", why);
        }
        if nodes < 2 {
            let failure = Failure::new(Exit::Unsupported, "trial", "one node: every read is local, nothing can move");
            return Err(failure.hint("`homenode nodes` shows the machine; `homenode run` says the same at its start"));
        }
        // The lot must not be known before: two draws of 32 bits.
        let seed = args.seed.unwrap_or_else(|| {
            let half = || (linux::random() * f64::from(u32::MAX)) as u64;
            half() << 32 | half()
        });
        let better = if args.lower_is_better { Better::Lower } else { Better::Higher };
        Ok(Self { policies, rounds, period_s, wash_out_s, window_s, seed, metric: args.metric.clone(), better })
    }

    pub fn statistics(&self) -> Settings {
        Settings::of(self.policies.len())
    }

    pub fn primary(&self) -> Outcome {
        if self.metric.is_some() { METRIC.towards(self.better) } else { CPU_EFFICIENCY }
    }
}

/// Fewest rounds that can show an effect of each of so many policies: the two extreme signs of all
/// must be rarer than a policy's share of the error rate.
fn fewest(policies: usize) -> usize {
    let settings = Settings::of(policies);
    let share = settings.alpha / settings.policies as f64;
    (FEWEST..64).find(|n| 2.0 / (1_u64 << n) as f64 <= share).unwrap_or(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: TrialArgs,
    }

    fn design(words: &[&str]) -> Result<Design, String> {
        let cli = Cli::try_parse_from([&["homenode"], words].concat()).map_err(|e| e.to_string())?;
        Design::of(&cli.args, 1.0, 2).map_err(|e| e.line())
    }

    #[test]
    fn half_an_hour_has_15_rounds() {
        let half_an_hour = design(&[]).unwrap();
        assert_eq!((half_an_hour.rounds, half_an_hour.period_s, half_an_hour.wash_out_s), (15, 60.0, 15.0));
        let two = design(&["--policy", "auto,nthread,auto"]).unwrap();
        assert_eq!((two.rounds, two.period_s, two.policies.len()), (15, 40.0, 2));
        assert_eq!(design(&["--minutes", "600"]).unwrap().period_s, 120.0);
        assert_ne!(half_an_hour.seed, two.seed);
    }

    #[test]
    fn a_trial_that_can_show_nothing_is_refused() {
        let error = design(&["--minutes", "3"]).unwrap_err();
        let why = "4 rounds cannot show anything; 6 rounds of 2 periods of 20.0 s take 4.0 minutes";
        assert!(error.contains(why), "{error}");
        assert_eq!(design(&["--minutes", "4"]).unwrap().rounds, 6);
        // Two policies share the error rate: 2 / 128 is below 2 %.
        assert!(
            design(&["--policy", "auto,nthread", "--period", "10", "--minutes", "3"])
                .unwrap_err()
                .contains("7 rounds of 3")
        );
        assert!(design(&["--period", "4", "--wash-out", "3.5"]).unwrap_err().contains("less than a window"));
        assert!(design(&["--minutes", "0"]).is_err());
        assert!(design(&["--lower-is-better"]).is_err());
    }

    /// It ran for half an hour where nothing can move.
    #[test]
    fn a_trial_on_one_node_is_refused() {
        let args = Cli::try_parse_from(["homenode"]).unwrap().args;
        let failure = Design::of(&args, 1.0, 1).unwrap_err();
        assert_eq!(failure.exit(), Exit::Unsupported);
        assert!(failure.line().contains("one node"), "{failure}");
        assert!(Design::of(&args, 1.0, 2).is_ok());
    }
}
