//! The identities of threads, processes and files.
//!
//! Ids are used again. A start time tells a thread or process from a later one with its id, a
//! generation tells a file from a later one with its inode number. Each is a small value; text is
//! for JSON and for people.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId {
    /// Thread id.
    pub tid: u32,
    /// When it started, where that is known: in nanoseconds since boot; of a host's threads as
    /// procfs shows it, in whole hundredths of a second.
    pub start_ns: Option<NonZeroU64>,
}

impl ThreadId {
    /// The thread that started then; 0 is not known, either.
    pub fn new(tid: u32, start_ns: impl Into<Option<u64>>) -> Self {
        Self { tid, start_ns: start_ns.into().and_then(NonZeroU64::new) }
    }

    /// When it started, where that is known.
    pub fn start_ns(self) -> Option<u64> {
        self.start_ns.map(NonZeroU64::get)
    }

    /// Whether it is this thread, as far as is known: the start of `self` may not be.
    pub fn may_be(self, thread: Self) -> bool {
        self.tid == thread.tid && (self.start_ns.is_none() || self.start_ns == thread.start_ns)
    }
}

/// A process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// Process id.
    pub pid: u32,
    /// When it started, as [`ThreadId::start_ns`].
    pub start_ns: Option<NonZeroU64>,
}

impl ProcessId {
    /// The process that started then; 0 is not known, either.
    pub fn new(pid: u32, start_ns: impl Into<Option<u64>>) -> Self {
        Self { pid, start_ns: start_ns.into().and_then(NonZeroU64::new) }
    }

    /// When it started, where that is known.
    pub fn start_ns(self) -> Option<u64> {
        self.start_ns.map(NonZeroU64::get)
    }

    /// Its first thread, which has its id and start time.
    pub fn first_thread(self) -> ThreadId {
        ThreadId { tid: self.pid, start_ns: self.start_ns }
    }
}

/// A file, as the kernel names it. As text, which JSON has, too: `major:minor:inode`, without the
/// generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The superblock's device, or that of the subvolume on btrfs: major << 20 | minor.
    pub dev: u32,
    /// The inode's number.
    pub ino: u64,
    /// Tells the inode from an earlier one of that number; 0 where it is not known.
    pub generation: u32,
}

impl FileId {
    /// The device with these numbers, as [`FileId::dev`] has it.
    pub const fn device(major: u32, minor: u32) -> u32 {
        major << 20 | minor
    }

    /// Reads the very text that [`Display`](fmt::Display) writes; the generation is not known.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, rest) = text.split_once(':')?;
        let (minor, ino) = rest.split_once(':')?;
        let dev = Self::device(major.parse().ok()?, minor.parse().ok()?);
        Some(Self { dev, ino: ino.parse().ok()?, generation: 0 }).filter(|id| id.to_string() == text)
    }

    /// The same file, whatever its generation.
    pub fn any_generation(self) -> Self {
        Self { generation: 0, ..self }
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.dev >> 20, self.dev & 0xf_ffff, self.ino)
    }
}

impl Serialize for FileId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FileId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <Cow<'de, str>>::deserialize(deserializer)?;
        let wrong = || D::Error::invalid_value(Unexpected::Str(&text), &"a file id, `major:minor:inode`");
        Self::parse(&text).ok_or_else(wrong)
    }
}

impl JsonSchema for FileId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "FileId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_id_is_read_as_it_is_written() {
        for text in ["8:1:1234", "0:43:18446744073709551615", "4095:1048575:0"] {
            let id = FileId::parse(text).unwrap();
            assert_eq!((id.to_string().as_str(), id.generation), (text, 0));
            let json = serde_json::to_string(&FileId { generation: 7, ..id }).unwrap();
            assert_eq!((json.trim_matches('"'), serde_json::from_str(&json).unwrap()), (text, id));
        }
        for text in ["", "8:1", "8:1:", "a:1:2", "8:1:2:3", "08:1:2", "8:1:+2", "4096:0:1", "8:1048576:1", "8:1:-1"] {
            assert_eq!(FileId::parse(text), None, "{text}");
        }
    }
}
