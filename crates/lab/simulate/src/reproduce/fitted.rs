//! What was given to the model, and the results that restate it.
//!
//! **Problem.** A number that was looked at while something was chosen is not predicted, whatever
//! else the choice rests on.
//!
//! **Approach.** `given.toml` has every constant, setting and change of the model with its source
//! and the reason for the choice. The [papers' notes](crate::papers::Note) name the numbers and
//! orderings that follow from those choices. A figure that a constant was [calibrated](CALIBRATED)
//! on predicts nothing: its other numbers are dependent as well.
//!
//! **Limits.** All choices were made by the model's authors, with the papers' numbers at hand.

use std::sync::OnceLock;

use serde::Deserialize;

use crate::calibration::CALIBRATED;
use crate::papers::{Kind, Paper};

/// The source of something that the model was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Origin {
    /// Chosen so that a number, or an ordering, of a paper comes out.
    #[serde(rename = "chosen on a number")]
    Number,
    /// No source.
    Guess,
    /// Measured by the model's authors, on another machine.
    Measured,
    /// Measured and published by others.
    Published,
    /// Stated by the paper.
    Paper,
}

impl Origin {
    /// Word for the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Number => "chosen on a number",
            Self::Guess => "guess",
            Self::Measured => "measured",
            Self::Published => "published",
            Self::Paper => "paper",
        }
    }
}

/// Something that the model was given.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Given {
    /// Its name in the code, or a few words.
    pub name: String,
    /// Its value; none for a change of the model.
    pub value: Option<f64>,
    /// Unit of the value.
    #[serde(default)]
    pub unit: String,
    pub origin: Origin,
    /// Its source, and the reason for the choice.
    pub source: String,
    /// The results that it changed, if it was chosen or changed after scores were seen.
    pub after: Option<String>,
}

/// Everything but [`CALIBRATED`] and the hardware that the papers' own tables state.
pub(super) fn given() -> &'static [Given] {
    #[derive(Default, Deserialize)]
    struct Table {
        given: Vec<Given>,
    }

    static TABLE: OnceLock<Table> = OnceLock::new();
    &TABLE.get_or_init(|| toml::from_str(include_str!("given.toml")).unwrap_or_default()).given
}

/// A remark on a calibrated constant.
pub(super) fn note(constant: &str) -> Option<&'static str> {
    matches!(constant, "EXT4_SERIAL" | "DB_GET_BLOCKS")
        .then_some("At the edge of the range in which it is sought: no value in it brings its number out.")
}

const BESIDE: &str = "a constant was chosen on another number of this figure";

/// The kind of a number by figure, series and point, or of an ordering by figure, `ordering` and
/// statement.
pub(super) fn kind(paper: Paper, at: [&str; 3]) -> Kind {
    let chosen_on = CALIBRATED.iter().any(|c| c.on.contains(&(paper, at)));
    if chosen_on { Kind::Calibrated } else { restated(paper, at).map_or(Kind::Predicted, |r| r.0) }
}

/// Why a number or an ordering is not predicted.
pub(super) fn why(paper: Paper, at: [&str; 3]) -> Option<&'static str> {
    restated(paper, at).map(|r| r.1)
}

fn restated(paper: Paper, at: [&str; 3]) -> Option<(Kind, &'static str)> {
    if let Some(note) = paper.restated(at) {
        return note.kind.map(|kind| (kind, note.why.as_str()));
    }
    let calibrated = CALIBRATED.iter().any(|c| c.on.iter().any(|on| on.0 == paper && on.1[0] == at[0]));
    calibrated.then_some((Kind::Dependent, BESIDE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration as cal;

    #[test]
    fn a_number_that_a_constant_was_chosen_on_is_calibrated_and_its_neighbours_are_dependent() {
        let of = |figure, series| kind(Paper::NThread, [figure, series, "average"]);
        assert_eq!(of("6a", "NThread_rl / NOVA"), Kind::Calibrated);
        assert_eq!(of("6a", "NThread / NOVA"), Kind::Dependent);
        assert_eq!(of("7c", "NThread / NOVA"), Kind::Predicted);
        let similar = "NThread_cpu performs similar to NThread_rl";
        assert_eq!(kind(Paper::NThread, ["5a", "ordering", similar]), Kind::Dependent);
    }

    #[test]
    fn the_table_has_the_models_values() {
        let name_s = |append_s: f64| cal::NAME_S * append_s / cal::EXT4_APPEND_S;
        let values = [
            ("DB_GET_S", cal::DB_GET_S),
            ("DB_PUT_S", cal::DB_PUT_S),
            ("DB_WRITE_LOCK_S", cal::DB_WRITE_LOCK_S),
            ("TIME_SLICING", cal::TIME_SLICING),
            ("OWN_MEMORY", cal::OWN_MEMORY),
            ("MOVE_STALL_S", cal::MOVE_STALL_S),
            ("DRAM_READ_S", cal::DRAM_READ_S),
            ("DRAM_WRITE_S", cal::DRAM_WRITE_S),
            ("DRAM_READ_BW", cal::DRAM_READ_BW),
            ("DRAM_WRITE_BW", cal::DRAM_WRITE_BW),
            ("read() of every file system", cal::CALL_S),
            ("name_s of PMFS", name_s(cal::PMFS_APPEND_S)),
            ("name_s of NOVA", name_s(cal::NOVA_APPEND_S)),
            ("append_bytes of NOVA", 2.0 * cal::OPTANE_LINE),
            ("CALL_S", cal::CALL_S),
            ("FILL_S", cal::FILL_S),
            ("OPTANE_WRITE_S", cal::OPTANE_WRITE_S),
            ("open_s", cal::OPEN_S),
            ("name_s of ext4", cal::NAME_S),
            ("append_s of ext4", cal::EXT4_APPEND_S),
            ("append_s of PMFS", cal::PMFS_APPEND_S),
            ("append_s of NOVA", cal::NOVA_APPEND_S),
            ("fsync_s of ext4", cal::EXT4_FSYNC_S),
            ("OPTANE_LINE", cal::OPTANE_LINE),
            ("PORT_BW", cal::PORT_BW),
        ];
        for (name, value) in values {
            let given = given().iter().find(|g| g.name == name).and_then(|g| g.value);
            assert!(given.is_some_and(|given| (given / value - 1.0).abs() < 1e-4), "{name}: {given:?}, not {value}");
        }
    }
}
