//! `homenode status`: whether the daemon runs, by which rules, and why nothing moves.

use std::time::SystemTime;

use clap::Args;
use command::args::Global;
use command::rules::IGNORE;
use placement::flow::Sums;
use serde_json::json;
use session::totals::{self, Found, Told};

use crate::exit::{Exit, Failure};
use crate::output::table::Table;
use crate::output::units::{count, percent, seconds};
use crate::output::{self, escape};

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Exit with 0 if homenode runs, also if something is wrong: for what restarts it when it hangs
    #[arg(long)]
    alive: bool,
}

pub fn run(global: &Global, args: &StatusArgs) -> Result<Exit, Failure> {
    match totals::read(&global.state_dir)? {
        Found::Stale(why, _) => {
            output::tell(global.json, &json!({ "running": false, "why": why }), || format!("not running: {why}\n"))?;
            Ok(Exit::Io)
        }
        Found::Now(told) => {
            let trouble = trouble(&told);
            let Told { pid, policy, windows, threads, bound_threads, moves, status, .. } = &*told;
            let value = json!({
                "running": true, "pid": pid, "policy": policy, "windows": windows, "threads": threads,
                "bound_threads": bound_threads, "moves": moves, "status": status, "trouble": trouble,
            });
            output::tell(global.json, &value, || text(&told, &trouble))?;
            Ok(if trouble.is_empty() || args.alive { Exit::Done } else { Exit::Partly })
        }
    }
}

/// What a monitor should call somebody for.
fn trouble(told: &Told) -> Vec<String> {
    let reload = told.status.reload.as_ref().and_then(|reload| reload.error.clone());
    let stuck = told.stuck_copies;
    let stuck = (stuck > 0).then(|| format!("the kernel does not return from {}", count(stuck as usize, "copy")));
    reload.map(|why| format!("the last reload failed: {why}")).into_iter().chain(stuck).collect()
}

fn ago(unix_s: f64) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64());
    seconds((now - unix_s).max(0.0).round())
}

fn text(told: &Told, trouble: &[String]) -> String {
    let Told { pid, policy, threads, bound_threads, status, moves, .. } = told;
    let mut text = format!(
        "running for {} (pid {pid}), policy {policy}: {threads} threads read or write files, {bound_threads} are bound\n",
        ago(status.since_unix_s)
    );
    let made: u64 = moves.iter().filter(|moves| moves.result == "made").map(|moves| moves.count).sum();
    text += &format!("moves made since then: {made}\n");
    if let Some(reload) = &status.reload {
        let what = reload.error.as_ref().map_or("done".to_owned(), |why| format!("failed: {why}"));
        text += &format!("last reload: {} ago, {what}\n", ago(reload.unix_s));
    }
    if !status.rules.is_empty() {
        let mut table =
            Table::new(&["rule", "policy", ">threads", ">moves", ">remote before", ">remote now", "services"]);
        for rule in &status.rules {
            let mut services: Vec<String> = rule.services.iter().map(|name| escape(name)).collect();
            let idle = rule.threads == 0 && rule.moves == 0 && rule.before.read_bytes == 0;
            if services.is_empty() && rule.policy != IGNORE && idle && told.windows > 0 {
                services.push("none that reads or writes files so far".to_owned());
            }
            let (threads, moves) = (rule.threads.to_string(), rule.moves.to_string());
            let share = |read: Sums| match read.remote_share() {
                Some(share) if rule.policy != IGNORE => percent(share),
                _ => "-".to_owned(),
            };
            let (before, now) = (share(rule.before), share(rule.now));
            table.row([escape(&rule.rule), rule.policy.clone(), threads, moves, before, now, services.join(", ")]);
        }
        text += &format!("\n{}", table.render());
    }
    for refused in &status.refused {
        text += &format!("not delegated: {}\n", escape(refused));
    }
    if !status.stays.is_empty() {
        let mut stays: Vec<_> = status.stays.iter().collect();
        stays.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        let stays: Vec<String> = stays.into_iter().map(|(reason, n)| format!("{reason} {n}")).collect();
        text += &format!("\nleft in place in the last window: {}\n", escape(&stays.join(", ")));
    }
    text + &output::notes(trouble)
}
