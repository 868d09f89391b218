//! Prints what every policy decides, so that two versions of homenode can be compared.
//!
//! **Problem.** A change of the code's shape must not change a plan.
//!
//! **Approach.** `homenode-bench plans [SCENARIOS [SEED]]` runs every policy on the papers' scenarios and on this
//! many random ones (default 300, seed 1), and prints one line for each: the scenario, the policy,
//! the number of windows, a hash of all moves (what goes where), one of all plans in their JSON
//! form (with every figure of every reason), one of all snapshots, and the number of threads,
//! processes and files moved. `diff` of two outputs names the runs that differ. With
//! `PLANS_OF="SCENARIO/POLICY"` it prints every snapshot and plan of that run instead.
//!
//! **Limits.** Simulated windows only; `homenode replay` compares plans of recorded ones.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};

use placement::{Plan, Policy, Snapshot, Traits};
use simulate::parallel;
use simulate::regret::{self, experiments};
use simulate::scenario::ScenarioFile;
use topology::Topology;

use crate::Result;

/// Hashes of what a policy saw and decided.
#[derive(Default)]
struct Seen {
    windows: usize,
    moves: DefaultHasher,
    snapshots: DefaultHasher,
    plans: DefaultHasher,
}

/// A policy that is listened to.
struct Recorded {
    policy: Box<dyn Policy>,
    seen: Arc<Mutex<Seen>>,
    print: bool,
}

impl Policy for Recorded {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        let plan = self.policy.decide(topology, snapshot);
        let before = serde_json::to_string(snapshot).unwrap_or_default();
        let after = plan.to_json().unwrap_or_default();
        if self.print {
            println!("{before}\n{after}");
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.windows += 1;
        seen.moves.write(moves(&after).as_bytes());
        seen.snapshots.write(before.as_bytes());
        seen.plans.write(after.as_bytes());
        plan
    }

    fn period_s(&self) -> f64 {
        self.policy.period_s()
    }

    fn traits(&self) -> Traits {
        self.policy.traits()
    }

    fn data_period_s(&self) -> f64 {
        self.policy.data_period_s()
    }
}

/// The moves of a plan without their reasons.
fn moves(plan: &str) -> String {
    let mut plan: serde_json::Value = serde_json::from_str(plan).unwrap_or_default();
    let mut moves = plan["moves"].take();
    for one in moves.as_array_mut().into_iter().flatten() {
        if let Some(one) = one.as_object_mut() {
            one.remove("why");
        }
    }
    format!("{moves}{}\n", plan["keeps"])
}

/// One line for each policy.
fn lines(file: &ScenarioFile, only: Option<&str>) -> String {
    let mut lines = String::new();
    for (name, _) in placement::POLICIES {
        let label = format!("{}/{name}", file.scenario.name());
        if only.is_some_and(|only| only != label) {
            continue;
        }
        let Some(policy) = placement::policy(name, &file.nthread) else { continue };
        let seen = Arc::new(Mutex::new(Seen::default()));
        let policy = Recorded { policy, seen: Arc::clone(&seen), print: only.is_some() };
        match simulate::run::run(&file.scenario, Some(Box::new(policy)), file.seed) {
            Ok(outcome) => {
                let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                let (windows, same) = (seen.windows, seen.moves.finish());
                let (snapshots, plans) = (seen.snapshots.finish(), seen.plans.finish());
                let moves = outcome.moves;
                lines += &format!(
                    "{label}\t{windows}\t{same:016x}\t{plans:016x}\t{snapshots:016x}\t{} {} {}\n",
                    moves.threads, moves.processes, moves.files
                );
            }
            Err(error) => lines += &format!("{label}\t{error}\n"),
        }
    }
    lines
}

pub fn main(args: &[&str]) -> Result<()> {
    let number = |n: usize, default| args.get(n).map_or(Ok(default), |arg| arg.parse::<u64>());
    let (random, seed) = (number(0, 300)?, number(1, 1)?);
    let only = std::env::var("PLANS_OF").ok();
    let papers = experiments::all();
    let numbers: Vec<usize> = (0..papers.len() + random as usize).collect();
    let text = |i: &usize| match regret::nth(&papers, seed, *i) {
        Ok(file) => lines(&file, only.as_deref()),
        Err(error) => format!("{i}\t{error}\n"),
    };
    print!("{}", parallel::each(&numbers, parallel::workers(), text).concat());
    Ok(())
}
