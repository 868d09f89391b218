//! Rules and options that name a service which is not there: a misspelt name looks like a machine
//! on which all is well.
//!
//! **Limits.** Pods, users and commands are not looked for. Where not all control groups can be
//! seen, nothing is said.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use observe::groups::Groups;
use placement::rules::{Facts, Of, Rules};
use placement::services;
use topology::ProcessId;

use super::plane::PROC;

/// How alike two names are that one is meant for the other (Jaro and Winkler, 0 to 1).
const ALIKE: f64 = 0.85;
/// Names that are suggested.
const SUGGESTED: usize = 3;

/// A sentence for each rule that names units, control groups or containers of which none is there
/// now.
pub fn told(rules: &Rules) -> Vec<String> {
    let names_some = rules.list.iter().any(|rule| !named(&rule.of).is_empty());
    let groups = names_some.then(|| Groups::new(Path::new(PROC)));
    groups.filter(|groups| groups.note().is_none()).map_or_else(Vec::new, |groups| among(rules, &groups.paths()))
}

fn named(of: &Of) -> Of {
    let Of { units, groups, containers, .. } = of.clone();
    Of { units, groups, containers, ..Of::default() }
}

fn among(rules: &Rules, groups: &[Arc<str>]) -> Vec<String> {
    let process = ProcessId::new(0, None);
    let facts = |group| Facts { group, pod: None, uid: 0, command: "", process, chosen: None };
    let mut sentences = Vec::new();
    for rule in &rules.list {
        let of = named(&rule.of);
        if of.is_empty() || groups.iter().any(|group| of.has(&facts(group))) {
            continue;
        }
        let patterns: Vec<&str> =
            [&of.units, &of.groups, &of.containers].into_iter().flatten().map(|pattern| pattern.as_str()).collect();
        let meant = of.units.iter().flat_map(|unit| alike(unit.as_str(), groups)).collect::<BTreeSet<_>>();
        let meant: Vec<String> = meant.into_iter().take(SUGGESTED).collect();
        let meant = if meant.is_empty() { String::new() } else { format!("; is {} meant?", meant.join(" or ")) };
        sentences.push(format!("{}: no service here is called {} now{meant}", rule.name, patterns.join(" or ")));
    }
    sentences
}

/// Services that are called nearly so.
fn alike(unit: &str, groups: &[Arc<str>]) -> Vec<String> {
    let short = |name: &str| name.strip_suffix(".service").or_else(|| name.strip_suffix(".scope")).map(str::to_owned);
    let wanted = short(unit).unwrap_or_else(|| unit.to_owned());
    let names = groups.iter().map(|group| services::name(group)).collect::<BTreeSet<_>>();
    let near = |name: &String| short(name).is_some_and(|short| strsim::jaro_winkler(&wanted, &short) >= ALIKE);
    names.into_iter().filter(near).collect()
}

#[cfg(test)]
mod tests {
    use placement::rules::{Does, Pattern, Rule};

    use super::*;

    #[test]
    fn a_name_that_no_service_has_is_told_with_those_that_are_like_it() {
        let groups: Vec<Arc<str>> =
            ["/", "/system.slice", "/system.slice/shop-db.service", "/system.slice/cron.service", "/init.scope"]
                .map(Arc::from)
                .to_vec();
        let rule = |units: &[&str]| {
            let units = units.iter().map(|unit| Pattern::new(unit).unwrap()).collect();
            Rule { name: "db".into(), of: Of { units, ..Of::default() }, does: Does::Move }
        };
        let told = |units: &[&str]| among(&Rules { list: vec![rule(units)], rest: Does::Observe }, &groups);
        assert_eq!(told(&["shopdb"]), ["db: no service here is called shopdb now; is shop-db.service meant?"]);
        assert_eq!(told(&["mysql*", "x"]), ["db: no service here is called mysql* or x now"]);
        for right in [&["shop-db"][..], &["shop*"], &["mysql", "cron.service"]] {
            assert_eq!(told(right), [""; 0], "{right:?}");
        }
        let others = Of { commands: vec![Pattern::new("postgres").unwrap()], ..Of::default() };
        let list = vec![Rule { name: "x".into(), of: others, does: Does::Move }];
        assert_eq!(among(&Rules { list, rest: Does::Observe }, &groups), [""; 0]);
    }
}
