//! Trials of loads that are made up: false alarms, power and coverage as stated, the early stop
//! included.
//!
//! Each series has values of one second. The effect is known, and so is what a policy cannot help:
//! drift, memory, bursts, a daily swing, steps, and surges.

use trial::{Arm, Better, Harm, Settings, Verdict, judge, order};

/// A generator of its own, so that no test shares numbers with the lot.
struct Numbers(u64);

impl Numbers {
    fn uniform(&mut self) -> f64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

#[derive(Clone, Copy, Debug)]
enum Load {
    /// Independent values.
    White,
    /// Each value is nine tenths of the one before.
    Memory,
    /// Falls to half in the course of the trial.
    Drift,
    /// One second of twenty has twenty times as much.
    Bursts,
    /// Changes its level for good now and then.
    Steps,
    /// Swings with a period near that of a round.
    Swing,
    /// Comes to a multiple or a fraction of its level, and stays there for some ten seconds.
    Surges,
}

const LOADS: [Load; 7] = [Load::White, Load::Memory, Load::Drift, Load::Bursts, Load::Steps, Load::Swing, Load::Surges];

/// Seconds of a period that count, and of its wash-out.
const COUNTED: usize = 8;
const WASH_OUT: usize = 2;

struct Trial {
    verdict: Verdict,
    low: f64,
    high: f64,
    smallest: f64,
    stopped: bool,
}

/// A trial in which the policy adds `effect` to each value, whose level is 100.
fn run(load: Load, rounds: usize, effect: f64, seed: u64) -> Trial {
    let settings = Settings { draws: 999, ..Settings::of(1) };
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..8).for_each(|_| {
        numbers.uniform();
    });
    let all = (rounds * 2 * (COUNTED + WASH_OUT)) as f64;
    let (mut second, mut before, mut level) = (0.0, 0.0, 100.0);
    let phase = numbers.uniform();
    let mut value = |on: bool| {
        second += 1.0;
        let own = match load {
            Load::White => numbers.normal() * 5.0,
            Load::Memory => {
                before = 0.9 * before + numbers.normal() * 2.0;
                before
            }
            Load::Drift => -50.0 * second / all + numbers.normal() * 3.0,
            Load::Bursts => {
                if numbers.uniform() < 0.05 {
                    2000.0 * numbers.uniform()
                } else {
                    numbers.normal()
                }
            }
            Load::Steps => {
                if numbers.uniform() < 0.02 {
                    level += numbers.normal() * 20.0;
                }
                numbers.normal()
            }
            Load::Surges => {
                before = 0.9 * before + numbers.normal() * 0.4;
                level * (before.exp() - 1.0)
            }
            Load::Swing => 30.0 * (std::f64::consts::TAU * (second / 19.0 + phase)).sin() + numbers.normal(),
        };
        level + own + if on { effect } else { 0.0 }
    };
    let mut harm = Harm::new(&settings);
    let mut found = Vec::new();
    for round in 0..rounds {
        let (mut off, mut on) = (0.0, 0.0);
        for arm in order(seed, round as u64, 1) {
            let is_on = arm != Arm::Off;
            (0..WASH_OUT).for_each(|_| {
                value(is_on);
            });
            let mean = (0..COUNTED).map(|_| value(is_on)).sum::<f64>() / COUNTED as f64;
            if is_on { on = mean } else { off = mean }
        }
        found.push((off, on));
        harm.round(off, on, Better::Higher);
        if harm.clear() {
            break;
        }
    }
    let judged = judge(&found, Better::Higher, &settings);
    let verdict = if harm.clear() { Verdict::Hurts } else { judged.verdict };
    Trial {
        verdict,
        low: judged.low.unwrap_or(f64::NEG_INFINITY),
        high: judged.high.unwrap_or(f64::INFINITY),
        smallest: judged.smallest.unwrap_or(f64::INFINITY),
        stopped: harm.clear(),
    }
}

/// Share of trials for which this holds.
fn share(trials: u64, holds: impl Fn(u64) -> bool) -> f64 {
    (0..trials).filter(|seed| holds(*seed)).count() as f64 / trials as f64
}

/// Trials of each kind: all of them together are 12,000. `HOMENODE_TRIALS` is for each.
fn trials() -> u64 {
    std::env::var("HOMENODE_TRIALS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000)
}

#[test]
fn no_more_than_5_percent_false_alarms() {
    let (mut alarms, mut all) = (0.0, 0.0);
    for load in LOADS {
        for rounds in [8, 16] {
            let wrong =
                share(trials(), |seed| matches!(run(load, rounds, 0.0, seed).verdict, Verdict::Helps | Verdict::Hurts));
            println!("{load:?}, {rounds} rounds: {:.1} % false alarms", 100.0 * wrong);
            // Three standard deviations of a share of 5 %.
            assert!(wrong <= 0.05 + 3.0 * (0.05 * 0.95 / trials() as f64).sqrt(), "{load:?} {rounds}: {wrong}");
            (alarms, all) = (alarms + wrong, all + 1.0);
        }
    }
    println!("{:.2} % of {} trials", 100.0 * alarms / all, all * trials() as f64);
    assert!(alarms / all <= 0.05, "{}", alarms / all);
}

/// Of a trial as long as the default, and of one that goes on.
#[test]
fn the_early_stop_alone_is_wrong_once_in_200_and_at_most_once_in_100() {
    for (rounds, most) in [(15, 0.005), (40, 0.01)] {
        let all = 2 * trials() * LOADS.len() as u64;
        let wrong = share(all, |seed| run(LOADS[seed as usize % LOADS.len()], rounds, 0.0, seed).stopped);
        println!("{:.2} % of {all} trials of {rounds} rounds stop early without an effect", 100.0 * wrong);
        assert!(wrong <= most, "{rounds}: {wrong}");
    }
}

/// A loss of nine tenths ended a trial in its ninth round, as one of half did.
#[test]
fn a_loss_of_nine_tenths_ends_a_trial_in_its_second_round() {
    for (load, effect, rounds) in [(Load::White, -90.0, 2), (Load::Memory, -90.0, 2), (Load::White, -70.0, 5)] {
        let ended = share(trials(), |seed| run(load, rounds, effect, seed).stopped);
        println!("{load:?}: {effect} of 100 ends {:.1} % within {rounds} rounds", 100.0 * ended);
        assert!(ended >= 0.95, "{load:?} {effect}: {ended}");
    }
}

#[test]
fn an_effect_of_the_stated_size_is_seen_as_often_as_stated() {
    for load in [Load::White, Load::Memory] {
        for rounds in [8, 16, 30] {
            // What trials state on average, squared as variances are.
            let stated = (0..200).map(|seed| run(load, rounds, 0.0, 1_000_000 + seed).smallest.powi(2)).sum::<f64>();
            let stated = (stated / 200.0).sqrt();
            let seen = share(trials(), |seed| run(load, rounds, stated, seed).verdict == Verdict::Helps);
            println!("{load:?}, {rounds} rounds: an effect of {stated:.2} is seen in {:.1} %", 100.0 * seen);
            assert!((seen - 0.8).abs() <= 0.05, "{load:?} {rounds}: {seen}");
        }
    }
}

#[test]
fn the_interval_holds_the_effect_in_95_of_100() {
    for load in LOADS {
        let held = share(trials(), |seed| {
            let trial = run(load, 16, 7.0, seed);
            trial.low <= 7.0 && 7.0 <= trial.high
        });
        println!("{load:?}: {:.1} % of intervals hold the effect", 100.0 * held);
        assert!(held >= 0.95 - 3.0 * (0.05 * 0.95 / trials() as f64).sqrt(), "{load:?}: {held}");
    }
}

#[test]
fn harm_stops_a_trial_early_and_help_does_not() {
    let harmed = |seed| run(Load::Memory, 30, -20.0, seed).stopped;
    assert!(share(trials() / 4, harmed) > 0.95);
    let helped = |seed| run(Load::Memory, 30, 20.0, seed).stopped;
    assert_eq!(share(trials() / 4, helped), 0.0);
}
