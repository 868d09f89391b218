//! Policies as the commands choose and describe them.

use std::collections::HashMap;
use std::sync::Arc;

use command::args::{PROGRAM, PolicyArgs, SOCKET};
use command::config::Config;
use command::exit::{Exit, Failure};
use placement::Policy;
use placement::by_rule::{ByRule, Part};
use topology::{NodeId, Topology};

use crate::external::program::{Behind, Here, Keeper, Program, User};
use crate::external::{ANSWER, External, Patience};

pub struct Programs {
    patience: Patience,
    user: Option<String>,
    keepers: HashMap<String, Arc<Keeper>>,
}

impl Programs {
    /// For a command that only decides, and waits for each answer.
    pub fn waited_for(user: Option<&str>) -> Self {
        Self { patience: Patience::Waits(ANSWER), user: user.map(str::to_owned), keepers: HashMap::new() }
    }

    /// For a loop with these policies, which waits for none. Call it before privileges are given
    /// up: each program gets its keeper here.
    pub fn kept<'a>(policies: impl IntoIterator<Item = &'a str>, user: Option<&str>) -> Result<Self, Failure> {
        let mut programs = Self { patience: Patience::Window, ..Self::waited_for(user) };
        for policy in policies {
            let Some(command) = policy.strip_prefix(PROGRAM) else { continue };
            let failed = |why: String| Failure::new(Exit::Usage, format!("policy {policy}"), why);
            let keeper = Keeper::start(command, User::of(user).map_err(failed)?).map_err(failed)?;
            programs.keepers.insert(policy.to_owned(), Arc::new(keeper));
        }
        Ok(programs)
    }

    /// The program of this policy, started; `None` for a policy of homenode's.
    fn start(&self, policy: &str) -> Option<Result<External, String>> {
        let start = |prefix, program| External::start(prefix, program, 0, self.patience);
        if let Some(path) = policy.strip_prefix(SOCKET) {
            return Some(start(SOCKET, Arc::new(Behind::new(path))));
        }
        let command = policy.strip_prefix(PROGRAM)?;
        Some(match self.keepers.get(policy) {
            Some(keeper) => start(PROGRAM, Arc::clone(keeper) as Arc<dyn Program>),
            None => User::of(self.user.as_deref()).and_then(|user| start(PROGRAM, Arc::new(Here::new(command, user)))),
        })
    }
}

/// The policy that the user chose, with the settings of homenode.toml and of the command line, or
/// the program.
pub fn chosen(args: &PolicyArgs, config: &Config, programs: &Programs) -> Result<Box<dyn Policy>, Failure> {
    let name = args.name();
    if let Some(started) = programs.start(name) {
        let failed = |why| Failure::new(Exit::Usage, format!("policy {name}"), why);
        return Ok(Box::new(started.map_err(failed)?));
    }
    let (mut nthread, dragonfly) = (config.nthread.clone(), config.dragonfly.clone());
    nthread.locality_margin = args.margin.unwrap_or(nthread.locality_margin);
    nthread.min_bytes = args.min_bytes.unwrap_or(nthread.min_bytes);
    let auto = placement::auto::Settings { min_bytes: nthread.min_bytes, ..config.auto.clone() };
    let (npolicy, arc, promote) = (config.npolicy.clone(), config.arc.clone(), config.promote.clone());
    placement::policy_with(name, &placement::Settings { nthread, dragonfly, npolicy, arc, promote, auto })
        .ok_or_else(|| Failure::new(Exit::Usage, format!("policy {name}"), "no policy has this name"))
}

/// The policies of `[[service]]` in homenode.toml, each for its own services. Rules with the same
/// policy and settings share one.
pub fn by_rules(config: &Config) -> Result<ByRule, Failure> {
    let mut parts: Vec<(Part, &str, &placement::Settings)> = Vec::new();
    for service in &config.service {
        let (Some(name), settings, budget) = (service.policy(), &service.settings, service.bytes_per_day) else {
            continue;
        };
        let shared = parts.iter_mut().find(|(part, policy, of)| {
            budget.is_infinite() && part.bytes_per_day.is_infinite() && (*policy, *of) == (name, settings)
        });
        match shared {
            Some((part, ..)) => part.rules.push(Some(service.name())),
            None => {
                let policy = placement::policy_with(name, settings)
                    .ok_or_else(|| Failure::new(Exit::Usage, format!("policy {name}"), "no policy has this name"))?;
                parts.push((Part { rules: vec![Some(service.name())], policy, bytes_per_day: budget }, name, settings));
            }
        }
    }
    Ok(ByRule::new(parts.into_iter().map(|(part, ..)| part).collect()))
}

/// What a policy leaves out because the bandwidth of some nodes is not known.
pub fn without_bandwidth(policy: &dyn Policy, topology: &Topology) -> Option<String> {
    let less = policy.traits().without_bandwidth?;
    let unknown = topology.without_bandwidth();
    let list: Vec<_> = unknown.iter().map(NodeId::to_string).collect();
    (topology.nodes.len() > 1 && !unknown.is_empty()).then(|| {
        format!(
            "{less}: the bandwidth of node {} is neither measured (`homenode nodes --measure`), nor told by the firmware, \
             nor set in homenode.toml",
            list.join(", ")
        )
    })
}

/// A failure once the program of the user's can decide nothing any more.
pub fn ended(policy: &dyn Policy) -> Result<(), Failure> {
    policy.trouble().map_or(Ok(()), |why| Err(Failure::new(Exit::Partly, "the policy ended", why)))
}
