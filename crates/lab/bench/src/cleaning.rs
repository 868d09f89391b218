//! What cleaning a long log costs the operations beside it: the longest, and those of a full volume
//! that fail.
//!
//! `homenode-bench cleaning [--rounds N] [--extents N]`
//!
//! A thread changes the times of a file of many extents and another reads it, on memfd. In each
//! round by turns nobody else cleans logs, and a thread does in the background. A line has the
//! median of the rounds; the ratio is that of the rounds in pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fs::medium::{Mapped, RegionFile};
use fs::{Background, Error, Ino, Layout, NewFile, Options, SetAttributes, Volume};

use crate::{Result, median};

const BLOCK: u64 = 4096;

pub fn main(args: &[&str]) -> Result<()> {
    let (mut rounds, mut extents) = (5_usize, 200_000_u64);
    let mut given = args.iter();
    while let Some(&argument) = given.next() {
        let mut value = || given.next().ok_or_else(|| format!("{argument} lacks its value"));
        match argument {
            "--rounds" => rounds = value()?.parse()?,
            "--extents" => extents = value()?.parse()?,
            _ => return Err(format!("{argument} is unknown").into()),
        }
    }
    // The extents, three times their log, and what the tables take.
    let (volume, file) = fragmented(extents, extents + 4 * extents.div_ceil(63) + extents / 50 + 5_000)?;
    let volume = Arc::new(volume);
    // The log has become twice as long, which is when it is cleaned.
    let changes = 12 * extents / 10;
    let mut all = vec![Vec::new(); 2];
    for _ in 0..rounds {
        for (background, figures) in [false, true].into_iter().zip(&mut all) {
            let cleaner = if background { Some(Background::start(Arc::clone(&volume))?) } else { None };
            figures.push(figures_of(&volume, file, changes)?);
            drop(cleaner);
        }
    }
    println!("{extents} extents, {changes} changes of times a round, {rounds} rounds\n");
    println!("| operation | | by the operations | by a thread in the background | ratio |");
    println!("|---|---|---|---|---|");
    let names = [
        ("utime", "p99.9"),
        ("utime", "longest"),
        ("read 4 KiB beside it", "p99.9"),
        ("read 4 KiB beside it", "longest"),
    ];
    for (i, (what, which)) in names.iter().enumerate() {
        let of = |all: &[[f64; 4]]| all.iter().filter_map(|f| f.get(i).copied()).collect::<Vec<f64>>();
        let [inline, thread] = [all.first(), all.get(1)].map(|all| all.map_or_else(Vec::new, |all| of(all)));
        let ratios = thread.iter().zip(&inline).map(|(thread, inline)| thread / inline).collect();
        println!("| {what} | {which} | {:.1} µs | {:.1} µs | {:.4} |", median(inline), median(thread), median(ratios));
    }
    first_uses(&volume, file, rounds)?;
    drop(volume);
    full(extents.min(50_000))
}

/// What the first use of the file takes after a kernel has forgotten it, with its log in order.
fn first_uses(volume: &Volume, file: Ino, rounds: usize) -> Result<()> {
    type Use = fn(&Volume, Ino) -> fs::Result<()>;
    let uses: [(&str, Use); 4] = [
        ("stat", |volume, file| volume.stat(file).map(drop)),
        ("read of 4 KiB", |volume, file| volume.read(file, 100 * BLOCK, &mut [0; BLOCK as usize]).map(drop)),
        ("write of 4 KiB", |volume, file| volume.write(file, 100 * BLOCK, &[1; BLOCK as usize])),
        ("all extents", |volume, file| volume.map(file).map(drop)),
    ];
    println!("\n| first use | time |\n|---|---|");
    volume.clean(file)?;
    for (what, work) in uses {
        let mut times = Vec::new();
        for _ in 0..rounds {
            volume.remember(file)?;
            volume.forget(file, 1)?;
            let begin = Instant::now();
            work(volume, file)?;
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        println!("| {what} | {:.0} µs |", median(times));
    }
    Ok(())
}

/// p99.9 and the longest, in µs.
fn tail(mut times: Vec<Duration>) -> [f64; 2] {
    times.sort_unstable();
    let at = |i: usize| times.get(i).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6);
    [at(times.len() * 999 / 1000), at(times.len().saturating_sub(1))]
}

fn figures_of(volume: &Volume, file: Ino, changes: u64) -> Result<[f64; 4]> {
    let ended = AtomicBool::new(false);
    let (changed, read) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut times, mut out) = (Vec::new(), vec![0; BLOCK as usize]);
            while !ended.load(Ordering::Relaxed) {
                let begin = Instant::now();
                let read = volume.read(file, 0, &mut out);
                times.push(begin.elapsed());
                read?;
                std::thread::sleep(Duration::from_micros(20));
            }
            fs::Result::Ok(times)
        });
        let changed = (0..changes).map(|i| {
            let begin = Instant::now();
            volume.set_attributes(file, SetAttributes { mtime: Some(i as i64), ..SetAttributes::default() })?;
            Ok(begin.elapsed())
        });
        let changed = changed.collect::<fs::Result<Vec<_>>>();
        ended.store(true, Ordering::Relaxed);
        (changed, reader.join())
    });
    let ([a, b], [c, d]) = (tail(changed?), tail(read.map_err(|_| "the reader panicked")??));
    Ok([a, b, c, d])
}

/// A volume of so many blocks with a file of so many extents.
fn fragmented(extents: u64, blocks: u64) -> Result<(Volume, Ino)> {
    let file = std::fs::File::from(rustix::fs::memfd_create("cleaning", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.set_len(blocks * BLOCK)?;
    let regions = [RegionFile { file, bind: None }];
    let layout = Layout { nodes: vec![None], journals: 2, ..Layout::default() };
    fs::mkfs(Box::new(Mapped::new(&regions)?), &layout)?;
    let volume = Volume::mount(Box::new(Mapped::new(&regions)?), Options::default())?;
    let new = NewFile { mode: 0o100_644, ..NewFile::default() };
    let made = volume.create(Ino::ROOT, b"file", new)?.ino;
    (0..extents).try_for_each(|i| volume.allocate(made, i * 2 * BLOCK, BLOCK, false))?;
    Ok((volume, made))
}

/// A full volume: a write fails after each change of times.
fn full(extents: u64) -> Result<()> {
    let (volume, file) = fragmented(extents, extents + 2 * extents.div_ceil(63) + 3_000)?;
    let filler = volume.create(Ino::ROOT, b"filler", NewFile { mode: 0o100_644, ..NewFile::default() })?.ino;
    for len in [1 << 20, BLOCK as usize] {
        while volume.append(filler, &vec![1; len]).is_ok() {}
    }
    let rounds = 5_000;
    let (mut spent, mut failed) = (Duration::ZERO, 0);
    let mut times = Vec::new();
    for i in 0..rounds {
        // The log grows as long as it finds room.
        let _ = volume.set_attributes(file, SetAttributes { mtime: Some(i), ..SetAttributes::default() });
        let begin = Instant::now();
        match volume.append(filler, &[1; BLOCK as usize]) {
            Err(Error::NoSpace) => failed += 1,
            Err(error) => return Err(error.into()),
            Ok(_) => continue,
        }
        times.push(begin.elapsed());
        spent += begin.elapsed();
    }
    let [p999, longest] = tail(times);
    println!(
        "\nFull, {extents} extents: {failed} writes that failed, each after a change of times: {:.1} µs each, p99.9 {p999:.1} µs, longest {longest:.1} µs",
        spent.as_secs_f64() * 1e6 / f64::from(failed)
    );
    Ok(())
}
