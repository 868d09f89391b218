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

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ReadOf { bytes, total, node } => {
                write!(f, "{} of {} read from node {node}", Bytes(bytes), Bytes(total))
            }
            Self::ReadNear { bytes, total, node, near } => {
                let read = Self::ReadOf { bytes, total, node };
                write!(f, "{read}, which has no CPUs; node {near} is the nearest")
            }
            Self::Read { bytes, node } => write!(f, "{} read from node {node}", Bytes(bytes)),
            Self::Writes { bytes, total } => write!(f, "{} of {} are writes", Bytes(bytes), Bytes(total)),
        }
    }
}

impl fmt::Display for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.controller { "memory controller" } else { "CPUs" };
        write!(f, "node {}'s {what} would be at {} %", self.node, (self.load * 100.0).round())
    }
}

/// In decimal units with one decimal: `830.0 MB`, `4.1 GB`.
pub(crate) struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 999.95 MB and more would round to 1000.0 MB, so they become 1.0 GB.
        let (tenth, unit) = match self.0 {
            0..999_950_000 => (100_000, "MB"),
            999_950_000..999_950_000_000 => (100_000_000, "GB"),
            _ => (100_000_000_000, "TB"),
        };
        let tenths = self.0.saturating_add(tenth / 2) / tenth;
        write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

impl Why {
    /// The sentence.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.0 {
            Kind::Text(text) => Cow::Borrowed(text),
            Kind::Facts(fact, overload) => {
                let overload = overload.map(|overload| format!("; {overload}")).unwrap_or_default();
                Cow::Owned(format!("{fact}{overload}"))
            }
        }
    }
}

impl Default for Why {
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
    fn bytes_are_decimal_with_one_decimal_and_rounded() {
        let all = [0, 49_999, 50_000, 812_000_000, 999_949_999, 999_950_000, 4_149_000_000, 999_949_999_999, 1 << 53];
        let texts = all.map(|bytes| Bytes(bytes).to_string()).join(", ");
        assert_eq!(texts, "0.0 MB, 0.0 MB, 0.1 MB, 812.0 MB, 999.9 MB, 1.0 GB, 4.1 GB, 999.9 GB, 9007.2 TB");
        assert_eq!(Bytes(u64::MAX).to_string(), "18446744.0 TB");
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
