//! Contenders that take turns, and what is said of them.

use std::hint::black_box;
use std::time::Instant;

use crate::{Result, quartiles};

/// One way to do an operation.
pub struct Contender<'a> {
    name: String,
    /// Gets the number of the call.
    call: Box<dyn FnMut(usize) -> Result<()> + 'a>,
    /// Puts things back between two batches.
    reset: Box<dyn FnMut() -> Result<()> + 'a>,
}

impl<'a> Contender<'a> {
    pub fn new(name: impl Into<String>, call: impl FnMut(usize) -> Result<()> + 'a) -> Self {
        Self { name: name.into(), call: Box::new(call), reset: Box::new(|| Ok(())) }
    }

    pub fn reset(self, reset: impl FnMut() -> Result<()> + 'a) -> Self {
        Self { reset: Box::new(reset), ..self }
    }
}

/// Quartiles of each value relative to the one of the same round.
pub fn relative(values: &[f64], to: &[f64]) -> [f64; 3] {
    quartiles(values.iter().zip(to).map(|(value, to)| value / to).collect())
}

pub fn fastest(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::MAX, f64::min)
}

/// What to measure.
pub struct Rounds {
    pub rounds: usize,
    /// Only operations with this in their names.
    pub only: Option<String>,
}

impl Rounds {
    pub fn wants(&self, what: &str) -> bool {
        self.only.as_ref().is_none_or(|only| what.contains(only.as_str()))
    }

    /// A batch of `calls` calls of each contender in each round. Prints a line for each: ns of a
    /// call in the median batch and in the fastest, and how many times as long as the first
    /// contender of the same round it took, median and quartiles; and how many times as long as the
    /// second, which is the other limit where there are two.
    pub fn compare(&self, what: &str, calls: usize, mut contenders: Vec<Contender<'_>>) -> Result<()> {
        if !self.wants(what) {
            return Ok(());
        }
        let mut times = vec![Vec::new(); contenders.len()];
        for round in 0..self.rounds {
            for (contender, times) in contenders.iter_mut().zip(&mut times) {
                let begin = Instant::now();
                (round * calls..(round + 1) * calls).try_for_each(&mut contender.call)?;
                times.push(begin.elapsed().as_nanos() as f64 / calls as f64);
                (contender.reset)()?;
            }
        }
        let first = times.first().cloned().unwrap_or_default();
        let second = times.get(1).cloned().unwrap_or_default();
        for (contender, times) in contenders.iter().zip(&times) {
            let [low, median, high] = relative(times, &first);
            let [_, other, _] = relative(times, &second);
            println!(
                "| {what} | {} | {} | {} | {median:.2} ({low:.2}–{high:.2}) | {other:.2} | {:.2} |",
                contender.name,
                time(quartiles(times.clone())[1]),
                time(fastest(times)),
                fastest(times) / fastest(&first),
            );
        }
        Ok(())
    }
}

pub fn time(ns: f64) -> String {
    match ns {
        ..1e4 => format!("{ns:.0} ns"),
        1e4..1e7 => format!("{:.1} µs", ns / 1e3),
        _ => format!("{:.1} ms", ns / 1e6),
    }
}

/// The `i`-th of `count` things, in an order that looks random.
pub fn random(i: usize, count: usize) -> usize {
    ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % black_box(count).max(1)
}
