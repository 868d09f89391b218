//! `homenode report`: one file about a machine, for a bug report or a comparison of machines.
//!
//! **Problem.** Whoever helps needs to know what the kernel allows, what the machine is, and where
//! its file bytes come from. Whoever asks must not have to read it line by line for names of
//! customers before it is sent.
//!
//! **Approach.** One Markdown file with the tables that the other commands print, and the same as
//! JSON. Unless names are asked for, services, processes and files get numbers before anything is
//! written ([`without_names`]); findings about files that the user has named lose their cause. As a
//! second net, a text with a path that is not the kernel's own is left out ([`left_out`]).
//!
//! **Limits.** What cannot be had (no root, an older kernel) is said and left out. A number stands
//! for the same thing within one report only. Sizes and rates can tell somebody who knows the
//! machine what they belong to.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::SystemTime;

use clap::Args;
use command::args::Global;
use command::config::Config;
use linux::processor;
use serde_json::{Value, json};
use session::map::Report as Map;
use topology::measured::Measured;

use crate::commands::past::PastArgs;
use crate::commands::plane::PROC;
use crate::commands::{doctor, map, nodes, replace, trial};
use crate::exit::{Exit, Failure};
use crate::machine::{self, Machine};
use crate::options::ObserveArgs;
use crate::output::limits::Limits;
use crate::output::{self, escape};

/// `homenode report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Write the report to FILE instead of stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also put in the names of services and processes, and paths
    #[arg(long)]
    pub names: bool,
    /// What was, in the place of what is, for the map.
    #[command(flatten)]
    pub past: PastArgs,
    /// Number of windows to observe for the map
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u64).range(1..))]
    pub windows: u64,
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
}

/// Processes and files in the map.
pub const MOST: usize = 20;

/// A part of the report, as text and as JSON; or why it is not there.
type Part = Result<(String, Value), String>;

pub fn run(global: &Global, args: &ReportArgs) -> Result<Exit, Failure> {
    let names = args.names;
    args.past.range()?;
    // Before the map takes its time.
    args.output.as_deref().map_or(Ok(()), replace::replaceable)?;
    // In this order: the map gives up the privileges that doctor takes. It does so on a thread of
    // its own, as the report may go to a directory that is not root's.
    let report = Report::begun(global, names);
    let config = report.config.as_ref().map_err(|f| or(f, names, UNUSABLE));
    let mapped = config.and_then(|config| {
        if let Some(past) = args.past.map(global, MOST, |_| ()) {
            let past = past.map(|report| (report, Limits::recorded(global.verbose)));
            return past.map_err(|f| or(&f, names, "nothing was kept of that time"));
        }
        let observe = || map::observe(global, config, &args.observe, args.windows, MOST, |_| ());
        let seen = thread::scope(|scope| scope.spawn(observe).join());
        let seen = seen.map_err(|_| "the map was not made".to_owned())?;
        seen.map_err(|f| or(&f, names, "nothing can be observed here: see doctor"))
    });
    let (text, json) = report.ended(mapped, None)?;
    let text = if global.json { json + "\n" } else { text };
    match &args.output {
        Some(path) => {
            replace::write(path, &text, 0o600)?;
            let said = if names { "it has names and paths" } else { "without names and paths" };
            output::complain(&format!("wrote {}: {said}; look at it before you send it\n", path.display()));
        }
        None => output::print(&text)?,
    }
    Ok(Exit::Done)
}

const UNUSABLE: &str = "homenode.toml cannot be used, or does not fit this machine";

/// A failure can name what the user has named.
fn or(failure: &Failure, names: bool, instead: &str) -> String {
    if names { failure.line() } else { instead.to_owned() }
}

fn part(text: String, value: Result<Value, serde_json::Error>) -> Part {
    value.map(|value| (text, value)).map_err(|e| e.to_string())
}

fn figures(measured: &Measured) -> Part {
    part(nodes::measure::text(measured), serde_json::to_value(measured))
}

/// What is known before anything is observed.
pub struct Report {
    names: bool,
    config: Result<Config, Failure>,
    head: Value,
    doctor: Part,
    nodes: Part,
    measured: Part,
    tried: Part,
}

impl Report {
    /// Takes the privileges of doctor.
    pub fn begun(global: &Global, names: bool) -> Self {
        let config = Config::load(global.config.as_deref());
        let doctor = doctor::examine(global, false).map_err(|f| or(&f, names, UNUSABLE)).and_then(|mut report| {
            if !names {
                report.without_names();
            }
            part(doctor::text(&report), serde_json::to_value(&report))
        });
        let read = |config| Machine::read(Path::new(machine::SYS), config);
        let machine = config.as_ref().map_err(|f| or(f, names, UNUSABLE));
        let machine = machine.and_then(|config| read(config).map_err(|f| or(&f, names, UNUSABLE)));
        let measured = match &machine {
            Ok(Machine { measured: Some(measured), .. }) => figures(measured),
            Ok(_) => Err("nothing was measured: `sudo homenode nodes --measure`".to_owned()),
            Err(why) => Err(why.clone()),
        };
        Self {
            names,
            head: head(machine.as_ref().ok().map(|machine| machine.topology.nodes.len())),
            doctor,
            nodes: machine.as_ref().map_err(Clone::clone).map(|machine| nodes::described(machine, names)),
            measured,
            tried: trial::last::read(&global.state_dir).map(|tried| (tried.text(), tried.value())),
            config,
        }
    }

    /// Puts in what was measured since.
    pub fn measured(&mut self, measured: &Measured) {
        self.measured = figures(measured);
    }

    /// As Markdown and as JSON, with who reads from where, and the verdict of `check` if there is
    /// one.
    pub fn ended(
        self,
        mapped: Result<(Map, Limits), String>,
        check: Option<(String, Value)>,
    ) -> Result<(String, String), Failure> {
        let names = self.names;
        let mapped = mapped.and_then(|(mut report, limits)| {
            if !names {
                without_names(&mut report);
            }
            part(map::text(&report, &limits), serde_json::to_value(&report))
        });
        let parts = [
            ("doctor", "What homenode can use", Some(self.doctor)),
            ("nodes", "Nodes", Some(self.nodes)),
            ("measured", "What their memory does", Some(self.measured)),
            ("map", "Who reads from where", Some(mapped)),
            ("check", "Is a trial worth it?", check.map(Ok)),
            ("trial", "Last trial", Some(self.tried)),
        ];
        let mut value = json!({ "version": 1, "names": names, "machine": self.head });
        let mut text = markdown_head(&self.head, names);
        for (key, title, part) in parts.into_iter().filter_map(|(key, title, part)| Some((key, title, part?))) {
            let (said, part) = match part {
                Ok((said, part)) => (format!("```text\n{}\n```", said.trim_end().replace("```", "'''")), part),
                Err(why) => (escape(&why), json!({ "missing": why })),
            };
            // Writing to a string cannot fail.
            let _ = write!(text, "\n## {title}\n\n{said}\n");
            if let Some(object) = value.as_object_mut() {
                object.insert(key.to_owned(), part);
            }
        }
        if !names {
            clean(&mut value);
            text = text.lines().map(|line| left_out(line).unwrap_or_else(|| line.to_owned()) + "\n").collect();
        }
        let pretty = serde_json::to_string_pretty(&value)
            .map_err(|e| Failure::from_error(Exit::Io, "cannot write the report", &std::io::Error::from(e)))?;
        let pretty = output::json_escape(&pretty);
        let _ = write!(text, "\n## All of this as JSON\n\n```json\n{}\n```\n", pretty.replace("```", "'''"));
        Ok((text, pretty))
    }
}

/// Versions, processor and the number of nodes. The name of the machine is none of it.
pub fn head(nodes: Option<usize>) -> Value {
    let uname = rustix::system::uname();
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).map(|name| name.trim_matches('"'));
    json!({
        "homenode": env!("CARGO_PKG_VERSION"),
        "unix_s": SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        "kernel": uname.release().to_string_lossy(),
        "architecture": uname.machine().to_string_lossy(),
        "system": system,
        "processor": processor::name(Path::new(PROC)),
        "hypervisor": processor::hypervisor(Path::new(PROC), Path::new(machine::SYS)),
        "nodes": nodes,
    })
}

fn markdown_head(head: &Value, names: bool) -> String {
    let mut text = "# homenode report\n\n".to_owned();
    for (key, value) in head.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = writeln!(text, "- {key}: {}", escape(&value));
    }
    text.push_str(match names {
        true => "\nThis report has names of services and processes, and paths.\n",
        false => "\nServices, processes and files have numbers; their names and paths are left out.\n",
    });
    text
}

/// Numbers in the place of names.
fn without_names(map: &mut Map) {
    // The history has no control groups.
    let known: Vec<_> = map.services.iter().map(|row| (row.cgroup.clone(), row.service.clone())).collect();
    let number =
        |of: (&str, &str)| match known.iter().position(|(group, service)| (group.as_str(), service.as_str()) == of) {
            _ if of.1.is_empty() => String::new(),
            Some(n) => format!("service {}", n + 1),
            None => "another service".to_owned(),
        };
    for row in &mut map.services {
        row.service = number((&row.cgroup, &row.service));
        row.cgroup.clone_from(&row.service);
    }
    for (n, row) in map.processes.iter_mut().enumerate() {
        (row.pid, row.comm, row.service) = (n as u32 + 1, "process".to_owned(), number((&row.cgroup, &row.service)));
        row.cgroup.clone_from(&row.service);
    }
    for (n, row) in map.files.iter_mut().enumerate() {
        (row.file, row.path) = (format!("file {}", n + 1), None);
    }
    // They can name threads and files; doctor has those of the kernel.
    map.notes.clear();
}

/// What stands in the place of a text with a path of the user's; `None` where it has none.
pub fn left_out(text: &str) -> Option<String> {
    // Where only the kernel gives names.
    const KERNEL: &[&str] =
        &["/proc/self/", "/proc/sys/", "/sys/devices/system/", "/sys/kernel/", "/sys/bus/event_source/"];
    let is_path = |(at, _): (usize, &str)| {
        let (before, from) = text.split_at(at);
        let begins = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let goes_on = from.chars().nth(1).is_some_and(|c| !c.is_whitespace());
        begins && goes_on && !KERNEL.iter().any(|known| from.starts_with(known))
    };
    text.match_indices('/').any(is_path).then(|| "(left out: it names a path)".to_owned())
}

fn clean(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(instead) = left_out(text) {
                *text = instead;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(clean),
        Value::Object(values) => values.values_mut().for_each(clean),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use session::map::{File, Process, Service};

    use super::*;

    #[test]
    fn a_map_without_names_keeps_its_figures() {
        let service = |cgroup: &str| Service {
            cgroup: cgroup.to_owned(),
            service: cgroup.to_owned(),
            processes: 2,
            ..Service::default()
        };
        let process = |pid, cgroup: &str| Process {
            pid,
            comm: "secret".to_owned(),
            cgroup: cgroup.to_owned(),
            service: cgroup.to_owned(),
            ..Process::default()
        };
        let mut map = Map {
            windows: 3,
            services: vec![service("/secret-a"), service("/secret-b"), service("")],
            processes: vec![process(7001, "/secret-b"), process(7002, "/secret-gone"), process(7003, "")],
            files: vec![File {
                file: "8:1:7004".to_owned(),
                path: Some("/secret".to_owned()),
                size: Some(9),
                ..File::default()
            }],
            notes: vec!["secret: a note".to_owned()],
            ..Map::default()
        };
        without_names(&mut map);
        let text = serde_json::to_string(&map).unwrap();
        assert!(!text.contains("secret") && !text.contains("700"), "{text}");
        let services: Vec<&str> = map.services.iter().map(|row| row.service.as_str()).collect();
        assert_eq!(services, ["service 1", "service 2", ""]);
        let of: Vec<&str> = map.processes.iter().map(|process| process.cgroup.as_str()).collect();
        assert_eq!(of, ["service 2", "another service", ""]);
        assert_eq!((map.windows, map.services[0].processes, map.files[0].size), (3, 2, Some(9)));
    }

    #[test]
    fn texts_with_a_path_of_the_user_are_left_out() {
        for text in [
            "/home/alice/x: No such file",
            "cannot read /srv/secret",
            "cannot read \"/srv/a b\"",
            "(/srv)",
            "config=/srv",
            "a ./secret/file",
            "../secret",
            "/sys/fs/cgroup/system.slice/secret.service",
            "/proc/12/exe",
        ] {
            assert!(left_out(text).is_some(), "{text}");
        }
        for text in [
            "200 MB/s",
            "1/3 of it",
            "read/write",
            "/proc/self/status: x",
            "a / b",
            "see /sys/devices/system/node/node0",
        ] {
            assert_eq!(left_out(text), None, "{text}");
        }
        let mut value = json!({ "a": ["/srv/x", 1], "b": { "c": "fine" } });
        clean(&mut value);
        assert_eq!(value, json!({ "a": ["(left out: it names a path)", 1], "b": { "c": "fine" } }));
    }
}
