//! The places in the kernel where a program can see file bytes.

use serde::{Deserialize, Serialize};

/// One place, and the program for it (`bpf/*.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hook {
    /// `fexit/filemap_get_pages`: each batch of folios that a read copies, with the exact byte
    /// range.
    ReadFunction,
    /// The same on kernels before 6.3, which pass the request as an iterator.
    ReadFunctionIter,
    /// `tp_btf/mm_filemap_get_pages`: the pages of every batch.
    ReadTracepoint,
    /// `fentry/set_pte_range`: pages mapped around a fault.
    EntriesFunction,
    /// `fentry/do_set_pte`: the same on kernels before 6.6.
    EntryFunction,
    /// `fexit/filemap_map_pages`: 2 MiB mapped at once.
    MapFunction,
    /// `tp_btf/page_fault_user`: what is mapped around a fault before it (x86-64).
    FaultBegins,
    /// `tp_btf/mm_filemap_map_pages`: pages mapped around a fault.
    MapTracepoint,
    /// `fexit/filemap_fault`: the page of a fault.
    FaultFunction,
    /// `tp_btf/mm_filemap_fault`: the same, before the page is present.
    FaultTracepoint,
    /// `fexit/generic_perform_write`: buffered writes of most file systems.
    WriteGeneric,
    /// `fexit/iomap_file_buffered_write`: buffered writes of xfs, gfs2 and block devices.
    WriteIomap,
    /// `tp_btf/ext4_da_write_end`: buffered writes of ext4.
    WriteExt4Delayed,
    /// `tp_btf/ext4_write_end`: the same without delayed allocation.
    WriteExt4,
    /// `tp_btf/ext4_journalled_write_end`: the same with `data=journal`.
    WriteExt4Journalled,
    /// `tp_btf/xfs_file_buffered_write`: buffered writes of xfs.
    WriteXfs,
    /// `tp_btf/writeback_dirty_folio`: a clean folio becomes dirty, for file systems that no other
    /// hook sees.
    WriteDirtied,
    /// `fexit/shmem_file_read_iter`: reads of tmpfs.
    ShmemRead,
    /// `fexit/shmem_file_splice_read`: sendfile and splice from tmpfs.
    ShmemSplice,
    /// `fexit/dax_iomap_rw`: reads and writes of DAX files.
    DaxRw,
    /// `kprobe/zpl_iter_read`: OpenZFS begins to read a file.
    ArcCall,
    /// `kprobe/zfs_uiomove`: OpenZFS copies a block from its cache.
    ArcRead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// At a function's beginning or return (fentry, fexit).
    Function,
    /// At a tracepoint, with the kernel's own types (tp_btf).
    Tracepoint,
    /// At an instruction, here a function's first (kprobe): the function needs no BTF.
    Probe,
}

impl Hook {
    pub const ALL: [Self; 22] = [
        Self::ReadFunction,
        Self::ReadFunctionIter,
        Self::ReadTracepoint,
        Self::EntriesFunction,
        Self::EntryFunction,
        Self::MapFunction,
        Self::FaultBegins,
        Self::MapTracepoint,
        Self::FaultFunction,
        Self::FaultTracepoint,
        Self::WriteGeneric,
        Self::WriteIomap,
        Self::WriteExt4Delayed,
        Self::WriteExt4,
        Self::WriteExt4Journalled,
        Self::WriteXfs,
        Self::WriteDirtied,
        Self::ShmemRead,
        Self::ShmemSplice,
        Self::DaxRw,
        Self::ArcCall,
        Self::ArcRead,
    ];

    /// The program's name, which is the hook's in JSON.
    pub fn program(self) -> String {
        serde_json::to_value(self).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
    }

    pub fn target(self) -> &'static str {
        match self {
            Self::ReadFunction | Self::ReadFunctionIter => "filemap_get_pages",
            Self::ReadTracepoint => "mm_filemap_get_pages",
            Self::EntriesFunction => "set_pte_range",
            Self::EntryFunction => "do_set_pte",
            Self::MapFunction => "filemap_map_pages",
            Self::FaultBegins => "page_fault_user",
            Self::MapTracepoint => "mm_filemap_map_pages",
            Self::FaultFunction => "filemap_fault",
            Self::FaultTracepoint => "mm_filemap_fault",
            Self::WriteGeneric => "generic_perform_write",
            Self::WriteIomap => "iomap_file_buffered_write",
            Self::WriteExt4Delayed => "ext4_da_write_end",
            Self::WriteExt4 => "ext4_write_end",
            Self::WriteExt4Journalled => "ext4_journalled_write_end",
            Self::WriteXfs => "xfs_file_buffered_write",
            Self::WriteDirtied => "writeback_dirty_folio",
            Self::ShmemRead => "shmem_file_read_iter",
            Self::ShmemSplice => "shmem_file_splice_read",
            Self::DaxRw => "dax_iomap_rw",
            Self::ArcCall => "zpl_iter_read",
            Self::ArcRead => "zfs_uiomove",
        }
    }

    pub fn kind(self) -> Kind {
        match self {
            Self::ReadFunction
            | Self::ReadFunctionIter
            | Self::EntriesFunction
            | Self::EntryFunction
            | Self::MapFunction
            | Self::FaultFunction
            | Self::WriteGeneric
            | Self::WriteIomap
            | Self::ShmemRead
            | Self::ShmemSplice
            | Self::DaxRw => Kind::Function,
            Self::ReadTracepoint
            | Self::FaultBegins
            | Self::MapTracepoint
            | Self::FaultTracepoint
            | Self::WriteExt4Delayed
            | Self::WriteExt4
            | Self::WriteExt4Journalled
            | Self::WriteXfs
            | Self::WriteDirtied => Kind::Tracepoint,
            Self::ArcCall | Self::ArcRead => Kind::Probe,
        }
    }

    /// The module that the target may be in.
    pub fn module(self) -> Option<&'static str> {
        match self {
            Self::WriteExt4Delayed | Self::WriteExt4 | Self::WriteExt4Journalled => Some("ext4"),
            Self::WriteXfs => Some("xfs"),
            _ => None,
        }
    }
}
