//! Decodes the bytes that the BPF programs hand over (`bpf/intf.h`).
//!
//! **Problem.** Map entries and iterator output are plain bytes in the kernel's layout.
//!
//! **Approach.** The build turns each structure of the header into a [`record!`], which is read
//! field by field: no transmutes, and short input gives `None`.
//!
//! **Limits.** Host byte order only. A structure may have no gaps between its fields.

use std::ffi::OsStr;
use std::ops::{Deref, DerefMut, Range};
use std::os::unix::ffi::OsStrExt;

use linux::births::{Descendant, Origin};
use linux::threads::as_shown;
use placement::ranges::RangeKey;
use topology::{FileId, ProcessId};

/// A field or a structure of them.
pub(super) trait Record: Copy {
    const BYTES: usize;

    /// Takes it off the front of these bytes.
    fn take(bytes: &mut &[u8]) -> Option<Self>;

    /// Adds it to the end of these bytes.
    fn put(&self, bytes: &mut Vec<u8>);

    /// Each number of it and of another one by `op`, in the kernel's arithmetic modulo 2^64.
    fn combined(self, other: Self, op: fn(u64, u64) -> u64) -> Self;

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        Self::take(&mut bytes)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        self.put(&mut bytes);
        bytes
    }
}

macro_rules! number {
    ($($type:ty)*) => {
        $(impl Record for $type {
            const BYTES: usize = size_of::<Self>();

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (head, tail) = bytes.split_first_chunk()?;
                *bytes = tail;
                Some(Self::from_ne_bytes(*head))
            }

            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_ne_bytes());
            }

            fn combined(self, other: Self, op: fn(u64, u64) -> u64) -> Self {
                op(self as u64, other as u64) as Self
            }
        })*
    };
}
number!(u8 u16 u32 u64 i64);

impl<const N: usize> Record for [u8; N] {
    const BYTES: usize = N;

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (head, tail) = bytes.split_first_chunk()?;
        *bytes = tail;
        Some(*head)
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self);
    }

    fn combined(self, _: Self, _: fn(u64, u64) -> u64) -> Self {
        self
    }
}

/// A structure of the programs'.
macro_rules! record {
    ($name:ident { $($field:ident: $type:ty,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        impl Record for $name {
            const BYTES: usize = 0 $(+ <$type>::BYTES)*;

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: Record::take(bytes)?,)* })
            }

            fn put(&self, bytes: &mut Vec<u8>) {
                $(self.$field.put(bytes);)*
            }

            fn combined(self, other: Self, op: fn(u64, u64) -> u64) -> Self {
                Self { $($field: self.$field.combined(other.$field, op),)* }
            }
        }

        const _: () = assert!($name::BYTES == size_of::<$name>(), "there is a gap between its fields");
    };
}

/// The constants and structures of `bpf/intf.h`, where their comments are. The build makes them.
pub(super) mod intf {
    #![allow(dead_code, non_camel_case_types)] // some are for the programs alone; the names are theirs
    use super::Record;
    include!(concat!(env!("OUT_DIR"), "/intf.rs"));
}
use intf::{
    NOT_OPEN, ORIGIN_BORN, ORIGIN_MARKED, START_SHIFT, TASK_ASKED, TASK_IN_TREE, TASK_KEPT, TASK_KTHREAD,
    TASK_NOT_ASKED, descendant_record, group_record, pending, sampler, task_record,
};
pub(super) use intf::{counters as Counters, range_key, usage as Usage, usage_key as Key, watched as Watched};

const _: () = assert!(intf::NS_PER_TICK as u64 == linux::threads::NS_PER_TICK);
const _: () = assert!(1 << intf::RANGE_SHIFT == placement::RANGE_BYTES);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Task {
    pub record: task_record,
    /// Words of the affinity mask: a range of [`Pass::masks`].
    pub mask: Range<usize>,
}

impl Deref for Task {
    type Target = task_record;

    fn deref(&self) -> &task_record {
        &self.record
    }
}

impl DerefMut for Task {
    fn deref_mut(&mut self) -> &mut task_record {
        &mut self.record
    }
}

#[derive(Debug, Default)]
pub(super) struct Pass {
    pub tasks: Vec<Task>,
    /// The masks of all tasks, one after the other.
    pub masks: Vec<u64>,
    /// There were more than a pass has room or time for.
    pub cut: bool,
}

impl Key {
    /// Where it comes in a list: the entries of a thread are together, of these those of a control
    /// group, and of these a file's.
    pub fn order(&self) -> impl Ord + use<> {
        (self.owner(), self.dev, self.ino, self.node)
    }

    /// The thread: its id, and a part of its start time.
    pub fn thread(&self) -> (u32, u32) {
        (self.tid, self.start_lo)
    }

    /// The thread and its control group.
    pub fn owner(&self) -> (u32, u32, u64) {
        (self.tid, self.start_lo, self.group)
    }

    /// The file, of any generation.
    pub fn file(&self) -> FileId {
        FileId { dev: self.dev, ino: self.ino, generation: 0 }
    }

    /// The key for bytes on one node that found no free entry.
    pub fn unattributed(node: u32) -> Vec<u8> {
        Self { node, ..Self::default() }.encode()
    }
}

/// A range of a file with the node of its data and that of its readers, and its bytes: a sum of the
/// kernel's.
pub(super) fn range(key: &[u8], value: &[u8]) -> Option<(RangeKey, u64)> {
    let range_key { ino, dev, generation, range, node, here } = Record::decode(key)?;
    let file = FileId { dev, ino, generation };
    Some((RangeKey { file, range, node, by: here }, i64::decode(value)?.max(0) as u64))
}

impl Usage {
    /// Whether the file's bytes were touched, not only handed on.
    pub fn touched(&self) -> bool {
        self.read > 0 || self.written > 0 || self.handed == 0
    }

    /// The smaller of its opens and these; 0 is unknown. As in the programs, because who looks at a
    /// file opens it for a moment.
    pub fn fewer_opens(&self, opens: u32) -> u32 {
        [self.opens, opens].into_iter().filter(|n| *n > 0).min().unwrap_or(0)
    }

    /// Adds another entry of the same key.
    pub fn add(&mut self, other: Self) {
        let (opens, generation, here) = (other.fewer_opens(self.opens), other.generation, other.here);
        *self = Self { opens, generation, here, ..self.combined(other, u64::wrapping_add) };
    }

    /// Adds what slices stand for, times `scale`, to what was read.
    pub fn unslice(&mut self, scale: f64) {
        let scaled = |n: i64, by: f64| (n as f64 * by).round() as i64;
        let (sliced, remote) = (std::mem::take(&mut self.sliced), std::mem::take(&mut self.sliced_remote));
        let before = self.called + sliced;
        self.read += scaled(sliced, scale);
        self.called += scaled(sliced, scale);
        self.remote += scaled(remote, scale);
        self.handed = scaled(self.handed, scale);
        // The calls and their bytes keep their proportion.
        if before > 0 {
            let by = self.called as f64 / before as f64;
            for calls in [&mut self.calls, &mut self.placed, &mut self.continued] {
                *calls = scaled(*calls, by);
            }
        }
    }
}

/// A CPU's latest entry, not yet in its table; `None` also when nothing is pending.
pub(super) fn pending_entry(bytes: &[u8]) -> Option<(Key, Usage)> {
    let pending { key, usage, .. } = Record::decode(bytes)?;
    (key.tid != 0).then_some((key, usage))
}

/// The bytes of a CPU's latest entry when nothing is pending.
pub(super) fn nothing_pending() -> Vec<u8> {
    pending::default().encode()
}

impl Counters {
    pub fn since(self, before: Self) -> Self {
        self.combined(before, u64::wrapping_sub)
    }

    pub fn add(&mut self, other: Self) {
        *self = self.combined(other, u64::wrapping_add);
    }
}

/// The length of the first record of a watched thread, and the thread's id.
pub(super) fn first_descendant(bytes: &[u8]) -> Option<(usize, u64)> {
    Some((descendant_record::BYTES, descendant_record::decode(bytes)?.tid.into()))
}

pub(super) fn descendant(bytes: &[u8]) -> Option<Descendant> {
    let descendant_record { start_ns, tid, tgid: pid, parent_tid, origin, own, .. } = Record::decode(bytes)?;
    let origin = match origin {
        ORIGIN_MARKED => Origin::Moved,
        ORIGIN_BORN => Origin::Born,
        _ => Origin::Exec,
    };
    Some(Descendant { tid, pid, parent_tid, start_ns, origin, own: own != 0 })
}

/// The id of a control group and its path; `None`: it has gone.
pub(super) fn group(mut bytes: &[u8]) -> Option<(u64, Option<String>)> {
    let group_record { id, gone } = Record::take(&mut bytes)?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let path = linux::shown(OsStr::from_bytes(bytes.get(..end)?));
    Some((id, (gone == 0).then_some(path)))
}

/// A sampler that counts the next event and has no open request.
pub(super) fn fresh_sampler() -> Vec<u8> {
    sampler { countdown: 1, open_last: NOT_OPEN, ..sampler::default() }.encode()
}

impl Pass {
    /// The length of the first record, and its thread's id.
    pub fn first(bytes: &[u8]) -> Option<(usize, u64)> {
        let record = task_record::decode(bytes)?;
        Some((task_record::BYTES + 8 * record.mask_words as usize, record.tid.into()))
    }

    pub fn take(&mut self, record: &[u8]) {
        let task = self.task(record);
        self.tasks.extend(task);
    }

    fn task(&mut self, mut bytes: &[u8]) -> Option<Task> {
        let record = task_record::take(&mut bytes)?;
        let from = self.masks.len();
        for _ in 0..record.mask_words {
            self.masks.push(Record::take(&mut bytes)?);
        }
        Some(Task { record, mask: from..self.masks.len() })
    }

    pub fn mask(&self, task: &Task) -> &[u64] {
        self.masks.get(task.mask.clone()).unwrap_or_default()
    }
}

/// A name of the kernel's; bytes that are not UTF-8 are replaced.
pub(super) fn text(comm: &[u8]) -> String {
    let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(comm.get(..end).unwrap_or_default()).into_owned()
}

impl Task {
    pub fn kernel_thread(&self) -> bool {
        self.flags & TASK_KTHREAD != 0
    }

    /// It is shown whatever it runs.
    pub fn kept(&self) -> bool {
        self.flags & TASK_KEPT != 0
    }

    pub fn in_tree(&self) -> bool {
        self.flags & TASK_IN_TREE != 0
    }

    /// Whether an affinity was asked for; `None` where the kernel does not say.
    pub fn asked(&self) -> Option<bool> {
        match self.flags & (TASK_ASKED | TASK_NOT_ASKED) {
            0 => None,
            said => Some(said == TASK_ASKED),
        }
    }

    pub fn comm(&self) -> String {
        text(&self.record.comm)
    }

    /// The thread as keys hold it.
    pub fn key(&self) -> (u32, u32) {
        (self.tid, (self.start_ns >> START_SHIFT) as u32)
    }

    /// It and its control group, as keys hold them.
    pub fn owner(&self) -> (u32, u32, u64) {
        (self.tid, (self.start_ns >> START_SHIFT) as u32, self.cgroup_id)
    }

    pub fn process(&self) -> ProcessId {
        ProcessId::new(self.tgid, as_shown(self.leader_start_ns))
    }

    pub fn parent(&self) -> ProcessId {
        ProcessId::new(self.ppid, as_shown(self.parent_start_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_written_and_not_if_it_is_short() {
        let key = Key::unattributed(3);
        assert_eq!((key.len(), key[20]), (32, 3));
        assert_eq!(Key::decode(&key), Some(Key { node: 3, ..Key::default() }));
        assert!((0..32).all(|cut| Key::decode(&key[..cut]).is_none()));
    }

    #[test]
    fn a_task_has_its_length_its_id_and_its_mask() {
        let mut whole = Pass::default();
        for tid in [7u32, 8] {
            let (comm, flags) = (*b"worker\0\0\0\0\0\0\0\0\0\0", TASK_IN_TREE | TASK_NOT_ASKED);
            let record = task_record { tid, start_ns: 1 << 40, flags, mask_words: 1, comm, ..task_record::default() };
            let mut bytes = record.encode();
            bytes.extend(0b1001u64.to_ne_bytes());
            assert_eq!(Pass::first(&bytes), Some((bytes.len(), tid.into())));
            assert!((0..72).all(|cut| Pass::first(&bytes[..cut]).is_none()));
            whole.take(&bytes[..bytes.len() - 1]);
            whole.take(&bytes);
        }
        assert_eq!(whole.tasks.len(), 2);
        let task = &whole.tasks[1];
        assert_eq!((task.tid, task.in_tree(), task.kernel_thread(), task.asked()), (8, true, false, Some(false)));
        assert_eq!((task.comm().as_str(), whole.mask(task), task.key()), ("worker", &[0b1001][..], (8, 1 << 24)));
    }
}
