//! Figures as people read them, the same everywhere: `300.0 MB`, `1.0 GiB`, `98 %`, `1.0 s`.
//!
//! Bytes that were read, written or moved are decimal (MB, as bandwidth is); sizes of files and
//! memories are binary (MiB, as pages are).

pub use topology::units::{parse_bytes, parse_positive_rate, parse_rate};

/// Bytes that moved: `512 B`, `4.1 kB`, `300.0 MB`.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Size of a file or a memory: `512 B`, `64.0 MiB`, `1.0 GiB`.
pub fn size(n: u64) -> String {
    scaled(n as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// Bandwidth in bytes/s: `812.0 MB/s`.
pub fn rate(bytes_per_s: f64) -> String {
    scaled(bytes_per_s.max(0.0), 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s", "EB/s"])
}

/// A fraction: `98 %`. Small and large fractions are not rounded to nothing or all: `<1 %`,
/// `>99 %`.
pub fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    match percent {
        p if p > 0.0 && p <= 0.5 => "<1 %".to_owned(),
        p if (99.5..100.0).contains(&p) => ">99 %".to_owned(),
        p => format!("{p:.0} %"),
    }
}

/// A time: `1.0 s`.
pub fn seconds(s: f64) -> String {
    // A short window must not look like none.
    match s {
        0.0005..0.095 => format!("{s:.3} s"),
        _ => format!("{s:.1} s"),
    }
}

/// A number without a unit, with five digits that count: `0.00021040`, `1.2500`.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        abs if (1e-9..1e15).contains(&abs) => {
            let decimals = 4 - (abs * 1.000_001).log10().floor() as i32;
            format!("{value:.*}", decimals.clamp(0, 12) as usize)
        }
        _ => format!("{value:.4e}"),
    }
}

/// A change by a fraction, with its sign: `+1.5 %`; what rounds to zero has none.
pub fn changed(fraction: f64) -> String {
    let text = format!("{:+.1} %", 100.0 * fraction);
    match text.contains(|c: char| c.is_ascii_digit() && c != '0') {
        true => text,
        false => text.trim_start_matches(['+', '-']).to_owned(),
    }
}

/// `1 thread`, `2 threads`.
pub fn count(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

fn scaled(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // 999.95 would print as 1000.0: it belongs to the next unit.
    while value >= base - 0.05 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let name = units.get(unit).copied().unwrap_or_default();
    let decimals = usize::from(unit > 0);
    format!("{value:.decimals$} {name}")
}

/// Reads a range of a file: `1GiB+256MiB` is 256 MiB from 1 GiB on, `4096+100` 100 bytes from byte
/// 4096 on.
pub fn parse_range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let error = || "expected OFFSET+LENGTH, such as 1GiB+256MiB".to_owned();
    let (offset, length) = text.split_once('+').ok_or_else(error)?;
    let (start, length) = (parse_bytes(offset)?, parse_bytes(length)?);
    match start.checked_add(length) {
        Some(end) if length > 0 && end <= i64::MAX as u64 => Ok(start..end),
        _ => Err(error()),
    }
}

/// Refuses a range that begins beyond the end of a file of this size: nothing is in it.
pub fn within(range: &std::ops::Range<u64>, file: u64) -> Result<(), String> {
    match range.start {
        0 => Ok(()),
        start if start < file => Ok(()),
        start => Err(format!("the range begins at {}, and the file ends at {}", size(start), size(file))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_five_digits_and_changes_one_decimal() {
        assert_eq!([0.0, 0.000_210_4, 1.25, 123_456.0].map(number), ["0", "0.00021040", "1.2500", "123456"]);
        assert_eq!([1e-30, -0.5].map(number), ["1.0000e-30", "-0.50000"]);
        assert_eq!([-0.0001, 0.0001, 0.015].map(changed), ["0.0 %", "0.0 %", "+1.5 %"]);
    }

    #[test]
    fn bytes_are_decimal_and_sizes_binary() {
        for (n, decimal, binary) in [
            (0, "0 B", "0 B"),
            (999, "999 B", "999 B"),
            (1_000, "1.0 kB", "1000 B"),
            (999_949, "999.9 kB", "976.5 KiB"),
            (999_950, "1.0 MB", "976.5 KiB"), // 999.95 kB would round to 1000.0 kB
            (300_000_000, "300.0 MB", "286.1 MiB"),
            (1 << 30, "1.1 GB", "1.0 GiB"),
            (u64::MAX, "18.4 EB", "16.0 EiB"),
        ] {
            assert_eq!((bytes(n).as_str(), size(n).as_str()), (decimal, binary));
        }
        assert_eq!(rate(6.8e9), "6.8 GB/s");
        assert_eq!(rate(f64::from(u32::MAX) * 1e20), "429496729500.0 EB/s");
    }

    #[test]
    fn almost_nothing_is_not_nothing() {
        let shown: Vec<_> = [0.0, 0.001, 0.005, 0.47, 0.994, 0.9951, 1.0, 1.25].map(percent).into();
        assert_eq!(shown, ["0 %", "<1 %", "<1 %", "47 %", "99 %", ">99 %", "100 %", "125 %"].map(String::from));
    }
}
