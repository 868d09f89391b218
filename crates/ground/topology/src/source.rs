//! Reads files below a sysfs root and remembers them, so that a capture holds exactly these.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::{CpuSet, TopologyError};

/// Most bytes to read of a file. A sysfs attribute is one page, the `cpulist` of a very large
/// machine perhaps two.
const FILE_LIMIT: u64 = 1 << 20;

/// A sysfs root and everything that was read from it.
pub(crate) struct Source<'a> {
    root: &'a Path,
    seen: RefCell<BTreeMap<String, Seen>>,
}

/// One thing that was read, by its path below the root.
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

    pub(crate) fn into_seen(self) -> BTreeMap<String, Seen> {
        self.seen.into_inner()
    }

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

    /// A file's text, or `None` if the file does not exist.
    pub(crate) fn optional(&self, file: &str) -> Result<Option<String>, TopologyError> {
        match self.text(file) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.is_missing() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// What a file says that not every machine has; `None` if it cannot be read or understood.
    pub(crate) fn told<T: std::str::FromStr>(&self, file: &str) -> Option<T> {
        self.text(file).ok()?.trim().parse().ok()
    }

    /// A file with a list such as `0-3,8`.
    pub(crate) fn list(&self, file: &str) -> Result<CpuSet, TopologyError> {
        let text = self.text(file)?;
        text.parse().map_err(|_| self.wrong(file, &text, "is not a list such as `0-3,8`"))
    }

    /// Names in a directory that are `prefix` and a number, by ascending number; none if the
    /// directory does not exist.
    pub(crate) fn numbered(&self, dir: &str, prefix: &str) -> Result<Vec<(u32, String)>, TopologyError> {
        let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
        let mut found: Vec<_> = self.names(dir)?.into_iter().filter_map(|name| Some((number(&name)?, name))).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Names in a directory, sorted; none if the directory does not exist.
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
            // All names of interest are the kernel's, in plain ASCII.
            names.extend(entry.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Remembers an entry of which only the name matters.
    pub(crate) fn note_link(&self, file: &str) {
        let target = fs::read_link(self.path(file)).unwrap_or_else(|_| PathBuf::from("."));
        self.seen.borrow_mut().insert(file.to_owned(), Seen::Link(target));
    }

    /// The error for a file with a wrong text.
    pub(crate) fn wrong(&self, file: &str, text: &str, why: impl Into<String>) -> TopologyError {
        TopologyError::text(&self.path(file), text, why)
    }
}
