//! What a trial prints.

use engine::{Finished, Plane};
use host::HostPlane;
use linux::interference::Interference;
use serde_json::{Value, json};
use session::report as put_back;
use trial::{Arm, Effect, Harm, Verdict, judge};

use super::design::Design;
use super::outcome::{self, Outcome, Period};
use crate::exit::Failure;
use crate::output::table::Table;
use crate::output::units::{bytes, count, seconds};
use crate::output::{self, escape, words};

/// Prints, and keeps the rounds.
pub struct Report<'a> {
    json: bool,
    design: &'a Design,
    outcomes: Vec<Outcome>,
    rounds: Vec<Vec<(Arm, Period)>>,
    /// Rounds that do not count.
    dropped: usize,
}

/// The verdict about a policy.
pub struct Judged {
    policy: String,
    verdict: Verdict,
    /// It clearly hurt before the trial was over.
    stopped: bool,
    effects: Vec<(Outcome, Effect)>,
}

impl Judged {
    /// Whether there was enough to judge by.
    pub fn decided(&self) -> bool {
        self.verdict != Verdict::TooShort
    }
}

impl<'a> Report<'a> {
    pub fn new(json: bool, design: &'a Design) -> Self {
        Self { json, design, outcomes: outcome::all(design), rounds: Vec::new(), dropped: 0 }
    }

    pub fn start(&self, plane: &HostPlane, recovered: &Finished, found: &[Interference]) -> Result<(), Failure> {
        let Design { policies, rounds, period_s, wash_out_s, window_s, seed, .. } = self.design;
        let nodes = plane.topology().nodes.len();
        if self.json {
            output::print_json_line(&json!({
                "kind": "start",
                "version": 1,
                "policies": policies,
                "rounds": rounds,
                "period_s": period_s,
                "wash_out_s": wash_out_s,
                "window_s": window_s,
                "seed": seed,
                "primary": self.design.primary().key,
                "nodes": nodes,
                "interference": found,
                "recovered": recovered,
            }))?;
            return Ok(());
        }
        let mut text = format!(
            "{} of {}, {} each with homenode off and with {}; the first {} of each do not count\n",
            count(*rounds, "round"),
            seconds(period_s * (1.0 + policies.len() as f64)),
            seconds(*period_s),
            policies.join(", "),
            seconds(*wash_out_s),
        );
        for found in found {
            text.push_str(&format!("note: {}\n", escape(&words::interference(found))));
        }
        if nodes == 1 {
            text.push_str("note: one node: every read is local, there is nothing to move\n");
        }
        if *recovered != Finished::default() {
            text.push_str(&format!("after a crash: {}", put_back::finished(recovered)));
        }
        Ok(output::print(&text)?)
    }

    pub fn period(&self, round: usize, arm: Arm, period: &Period) -> Result<(), Failure> {
        let name = self.name(arm);
        if self.json {
            let mut value = json!({
                "kind": "period",
                "round": round + 1,
                "arm": name,
                "moves": period.moves,
                "restored": period.restored,
                "moved_back": period.moved_back,
                "stayed": period.stayed,
            });
            if let Some(object) = value.as_object_mut() {
                object.extend(period.values.json());
            }
            output::print_json_line(&value)?;
            return Ok(());
        }
        let primary = self.design.primary();
        let mut text = format!(
            "round {} of {}, {name}: {} {}",
            round + 1,
            self.design.rounds,
            primary.shown(period.values.get(primary.key)),
            primary.name,
        );
        if arm != Arm::Off {
            text.push_str(&format!(", {}, {} put back", count(period.moves, "move"), count(period.restored, "thread")));
            if period.moved_back > 0 {
                text.push_str(&format!(", {} moved back", bytes(period.moved_back)));
            }
        }
        if let Some(why) = &period.stayed {
            text.push_str(&format!("; this round does not count: {}", escape(why)));
        }
        Ok(output::print(&(text + "\n"))?)
    }

    fn name(&self, arm: Arm) -> &str {
        match arm {
            Arm::Off => "off",
            Arm::On(n) => self.design.policies.get(n).map_or("?", String::as_str),
        }
    }

    /// Keeps a whole round, unless something stayed where it had been moved. Returns how much
    /// better each policy was.
    pub fn round(&mut self, periods: Vec<(Arm, Period)>) -> Vec<(usize, f64)> {
        if periods.iter().any(|(_, period)| period.stayed.is_some()) {
            self.dropped += 1;
            return Vec::new();
        }
        let primary = self.design.primary();
        let value = |period: &Period| period.values.get(primary.key);
        let off = periods.iter().find(|(arm, _)| *arm == Arm::Off).map_or(f64::NAN, |(_, period)| value(period));
        let better = periods.iter().filter_map(|(arm, period)| match arm {
            Arm::On(n) => Some((*n, primary.better.gain(value(period) - off))),
            Arm::Off => None,
        });
        let better = better.collect();
        self.rounds.push(periods);
        better
    }

    /// The verdict about each policy.
    pub fn judge(&self, harms: &[Harm]) -> Vec<Judged> {
        let statistics = self.design.statistics();
        let of = |policy: usize, outcome: &Outcome| -> Vec<(f64, f64)> {
            let pairs = self.rounds.iter().filter_map(|round| {
                let value =
                    |arm: Arm| round.iter().find(|(a, _)| *a == arm).map(|(_, period)| period.values.get(outcome.key));
                value(Arm::Off).zip(value(Arm::On(policy)))
            });
            pairs.collect()
        };
        let all = self.design.policies.iter().zip(harms).enumerate().map(|(n, (policy, harm))| {
            let effects: Vec<_> = self
                .outcomes
                .iter()
                .map(|outcome| (*outcome, judge(&of(n, outcome), outcome.better, &statistics)))
                .collect();
            // A round that was left out can have the order in it that the lot gave.
            let too_many = 4 * self.dropped > self.rounds.len() + self.dropped;
            let verdict = match effects.first() {
                _ if harm.clear() => Verdict::Hurts,
                Some((_, effect)) if !too_many => effect.verdict,
                _ => Verdict::TooShort,
            };
            Judged { policy: policy.clone(), verdict, stopped: harm.clear(), effects }
        });
        all.collect()
    }

    pub fn end(&self, judged: &[Judged], finished: &Finished, stopped: bool) -> Result<(), Failure> {
        if self.json {
            output::print_json_line(&json!({
                "kind": "end",
                "rounds": self.rounds.len(),
                "dropped": self.dropped,
                "stopped": stopped,
                "results": judged.iter().map(|judged| self.result(judged)).collect::<Vec<_>>(),
                "put_back": finished,
            }))?;
            return Ok(());
        }
        let mut text = String::new();
        for judged in judged {
            text.push('\n');
            text.push_str(&self.text(judged));
        }
        if self.dropped > 0 {
            text.push_str(&format!("{} left out, because data or threads stayed\n", count(self.dropped, "round")));
        }
        text.push_str(&put_back::finished(finished));
        Ok(output::print(&text)?)
    }

    fn result(&self, judged: &Judged) -> Value {
        let outcomes: serde_json::Map<String, Value> = judged
            .effects
            .iter()
            .map(|(outcome, effect)| {
                let mut value = json!(effect);
                if let Some(object) = value.as_object_mut() {
                    object.insert("better".to_owned(), json!(outcome.better));
                    for (key, of) in [
                        ("relative", Some(effect.mean)),
                        ("relative_low", effect.low),
                        ("relative_high", effect.high),
                        ("relative_smallest", effect.smallest),
                    ] {
                        object.insert(key.to_owned(), json!(of.and_then(|value| effect.relative(value))));
                    }
                }
                (outcome.key.to_owned(), value)
            })
            .collect();
        json!({
            "policy": judged.policy,
            "verdict": judged.verdict,
            "stopped_early": judged.stopped,
            "primary": self.design.primary().key,
            "outcomes": outcomes,
        })
    }

    fn text(&self, judged: &Judged) -> String {
        let said = match judged.verdict {
            Verdict::Helps => "helps",
            Verdict::Hurts if judged.stopped => "hurts, and was stopped early",
            Verdict::Hurts => "hurts",
            Verdict::NoDifferenceSeen => "no difference seen",
            Verdict::TooShort => "too few rounds to tell",
        };
        let rounds = judged.effects.first().map_or(0, |(_, effect)| effect.rounds);
        let mut text = format!("policy {}: {said} ({})\n", judged.policy, count(rounds, "round"));
        let mut table = Table::new(&["", ">off", ">change", ">95 % interval", ">smallest that shows"]);
        for (outcome, effect) in &judged.effects {
            let change = |value: Option<f64>| match value {
                None => "unknown".to_owned(),
                Some(value) => signed(outcome, effect, value),
            };
            let interval = match (effect.low, effect.high) {
                (Some(low), Some(high)) => {
                    format!("{} to {}", signed(outcome, effect, low), signed(outcome, effect, high))
                }
                _ => "unknown".to_owned(),
            };
            let smallest = change(effect.smallest).trim_start_matches('+').to_owned();
            table.row([
                outcome.name.to_owned(),
                outcome.shown(effect.off),
                change(Some(effect.mean)),
                interval,
                smallest,
            ]);
        }
        text.push_str(&table.render());
        if judged.stopped {
            text.push_str("note: the intervals are those of rounds that ended because they looked bad\n");
        }
        text
    }
}

/// A change: relative to the value with homenode off, or as it is where that is zero.
fn signed(outcome: &Outcome, effect: &Effect, value: f64) -> String {
    match effect.relative(value) {
        Some(relative) => format!("{:+.1} %", 100.0 * relative),
        None if value < 0.0 => format!("-{}", outcome.shown(-value)),
        None => format!("+{}", outcome.shown(value)),
    }
}
