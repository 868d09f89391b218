//! A trial as one page that can be sent.
//!
//! **Problem.** Whoever is to believe a trial was not there. He needs the verdict, but also each
//! period, in a file that opens anywhere and is safe to open and to send.
//!
//! **Approach.** One HTML file without scripts and without anything from elsewhere, which its
//! content policy also forbids; the charts are SVG in it ([`chart`]), the data is there as JSON. It
//! is well-formed XML, too. What the user has named (paths, process ids, commands) is left out
//! unless asked for, as in `homenode report`.
//!
//! **Limits.** Sizes and rates can tell somebody who knows the machine what they belong to.

use std::fmt::Write;

use chrono::{DateTime, Utc};
use engine::Finished;
use linux::interference::Interference;
use serde_json::{Value, json};
use session::report as put_back;
use trial::{Arm, Effect};

use super::chart::{self, Bar, Mark, Round, text};
use super::outcome::{Outcome, Period};
use super::report::{Judged, Report, change, figures, interval, smallest};
use crate::cli::{ScopeArgs, TrialArgs};
use crate::output::units::{changed, count, digits, seconds};

/// What the page says of the machine and of what was tried.
pub struct Facts {
    /// Names and values, such as `kernel` and `6.12.0`.
    pub machine: Value,
    /// What was observed: `all processes`.
    pub scope: String,
    /// The command of `--metric`.
    pub metric: Option<String>,
    /// What else places threads.
    pub interference: Vec<Interference>,
    /// Whether paths, ids and commands of the user are in the page.
    pub names: bool,
    /// Whether the user, or a signal, ended it.
    pub stopped: bool,
}

impl Facts {
    /// Of this trial.
    pub fn new(args: &TrialArgs, machine: Value, interference: Vec<Interference>, stopped: bool) -> Self {
        let names = args.names;
        let scope = scope(&args.observe.scope, &args.command, names);
        Self { machine, scope, metric: args.metric.clone().filter(|_| names), interference, names, stopped }
    }
}

fn scope(scope: &ScopeArgs, command: &[std::ffi::OsString], names: bool) -> String {
    let named = |what: String, name: String| if names { format!("{what}: {name}") } else { what };
    if !command.is_empty() {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        return named("a command and its children".to_owned(), words.join(" "));
    }
    if let Some(path) = &scope.cgroup {
        return named("one control group".to_owned(), path.display().to_string());
    }
    match scope.pid.len() {
        0 => "all processes".to_owned(),
        1 => named("1 process".to_owned(), scope.pid.iter().map(u32::to_string).collect()),
        n => {
            let ids: Vec<String> = scope.pid.iter().map(u32::to_string).collect();
            named(format!("{n} processes"), ids.join(", "))
        }
    }
}

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;color:#222;background:#fff;max-width:900px;margin:2em auto;padding:0 1em}\
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}.verdict{font-size:1.25em;font-weight:600}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.15em .8em .15em 0;text-align:left}.n{text-align:right}\
th{border-bottom:1px solid #999;font-weight:600}td:first-child{white-space:nowrap}\
svg{width:100%;height:auto;display:block;margin:.5em 0}svg text{font:12px system-ui,sans-serif;fill:#333}\
svg text.head{font-weight:600;font-size:13px}.grid{stroke:#ddd}.zero{stroke:#222}.band{fill:#f4f4f4}\
.small{fill:#e4e4e4}.bar{fill:none;stroke-width:2}.mean{fill:none;stroke-width:1.5;stroke-dasharray:6 4}\
.round{fill:none;stroke:#aaa}pre{overflow-x:auto;font-size:12px;white-space:pre-wrap;word-break:break-all}";

fn begin() -> String {
    format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta \
         charset=\"utf-8\"/>\n<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n<title>homenode \
         trial</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>homenode trial</h1>\n"
    )
}

const END: &str = "</body>\n</html>\n";

/// The page while the trial goes on. It stays if the trial is killed.
pub fn unfinished() -> String {
    begin() + "<p class=\"verdict\">This trial has not ended.</p>\n" + END
}

/// The page of a trial that has ended.
pub fn page(report: &Report<'_>, judged: &[Judged], finished: &Finished, facts: &Facts) -> String {
    let mut page = begin();
    let primary = report.design.primary();
    judged.iter().for_each(|judged| verdict(&mut page, judged, &primary));
    if facts.machine.get("hypervisor").and_then(Value::as_str) == Some("tcg") {
        page.push_str("<p>The processor was emulated: its times say nothing about a real one.</p>\n");
    }
    effects(&mut page, report, judged);
    periods(&mut page, report);
    outcomes(&mut page, judged);
    each_period(&mut page, report);
    conditions(&mut page, report, finished, facts);
    let data = json!({
        "start": report.begun_without_names(),
        "periods": report.rounds.iter().enumerate().flat_map(|(n, round)| {
            round.iter().map(move |(arm, period)| report.period_json(n, *arm, period))
        }).collect::<Vec<_>>(),
        "rounds": report.rounds.len() - report.dropped(),
        "dropped": report.dropped(),
        "stopped": facts.stopped,
        "results": judged.iter().map(|judged| report.result(judged)).collect::<Vec<_>>(),
    });
    let data = crate::output::json_escape(&serde_json::to_string(&data).unwrap_or_default());
    // Writing to a string cannot fail, here and below.
    let _ = write!(page, "<h2>Data</h2>\n<details><summary>As JSON</summary><pre>{}</pre></details>\n", text(&data));
    page + END
}

fn verdict(page: &mut String, judged: &Judged, primary: &Outcome) {
    let _ = writeln!(page, "<p class=\"verdict\">{}: {}</p>", text(&judged.policy), text(&judged.said()));
    let Some((_, effect)) = judged.effects.first() else { return };
    page.push_str("<p>");
    if effect.mean.is_some() {
        let _ = write!(
            page,
            "With {}, {} changed by {} (95 % interval: {}; {}). ",
            text(&judged.policy),
            text(primary.name),
            text(&change(primary, effect, effect.mean)),
            text(&interval(primary, effect)),
            count(effect.rounds, "round"),
        );
    }
    if effect.smallest.is_some() {
        let smallest = smallest(primary, effect);
        let _ = write!(page, "Of 10 trials like this one, 8 would have shown a change of {}. ", text(&smallest));
    }
    if judged.stopped {
        page.push_str("The interval is that of rounds that ended because they looked bad.");
    }
    page.push_str("</p>\n");
}

/// A chart for each outcome whose interval is known.
fn effects(page: &mut String, report: &Report<'_>, judged: &[Judged]) {
    let mut charts = String::new();
    for (n, outcome) in report.outcomes.iter().enumerate() {
        let drawn = |effect: &&(Outcome, Effect)| effect.1.mean.and(effect.1.low).and(effect.1.high).is_some();
        let of =
            |judged: &Judged| judged.effects.get(n).filter(drawn).map(|(_, effect)| (judged.policy.clone(), *effect));
        let all: Vec<(String, Effect)> = judged.iter().filter_map(of).collect();
        // Relative where it can be, and all of them or none.
        let relative = all.iter().all(|(_, effect)| effect.relative(1.0).is_some());
        let bars: Vec<Bar> = all.iter().filter_map(|(policy, effect)| bar(policy, effect, outcome, relative)).collect();
        if bars.is_empty() {
            continue;
        }
        let shown = |value: f64, step: f64| match relative {
            true => changed(value, digits(100.0 * step)),
            false => outcome.signed_within(value, step),
        };
        let towards = match outcome.better {
            trial::Better::Higher => "more is better",
            trial::Better::Lower => "less is better",
        };
        charts.push_str(&chart::effects(&format!("{} ({towards})", outcome.name), &bars, &shown));
    }
    if !charts.is_empty() {
        page.push_str(
            "<h2>Changes, with 95 % intervals</h2>\n<p>Green: better; orange: worse; grey: chance alone could have \
             given it. The verdict is about the first one. A change within the grey field is likely to be missed by \
             a trial of this length.</p>\n",
        );
        page.push_str(&charts);
    }
}

fn bar(policy: &str, effect: &Effect, outcome: &Outcome, relative: bool) -> Option<Bar> {
    let unit = |value: f64| if relative { effect.relative(value) } else { Some(value) };
    let (low, high) = (effect.low?, effect.high?);
    let gains = [low, high].map(|end| outcome.better.gain(end));
    let better = match gains {
        _ if gains.iter().all(|gain| *gain > 0.0) => Some(true),
        _ if gains.iter().all(|gain| *gain < 0.0) => Some(false),
        _ => None,
    };
    let smallest = effect.smallest.and_then(unit);
    Some(Bar {
        policy: policy.to_owned(),
        mean: unit(effect.mean?)?,
        low: unit(low)?,
        high: unit(high)?,
        smallest,
        better,
    })
}

fn periods(page: &mut String, report: &Report<'_>) {
    let primary = report.design.primary();
    let arms: Vec<&str> =
        std::iter::once("homenode off").chain(report.design.policies.iter().map(String::as_str)).collect();
    let rounds: Vec<Round> = report
        .rounds
        .iter()
        .enumerate()
        .map(|(n, round)| {
            let mark = |(arm, period): &(Arm, Period)| {
                let value = period.values.get(primary.key);
                let title = format!("round {}, {}: {}", n + 1, report.name(*arm), primary.shown(value));
                Mark { arm: if let Arm::On(policy) = arm { policy + 1 } else { 0 }, value, title }
            };
            Round { marks: round.iter().map(mark).collect(), counts: Report::counts(round) }
        })
        .collect();
    let _ = write!(
        page,
        "<h2>Periods: {}</h2>\n<p>In the order in which they ran. Those of a round are connected; dashed lines are \
         the means. Pale marks do not count. The axis need not begin at zero.</p>\n{}",
        text(primary.name),
        chart::periods(&rounds, &arms, &|value, step| primary.shown_within(value, step))
    );
}

fn row(page: &mut String, cell: &str, cells: &[(bool, String)]) {
    page.push_str("<tr>");
    for (figure, words) in cells {
        let class = if *figure { " class=\"n\"" } else { "" };
        let _ = write!(page, "<{cell}{class}>{}</{cell}>", text(words));
    }
    page.push_str("</tr>\n");
}

/// Text, or a figure.
fn cell(figure: bool) -> impl Fn(&str) -> (bool, String) {
    move |words| (figure, words.to_owned())
}

fn outcomes(page: &mut String, judged: &[Judged]) {
    page.push_str("<h2>All outcomes</h2>\n");
    for judged in judged {
        let _ = write!(page, "<h3>{}</h3>\n<table>\n", text(&judged.policy));
        let heads = ["off", "change", "95 % interval", "smallest that shows", "p"].map(|head| cell(true)(head));
        row(page, "th", &[&[cell(false)("")], &heads[..]].concat());
        for (outcome, effect) in &judged.effects {
            let p = effect.p.map_or("unknown".to_owned(), |p| format!("{p:.3}"));
            let figures = figures(outcome, effect).into_iter().chain([p]).map(|f| cell(true)(&f));
            row(page, "td", &[cell(false)(outcome.name)].into_iter().chain(figures).collect::<Vec<_>>());
        }
        page.push_str("</table>\n");
    }
}

fn each_period(page: &mut String, report: &Report<'_>) {
    page.push_str("<h2>Each period</h2>\n<table>\n");
    let mut heads = vec![cell(true)("round"), cell(false)("arm")];
    heads.extend(report.outcomes.iter().map(|outcome| cell(true)(outcome.name)));
    heads.extend(["moves", "put back"].map(|head| cell(true)(head)));
    heads.push(cell(false)(""));
    row(page, "th", &heads);
    for (n, round) in report.rounds.iter().enumerate() {
        for (arm, period) in round {
            let mut cells = vec![cell(true)(&(n + 1).to_string()), cell(false)(report.name(*arm))];
            cells.extend(report.outcomes.iter().map(|o| cell(true)(&o.shown(period.values.get(o.key)))));
            cells.extend([period.moves, period.restored].map(|n| cell(true)(&n.to_string())));
            cells.push(cell(false)(if Report::counts(round) { "" } else { "does not count" }));
            row(page, "td", &cells);
        }
    }
    page.push_str("</table>\n");
}

fn conditions(page: &mut String, report: &Report<'_>, finished: &Finished, facts: &Facts) {
    page.push_str("<h2>How it was found</h2>\n<table>\n");
    let mut fact = |name: &str, value: &str| row(page, "td", &[(false, name.to_owned()), (false, value.to_owned())]);
    for (key, value) in facts.machine.as_object().into_iter().flatten() {
        match value {
            Value::Null => {}
            Value::Number(when) if key == "unix_s" => {
                let when = when.as_i64().and_then(|s| DateTime::<Utc>::from_timestamp(s, 0));
                fact("ended", &when.map_or(String::new(), |when| when.format("%Y-%m-%d %H:%M UTC").to_string()));
            }
            Value::String(value) => fact(key, value),
            value => fact(key, &value.to_string()),
        }
    }
    let design = report.design;
    fact("observed", &facts.scope);
    let (all, dropped) = (report.rounds.len(), report.dropped());
    let left_out = if dropped > 0 { format!(", and {dropped} that do not count") } else { String::new() };
    fact("rounds", &format!("{} of {}{left_out}", all - dropped, design.rounds));
    let (period, wash_out) = (seconds(design.period_s), seconds(design.wash_out_s));
    fact("period", &format!("{period}, of which the first {wash_out} do not count"));
    fact("window", &seconds(design.window_s));
    fact("seed of the order", &design.seed.to_string());
    if let Some(metric) = &facts.metric {
        fact("--metric", metric);
    }
    for found in &facts.interference {
        let what = if facts.names { format!("{} ({})", found.name, found.found) } else { found.name.clone() };
        fact("also there", &format!("{what}: {}", found.effect));
    }
    let mut finished = finished.clone();
    if !facts.names {
        finished.notes.clear();
    }
    for (n, line) in put_back::finished(&finished).lines().enumerate() {
        fact(if n == 0 { "put back" } else { "" }, line);
    }
    page.push_str("</table>\n");
    let _ = writeln!(
        page,
        "<p>Each round had a period with homenode off, when it only observes, and one with each policy, in an order \
         drawn by lot. Only differences within a round count. The intervals and the verdict follow from the lot \
         alone: chance gives <em>helps</em> or <em>hurts</em> in at most 5 of 100 trials, all policies together, \
         whatever the load does. The interval takes the effect to be the same in each round. The verdict is about {}; \
         the other outcomes are shown beside it, and one of them will look better or worse by chance more often. \
         What observing costs is in both arms.</p>",
        text(report.design.primary().name)
    );
    if !facts.names {
        page.push_str("<p>Paths, process ids and commands of the machine are left out.</p>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::trial::design::Design;
    use crate::commands::trial::outcome::{CPU_EFFICIENCY, Values};
    use trial::{Better, Harm};

    /// Nine rounds, of which one does not count and one lacks a value, with names that are markup.
    fn made(names: bool) -> String {
        of(names, 9)
    }

    fn of(names: bool, rounds: u32) -> String {
        let design = Design {
            policies: vec!["nthread".to_owned(), "auto".to_owned()],
            rounds: 9,
            period_s: 4.0,
            wash_out_s: 1.0,
            window_s: 1.0,
            seed: 7,
            metric: None,
            better: Better::Higher,
        };
        let mut report = Report::new(false, &design, &[]);
        for n in 0..rounds {
            let period = |value: f64| Period {
                values: Values(vec![(CPU_EFFICIENCY.key, value), ("remote_share", 0.5)]),
                moves: 3,
                restored: 4,
                moved_back: 0,
                stayed: (n == 5).then(|| "5 bytes of data stayed".to_owned()),
            };
            let off = 1e9 + 1e6 * f64::from(n);
            report.round(vec![
                (Arm::On(0), period(1.2 * off)),
                (Arm::Off, period(off)),
                (Arm::On(1), period(if n == 2 { f64::NAN } else { 1.1 * off })),
            ]);
        }
        let judged = report.judge(&[Harm::new(&design.statistics()), Harm::new(&design.statistics())]);
        let finished = Finished { restored: 9, notes: vec!["/secret/<path>".to_owned()], ..Finished::default() };
        let words = "homenode trial --html x --metric 'echo /secret/<b>' --pid 4711";
        let mut words: Vec<&str> = words.split(' ').collect();
        words.splice(5..7, ["echo /secret/<b>"]);
        words.extend(names.then_some("--names"));
        let cli = <crate::cli::Cli as clap::Parser>::try_parse_from(words).unwrap();
        let crate::cli::Command::Trial(args) = cli.command else { panic!("no trial") };
        let found = Interference {
            name: "numad".to_owned(),
            found: "process 815 secret".to_owned(),
            effect: "moves threads too".to_owned(),
            advice: String::new(),
        };
        let facts = Facts::new(
            &args,
            json!({"kernel": "6.12 <x>", "unix_s": 0, "hypervisor": "tcg", "system": null}),
            vec![found],
            false,
        );
        page(&report, &judged, &finished, &facts)
    }

    /// Whether all tags are closed in turn and all text is escaped; returns the names of the tags.
    fn well_formed(page: &str) -> Vec<String> {
        let (mut open, mut seen) = (Vec::new(), Vec::new());
        let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
        while let Some(at) = rest.find('<') {
            let (before, tag) = rest.split_at(at);
            assert!(!before.contains('>'), "{before}");
            for entity in before.split('&').skip(1) {
                let known = ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|known| entity.starts_with(known));
                assert!(known, "&{entity}");
            }
            let end = tag.find('>').unwrap();
            let (inner, after) = (&tag[1..end], &tag[end + 1..]);
            assert_eq!(inner.matches('"').count() % 2, 0, "{inner}");
            let name = inner.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap().to_owned();
            match inner {
                _ if inner.starts_with('/') => assert_eq!(open.pop(), Some(name), "{inner}"),
                _ if inner.ends_with('/') => seen.push(name),
                _ => {
                    seen.push(name.clone());
                    open.push(name);
                }
            }
            rest = after;
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
        seen
    }

    #[test]
    fn the_page_is_well_formed_and_needs_nothing_from_elsewhere() {
        for page in [made(false), made(true), of(false, 0), of(false, 3), unfinished()] {
            let tags = well_formed(&page);
            let loads = ["script", "link", "img", "iframe", "object", "embed", "a", "base", "image", "use"];
            assert!(!tags.iter().any(|tag| loads.contains(&tag.as_str())), "{tags:?}");
            // Only the names of the two languages are addresses.
            let addresses = page.matches("http").count() - page.matches("http-equiv").count();
            let namespaces = page.matches("xmlns=").count();
            assert_eq!(addresses, namespaces, "{page}");
            assert!(!page.contains("url(") && !page.contains("@import"));
        }
        let tags = well_formed(&made(false));
        // The periods, and two outcomes that are known.
        assert_eq!(tags.iter().filter(|tag| *tag == "svg").count(), 3);
    }

    #[test]
    fn names_are_in_the_page_only_if_asked_for() {
        let page = made(false);
        assert!(!page.contains("secret") && !page.contains("4711"), "{page}");
        assert!(page.contains("1 process<") && page.contains("numad: moves threads too"), "{page}");
        let page = made(true);
        // A note has a row of its own.
        assert!(page.contains("<td>put back</td><td>restored the affinity of 9 threads</td>"), "{page}");
        assert!(page.contains("<tr><td></td><td>note: /secret/&lt;path&gt;</td></tr>"), "{page}");
        for name in ["1 process: 4711", "echo /secret/&lt;b&gt;", "/secret/&lt;path&gt;", "process 815 secret"] {
            assert!(page.contains(name), "{name}");
        }
    }

    #[test]
    fn the_page_says_what_the_trial_found() {
        let page = made(false);
        for words in [
            "nthread: helps</p>",
            "auto: no verdict: what counts was unknown in a period with it",
            "changed by +20.0 %",
            "round 3, nthread: 1.2 GB/s",
            "6.12 &lt;x&gt;",
            "1970-01-01 00:00 UTC",
            "The processor was emulated",
            "<td class=\"n\">6</td><td>nthread</td>",
            "8 of 9, and 1 that do not count",
            "&quot;dropped&quot;:1",
            "&quot;stopped&quot;:false",
        ] {
            assert!(page.contains(words), "{words}\n{page}");
        }
        // Three periods of the round that does not count, in the table; two marks of it are pale,
        // and one more that is known.
        assert_eq!(page.matches("<td>does not count</td>").count(), 3);
        assert_eq!(page.matches("opacity=\"0.3\"").count(), 3);
    }
}
