//! Rates and sizes as people write them, on the command line and in files: `6.8 GB/s`, `4MiB`.
//!
//! Units are decimal (kB, MB, GB, TB) or binary (KiB, MiB, GiB, TiB). A rate without one is refused
//! everywhere: `20` would be 20 B/s, which nobody means. A size without one is in bytes.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, Visitor};

/// Reads `4MiB`, `300 MB`, `4096`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let value = parse(text, "")?;
    if value > u64::MAX as f64 {
        return Err("too large".to_owned());
    }
    Ok(value.round() as u64)
}

/// Reads `200MB/s`, `6.8 GB/s`, `0`, in bytes/s.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let amount = text.trim().strip_suffix("/s").unwrap_or(text);
    match parse(text, "/s")? {
        rate if rate > 0.0 && !amount.contains(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E')) => {
            // A large number is meant in bytes.
            let amount = if rate >= 1e5 { (rate / 1e6).to_string() } else { amount.trim().to_owned() };
            Err(format!("the unit is missing, as in \"{amount}MB/s\""))
        }
        rate => Ok(rate),
    }
}

/// Reads a rate as [`parse_rate`] does, of at least 1 byte/s.
pub fn parse_positive_rate(text: &str) -> Result<f64, String> {
    match parse_rate(text)? {
        rate if rate >= 1.0 => Ok(rate),
        _ => Err("must be at least 1 byte a second".to_owned()),
    }
}

fn parse(text: &str, suffix: &str) -> Result<f64, String> {
    let error = || format!("expected a number with a unit, such as 200MB{suffix}");
    let text = text.trim();
    let text = text.strip_suffix(suffix).unwrap_or(text).trim_end();
    // An exponent's `e` is part of the number; no unit starts with it.
    let in_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    let end = text.find(|c| !in_number(c)).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if matches!(unit.trim(), "Kb" | "Mb" | "Gb" | "Tb") {
        return Err(format!("bits are not meant, but bytes, as in {number} {}{suffix}", unit.trim().to_uppercase()));
    }
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(error()),
    };
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 && (value * factor).is_finite() => Ok(value * factor),
        _ => Err(error()),
    }
}

/// A size in a file.
pub fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(Written(parse_bytes))
}

/// A limit of bytes in a file; `inf` is none.
pub fn bytes_limit<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    from.deserialize_any(Written(|text| or_inf(text, |text| parse_bytes(text).map(|bytes| bytes as f64))))
}

/// A rate in a file.
pub fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    from.deserialize_any(Written(parse_rate))
}

/// A rate in a file, of at least 1 byte/s.
pub fn positive_rate<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    from.deserialize_any(Written(parse_positive_rate))
}

/// A limit of a rate in a file; `inf` is none.
pub fn rate_limit<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    from.deserialize_any(Written(|text| or_inf(text, parse_rate)))
}

fn or_inf(text: &str, parse: fn(&str) -> Result<f64, String>) -> Result<f64, String> {
    if text == "inf" { Ok(f64::INFINITY) } else { parse(text) }
}

/// Text, or a number, which is read as if it were text.
struct Written<T>(fn(&str) -> Result<T, String>);

impl<T> Visitor<'_> for Written<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text such as \"200MB/s\" or \"4MiB\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(|why| E::custom(format_args!("`{text}`: {why}")))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct File {
        #[serde(default, deserialize_with = "super::bytes")]
        size: u64,
        #[serde(default, deserialize_with = "super::rate")]
        rate: f64,
        #[serde(default, deserialize_with = "super::rate_limit")]
        limit: f64,
    }

    fn file(text: &str) -> Result<File, String> {
        toml::from_str(text).map_err(|e| e.message().to_owned())
    }

    #[test]
    fn what_a_user_types_is_read_with_its_unit_on_the_line_and_in_a_file() {
        for (text, n) in [("4MiB", 4 << 20), ("300 MB", 300_000_000), ("4096", 4096), ("1.5k", 1500), ("0", 0)] {
            assert_eq!(parse_bytes(text), Ok(n), "{text}");
            assert_eq!(file(&format!("size = {text:?}")).unwrap().size, n, "{text}");
        }
        for (text, n) in
            [("200MB/s", 2e8), ("6.8 GB/s", 6.8e9), ("1e3kB/s", 1e6), ("2 GiB/s", 2147483648.0), ("0", 0.0)]
        {
            assert_eq!(parse_rate(text), Ok(n), "{text}");
            assert_eq!(file(&format!("rate = {text:?}")).unwrap().rate, n, "{text}");
        }
        for text in ["", "MB", "-1", "1e999", "nan", "inf", "5 parsecs", "1..2", "3e40"] {
            assert!(parse_bytes(text).is_err(), "{text}");
            assert!(file(&format!("size = {text:?}")).is_err(), "{text}");
        }
        assert!(parse_rate("-5MB/s").is_err());
    }

    #[test]
    fn a_number_without_a_unit_is_a_size_and_no_rate() {
        assert_eq!((file("size = 4096").unwrap().size, file("size = 4e3").unwrap().size), (4096, 4000));
        assert_eq!((file("rate = 0").unwrap().rate, file("limit = inf").unwrap().limit), (0.0, f64::INFINITY));
        let why = "the unit is missing, as in \"20MB/s\"";
        assert_eq!((parse_rate("20"), parse_rate("20/s")), (Err(why.to_owned()), Err(why.to_owned())));
        let bits = "bits are not meant, but bytes, as in 10 GB/s".to_owned();
        assert_eq!((parse_rate("10 Gb/s"), parse_rate("10gb/s")), (Err(bits), Ok(1e10)));
        for text in ["rate = 20", "rate = 20.0", "rate = \"20\"", "limit = 20"] {
            assert_eq!(file(text).unwrap_err(), format!("`20`: {why}"), "{text}");
        }
        assert!(file("rate = inf").is_err() && file("rate = -1").unwrap_err().contains("-1"));
        assert_eq!(parse_positive_rate("0"), Err("must be at least 1 byte a second".to_owned()));
    }
}
