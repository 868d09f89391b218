//! How often threads commit to a volume in a plain file, beside as many that call pwrite(2) and
//! fdatasync(2).
//!
//! `homenode-bench commits [--rounds N] DIR` with DIR on a disk.
//! Each thread writes 4 KiB at a time to a file of its own. The contenders take turns; a line has
//! the median of the rounds, and its relation to one thread.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fs::medium::{Mapped, RegionFile};
use fs::{Ino, Layout, NewFile, Options, Volume};

use crate::{Result, median};

const THREADS: [usize; 3] = [1, 4, 16];
/// Calls of all threads together in a round: the disk's time for each of them is the same.
const CALLS: usize = 1600;
const BLOCK: usize = 4096;
/// Blocks of a thread's file.
const BLOCKS: usize = 256;

pub fn main(args: &[&str]) -> Result<()> {
    let (mut rounds, mut dir) = (5, PathBuf::from("target"));
    let mut given = args.iter();
    while let Some(&argument) = given.next() {
        match argument {
            "--rounds" => rounds = given.next().ok_or("--rounds lacks its value")?.parse()?,
            _ => dir = argument.into(),
        }
    }
    let most = THREADS.into_iter().max().unwrap_or(1);
    let volume = volume(&dir, most)?;
    let inodes = (0..most).map(|i| {
        let new = NewFile { mode: 0o100_644, ..NewFile::default() };
        let ino = volume.create(Ino::ROOT, format!("{i}").as_bytes(), new)?.ino;
        volume.write(ino, 0, &vec![1; BLOCKS * BLOCK])?;
        Ok(ino)
    });
    let inodes = inodes.collect::<Result<Vec<Ino>>>()?;
    let files = (0..most).map(|_| {
        let file = tempfile::tempfile_in(&dir)?;
        file.write_all_at(&vec![1; BLOCKS * BLOCK], 0)?;
        Ok(file)
    });
    let files = files.collect::<Result<Vec<File>>>()?;
    let at = |i: usize| (i * 7919 % BLOCKS * BLOCK) as u64;
    let own =
        |thread: usize, i: usize| Ok(volume.write(*inodes.get(thread).ok_or("no file")?, at(i), &[i as u8; BLOCK])?);
    let kernel = |thread: usize, i: usize| {
        let file = files.get(thread).ok_or("no file")?;
        file.write_all_at(&[i as u8; BLOCK], at(i))?;
        Ok(file.sync_data()?)
    };
    type Call<'a> = &'a (dyn Fn(usize, usize) -> Result<()> + Sync);
    let contenders: [(&str, Call<'_>); 2] = [("homenode", &own), ("pwrite, fdatasync", &kernel)];
    println!("| by | threads | commits/s | to one thread |");
    println!("|---|---|---|---|");
    let mut rates = vec![Vec::new(); contenders.len() * THREADS.len()];
    for round in 0..rounds {
        let each = contenders.iter().flat_map(|(_, call)| THREADS.map(|threads| (*call, threads)));
        for ((call, threads), rates) in each.zip(&mut rates) {
            rates.push(together(threads, round * CALLS, call)?);
        }
    }
    for ((name, _), rates) in contenders.iter().zip(rates.chunks(THREADS.len())) {
        let medians: Vec<f64> = rates.iter().map(|rates| median(rates.clone())).collect();
        for (threads, rate) in THREADS.iter().zip(&medians) {
            println!("| {name} | {threads} | {rate:.0} | {:.2} |", rate / medians.first().unwrap_or(rate));
        }
    }
    Ok(())
}

/// Calls in a second of so many threads.
fn together(threads: usize, first: usize, call: &(dyn Fn(usize, usize) -> Result<()> + Sync)) -> Result<f64> {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let all = (0..threads)
            .map(|thread| scope.spawn(move || (first..first + CALLS / threads).try_for_each(|i| call(thread, i))));
        let all: Vec<_> = all.collect();
        all.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    Ok(CALLS as f64 / begin.elapsed().as_secs_f64())
}

fn volume(dir: &Path, files: usize) -> Result<Volume> {
    let file = tempfile::tempfile_in(dir)?;
    // Of zeros that are written: the disk's blocks are there, and a commit changes no map of them.
    let bytes = files * BLOCKS * BLOCK * 3 + (16 << 20);
    (0..bytes >> 20).try_for_each(|mib| file.write_all_at(&vec![0; 1 << 20], (mib << 20) as u64))?;
    file.sync_all()?;
    let regions = [RegionFile { file, bind: None }];
    let journals = std::thread::available_parallelism()?.get() as u32;
    let layout = Layout { nodes: vec![None], journals, ..Layout::default() };
    fs::mkfs(Box::new(Mapped::new(&regions)?), &layout)?;
    Ok(Volume::mount(Box::new(Mapped::new(&regions)?), Options::default())?)
}
