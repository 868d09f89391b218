//! What `arc-guarded` promises is what becomes of the process on the thesis's machine: with its
//! memory, without it, or where it is.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::path::Path;
use std::sync::{Arc, Mutex};

use placement::{Plan, Policy, Snapshot, Traits};
use simulate::{Outcome, ScenarioFile, run};
use topology::Topology;

/// The first plan that moves something, and when it was made.
type First = Arc<Mutex<Option<(f64, Plan)>>>;

/// A policy whose plans are looked at.
struct Watched(Box<dyn Policy>, First);

impl Policy for Watched {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn traits(&self) -> Traits {
        self.0.traits()
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        let plan = self.0.decide(topology, snapshot);
        let mut first = self.1.lock().unwrap();
        if first.is_none() && !plan.moves.is_empty() {
            *first = Some((snapshot.time_s, plan.clone()));
        }
        plan
    }
}

/// simpleread on the thesis's machine (its bandwidths as in `reproduce`), on the node that does not
/// have the file.
fn scenario(process: &str, file: &str) -> ScenarioFile {
    let text = format!(
        r#"
duration_s = 600
[machine]
nodes = 2
cpus = 8
memory = "24 GB"
read_bw = "18.4051 GB/s"
write_bw = "18.4051 GB/s"
interconnect = "9.284 GB/s"
[engine]
window_s = 0.02
dwell_s = 0.0
cooldown_s = 0.0
[[workload]]
kind = "simpleread"
fs = "zfs"
data = 0
start = 1
file_size = "{file}"
read_size = "1 MiB"
process_size = "{process}"
"#
    );
    ScenarioFile::parse(&text, Path::new("guard.toml")).unwrap()
}

fn ran(scenario: &ScenarioFile, policy: Option<Box<dyn Policy>>) -> f64 {
    let outcome: Outcome = run(&scenario.scenario, policy, scenario.seed).unwrap();
    outcome.workloads[0].runtime_s.unwrap()
}

/// The gain that a plan promises, as a fraction of the run time that is left.
fn promised(plan: &Plan) -> f64 {
    let why = plan.moves[0].why.text().into_owned();
    let (_, gain) = why.split_once("of memory, ").unwrap();
    gain.split_once(" %").unwrap().0.parse::<f64>().unwrap() / 100.0
}

/// 1 GiB of process and a file of 4 GiB: the guard promised 3.5 % and the process lost 6.6 %.
/// Today's plans are within a percent of what they promise, and moving the memory would never have
/// been better.
#[test]
fn the_guards_promise_is_what_the_simulated_process_gains() {
    let policy = |name| placement::policy(name, &placement::nthread::Settings::default()).unwrap();
    let (mut with_memory, mut without) = (0, 0);
    for process in ["1 MB", "100 MiB", "500 MiB", "1 GiB"] {
        for file in ["1 GiB", "2 GiB", "4 GiB", "8 GiB", "16 GiB"] {
            let scenario = scenario(process, file);
            let first = First::default();
            let stays_s = ran(&scenario, None);
            let guarded_s = ran(&scenario, Some(Box::new(Watched(policy("arc-guarded"), Arc::clone(&first)))));
            let greedy_s = ran(&scenario, Some(policy("arc")));
            let (decided_s, plan) = first.lock().unwrap().take().unwrap();
            let left_s = stays_s - decided_s;
            let [gained, greedy] = [guarded_s, greedy_s].map(|run_s| (stays_s - run_s) / left_s);
            let what = format!("{process}, {file}: gained {gained:.3}, with memory {greedy:.3}: {:?}", plan.moves);
            assert!((gained - promised(&plan)).abs() < 0.01 && gained > 0.0, "{what}");
            assert!(gained > greedy - 0.005, "{what}");
            *if plan.moves[0].subject.is_process() { &mut with_memory } else { &mut without } += 1;
        }
    }
    assert!(with_memory > 5 && without > 5, "{with_memory} with, {without} without");
}
