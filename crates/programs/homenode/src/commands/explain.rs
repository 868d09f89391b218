//! `homenode explain`: when and why threads and files were moved.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, Local, TimeDelta};
use clap::Args;
use engine::journal::{self, About, Counts, Decided, Entry, Event, Kind, Line};
use engine::{EngineError, Undone};
use observe::inode::Inodes;
use serde_json::json;
use topology::FileId;

use command::args::Global;
use session::{published, report};

use crate::exit::{Exit, Failure};
use crate::output::units::{bytes, count, percent, seconds};
use crate::output::{self, escape, words};

/// `homenode explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Thread id, part of the name of a thread, path or id of a file, or name of a rule
    #[arg(value_name = "TID|NAME|FILE|RULE")]
    pub about: Option<String>,
}

/// Prints the journals' lines about a thread, a file or what a rule has moved, or all: the host's,
/// and those of mounted volumes.
pub fn run(global: &Global, args: &ExplainArgs) -> Result<Exit, Failure> {
    let about = args.about.as_deref().map(Wanted::of);
    let mut told = Vec::new();
    let below = published::state_dirs(&global.state_dir)?;
    let volumes = below.iter().map(|dir| (dir.as_path(), Some(published::unescape(dir))));
    let (mut missing, mut found) = (None, false);
    for (dir, volume) in [(global.state_dir.as_path(), None)].into_iter().chain(volumes) {
        match journal::read(dir) {
            Ok(mut entries) => {
                found = true;
                let of_rule = about.as_ref().map(|about| about.moved_by_rule(&entries)).unwrap_or_default();
                entries.retain(|entry| {
                    about
                        .as_ref()
                        .is_none_or(|about| about.fits(entry) || subject(entry).is_some_and(|of| of_rule.contains(&of)))
                });
                told.push((volume, entries));
            }
            Err(e) => {
                let none = matches!(&e, EngineError::Io { source, .. } if source.kind() == ErrorKind::NotFound);
                let failure = Failure::from_error(Exit::Io, "cannot read the journal", &e);
                if !none {
                    return Err(failure);
                }
                missing = missing.or(Some(failure));
            }
        }
    }
    if let (false, Some(failure)) = (found, missing) {
        // What is below /run is gone after a boot.
        let since = if global.state_dir.starts_with("/run") { " since boot" } else { "" };
        return Err(failure.hint(format!(
            "`homenode run`, `homenode-fs mount --policy` and `homenode move` write it; none has run with this state directory{since}"
        )));
    }
    if global.json {
        for (volume, entries) in &told {
            for entry in entries {
                let mut value = json!(entry);
                if let (Some(volume), Some(object)) = (volume, value.as_object_mut()) {
                    object.insert("volume".to_owned(), json!(volume));
                }
                output::print_json_line(&value)?;
            }
        }
        return Ok(Exit::Done);
    }
    if told.iter().all(|(_, entries)| entries.is_empty()) {
        let subject = args.about.as_deref().map_or(String::new(), |t| format!(" for {}", escape(t)));
        let hint = match about {
            Some(Wanted::Name(..)) => "; without a name, explain shows all moves",
            _ => "",
        };
        output::print(&format!("no journal entries{subject}{hint}\n"))?;
        return Ok(Exit::Done);
    }
    let one_thread = matches!(about, Some(Wanted::Id(_)));
    let of_one = |(volume, entries): (Option<String>, Vec<Entry>)| {
        journal::history(entries).into_iter().map(move |line| (volume.clone(), line))
    };
    let mut lines: Vec<_> = told.into_iter().flat_map(of_one).collect();
    lines.sort_by(|(_, a), (_, b)| a.entry.time.total_cmp(&b.entry.time));
    output::print(&text(&lines, one_thread, Local::now()))?;
    Ok(Exit::Done)
}

/// A thread, process or file, for as long as it is the same.
type Moved = (Kind, u32, Option<u64>, Option<FileId>);

fn subject(entry: &Entry) -> Option<Moved> {
    entry.thread.as_ref().map(|about| (about.kind, about.tid, about.start_ns, about.file))
}

enum Wanted {
    /// The id of a thread or process.
    Id(u32),
    /// Part of a name or path, or a file id; and the file with this id or at this path.
    Name(String, Option<FileId>),
}

impl Wanted {
    fn of(text: &str) -> Self {
        let at_path = || text.contains('/').then(|| Inodes::new().of(Path::new(text)).ok()).flatten();
        let file = || FileId::parse(text).or_else(at_path);
        text.parse().map_or_else(|_| Self::Name(text.to_owned(), file()), Self::Id)
    }

    /// What the rule of this name has moved: all that became of it belongs together.
    fn moved_by_rule(&self, entries: &[Entry]) -> HashSet<Moved> {
        let Self::Name(name, _) = self else { return HashSet::new() };
        let by_rule = |entry: &&Entry| match &entry.event {
            Event::Moved(decided) | Event::CopyStarted(decided) => decided.rule.as_deref() == Some(name.as_str()),
            _ => false,
        };
        entries.iter().filter(by_rule).filter_map(subject).collect()
    }

    fn fits(&self, entry: &Entry) -> bool {
        let Some(about) = &entry.thread else { return false };
        match self {
            Self::Id(id) => about.kind != Kind::File && about.tid == *id,
            Self::Name(text, file) => about.file.is_some() && about.file == *file || about.comm.contains(text.as_str()),
        }
    }
}

/// The lines, with the volume that each is about; the thread is named unless all are about the same
/// one.
pub fn text(lines: &[(Option<String>, Line)], one_thread: bool, now: DateTime<Local>) -> String {
    let name = |(volume, line): &(Option<String>, Line)| {
        let name = if one_thread { String::new() } else { name(line) };
        let volume = volume.as_ref().map_or(String::new(), |volume| format!("on {volume}"));
        [name, volume].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    };
    let named: Vec<_> = lines.iter().map(name).collect();
    let width = named.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for ((_, line), name) in lines.iter().zip(&named) {
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

fn sentence(line: &Line) -> String {
    let moved = |from, to, word: &str, why: &str| format!("{}   {word}   {why}", words::direction(from, to));
    let share = |(before, after)| format!("   (remote share {} → {})", percent(before), percent(after));
    let by = |rule: &Option<Arc<str>>| rule.as_ref().map_or(String::new(), |rule| format!("   (rule {rule})"));
    let brought = || line.remote_share.map(share).unwrap_or_default();
    match &line.entry.event {
        Event::Started { daemon, policy } => format!("started (pid {daemon}), policy {policy}"),
        Event::Stopped(of) => format!("stopped: {}", counts(of)),
        Event::Recovered(of) => format!("after a crash: {}", counts(of)),
        Event::Moved(Decided { from, to, reason, why, rule, .. }) => {
            moved(*from, *to, &words::reason(*reason), why) + &by(rule) + &brought()
        }
        Event::CopyStarted(Decided { from, to, reason, why, rule, .. }) => {
            moved(*from, *to, "copying", &format!("{}: {why}", words::reason(*reason))) + &by(rule)
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
            text + &brought()
        }
        Event::MovedByHand { to, bytes: all, done, threads, seconds: took, user, why } => {
            let mut text = format!("moved by hand to node {to} (user {user}): {} of {}", bytes(*done), bytes(*all));
            text.extend(threads.map(|n| format!(", {} bound", count(n, "thread"))));
            text.push_str(&format!(" in {}", seconds(*took)));
            text.extend(why.as_ref().map(|why| format!("; {why}")));
            text
        }
        Event::RolledBack { why } => format!("did not pay: {why}"),
        Event::Guardrail { why } => format!("put back, because its service went worse: {why}"),
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
        Event::Undone { result: Undone::Gone, occasion, .. } if occasion == "after a crash" => {
            "had already ended when the crash of homenode was undone".to_owned()
        }
        Event::Undone { result: Undone::Gone, occasion, .. } => format!("had already ended {occasion}"),
        Event::UndoFailed { why } => format!("could not be restored: {why}"),
        Event::Note { text } => text.clone(),
    }
}

fn counts(&Counts { restored, changed_by_others, gone, failed }: &Counts) -> String {
    let finished = engine::Finished { restored, changed_by_others, gone, failed, ..engine::Finished::default() };
    report::finished(&finished).trim_end().to_owned()
}
