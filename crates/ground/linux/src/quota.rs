//! Quotas of a mounted volume: what its server is asked, and answers.
//!
//! As for files ([`crate::volume`]), the server answers attributes that no file has, to those with
//! CAP_SYS_ADMIN: [`QUOTA`] of any file is the whole volume's, [`PROJECT`] that of the file.

use serde::{Deserialize, Serialize};

/// Read: what users and projects use and may ([`Quotas`]), as JSON; set: a [`Limit`].
pub const QUOTA: &str = "trusted.homenode.quota";
/// Read, set: the project of a file or directory; 0 is none.
pub const PROJECT: &str = "trusted.homenode.project";

/// Users and projects that one answer has room for.
pub const MOST: usize = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    User(u32),
    Project(u32),
}

/// What a user or a project uses and may. Limits of 0 are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    #[serde(flatten)]
    pub subject: Subject,
    pub bytes: u64,
    /// Of these, at most.
    pub bytes_limit: u64,
    /// Files, directories and others.
    pub files: u64,
    /// Of these, at most.
    pub files_limit: u64,
}

/// All of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotas {
    /// The volume is still being counted: what is used is more.
    pub counting: bool,
    /// Those with limits first.
    pub quotas: Vec<Quota>,
    /// Of these there are more, without limits.
    pub more: bool,
}

impl Quotas {
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Limits for a user or a project: `user 1000 1073741824 0`, of bytes and of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub subject: Subject,
    /// Bytes; 0: no limit.
    pub bytes: u64,
    /// Files; 0: no limit.
    pub files: u64,
}

impl Limit {
    /// Reads a value. `None`: it has no such form.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(value).ok()?.split_ascii_whitespace();
        let kind = words.next()?;
        let id = words.next()?.parse().ok()?;
        let subject = match kind {
            "user" => Subject::User(id),
            "project" => Subject::Project(id),
            _ => return None,
        };
        let limit = Self { subject, bytes: words.next()?.parse().ok()?, files: words.next()?.parse().ok()? };
        words.next().is_none().then_some(limit)
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, id) = match self.subject {
            Subject::User(id) => ("user", id),
            Subject::Project(id) => ("project", id),
        };
        write!(f, "{kind} {id} {} {}", self.bytes, self.files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_and_answered_reads_back() {
        let limit = Limit { subject: Subject::Project(7), bytes: 1 << 30, files: 0 };
        assert_eq!(Limit::parse(limit.to_string().as_bytes()), Some(limit));
        for wrong in ["", "user", "user x 1 1", "group 1 1 1", "user 1 1", "user 1 1 1 1", "user 1 -1 0"] {
            assert_eq!(Limit::parse(wrong.as_bytes()), None, "{wrong}");
        }
        let quota = Quota { subject: Subject::User(1000), bytes: 4096, bytes_limit: 8192, files: 1, files_limit: 0 };
        let json = serde_json::to_string(&quota).unwrap();
        assert_eq!(json, r#"{"user":1000,"bytes":4096,"bytes_limit":8192,"files":1,"files_limit":0}"#);
        assert_eq!(serde_json::from_str::<Quota>(&json).unwrap(), quota);
    }
}
