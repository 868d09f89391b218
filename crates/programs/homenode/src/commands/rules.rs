//! Rules of homenode.toml in a run: whether they apply, and a reload of them.
//!
//! **Problem.** Rules change while databases run; a restart would put every thread back, and a
//! mistake in a file must not end what works.
//!
//! **Approach.** Between two windows a reload reads the file and `conf.d` anew. If they are right,
//! policies and scope are made new, and a pass over all threads finds those that no rule allows any
//! more: the engine puts them back. If they are not, all stays as it was.
//!
//! **Limits.** Only `[[service]]` and the sections of policies change while running. What a policy
//! may need (capabilities, programs) is decided at the start, so a rule that needs more is refused.
//! Policies begin anew, without what they had learned; what a rule has copied of its bytes a day
//! stays.

use std::path::Path;
use std::sync::Arc;

use command::args::PolicyArgs;
use command::rules::Service;
use engine::Engine;
use host::HostPlane;
use placement::Traits;
use placement::by_rule::ByRule;
use rustc_hash::FxHashSet;
use session::policies;
use session::windows::Output;

use super::plane;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::options::ScopeArgs;

/// Whether rules decide what is moved: there are some, and no option chooses threads.
pub fn apply(config: &Config, scope: &ScopeArgs) -> bool {
    !config.service.is_empty() && !plane::is_chosen(scope)
}

/// Whether rules decide, as far as the policy is concerned. One that the command line names would
/// move what they do not allow: it takes their place where nothing is moved, and nowhere else.
///
/// # Errors
///
/// Rules and a policy contradict each other.
pub fn may(policy: &PolicyArgs, moves_nothing: bool) -> Result<bool, Failure> {
    if policy.policy.is_none() {
        return Ok(true);
    }
    if moves_nothing {
        return Ok(false);
    }
    let why = "homenode.toml has rules, which choose the policy of each service";
    Err(Failure::new(Exit::Usage, "--policy", why)
        .hint("choose threads (--unit, --pid, --cgroup, -- CMD), or name a file without rules (--config)"))
}

/// What a reload compares with.
pub struct Reload<'a> {
    pub file: Option<&'a Path>,
    /// Whether the run goes by rules.
    pub by_rules: bool,
    /// What the run may move and look at.
    pub granted: Traits,
    /// The configuration that the run began with.
    pub begun: &'a Config,
    /// The rules as of now.
    pub last: Vec<Service>,
}

impl Reload<'_> {
    /// Reads the rules again.
    ///
    /// # Errors
    ///
    /// The reader of the output is gone.
    pub fn now(&mut self, engine: &mut Engine<HostPlane>, out: &mut Output) -> Result<(), Failure> {
        let begun_s = session::status::now_s();
        let read = self.read();
        let result = read.as_ref().map(|(config, _)| self.later(config)).map_err(Failure::line);
        let rules = read.as_ref().map_or_else(|_| Vec::new(), |(config, _)| config.service.clone());
        if let Ok((config, mut policy)) = read {
            engine.plane_mut().rule(config.rules(), self.anew(&config));
            policy.go_on(&engine.policy().spent());
            engine.decide_by(Box::new(policy));
            // On a thread of its own: no window waits for a walk of all control groups.
            let rules = config.rules();
            let _ = std::thread::Builder::new()
                .name("homenode-absent".into())
                .spawn(move || plane::say_absent("rule ", &rules));
            self.last = config.service;
        }
        out.reloaded(begun_s, &rules, result)
    }

    fn read(&self) -> Result<(Config, ByRule), Failure> {
        if !self.by_rules {
            return Err(Failure::new(Exit::Usage, "rules", "options of this run choose what is moved; restart it"));
        }
        let config = Config::load(self.file)?;
        for service in &config.service {
            let Some(policy) = service.policy().and_then(|name| placement::policy_with(name, &service.settings)) else {
                continue;
            };
            if let Some(what) = policy.traits().beyond(self.granted) {
                let why = format!("policy {} needs {what}, which this run has given up: restart it", policy.name());
                return Err(Failure::new(Exit::Unsupported, format!("service {}", service.name()), why));
            }
        }
        let policy = policies::by_rules(&config)?;
        Ok((config, policy))
    }

    /// Rules that had another policy.
    fn anew(&self, config: &Config) -> FxHashSet<Arc<str>> {
        let same = |service: &&Service| {
            self.last.iter().any(|old| old.name() == service.name() && old.says() == service.says())
        };
        config.service.iter().filter(|service| !same(service)).map(Service::name).collect()
    }

    /// What has changed and is not taken.
    fn later(&self, config: &Config) -> Vec<String> {
        let same = [
            (config.engine == self.begun.engine, "[engine]"),
            (config.moves == self.begun.moves, "[moves]"),
            (config.guardrail == self.begun.guardrail, "[guardrail]"),
            (config.history == self.begun.history, "[history]"),
            (config.node == self.begun.node, "[node]"),
            (config.measured == self.begun.measured, "measured"),
        ];
        let changed = same.into_iter().filter(|(same, _)| !same);
        changed.map(|(_, what)| format!("{what} has changed: restart homenode for it")).collect()
    }
}
