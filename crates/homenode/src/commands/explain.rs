//! `homenode explain`: when and why threads were moved.

use chrono::{DateTime, Local, TimeDelta};
use engine::journal::{self, About, Event, Filter, Kind, Line};
use engine::{EngineError, Undone};

use crate::cli::{ExplainArgs, Global};
use crate::commands::report;
use crate::exit::{Exit, Failure};
use crate::output::units::{bytes, percent, seconds};
use crate::output::{self, escape, words};

/// Prints the journal's lines about a thread, or all.
pub fn run(global: &Global, args: &ExplainArgs) -> Result<Exit, Failure> {
    let filter = match args.thread.as_deref() {
        None => Filter::default(),
        Some(text) => match text.parse() {
            Ok(tid) => Filter { tid: Some(tid), ..Filter::default() },
            Err(_) => Filter { comm: Some(text.to_owned()), ..Filter::default() },
        },
    };
    let entries = journal::read(&global.state_dir, &filter).map_err(|e| {
        let missing = matches!(&e, EngineError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound);
        let failure = Failure::from_error(Exit::Io, "cannot read the journal", &e);
        if missing {
            failure.hint("`homenode run` writes it; none has run with this state directory since boot")
        } else {
            failure
        }
    })?;
    if global.json {
        for entry in &entries {
            output::print_json_line(entry)?;
        }
        return Ok(Exit::Done);
    }
    if entries.is_empty() {
        let subject = args.thread.as_deref().map_or(String::new(), |t| format!(" for {}", escape(t)));
        output::print(&format!("no journal entries{subject}\n"))?;
        return Ok(Exit::Done);
    }
    let one_thread = filter.tid.is_some();
    output::print(&text(&journal::history(entries), one_thread, Local::now()))?;
    Ok(Exit::Done)
}

/// The lines; the thread is named unless all are about the same one.
fn text(lines: &[Line], one_thread: bool, now: DateTime<Local>) -> String {
    let named: Vec<_> = lines.iter().map(|line| if one_thread { String::new() } else { name(line) }).collect();
    let width = named.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for (line, name) in lines.iter().zip(&named) {
        text.push_str(&time(line.entry.time, now));
        text.push_str("  ");
        if width > 0 {
            text.push_str(&format!("{}{}  ", escape(name), " ".repeat(width - name.chars().count())));
        }
        text.push_str(&escape(&sentence(line)));
        text.push('\n');
    }
    text
}

fn name(line: &Line) -> String {
    line.entry.thread.as_ref().map_or("homenode".to_owned(), name_of)
}

/// Name of an entry's subject.
pub fn name_of(about: &About) -> String {
    match about.kind {
        Kind::Thread => words::thread(&about.comm, about.tid),
        Kind::Process => words::process(&about.comm, about.pid),
        Kind::File => format!("file {}", about.comm),
    }
}

/// `10:02:31`, with the day where it was not today.
pub fn time(unix_s: f64, now: DateTime<Local>) -> String {
    let Some(time) = TimeDelta::try_milliseconds((unix_s * 1000.0) as i64)
        .and_then(|since| DateTime::UNIX_EPOCH.checked_add_signed(since))
        .map(|utc| utc.with_timezone(&Local))
    else {
        return "unknown time".to_owned();
    };
    let format = if time.date_naive() == now.date_naive() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    time.format(format).to_string()
}

/// The event in one line.
fn sentence(line: &Line) -> String {
    let moved = |from, to, word: &str, why: &str| format!("{}   {word}   {why}", words::direction(from, to));
    match &line.entry.event {
        Event::Started { daemon, policy } => format!("started (pid {daemon}), policy {policy}"),
        Event::Stopped { restored, changed_by_others, gone, failed } => {
            format!("stopped: {}", counts(*restored, *changed_by_others, *gone, *failed))
        }
        Event::Recovered { restored, changed_by_others, gone, failed } => {
            format!("after a crash: {}", counts(*restored, *changed_by_others, *gone, *failed))
        }
        Event::Moved { from, to, reason, why, .. } => {
            let brought = line
                .remote_share
                .map(|(before, after)| format!("   (remote share {} → {})", percent(before), percent(after)));
            moved(*from, *to, &words::reason(*reason), why) + &brought.unwrap_or_default()
        }
        Event::CopyStarted { from, to, reason, why, .. } => {
            moved(*from, *to, "copying", &format!("{}: {why}", words::reason(*reason)))
        }
        Event::CopyProgress { bytes: all, done, failed } => {
            let left = if *failed > 0 { format!(", {} left behind", bytes(*failed)) } else { String::new() };
            format!("{} of {} copied{left}", bytes(*done), bytes(*all))
        }
        Event::CopyEnded { from, to, bytes: all, done, left, seconds: took, why } => {
            let mut text = format!("{}   copied {} of {}", words::direction(*from, *to), bytes(*done), bytes(*all));
            text.extend(took.map(|s| format!(" in {}", seconds(s))));
            text.extend(left.iter().map(|(why, n)| format!(", {} left behind ({why})", bytes(*n))));
            text.extend(why.as_ref().map(|why| format!("; ended early: {why}; what was copied stays")));
            let brought = line.remote_share.map(|(b, a)| format!("   (remote share {} → {})", percent(b), percent(a)));
            text + &brought.unwrap_or_default()
        }
        Event::RolledBack { why } => format!("did not pay: {why}"),
        Event::Audited { before, after } => {
            let share = |share: &Option<f64>| share.map_or("unknown".to_owned(), percent);
            format!("remote share {} → {}", share(before), share(after))
        }
        Event::HeldBack { from, to, rail, why } => {
            moved(*from, *to, "held back", &format!("{}: {why}", words::rail(*rail)))
        }
        Event::Refused { from, to, why, .. } => moved(*from, *to, "refused", why),
        Event::Gone => "ended before it was moved".to_owned(),
        Event::Undone { result: Undone::Restored, affinity, occasion } => {
            let what = if affinity.is_empty() { "memory policy".into() } else { format!("affinity {affinity}") };
            format!("undone {occasion}, {what} as before")
        }
        Event::Undone { result: Undone::ChangedByOthers, occasion, .. } => {
            format!("left alone {occasion}: something else has changed its affinity")
        }
        Event::Undone { result: Undone::Gone, occasion, .. } => format!("had ended {occasion}"),
        Event::UndoFailed { why } => format!("could not be restored: {why}"),
        Event::Note { text } => text.clone(),
    }
}

fn counts(restored: usize, changed_by_others: usize, gone: usize, failed: usize) -> String {
    let finished = engine::Finished { restored, changed_by_others, gone, failed, ..engine::Finished::default() };
    report::finished(&finished).trim_end().to_owned()
}
