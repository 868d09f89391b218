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
//! Policies begin anew, without what they had learned.

use std::path::Path;

use engine::Engine;
use host::HostPlane;
use placement::{Policy, Traits};
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

/// What a reload compares with.
pub struct Reload<'a> {
    pub file: Option<&'a Path>,
    /// Whether the run goes by rules.
    pub by_rules: bool,
    /// What the run may move and look at.
    pub granted: Traits,
    /// The configuration that the run began with.
    pub begun: &'a Config,
}

impl Reload<'_> {
    /// Reads the rules again.
    ///
    /// # Errors
    ///
    /// The reader of the output is gone.
    pub fn now(&self, engine: &mut Engine<HostPlane>, out: &mut Output) -> Result<(), Failure> {
        let read = self.read();
        let result = read.as_ref().map(|(config, _)| self.later(config)).map_err(Failure::line);
        let rules = read.as_ref().map_or_else(|_| Vec::new(), |(config, _)| config.service.clone());
        if let Ok((config, policy)) = read {
            engine.plane_mut().rule(config.rules());
            engine.decide_by(policy);
        }
        out.reloaded(&rules, result)
    }

    fn read(&self) -> Result<(Config, Box<dyn Policy>), Failure> {
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
        Ok((config, Box::new(policy)))
    }

    /// What has changed and is not taken.
    fn later(&self, config: &Config) -> Vec<String> {
        let same = [
            (config.engine == self.begun.engine, "[engine]"),
            (config.moves == self.begun.moves, "[moves]"),
            (config.guardrail == self.begun.guardrail, "[guardrail]"),
            (config.node == self.begun.node, "[node]"),
            (config.measured == self.begun.measured, "measured"),
        ];
        let changed = same.into_iter().filter(|(same, _)| !same);
        changed.map(|(_, what)| format!("{what} has changed: restart homenode for it")).collect()
    }
}
