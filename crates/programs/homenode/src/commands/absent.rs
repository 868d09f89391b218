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

use crate::machine::PROC;

/// How alike two names are that one is meant for the other (Jaro and Winkler, 0 to 1).
const ALIKE: f64 = 0.85;
const SUGGESTED: usize = 3;

/// A sentence for each list of units, control groups or containers in a rule of which none is there
/// now.
pub fn told(rules: &Rules) -> Vec<String> {
    if rules.list.iter().all(|rule| lists(&rule.of).next().is_none()) {
        return Vec::new();
    }
    let groups = Groups::new(Path::new(PROC));
    if groups.shows_all() { among(rules, &groups.paths()) } else { Vec::new() }
}

/// Each list by itself: a rule is for what all of them match.
fn lists(of: &Of) -> impl Iterator<Item = Of> {
    let none = Of::default();
    let alone = [
        Of { units: of.units.clone(), ..none.clone() },
        Of { groups: of.groups.clone(), ..none.clone() },
        Of { containers: of.containers.clone(), ..none },
    ];
    alone.into_iter().filter(|of| !of.is_empty())
}

fn among(rules: &Rules, groups: &[Arc<str>]) -> Vec<String> {
    let process = ProcessId::new(0, None);
    let facts = |group| Facts { group, pod: None, uid: 0, command: "", process, chosen: None };
    let mut names = None;
    let mut sentences = Vec::new();
    for (rule, of) in rules.list.iter().flat_map(|rule| lists(&rule.of).map(move |of| (rule, of))) {
        if groups.iter().any(|group| of.has(&facts(group))) {
            continue;
        }
        let names = names.get_or_insert_with(|| groups.iter().map(|group| services::name(group)).collect());
        let patterns: Vec<_> =
            [&of.units, &of.groups, &of.containers].into_iter().flatten().map(|pattern| pattern.as_str()).collect();
        let meant = alike(of.units.iter().map(|unit| unit.as_str()), names);
        let meant = if meant.is_empty() { String::new() } else { format!("; is {} meant?", meant.join(" or ")) };
        sentences.push(format!("{}: no service here is called {} now{meant}", rule.name, patterns.join(" or ")));
    }
    sentences
}

/// Services of the same manager that are called nearly so, the most alike first.
fn alike<'a>(units: impl Iterator<Item = &'a str>, names: &BTreeSet<String>) -> Vec<String> {
    let mut found: Vec<(f64, &String)> = Vec::new();
    for unit in units {
        let (manager, wanted) = parts(unit);
        let of_one = names.iter().filter(|name| name.ends_with(".service") || name.ends_with(".scope"));
        let of_one = of_one.filter(|name| parts(name).0 == manager);
        let scored = of_one.map(|name| (strsim::jaro_winkler(without_kind(wanted), without_kind(parts(name).1)), name));
        found.extend(scored.filter(|(score, _)| *score >= ALIKE));
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    // Two misspelt units may mean one.
    let mut seen = BTreeSet::new();
    found.retain(|(_, name)| seen.insert(*name));
    found.into_iter().take(SUGGESTED).map(|(_, name)| name.clone()).collect()
}

/// `user@1000.service` and the name of a service of this user; nothing and the name of another.
fn parts(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

fn without_kind(name: &str) -> &str {
    name.strip_suffix(".service").or_else(|| name.strip_suffix(".scope")).unwrap_or(name)
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
        let instances: Vec<Arc<str>> = (10..18).map(|n| format!("/system.slice/db@{n}-main.service").into()).collect();
        let list = vec![rule(&["db@16-mian"])];
        let told = among(&Rules { list, rest: Does::Observe }, &instances);
        assert!(told[0].contains("; is db@16-main.service or db@1"), "{told:?}: the most alike first");
        let told = |units: &[&str]| among(&Rules { list: vec![rule(units)], rest: Does::Observe }, &groups);
        assert_eq!(told(&["shopdb", "cronn", "shop-bd"]).concat().matches("shop-db.service").count(), 1);
        // Another user's services are not suggested, nor those that share but their manager's name.
        let of_users: Vec<Arc<str>> = ["100.service/app.slice/shopdb.service", "1000.service/app.slice/init.scope"]
            .map(|name| format!("/user.slice/user-1.slice/user@{name}").into())
            .to_vec();
        let list = vec![rule(&["user@1000.service/shopdb"])];
        let told = among(&Rules { list, rest: Does::Observe }, &of_users);
        assert_eq!(told, ["db: no service here is called user@1000.service/shopdb now"]);
        let others = Of { commands: vec![Pattern::new("postgres").unwrap()], ..Of::default() };
        let list = vec![Rule { name: "x".into(), of: others, does: Does::Move }];
        assert_eq!(among(&Rules { list, rest: Does::Observe }, &groups), [""; 0]);
    }
}
