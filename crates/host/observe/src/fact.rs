//! Whether something is there, or why not.

use std::fmt;

use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Fact {
    Available,
    Missing {
        /// Why, with the errno where there is one.
        cause: String,
    },
}

impl Fact {
    /// With what is missing before the cause.
    pub(super) fn named(self, what: &str) -> Self {
        match self {
            Self::Available => self,
            Self::Missing { cause } => Self::missing(format!("{what}: {cause}")),
        }
    }

    pub fn missing(cause: impl Into<String>) -> Self {
        Self::Missing { cause: cause.into() }
    }

    pub fn available(&self) -> bool {
        *self == Self::Available
    }

    pub fn cause(&self) -> Option<&str> {
        match self {
            Self::Available => None,
            Self::Missing { cause } => Some(cause),
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cause().unwrap_or("available"))
    }
}

impl<E: fmt::Display> From<Result<(), E>> for Fact {
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Available,
            Err(error) => Self::missing(error.to_string()),
        }
    }
}
