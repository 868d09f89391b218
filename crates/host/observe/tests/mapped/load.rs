//! A program that maps a file, touches pages of it when told to, and counts what it touched.
//!
//! `mapped --role load FILE` maps the file and reads commands from stdin, one a line, and answers
//! each with a line:
//!
//! | command | answer |
//! |---|---|
//! | `map` | touches every page once; the address and the length |
//! | `hot SEED` | a phase: 19 of 20 accesses to a tenth of the pages, three for each page there; `done` |
//! | `uniform SEED` | a phase: as many random accesses as there are pages; `done` |
//! | `sequential PHASE` | a phase: the eighth of the file that is next; `done` |
//! | `pieces N` | maps the first MiB N times more, and touches the first page of each; `done` |
//! | `truth` | for each node `NODE:HOT:TOUCHED:ALL` in pages, hot: touched in two of the last four phases |
//!
//! Nodes are those that move_pages(2) says. Persistent memory, of which it says nothing, is node
//! -1.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, Write};
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use testing::Tried;

const PAGE: usize = 4096;

struct Load {
    base: *mut u8,
    pages: usize,
    /// Whether each page was touched in the latest phases; the latest is bit 0.
    history: Vec<u8>,
}

/// Runs until stdin ends.
pub fn run(args: &[String]) -> Tried {
    let file = File::options().read(true).write(true).open(&args[0])?;
    let len = file.metadata()?.len() as usize;
    // SAFETY: a new mapping at an address that the kernel chooses; it stays for the life of the
    // process.
    let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0) }?;
    let mut load = Load { base: base.cast(), pages: len / PAGE, history: vec![0; len / PAGE] };
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let (command, number) = (words.next(), words.next().and_then(|n| n.parse().ok()).unwrap_or(1u64));
        let answer = match command {
            Some("map") => {
                (0..load.pages).for_each(|page| load.access(page));
                format!("{} {}", base as usize, len)
            }
            Some("hot") => load.phase(|load| load.hot(number))?,
            Some("uniform") => load.phase(|load| load.random(number, load.pages, load.pages))?,
            Some("sequential") => load.phase(|load| {
                let eighth = load.pages / 8;
                let from = (number as usize % 8) * eighth;
                (from..from + eighth).for_each(|page| load.access(page));
            })?,
            Some("pieces") => {
                for _ in 0..number {
                    // SAFETY: a new mapping at an address that the kernel chooses; it stays, and
                    // is of a file that nobody shortens.
                    unsafe {
                        let piece = mmap(ptr::null_mut(), 1 << 20, ProtFlags::READ, MapFlags::SHARED, &file, 0)?;
                        piece.cast::<u8>().read_volatile();
                    }
                }
                "done".to_owned()
            }
            Some("truth") => load.truth(),
            _ => "what?".to_owned(),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

impl Load {
    fn access(&mut self, page: usize) {
        // SAFETY: the page is within the mapping, which is as long as the file; nobody shortens it.
        unsafe { self.base.add(page * PAGE).read_volatile() };
        self.history[page] |= 1;
    }

    fn phase(&mut self, work: impl FnOnce(&mut Self)) -> std::io::Result<String> {
        self.history.iter_mut().for_each(|h| *h <<= 1);
        forget_translations()?;
        work(self);
        Ok("done".to_owned())
    }

    fn hot(&mut self, seed: u64) {
        let tenth = self.pages / 10;
        self.random(seed, 3 * tenth, tenth);
        self.random(seed + 1, 3 * tenth / 19, self.pages);
    }

    /// So many accesses to the first pages.
    fn random(&mut self, seed: u64, times: usize, among: usize) {
        let mut state = seed;
        for _ in 0..times {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            self.access(((z ^ (z >> 31)) % among as u64) as usize);
        }
    }

    fn truth(&self) -> String {
        let addresses: Vec<usize> = (0..self.pages).map(|page| self.base.wrapping_add(page * PAGE).addr()).collect();
        let (status, asked) = linux::pages::move_pages(0, &addresses, None, 0);
        let mut nodes: BTreeMap<i32, [usize; 3]> = BTreeMap::new();
        for (history, status) in self.history.iter().zip(&status) {
            let node = if asked.is_ok() { (*status).max(-1) } else { -1 };
            let counts = nodes.entry(node).or_default();
            let times = (history & 0xf).count_ones();
            counts[0] += usize::from(times >= 2);
            counts[1] += usize::from(times >= 1);
            counts[2] += 1;
        }
        let listed = nodes.iter().map(|(node, [hot, touched, all])| format!("{node}:{hot}:{touched}:{all}"));
        listed.collect::<Vec<_>>().join(" ")
    }
}

/// Makes the processor forget this process's address translations, as a program with a large
/// working set does by itself: the kernel flushes them all when it unmaps more than 33 pages
/// (tlb_single_page_flush_ceiling).
fn forget_translations() -> std::io::Result<()> {
    const PAGES: usize = 64;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let scratch = unsafe {
        mmap_anonymous(ptr::null_mut(), PAGES * PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }?;
    for page in 0..PAGES {
        // SAFETY: within the mapping just made.
        unsafe { scratch.cast::<u8>().add(page * PAGE).write_volatile(1) };
    }
    // SAFETY: the mapping just made, to which nothing refers.
    unsafe { munmap(scratch, PAGES * PAGE) }?;
    Ok(())
}
