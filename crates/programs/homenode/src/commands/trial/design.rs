//! How many rounds of how long periods.

use trial::{Better, FEWEST, Settings};

use super::outcome::{CPU_EFFICIENCY, METRIC, Outcome};
use crate::cli::TrialArgs;
use crate::exit::{Exit, Failure};
use crate::output::units::{count, seconds};

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
                seconds(period_s)
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
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn design(words: &[&str]) -> Result<Design, String> {
        let cli = Cli::try_parse_from([&["homenode", "trial"], words].concat()).map_err(|e| e.to_string())?;
        let Command::Trial(args) = cli.command else { return Err("no trial".to_owned()) };
        Design::of(&args, 1.0, 2).map_err(|e| e.line())
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
        let Command::Trial(args) = Cli::try_parse_from(["homenode", "trial"]).unwrap().command else { panic!() };
        let failure = Design::of(&args, 1.0, 1).unwrap_err();
        assert_eq!(failure.exit(), Exit::Unsupported);
        assert!(failure.line().contains("one node"), "{failure}");
        assert!(Design::of(&args, 1.0, 2).is_ok());
    }
}
