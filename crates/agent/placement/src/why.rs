//! The sentence behind a move.
//!
//! **Problem.** Each move has a reason that a person can check. But nobody reads 10,000 sentences
//! per window, and writing them took longer than deciding.
//!
//! **Approach.** A move carries the figures. The sentence is written only when it is displayed or
//! serialised.
//!
//! **Limits.** A sentence that comes from JSON, or that a policy wrote itself, is just text. Two
//! sentences are equal if they read the same.

use std::borrow::Cow;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use topology::NodeId;

use crate::words::{push_bytes, push_number, push_percent};

/// One sentence with the figures; serialised as a string.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(from = "String")]
#[schemars(with = "String", inline)]
pub struct Why(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Text(Box<str>),
    Facts(Fact, Option<Overload>),
}

/// The observed fact behind a move.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fact {
    /// `812.0 MB of 830.0 MB read from node 0`
    ReadOf { bytes: u64, total: u64, node: NodeId },
    /// `812.0 MB of 830.0 MB read from node 2, which has no CPUs; node 0 is the nearest`
    ReadNear { bytes: u64, total: u64, node: NodeId, near: NodeId },
    /// `812.0 MB read from node 0`
    Read { bytes: u64, node: NodeId },
    /// `812.0 MB of 830.0 MB are writes`
    Writes { bytes: u64, total: u64 },
}

/// `node 0's memory controller would be at 97 %`
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overload {
    pub node: NodeId,
    /// Whether the memory controller is overloaded; otherwise, the CPUs are.
    pub controller: bool,
    pub load: f64,
}

impl Why {
    pub(crate) fn of(fact: Fact) -> Self {
        Self(Kind::Facts(fact, None))
    }

    pub(crate) fn with(fact: Fact, overload: Overload) -> Self {
        Self(Kind::Facts(fact, Some(overload)))
    }
}

impl Fact {
    fn push(self, text: &mut String) {
        match self {
            Self::ReadOf { bytes, total, node } => {
                push_bytes(text, bytes);
                text.push_str(" of ");
                push_bytes(text, total);
                text.push_str(" read from node ");
                push_number(text, node.0.into());
            }
            Self::ReadNear { bytes, total, node, near } => {
                Self::ReadOf { bytes, total, node }.push(text);
                text.push_str(", which has no CPUs; node ");
                push_number(text, near.0.into());
                text.push_str(" is the nearest");
            }
            Self::Read { bytes, node } => {
                push_bytes(text, bytes);
                text.push_str(" read from node ");
                push_number(text, node.0.into());
            }
            Self::Writes { bytes, total } => {
                push_bytes(text, bytes);
                text.push_str(" of ");
                push_bytes(text, total);
                text.push_str(" are writes");
            }
        }
    }
}

impl Overload {
    fn push(self, text: &mut String) {
        text.push_str("node ");
        push_number(text, self.node.0.into());
        text.push_str(if self.controller { "'s memory controller would be at " } else { "'s CPUs would be at " });
        push_percent(text, self.load);
    }
}

impl Why {
    /// The sentence.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.0 {
            Kind::Text(text) => Cow::Borrowed(text),
            Kind::Facts(fact, overload) => {
                let mut text = String::with_capacity(96);
                fact.push(&mut text);
                if let Some(overload) = overload {
                    text.push_str("; ");
                    overload.push(&mut text);
                }
                Cow::Owned(text)
            }
        }
    }
}

impl Default for Why {
    /// The empty sentence.
    fn default() -> Self {
        Self::from("")
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl PartialEq for Why {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl From<String> for Why {
    fn from(text: String) -> Self {
        Self(Kind::Text(text.into()))
    }
}

impl From<&str> for Why {
    fn from(text: &str) -> Self {
        Self(Kind::Text(text.into()))
    }
}

impl Serialize for Why {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);

    #[test]
    fn facts_read_as_sentences() {
        let (bytes, total) = (812_000_000, 830_000_000);
        let fact = Fact::ReadOf { bytes, total, node: A };
        assert_eq!(Why::of(fact).to_string(), "812.0 MB of 830.0 MB read from node 0");
        let near = Fact::ReadNear { bytes, total, node: NodeId(2), near: A };
        let expected = "812.0 MB of 830.0 MB read from node 2, which has no CPUs; node 0 is the nearest";
        assert_eq!(Why::of(near).to_string(), expected);
        let controller = Overload { node: A, controller: true, load: 0.974 };
        let expected = "812.0 MB of 830.0 MB are writes; node 0's memory controller would be at 97 %";
        assert_eq!(Why::with(Fact::Writes { bytes, total }, controller).to_string(), expected);
        let cpus = Overload { node: A, controller: false, load: 2.165 };
        let expected = "812.0 MB read from node 0; node 0's CPUs would be at 217 %";
        assert_eq!(Why::with(Fact::Read { bytes, node: A }, cpus).to_string(), expected);
    }

    #[test]
    fn equal_sentences_are_equal_even_after_json() {
        let why = Why::of(Fact::Read { bytes: 1_000_000, node: A });
        let json = serde_json::to_string(&why).unwrap();
        assert_eq!(json, r#""1.0 MB read from node 0""#);
        assert_eq!(serde_json::from_str::<Why>(&json).unwrap(), why);
        assert_ne!(why, Why::of(Fact::Read { bytes: 2_000_000, node: A }));
    }
}
