//! `homenode plan`: shows which threads would move, and why.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use command::args::{Global, PolicyArgs};
use observe::Scope;
use placement::Policy;
use session::policies::{self, Programs};

use crate::commands::{plane, rules};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::options::ObserveArgs;
use crate::output::limits::Limits;
use crate::output::{self, words};
use crate::recording;

/// `homenode plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// How to decide.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// Decide from this snapshot (`-` for stdin) instead of observing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["window", "exact", "steady", "pid", "unit", "not_unit", "cgroup", "touch_own_affinity", "beside_sched_ext"])]
    pub snapshot: Option<PathBuf>,
}

/// Prints the plan for a snapshot file, or for one window of this machine.
pub fn run(global: &Global, args: &PlanArgs) -> Result<Exit, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let programs = Programs::waited_for(args.policy.policy_user.as_deref());
    let by_rules =
        args.snapshot.is_none() && rules::apply(&config, &args.observe.scope) && rules::may(&args.policy, true)?;
    let mut policy: Box<dyn Policy> = match by_rules {
        true => Box::new(policies::by_rules(&config)?),
        false => policies::chosen(&args.policy, &config, &programs)?,
    };
    let (snapshot, limits) = match &args.snapshot {
        Some(path) => (recording::read_snapshot(path)?, Limits::recorded(global.verbose)),
        None => {
            let window = Duration::from_secs_f64(args.observe.window.unwrap_or(config.engine.window_s));
            let scope = match by_rules {
                true => Scope::Ruled(config.rules()),
                false => plane::scope(&args.observe.scope, None)?,
            };
            let mut plane = plane::open(&config, &args.observe, scope, policy.traits(), false)?;
            (plane::observe(&mut plane, window)?, Limits::of(plane.limits(), global.verbose))
        }
    };
    let topology = snapshot.topology();
    let plan = policy.decide(&topology, &snapshot);
    policies::ended(&*policy)?;
    output::tell(global.json, &plan, || {
        let less = policies::without_bandwidth(&*policy, &topology);
        let less = less.map(|less| format!("policy {}: {less}", policy.name()));
        words::plan(&plan, &snapshot, &limits) + &output::notes(less)
    })?;
    Ok(Exit::Done)
}
