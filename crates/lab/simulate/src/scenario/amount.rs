//! Amounts as people write them: `"4 KiB"`, `"6.8 GB/s"`, or a plain number of bytes.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// The largest: no machine has more, and no sum of a run gets out of hand.
const MOST: f64 = 1e18;

/// A number as a person reads it: not with three hundred digits.
pub(super) fn shown(value: f64) -> String {
    match value.abs() < 1e16 && (value == 0.0 || value.abs() > 1e-5) {
        true => value.to_string(),
        false => format!("{value:e}"),
    }
}

/// Bytes, or bytes per second: a finite number, not negative; none, or at least one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Amount(pub f64);

/// The number and factor of a text such as `4 KiB` or `6.8 GB/s`.
fn parse(text: &str) -> Option<f64> {
    let text = text.trim();
    let text = text.strip_suffix("/s").unwrap_or(text);
    let digits = text.find(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E')).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let factor = match unit {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    number.trim().parse::<f64>().ok().map(|n| n * factor)
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        fn check<E: Error>(value: Option<f64>, shown: impl fmt::Display) -> Result<Amount, E> {
            match value.filter(|v| v.is_finite() && *v >= 0.0) {
                Some(value) if value > MOST => Err(E::custom(format!("`{shown}` is too much: at most 1e18 bytes"))),
                Some(value) if value > 0.0 && value < 1.0 => Err(E::custom(format!("`{shown}` is less than a byte"))),
                Some(value) => Ok(Amount(value)),
                None => Err(E::custom(format!(
                    "`{shown}` is not an amount: a number of bytes, or text such as \"4 KiB\" or \"6.8 GB/s\""
                ))),
            }
        }
        impl Visitor<'_> for Text {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, or text such as \"4 KiB\" or \"6.8 GB/s\"")
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Amount, E> {
                check(Some(value), shown(value))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Amount, E> {
                check(Some(value as f64), value)
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Amount, E> {
                check(Some(value as f64), value)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Amount, E> {
                check(parse(text), text)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        for (text, bytes) in [
            ("4096", Some(4096.0)),
            ("4 KiB", Some(4096.0)),
            ("6.8 GB/s", Some(6.8e9)),
            ("1e3", Some(1e3)),
            ("1 TiB", Some(1099511627776.0)),
            ("128kB", Some(128e3)),
            ("4 kib", None),
            ("", None),
            ("GB", None),
        ] {
            assert_eq!(parse(text), bytes, "{text}");
        }
    }
}
