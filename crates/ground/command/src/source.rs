//! A configuration file as it was read: what is wrong in it, in words and with the line.
//!
//! **Problem.** Parsers speak to programmers ("invalid type: string \"long\", expected f64"), and
//! what a check refuses later has no line any more.
//!
//! **Approach.** The text stays beside what it says. A parser's message is put into words here, and
//! the line of a key is looked up in the text when something is said about it.
//!
//! **Limits.** A message that is of none of serde's kinds stays as it is.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use crate::exit::{Exit, Failure};

#[derive(Clone, Debug, Default)]
pub(crate) struct Source {
    pub path: PathBuf,
    pub text: String,
}

/// What two files say is compared, not how they say it.
impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => {
                Failure::new(Exit::Usage, path.display().to_string(), "it is not UTF-8 text")
            }
            _ => Failure::io("read", path, &e),
        })?;
        Ok(Self { path: path.to_owned(), text })
    }

    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        toml::from_str(&self.text).map_err(|error| {
            let Some(span) = error.span() else { return self.refuse("", words(error.message())) };
            let before = self.text.get(..span.start).unwrap_or_default();
            let line = before.rsplit('\n').next().unwrap_or_default();
            // `key =` on the line, or in an inline table; a list has its key elsewhere.
            let key = line.trim_end().strip_suffix('=').and_then(|line| line.rsplit(['{', ',']).next());
            let why = match (key, words(error.message())) {
                (Some(key), why) if why.starts_with("must be ") => format!("{} {why}", key.trim()),
                (None, why) if why.starts_with("must be ") => format!("this {why}"),
                (_, why) => why,
            };
            Failure::new(Exit::Usage, self.line(span.start), why)
        })
    }

    /// What is wrong with the value of a key, as in `engine.window_s` or `service.0`.
    pub(crate) fn refuse(&self, key: &str, why: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, self.place(key), why)
    }

    /// The file, and the line where the key is; without the key, that of its section.
    pub(crate) fn place(&self, key: &str) -> String {
        match DeTable::parse(&self.text).ok().and_then(|table| offset(table.get_ref(), key)) {
            Some(at) => self.line(at),
            None => self.path.display().to_string(),
        }
    }

    fn line(&self, at: usize) -> String {
        let line = 1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        format!("{}:{line}", self.path.display())
    }
}

fn offset(table: &DeTable<'_>, key: &str) -> Option<usize> {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    let (name, value) = table.get_key_value(first)?;
    let within = match (value.get_ref(), rest) {
        (DeValue::Table(table), Some(rest)) => offset(table, rest),
        (DeValue::Array(list), Some(rest)) => list.get(rest.parse::<usize>().ok()?).map(|item| item.span().start),
        _ => None,
    };
    Some(within.unwrap_or(name.span().start))
}

/// A message of serde's, for people: `invalid type: string "long", expected f64` becomes `must be a
/// number, and is the text "long"`.
fn words(message: &str) -> String {
    let kinds = ["invalid type: ", "invalid value: ", "invalid length "];
    if let Some((is, must)) =
        kinds.iter().find_map(|kind| message.strip_prefix(kind)).and_then(|rest| rest.rsplit_once(", expected "))
    {
        return format!("must be {}, and is {}", wanted(must), found(is));
    }
    if let Some(key) = message.strip_prefix("missing field ") {
        return format!("the key {key} is missing");
    }
    if let Some((key, known)) = message.strip_prefix("unknown field ").and_then(|rest| rest.split_once(", expected ")) {
        let known: Vec<_> = known.split('`').skip(1).step_by(2).collect();
        let near = known.iter().map(|name| (strsim::jaro_winkler(name, key.trim_matches('`')), name));
        let near = near.filter(|(like, _)| *like > 0.8).max_by(|a, b| a.0.total_cmp(&b.0));
        return match near {
            Some((_, name)) => format!("unknown key {key}: is `{name}` meant?"),
            None => format!("unknown key {key}: known here are {}", known.join(", ")),
        };
    }
    match message {
        // Numbers are names of nodes and of nothing else.
        "invalid digit found in string" | "number too large to fit in target type" => {
            "a node is a whole number, as in [node.0]".to_owned()
        }
        other => other.replace('\n', " "),
    }
}

fn wanted(must: &str) -> String {
    match must {
        "f64" => "a number",
        "u32" | "u64" | "usize" | "NodeId" => "a whole number, not below 0",
        "a boolean" => "true or false",
        "a string" | "path string" | "string" => "text in quotes",
        "a sequence" => "a list in brackets",
        "a map" => "a section",
        // A section's type.
        other if other.starts_with("struct ") => "a section",
        other => other,
    }
    .to_owned()
}

fn found(is: &str) -> String {
    let plain = is.trim_start_matches("integer ").trim_start_matches("floating point ").trim_start_matches("boolean ");
    match is {
        "sequence" => "a list".to_owned(),
        "map" => "a section".to_owned(),
        text if text.starts_with("string ") => format!("the text {}", text.trim_start_matches("string ")),
        _ => plain.trim_matches('`').to_owned(),
    }
}
