//! A policy's effect on a load as a trial finds it.
//!
//! **Problem.** A ratio of means says nothing of chance, and policies that always run in the same
//! order meet the same drift of the machine.
//!
//! **Approach.** As `homenode trial` on a live load: in each round the lot gives the order in which
//! a load runs under *off* and under each policy, and [`judge`] compares within rounds. A period is
//! a run here, from the same image of the volume, so nothing of one is left for the next.
//!
//! **Limits.** The rounds must be those that the lot ordered: runs of another measurement do not
//! count ([`check`]).

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};

use anyhow::{Context, Result, ensure};
use trial::{Arm, Better, Effect, Settings, Verdict, judge, order};

use super::{Args, Figure, Key, name};

/// What is run in a round, each load's policies in the order of the lot.
pub struct Order {
    seed: u64,
}

impl Order {
    pub fn by_lot() -> Self {
        Self { seed: RandomState::new().hash_one("volume") }
    }

    /// The keys of a round; those of a load are together.
    pub fn of(&self, round: usize, keys: &[Key]) -> Vec<Key> {
        let mut all = Vec::with_capacity(keys.len());
        for (n, load) in keys.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).enumerate() {
            let seed = self.seed.wrapping_add(n as u64);
            let places = order(seed, round as u64, load.len().saturating_sub(1)).into_iter().map(|arm| match arm {
                Arm::Off => 0,
                Arm::On(policy) => policy + 1,
            });
            all.extend(places.filter_map(|place| load.get(place)));
        }
        all
    }
}

/// Refuses what is no trial: a load without *off* or without a policy, and runs that no lot
/// ordered.
pub fn check(args: &Args, figures: &[Figure], keys: &[Key], done: usize) -> Result<()> {
    ensure!(
        args.add.is_empty() && done == 0,
        "--trial needs runs of its own: an --out without runs.jsonl, and no --add"
    );
    for load in keys.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let offs = load.iter().filter(|key| is_off(figures, **key)).count();
        ensure!(offs == 1 && load.len() > 1, "--trial compares policies with off: see --policy");
    }
    Ok(())
}

pub fn is_off(figures: &[Figure], key: Key) -> bool {
    figures.get(key.0).and_then(|figure| figure.series.get(key.2)).is_some_and(|(policy, _)| *policy == "off")
}

/// The table of the verdicts, from the values of each key's runs.
pub fn table<'a>(figures: &[Figure], keys: &[Key], values: impl Fn(Key) -> &'a [f64]) -> Result<String> {
    let mut text = String::from(
        "| figure, load | policy | rounds | off | change | 95 % interval | p | smallest seen | verdict |\n\
         | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n",
    );
    for load in keys.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let off = load.iter().find(|key| is_off(figures, **key)).context("a load without off")?;
        let settings = Settings::of(load.len() - 1);
        for key in load.iter().filter(|key| *key != off) {
            let rounds: Vec<(f64, f64)> = values(*off).iter().copied().zip(values(*key).iter().copied()).collect();
            let [paper, figure, load, policy] = name(figures, *key);
            let row = row(&judge(&rounds, Better::Higher, &settings));
            writeln!(text, "| {paper} {figure}, {load} | {policy} | {row} |")?;
        }
    }
    Ok(text)
}

fn row(effect: &Effect) -> String {
    let share = |value: Option<f64>| {
        let share = value.and_then(|value| effect.relative(value));
        share.map_or("–".to_owned(), |share| format!("{:+.1} %", 100.0 * share))
    };
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.3}"));
    let verdict = match effect.verdict {
        Verdict::Helps => "helps",
        Verdict::Hurts => "hurts",
        Verdict::NoDifferenceSeen => "no difference seen",
        Verdict::TooShort | Verdict::NoVerdict => "too few rounds",
    };
    format!(
        "{} | {} | {} | {} to {} | {} | {} | {verdict}",
        effect.rounds,
        number(effect.off),
        share(effect.mean),
        share(effect.low),
        share(effect.high),
        number(effect.p),
        share(effect.smallest),
    )
}
