//! Numbers in settings that are refused where they mean nothing.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

fn number<'de, D: Deserializer<'de>>(from: D, fits: fn(f64) -> bool, wanted: &str) -> Result<f64, D::Error> {
    let value = f64::deserialize(from)?;
    if fits(value) { Ok(value) } else { Err(Error::custom(format_args!("{value} is not {wanted}"))) }
}

pub(crate) fn positive<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    number(from, |value| value > 0.0 && value.is_finite(), "a positive number")
}

pub(crate) fn not_negative<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    number(from, |value| value >= 0.0 && value.is_finite(), "zero or a positive number")
}

/// The same where there may be none.
pub(crate) fn maybe<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    not_negative(from).map(Some)
}

/// A share of what there is. A load can want somewhat more than all; a number far above 1 is a
/// percentage by mistake. `inf` is no limit.
pub(crate) fn share<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let fits = |value| value > 0.0 && (value <= MOST_SHARE || value == f64::INFINITY);
    number(from, fits, "a share: above 0 and at most 2 (0.9 is 90 %), or inf for no limit")
}

/// Largest share that is no mistake.
const MOST_SHARE: f64 = 2.0;

pub(crate) fn fraction<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    number(from, |value| (0.0..=1.0).contains(&value), "a fraction from 0 to 1")
}
