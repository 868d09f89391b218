//! What the file system costs beside the bare memory and beside the kernel's file systems, all in
//! one run.
//!
//! `homenode-bench ratios [OPTION]... [DIR]...` with directories on file systems of the kernel:
//!
//! - `--only NAME`: operations with NAME in their names
//! - `--rounds N`: rounds (101)
//! - `--file MIB`: size of the file that is read (128)
//! - `--names N`: names of the directory that is listed (100000)
//! - `--regions DIR`: regions are files of DIR, such as a DAX file system, instead of memfd
//!
//! In each round all contenders take turns with a short batch. The first of them is the limit where
//! there is one: the same bytes copied and made durable by nobody. On a busy machine a ratio within
//! a round says more than a time.
//!
//! The library saves the system call, and memfd is lost with the machine: the lines compare what a
//! program waits for.

mod kernel;
mod own;
mod rounds;

use std::cell::RefCell;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use fs::medium::{At, Medium};
use fs::{Ino, Volume};
use kernel::Kernel;
use own::{BLOCK, FILE, MIB, Memory, persist, stream};
use rounds::{Contender, Rounds, random};

use crate::Result;

/// Calls in a batch: so few that one in many batches is not interrupted on a busy machine.
const BATCH: usize = 200;
const CLWB: &str = "bare: memcpy, clwb, fence";
const STREAM: &str = "bare: past the caches, fence";
/// The volume that `mkfs` makes unless told otherwise.
const SUMMED: &str = "homenode, checksums of data";

/// The name of the `i`-th file of a directory.
fn name(i: usize) -> String {
    format!("file {i}")
}

/// Offset of the `i`-th call.
type Place<'a> = &'a dyn Fn(usize) -> usize;

struct Arguments {
    rounds: Rounds,
    file: usize,
    names: usize,
    memory: Memory,
    dirs: Vec<PathBuf>,
}

fn arguments(args: &[&str]) -> Result<Arguments> {
    let mut all = Arguments {
        rounds: Rounds { rounds: 101, only: None },
        file: 128 * MIB,
        names: 100_000,
        memory: Memory { dir: None },
        dirs: Vec::new(),
    };
    let mut given = args.iter();
    while let Some(&argument) = given.next() {
        let mut value = || given.next().ok_or_else(|| format!("{argument} lacks its value"));
        match argument {
            "--only" => all.rounds.only = Some((*value()?).to_owned()),
            "--rounds" => all.rounds.rounds = value()?.parse()?,
            "--file" => all.file = value()?.parse::<usize>()? * MIB,
            "--names" => all.names = value()?.parse()?,
            "--regions" => all.memory.dir = Some(value()?.into()),
            _ => all.dirs.push(argument.into()),
        }
    }
    Ok(all)
}

pub fn main(args: &[&str]) -> Result<()> {
    let Arguments { rounds, file, names, memory, dirs } = arguments(args)?;
    let bare = memory.bare(&[file.max(64 * MIB)])?;
    // Writes need as much again; a name an inode, a page of log, and its entry in the directory.
    let (volume, same) = memory.volume(&[3 * file + 48 * MIB + names * 5 * 1024], false)?;
    let (summed, _) = memory.volume(&[3 * file + 48 * MIB], true)?;
    let new = |name: &str, mode| volume.create(Ino::ROOT, name.as_bytes(), fs::NewFile { mode, ..FILE });
    let (data, log) = (new("data", FILE.mode)?.ino, new("log", FILE.mode)?.ino);
    let of_summed = |name: &str| summed.create(Ino::ROOT, name.as_bytes(), FILE);
    let (data_summed, log_summed) = (of_summed("data")?.ino, of_summed("log")?.ino);
    let (work, many) = (new("work", 0o040_755)?.ino, new("names", 0o040_755)?.ino);
    for (volume, data) in [(&volume, data), (&summed, data_summed)] {
        (0..file / MIB).try_for_each(|mib| volume.write(data, (mib * MIB) as u64, &vec![1; MIB]))?;
    }
    (0..names).try_for_each(|i| volume.create(many, name(i).as_bytes(), FILE).map(|_| ()))?;
    let kernels = dirs.iter().map(|dir| Kernel::new(dir, file, names)).collect::<Result<Vec<_>>>()?;
    // The same, and the same with a sync.
    let synced = || kernels.iter().flat_map(|k| [(k, false), (k, true)]).filter(|(k, sync)| k.lasts || !sync);
    let title = |k: &Kernel, sync: bool| format!("{}{}", k.name, if sync { ", fdatasync" } else { "" });

    let load = std::fs::read_to_string("/proc/loadavg")?;
    let durable = bare.persistence(0).map_or_else(String::new, |p| p.to_string());
    let processor = std::fs::read_to_string("/proc/cpuinfo")?;
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let processor = processor.map_or("unknown processor", |(_, name)| name);
    println!("{processor}; {durable}; {} CPUs, load {}\n", std::thread::available_parallelism()?, load.trim());
    println!(
        "| operation | by | median | fastest | relative: median (quartiles) | to the second | fastest, relative |"
    );
    println!("|---|---|---|---|---|---|---|");

    // The same bytes in the same memory: where it is, and in which pages, can make more of a
    // difference than the file system.
    let places: Vec<u64> =
        volume.map(data)?.iter().flat_map(|run| (0..run.count).map(|i| run.block.offset(i).index())).collect();
    let at = |i: usize| At { region: 0, offset: places.get(i / BLOCK).map_or(0, |block| block * BLOCK as u64) };
    let block = |i| random(i, file / BLOCK) * BLOCK;
    let mib = |i: usize| i * MIB % file;
    for (what, calls, len, place) in
        [("read at random, 4 KiB", 500, BLOCK, &block as Place<'_>), ("read in sequence, 1 MiB", 4, MIB, &mib)]
    {
        // One buffer for all: how long a copy takes depends on where in a page it goes.
        let mut memory = vec![0; len + BLOCK];
        let from = memory.as_ptr().align_offset(BLOCK);
        let out = RefCell::new(memory.get_mut(from..from + len).ok_or("the buffer is too short")?);
        let mut all = vec![
            // Half a file from where homenode reads, which else would find in the cache what was
            // just read.
            Contender::new("bare: memcpy", |i| {
                Ok(same.read(at(place(i + file / len / 2)), black_box(&mut out.borrow_mut()))?)
            }),
            Contender::new("homenode", |i| {
                Ok(volume.read(data, place(i) as u64, black_box(&mut out.borrow_mut())).map(drop)?)
            }),
            Contender::new(SUMMED, |i| {
                Ok(summed.read(data_summed, place(i) as u64, black_box(&mut out.borrow_mut())).map(drop)?)
            }),
        ];
        for k in &kernels {
            let out = &out;
            let call = move |i| Ok(k.data.read_exact_at(black_box(&mut out.borrow_mut()), place(i) as u64)?);
            all.push(Contender::new(k.name.clone(), call));
        }
        rounds.compare(what, calls, all)?;
    }

    let (small, large) = ([7; BLOCK], vec![9; MIB]);
    let (small, large, bare_at) = (&small[..], &large[..], bare.len(0) as usize);
    let growing = |i: usize| i % BATCH * BLOCK;
    let writes: [(&str, usize, &[u8], Place<'_>); 3] = [
        ("append, 4 KiB", BATCH, small, &growing),
        ("overwrite at random, 4 KiB", BATCH, small, &block),
        ("overwrite in sequence, 1 MiB", 4, large, &mib),
    ];
    for (what, calls, bytes, place) in writes {
        let appends = what.starts_with("append");
        let (ino, ino_summed) = if appends { (log, log_summed) } else { (data, data_summed) };
        let bytes_at = move |i| place(i) % (bare_at - bytes.len() + 1);
        let mut all = vec![
            Contender::new(CLWB, |i| persist(&bare, bytes_at(i), bytes)),
            Contender::new(STREAM, |i| stream(&bare, bytes_at(i), bytes)),
        ];
        for (name, volume, ino) in [("homenode, durable", &volume, ino), (SUMMED, &summed, ino_summed)] {
            let call = move |i| match appends {
                true => Ok(volume.append(ino, bytes).map(drop)?),
                false => Ok(volume.write(ino, place(i) as u64, bytes)?),
            };
            let reset = move || if appends { Ok(volume.truncate(ino, 0)?) } else { Ok(()) };
            all.push(Contender::new(name, call).reset(reset));
        }
        for (k, sync) in synced() {
            let file = if appends { &k.log } else { &k.data };
            let call = move |i| {
                file.write_all_at(bytes, place(i) as u64)?;
                if sync { Ok(file.sync_data()?) } else { Ok(()) }
            };
            let reset = move || if appends { Ok(file.set_len(0)?) } else { Ok(()) };
            all.push(Contender::new(title(k, sync), call).reset(reset));
        }
        rounds.compare(what, calls, all)?;
    }

    // With its names in work, at the end of each batch as at its beginning.
    let here = |i: usize| name(i % BATCH);
    let there = |i: usize| format!("other {}", i % BATCH);
    let line = [3; 64];
    let own_create = |i| Ok(volume.create(work, here(i).as_bytes(), FILE).map(drop)?);
    let own_unlink = |i| Ok(volume.unlink(work, here(i).as_bytes())?);
    let own_rename = |from: String, to: String| {
        Ok(volume.rename((work, from.as_bytes()), (work, to.as_bytes()), fs::Rename::Replace)?)
    };
    for what in ["create", "rename", "unlink"] {
        let bare_line = |i: usize| persist(&bare, i * 64 % MIB, &line);
        let own = Contender::new("homenode, durable", move |i| match what {
            "create" => own_create(i),
            "rename" => own_rename(here(i), there(i)),
            _ => own_unlink(i),
        });
        let own = own.reset(move || {
            (0..BATCH).try_for_each(|i| match what {
                "create" => own_unlink(i),
                "rename" => own_rename(there(i), here(i)),
                _ => own_create(i),
            })
        });
        let mut all = vec![Contender::new("bare: one line, clwb, fence", bare_line), own];
        for (k, sync) in synced() {
            let call = move |i| {
                match what {
                    "create" => kernel::create(&k.work, &here(i))?,
                    "rename" => kernel::rename(&k.work, &here(i), &there(i))?,
                    _ => kernel::unlink(&k.work, &here(i))?,
                }
                if sync { Ok(k.work.sync_all()?) } else { Ok(()) }
            };
            let reset = move || {
                (0..BATCH).try_for_each(|i| match what {
                    "create" => kernel::unlink(&k.work, &here(i)),
                    "rename" => kernel::rename(&k.work, &there(i), &here(i)),
                    _ => kernel::create(&k.work, &here(i)),
                })
            };
            all.push(Contender::new(title(k, sync).replace("fdata", "f"), call).reset(reset));
        }
        let names_stand = rounds.wants(what) && what != "create";
        if names_stand {
            (0..BATCH).try_for_each(own_create)?;
            kernels.iter().try_for_each(|k| (0..BATCH).try_for_each(|i| kernel::create(&k.work, &here(i))))?;
        }
        rounds.compare(what, BATCH, all)?;
        if names_stand {
            (0..BATCH).try_for_each(own_unlink)?;
            kernels.iter().try_for_each(|k| (0..BATCH).try_for_each(|i| kernel::unlink(&k.work, &here(i))))?;
        }
    }

    let any = |i| name(random(i, names));
    let mut all = vec![Contender::new("homenode", |i| {
        Ok(volume.lookup(many, any(i).as_bytes()).map(|stat| _ = black_box(stat))?)
    })];
    all.extend(kernels.iter().map(|k| Contender::new(k.name.clone(), move |i| kernel::stat(&k.names, &any(i)))));
    rounds.compare(&format!("stat by name, 1 of {names}"), 500, all)?;
    let complete = move |count: usize| if count == names { Ok(()) } else { Err("names are missing".into()) };
    let mut all = vec![Contender::new("homenode", |_| complete(list(&volume, many)?))];
    all.extend(kernels.iter().map(|k| Contender::new(k.name.clone(), move |_| complete(kernel::list(&k.names)?))));
    rounds.compare(&format!("list {names} names"), 1, all)?;
    Ok(())
}

/// How many names a directory has, asked for in parts as a mount does.
fn list(volume: &Volume, dir: Ino) -> Result<usize> {
    let (mut count, mut after) = (0, 0);
    loop {
        let part = volume.names(dir, after, 1000)?;
        let Some(last) = part.last() else { return Ok(count) };
        (count, after) = (count + part.len(), last.named.cookie);
    }
}
