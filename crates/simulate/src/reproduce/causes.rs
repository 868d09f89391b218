//! Why a stated number or an ordering does not come out, where that is known.
//!
//! **Problem.** A miss may be an error of the model, a contradiction in the paper, or something that the paper does not tell.
//!
//! **Approach.** A table, by figure and by series or ordering. What is not in it has no known cause, and the report says so. An
//! entry that no miss needs any more is an error (a test looks for it).
//!
//! **Limits.** Causes are argued, not measured: nobody here has the papers' machines.

use crate::papers::Paper;

/// One known cause.
pub(super) struct Cause {
    paper: Paper,
    figure: &'static str,
    /// Series of a point, or `ordering`.
    series: &'static str,
    /// Point, or the beginning of an ordering's statement; empty: all of them.
    point: &'static str,
    why: &'static str,
}

/// Every known cause.
pub(super) const CAUSES: &[Cause] = &[];

impl Cause {
    fn is_of(&self, paper: Paper, figure: &str, series: &str, point: &str) -> bool {
        self.paper == paper && self.figure == figure && self.series == series && point.starts_with(self.point)
    }
}

/// The cause of a miss.
pub(super) fn of(paper: Paper, figure: &str, series: &str, point: &str) -> Option<&'static str> {
    CAUSES.iter().find(|c| c.is_of(paper, figure, series, point)).map(|c| c.why)
}
