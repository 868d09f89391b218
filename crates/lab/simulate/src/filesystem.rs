//! File systems, as far as placement can tell them apart: software cost per call, bytes of their
//! own, and the node of written data.
//!
//! **Problem.** The papers compare file systems; their differences are partly NUMA and partly
//! code.
//!
//! **Approach.** A file system has [`Costs`], made of [`Constants`], and a [`Layout`].
//!
//! **Limits.** Costs do not depend on load or fragmentation; a journal is a cost, not an object.

use serde::{Deserialize, Serialize};

use crate::constants::Constants;

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// ext4 with DAX on one node's persistent memory.
    Ext4Dax,
    /// PMFS on one node.
    Pmfs,
    /// NOVA on one node.
    Nova,
    /// NOVA over all nodes, new blocks on a random one (NThread II-C).
    NovaN,
    /// homenode's own: costs of NOVA, new blocks on the node where the writer runs.
    Homenode,
    /// Any disk file system with its files in the page cache: written in place, new pages where the
    /// toucher runs.
    PageCache,
    /// ZFS with its files in the ARC.
    Zfs,
    /// Persistent memory mapped into the process and copied by libpmem: no calls.
    Mapped,
}

/// Where written bytes land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Everything on the node of the file system's device.
    Device,
    /// Over the old bytes; new bytes on the writer's node.
    InPlace,
    /// On the writer's node, old bytes given up.
    Local,
    /// Spread evenly over the nodes, old bytes given up.
    Random,
}

/// Software cost of a file system: seconds of CPU per call, bytes of its own per write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// One read call.
    pub read_s: f64,
    /// Each byte read, beyond what its memory takes.
    pub read_byte_s: f64,
    /// One write call over existing bytes.
    pub overwrite_s: f64,
    /// One write call beyond the end.
    pub append_s: f64,
    /// Opening and closing.
    pub open_s: f64,
    /// Creating or deleting.
    pub name_s: f64,
    /// Finding a name to create or delete, per entry of its directory.
    pub entry_s: f64,
    /// Making durable what was written.
    pub fsync_s: f64,
    /// Share of `append_s`, `name_s` and `fsync_s` that excludes every other writer of the file
    /// system (its journal).
    pub serial: f64,
    /// Bytes of its own written with every overwrite.
    pub overwrite_bytes: f64,
    /// Bytes of its own written with every append, create and delete.
    pub append_bytes: f64,
}

impl Costs {
    /// CPU seconds to read this many bytes in calls of at most that size.
    pub fn reading(&self, bytes: f64, call: f64) -> f64 {
        (bytes / call).ceil().max(1.0) * self.read_s + bytes * self.read_byte_s
    }
}

impl FileSystem {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Ext4Dax, Self::Pmfs, Self::Nova, Self::NovaN, Self::Homenode, Self::PageCache, Self::Zfs, Self::Mapped];

    /// Its software cost.
    pub fn costs(self, c: &Constants) -> Costs {
        let page_cache = Costs {
            read_s: c.call_s,
            read_byte_s: 0.0,
            overwrite_s: c.call_s,
            append_s: 2.0 * c.call_s,
            open_s: c.open_s,
            name_s: c.name_s,
            entry_s: 0.0,
            fsync_s: 0.0,
            serial: 0.0,
            overwrite_bytes: 0.0,
            append_bytes: 0.0,
        };
        match self {
            Self::PageCache => page_cache,
            // Overwrites in place; allocation and names go through the journal.
            Self::Ext4Dax => Costs {
                append_s: c.ext4_append_s,
                fsync_s: c.ext4_fsync_s,
                serial: c.ext4_serial,
                append_bytes: 2.0 * c.optane_line,
                ..page_cache
            },
            // Overwrites in place, undo journal, directories searched from the beginning.
            Self::Pmfs => Costs {
                append_s: c.pmfs_append_s,
                name_s: c.name_s * c.pmfs_append_s / c.ext4_append_s,
                entry_s: c.pmfs_entry_s,
                fsync_s: c.call_s,
                overwrite_bytes: c.optane_line,
                append_bytes: 3.0 * c.optane_line,
                ..page_cache
            },
            // Every write goes to new blocks and leaves an entry and a tail in the inode's log.
            Self::Nova | Self::NovaN | Self::Homenode => Costs {
                overwrite_s: c.nova_append_s,
                append_s: c.nova_append_s,
                name_s: c.name_s * c.nova_append_s / c.ext4_append_s,
                fsync_s: c.call_s,
                overwrite_bytes: 2.0 * c.optane_line,
                append_bytes: 2.0 * c.optane_line,
                ..page_cache
            },
            // The file is in the ARC: copied by ZFS, block by block.
            Self::Zfs => Costs { read_s: 2.0 * c.call_s, read_byte_s: c.arc_copy_s, ..page_cache },
            // No calls: what fio spends between two copies.
            Self::Mapped => Costs { read_s: c.mapped_call_s, overwrite_s: c.mapped_call_s, ..page_cache },
        }
    }

    /// Where its writes land.
    pub fn layout(self) -> Layout {
        match self {
            Self::Ext4Dax | Self::Pmfs | Self::Nova | Self::Mapped => Layout::Device,
            Self::PageCache | Self::Zfs => Layout::InPlace,
            Self::Homenode => Layout::Local,
            Self::NovaN => Layout::Random,
        }
    }

    /// Whether reads and writes pass the kernel, so that somebody can count them per thread.
    pub fn counted(self) -> bool {
        self != Self::Mapped
    }

    /// Whether a file's data can be moved to another node while it is in use.
    pub fn moves_files(self) -> bool {
        !matches!(self, Self::Ext4Dax | Self::Pmfs | Self::Mapped | Self::Zfs)
    }
}
