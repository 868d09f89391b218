//! Moves while others read, write and map the file. A writer knows its last store to each place,
//! and looks for it before the next one and at the end: a checksum of the file would not miss a
//! lost store.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use act::dax::MAPPED;
use testing::{Case, cases};

use super::volume::{MIB, check, create, directory, move_to, nodes, number, on_volume, word};

pub const CASES: &[Case] = cases![[on_volume()]
    moves_under_readers_and_writers_lose_nothing,
    a_file_mapped_writable_stays,
];

/// Bytes at the file's start that writers change; nobody writes the rest.
const WRITTEN: u64 = 4 * MIB;

/// Moves of the file, and its size: more in a long run. An emulated machine moves about 1 MiB a
/// second under load.
fn rounds() -> u32 {
    number("HOMENODE_DAX_MOVES", 3)
}

fn size() -> u64 {
    u64::from(number("HOMENODE_DAX_MIB", 8)) * MIB
}

/// A mapping of a file.
pub struct Mapping {
    pub at: *mut u8,
    len: usize,
}

// SAFETY: a range of shared memory, accessed by volatile loads and stores of whole words.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(file: &File, writable: bool) -> Self {
        let len = file.metadata().unwrap().len() as usize;
        let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at: at.cast(), len }
    }

    fn word(&self, offset: u64) -> *mut u64 {
        assert!(offset as usize + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: inside the mapping.
        unsafe { self.at.add(offset as usize).cast() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nobody has a reference into it.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// Reads and writes one word.
trait Words {
    fn get(&self, offset: u64) -> u64;
    fn put(&self, offset: u64, value: u64);
}

impl Words for File {
    fn get(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read_exact_at(&mut bytes, offset).unwrap();
        u64::from_ne_bytes(bytes)
    }

    fn put(&self, offset: u64, value: u64) {
        self.write_all_at(&value.to_ne_bytes(), offset).unwrap();
    }
}

impl Words for Mapping {
    fn get(&self, offset: u64) -> u64 {
        // SAFETY: aligned and inside the mapping.
        unsafe { self.word(offset).read_volatile() }
    }

    fn put(&self, offset: u64, value: u64) {
        // SAFETY: aligned, inside the mapping, which is writable.
        unsafe { self.word(offset).write_volatile(value) }
    }
}

/// Writes words to places of its own until it is told to stop. Returns the number of stores and the
/// places whose last store is not there.
fn write(
    words: &dyn Words,
    place: u64,
    burst: u64,
    pause: impl Fn(u64) -> Duration,
    stop: &dyn Fn() -> bool,
) -> (u64, Vec<u64>) {
    // A place in every page, `place` bytes behind its start.
    let offset = |i: u64| (i * 4096) % WRITTEN + place;
    let places = WRITTEN / 4096;
    let mut last: Vec<u64> = (0..places).map(|i| words.get(offset(i))).collect();
    let (mut stores, mut lost) = (0_u64, Vec::new());
    while !stop() {
        for _ in 0..burst {
            // Every few pages, so that each chunk is met often.
            let i = stores * 37 % places;
            if words.get(offset(i)) != last[i as usize] {
                lost.push(offset(i));
            }
            last[i as usize] = stores << 8 | 1;
            words.put(offset(i), last[i as usize]);
            stores += 1;
        }
        std::thread::sleep(pause(stores));
    }
    lost.extend((0..places).filter(|i| words.get(offset(*i)) != last[*i as usize]).map(offset));
    (stores, lost)
}

fn moves_under_readers_and_writers_lose_nothing() {
    let dir = directory();
    let path = dir.path().join("file");
    let size = size();
    let file = create(&path, 7, size);
    let done = AtomicBool::new(false);
    let stop = || done.load(Ordering::Relaxed);
    let mapping = Mapping::new(&file, false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2_u64)
            .map(|mapped| {
                let (stop, file, mapping) = (&stop, &file, &mapping);
                scope.spawn(move || {
                    let words: &dyn Words = if mapped == 1 { mapping } else { file };
                    let mut reads = 0_u64;
                    while !stop() {
                        let offset = WRITTEN + (reads * 8 * 12_347) % (size - WRITTEN);
                        assert_eq!(words.get(offset), word(7, offset), "a reader sees wrong bytes at {offset}");
                        reads += 1;
                        // Readers without a pause leave emulated CPUs nothing for the move.
                        if reads.is_multiple_of(16) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                    reads
                })
            })
            .collect();
        let writers: Vec<_> = (0..2)
            .map(|n| {
                let (stop, file) = (&stop, &file);
                // Up to 1 s, so that a chunk gets its turn now and then: a write anywhere in the
                // file makes it start again.
                let pause = |stores: u64| Duration::from_millis(stores * 7919 % 1000);
                scope.spawn(move || write(file, 8 * n, 8, pause, stop))
            })
            .collect();
        // Also when an assertion fails below.
        let _over = testing::Over(&done);
        let (mut moved, mut whole) = (0, 0);
        for round in 0..rounds() {
            let to = round % 2;
            let copied = move_to(&path, to);
            let there = nodes(&file).get(&to).copied().unwrap_or(0);
            // What is said to be there is there.
            assert_eq!((copied.moved, copied.total, copied.moved + copied.failed()), (there, size, size), "{copied:?}");
            moved += if round == 0 { 0 } else { there };
            whole += u32::from(there == size);
        }
        println!("{whole} of {} moves were whole, {} MiB moved", rounds(), moved / MIB);
        assert!(moved > size, "in all, less than once the file was moved");
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
        for writer in writers {
            let (stores, lost) = writer.join().unwrap();
            assert!(stores > 0 && lost.is_empty(), "of {stores} stores, these were lost: {lost:?}");
            println!("{stores} stores");
        }
    });
    check(&file, 7, WRITTEN, size);
}

/// A process that stores through a mapping, until its standard input ends.
pub fn be_mapped_writer(args: &[String]) {
    let file = File::options().read(true).write(true).open(&args[0]).unwrap();
    let mapping = Mapping::new(&file, true);
    println!("mapped");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            ended.store(true, Ordering::Relaxed);
        });
        let (stores, lost) = write(&mapping, 16, 4096, |_| Duration::ZERO, &|| ended.load(Ordering::Relaxed));
        println!("{stores} {}", lost.len());
    });
}

/// A started process of this program, once it has its mapping.
struct Writer(Child);

impl Writer {
    fn start(path: &Path) -> Self {
        let mut child =
            testing::myself("mapped-writer").arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0; 7];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        assert_eq!(&line, b"mapped\n");
        Self(child)
    }

    /// Ends it. Returns the stores that it made, and how many were lost.
    fn end(mut self) -> (u64, u64) {
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let (stores, lost) = text.trim().split_once(' ').unwrap();
        (stores.parse().unwrap(), lost.parse().unwrap())
    }
}

/// A process that maps the file shared and writable keeps the file where it is.
fn a_file_mapped_writable_stays() {
    let dir = directory();
    let path = dir.path().join("file");
    let file = create(&path, 8, WRITTEN);
    let before = nodes(&file);
    let here = *before.keys().next().unwrap();
    let writer = Writer::start(&path);
    let copied = move_to(&path, 1 - here);
    assert_eq!((copied.moved, copied.left.get(MAPPED)), (0, Some(&WRITTEN)), "{copied:?}");
    assert_eq!(nodes(&file), before);
    let (stores, lost) = writer.end();
    assert!(stores > 0 && lost == 0, "{lost} of {stores} stores lost");
    let copied = move_to(&path, 1 - here);
    assert_eq!((copied.moved, copied.failed()), (WRITTEN, 0));
}
