//! What a trial prints.

use engine::guardrail::Beyond;
use engine::{Finished, Plane};
use host::HostPlane;
use linux::interference::Interference;
use serde_json::{Value, json};
use session::report as put_back;
use trial::{Arm, Better, Effect, Harm, Verdict, judge};

use super::design::Design;
use super::last::Last;
use super::outcome::{self, Outcome, Period, READS, guards};
use crate::exit::Failure;
use crate::output::table::Table;
use crate::output::units::{bytes, changed, count, seconds};
use crate::output::{self, escape, words};

pub struct Report<'a> {
    json: bool,
    design: &'a Design,
    outcomes: Vec<Outcome>,
    /// All whole rounds, also those that do not count.
    rounds: Vec<Vec<(Arm, Period)>>,
    /// How it began, as JSON.
    begun: Value,
}

/// Over the intervals, which are drawn to scale in this width; each row has its own scale.
const PLOT: &str = "less      0      more";

/// Why there is no verdict, and what else to know of one.
const TOO_MANY_LOST: &str = "more than a quarter of its rounds do not count";
const CUT_SHORT: &str = "the trial was cut short, after its rounds could be seen";
const LOST: &str = "what counts was unknown in a period with it";
const GUARDRAIL: &str = "periods with it ended early, because the load went worse";
const DATA_STAYED: &str =
    "data stayed where a policy had moved it: later periods, also those with homenode off, found it there";

pub struct Judged {
    policy: String,
    verdict: Verdict,
    why: Option<String>,
    /// It clearly hurt before the trial was over.
    stopped: bool,
    /// Rounds in which what counts was unknown.
    unknown: usize,
    /// For each outcome; the first is what the verdict is about.
    effects: Vec<(Outcome, Effect)>,
}

impl Judged {
    /// Whether there was enough to judge by.
    pub fn decided(&self) -> bool {
        !matches!(self.verdict, Verdict::TooShort | Verdict::NoVerdict)
    }

    /// The verdict in words.
    fn said(&self) -> String {
        match self.verdict {
            Verdict::Helps => "helps".to_owned(),
            Verdict::Hurts if self.stopped => "hurts, and was stopped early".to_owned(),
            Verdict::Hurts => "hurts".to_owned(),
            Verdict::Mixed => format!("mixed: {}", self.why.as_deref().unwrap_or_default()),
            Verdict::NoDifferenceSeen => "no difference seen".to_owned(),
            Verdict::TooShort => {
                format!("too few rounds to tell{}", self.why.as_ref().map_or(String::new(), |why| format!(": {why}")))
            }
            Verdict::NoVerdict => format!("no verdict: {}", self.why.as_deref().unwrap_or_default()),
        }
    }
}

impl<'a> Report<'a> {
    pub fn new(json: bool, design: &'a Design) -> Self {
        Self { json, design, outcomes: outcome::all(design.primary()), rounds: Vec::new(), begun: Value::Null }
    }

    pub fn start(&mut self, plane: &HostPlane, recovered: &Finished, found: &[Interference]) -> Result<(), Failure> {
        let Design { policies, rounds, period_s, wash_out_s, window_s, seed, .. } = self.design;
        let nodes = plane.topology().nodes.len();
        self.begun = json!({
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
        });
        if self.json {
            return Ok(output::print_json_line(&self.begun)?);
        }
        let mut text = format!(
            "{} of {}, {} each with homenode off and with {}; the first {} of each do not count\n",
            count(*rounds, "round"),
            seconds(period_s * (1.0 + policies.len() as f64)),
            seconds(*period_s),
            policies.join(", "),
            seconds(*wash_out_s),
        );
        text.push_str(&output::notes(found.iter().map(words::interference)));
        if *recovered != Finished::default() {
            text.push_str(&format!("after a crash: {}", put_back::finished(recovered)));
        }
        Ok(output::print(&text)?)
    }

    pub fn period(&self, round: usize, arm: Arm, period: &Period) -> Result<(), Failure> {
        let name = self.name(arm);
        if self.json {
            return Ok(output::print_json_line(&self.period_json(round, arm, period))?);
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
        if !period.values.get(primary.key).is_finite() {
            let harm = "; what is not known counts as harm";
            text.push_str(if arm == Arm::Off { "; this round does not count" } else { harm });
        }
        if let Some(beyond) = &period.beyond {
            text.push_str(&format!("; ended early: {beyond}"));
        }
        if let Some(why) = &period.stayed {
            text.push_str(&format!("; this round does not count: {}", escape(why)));
        }
        Ok(output::print(&(text + "\n"))?)
    }

    fn period_json(&self, round: usize, arm: Arm, period: &Period) -> Value {
        let mut value = json!({
            "kind": "period",
            "round": round + 1,
            "arm": self.name(arm),
            "moves": period.moves,
            "restored": period.restored,
            "moved_back": period.moved_back,
            "ended_early": period.beyond.map(|beyond| beyond.to_string()),
            "stayed": period.stayed,
        });
        if let Some(object) = value.as_object_mut() {
            object.extend(period.values.json());
        }
        value
    }

    fn name(&self, arm: Arm) -> &str {
        match arm {
            Arm::Off => "off",
            Arm::On(n) => self.design.policies.get(n).map_or("?", String::as_str),
        }
    }

    /// Keeps a whole round, and tells it the early stops, unless something stayed where it had been
    /// moved. Where the guardrail ended only one of two periods, its outcome counts.
    pub fn round(&mut self, periods: Vec<(Arm, Period)>, harms: &mut [Harm]) {
        let primary = self.design.primary();
        let off = periods.iter().find(|(arm, _)| *arm == Arm::Off).map(|(_, period)| period);
        let off = off.filter(|_| Self::counts(&periods));
        for (arm, on) in &periods {
            let (Arm::On(n), Some(off)) = (arm, off) else { continue };
            let Some(harm) = harms.get_mut(*n) else { continue };
            let value = |outcome: &Outcome| (off.values.get(outcome.key), on.values.get(outcome.key));
            let ((was, is), better) = match on.beyond.xor(off.beyond) {
                Some(Beyond::Read(..)) => (value(&READS), READS.better),
                Some(Beyond::Waited(..)) => ((off.ran, on.ran), Better::Higher),
                None => (value(&primary), primary.better),
            };
            harm.round(was, is, better);
        }
        self.rounds.push(periods);
    }

    /// Whether nothing has stayed where this round had moved it.
    fn counts(round: &[(Arm, Period)]) -> bool {
        round.iter().all(|(_, period)| period.stayed.is_none())
    }

    /// Rounds that do not count.
    fn dropped(&self) -> usize {
        self.rounds.iter().filter(|round| !Self::counts(round)).count()
    }

    /// Whether the rounds to come can still give a verdict about any policy that is not stopped:
    /// not if more are lost already than [`Self::judge`] lets pass of all.
    pub fn can_tell(&self, harms: &[Harm]) -> bool {
        let unknown = |policy: usize| unknown(&self.values(policy, &self.design.primary()));
        let open = harms.iter().enumerate().filter(|(_, harm)| !harm.clear());
        open.map(|(policy, _)| self.dropped() + unknown(policy)).any(|lost| !too_many(lost, self.design.rounds))
    }

    /// The rounds that count: the periods with homenode off and with the policy.
    fn pairs(&self, policy: usize) -> impl Iterator<Item = (&Period, &Period)> {
        self.rounds.iter().filter(|round| Self::counts(round)).filter_map(move |round| {
            let period = |arm: Arm| round.iter().find(|(a, _)| *a == arm).map(|(_, period)| period);
            period(Arm::Off).zip(period(Arm::On(policy)))
        })
    }

    /// The values of an outcome with homenode off, and with the policy, in each round. What is not
    /// known with the policy, of the outcome that counts, is as bad as the worst that is known, and
    /// not left out: a load that stands still has no value.
    fn values(&self, policy: usize, outcome: &Outcome) -> Vec<(f64, f64)> {
        let value = |period: &Period| period.values.get(outcome.key);
        let mut values: Vec<_> = self.pairs(policy).map(|(off, on)| (value(off), value(on))).collect();
        if *outcome == self.design.primary() {
            let known = values.iter().flat_map(|(off, on)| [*off, *on]).filter(|value| value.is_finite());
            let worst = match outcome.better {
                Better::Higher => known.fold(0.0, f64::min),
                Better::Lower => known.fold(0.0, f64::max),
            };
            values.iter_mut().filter(|(_, on)| !on.is_finite()).for_each(|(_, on)| *on = worst);
        }
        values
    }

    /// What is worse with a policy whose primary outcome is better.
    fn worse(&self, policy: usize, effects: &[(Outcome, Effect)]) -> Vec<String> {
        let primary = self.design.primary();
        let lost = self.pairs(policy).any(|(_, on)| !on.values.get(primary.key).is_finite());
        let ended = |of: fn((&Period, &Period)) -> bool| self.pairs(policy).filter(|pair| of(*pair)).count();
        let early = ended(|(_, on)| on.beyond.is_some()) > ended(|(off, _)| off.beyond.is_some());
        let worse =
            effects.iter().filter(|(outcome, effect)| effect.verdict == Verdict::Hurts && guards(outcome, effect));
        let worse = worse
            .map(|(outcome, effect)| format!("worse by {} ({})", outcome.name, change(outcome, effect, effect.mean)));
        worse.chain(lost.then(|| LOST.to_owned())).chain(early.then(|| GUARDRAIL.to_owned())).collect()
    }

    pub fn judge(&self, harms: &[Harm]) -> Vec<Judged> {
        let statistics = self.design.statistics();
        let all = self.design.policies.iter().zip(harms).enumerate().map(|(n, (policy, harm))| {
            let effects: Vec<_> = self
                .outcomes
                .iter()
                .map(|outcome| (*outcome, judge(&self.values(n, outcome), outcome.better, &statistics)))
                .collect();
            let values = self.values(n, &self.design.primary());
            let unknown = unknown(&values);
            let rounds = self.rounds.len();
            let worse = self.worse(n, &effects);
            let because = |why: &str| Some(why.to_owned());
            let (verdict, why) = match effects.first().map_or(Verdict::TooShort, |(_, effect)| effect.verdict) {
                _ if harm.clear() => (Verdict::Hurts, None),
                // A round that was left out can have the order in it that the lot gave.
                _ if too_many(self.dropped() + unknown, rounds) => (Verdict::TooShort, because(TOO_MANY_LOST)),
                Verdict::TooShort => (Verdict::TooShort, None),
                // The user saw the rounds before ending it.
                _ if rounds < self.design.rounds => (Verdict::NoVerdict, because(CUT_SHORT)),
                Verdict::Helps if !worse.is_empty() => (Verdict::Mixed, Some(worse.join("; "))),
                verdict => (verdict, None),
            };
            Judged { policy: policy.clone(), verdict, why, stopped: harm.clear(), unknown, effects }
        });
        all.collect()
    }

    pub fn end(&self, judged: &[Judged], finished: &Finished, stopped: bool) -> Result<(), Failure> {
        if self.json {
            return Ok(output::print_json_line(&self.end_json(judged, finished, stopped))?);
        }
        let mut text: String = judged.iter().map(|judged| format!("\n{}", self.text(judged))).collect();
        if self.dropped() > 0 {
            text.push_str(&format!("{} left out, because data or threads stayed\n", count(self.dropped(), "round")));
        }
        if let Some(note) = Self::note(finished) {
            text.push_str(&format!("note: {note}\n"));
        }
        text.push_str(&put_back::finished(finished));
        Ok(output::print(&text)?)
    }

    fn note(finished: &Finished) -> Option<&'static str> {
        (finished.not_moved_back > 0).then_some(DATA_STAYED)
    }

    fn end_json(&self, judged: &[Judged], finished: &Finished, stopped: bool) -> Value {
        json!({
            "kind": "end",
            "rounds": self.rounds.len() - self.dropped(),
            "dropped": self.dropped(),
            "stopped": stopped,
            "results": judged.iter().map(|judged| self.result(judged)).collect::<Vec<_>>(),
            "put_back": finished,
            "notes": Self::note(finished).into_iter().collect::<Vec<_>>(),
        })
    }

    /// The trial as `homenode report` shows it.
    pub fn last(&self, judged: &[Judged], finished: &Finished, stopped: bool) -> Last {
        Last::new(self.begun.clone(), self.end_json(judged, finished, stopped))
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
                        ("relative", effect.mean),
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
            "why": judged.why,
            "stopped_early": judged.stopped,
            "unknown": judged.unknown,
            "primary": self.design.primary().key,
            "outcomes": outcomes,
        })
    }

    fn text(&self, judged: &Judged) -> String {
        let said = judged.said();
        let rounds = judged.effects.first().map_or(0, |(_, effect)| effect.rounds);
        let mut text = format!("policy {}: {said} ({})\n", judged.policy, count(rounds, "round"));
        let mut table = Table::new(&["", ">off", ">change", ">95 % interval", ">smallest that shows", PLOT]);
        for (outcome, effect) in &judged.effects {
            let plot = match (effect.mean, effect.low, effect.high) {
                (Some(mean), Some(low), Some(high)) => strip(mean, low, high, PLOT.chars().count()),
                _ => String::new(),
            };
            let [off, change, interval, smallest] = figures(outcome, effect);
            table.row([outcome.name.to_owned(), off, change, interval, smallest, plot]);
        }
        text.push_str(&table.render());
        if judged.unknown > 0 {
            let primary = self.design.primary().name;
            text.push_str(&format!("{} left out: {primary} was not known\n", count(judged.unknown, "round")));
        }
        if judged.stopped {
            text.push_str("note: the intervals are those of rounds that ended because they looked bad\n");
        }
        text
    }
}

/// Rounds without a value of either.
fn unknown(values: &[(f64, f64)]) -> usize {
    values.iter().filter(|(off, on)| !off.is_finite() || !on.is_finite()).count()
}

/// Whether so many of all rounds are lost that there is no verdict.
fn too_many(lost: usize, all: usize) -> bool {
    4 * lost > all
}

/// A change: relative to the value with homenode off, or as it is where that is zero.
fn signed(outcome: &Outcome, effect: &Effect, value: f64) -> String {
    effect.relative(value).map_or_else(|| outcome.signed(value), changed)
}

/// The same of what may be unknown.
fn change(outcome: &Outcome, effect: &Effect, value: Option<f64>) -> String {
    value.map_or("unknown".to_owned(), |value| signed(outcome, effect, value))
}

fn interval(outcome: &Outcome, effect: &Effect) -> String {
    match (effect.low, effect.high) {
        (Some(low), Some(high)) => format!("{} to {}", signed(outcome, effect, low), signed(outcome, effect, high)),
        _ => "unknown".to_owned(),
    }
}

/// The value with homenode off, the change, its interval, and the smallest that shows.
fn figures(outcome: &Outcome, effect: &Effect) -> [String; 4] {
    let off = outcome.shown(effect.off.unwrap_or(f64::NAN));
    [off, change(outcome, effect, effect.mean), interval(outcome, effect), smallest(outcome, effect)]
}

/// An interval, its mean, and zero, in this many characters. Zero is in the middle, so that rows
/// under each other can be compared.
fn strip(mean: f64, low: f64, high: f64, columns: usize) -> String {
    let most = [mean, low, high].into_iter().map(f64::abs).fold(0.0, f64::max);
    let half = (columns.saturating_sub(1) / 2) as f64;
    let place = |value: f64| if most > 0.0 { (half + half * value / most).round() as usize } else { half as usize };
    let (mean, low, high, zero) = (place(mean), place(low), place(high), place(0.0));
    let cell = |at: usize| match at {
        _ if at == mean => '●',
        _ if at == zero && at == low => '├',
        _ if at == zero && at == high => '┤',
        _ if at == zero && low < at && at < high => '┼',
        _ if at == zero => '│',
        _ if at == low => '├',
        _ if at == high => '┤',
        _ if low < at && at < high => '─',
        _ => ' ',
    };
    (0..=2 * half as usize).map(cell).collect()
}

/// The smallest effect that shows, without a sign.
fn smallest(outcome: &Outcome, effect: &Effect) -> String {
    change(outcome, effect, effect.smallest).trim_start_matches('+').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::trial::outcome::{METRIC, Values};

    fn design(rounds: usize) -> Design {
        let policies = vec!["nthread".to_owned()];
        let metric = Some("true".to_owned());
        let better = Better::Higher;
        Design { policies, rounds, period_s: 4.0, wash_out_s: 1.0, window_s: 1.0, seed: 1, metric, better }
    }

    fn period(metric: f64) -> Period {
        of(&[("metric", metric)], None)
    }

    fn of(values: &[(&'static str, f64)], beyond: Option<Beyond>) -> Period {
        let values = Values(values.to_vec());
        let ran = if let Some(Beyond::Waited(_, is)) = beyond { 1.0 - is } else { 1.0 };
        Period { values, moves: 0, restored: 0, moved_back: 0, beyond, ran, stayed: None }
    }

    /// The verdict after these values with homenode off and with the policy.
    fn judged(planned: usize, values: &[(f64, f64)]) -> Judged {
        let design = design(planned);
        let mut report = Report::new(true, &design);
        let mut harms = [Harm::new(&design.statistics())];
        for (off, on) in values {
            report.round(vec![(Arm::On(0), period(*on)), (Arm::Off, period(*off))], &mut harms);
        }
        report.judge(&harms).remove(0)
    }

    #[test]
    fn a_trial_that_was_cut_short_gives_no_verdict() {
        let helps = [(1.0, 2.0); 9];
        assert_eq!(judged(9, &helps).verdict, Verdict::Helps);
        let cut = judged(15, &helps);
        assert_eq!((cut.verdict, cut.why.as_deref(), cut.decided()), (Verdict::NoVerdict, Some(CUT_SHORT), false));
        assert!(cut.effects[0].1.low.is_some());
        let text = Report::new(false, &design(15)).text(&cut);
        assert!(text.contains("no verdict: the trial was cut short"), "{text}");
        // An early stop is valid whenever it comes.
        let hurts = judged(15, &[(2.0, 1.0); 9]);
        assert_eq!((hurts.verdict, hurts.stopped), (Verdict::Hurts, true));
        assert_eq!(judged(15, &helps[..4]).verdict, Verdict::TooShort);
    }

    #[test]
    fn rounds_without_a_value_are_counted_and_do_not_help() {
        let known = [(1.0, 2.0); 12];
        let with = |lost: &[(f64, f64)]| judged(12 + lost.len(), &[&known[..], lost].concat());
        let off = with(&[(f64::NAN, 2.0)]);
        assert_eq!((off.verdict, off.unknown), (Verdict::Helps, 1));
        let text = Report::new(false, &design(13)).text(&off);
        assert!(text.contains("1 round left out: what --metric prints was not known"), "{text}");
        // More than a quarter.
        let many = with(&[(f64::NAN, 2.0); 5]);
        assert_eq!((many.verdict, many.why.as_deref()), (Verdict::TooShort, Some(TOO_MANY_LOST)));
    }

    /// It was left out: 15 periods in which the load stood still were no harm.
    #[test]
    fn what_is_not_known_with_a_policy_counts_as_harm() {
        let known = [(1.0, 2.0); 12];
        let on = judged(13, &[&known[..], &[(1.0, f64::NAN)]].concat());
        assert_eq!((on.verdict, on.why.as_deref(), on.unknown), (Verdict::Mixed, Some(LOST), 0));
        assert_eq!(on.effects[0].1.rounds, 13);
        assert!(Report::new(false, &design(13)).text(&on).contains("mixed: what counts was unknown"));
        let stood_still = judged(12, &[(1.0, f64::NAN); 2]);
        assert_eq!((stood_still.verdict, stood_still.stopped), (Verdict::Hurts, true));
    }

    /// *Helps* was said of what halved the throughput: eight readers bound to four CPUs read more
    /// for each CPU second.
    #[test]
    fn what_reads_more_for_a_cpu_second_and_less_in_all_does_not_help() {
        let design = Design { metric: None, ..design(15) };
        let values = |efficiency, reads, wait| {
            [("read_bytes_per_cpu_s", efficiency), ("read_bytes_per_s", reads), ("wait_share", wait)]
        };
        let trial = |on: &[(&'static str, f64)], beyond: Option<Beyond>, rounds: u32| {
            let mut report = Report::new(false, &design);
            let mut harms = [Harm::new(&design.statistics())];
            for n in 0..rounds {
                let noise = 1.0 + 0.001 * f64::from(n % 3);
                let off = of(&values(100.0 * noise, 800.0, 0.1), None);
                let on = on.iter().map(|(key, value)| (*key, value * noise)).collect::<Vec<_>>();
                report.round(vec![(Arm::Off, off), (Arm::On(0), of(&on, beyond))], &mut harms);
            }
            let judged = report.judge(&harms).remove(0);
            assert!(judged.decided());
            (judged.verdict, judged.why.clone().unwrap_or_default(), judged.stopped)
        };
        assert_eq!(trial(&values(120.0, 900.0, 0.09), None, 15).0, Verdict::Helps);
        // A trial is sure of these, too, and nobody feels them.
        assert_eq!(trial(&values(120.0, 790.0, 0.12), None, 15).0, Verdict::Helps);
        assert_eq!(trial(&values(120.0, 770.0, 0.1), None, 15).0, Verdict::Mixed);
        assert_eq!(trial(&values(120.0, 900.0, 0.14), None, 15).0, Verdict::Mixed);
        let (verdict, why, _) = trial(&values(120.0, 480.0, 4.0), None, 15);
        assert_eq!(verdict, Verdict::Mixed);
        let worse = "worse by file bytes read per second (-39.9 %); worse by time waited for a CPU, of each second";
        assert!(why.starts_with(worse), "{why}");
        // The guardrail ended each of its periods: the early stop knows why.
        let (verdict, _, stopped) = trial(&values(120.0, 480.0, 4.0), Some(Beyond::Waited(0.0, 0.5)), 9);
        assert_eq!((verdict, stopped), (Verdict::Hurts, true));
        let (verdict, _, stopped) = trial(&values(120.0, 80.0, 0.1), Some(Beyond::Read(800.0, 80.0)), 2);
        assert_eq!((verdict, stopped), (Verdict::Hurts, true));
    }

    /// A metric that never gave a number kept a trial going to its end, which then said `0.0000`.
    #[test]
    fn a_trial_ends_when_its_rounds_cannot_tell_any_more() {
        let design = design(12);
        let mut report = Report::new(false, &design);
        let mut harms = [Harm::new(&design.statistics())];
        for round in 0..4 {
            assert!(report.can_tell(&harms), "{round}");
            let periods = vec![(Arm::On(0), period(f64::NAN)), (Arm::Off, period(f64::NAN))];
            report.round(periods, &mut harms);
        }
        assert!(!report.can_tell(&harms));
        let judged = report.judge(&harms).remove(0);
        assert_eq!((judged.verdict, judged.why.as_deref()), (Verdict::TooShort, Some(TOO_MANY_LOST)));
        let text = report.text(&judged);
        let line = text.lines().find(|line| line.starts_with(METRIC.name)).unwrap();
        assert_eq!(line.split_whitespace().filter(|word| *word == "unknown").count(), 4, "{text}");
        let json = report.result(&judged);
        let metric = &json["outcomes"]["metric"];
        assert_eq!((&metric["rounds"], &metric["off"], &metric["mean"]), (&0.into(), &Value::Null, &Value::Null));
        assert_eq!((&metric["p"], &metric["relative"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn a_strip_has_zero_in_the_middle() {
        for (mean, low, high, strip) in [
            (5.0, 2.5, 10.0, "          │  ├─●────┤"),
            (-5.0, -10.0, 10.0, "├────●────┼─────────┤"),
            (-8.0, -10.0, -6.0, "├─●─┤     │          "),
            (4.0, 0.0, 10.0, "          ├───●─────┤"),
            (0.0, 0.0, 0.0, "          ●          "),
        ] {
            assert_eq!(super::strip(mean, low, high, 21), strip);
        }
    }
}
