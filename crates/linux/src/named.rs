//! Errors of the kernel that name what they are about.

use std::error::Error;
use std::fmt;
use std::io;

/// The error with the name of its subject before it. Its errno stays in the chain of sources.
pub fn named(what: impl fmt::Display, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), Named { what: what.to_string(), error })
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
