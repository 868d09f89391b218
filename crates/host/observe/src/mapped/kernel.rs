//! The BPF programs of `bpf/hotness.bpf.c`: what a process maps, and the entries of its page table.
//!
//! **Problem.** No file of procfs shows the accessed bits of persistent memory, and `smaps`, which
//! shows those of other mappings, counts per mapping and not per page.
//!
//! **Approach.** A task iterator for one thread follows the page table with `bpf_probe_read_kernel`
//! and copies 512 last-level entries at once to memory that we map. Page tables lie in the kernel's
//! direct map of physical memory. Its base is found by a page of our own: the base is where that
//! page's first word is. A walk to the same page then proves that the format of the page table is
//! the one we know.
//!
//! **Limits.** x86-64 only. Page tables are read without a lock. One that is freed meanwhile may be
//! something else when it is read, so callers must check the frames, and nothing is read beyond the
//! memory there is. With memory encryption (SME, SEV) entries hold a bit more, and [`Kernel::open`]
//! refuses.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use libbpf_rs::ProgramMut;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use rustc_hash::FxHashSet;

use super::entry::Piece;
use crate::pass::{self, Ended, Most};
use crate::probe_run::silence_libbpf;
use crate::records::Record;
use crate::records::intf::mapping_record;
use crate::types::ObserveError;

skeleton!(mod skel = "hotness.skel.rs");

use skel::{HotnessSkel, HotnessSkelBuilder};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    /// First address beyond it.
    pub end: u64,
    pub ino: u64,
    /// The file system's device, as the kernel encodes it.
    pub dev: u32,
    /// Whether the file's data is in persistent memory: a file with the DAX flag, or a device.
    pub dax: bool,
}

/// One thread of the process to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// A thread of it that has not ended.
    pub tid: u32,
    /// When the process started, ns since boot, to a hundredth of a second; 0: whenever.
    pub start_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// When the process started, ns since boot.
    pub start_ns: u64,
    /// Names its memory: another one after exec.
    pub memory: u64,
}

pub struct Kernel {
    skel: HotnessSkel<'static>,
}

/// Most mappings of a process that are listed: as many as it may have, unless an administrator
/// allows more (vm.max_map_count). They take 80 ms or so.
const MAPPINGS: Most = Most { records: 1 << 16, bytes: 16 << 20, cpu: Duration::from_millis(250) };

/// `S_DAX`, include/linux/fs.h.
const S_DAX: u32 = 0x2000;

/// Times that the page by which the direct map is found may have moved meanwhile (compaction).
const TRIES: usize = 5;

impl Kernel {
    /// Loads the programs, finds the direct map and checks that walking works. Physical memory ends
    /// at `memory_end`: an entry that points beyond it is of no page table.
    ///
    /// # Errors
    ///
    /// [`ObserveError::Missing`] names what this kernel or machine lacks or refuses.
    pub fn open(memory_end: u64) -> Result<Self, ObserveError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(missing("the page table of x86-64", "this machine has another".to_owned()));
        }
        let mut kernel = Self::load(true)?;
        if let Some(bss) = kernel.skel.maps.bss_data.as_mut() {
            bss.memory_end = memory_end;
        }
        kernel.find_direct_map()?;
        Ok(kernel)
    }

    /// Loads the program that lists mappings, which any machine has.
    pub fn of_mappings() -> Result<Self, ObserveError> {
        Self::load(false)
    }

    fn load(tables: bool) -> Result<Self, ObserveError> {
        silence_libbpf();
        // As in `programs`: the skeleton borrows the size of one pointer for its whole life.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let refused = |e: libbpf_rs::Error| missing("reading page tables with BPF", crate::cause::of_bpf(&e));
        let mut open = HotnessSkelBuilder::default().open(storage).map_err(refused)?;
        open.progs.mappings.set_autoload(true);
        open.progs.walk.set_autoload(tables);
        open.progs.find_direct_map.set_autoload(tables);
        Ok(Self { skel: open.load().map_err(refused)? })
    }

    /// The mapping of the calling thread that begins at this address.
    pub fn mapped_at(&mut self, address: u64) -> Result<Option<Mapping>, ObserveError> {
        let target = Target { tid: linux::threads::own_tid(), start_ns: 0 };
        self.ask(target, |bss| bss.least_bytes = 0);
        let mut found = None;
        let take = |record: &[u8]| {
            if let Some((mapping, _)) = decode(record).filter(|(mapping, _)| mapping.start == address) {
                found = Some(mapping);
            }
        };
        _ = self.run(Program::Mappings, target.tid, take)?;
        Ok(found)
    }

    /// Where the kernel maps all physical memory, and whether page tables have five levels.
    pub fn direct_map(&self) -> (u64, bool) {
        self.skel.maps.bss_data.as_ref().map_or((0, false), |bss| (bss.direct_map, bss.five_levels != 0))
    }

    fn find_direct_map(&mut self) -> Result<(), ObserveError> {
        let io = |e: io::Error| missing("the frames of our own pages", crate::cause::of_io(&e));
        let tid = linux::threads::own_tid();
        // A page that begins with a word found nowhere else.
        let mut page: Box<[u64; 1024]> = Box::new([0; 1024]);
        let address = (std::ptr::from_ref(&*page).expose_provenance() as u64).next_multiple_of(4096);
        let word = (address - std::ptr::from_ref(&*page).expose_provenance() as u64) / 8;
        let magic = linux::random::secret().map_err(io)? | 1;
        if let Some(first) = page.get_mut(word as usize) {
            *first = std::hint::black_box(magic);
        }
        let five_levels = std::fs::read_to_string("/proc/cpuinfo").map_err(io)?.split_whitespace().any(|w| w == "la57");
        for _ in 0..TRIES {
            let frame = frame_of(address).map_err(io)?;
            if frame == 0 {
                return Err(missing(
                    "the frames of our own pages (/proc/self/pagemap)",
                    "CAP_SYS_ADMIN is missing".into(),
                ));
            }
            let Some(bss) = self.skel.maps.bss_data.as_mut() else { break };
            bss.magic = magic;
            bss.magic_address = frame * 4096;
            bss.direct_map = 0;
            bss.five_levels = u64::from(five_levels);
            _ = self.run(Program::FindDirectMap, tid, |_| ())?;
            if self.skel.maps.bss_data.as_ref().is_none_or(|bss| bss.direct_map == 0) {
                continue;
            }
            let target = Target { tid, start_ns: 0 };
            let range = (address, address + 4096);
            let mut walked = false;
            self.walk(target, range, &mut |piece| {
                walked |= piece.entries(range).any(|(_, entry)| entry.present() && entry.frame_of(address) == frame);
            })?;
            if walked {
                return Ok(());
            }
        }
        drop(page);
        let cause = "its page table is not as expected (encrypted memory?)".to_owned();
        Err(missing("the page table of this process", cause))
    }

    /// The mappings of files that count, of at least so many bytes, and whether these are all; not
    /// of files that it executes. `None`: the process has ended, or is another one.
    pub fn mappings(
        &mut self,
        target: Target,
        least_bytes: u64,
    ) -> Result<Option<(Found, Vec<Mapping>, Ended)>, ObserveError> {
        self.ask(target, |bss| bss.least_bytes = least_bytes);
        let mut all = Vec::new();
        let ended = self.run(Program::Mappings, target.tid, |record| all.extend(decode(record)))?;
        let programs: FxHashSet<_> = all.iter().filter(|(_, program)| *program).map(|(m, _)| (m.dev, m.ino)).collect();
        let mappings = all.into_iter().map(|(mapping, _)| mapping).filter(|m| !programs.contains(&(m.dev, m.ino)));
        // A process without any mapping that counts is found too.
        Ok(self.found().map(|found| (found, mappings.collect(), ended)))
    }

    /// Passes on the page tables for a range of addresses, in order. `None`: the process has ended,
    /// or is another one.
    pub fn walk(
        &mut self,
        target: Target,
        (from, to): (u64, u64),
        each: &mut dyn FnMut(Piece<'_>),
    ) -> Result<Option<Found>, ObserveError> {
        let mut at = from;
        let mut found = None;
        while at < to {
            self.ask(target, |bss| {
                bss.walk_from = at;
                bss.walk_to = to;
                bss.walked_to = at;
                bss.filled = 0;
            });
            _ = self.run(Program::Walk, target.tid, |_| ())?;
            let Some(now) = self.found() else { return Ok(None) };
            found = Some(now);
            let Some(bss) = self.skel.maps.bss_data.as_ref() else { return Ok(None) };
            let slots = bss.slots.iter().zip(&bss.tables).take(bss.filled as usize);
            for (slot, table) in slots {
                let raw = if slot.bytes == 4096 { table.as_slice() } else { std::slice::from_ref(&slot.entry) };
                each(Piece { address: slot.address, bytes: slot.bytes, raw });
            }
            if bss.walked_to <= at {
                break;
            }
            at = bss.walked_to;
        }
        Ok(found)
    }

    fn ask(&mut self, target: Target, question: impl FnOnce(&mut skel::types::bss)) {
        if let Some(bss) = self.skel.maps.bss_data.as_mut() {
            bss.start_ns = target.start_ns;
            bss.found_start_ns = 0;
            bss.memory_id = 0;
            question(bss);
        }
    }

    fn found(&self) -> Option<Found> {
        let bss = self.skel.maps.bss_data.as_ref()?;
        (bss.found_start_ns != 0).then_some(Found { start_ns: bss.found_start_ns, memory: bss.memory_id })
    }

    /// Runs a program for one thread, and hands on its records. A thread that has ended is not
    /// visited.
    fn run(&mut self, program: Program, tid: u32, take: impl FnMut(&[u8])) -> Result<Ended, ObserveError> {
        let program: &ProgramMut<'_> = match program {
            Program::Mappings => &self.skel.progs.mappings,
            Program::Walk => &self.skel.progs.walk,
            Program::FindDirectMap => &self.skel.progs.find_direct_map,
        };
        let mut pass = match pass(program.as_fd(), tid) {
            Ok(pass) => pass,
            // The thread has ended.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(Ended::Whole),
            Err(source) => return Err(ObserveError::Io { what: "starting a pass over one task".to_owned(), source }),
        };
        pass::read(&mut pass, MAPPINGS, first, take)
            .map_err(|source| ObserveError::Io { what: "reading a pass over one task".to_owned(), source })
    }
}

#[derive(Clone, Copy)]
enum Program {
    Mappings,
    Walk,
    FindDirectMap,
}

fn missing(capability: &'static str, cause: String) -> ObserveError {
    ObserveError::Missing { capability, cause }
}

/// The frame of a page of ours; 0 without the right to see it.
fn frame_of(address: u64) -> io::Result<u64> {
    let mut word = [0; 8];
    std::fs::File::open("/proc/self/pagemap")?.read_exact_at(&mut word, address / 4096 * 8)?;
    // Documentation/admin-guide/mm/pagemap.rst: bits 0 to 54.
    Ok(u64::from_ne_bytes(word) & ((1 << 55) - 1))
}

/// Output of a task iterator for one thread. libbpf-rs has no such option.
pub(crate) fn pass(program: BorrowedFd<'_>, tid: u32) -> io::Result<std::fs::File> {
    let mut info = libbpf_sys::bpf_iter_link_info::default();
    info.task.tid = tid;
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        iter_info: &raw mut info,
        iter_info_len: size_of::<libbpf_sys::bpf_iter_link_info>() as u32,
        ..Default::default()
    };
    // SAFETY: the options and what they point to live until the call returns; the result is a
    // descriptor of ours, or an error.
    let link = unsafe {
        let fd = libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, libbpf_sys::BPF_TRACE_ITER, &raw const options);
        owned(fd)?
    };
    // SAFETY: as above.
    unsafe { owned(libbpf_sys::bpf_iter_create(link.as_raw_fd())) }.map(Into::into)
}

/// # Safety
///
/// `fd` is negative or a descriptor that nobody else owns.
unsafe fn owned(fd: i32) -> io::Result<OwnedFd> {
    match fd {
        // libbpf returns the negated errno.
        ..0 => Err(io::Error::from_raw_os_error(-fd)),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// The length of the first record, and where the mapping begins.
fn first(records: &[u8]) -> Option<(usize, u64)> {
    Some((mapping_record::BYTES, mapping_record::decode(records)?.start))
}

/// A mapping, and whether it is executed.
fn decode(record: &[u8]) -> Option<(Mapping, bool)> {
    let mapping_record { start, end, ino, dev, mode, inode_flags, program } = Record::decode(record)?;
    let dax = mode & libc::S_IFMT == libc::S_IFCHR || inode_flags & S_DAX != 0;
    Some((Mapping { start, end, ino, dev, dax }, program != 0))
}
