//! `homenode simulate`: what policies would do on a machine that is not there.

mod regret;
mod table;

use std::path::Path;

use indicatif::ProgressBar;
use serde_json::json;
use simulate::run::{RunError, WindowOutcome, run_with};
use simulate::{Outcome, Scenario, ScenarioError, ScenarioFile, WhatIf, random};

use command::args::{Global, SimulateArgs};
use command::config::Config;
use command::exit::{Exit, Failure};
use command::output::{self, progress};
use command::{machine, recording};

/// Seed where neither the user nor a scenario file says one.
const SEED: u64 = 1;

/// Runs what was asked for and prints how it went.
pub fn run(global: &Global, args: &SimulateArgs) -> Result<Exit, Failure> {
    if let Some(scenarios) = args.regret {
        return regret::run(global, scenarios, args.seed.unwrap_or(SEED), args.unknown);
    }
    if let (Some(index), true) = (args.random, args.print) {
        output::print(&random::text(args.seed.unwrap_or(SEED), index))?;
        return Ok(Exit::Done);
    }
    let load = match (&args.scenario, args.random, &args.snapshot, &args.topology) {
        (Some(path), .., None) => Load::file(ScenarioFile::read(path), args.seed),
        (Some(path), .., Some(topology)) => Load::file(ScenarioFile::read_on(path, topology), args.seed),
        // The seed is part of a random scenario's name; where its threads start is its own.
        (_, Some(index), ..) => Load::file(random::scenario(args.seed.unwrap_or(SEED), index), None),
        (.., Some(snapshot), Some(topology)) => Load::snapshot(global, snapshot, topology, args.seed),
        _ => Err(Failure::new(Exit::Usage, "simulate", "there is nothing to simulate")),
    }?;
    load.compare(global, &args.policy)
}

/// The run, with its defaults.
struct Load {
    what: What,
    seed: u64,
    policy: String,
    nthread: placement::nthread::Settings,
}

enum What {
    File(Box<Scenario>),
    Recorded(Box<WhatIf>),
}

impl What {
    fn scenario(&self) -> &Scenario {
        match self {
            Self::File(scenario) => scenario,
            Self::Recorded(whatif) => whatif.scenario(),
        }
    }
}

impl Load {
    fn file(file: Result<ScenarioFile, ScenarioError>, asked: Option<u64>) -> Result<Self, Failure> {
        let ScenarioFile { scenario, policy, seed, nthread } =
            file.map_err(|e| Failure::from_error(Exit::Usage, "cannot simulate", &e))?;
        Ok(Self { what: What::File(Box::new(scenario)), seed: asked.unwrap_or(seed), policy, nthread })
    }

    fn snapshot(global: &Global, snapshot: &Path, topology: &Path, asked: Option<u64>) -> Result<Self, Failure> {
        let config = Config::load(global.config.as_deref())?;
        let machine = machine::read(topology, &config)?;
        let name = format!("{} on {}", snapshot.display(), topology.display());
        let whatif = WhatIf::new(&recording::read_snapshot(snapshot)?, machine, &name)
            .map_err(|e| Failure::from_error(Exit::Usage, format!("cannot simulate {name}"), &e))?;
        let policy = "auto".to_owned();
        Ok(Self {
            what: What::Recorded(Box::new(whatif)),
            seed: asked.unwrap_or(SEED),
            policy,
            nthread: config.nthread,
        })
    }

    fn compare(&self, global: &Global, asked: &[String]) -> Result<Exit, Failure> {
        let policies = self.policies(asked);
        let scenario = self.what.scenario();
        let bar = bar(global.json, (scenario.windows() * policies.len()) as u64, "windows");
        let mut outcomes: Vec<Outcome> = Vec::new();
        for name in &policies {
            bar.set_message(name.clone());
            let outcome = self.run(name, &|_| bar.inc(1));
            outcomes.push(outcome.map_err(|e| Failure::from_error(Exit::Usage, format!("simulate {name}"), &e))?);
        }
        bar.finish_and_clear();
        let recorded = match &self.what {
            What::Recorded(whatif) => Some(whatif.recorded()),
            What::File(_) => None,
        };
        if global.json {
            let mut all = json!({"scenario": scenario.name(), "outcomes": outcomes});
            if let Some(recorded) = recorded {
                all["recorded"] = json!(recorded);
            }
            output::print_json(&all)?;
        } else {
            output::print(&table::text(scenario, recorded, &outcomes))?;
        }
        Ok(Exit::Done)
    }

    fn run(&self, name: &str, after: &dyn Fn(&WindowOutcome)) -> Result<Outcome, RunError> {
        let policy = placement::policy(name, &self.nthread);
        match &self.what {
            What::File(scenario) => run_with(scenario, policy, self.seed, after),
            What::Recorded(whatif) => whatif.run(policy, self.seed, after),
        }
    }

    /// Each policy once, in the order asked for.
    fn policies(&self, asked: &[String]) -> Vec<String> {
        let default = ["none".to_owned(), self.policy.clone()];
        let asked = if asked.is_empty() { &default[..] } else { asked };
        let mut policies: Vec<String> = Vec::new();
        for name in asked {
            let names: Vec<&str> = match name.as_str() {
                "all" => std::iter::once("none").chain(placement::POLICIES.iter().map(|p| p.0)).collect(),
                name => vec![name],
            };
            for name in names {
                if !policies.iter().any(|p| p == name) {
                    policies.push(name.to_owned());
                }
            }
        }
        policies
    }
}

/// A bar that counts `what` to `length`.
fn bar(json: bool, length: u64, what: &str) -> ProgressBar {
    progress::bar(json, length, &format!("{{msg}} {{wide_bar}} {{pos}} of {{len}} {what}  {{eta}} left"))
}
