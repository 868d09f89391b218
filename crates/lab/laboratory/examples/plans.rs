//! Prints what every policy decides, so that two versions of homenode can be compared.
//!
//! **Problem.** A change of the code's shape must not change a plan.
//!
//! **Approach.** `cargo run --release -p homenode-laboratory --example plans -- [SCENARIOS [SEED]]`
//! runs every policy on the laboratory's figures, on each group of bars at a time, and on this many
//! random machines (default 300, seed 1), and prints one line for each: the scenario, policy,
//! number of windows, a hash of all moves (what goes where), one of all plans in their JSON form
//! (with every figure of every reason), and one of all snapshots. `diff` of two outputs names the
//! runs that differ. With `PLANS_OF="SCENARIO/POLICY"` it prints each snapshot and plan of that run
//! instead.
//!
//! **Limits.** The laboratory's windows only; `homenode replay` compares plans of recorded ones.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};

use laboratory::experiment::{Case, Error, Experiment, FIGURES, Policies, Rails, Series, Where};
use laboratory::regret::draw;
use placement::{Plan, Policy, Snapshot, Traits, nthread};
use topology::Topology;

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

/// The line of a policy on what `run` runs.
fn line(label: &str, print: bool, run: impl FnOnce(Policies) -> Result<(), Error>) -> String {
    let (seen, own) = (Arc::new(Mutex::new(Seen::default())), Policies::default());
    let to = Arc::clone(&seen);
    let policies = Policies(Arc::new(move |name, settings, seed| {
        Ok(Box::new(Recorded { policy: own.0(name, settings, seed)?, seen: Arc::clone(&to), print }))
    }));
    if let Err(error) = run(policies) {
        return format!("{label}\t{error}\n");
    }
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let (moves, plans, snapshots) = (seen.moves.finish(), seen.plans.finish(), seen.snapshots.finish());
    format!("{label}\t{}\t{moves:016x}\t{plans:016x}\t{snapshots:016x}\n", seen.windows)
}

/// One group of bars of a figure under a policy.
fn on_figure(mut experiment: Experiment, point: usize, policy: &str, policies: Policies) -> Result<(), Error> {
    experiment.policies = policies;
    let like = experiment.series.iter().find(|series| series.policy.is_some());
    let own = Series {
        name: policy.to_owned(),
        placement: Where::Local,
        policy: Some(policy.to_owned()),
        nthread: nthread::Settings::default(),
        rails: Rails::Homenode,
        extra: false,
        ..like.or(experiment.series.first()).cloned().ok_or(Error::Ended("no series".to_owned()))?
    };
    experiment.series = vec![own];
    experiment.run(Case { point, series: 0 }, 1).map(|_| ())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default| args.get(n).map_or(Ok(default), |arg| arg.parse::<u64>());
    let (random, seed) = (number(0, 300)? as u32, number(1, 1)?);
    let only = std::env::var("PLANS_OF").ok();
    let wanted = |label: &str| only.as_deref().is_none_or(|only| only == label);
    let print = only.is_some();
    for (figure, text) in FIGURES {
        let experiment = Experiment::parse(text)?;
        for (at, point) in experiment.point.iter().enumerate() {
            for (policy, _) in placement::POLICIES {
                let label = format!("{figure}, {}/{policy}", point.name);
                if wanted(&label) {
                    let run = |policies| on_figure(experiment.clone(), at, policy, policies);
                    print!("{}", line(&label, print, run));
                }
            }
        }
    }
    for scenario in 0..random {
        for (policy, _) in placement::POLICIES {
            let label = format!("{scenario} of seed {seed}/{policy}");
            if wanted(&label) {
                let run = |policies| draw(seed, scenario).with_policies(policies).with(Some(policy)).map(|_| ());
                print!("{}", line(&label, print, run));
            }
        }
    }
    Ok(())
}
