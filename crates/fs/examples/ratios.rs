//! Cost that the file system adds to the bare memory: each operation against the same copy, flush and fence without it.
//!
//! `cargo run --release -p homenode-fs --example ratios [NAME]`. Batches of all kinds take turns; each line shows the fastest
//! batch, and how many times as long as the first kind it took. NAME is a part of the names of operations: the others are left out.

use std::fs::File;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use fs::medium::{At, Mapped, Medium, RegionFile};
use fs::{Ino, Layout, NewFile, Options, Placement, Result, Volume};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// Calls in a batch: so few that one in many batches is not interrupted on a busy machine.
const BATCH: u64 = 200;
const BATCHES: u64 = 200;

fn memory(mib: u64) -> Result<RegionFile> {
    let fd = rustix::fs::memfd_create("ratios", rustix::fs::MemfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
    let file = File::from(fd);
    file.set_len(mib * MIB)?;
    Ok(RegionFile { file, bind: None })
}

fn map(regions: &[RegionFile]) -> Result<Mapped> {
    let mut mapped = Mapped::new(regions)?;
    mapped.assume_persistent();
    // Touch every page, so that no batch pays for it.
    for region in 0..regions.len() {
        for page in 0..mapped.len(region) / BLOCK as u64 {
            let (at, mut byte) = (At { region, offset: page * BLOCK as u64 }, [0]);
            mapped.read(at, &mut byte)?;
            mapped.write(at, &byte)?;
        }
    }
    Ok(mapped)
}

/// Its name, and a call.
type Kind<'a> = (&'a str, &'a mut dyn FnMut(u64) -> Result<()>);

/// Prints nanoseconds for each call, in the fastest of `batches` batches of each kind, and how many times as long as the first kind
/// the others took.
fn compare(
    name: &str,
    (batches, count): (u64, u64),
    kinds: &mut [Kind<'_>],
    mut between: impl FnMut() -> Result<()>,
) -> Result<()> {
    if std::env::args().nth(1).is_some_and(|part| !name.contains(&part)) {
        return Ok(());
    }
    let mut fastest = vec![f64::MAX; kinds.len()];
    for batch in 0..batches {
        for (fastest, (_, call)) in fastest.iter_mut().zip(kinds.iter_mut()) {
            let begin = Instant::now();
            (batch * count..(batch + 1) * count).try_for_each(call)?;
            *fastest = fastest.min(begin.elapsed().as_nanos() as f64 / count as f64);
        }
        between()?;
    }
    println!("{name}");
    let first = fastest.first().copied().unwrap_or(f64::NAN);
    for ((kind, _), fastest) in kinds.iter().zip(&fastest) {
        println!("    {kind:28} {fastest:12.0} ns  {:6.2}", fastest / first);
    }
    Ok(())
}

/// Nanoseconds for an append of 4 KiB to a file of its own, by so many threads at once: the fastest of many batches.
fn appends(volume: &Volume, threads: usize) -> Result<f64> {
    let files: Vec<Ino> = (0..threads)
        .map(|i| {
            volume.create(Ino::ROOT, format!("{threads} {i}").as_bytes(), NewFile { mode: 0o644, ..NewFile::default() })
        })
        .map(|made| Ok(made?.ino))
        .collect::<Result<_>>()?;
    let (barrier, data) = (Barrier::new(threads), [7; BLOCK]);
    let run = |ino: Ino, mut note: Option<&mut f64>| -> Result<()> {
        for _ in 0..5 * BATCHES {
            barrier.wait();
            let begin = Instant::now();
            (0..BATCH).try_for_each(|_| volume.append(ino, &data).map(|_| ()))?;
            barrier.wait();
            if let Some(fastest) = &mut note {
                **fastest = fastest.min(begin.elapsed().as_nanos() as f64 / BATCH as f64);
            }
            volume.truncate(ino, 0)?;
        }
        Ok(())
    };
    let mut fastest = f64::MAX;
    std::thread::scope(|scope| {
        let others: Vec<_> = files.iter().skip(1).map(|ino| scope.spawn(|| run(*ino, None))).collect();
        let done = files.first().map_or(Ok(()), |ino| run(*ino, Some(&mut fastest)));
        others.into_iter().fold(done, |done, other| done.and(other.join().unwrap_or(Err(fs::Error::Interrupted))))
    })?;
    Ok(fastest)
}

/// A volume over regions of so many MiB, region `i` on node `i`.
fn volume_over(regions: &[u64]) -> Result<Volume> {
    let files = regions.iter().map(|mib| memory(*mib)).collect::<Result<Vec<_>>>()?;
    let layout = Layout {
        volume: [1; 16],
        created: 0,
        nodes: (0..regions.len() as u32).map(Some).collect(),
        names: Vec::new(),
        bytes_per_inode: 16384,
        journals: 2,
        data_checksums: false,
        owner: (0, 0),
    };
    fs::mkfs(Box::new(map(&files)?), &layout)?;
    Volume::mount(Box::new(map(&files)?), Options { placement: Placement::Node(0), ..Options::default() })
}

/// Moves a file to and fro between two regions, a part in each call, against ways to copy as many bytes between them in the same
/// steps. No part is in the processor's cache when its turn comes.
fn migration() -> Result<()> {
    const FILE: u64 = 128 * MIB;
    const PART: u64 = 4 * MIB;
    const STEP: u64 = 256 << 10;
    const PARTS: u64 = FILE / PART;
    let bare = map(&[memory(FILE / MIB)?, memory(FILE / MIB)?])?;
    let volume = volume_over(&[FILE / MIB + 16, FILE / MIB + 16])?;
    let file = volume.create(Ino::ROOT, b"moving", NewFile { mode: 0o644, ..NewFile::default() })?.ino;
    (0..FILE / MIB).try_for_each(|mib| volume.write(file, mib * MIB, &vec![1; MIB as usize]))?;
    let len = STEP as usize;
    let steps = |i: u64| {
        (0..PART / STEP).map(move |step| {
            let offset = i % PARTS * PART + step * STEP;
            let at = |way: u64| At { region: (way % 2) as usize, offset };
            (at(i / PARTS), at(i / PARTS + 1))
        })
    };
    let mut memories = [vec![1_u8; FILE as usize], vec![2_u8; FILE as usize]];
    let mut buffer = vec![0; len];
    compare(
        "move of 4 MiB",
        (40 * PARTS, 1),
        &mut [
            ("memcpy", &mut |i| {
                let [one, two] = &mut memories;
                let (from, to) = if (i / PARTS).is_multiple_of(2) { (one, two) } else { (two, one) };
                let part = (i % PARTS * PART) as usize..((i % PARTS + 1) * PART) as usize;
                if let (Some(from), Some(to)) = (from.get(part.clone()), to.get_mut(part)) {
                    from.chunks(len).zip(to.chunks_mut(len)).for_each(|(from, to)| to.copy_from_slice(from));
                    black_box(to);
                }
                Ok(())
            }),
            ("memcpy twice, clwb, fence", &mut |i| {
                steps(i).try_for_each(|(from, to)| {
                    bare.read(from, &mut buffer)?;
                    bare.write(to, &buffer)?;
                    bare.flush(to, STEP)?;
                    bare.fence()
                })
            }),
            ("past the caches, fence", &mut |i| {
                // Another part than the call before, which left its own in the cache.
                steps(i + PARTS / 2).try_for_each(|(from, to)| {
                    bare.copy_data(from, to, len)?;
                    bare.fence()
                })
            }),
            ("migrate_from", &mut |i| {
                let (first, most) = (i % PARTS * PART / BLOCK as u64, PART / BLOCK as u64);
                let node = (i / PARTS + 1) % 2;
                volume.migrate_from(file, node as u32, first, None, |done| done.moved < most).map(|_| ())
            }),
        ],
        || Ok(()),
    )
}

fn main() -> Result<()> {
    let bare = map(&[memory(256)?])?;
    let volume = volume_over(&[512])?;
    println!("persistence: {}\n", bare.persistence(0).map_or_else(String::new, |p| p.to_string()));

    let new = NewFile { mode: 0o644, ..NewFile::default() };
    let file = volume.create(Ino::ROOT, b"read", new)?.ino;
    for chunk in 0..128 {
        volume.write(file, chunk * MIB, &vec![1; MIB as usize])?;
    }
    let random = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49; // 0..32768 blocks: 128 MiB
    let mut out = [0; BLOCK];
    let mut bare_out = [0; BLOCK];
    let at = |block: u64| At { region: 0, offset: block * BLOCK as u64 };
    let persist = |offset: u64, data: &[u8]| {
        let at = At { region: 0, offset };
        bare.write(at, data)?;
        bare.flush(at, data.len() as u64)?;
        bare.fence()
    };
    let stream = |offset: u64, data: &[u8]| {
        bare.write_data(At { region: 0, offset }, data)?;
        bare.fence()
    };

    compare(
        "random read, 4 KiB",
        (BATCHES, BATCH * 5),
        &mut [
            ("memcpy", &mut |i| {
                bare.read(at(random(i)), &mut bare_out)?;
                black_box(&bare_out);
                Ok(())
            }),
            ("homenode", &mut |i| {
                volume.read(file, random(i) * BLOCK as u64, &mut out)?;
                black_box(&out);
                Ok(())
            }),
        ],
        || Ok(()),
    )?;

    const CLWB: &str = "memcpy, clwb, fence";
    const STREAM: &str = "past the caches, fence";
    let log = volume.create(Ino::ROOT, b"append", new)?.ino;
    let data = [7; BLOCK];
    compare(
        "append, 4 KiB",
        (BATCHES, BATCH),
        &mut [
            (CLWB, &mut |i| persist(i * BLOCK as u64, &data)),
            (STREAM, &mut |i| stream(i * BLOCK as u64, &data)),
            ("homenode", &mut |_| volume.append(log, &data).map(|_| ())),
        ],
        || volume.truncate(log, 0),
    )?;
    compare(
        "overwrite at random, 4 KiB",
        (BATCHES, BATCH),
        &mut [
            (CLWB, &mut |i| persist(random(i) * BLOCK as u64, &data)),
            (STREAM, &mut |i| stream(random(i) * BLOCK as u64, &data)),
            ("homenode", &mut |i| volume.write(file, random(i) * BLOCK as u64, &data)),
        ],
        || Ok(()),
    )?;
    let large = vec![9; MIB as usize];
    let mut memory_of_it = vec![0; 200 * MIB as usize];
    compare(
        "write in sequence, 1 MiB",
        (BATCHES, 4),
        &mut [
            ("memcpy", &mut |i| {
                let to = memory_of_it.get_mut((i % 200 * MIB) as usize..).unwrap_or_default();
                to.iter_mut().zip(&large).for_each(|(to, from)| *to = *from);
                black_box(to);
                Ok(())
            }),
            (CLWB, &mut |i| persist(i % 200 * MIB, &large)),
            (STREAM, &mut |i| stream(i % 200 * MIB, &large)),
            ("homenode", &mut |i| volume.write(log, i % 200 * MIB, &large)),
        ],
        || Ok(()),
    )?;
    volume.truncate(log, 0)?;

    let line = [3; 64];
    let dir = volume.create(Ino::ROOT, b"dir", NewFile { mode: 0o040_755, ..NewFile::default() })?.ino;
    let name = |i: u64| format!("file {}", i % BATCH);
    let mut create = |i| volume.create(dir, name(i).as_bytes(), new).map(|_| ());
    let mut unlink = |i| volume.unlink(dir, name(i).as_bytes());
    let mut bare_line = |i| persist(i * 64, &line);
    let calls = (BATCHES, BATCH);
    compare("create", calls, &mut [("one line, clwb, fence", &mut bare_line), ("homenode", &mut create)], || {
        (0..BATCH).try_for_each(unlink)
    })?;
    (0..BATCH).try_for_each(create)?;
    compare("unlink", calls, &mut [("one line, clwb, fence", &mut bare_line), ("homenode", &mut unlink)], || {
        (0..BATCH).try_for_each(create)
    })?;
    if std::env::args().nth(1).is_none_or(|part| "move".contains(&part)) {
        migration()?;
    }
    if std::env::args().nth(1).is_none_or(|part| "threads".contains(&part)) {
        println!("append, 4 KiB, each thread to its own file");
        let mut one = f64::NAN;
        for threads in [1, 2] {
            let each = appends(&volume, threads)?;
            one = if threads == 1 { each } else { one };
            println!("    {threads} threads {each:12.0} ns  {:6.0} % of linear", 100.0 * one / each);
        }
    }
    Ok(())
}
