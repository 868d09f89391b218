//! Decodes the bytes that the BPF programs hand over (`bpf/intf.h`).
//!
//! **Problem.** Map entries and iterator output are plain bytes in the kernel's layout.
//!
//! **Approach.** A checked cursor reads every field: no transmutes, and short input gives `None`.
//!
//! **Limits.** Host byte order only. The tests compare the layouts with the compiled programs'
//! types.

use linux::births::{Descendant, Origin};
use linux::threads::as_shown;
use placement::ranges::RangeKey;
use topology::{FileId, ProcessId};

/// The constants of `bpf/intf.h`, where their comments are. The build makes them.
pub(super) mod intf {
    #![allow(dead_code)] // some are for the programs alone
    include!(concat!(env!("OUT_DIR"), "/intf.rs"));
}
use intf::{
    COMM_LEN, DESCENDANT_BYTES, NOT_OPEN, ORIGIN_BORN, ORIGIN_MARKED, START_SHIFT, TASK_ASKED, TASK_BYTES,
    TASK_IN_TREE, TASK_KTHREAD, TASK_NOT_ASKED,
};

const _: () = assert!(intf::NS_PER_TICK as u64 == linux::threads::NS_PER_TICK);

/// One thread, one file, one node (`struct usage_key`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub tid: u32,
    pub start_lo: u32,
    pub dev: u32,
    pub ino: u64,
    pub node: u32,
}

/// Bytes of one key (`struct usage`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub read: i64,
    pub remote: i64,
    pub written: i64,
    /// The part of `read` by calls, not by faults.
    pub called: i64,
    pub sliced: i64,
    pub sliced_remote: i64,
    pub sliced_reads: i64,
    /// Read calls in 1/1024ths: all, those whose beginning is known, and those that began where the
    /// last read ended.
    pub calls: i64,
    pub placed: i64,
    pub continued: i64,
    /// Handed on by sendfile or splice.
    pub handed: i64,
    /// Times that the file was open; 0 if the kernel does not say.
    pub opens: u32,
    /// The inode's generation.
    pub generation: u32,
}

/// Bytes of a key of the table of ranges (`struct range_key`).
pub(super) const RANGE_KEY_BYTES: usize = 24;

/// A CPU's latest entry, not yet in its table (`struct pending`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pending {
    pub key: Key,
    pub usage: Usage,
}

/// Counters of one CPU (`struct counters`), or their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub full_bytes: u64,
    pub crowded_bytes: u64,
    pub unknown_read: u64,
    pub unknown_written: u64,
    pub exited_cpu_ns: u64,
    pub counted: u64,
    pub stood_for: u64,
    pub children_full: u64,
    pub reads: u64,
}

/// One thread in a pass (`struct task_record` and the mask behind it).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Task {
    pub tid: u32,
    pub tgid: u32,
    pub ppid: u32,
    pub cpu: u32,
    pub start_ns: u64,
    pub cpu_ns: u64,
    pub wait_ns: u64,
    pub cgroup_id: u64,
    /// When its process started.
    pub leader_start_ns: u64,
    /// When its parent process started.
    pub parent_start_ns: u64,
    pub kernel_thread: bool,
    pub in_tree: bool,
    /// Whether an affinity was asked for; `None` where the kernel does not say.
    pub asked: Option<bool>,
    pub comm: [u8; COMM_LEN as usize],
    /// Words of the affinity mask: a range of [`Pass::masks`].
    pub mask: std::ops::Range<usize>,
}

/// All records of one pass.
#[derive(Debug, Default)]
pub(super) struct Pass {
    pub tasks: Vec<Task>,
    /// The masks of all tasks, one after the other.
    pub masks: Vec<u64>,
    /// There were more than a pass has room or time for.
    pub cut: bool,
}

/// One watched thread or a descendant (`struct watched`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Watched {
    pub start_ns: u64,
    pub asked: u64,
    pub tgid: u32,
    pub parent_tid: u32,
    pub marks: u32,
    pub origin: u32,
}

pub(super) struct Cursor<'a>(pub &'a [u8]);

impl Cursor<'_> {
    pub fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_ne_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_ne_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.bytes().map(i64::from_ne_bytes)
    }
}

impl Key {
    pub const BYTES: usize = 24;

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut c = Cursor(bytes);
        let (tid, dev, ino) = (c.u32()?, c.u32()?, c.u64()?);
        Some(Self { tid, dev, ino, start_lo: c.u32()?, node: c.u32()? })
    }

    /// The thread: its id, and a part of its start time.
    pub fn thread(&self) -> (u32, u32) {
        (self.tid, self.start_lo)
    }

    /// The file, of any generation.
    pub fn file(&self) -> FileId {
        FileId { dev: self.dev, ino: self.ino, generation: 0 }
    }

    /// The key for bytes on one node that found no free entry.
    pub fn unattributed(node: u32) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[20..].copy_from_slice(&node.to_ne_bytes());
        bytes
    }
}

/// A range of a file with the node of its data and that of its readers, and its bytes: a sum of the
/// kernel's.
pub(super) fn range(key: &[u8], value: &[u8]) -> Option<(RangeKey, u64)> {
    let (mut c, bytes) = (Cursor(key), Cursor(value).i64()?);
    let (ino, dev, generation) = (c.u64()?, c.u32()?, c.u32()?);
    let file = FileId { dev, ino, generation };
    Some((RangeKey { file, range: c.u32()?, node: c.u16()?, by: c.u16()? }, bytes.max(0) as u64))
}

impl Usage {
    /// Whether the file's bytes were touched, not only handed on.
    pub fn touched(&self) -> bool {
        self.read > 0 || self.written > 0 || self.handed == 0
    }

    pub const BYTES: usize = 96;

    /// The sums, in the kernel's order.
    fn sums(&mut self) -> [&mut i64; 11] {
        let Self {
            read,
            remote,
            written,
            called,
            sliced,
            sliced_remote,
            sliced_reads,
            calls,
            placed,
            continued,
            handed,
            ..
        } = self;
        [read, remote, written, called, sliced, sliced_remote, sliced_reads, calls, placed, continued, handed]
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut c, mut usage) = (Cursor(bytes), Self::default());
        for sum in usage.sums() {
            *sum = c.i64()?;
        }
        Some(Self { opens: c.u32()?, generation: c.u32()?, ..usage })
    }

    /// The smaller of its opens and these; 0 is unknown. As in the programs, because who looks at a
    /// file opens it for a moment.
    pub fn fewer_opens(&self, opens: u32) -> u32 {
        [self.opens, opens].into_iter().filter(|n| *n > 0).min().unwrap_or(0)
    }

    /// Adds another entry of the same key.
    pub fn add(&mut self, mut other: Self) {
        self.sums().into_iter().zip(other.sums()).for_each(|(sum, more)| *sum += *more);
        self.opens = other.fewer_opens(self.opens);
        self.generation = other.generation;
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

impl Pending {
    /// Key, two words that only the programs use, usage.
    pub const BYTES: usize = Key::BYTES + 16 + Usage::BYTES;

    /// `None` also when nothing is pending.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (key, rest) = bytes.split_at_checked(Key::BYTES)?;
        let (key, usage) = (Key::decode(key)?, Usage::decode(rest.get(16..)?)?);
        (key.tid != 0).then_some(Self { key, usage })
    }
}

impl Counters {
    /// All of them, in the kernel's order.
    fn all(&mut self) -> [&mut u64; 9] {
        [
            &mut self.full_bytes,
            &mut self.crowded_bytes,
            &mut self.unknown_read,
            &mut self.unknown_written,
            &mut self.exited_cpu_ns,
            &mut self.counted,
            &mut self.stood_for,
            &mut self.children_full,
            &mut self.reads,
        ]
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut c, mut counters) = (Cursor(bytes), Self::default());
        for counter in counters.all() {
            *counter = c.u64()?;
        }
        Some(counters)
    }

    /// The increase since `before`.
    pub fn since(mut self, mut before: Self) -> Self {
        self.all().into_iter().zip(before.all()).for_each(|(now, before)| *now = now.wrapping_sub(*before));
        self
    }

    pub fn add(&mut self, mut other: Self) {
        self.all().into_iter().zip(other.all()).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
    }
}

impl Watched {
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut c = Cursor(bytes);
        let (start_ns, asked) = (c.u64()?, c.u64()?);
        Some(Self { start_ns, asked, tgid: c.u32()?, parent_tid: c.u32()?, marks: c.u32()?, origin: c.u32()? })
    }

    pub fn encode(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.start_ns.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.asked.to_ne_bytes());
        for (i, word) in [self.tgid, self.parent_tid, self.marks, self.origin].into_iter().enumerate() {
            bytes[16 + 4 * i..20 + 4 * i].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// The length of the first `struct descendant_record`, and its thread's id.
pub(super) fn first_descendant(bytes: &[u8]) -> Option<(usize, u64)> {
    Some((DESCENDANT_BYTES as usize, Cursor(bytes.get(8..)?).u32()?.into()))
}

/// A `struct descendant_record`.
pub(super) fn descendant(bytes: &[u8]) -> Option<Descendant> {
    let mut c = Cursor(bytes);
    let start_ns = c.u64()?;
    let (tid, pid, parent_tid) = (c.u32()?, c.u32()?, c.u32()?);
    let origin = match c.u32()? {
        ORIGIN_MARKED => Origin::Moved,
        ORIGIN_BORN => Origin::Born,
        _ => Origin::Exec,
    };
    Some(Descendant { tid, pid, parent_tid, start_ns, origin, own: c.u32()? != 0 })
}

/// A `struct sampler` that counts the next event and has no open request.
pub(super) fn fresh_sampler(bytes: usize) -> Vec<u8> {
    let mut sampler = vec![0; bytes];
    for (word, value) in [(0, 1), (1, NOT_OPEN)] {
        if let Some(place) = sampler.get_mut(8 * word..8 * word + 8) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    }
    sampler
}

impl Pass {
    /// The length of the first record, and its thread's id.
    pub fn first(bytes: &[u8]) -> Option<(usize, u64)> {
        let words = Cursor(bytes.get(68..)?).u32()?;
        Some((TASK_BYTES as usize + 8 * words as usize, Cursor(bytes).u32()?.into()))
    }

    /// Takes in a record.
    pub fn take(&mut self, record: &[u8]) {
        let task = self.task(&mut Cursor(record));
        self.tasks.extend(task);
    }

    fn task(&mut self, c: &mut Cursor<'_>) -> Option<Task> {
        let (tid, tgid, ppid, cpu) = (c.u32()?, c.u32()?, c.u32()?, c.u32()?);
        let (start_ns, cpu_ns, wait_ns, cgroup_id) = (c.u64()?, c.u64()?, c.u64()?, c.u64()?);
        let (leader_start_ns, parent_start_ns) = (c.u64()?, c.u64()?);
        let (flags, words, comm) = (c.u32()?, c.u32()?, c.bytes()?);
        let from = self.masks.len();
        for _ in 0..words {
            let word = c.u64()?;
            self.masks.push(word);
        }
        Some(Task {
            tid,
            tgid,
            ppid,
            cpu,
            start_ns,
            cpu_ns,
            wait_ns,
            cgroup_id,
            leader_start_ns,
            parent_start_ns,
            kernel_thread: flags & TASK_KTHREAD != 0,
            in_tree: flags & TASK_IN_TREE != 0,
            asked: match flags & (TASK_ASKED | TASK_NOT_ASKED) {
                0 => None,
                said => Some(said == TASK_ASKED),
            },
            comm,
            mask: from..self.masks.len(),
        })
    }

    /// The affinity of a task of this pass.
    pub fn mask(&self, task: &Task) -> &[u64] {
        self.masks.get(task.mask.clone()).unwrap_or_default()
    }
}

impl Task {
    /// The name; bytes that are not UTF-8 are replaced.
    pub fn comm(&self) -> String {
        let end = self.comm.iter().position(|b| *b == 0).unwrap_or(self.comm.len());
        String::from_utf8_lossy(self.comm.get(..end).unwrap_or_default()).into_owned()
    }

    /// The thread as keys hold it.
    pub fn key(&self) -> (u32, u32) {
        (self.tid, (self.start_ns >> START_SHIFT) as u32)
    }

    /// Its process.
    pub fn process(&self) -> ProcessId {
        ProcessId { pid: self.tgid, start_ns: as_shown(self.leader_start_ns) }
    }

    /// Its parent process.
    pub fn parent(&self) -> ProcessId {
        ProcessId { pid: self.ppid, start_ns: as_shown(self.parent_start_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::layout;

    #[test]
    fn sizes_are_those_of_the_compiled_programs() {
        assert_eq!(layout::KEY, Key::BYTES);
        assert_eq!(layout::USAGE, Usage::BYTES);
        assert_eq!(layout::RANGE_KEY, RANGE_KEY_BYTES);
        assert_eq!(1 << intf::RANGE_SHIFT, placement::RANGE_BYTES);
        assert_eq!(layout::PENDING, Pending::BYTES);
        assert_eq!(layout::COUNTERS, 9 * 8);
        assert_eq!(layout::WATCHED, Watched::default().encode().len());
    }

    #[test]
    fn descendants_are_read_as_written() {
        let mut bytes = 7u64.to_ne_bytes().to_vec();
        for word in [101u32, 100, 99, 2, 1, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        let one = Descendant { tid: 101, pid: 100, parent_tid: 99, start_ns: 7, origin: Origin::Exec, own: true };
        assert_eq!((first_descendant(&bytes), descendant(&bytes)), (Some((32, 101)), Some(one)));
        assert_eq!(descendant(&bytes[..27]), None);
    }

    #[test]
    fn a_task_has_its_length_its_id_and_its_mask() {
        let mut whole = Pass::default();
        for tid in [7u32, 8] {
            let mut bytes = Vec::new();
            for word in [tid, 6, 5, 3] {
                bytes.extend(word.to_ne_bytes());
            }
            for word in [1u64 << 40, 1000, 0, 42, 7, 5] {
                bytes.extend(word.to_ne_bytes());
            }
            bytes.extend((2u32 | 8).to_ne_bytes());
            bytes.extend(1u32.to_ne_bytes());
            bytes.extend(*b"worker\0\0\0\0\0\0\0\0\0\0");
            bytes.extend(0b1001u64.to_ne_bytes());
            assert_eq!(Pass::first(&bytes), Some((bytes.len(), tid.into())));
            assert!((0..72).all(|cut| Pass::first(&bytes[..cut]).is_none()));
            whole.take(&bytes[..bytes.len() - 1]);
            whole.take(&bytes);
        }
        assert_eq!(whole.tasks.len(), 2);
        let task = &whole.tasks[1];
        assert_eq!((task.tid, task.tgid, task.ppid, task.cpu, task.in_tree), (8, 6, 5, 3, true));
        assert_eq!((task.cgroup_id, task.leader_start_ns, task.parent_start_ns), (42, 7, 5));
        assert_eq!(task.asked, Some(false));
        assert_eq!((task.comm().as_str(), whole.mask(task), task.key()), ("worker", &[0b1001][..], (8, 1 << 24)));
    }

    #[test]
    fn keys_and_marks_survive_their_encoding() {
        let key = Key::decode(&Key::unattributed(3)).unwrap();
        assert_eq!(key, Key { node: 3, ..Key::default() });
        let watched =
            Watched { start_ns: 1 << 50, asked: 9, tgid: 2, parent_tid: 3, marks: intf::MARK_TREE, origin: 1 };
        assert_eq!(Watched::decode(&watched.encode()), Some(watched));
    }
}
