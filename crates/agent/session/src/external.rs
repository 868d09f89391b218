//! A policy that is a program of the user's: `--policy exec:PROGRAM`.
//!
//! **Problem.** A researcher has a policy of his own, in any language, and wants to see it decide
//! on the same windows as those that homenode has.
//!
//! **Approach.** The program is started once and talks in lines of JSON. It first announces itself
//! ([`Announcement`]), then reads the topology, and from then on reads a snapshot a line and writes
//! a plan a line (`docs/snapshot.md`). What it writes is untrusted: a line has a limit, each answer
//! has one, too, and what a policy may not ask for is left out of the plan and counted in its notes
//! ([`checked`]). A program that ends, floods, hangs or speaks out of turn is ended and decides
//! nothing any more ([`Policy::trouble`] says why). Started by root it runs as the user that asked.
//!
//! **Limits.** The caller waits for each answer, so this is for commands that only decide. The
//! program's errors go to the caller's.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use command::args::PROGRAM as PREFIX;
use placement::{FileRange, Move, ObservedFile, Plan, Policy, Process, Snapshot, Subject, Thread, Traits, Why, Wish};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};
use topology::Topology;

/// The only version of the lines before the first snapshot.
const VERSION: u32 = 1;
/// Longest line that is read from the program, in bytes.
const LINE: u64 = 16 << 20;
/// Longest sentence that is kept of its words, in characters.
const SENTENCE: usize = 300;
/// Most notes that are kept of a plan.
const NOTES: usize = 8;
/// Address space of the program, in bytes.
const ADDRESS_SPACE: u64 = 4 << 30;
/// How long its end is waited for.
const ENDS: Duration = Duration::from_secs(1);
/// How long it may think about one line.
const ANSWER: Duration = Duration::from_secs(10);

/// The program's first line.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Announcement {
    /// Version of these lines, 1.
    homenode: u32,
    /// Letters, digits, `-`, `_` and `.`.
    name: String,
    /// Seconds between its decisions; 0: it decides in each window.
    #[serde(default)]
    period_s: f64,
    /// It moves data of files.
    #[serde(default)]
    moves_files: bool,
    /// It moves processes with their memory.
    #[serde(default)]
    moves_processes: bool,
    /// What it looks at beside threads and files, where it can be observed.
    #[serde(default)]
    wants: Vec<Wants>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wants {
    /// Mapped memory of processes.
    Mapped,
    /// Ranges of files that were read, and what the kernel reclaims.
    Ranges,
    /// Ranges that were not read.
    Idle,
}

/// The first line that the program reads.
#[derive(Serialize)]
struct Hello<'a> {
    homenode: u32,
    topology: &'a Topology,
    seed: u64,
}

/// The user that a program runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl User {
    /// The user that called `sudo`, or none without root's powers. Root itself is an error.
    pub fn of_caller() -> Result<Option<Self>, String> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let id = |name| std::env::var(name).ok().and_then(|id| id.parse::<u32>().ok()).filter(|id| *id > 0);
        match (id("SUDO_UID"), id("SUDO_GID")) {
            (Some(uid), Some(gid)) => Ok(Some(Self { uid, gid })),
            _ => {
                Err("a program that decides does not run as root: start homenode as another user, or by sudo"
                    .to_owned())
            }
        }
    }
}

/// The policy.
pub struct External {
    /// `exec:` and what the program calls itself.
    name: &'static str,
    announced: Announcement,
    seed: u64,
    child: Child,
    requests: Option<Sender<String>>,
    answers: Receiver<Result<String, String>>,
    limit: Duration,
    greeted: bool,
    trouble: Option<String>,
}

impl External {
    /// Starts a program, with its arguments behind it, and waits for its first line.
    pub fn start(command: &str, user: Option<User>, seed: u64) -> Result<Self, String> {
        Self::start_with(command, user, seed, ANSWER)
    }

    fn start_with(command: &str, user: Option<User>, seed: u64, limit: Duration) -> Result<Self, String> {
        let mut words = command.split_ascii_whitespace();
        let program = words.next().ok_or_else(|| format!("no program behind `{PREFIX}`"))?;
        let mut start = Command::new(program);
        start.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        if let Some(User { uid, gid }) = user {
            // The standard library drops root's other groups, too.
            start.uid(uid).gid(gid);
        }
        // SAFETY: between fork and exec it makes system calls alone, and allocates nothing.
        unsafe { start.pre_exec(bound) };
        let mut child = start.spawn().map_err(|e| format!("{program}: {e}"))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{program}: no pipes"));
        };
        let (requests, asked) = channel();
        let (answered, answers) = channel();
        let mut policy = Self {
            name: PREFIX,
            announced: Announcement::default(),
            seed,
            child,
            requests: Some(requests),
            answers,
            limit,
            greeted: false,
            trouble: None,
        };
        std::thread::Builder::new()
            .name("policy".to_owned())
            .spawn(move || talk(stdin, BufReader::new(stdout), &asked, &answered))
            .map_err(|e| format!("{program}: {e}"))?;
        let line = policy.answer().map_err(|why| format!("{program}: its first line: {why}"))?;
        policy.announced = announcement(&line).map_err(|why| format!("{program}: its first line: {why}"))?;
        // The name of a policy lives as long as the program, which has one.
        policy.name = format!("{PREFIX}{}", policy.announced.name).leak();
        Ok(policy)
    }

    /// The next line of the program.
    fn answer(&mut self) -> Result<String, String> {
        match self.answers.recv_timeout(self.limit) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => Err(format!("no answer within {} s", self.limit.as_secs_f64())),
            Err(RecvTimeoutError::Disconnected) => Err("it ended".to_owned()),
        }
    }

    fn ask(&mut self, topology: &Topology, snapshot: &Snapshot) -> Result<Plan, String> {
        let mut lines = String::new();
        if !std::mem::replace(&mut self.greeted, true) {
            let hello = Hello { homenode: VERSION, topology, seed: self.seed };
            lines = serde_json::to_string(&hello).map_err(|e| e.to_string())? + "\n";
        }
        lines += &serde_json::to_string(snapshot).map_err(|e| e.to_string())?;
        lines.push('\n');
        self.requests.as_ref().and_then(|requests| requests.send(lines).ok()).ok_or("it ended")?;
        let line = self.answer()?;
        let plan: Plan = serde_json::from_str(&line).map_err(|e| sentence(&format!("its plan: {e}")))?;
        if plan.version != placement::plan::VERSION {
            return Err(format!("its plan has version {}, not {}", plan.version, placement::plan::VERSION));
        }
        Ok(checked(plan, self.name, self.traits(), topology, snapshot))
    }

    /// Ends the program and its process group, once.
    fn end(&mut self) {
        if self.requests.take().is_none() {
            return; // it was waited for: its number can be another's
        }
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        // It may have left its group. One that became another user cannot be killed: nobody waits.
        let _ = self.child.kill();
        let patience = Instant::now() + ENDS;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for External {
    fn drop(&mut self) {
        self.end();
    }
}

impl Policy for External {
    fn name(&self) -> &'static str {
        self.name
    }

    fn period_s(&self) -> f64 {
        self.announced.period_s
    }

    fn traits(&self) -> Traits {
        let wants = |what| self.announced.wants.contains(&what);
        let wish = |what| if wants(what) { Wish::IfPossible } else { Wish::No };
        Traits {
            moves_files: self.announced.moves_files,
            moves_processes: self.announced.moves_processes,
            wants_mapped: wish(Wants::Mapped),
            wants_ranges: wish(Wants::Ranges),
            wants_idle: wants(Wants::Idle),
            without_bandwidth: None,
        }
    }

    fn decide(&mut self, topology: &Topology, snapshot: &Snapshot) -> Plan {
        if self.trouble.is_none() {
            match self.ask(topology, snapshot) {
                Ok(plan) => return plan,
                Err(why) => {
                    self.trouble = Some(format!("{}: {why}", self.name));
                    self.end();
                }
            }
        }
        Plan { notes: self.trouble.iter().cloned().collect(), ..Plan::new(self.name) }
    }

    fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

/// In the new process, as its user: keeps it from taking the machine along, and from outliving
/// homenode.
fn bound() -> std::io::Result<()> {
    for (resource, most) in [(Resource::As, ADDRESS_SPACE), (Resource::Core, 0)] {
        let allowed = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX).min(most);
        rustix::process::setrlimit(resource, Rlimit { current: Some(allowed), maximum: Some(allowed) })?;
    }
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Reads the first line, then writes what is asked and reads a line for each, until either ends.
fn talk(
    mut stdin: ChildStdin,
    mut stdout: BufReader<ChildStdout>,
    asked: &Receiver<String>,
    answered: &Sender<Result<String, String>>,
) {
    let mut answer = line(&mut stdout);
    loop {
        let ended = answer.is_err();
        if answered.send(answer).is_err() || ended {
            return;
        }
        let Ok(lines) = asked.recv() else { return };
        answer = if spoke_up(&stdout) {
            Err("it wrote a line that nobody asked for".to_owned())
        } else {
            stdin.write_all(lines.as_bytes()).map_err(|_| "it ended".to_owned()).and_then(|()| line(&mut stdout))
        };
    }
}

/// Whether there is something to read already.
fn spoke_up(stdout: &BufReader<ChildStdout>) -> bool {
    let mut ready = [PollFd::from_borrowed_fd(stdout.get_ref().as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !stdout.buffer().is_empty()
        || poll(&mut ready, Some(&now)).is_ok() && ready.iter().any(|ready| ready.revents().contains(PollFlags::IN))
}

/// One line, which has a limit.
fn line(from: &mut impl BufRead) -> Result<String, String> {
    let mut line = Vec::new();
    from.take(LINE).read_until(b'\n', &mut line).map_err(|e| e.to_string())?;
    if line.pop() != Some(b'\n') {
        return Err(if line.len() as u64 + 1 < LINE {
            "it ended".to_owned()
        } else {
            format!("a line above {LINE} bytes")
        });
    }
    String::from_utf8(line).map_err(|_| "no UTF-8".to_owned())
}

fn announcement(line: &str) -> Result<Announcement, String> {
    let said: Announcement = serde_json::from_str(line).map_err(|e| sentence(&e.to_string()))?;
    if said.homenode != VERSION {
        return Err(format!("version {} is not supported, this build speaks version {VERSION}", said.homenode));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if said.name.is_empty() || said.name.len() > 32 || !said.name.chars().all(plain) {
        let name = sentence(&said.name);
        return Err(format!("the name {name:?}: 1 to 32 letters, digits, `-`, `_` and `.`"));
    }
    if !(0.0..=3600.0).contains(&said.period_s) {
        return Err(format!("a period of {} s: 0 to 3600", said.period_s));
    }
    Ok(said)
}

/// Shortens a sentence of the program's.
fn sentence(text: &str) -> String {
    text.chars().take(SENTENCE).collect()
}

/// What a policy may ask for, of a plan by a program. The rest is left out, with a note.
fn checked(plan: Plan, name: &str, traits: Traits, topology: &Topology, snapshot: &Snapshot) -> Plan {
    let threads: HashMap<u32, &Thread> = snapshot.threads.iter().map(|thread| (thread.tid, thread)).collect();
    let window = Window {
        threads: &threads,
        processes: snapshot.processes.iter().map(|process| (process.pid, process)).collect(),
        files: snapshot.files.iter().map(|file| (Subject::file(file), file)).collect(),
        traits,
        topology,
    };
    let mut checked = Plan::new(name);
    let (mut left_out, mut first) = (0, None);
    let mut moved = HashSet::new();
    for mut mv in plan.moves {
        mv.why = Why::from(sentence(&mv.why.text()));
        match window.refuses(&mv).or((!moved.insert(mv.subject)).then_some("moved twice")) {
            None => checked.moves.push(mv),
            Some(why) => {
                left_out += 1;
                first.get_or_insert_with(|| format!("{}: {why}", mv.subject));
            }
        }
    }
    checked.declined = plan.declined.into_iter().filter(|d| threads.contains_key(&d.tid)).take(threads.len()).collect();
    for declined in &mut checked.declined {
        (declined.reason, declined.why) = (sentence(&declined.reason), sentence(&declined.why));
    }
    checked.keeps = plan.keeps.into_iter().filter(|tid| threads.contains_key(tid)).take(threads.len()).collect();
    checked.notes = plan.notes.iter().take(NOTES).map(|note| sentence(note)).collect();
    if let Some(first) = first {
        checked.notes.push(format!("left out of the program's plan: {left_out} of its moves ({first})"));
    }
    checked
}

struct Window<'a> {
    threads: &'a HashMap<u32, &'a Thread>,
    processes: HashMap<u32, &'a Process>,
    files: HashMap<Subject, &'a ObservedFile>,
    traits: Traits,
    topology: &'a Topology,
}

impl Window<'_> {
    /// Why this move is none that a policy may ask for.
    fn refuses(&self, mv: &Move) -> Option<&'static str> {
        let Some(to) = self.topology.nodes.iter().find(|node| node.id == mv.to) else { return Some("no such node") };
        if mv.from == mv.to {
            return Some("it is there");
        }
        if self.topology.nodes.iter().all(|node| node.id != mv.from) {
            return Some("it is elsewhere");
        }
        let is_wrong = |range: &FileRange| range.bytes == 0 || range.start.checked_add(range.bytes).is_none();
        let meet = |two: &[FileRange]| matches!(two, [one, next] if one.end() >= next.start);
        if mv.ranges.iter().any(is_wrong) || mv.ranges.windows(2).any(meet) {
            return Some("its ranges are wrong");
        }
        match mv.subject {
            Subject::Thread { tid, .. } => match self.threads.get(&tid) {
                None => Some("not in the window"),
                Some(thread) if mv.subject != Subject::thread(thread) || mv.pid != thread.pid => Some("another one"),
                Some(thread) if thread.pinned.is_some() => Some("pinned"),
                Some(thread) if thread.node != mv.from => Some("it is elsewhere"),
                Some(thread) if !thread.allowed_nodes.contains(&mv.to) || to.cpus.is_empty() => {
                    Some("it may not run there")
                }
                Some(_) => None,
            },
            Subject::Process { pid, .. } => {
                let observed = self.processes.get(&pid).map(|process| Subject::process(pid, process.start_ns));
                let of_it = || self.threads.values().filter(|thread| thread.pid == pid);
                let known = observed.or_else(|| of_it().next().map(|t| Subject::process(pid, t.process_start_ns)));
                match known {
                    _ if !self.traits.moves_processes => Some("it did not announce that it moves processes"),
                    None => Some("not in the window"),
                    Some(known) if known != mv.subject => Some("another one"),
                    Some(_) if of_it().any(|thread| thread.pinned.is_some()) => Some("pinned"),
                    Some(_) if to.cpus.is_empty() || of_it().any(|thread| !thread.allowed_nodes.contains(&mv.to)) => {
                        Some("it may not run there")
                    }
                    Some(_) => None,
                }
            }
            Subject::File { .. } => match self.files.get(&mv.subject) {
                _ if !self.traits.moves_files => Some("it did not announce that it moves files"),
                None => Some("not in the window"),
                Some(file) if file.movable == Some(false) || file.pinned.is_some() => Some("pinned"),
                Some(_) => None,
            },
        }
    }
}

#[cfg(test)]
mod tests;
