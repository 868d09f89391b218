//! Memory that fails while it is used.
//!
//! **Problem.** A line that cannot be read, or a page of a file that is not there, is a SIGBUS. It
//! ended the server of all users of a volume, without a word; and then recovery, and fsck.
//!
//! **Approach.** A handler of the process, from the first region that is mapped. What is read from
//! a region, stored to it or written back is so by instructions whose places the handler knows: it
//! goes on behind them, and the access is an error (EIO). A report of failed memory that nobody is
//! using right now is ignored. Any other failure in a region ends the process with a line that
//! names the region and the byte.
//!
//! **Limits.** On processors other than x86-64 every access to failed memory ends the process. A
//! failure elsewhere is left to whoever handled the signal before.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use super::persist::Instruction;
use crate::format::MAX_REGIONS;

/// What the handler knows of a mapping; a length of 0: nothing.
struct Place {
    base: AtomicUsize,
    len: AtomicUsize,
    region: AtomicUsize,
}

/// Some volumes' regions. What finds no place here is called "a region" by the handler.
static PLACES: [Place; 4 * MAX_REGIONS] =
    [const { Place { base: AtomicUsize::new(0), len: AtomicUsize::new(0), region: AtomicUsize::new(0) } };
        4 * MAX_REGIONS];

/// Where the last words go besides stderr; negative: nowhere.
static LOG: AtomicI32 = AtomicI32::new(-1);

/// What had the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Exit code of a process that memory has failed: that of the command for errors of input and
/// output.
const EXIT: i32 = 5;

/// From now on, what ends the process for failed memory is written to this file, too: the system's
/// log, for a server whose stderr leads nowhere. It is never closed.
pub fn log_failures_to(log: OwnedFd) {
    LOG.store(log.into_raw_fd(), Ordering::Relaxed);
}

/// A mapping of a region from `base` on, so that the handler can name it.
pub(super) fn watch(base: *const u8, len: usize, region: usize) {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(handle);
    // Who sets the length first has the place.
    let free = PLACES.iter().find(|p| p.len.compare_exchange(0, len, Ordering::AcqRel, Ordering::Relaxed).is_ok());
    if let Some(place) = free {
        place.region.store(region, Ordering::Release);
        place.base.store(base.addr(), Ordering::Release);
    }
}

/// The mapping is about to end.
pub(super) fn forget(base: *const u8) {
    if let Some(place) = PLACES.iter().find(|p| p.base.load(Ordering::Acquire) == base.addr()) {
        place.base.store(0, Ordering::Release);
        place.len.store(0, Ordering::Release);
    }
}

fn handle() {
    // SAFETY: an all-zero sigaction is one (the default action), and both pointers are to values of
    // this function.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) != 0 {
            return;
        }
        let _ = BEFORE.set(before);
        let mut new: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = failed;
        new.sa_sigaction = handler as usize;
        // The standard library gives its threads a stack for handlers.
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const new, std::ptr::null_mut());
    }
}

/// Copies from or to a region. False: its memory has failed, and `to` holds some of it.
///
/// # Safety
/// Both have `len` bytes, and do not overlap.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let left: usize;
        // SAFETY: the caller's promise; the ABI has the direction flag clear.
        unsafe {
            std::arch::asm!(
                "call {copy}",
                copy = sym homenode_copy,
                inout("rcx") len => left,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(preserves_flags)
            );
        }
        left == 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        true
    }
}

/// Copies whole lines to a region past the caches: durable after a fence. It reads nothing of what
/// it overwrites and needs no write-back, so it takes half the time of a copy with `clwb`. Wider
/// registers do not make it faster. False: the region's memory has failed.
///
/// # Safety
/// Both have `len` bytes, and do not overlap; `to` and `len` are multiples of a line.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn stream(from: *const u8, to: *mut u8, len: usize) -> bool {
    let mut left = len / crate::format::LINE;
    if left > 0 {
        // SAFETY: the caller's promise; every x86-64 processor has SSE2.
        unsafe {
            std::arch::asm!(
                "call {stream}",
                stream = sym homenode_stream,
                inout("rcx") left,
                inout("rsi") from => _,
                inout("rdi") to => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            );
        }
    }
    left == 0
}

/// Loads a word of a region, as one load that comes before all behind it. False: its memory has
/// failed.
///
/// # Safety
/// `from` is aligned, and such words are only accessed as atomics.
pub(super) unsafe fn load(from: *const u64) -> (u64, bool) {
    #[cfg(target_arch = "x86_64")]
    {
        let (mut word, mut left) = (0_u64, 1_u64);
        // SAFETY: the caller's promise. An aligned load of eight bytes is one, and comes before
        // those behind it; the compiler moves none across.
        unsafe {
            std::arch::asm!(
                "call {load}",
                load = sym homenode_load,
                inout("rcx") left,
                inout("rsi") word,
                in("rdi") from,
            );
        }
        (word, left == 0)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: the caller's promise.
        (unsafe { std::sync::atomic::AtomicU64::from_ptr(from.cast_mut()) }.load(Ordering::Acquire), true)
    }
}

/// Stores a word to a region, as one store that comes after all before it. False: its memory has
/// failed, and the word is what it was.
///
/// # Safety
/// `to` is aligned, and such words are only accessed as atomics.
pub(super) unsafe fn store(to: *mut u64, word: u64) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let mut left = 1_u64;
        // SAFETY: the caller's promise. An aligned store of eight bytes is one, and comes after
        // those before it; the compiler moves none across.
        unsafe {
            std::arch::asm!(
                "call {store}",
                store = sym homenode_store,
                inout("rcx") left,
                in("rsi") word,
                in("rdi") to,
            );
        }
        left == 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: the caller's promise.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(to) }.store(word, Ordering::Release);
        true
    }
}

/// Writes `lines` lines back from `first` on, at least one. False: their memory has failed.
///
/// # Safety
/// They are in a mapping, and the processor has the instruction.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn write_back(instruction: Instruction, first: *const u8, lines: usize) -> bool {
    let place = match instruction {
        Instruction::Clwb => homenode_clwb,
        Instruction::ClflushOpt => homenode_clflushopt,
        Instruction::Clflush => homenode_clflush,
    };
    let mut left = lines;
    // SAFETY: the caller's promise; the instructions change no byte.
    unsafe {
        std::arch::asm!("call {place}", place = in(reg) place, inout("rcx") left, inout("rdi") first => _);
    }
    left == 0
}

/// The same: never called, as [`Instruction::detect`] finds none here.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn write_back(_: Instruction, _: *const u8, _: usize) -> bool {
    true
}

// Each begins with what may fault, and ends with a return: that is where the handler goes on. Then
// rcx says what is left: bytes, lines, or the one word.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".hidden homenode_copy, homenode_copy_end",
    ".hidden homenode_stream, homenode_stream_end",
    ".hidden homenode_load, homenode_load_end",
    ".hidden homenode_store, homenode_store_end",
    ".hidden homenode_clwb, homenode_clflushopt, homenode_clflush, homenode_clflush_end",
    ".globl homenode_copy, homenode_copy_end",
    ".globl homenode_stream, homenode_stream_end",
    ".globl homenode_load, homenode_load_end",
    ".globl homenode_store, homenode_store_end",
    ".globl homenode_clwb, homenode_clflushopt, homenode_clflush, homenode_clflush_end",
    "homenode_copy:",
    "rep movsb",
    "homenode_copy_end:",
    "ret",
    "homenode_stream:",
    "movdqu xmm0, [rsi]",
    "movdqu xmm1, [rsi + 16]",
    "movdqu xmm2, [rsi + 32]",
    "movdqu xmm3, [rsi + 48]",
    "movntdq [rdi], xmm0",
    "movntdq [rdi + 16], xmm1",
    "movntdq [rdi + 32], xmm2",
    "movntdq [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "dec rcx",
    "jnz homenode_stream",
    "homenode_stream_end:",
    "ret",
    "homenode_load:",
    "mov rsi, [rdi]",
    "xor ecx, ecx",
    "homenode_load_end:",
    "ret",
    "homenode_store:",
    "mov [rdi], rsi",
    "xor ecx, ecx",
    "homenode_store_end:",
    "ret",
    "homenode_clwb:",
    "clwb [rdi]",
    "add rdi, 64",
    "dec rcx",
    "jnz homenode_clwb",
    "ret",
    "homenode_clflushopt:",
    "clflushopt [rdi]",
    "add rdi, 64",
    "dec rcx",
    "jnz homenode_clflushopt",
    "ret",
    "homenode_clflush:",
    "clflush [rdi]",
    "add rdi, 64",
    "dec rcx",
    "jnz homenode_clflush",
    "homenode_clflush_end:",
    "ret",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn homenode_copy();
    fn homenode_copy_end();
    fn homenode_stream();
    fn homenode_stream_end();
    fn homenode_load();
    fn homenode_load_end();
    fn homenode_store();
    fn homenode_store_end();
    fn homenode_clwb();
    fn homenode_clflushopt();
    fn homenode_clflush();
    fn homenode_clflush_end();
}

/// Goes on behind an access that may fault, if that is where the signal came from.
#[cfg(target_arch = "x86_64")]
fn goes_on(context: *mut libc::c_void) -> bool {
    // SAFETY: the kernel hands a handler with SA_SIGINFO its context, which nobody else has.
    let Some(context) = (unsafe { context.cast::<libc::ucontext_t>().as_mut() }) else { return false };
    let Some(at) = context.uc_mcontext.gregs.get_mut(libc::REG_RIP as usize) else { return false };
    let places: [[unsafe extern "C" fn(); 2]; 5] = [
        [homenode_copy, homenode_copy_end],
        [homenode_stream, homenode_stream_end],
        [homenode_load, homenode_load_end],
        [homenode_store, homenode_store_end],
        [homenode_clwb, homenode_clflush_end],
    ];
    let place =
        places.iter().map(|place| place.map(|at| at as usize as i64)).find(|[begin, end]| (begin..end).contains(&&*at));
    let Some([_, end]) = place else { return false };
    *at = end;
    true
}

#[cfg(not(target_arch = "x86_64"))]
fn goes_on(_: *mut libc::c_void) -> bool {
    false
}

/// Calls nothing that a handler must not: no locks, no memory.
extern "C" fn failed(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO the reason, which for SIGBUS has an
    // address.
    let address = unsafe { info.as_ref().map_or(0, |info| info.si_addr().addr()) };
    let within = |place: &&Place| {
        let (base, len) = (place.base.load(Ordering::Acquire), place.len.load(Ordering::Acquire));
        base != 0 && (base..base.saturating_add(len)).contains(&address)
    };
    // SAFETY: as above.
    let unused = unsafe { info.as_ref() }.is_some_and(|info| info.si_code == libc::BUS_MCEERR_AO);
    if unused || goes_on(context) {
        return;
    }
    let Some(place) = PLACES.iter().find(within) else {
        if let Some(before) = BEFORE.get() {
            // SAFETY: it is what the system said. The access is repeated, and ends as it did before
            // there was this handler.
            unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
        }
        return;
    };
    let mut line = Line { bytes: [0; 160], len: 0 };
    line.add(b"<27>homenode: region ");
    line.number(place.region.load(Ordering::Relaxed));
    line.add(b": its memory has failed at byte ");
    line.number(address - place.base.load(Ordering::Relaxed));
    line.add(b" (SIGBUS), so this process ends: is there room for the whole file, or has the device bad blocks?\n");
    let said = line.bytes.get(..line.len).unwrap_or_default();
    for (fd, said) in [(2, said.get(4..).unwrap_or_default()), (LOG.load(Ordering::Relaxed), said)] {
        let mut ready = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // A pipe that nobody reads must not keep the process. SAFETY: both get what is this
        // function's. A descriptor that is not open is an error, which nobody can be told.
        unsafe {
            if libc::poll(&raw mut ready, 1, 0) == 1 {
                libc::write(fd, said.as_ptr().cast(), said.len());
            }
        }
    }
    // SAFETY: it ends the process and runs nothing of it.
    unsafe { libc::_exit(EXIT) }
}

/// A line that is put together without memory of its own.
struct Line {
    bytes: [u8; 160],
    len: usize,
}

impl Line {
    fn add(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }

    fn number(&mut self, number: usize) {
        if number >= 10 {
            self.number(number / 10);
        }
        self.add(&[b'0' + (number % 10) as u8]);
    }
}
