//! What is known of a paper's numbers and orderings beside their values.

use serde::{Deserialize, Serialize};

/// How much a number, or an ordering, can say about the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Nothing was fitted to it.
    Predicted,
    /// It restates a fit, or a setting or the model was changed with it in view.
    Dependent,
    /// The model has nothing that could make it come out otherwise.
    Structural,
    /// A constant was chosen so that it comes out.
    Calibrated,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Predicted, Self::Dependent, Self::Structural, Self::Calibrated];

    /// Word for the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
            Self::Dependent => "dependent",
            Self::Structural => "structural",
            Self::Calibrated => "calibrated",
        }
    }

    /// Whether it counts in the score.
    pub(crate) const fn counts(self) -> bool {
        matches!(self, Self::Predicted | Self::Dependent)
    }
}

/// Why a number, or an ordering, is missed. Causes are argued: nobody here has the papers'
/// machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// The paper says two things that exclude each other.
    Contradiction,
    /// The paper does not state what decides it.
    #[serde(rename = "not stated")]
    NotStated,
    /// The model does not have what decides it.
    Lacking,
    /// Nobody knows.
    Unknown,
}

impl Cause {
    /// Words for the report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Contradiction => "paper contradicts itself",
            Self::NotStated => "not stated",
            Self::Lacking => "model lacks it",
            Self::Unknown => "unknown",
        }
    }
}

/// Why some numbers and orderings are not predicted, or why they are missed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// What they are, if they are not predicted.
    pub kind: Option<Kind>,
    /// The cause, if they are missed.
    pub cause: Option<Cause>,
    /// The reason, in words.
    pub why: String,
    /// Figure, series (or `ordering`) and point (or statement) of each. What is left out is any.
    pub of: Vec<Vec<String>>,
}

impl Note {
    /// Whether it is about this figure, series and point.
    pub(crate) fn is_of(&self, at: [&str; 3]) -> bool {
        self.of.iter().any(|of| of.iter().zip(at).all(|(of, at)| of == at))
    }
}
