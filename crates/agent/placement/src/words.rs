//! Figures in the sentences of a plan.
//!
//! The formatting is written by hand rather than with `format!("{:.1}")`: a plan may hold a
//! sentence for each of 100,000 threads, and formatting floats would take most of the decision
//! time.

/// Appends bytes in decimal units with one decimal: `830.0 MB`, `4.1 GB`.
pub(crate) fn push_bytes(text: &mut String, bytes: u64) {
    // 999.95 MB and more would round to 1000.0 MB, so they become 1.0 GB. With a constant divisor
    // in each arm, the division compiles to a multiplication.
    match bytes {
        0..999_950_000 => push_tenths(text, (bytes + 50_000) / 100_000, b" MB"),
        999_950_000..999_950_000_000 => push_tenths(text, (bytes + 50_000_000) / 100_000_000, b" GB"),
        _ => push_tenths(text, bytes.saturating_add(50_000_000_000) / 100_000_000_000, b" TB"),
    }
}

/// Appends `12.3 MB` for 123 tenths, in one piece.
fn push_tenths(text: &mut String, tenths: u64, unit: &[u8; 3]) {
    let mut piece = [0u8; 32];
    let end = piece.len() - unit.len();
    piece[end..].copy_from_slice(unit);
    piece[end - 1] = b'0' + (tenths % 10) as u8;
    piece[end - 2] = b'.';
    let first = write_number(&mut piece[..end - 2], tenths / 10);
    push_ascii(text, &piece[first..]);
}

/// Appends a number.
pub(crate) fn push_number(text: &mut String, number: u64) {
    let mut piece = [0u8; 20];
    let first = write_number(&mut piece, number);
    push_ascii(text, &piece[first..]);
}

/// Writes digits that end at the end of `piece`, which has at least 20 bytes; returns where they
/// begin.
fn write_number(piece: &mut [u8], mut number: u64) -> usize {
    let mut first = piece.len();
    loop {
        first -= 1;
        piece[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return first;
        }
    }
}

fn push_ascii(text: &mut String, ascii: &[u8]) {
    text.push_str(std::str::from_utf8(ascii).unwrap_or_default());
}

/// Appends a fraction as whole percent: `97 %`.
pub(crate) fn push_percent(text: &mut String, fraction: f64) {
    // A float too large for u64 becomes its maximum; NaN becomes 0.
    push_number(text, (fraction * 100.0).round() as u64);
    text.push_str(" %");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(n: u64) -> String {
        let mut text = String::new();
        push_bytes(&mut text, n);
        text
    }

    #[test]
    fn bytes_are_decimal_with_one_decimal_and_rounded() {
        assert_eq!(bytes(0), "0.0 MB");
        assert_eq!(bytes(49_999), "0.0 MB");
        assert_eq!(bytes(50_000), "0.1 MB");
        assert_eq!(bytes(812_000_000), "812.0 MB");
        assert_eq!(bytes(999_949_999), "999.9 MB");
        assert_eq!(bytes(999_950_000), "1.0 GB");
        assert_eq!(bytes(4_149_000_000), "4.1 GB");
        assert_eq!(bytes(999_949_999_999), "999.9 GB");
        assert_eq!(bytes(1 << 53), "9007.2 TB");
        assert_eq!(bytes(u64::MAX), "18446744.0 TB");
    }

    #[test]
    fn percent_is_whole() {
        let percent = |fraction| {
            let mut text = String::new();
            push_percent(&mut text, fraction);
            text
        };
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(0.974), "97 %");
        assert_eq!(percent(2.165), "217 %");
    }
}
