//! Manual pages and shell completions, made from the same definitions as `--help`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use clap::{Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use crate::exit::{Exit, Failure};
use crate::output;

/// The sub-commands that every program has.
#[derive(Debug, Subcommand)]
pub enum About {
    /// Print a shell completion script
    #[command(after_help = "\
Examples:
  PROGRAM completions bash > /usr/share/bash-completion/completions/PROGRAM
  PROGRAM completions zsh  > /usr/share/zsh/site-functions/_PROGRAM
  PROGRAM completions fish > ~/.config/fish/completions/PROGRAM.fish")]
    Completions {
        /// Shell to complete for
        #[arg(value_enum)]
        shell: Shell,
    },

    /// Print the manual page, or write all pages to a directory
    #[command(after_help = "\
Examples:
  PROGRAM man | man -l -
  PROGRAM man /tmp/pages")]
    Man {
        /// Directory for all pages: of the program, of each sub-command, and of its files
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// A page beside those of a program and its sub-commands.
#[derive(Debug)]
pub struct Beside {
    /// The file, as in `homenode.toml.5`.
    pub file: String,
    pub text: String,
}

impl About {
    /// Runs it, for a program with these pages beside its own.
    pub fn run(&self, program: Command, beside: Vec<Beside>) -> Result<Exit, Failure> {
        match self {
            Self::Completions { shell } => completions(program, *shell),
            Self::Man { dir } => man(program, dir.as_deref(), beside),
        }
    }
}

/// Prints a program's script. It is made in memory first: clap_complete panics when stdout is
/// closed early.
fn completions(mut program: Command, shell: Shell) -> Result<Exit, Failure> {
    let (mut script, name) = (Vec::new(), program.get_name().to_owned());
    clap_complete::generate(shell, &mut program, name, &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

/// Prints a program's page, or writes it, one page per sub-command, however deep, and what is
/// `beside` them to a directory.
fn man(program: Command, dir: Option<&Path>, beside: Vec<Beside>) -> Result<Exit, Failure> {
    let mut command = program.disable_help_subcommand(true);
    command.build();
    match dir {
        Some(dir) => {
            fs::create_dir_all(dir).map_err(|e| Failure::io("create", dir, &e))?;
            write(&command, dir)?;
            for Beside { file, text } in beside {
                let path = dir.join(file);
                fs::write(&path, text).map_err(|e| Failure::io("write", &path, &e))?;
            }
        }
        None => output::print(&page(&command, "1")?)?,
    }
    Ok(Exit::Done)
}

/// The page of a sub-command that is a program by itself, in section 8; `usage` begins with its
/// name.
pub fn as_program(program: &Command, sub: &str, usage: &'static str) -> Result<Beside, Failure> {
    let name = usage.split(' ').next().unwrap_or(usage);
    let mut all = program.clone();
    all.build();
    let command = all.find_subcommand(sub).cloned().unwrap_or_default();
    let command = command.name(name).display_name(name).bin_name(name).override_usage(usage);
    Ok(Beside { file: format!("{name}.8"), text: page(&command, "8")? })
}

/// The head of a page, dated: SOURCE_DATE_EPOCH makes the same page again, without it the day is
/// today.
pub fn head(name: &str, section: &str) -> String {
    let told = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let date = day(told.unwrap_or_else(now));
    let version = env!("CARGO_PKG_VERSION");
    format!(".TH {name} {section} {date} \"homenode {version}\" \"homenode manual\"\n")
}

/// The day of a second since 1970, as in 2026-11-29.
fn day(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    at.unwrap_or_default().format("%F").to_string()
}

fn write(command: &Command, dir: &Path) -> Result<(), Failure> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        write(sub, dir)?;
    }
    let path = dir.join(Man::new(command.clone()).get_filename());
    fs::write(&path, page(command, "1")?).map_err(|e| Failure::io("write", &path, &e))
}

/// Files that a command of homenode reads or writes, where it has this option.
const FILES: [(&str, &str, &str); 5] = [
    ("config", "/etc/homenode/homenode.toml", "configuration, homenode.toml(5)"),
    ("config", "/etc/homenode/conf.d/*.toml", "further rules, by name"),
    ("config", "/var/lib/homenode/nodes.json", "what `homenode nodes --measure` found"),
    ("state_dir", "/run/homenode", "undo records, the journal, and what a running homenode publishes"),
    ("state_dir", "/var/lib/homenode/history", "what a running homenode has seen in the last week"),
];

const ENVIRONMENT: [(&str, &str); 2] = [
    ("HOMENODE_LOG", "which messages are logged to stderr, as in `observe=debug`; -v and -vv are short for it"),
    ("NO_COLOR", "if it is set and not empty, no colours"),
];

/// Programs that a page refers to.
const PROGRAMS: [&str; 6] =
    ["homenode(1)", "homenode-fs(1)", "homenode-lab(1)", "homenode.toml(5)", "mkfs.homenode(8)", "mount.homenode(8)"];

fn page(command: &Command, section: &str) -> Result<String, Failure> {
    let body = rendered(command, section)?;
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    Ok(written(name, section, &String::from_utf8_lossy(&body)))
}

/// A page of what roff's library has made, with marks as fonts.
fn written(name: &str, section: &str, body: &str) -> String {
    let mut text = head(name, section);
    let mut literal = false;
    for line in body.lines() {
        literal = line == ".nf" || literal && line != ".fi";
        match line {
            // Each section begins with the definition of an apostrophe.
            _ if line.starts_with(".ie ") || line.starts_with(".el ") || line.starts_with(".TH ") => continue,
            // Between an option and its values; mandoc skips both.
            "" | ".sp" if !literal => continue,
            ".br" if text.ends_with(".br\n") => continue,
            ".PP" if text.lines().last().is_some_and(|last| last.starts_with(".SH ")) => continue,
            "" => text += ".sp",
            _ if literal || line.starts_with('.') => text += line,
            _ => text += &emphasis(line),
        }
        text.push('\n');
    }
    text.replace("\\*(Aq", "\\(aq")
}

fn rendered(command: &Command, section: &str) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).section(section);
    let mut page = Vec::new();
    man.render_name_section(&mut page)?;
    let mut roff = Roff::new();
    let usage = command.clone().render_usage().to_string();
    roff.control("SH", ["SYNOPSIS"]).control("nf", []);
    for line in usage.trim_start_matches("Usage:").lines() {
        roff.text([bold(line.trim())]);
    }
    roff.control("fi", []);
    roff.to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    after(command, section, &mut page)?;
    Ok(page)
}

/// What follows the options: in `--help` it is paragraphs, "Examples:" among them.
fn after(command: &Command, section: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    let extra = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (exits, others): (Vec<_>, Vec<_>) =
        extra.split("\n\n").filter(|part| !part.is_empty()).partition(|part| part.to_lowercase().contains("exit code"));
    let program = command.get_bin_name().and_then(|name| name.split(' ').next()).unwrap_or_default();
    roff.control("SH", ["EXIT STATUS"]);
    match exits.as_slice() {
        [] => {
            let about = command.get_long_about().map(ToString::to_string).unwrap_or_default();
            let told = if about.contains("exit code") { "As above" } else { "0 if all is done" };
            roff.text([roman(format!("{told}; others are those of {}(1).", owner(program)))]);
        }
        exits => exits.iter().for_each(|part| paragraph(&mut roff, part)),
    }
    let has = |option: &str| command.get_arguments().any(|arg| arg.get_id() == option && !arg.is_hide_set());
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, about) in ENVIRONMENT {
        roff.control("TP", []).text([bold(name)]).text([roman(about)]);
    }
    if has("config") {
        roff.control("SH", ["FILES"]);
        for (_, name, about) in FILES.iter().filter(|(option, ..)| has(option)) {
            roff.control("TP", []).text([bold(*name)]).text([roman(*about)]);
        }
    }
    for part in others {
        match part.split_once('\n') {
            Some(("Examples:", lines)) => {
                as_it_is(roff.control("SH", ["EXAMPLES"]), lines);
            }
            _ => paragraph(&mut roff, part),
        }
    }
    let own = format!("{}({section})", command.get_display_name().unwrap_or_else(|| command.get_name()));
    let parent = format!("{}(1)", owner(program));
    let mut see: Vec<_> = PROGRAMS.into_iter().filter(|name| *name != own).collect();
    see.sort_by_key(|name| *name != parent);
    roff.control("SH", ["SEE ALSO"]).text([roman(see.join(", "))]);
    roff.to_writer(page)
}

/// The program that does what a link's name asks for.
fn owner(program: &str) -> &str {
    if program.ends_with(".homenode") { "homenode-fs" } else { program }
}

/// A paragraph; what is indented in it keeps its lines.
fn paragraph(roff: &mut Roff, part: &str) {
    roff.control("PP", []);
    let mut literal = false;
    for line in part.lines().filter(|line| *line != "Exit codes:") {
        if line.starts_with("  ") != literal {
            literal = !literal;
            roff.control(if literal { "nf" } else { "fi" }, []);
        }
        roff.text([roman(line)]);
    }
    if literal {
        roff.control("fi", []);
    }
}

/// Sets in bold what is between back-ticks, and in italics what is between stars, as Markdown does.
fn emphasis(line: &str) -> String {
    let mut text = String::new();
    for (at, part) in line.split('`').enumerate() {
        match at % 2 {
            1 => text += &format!("\\fB{part}\\fR"),
            _ => text += &starred(part),
        }
    }
    text
}

fn starred(text: &str) -> String {
    let parts: Vec<_> = text.split('*').collect();
    let word = |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_alphabetic() || c == ' ');
    if parts.len() % 2 == 0 || !parts.iter().skip(1).step_by(2).all(word) {
        return text.to_owned();
    }
    let marked = parts.iter().enumerate();
    marked.map(|(at, part)| if at % 2 == 1 { format!("\\fI{part}\\fR") } else { (*part).to_owned() }).collect()
}

/// Lines that stay as they are.
fn as_it_is(roff: &mut Roff, lines: &str) {
    roff.control("nf", []);
    for line in lines.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

const ABOUT_THE_FILE: &str = "\
A file of TOML: sections in brackets, and in them keys with values. Every section and key is \
optional, and an unknown one is an error. Options of a command come before what the file says.

A size has a unit (4 MiB, 300 MB), or is in bytes. A rate must have one (200 MB/s). Both are text in \
quotes. Times are seconds, shares are fractions (0.9 is 90 %), and inf is no limit.

The files of conf.d have rules alone ([[service]]). They come after those of homenode.toml, by their \
names; names that begin with a dot are left out. The first rule that matches applies.

`homenode config check` names what is wrong, with the line. `homenode reload` has a running homenode \
read rules and the sections of policies again; other sections need a restart.";

/// `homenode.toml(5)`: what is in the file, and the file with its comments.
pub fn of_configuration(example: &str) -> Beside {
    let mut roff = Roff::new();
    for (heading, text) in [
        ("NAME", "homenode.toml - configuration of homenode"),
        ("SYNOPSIS", "/etc/homenode/homenode.toml, /etc/homenode/conf.d/*.toml"),
        ("DESCRIPTION", ABOUT_THE_FILE),
        ("KEYS", "All keys with their defaults; what begins with #: has none."),
    ] {
        roff.control("SH", [heading]);
        text.split("\n\n").for_each(|part| paragraph(&mut roff, part));
    }
    as_it_is(roff.control("PP", []), example);
    let see = "homenode(1), homenode-config-check(1), homenode-reload(1), homenode-nodes(1)";
    roff.control("SH", ["SEE ALSO"]).text([roman(see)]);
    Beside { file: "homenode.toml.5".to_owned(), text: written("homenode.toml", "5", &roff.render()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, is) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_164_799, "2024-02-28"),
            (1_709_251_200, "2024-03-01"),
            (1_798_761_599, "2026-12-31"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(day(seconds), is);
        }
    }

    #[test]
    fn marks_of_markdown_become_fonts_and_patterns_stay() {
        assert_eq!(emphasis("`run` says *helps* or *no use*"), "\\fBrun\\fR says \\fIhelps\\fR or \\fIno use\\fR");
        assert_eq!(emphasis("a*b, *.sst and * or ?"), "a*b, *.sst and * or ?");
    }
}
