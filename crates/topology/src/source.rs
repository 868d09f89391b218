//! Reads files under a sysfs root and remembers what was read, so that a capture holds just that.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::{CpuSet, TopologyError};

/// A sysfs attribute is one page; a `cpulist` of a very large machine may be two. More is not sysfs.
const FILE_LIMIT: u64 = 1 << 20;

/// A sysfs root and everything that was read from it.
pub(crate) struct Source<'a> {
    root: &'a Path,
    seen: RefCell<BTreeMap<String, Seen>>,
}

/// One thing that was looked at, keyed by its path below the root.
pub(crate) enum Seen {
    /// A file with its content.
    File(String),
    /// A link whose name alone says something (`node0/cpu3`).
    Link(PathBuf),
}

impl<'a> Source<'a> {
    pub(crate) fn new(root: &'a Path) -> Self {
        Self { root, seen: RefCell::default() }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    /// Everything that was looked at.
    pub(crate) fn into_seen(self) -> BTreeMap<String, Seen> {
        self.seen.into_inner()
    }

    /// A file's text.
    pub(crate) fn text(&self, file: &str) -> Result<String, TopologyError> {
        let path = self.path(file);
        let mut bytes = Vec::new();
        fs::File::open(&path)
            .and_then(|f| f.take(FILE_LIMIT).read_to_end(&mut bytes))
            .map_err(|e| TopologyError::read(&path, e))?;
        let text = String::from_utf8(bytes)
            .map_err(|e| TopologyError::text(&path, &String::from_utf8_lossy(e.as_bytes()), "is not text"))?;
        self.seen.borrow_mut().insert(file.to_owned(), Seen::File(text.clone()));
        Ok(text)
    }

    /// A file's text, or `None` where there is no such file.
    pub(crate) fn optional(&self, file: &str) -> Result<Option<String>, TopologyError> {
        match self.text(file) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.is_missing() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// A file with a list such as `0-3,8`.
    pub(crate) fn list(&self, file: &str) -> Result<CpuSet, TopologyError> {
        let text = self.text(file)?;
        text.parse().map_err(|_| self.wrong(file, &text, "is not a list such as `0-3,8`"))
    }

    /// Names in a directory that are `prefix` and a number, by rising number; nothing where there is no such directory.
    pub(crate) fn numbered(&self, dir: &str, prefix: &str) -> Result<Vec<(u32, String)>, TopologyError> {
        let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
        let mut found: Vec<_> = self.names(dir)?.into_iter().filter_map(|name| Some((number(&name)?, name))).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Names in a directory, sorted; nothing where there is no such directory.
    pub(crate) fn names(&self, dir: &str) -> Result<Vec<String>, TopologyError> {
        let path = self.path(dir);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(TopologyError::read(&path, e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| TopologyError::read(&path, e))?;
            // Every name that matters here is the kernel's own and plain ASCII.
            names.extend(entry.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Remembers that an entry exists, whose name alone was the information.
    pub(crate) fn note_link(&self, file: &str) {
        let target = fs::read_link(self.path(file)).unwrap_or_else(|_| PathBuf::from("."));
        self.seen.borrow_mut().insert(file.to_owned(), Seen::Link(target));
    }

    /// The error for a file whose text is wrong.
    pub(crate) fn wrong(&self, file: &str, text: &str, why: impl Into<String>) -> TopologyError {
        TopologyError::text(&self.path(file), text, why)
    }
}
