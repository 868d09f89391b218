//! Reading a file's bytes into the page cache of chosen nodes.
//!
//! **Problem.** The kernel puts what it reads in on the node of the first reader. A database or a
//! model that is to be spread over nodes, or to be near its threads, then lies where chance put it.
//!
//! **Approach.** `readahead(2)` by a thread with a memory policy ([`linux::allocation`]): each page
//! that is missing comes where the policy says, whatever CPU the thread runs on. The reads trail
//! behind by [`AHEAD`] bytes: they wait for the disk, report its errors, and read in what readahead
//! left out. Where the bytes are then, the caller asks the kernel ([`linux::residency`]).
//!
//! **Limits.**
//! - Pages that are cached stay where they are. [`Warm::drop_cached`] lets go of them first, except
//!   dirty pages and those that a process has mapped: nothing that must be written is dropped.
//! - The page cache is charged to the control group of the reader, this process. What that may not
//!   have is refused.
//! - A read from a file server that does not answer waits for it, as any read does.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use linux::allocation::{self, Spread};
use linux::memory;
use linux::residency::ResidencyError;
use linux::residency::cached;
use linux::residency::open::{self, Opened};
use topology::{MemoryKind, NodeId, Topology};

use crate::copying::{Copied, Copying};
use crate::pages;

/// Bytes of one request. The kernel cuts a larger one to the device's readahead, 128 KiB unless an
/// administrator changed it.
const REQUEST: u64 = 128 << 10;

/// Bytes that are asked for before the first of them is read: some tens of requests, which keep a
/// fast disk busy.
const AHEAD: u64 = 8 << 20;

/// Why a file is not read in. Every message names the file, or the node.
#[derive(Debug, thiserror::Error)]
pub enum WarmError {
    #[error(transparent)]
    File(#[from] ResidencyError),
    #[error("cannot warm {}: {why}", path.display())]
    Refused { path: PathBuf, why: String },
    #[error("cannot read files in on node {node}: {why}")]
    Node { node: NodeId, why: &'static str },
}

/// The nodes of a spread: those named, or those with CPUs that have memory and that this process's
/// cpuset allows; with `all`, also those without CPUs.
///
/// # Errors
///
/// [`WarmError::Node`]: the machine has no such node, or the cpuset does not allow its memory.
pub fn nodes(topology: &Topology, named: &[NodeId], all: bool) -> Result<Vec<NodeId>, WarmError> {
    // Unknown is no refusal: the kernel has the last word.
    let allowed = pages::allowed().ok().flatten();
    let refusal = |id: NodeId| match topology.node(id) {
        None => Some("this machine has no such node"),
        Some(node) if node.memory_bytes == 0 => Some("it has no memory"),
        Some(_) if allowed.as_ref().is_some_and(|allowed| !allowed.contains(id.0)) => {
            Some("the cpuset of homenode does not allow it memory there (Mems_allowed)")
        }
        Some(_) => None,
    };
    match named.iter().find_map(|node| Some((*node, refusal(*node)?))) {
        Some((node, why)) => Err(WarmError::Node { node, why }),
        None if !named.is_empty() => Ok(named.to_vec()),
        None => {
            // Slow memory, or a GPU's, is for those who name it.
            let wanted = topology.nodes.iter().filter(|node| all || node.memory == MemoryKind::Dram);
            Ok(wanted.map(|node| node.id).filter(|id| refusal(*id).is_none()).collect())
        }
    }
}

/// A range of a file that is being read in.
#[derive(Debug)]
pub struct Warm {
    file: Opened,
    range: Range<u64>,
    how: Spread,
    nodes: Vec<NodeId>,
    /// End of what was asked for, and of what was read.
    asked: u64,
    at: u64,
    /// Bytes of the range that were cached before; `None` where the kernel does not tell.
    before: Option<u64>,
    buffer: Vec<u8>,
}

impl Warm {
    /// Opens a file, and reads nothing in. The range is widened to whole pages, and ends with the
    /// file.
    pub fn open(path: &Path, range: Option<Range<u64>>, how: Spread, nodes: &[NodeId]) -> Result<Self, WarmError> {
        let file = open::open(path)?;
        pages::uncached(&file).map_err(|(_, why)| WarmError::Refused { path: path.to_owned(), why })?;
        let range = pages::whole_pages(&range.unwrap_or(0..file.size), file.size);
        let mut warm = Self {
            asked: range.start,
            at: range.start,
            file,
            range,
            how,
            nodes: nodes.to_vec(),
            before: None,
            buffer: vec![0; REQUEST as usize],
        };
        warm.before = warm.cached();
        Ok(warm)
    }

    pub fn file(&self) -> &Opened {
        &self.file
    }

    /// The bytes that are to be cached. A file that became shorter has fewer.
    pub fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Bytes of the range that were cached before anything was read in, less those that
    /// [`drop_cached`](Self::drop_cached) dropped. `None` where the kernel does not tell.
    pub fn before(&self) -> Option<u64> {
        self.before
    }

    /// From now on only this part of the open file, on these nodes.
    pub fn only(&mut self, part: Range<u64>, nodes: &[NodeId]) {
        (self.asked, self.at) = (part.start, part.start);
        (self.range, self.nodes) = (part, nodes.to_vec());
        self.before = self.cached();
    }

    /// Bytes of the range that are cached now; `None` where the kernel does not tell.
    fn cached(&self) -> Option<u64> {
        self.cached_of(&self.range)
    }

    fn cached_of(&self, range: &Range<u64>) -> Option<u64> {
        let bytes = range.end - range.start;
        let pages = if bytes > 0 { cached::count(&self.file.fd, range.start, bytes) } else { Some(0) };
        pages.map(|pages| pages.saturating_mul(rustix::param::page_size() as u64).min(bytes))
    }

    /// Lets go of the cached pages of the range, so that they are read in anew. Dirty and mapped
    /// pages stay.
    pub fn drop_cached(&mut self) -> Result<(), WarmError> {
        // The last page counts only if it is whole.
        let bytes = (self.range.end - self.range.start).next_multiple_of(rustix::param::page_size() as u64);
        if let Some(bytes) = NonZeroU64::new(bytes) {
            rustix::fs::fadvise(&self.file.fd, self.range.start, Some(bytes), rustix::fs::Advice::DontNeed)
                .map_err(|e| ResidencyError::file("drop the cached pages of", &self.file.path, e))?;
        }
        self.before = self.cached();
        Ok(())
    }

    /// Refuses what the nodes, or the control group of this process, have no room for.
    ///
    /// # Errors
    ///
    /// [`WarmError::Refused`] with the group, or the first node that is too full.
    pub fn fits(&self) -> Result<(), WarmError> {
        let missing = (self.range.end - self.range.start).saturating_sub(self.before.unwrap_or(0));
        self.group_room(missing)?;
        // By weight, a node takes more or less than its part; then the kernel takes another.
        let part = missing / self.nodes.len().max(1) as u64;
        self.nodes.iter().try_for_each(|to| self.room(*to, part))
    }

    /// Refuses parts of the file that the nodes have no room for, all of them together.
    pub fn parts_fit(&self, parts: &[(Range<u64>, NodeId)]) -> Result<(), WarmError> {
        let missing = self.missing(parts);
        self.group_room(missing.values().sum())?;
        missing.into_iter().try_for_each(|(to, bytes)| self.room(to, bytes))
    }

    /// Bytes of these parts that are not cached, by node.
    fn missing(&self, parts: &[(Range<u64>, NodeId)]) -> BTreeMap<NodeId, u64> {
        let mut missing = BTreeMap::<NodeId, u64>::new();
        for (range, node) in parts {
            *missing.entry(*node).or_default() +=
                (range.end - range.start).saturating_sub(self.cached_of(range).unwrap_or(0));
        }
        missing
    }

    /// What is read in is charged to the control group of this process, which evicts it again
    /// beyond its limit.
    fn group_room(&self, bytes: u64) -> Result<(), WarmError> {
        let Some(room) = memory::of_group(Path::new("/proc")).filter(|room| bytes > *room) else { return Ok(()) };
        let (takes, has) = ((bytes >> 20).max(1), room >> 20);
        let why = format!("it takes {takes} MiB, and the control group of homenode may have {has} MiB more");
        Err(WarmError::Refused { path: self.file.path.clone(), why })
    }

    fn room(&self, to: NodeId, bytes: u64) -> Result<(), WarmError> {
        pages::room(to, bytes, 0)
            .map_err(|why| WarmError::Refused { path: self.file.path.clone(), why: format!("of node {to}, {why}") })
    }

    /// Asks for what lies ahead, and reads the bytes of one request. Returns how many; 0 at the
    /// end of the file.
    fn read(&mut self) -> io::Result<u64> {
        while self.asked < self.range.end.min(self.at + AHEAD) {
            let len = REQUEST.min(self.range.end - self.asked);
            // A file system without readahead says EINVAL: then the reads do all the work. SAFETY:
            // a descriptor of ours and two numbers.
            unsafe { libc::readahead(self.file.fd.as_raw_fd(), self.asked as libc::off64_t, len as libc::size_t) };
            self.asked += len;
        }
        let wanted = REQUEST.min(self.range.end - self.at) as usize;
        let buffer = self.buffer.get_mut(..wanted).unwrap_or_default();
        loop {
            match self.file.fd.read_at(buffer, self.at) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => return read.map(|bytes| bytes as u64),
            }
        }
    }
}

impl Copying for Warm {
    /// The error of a read ends it; what was read in stays.
    fn step(&mut self, bytes: u64) -> io::Result<bool> {
        let _policy = allocation::spread(self.how, &self.nodes)?;
        let mut left = bytes.max(1);
        while left > 0 && self.at < self.range.end {
            let read = self.read()?;
            if read == 0 {
                // The file has become shorter.
                self.range.end = self.at;
            }
            self.at += read;
            left = left.saturating_sub(read);
        }
        Ok(self.at >= self.range.end)
    }

    fn copied(&self) -> Copied {
        let (total, moved) = (self.range.end - self.range.start, self.at - self.range.start);
        Copied { total, moved, ..Copied::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Room was asked for part by part, when the parts before had taken it already.
    #[test]
    fn the_parts_of_a_node_need_room_together() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 64 << 10]).unwrap();
        file.as_file().set_len(1 << 40).unwrap_or(());
        let mut warm = Warm::open(file.path(), Some(0..64 << 10), Spread::Bind, &[NodeId(0)]).unwrap();
        let parts = [(0..1 << 16, NodeId(0)), (1 << 20..3 << 20, NodeId(1)), (4 << 20..5 << 20, NodeId(0))];
        if warm.file().size < 5 << 20 || warm.before().is_none() {
            eprintln!("not tested: no sparse file, or the kernel does not count cached pages");
            return;
        }
        assert_eq!(warm.missing(&parts), [(NodeId(0), 1 << 20), (NodeId(1), 2 << 20)].into());
        assert!(warm.parts_fit(&parts[..1]).is_ok());
        let half = |start: u64| (start..start + (1 << 50), NodeId(0));
        assert!(warm.parts_fit(&[half(0), half(1 << 51)]).is_err());
        warm.only(4096..8192, &[NodeId(0)]);
        assert_eq!((warm.before(), warm.copied().total), (Some(4096), 4096));
        assert!(warm.step(1 << 20).unwrap());
    }
}
