//! Every number that the texts of the four papers state, with figure and section, and what is known
//! of it beside its value.
//!
//! **Problem.** A reproduction that compares itself with numbers from memory proves nothing.
//!
//! **Approach.** One TOML file per paper, read before anything was fitted: hardware constants, and
//! stated results as (figure, series, point). Averages "by 40.5 %" are ratios, 1.405. Notes,
//! written later, say which results restate a choice of the model, and why results are missed.
//!
//! **Limits.** Bars that only a picture shows have no number here.

mod note;

use std::sync::OnceLock;

pub use note::{Cause, Kind, Note};

use serde::{Deserialize, Serialize};

/// One of the four papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Paper {
    /// NThread, MSST 2020.
    NThread,
    /// Dragonfly.
    Dragonfly,
    /// SysMon-N and N-Policy, NPC 2020.
    NPolicy,
    /// Adams's thesis on ARC task migration, 2021.
    Arc,
}

impl Paper {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::NThread, Self::Dragonfly, Self::NPolicy, Self::Arc];

    /// Word for the command line and the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NThread => "nthread",
            Self::Dragonfly => "dragonfly",
            Self::NPolicy => "npolicy",
            Self::Arc => "arc",
        }
    }

    /// Authors, title, year.
    pub const fn title(self) -> &'static str {
        match self {
            Self::NThread => {
                "Wang, Jiang, Xiong: NUMA-Aware Thread Migration for High Performance NVMM File Systems (MSST 2020)"
            }
            Self::Dragonfly => "Han, Byun, Kwon, Park, Kim: Is Data Migration Evil in the NVM File System?",
            Self::NPolicy => {
                "Yang et al.: Monitoring Memory Behaviors and Mitigating NUMA Drawbacks on Tiered NVM Systems (NPC 2020)"
            }
            Self::Arc => {
                "Adams: Performance Implications of Memory Affinity on Filesystem Caches (William & Mary 2021)"
            }
        }
    }

    /// Its numbers.
    pub fn data(self) -> &'static Data {
        static DATA: OnceLock<[Data; 4]> = OnceLock::new();
        let read = |text: &str| toml::from_str(text).unwrap_or_default();
        let all = DATA.get_or_init(|| {
            [
                read(include_str!("nthread.toml")),
                read(include_str!("dragonfly.toml")),
                read(include_str!("npolicy.toml")),
                read(include_str!("thesis.toml")),
            ]
        });
        match self {
            Self::NThread => &all[0],
            Self::Dragonfly => &all[1],
            Self::NPolicy => &all[2],
            Self::Arc => &all[3],
        }
    }

    /// The value stated for a point, if the text states one.
    pub fn stated(self, figure: &str, series: &str, point: &str) -> Option<&'static Stated> {
        self.data().stated.iter().find(|s| s.figure == figure && s.series == series && s.point == point)
    }

    /// The note on the kind of a number or an ordering.
    pub(crate) fn restated(self, at: [&str; 3]) -> Option<&'static Note> {
        self.data().note.iter().find(|note| note.kind.is_some() && note.is_of(at))
    }

    /// The note on the cause of a miss, if it is known.
    pub(crate) fn cause(self, at: [&str; 3]) -> Option<&'static Note> {
        self.data().note.iter().find(|note| note.cause.is_some() && note.is_of(at))
    }
}

/// Numbers of one paper.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Hardware and settings.
    pub constant: Vec<Constant>,
    /// Results.
    pub stated: Vec<Stated>,
    /// Notes on them. The first that fits counts.
    pub note: Vec<Note>,
}

/// A constant of the hardware, or a setting.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Its name.
    pub name: String,
    /// The value.
    pub value: f64,
    /// Its unit; `x` is a ratio.
    pub unit: String,
    /// Section, table or slide.
    pub source: String,
}

/// A stated result.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stated {
    /// Figure, such as `5a`.
    pub figure: String,
    /// Series, or two series that are compared.
    pub series: String,
    /// Point, such as `rw80` or `average`.
    pub point: String,
    /// Unit; `x` is a ratio.
    pub unit: String,
    /// The number.
    pub value: f64,
    /// Series and point of the same figure that its effect is measured against, for amounts.
    pub against: Option<[String; 2]>,
    /// Section.
    pub source: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration as cal;

    #[test]
    fn every_file_is_read_and_names_each_point_once() {
        for (paper, constants, stated) in
            [(Paper::NThread, 20, 40), (Paper::Dragonfly, 4, 15), (Paper::NPolicy, 4, 7), (Paper::Arc, 8, 10)]
        {
            let data = paper.data();
            assert!(data.constant.len() >= constants && data.stated.len() >= stated, "{paper:?}");
            assert!(data.note.iter().all(|note| note.kind.is_some() != note.cause.is_some()), "{paper:?}");
            for (i, a) in data.stated.iter().enumerate() {
                for b in &data.stated[i + 1..] {
                    assert!((&a.figure, &a.series, &a.point) != (&b.figure, &b.series, &b.point), "{a:?} twice");
                }
            }
        }
    }

    #[test]
    fn the_calibration_holds_the_papers_constants() {
        let constant = |paper: Paper, name: &str| paper.data().constant.iter().find(|c| c.name == name).unwrap().value;
        let nt = |name| constant(Paper::NThread, name);
        assert_eq!(cal::OPTANE_READ_PEAK, nt("read bandwidth of one Optane module"));
        assert_eq!(cal::OPTANE_WRITE_PEAK, nt("write bandwidth of one Optane module"));
        assert_eq!(cal::OPTANE_READ_BW, nt("read bandwidth of Optane, measured"));
        assert_eq!(cal::OPTANE_WRITE_BW, nt("write bandwidth of Optane, measured"));
        assert_eq!(cal::REMOTE_READ_LATENCY, nt("latency of remote accesses, 4 KB to 256 KB"));
        assert!((cal::REMOTE_WRITE_LATENCY * nt("performance of remote writes") - 1.0).abs() < 1e-12);
        assert!((cal::REMOTE_LOAD * nt("bandwidth of remote accesses, 4 KB to 256 KB") - 1.0).abs() < 1e-12);
        assert!((1.0 / (1.0 - cal::CACHE_SHARED) - nt("read throughput with a shared last-level cache")).abs() < 1e-12);
        assert_eq!(cal::OPTANE_COPY_S * 16384.0, nt("migration of 16 KB on NVMM"));
    }
}
