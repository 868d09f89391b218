//! Rules: which service is ignored, observed, or moved by which policy.
//!
//! **Problem.** Nothing of others may be moved unless its owner, or root, has allowed it; and what
//! is right for a database is wrong for a batch job beside it.
//!
//! **Approach.** [`Rules`] is a list; the first rule that a process matches says what is done with
//! it, and [`Rules::rest`] with all that match none. A rule matches by lists of patterns: of one
//! list any, of several lists all must match ([`Of`]).
//!
//! **Limits.** A rule applies to whole processes. What a rule asks for (user, command, control
//! group) are the kernel's words; names of users become ids when rules are read.

use std::sync::Arc;

use glob::MatchOptions;
pub use glob::Pattern;
use topology::ProcessId;

use crate::services;

/// What is done with the threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Does {
    /// They are not shown; their bytes count for nodes only.
    Ignore,
    /// They are shown and counted, and never moved.
    Observe,
    /// A policy decides.
    #[default]
    Move,
}

/// What is known about a process, for a rule to match.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Its control group, from the root of the hierarchy (`/system.slice/a.service`); empty if it
    /// is unknown.
    pub group: &'a str,
    /// Its pod, as `NAMESPACE/NAME`.
    pub pod: Option<&'a str>,
    /// Its effective user, as the first user namespace has it.
    pub uid: u32,
    /// The name of its first thread.
    pub command: &'a str,
    /// Its id.
    pub process: ProcessId,
    /// The policy that the owner of its control group has chosen ([`crate::delegated`]).
    pub chosen: Option<&'a str>,
}

/// Which processes a rule is for. An empty list says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Of {
    /// Names of services as [`services::name`] has them; `.service` and `.scope` may be left out.
    pub units: Vec<Pattern>,
    /// Control groups with all below them.
    pub groups: Vec<Pattern>,
    /// Pods, as `NAMESPACE/NAME`.
    pub pods: Vec<Pattern>,
    /// Ids of containers, as their control groups have them.
    pub containers: Vec<Pattern>,
    /// Names of processes.
    pub commands: Vec<Pattern>,
    /// Ids of users.
    pub users: Vec<u32>,
    /// Processes.
    pub processes: Vec<ProcessId>,
    /// The policy that their owner has chosen.
    pub chosen: Option<Arc<str>>,
}

/// `*` stands for no `/`: no unit of a user's is taken for one of the machine's.
const WHOLE: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };

impl Of {
    /// Whether it names nothing at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a process is one of these.
    pub fn has(&self, facts: &Facts<'_>) -> bool {
        fn any<T>(list: &[T], is: impl Fn(&T) -> bool) -> bool {
            list.is_empty() || list.iter().any(is)
        }
        let is = |pattern: &Pattern, text: &str| pattern.matches_with(text, WHOLE);
        let unit = |pattern: &Pattern| {
            let name = services::name(facts.group);
            let short = name.strip_suffix(".service").or_else(|| name.strip_suffix(".scope"));
            is(pattern, &name) || short.is_some_and(|short| is(pattern, short))
        };
        let group = |pattern: &Pattern| ancestors(facts.group).any(|group| is(pattern, group));
        // As programs print it: its first twelve digits.
        let short = |pattern: &Pattern, id: &str| pattern.as_str().len() == 12 && id.starts_with(pattern.as_str());
        let container = |pattern: &Pattern| containers(facts.group).any(|id| is(pattern, id) || short(pattern, id));
        !self.is_empty()
            && self.chosen.as_deref().is_none_or(|policy| facts.chosen == Some(policy))
            && any(&self.users, |uid| *uid == facts.uid)
            && any(&self.processes, |process| *process == facts.process)
            && any(&self.commands, |pattern| is(pattern, facts.command))
            && any(&self.pods, |pattern| facts.pod.is_some_and(|pod| is(pattern, pod)))
            && any(&self.groups, group)
            && any(&self.containers, container)
            && any(&self.units, unit)
    }
}

/// A control group and those that it is in.
fn ancestors(group: &str) -> impl Iterator<Item = &str> {
    let ends = group.match_indices('/').map(|(at, _)| at.max(1)).chain([group.len()]);
    ends.filter_map(|end| group.get(..end)).filter(|group| !group.is_empty())
}

/// The ids of containers in a control group's path: `docker-ID.scope`, `cri-containerd-ID.scope`,
/// `/docker/ID`, `/kubepods/…/ID`.
fn containers(group: &str) -> impl Iterator<Item = &str> {
    let id = |part: &str| part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    // What a user makes below his own service manager is none.
    let end = group.find("/user@").unwrap_or(group.len());
    group
        .get(..end)
        .unwrap_or_default()
        .split('/')
        .map(|part| part.strip_suffix(".scope").unwrap_or(part))
        .map(|part| part.rsplit('-').next().unwrap_or(part))
        .filter(move |part| id(part))
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, which output shows.
    pub name: Arc<str>,
    /// Which processes it is for.
    pub of: Of,
    /// What is done with them.
    pub does: Does,
}

/// Rules in their order: the first that matches applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The rules.
    pub list: Vec<Rule>,
    /// What is done with processes that no rule matches.
    pub rest: Does,
}

impl Rules {
    /// The place of the rule that applies to a process, if any does, and what is done with it.
    pub fn of(&self, facts: &Facts<'_>) -> (Option<usize>, Does) {
        let found = self.list.iter().enumerate().find(|(_, rule)| rule.of.has(facts));
        found.map_or((None, self.rest), |(at, rule)| (Some(at), rule.does))
    }

    /// These processes and no others.
    pub fn only(processes: Vec<ProcessId>) -> Self {
        let of = Of { processes, ..Of::default() };
        Self { list: vec![Rule { name: Arc::from("--pid"), of, does: Does::Move }], rest: Does::Ignore }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::new(text).unwrap()).collect()
    }

    fn facts(group: &str) -> Facts<'_> {
        Facts { group, pod: None, uid: 0, command: "postgres", process: ProcessId::new(7, Some(1)), chosen: None }
    }

    #[test]
    fn a_unit_is_matched_by_its_name_with_or_without_its_kind() {
        let has = |pattern: &str, group: &str| Of { units: patterns(&[pattern]), ..Of::default() }.has(&facts(group));
        for pattern in ["postgresql", "postgresql.service", "postgres*", "*.service", "*"] {
            assert!(has(pattern, "/system.slice/postgresql.service"), "{pattern}");
            assert!(has(pattern, "/system.slice/postgresql.service/workers"), "{pattern}: below it");
        }
        let user = "/user.slice/user-1.slice/user@1.service/app.slice/postgresql.service";
        for pattern in ["postgresql", "postgresql.service", "*"] {
            assert!(!has(pattern, user), "{pattern}: a unit of a user is none of the machine's");
        }
        assert!(has("user@1.service/postgresql", user) && has("user@*/*", user));
        assert!(!has("postgresql", "/system.slice/postgresql-x.service"));
        assert!(!has("postgresql", "/lxc.payload/system.slice/postgresql.service"));
    }

    #[test]
    fn a_group_is_matched_with_all_below_it() {
        let has = |pattern: &str, group: &str| Of { groups: patterns(&[pattern]), ..Of::default() }.has(&facts(group));
        assert!(has("/system.slice", "/system.slice/a.service/b") && has("/", "/a"));
        assert!(has("/system.slice/*.service", "/system.slice/a.service/b"));
        assert!(!has("/system.slice", "/system.slices") && !has("/*.service", "/system.slice/a.service"));
        assert!(!has("/system.slice", ""), "an unknown group is none");
    }

    #[test]
    fn a_container_is_matched_by_its_id() {
        let id = "3f2a".repeat(16);
        let of = Of { containers: patterns(&["3f2a3f2a*"]), ..Of::default() };
        for group in [
            format!("/system.slice/docker-{id}.scope"),
            format!("/kubepods.slice/kubepods-pod8c.slice/cri-containerd-{id}.scope"),
            format!("/docker/{id}/init.scope"),
        ] {
            assert!(of.has(&facts(&group)), "{group}");
        }
        assert!(!of.has(&facts("/docker/3f2a3f2a")), "this is no id");
        let users = format!("/user.slice/user-1.slice/user@1.service/docker-{id}.scope");
        assert!(!of.has(&facts(&users)), "any user can make this group");
        let short = Of { containers: patterns(&["3f2a3f2a3f2a"]), ..Of::default() };
        assert!(short.has(&facts(&format!("/docker/{id}"))));
    }

    #[test]
    fn lists_must_all_match_and_the_first_rule_applies() {
        let of = Of { units: patterns(&["db"]), users: vec![26, 27], ..Of::default() };
        let in_db = facts("/system.slice/db.service");
        assert!(!of.has(&in_db) && of.has(&Facts { uid: 27, ..in_db }));
        assert!(!Of::default().has(&in_db), "a rule that names nothing is for nobody");
        let rule = |name: &str, of: Of, does| Rule { name: Arc::from(name), of, does };
        let rules = Rules {
            list: vec![
                rule("a", of, Does::Ignore),
                rule("b", Of { commands: patterns(&["postgre?"]), ..Of::default() }, Does::Move),
            ],
            rest: Does::Observe,
        };
        assert_eq!(rules.of(&Facts { uid: 26, ..in_db }), (Some(0), Does::Ignore));
        assert_eq!(rules.of(&in_db), (Some(1), Does::Move));
        assert_eq!(rules.of(&Facts { command: "sh", ..in_db }), (None, Does::Observe));
        let chosen = Of { chosen: Some("arc".into()), ..Of::default() };
        let has = |chosen_by: Option<&'static str>| chosen.has(&Facts { chosen: chosen_by, ..in_db });
        assert!(has(Some("arc")) && !has(Some("nthread")) && !has(None));
        let only = Rules::only(vec![ProcessId::new(7, Some(1))]);
        assert_eq!(only.of(&in_db).1, Does::Move);
        assert_eq!(only.of(&Facts { process: ProcessId::new(7, Some(2)), ..in_db }).1, Does::Ignore);
    }
}
