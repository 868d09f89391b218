//! How the command ends: exit codes and error messages, defined once.
//!
//! **Problem.** Scripts act on exit codes, people on messages; both must name what failed and why,
//! with the kernel's own reason.
//!
//! **Approach.** Every sub-command returns `Result<Exit, Failure>`. A [`Failure`] is one line,
//! `homenode: <what>: <why (errno name)>`, and a hint where one helps; with `--json` it is one JSON
//! object on stderr. The exit code follows from the errno found in the error's chain unless the
//! sub-command knows better.
//!
//! **Limits.** The words about wrong usage are clap's.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use nix::errno::Errno;
use serde_json::json;

use crate::output::{self, complain, escape};

/// Exit codes. The help of `homenode` and docs/guide.md list the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    Done,
    /// Some of the work failed, or `doctor` found something missing.
    Partly,
    /// Wrong usage, or input that cannot be used.
    Usage,
    /// Not permitted, or not supported by this kernel.
    Unsupported,
    /// Another homenode has the state directory, the volume or the recording, or moves the file.
    Busy,
    /// Reading or writing failed.
    Io,
    /// Exit status of the command that `run` started.
    Command(u8),
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Partly => 1,
            Self::Usage => 2,
            Self::Unsupported => 3,
            Self::Busy => 4,
            Self::Io => 5,
            Self::Command(code) => code,
        }
    }
}

/// Exit code of fsck(8) for incorrect use. Its 2 says that the machine must be started anew.
pub const FSCK_USAGE: u8 = 16;

#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    what: String,
    why: String,
    errno: Option<Errno>,
    hint: Option<String>,
}

impl Failure {
    /// A failure that no error of the kernel or a library stands behind.
    pub fn new(exit: Exit, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { exit, what: what.into(), why: why.into(), errno: None, hint: None }
    }

    /// A failure with its cause; the exit code follows from the errno in the cause's chain, else it
    /// is `otherwise`.
    pub fn from_error(otherwise: Exit, what: impl Into<String>, cause: &(dyn Error + 'static)) -> Self {
        let errno = errno_of(cause);
        let exit = match errno {
            Some(Errno::EPERM | Errno::EACCES | Errno::ENOSYS | Errno::EOPNOTSUPP) => Exit::Unsupported,
            Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ENOSPC | Errno::EIO) => Exit::Io,
            Some(_) if otherwise == Exit::Unsupported => Exit::Unsupported,
            Some(_) => Exit::Io,
            None => otherwise,
        };
        let (what, mut why) = (what.into(), chain(cause));
        if let Some(rest) = why.strip_prefix(&what).and_then(|rest| rest.strip_prefix(": ")) {
            why = rest.to_owned();
        }
        let mut failure = Self { exit, what, why, errno, hint: None };
        if matches!(errno, Some(Errno::EPERM | Errno::EACCES)) && !nix::unistd::geteuid().is_root() {
            failure.hint = Some("this needs root: try sudo".to_owned());
        }
        failure
    }

    /// A file that could not be read or written.
    pub fn io(action: &str, path: &Path, cause: &io::Error) -> Self {
        Self::from_error(Exit::Io, format!("cannot {action} {}", path.display()), cause)
    }

    /// Names the errno that stands for a cause that is not the kernel's.
    pub fn errno(mut self, errno: i32) -> Self {
        let errno = Errno::from_raw(errno);
        self.why = format!("{} ({errno:?})", self.why);
        self.errno = Some(errno);
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with another exit code.
    pub fn exiting(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// The cause, with its errno if the kernel gave one.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// The failure and its cause, without the hint.
    pub fn line(&self) -> String {
        format!("{}: {}", self.what, self.why)
    }

    /// Whether stdout was closed by its reader (`homenode top --once | head -1`): not worth a word.
    pub fn is_broken_pipe(&self) -> bool {
        self.errno == Some(Errno::EPIPE)
    }

    /// One or two lines on stderr, or one JSON object.
    pub fn report(&self, json: bool) {
        complain(&if json { output::json_escape(&self.json().to_string()) + "\n" } else { self.to_string() });
    }

    fn json(&self) -> serde_json::Value {
        json!({"error": {
            "what": self.what,
            "why": self.why,
            "errno": self.errno.map(|e| format!("{e:?}")),
            "hint": self.hint,
            "exit_code": self.exit.code(),
        }})
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "homenode: {}: {}", escape(&self.what), escape(&self.why))?;
        match &self.hint {
            Some(hint) => writeln!(f, "  hint: {}", escape(hint)),
            None => Ok(()),
        }
    }
}

/// Ends a command: says why it failed, and writes what is still to be written.
pub fn end(result: Result<Exit, Failure>, json: bool) -> ExitCode {
    let exit = result.unwrap_or_else(|failure| ended(&failure, json));
    // What a command that nobody waits for has written last.
    let exit = match output::drain().map_err(Failure::from) {
        Err(failure) if exit == Exit::Done => ended(&failure, json),
        _ => exit,
    };
    ExitCode::from(exit.code())
}

/// Says why homenode ends, unless its reader has left.
fn ended(failure: &Failure, json: bool) -> Exit {
    if failure.is_broken_pipe() {
        return Exit::Done;
    }
    failure.report(json);
    failure.exit()
}

/// Prints clap's message (help and version are not errors) and returns the exit code.
pub fn usage(error: &clap::Error, code: u8) -> ExitCode {
    if !error.use_stderr() {
        // `homenode --help | head -1` closes stdout: that is not an error.
        let printed = error.print().and_then(|()| io::stdout().flush());
        return end(printed.map(|()| Exit::Done).map_err(Failure::from), false);
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(code);
    }
    let text = error.render().to_string();
    let mut lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    // The first line and its list (`--to <NODE>`) say what is wrong; the rest helps.
    let mut why = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let mut help = Vec::new();
    for line in lines {
        match help.is_empty() && why.ends_with(':') {
            true => why = format!("{why} {line}"),
            false => help.push(line),
        }
    }
    let json = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json");
    let hint = Some(help.join("; ")).filter(|hint| !hint.is_empty());
    Failure { exit: Exit::Command(code), hint, ..Failure::new(Exit::Usage, "usage", why) }.report(json);
    ExitCode::from(code)
}

/// Writing to stdout failed (a file error names its file by [`Failure::io`]).
impl From<io::Error> for Failure {
    fn from(cause: io::Error) -> Self {
        Self::from_error(Exit::Io, "cannot write to stdout", &cause)
    }
}

/// The errno at the bottom of an error, if the kernel said one.
fn errno_of(error: &(dyn Error + 'static)) -> Option<Errno> {
    let mut next = Some(error);
    while let Some(error) = next {
        let raw = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
            .or_else(|| error.downcast_ref::<rustix::io::Errno>().map(|e| e.raw_os_error()));
        if let Some(raw) = raw {
            return Some(Errno::from_raw(raw));
        }
        next = error.source();
    }
    None
}

/// An error and its causes as one sentence; a cause that the error already quotes is not said
/// twice.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    errno_names(&text.replace('\n', " "))
}

/// std and rustix write `(os error 28)`: people and search engines know it as `ENOSPC`.
pub fn errno_names(text: &str) -> String {
    const MARK: &str = "(os error ";
    let mut named = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, after) = rest.split_at(at);
        let after = after.get(MARK.len()..).unwrap_or_default();
        named.push_str(before);
        match after.split_once(')').map(|(number, tail)| (number.parse::<i32>(), tail)) {
            Some((Ok(number), tail)) => {
                named.push_str(&format!("({:?})", Errno::from_raw(number)));
                rest = tail;
            }
            _ => {
                named.push_str(MARK);
                rest = after;
            }
        }
    }
    named.push_str(rest);
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_is_named_and_decides_the_exit_code() {
        for (raw, name, exit) in [
            (libc::ENOSPC, "ENOSPC", Exit::Io),
            (libc::ENOENT, "ENOENT", Exit::Io),
            (libc::EPERM, "EPERM", Exit::Unsupported),
            (libc::ENOSYS, "ENOSYS", Exit::Unsupported),
        ] {
            let failure = Failure::io("write", Path::new("/x/rec.jsonl"), &io::Error::from_raw_os_error(raw));
            let text = failure.to_string();
            assert!(text.starts_with("homenode: cannot write /x/rec.jsonl: "), "{text}");
            assert!(text.contains(&format!("({name})")), "{text}");
            assert_eq!(failure.exit(), exit, "{text}");
            assert_eq!(failure.json()["error"]["errno"], name);
        }
    }

    #[test]
    fn nothing_is_said_twice() {
        let cause = io::Error::other("cannot observe: BTF is missing");
        let text = Failure::from_error(Exit::Unsupported, "cannot observe", &cause).to_string();
        assert_eq!(text, "homenode: cannot observe: BTF is missing\n");
    }

    #[test]
    fn a_message_cannot_write_to_the_terminal_behind_the_users_back() {
        let text = Failure::new(Exit::Usage, "\u{1b}[2Jx", "two\nlines").to_string();
        assert!(!text.contains('\u{1b}') && text.lines().count() == 1, "{text:?}");
    }

    #[test]
    fn text_that_only_looks_like_an_errno_is_left_alone() {
        assert_eq!(errno_names("a (os error x) b (os error 2"), "a (os error x) b (os error 2");
        assert_eq!(errno_names("no space (os error 28), (os error 2)"), "no space (ENOSPC), (ENOENT)");
    }
}
