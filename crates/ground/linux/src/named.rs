//! Errors of the kernel that name what they are about.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::io;
use std::os::unix::ffi::OsStrExt;

/// The error with the name of its subject before it. Its errno stays in the chain of sources.
pub fn named(what: impl fmt::Display, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), Named { what: what.to_string(), error })
}

/// A name as text, two different names as different texts: a byte that is no UTF-8 is shown as
/// `\xff`, and the backslash of a name that has these four characters as `\x5c`.
pub fn shown(name: &OsStr) -> String {
    let mut text = String::new();
    for chunk in name.as_bytes().utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some((before, after)) = rest.split_once('\\') {
            // As if it were such a byte.
            let is_byte =
                matches!(after.as_bytes(), [b'x', b'8' | b'9' | b'a'..=b'f', low, ..] if low.is_ascii_hexdigit());
            text.push_str(before);
            text.push_str(if is_byte { "\\x5c" } else { "\\" });
            rest = after;
        }
        text.push_str(rest);
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[derive(Debug)]
struct Named {
    what: String,
    error: io::Error,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.error)
    }
}

impl Error for Named {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `raw\xff` and `raw\xfe` were one name in JSON and in labels.
    #[test]
    fn names_that_are_no_text_stay_apart() {
        for (name, text) in [
            (&b"/srv/a b\xc3\xa9"[..], "/srv/a b\u{e9}"),
            (b"raw\xff", r"raw\xff"),
            (b"raw\xfe", r"raw\xfe"),
            (b"raw\\xff", r"raw\x5cxff"),
            (b"\xff\\xfe\xc3", r"\xff\x5cxfe\xc3"),
            // As systemd escapes.
            (b"dev-disk\\x2dby\\", r"dev-disk\x2dby\"),
            (b"", ""),
        ] {
            assert_eq!(shown(OsStr::from_bytes(name)), text);
        }
    }
}
