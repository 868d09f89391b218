//! Processes that use a file while it moves: this test program, started again. Each checks what it
//! sees, and fails at the first error or wrong byte.
//!
//! The file is one that `lab::cache` wrote, whose bytes repeat each [`PERIOD`]. The first two words
//! of each page are used: the writer's and the mapper's last value.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::param::page_size;

use crate::lab_bench::{self, Ends};

/// The content's period.
const PERIOD: usize = 1 << 20;

/// A running user of a file.
pub struct User {
    role: &'static str,
    child: Ends,
}

impl User {
    /// Starts a `reader`, a `writer` or a `mapper`, and waits until it has begun.
    pub fn start(role: &'static str, file: &Path) -> Result<Self> {
        Ok(Self { role, child: lab_bench::play(role, [file])? })
    }

    /// Ends it; fails if it saw an error. Returns how often it used the file.
    pub fn end(mut self) -> Result<u64> {
        let child = &mut self.child.0;
        drop(child.stdin.take());
        let mut said = String::new();
        child.stdout.take().context("stdout")?.read_to_string(&mut said)?;
        let status = child.wait()?;
        ensure!(status.success(), "the {} saw an error: {said}", self.role);
        Ok(said.trim().parse()?)
    }
}

pub fn be_reader(args: &[String]) -> Result<()> {
    told(read(Path::new(&args[0])))
}

pub fn be_writer(args: &[String]) -> Result<()> {
    told(write(Path::new(&args[0])))
}

pub fn be_mapper(args: &[String]) -> Result<()> {
    told(map(Path::new(&args[0])))
}

/// Says how often the file was used, or the error.
fn told(uses: Result<u64>) -> Result<()> {
    match &uses {
        Ok(uses) => println!("{uses}"),
        Err(error) => println!("{error:#}"),
    }
    uses.map(drop)
}

/// Repeats `use_page` for pages in a fixed order that jumps about, until stdin ends.
fn until_told(pages: usize, mut use_page: impl FnMut(usize, u64) -> Result<()>) -> Result<u64> {
    let over = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&over);
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        noted.store(true, Ordering::Relaxed);
    });
    println!("ready");
    std::io::stdout().flush()?;
    let mut uses = 0;
    while !over.load(Ordering::Relaxed) {
        for _ in 0..8 {
            uses += 1;
            // Odd, so that it meets each page when their number is a power of two.
            use_page((uses as usize).wrapping_mul(4_099) % pages, uses)?;
        }
        // Others need this CPU, too.
        thread::sleep(Duration::from_millis(1));
    }
    Ok(uses)
}

fn pages_of(file: &File) -> Result<usize> {
    Ok(usize::try_from(file.metadata()?.len())? / page_size())
}

/// Contents of every page after its first two words.
pub struct Expected(Vec<u8>);

impl Expected {
    pub fn of(file: &File) -> Result<Self> {
        let mut content = vec![0; PERIOD];
        file.read_exact_at(&mut content, 0)?;
        Ok(Self(content))
    }

    pub fn check(&self, page: usize, content: &[u8]) -> Result<()> {
        let at = page * page_size() % PERIOD;
        let expected = self.0.get(at + 16..at + page_size()).context("period")?;
        ensure!(content.get(16..) == Some(expected), "page {page} has wrong bytes");
        for word in [0, 8] {
            let word = u64::from_le_bytes(content.get(word..word + 8).context("page")?.try_into()?);
            ensure!(
                word >> 32 == page as u64 || self.is_old(page, word),
                "page {page} has another page's word {word:#x}"
            );
        }
        Ok(())
    }

    /// Whether the word is as it was before anybody used the page.
    fn is_old(&self, page: usize, word: u64) -> bool {
        let at = page * page_size() % PERIOD;
        let old = |at: usize| self.0.get(at..at + 8) == Some(&word.to_le_bytes()[..]);
        // The first pages may have been used when this was read.
        old(at) || old(at + 8) || at < PERIOD
    }
}

fn read(path: &Path) -> Result<u64> {
    let file = File::open(path)?;
    let expected = Expected::of(&file)?;
    let mut content = vec![0; page_size()];
    until_told(pages_of(&file)?, |page, _| {
        file.read_exact_at(&mut content, (page * page_size()) as u64)?;
        expected.check(page, &content)
    })
}

fn value(page: usize, uses: u64) -> u64 {
    (page as u64) << 32 | uses
}

fn write(path: &Path) -> Result<u64> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut last = vec![None; pages_of(&file)?];
    let word = |page: usize| -> Result<u64> {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, (page * page_size()) as u64)?;
        Ok(u64::from_le_bytes(word))
    };
    let uses = until_told(last.len(), |page, uses| {
        file.write_all_at(&value(page, uses).to_le_bytes(), (page * page_size()) as u64)?;
        ensure!(word(page)? == value(page, uses), "page {page} lost what was written");
        last[page] = Some(value(page, uses));
        if uses % 256 == 0 {
            file.sync_data()?;
        }
        Ok(())
    })?;
    for (page, last) in last.iter().enumerate() {
        ensure!(last.is_none_or(|l| word(page).is_ok_and(|w| w == l)), "page {page} lost what was written");
    }
    Ok(uses)
}

fn map(path: &Path) -> Result<u64> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut last = vec![None; pages_of(&file)?];
    let len = last.len() * page_size();
    // SAFETY: a new mapping at an address that the kernel chooses; it stays until the process ends.
    let base = unsafe { mmap(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)? };
    let word = |page: usize| base.cast::<u8>().wrapping_add(page * page_size() + 8).cast::<u64>();
    let uses = until_told(last.len(), |page, uses| {
        // SAFETY: an aligned word of the mapping, which no other thread of this process uses. The
        // file keeps its size.
        unsafe {
            let now = word(page).read_volatile();
            if last[page].is_some_and(|last| last != now) {
                bail!("page {page} lost a store: {now:#x}, not {:#x}", last[page].unwrap_or_default());
            }
            word(page).write_volatile(value(page, uses));
        }
        last[page] = Some(value(page, uses));
        Ok(())
    })?;
    for (page, last) in last.iter().enumerate() {
        let mut now = [0; 8];
        file.read_exact_at(&mut now, (page * page_size() + 8) as u64)?;
        ensure!(last.is_none_or(|last| last == u64::from_le_bytes(now)), "page {page} lost a store");
    }
    Ok(uses)
}
