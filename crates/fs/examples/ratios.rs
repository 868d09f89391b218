//! Cost that the file system adds to the bare memory: each operation against the same copy, flush and fence without it.
//!
//! `cargo run --release -p homenode-fs --example ratios [NAME]`. Batches of both take turns; each line shows the fastest
//! batch. NAME is a part of the names of operations: the others are left out.

use std::fs::File;
use std::hint::black_box;
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

fn map(region: &RegionFile) -> Result<Mapped> {
    let mut mapped = Mapped::new(std::slice::from_ref(region))?;
    mapped.assume_persistent();
    // Touch every page, so that no batch pays for it.
    for page in 0..mapped.len(0) / BLOCK as u64 {
        let (at, mut byte) = (At { region: 0, offset: page * BLOCK as u64 }, [0]);
        mapped.read(at, &mut byte)?;
        mapped.write(at, &byte)?;
    }
    Ok(mapped)
}

/// Nanoseconds for each call, in the fastest of [`BATCHES`] batches of each kind.
fn compare(
    name: &str,
    count: u64,
    mut raw: impl FnMut(u64) -> Result<()>,
    mut own: impl FnMut(u64) -> Result<()>,
    mut between: impl FnMut() -> Result<()>,
) -> Result<()> {
    if std::env::args().nth(1).is_some_and(|part| !name.contains(&part)) {
        return Ok(());
    }
    let (mut fastest_raw, mut fastest_own) = (f64::MAX, f64::MAX);
    for batch in 0..BATCHES {
        let mut calls = batch * count..(batch + 1) * count;
        let begin = Instant::now();
        calls.clone().try_for_each(&mut raw)?;
        fastest_raw = fastest_raw.min(begin.elapsed().as_nanos() as f64 / count as f64);
        let begin = Instant::now();
        calls.try_for_each(&mut own)?;
        fastest_own = fastest_own.min(begin.elapsed().as_nanos() as f64 / count as f64);
        between()?;
    }
    println!("{name:32} {fastest_own:9.0} ns   bare {fastest_raw:9.0} ns   {:5.2}", fastest_own / fastest_raw);
    Ok(())
}

fn main() -> Result<()> {
    let bare = map(&memory(256)?)?;
    let region = memory(512)?;
    let (nodes, names) = (vec![None], Vec::new());
    let layout = Layout {
        volume: [1; 16],
        created: 0,
        nodes,
        names,
        bytes_per_inode: 16384,
        journals: 2,
        data_checksums: false,
        owner: (0, 0),
    };
    fs::mkfs(Box::new(map(&region)?), &layout)?;
    let volume = Volume::mount(Box::new(map(&region)?), Options { placement: Placement::Local, ..Options::default() })?;
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
        bare.write_data(at, data)?;
        bare.flush(at, data.len() as u64)?;
        bare.fence()
    };

    compare(
        "random read, 4 KiB",
        BATCH * 5,
        |i| {
            bare.read(at(random(i)), &mut bare_out).inspect(|()| {
                black_box(&bare_out);
            })
        },
        |i| {
            volume.read(file, random(i) * BLOCK as u64, &mut out).map(|_| {
                black_box(&out);
            })
        },
        || Ok(()),
    )?;

    let log = volume.create(Ino::ROOT, b"append", new)?.ino;
    let data = [7; BLOCK];
    compare(
        "append, 4 KiB",
        BATCH,
        |i| persist(i * BLOCK as u64, &data),
        |_| volume.append(log, &data).map(|_| ()),
        || volume.truncate(log, 0),
    )?;
    compare(
        "overwrite at random, 4 KiB",
        BATCH,
        |i| persist(random(i) * BLOCK as u64, &data),
        |i| volume.write(file, random(i) * BLOCK as u64, &data),
        || Ok(()),
    )?;
    let large = vec![9; MIB as usize];
    compare(
        "write, 1 MiB",
        4,
        |i| persist(i % 200 * MIB, &large),
        |i| volume.write(log, i * MIB, &large),
        || volume.truncate(log, 0),
    )?;

    let line = [3; 64];
    let dir = volume.create(Ino::ROOT, b"dir", NewFile { mode: 0o040_755, ..NewFile::default() })?.ino;
    let name = |i: u64| format!("file {}", i % BATCH);
    let create = |i| volume.create(dir, name(i).as_bytes(), new).map(|_| ());
    let unlink = |i| volume.unlink(dir, name(i).as_bytes());
    let bare_line = |i| persist(i * 64, &line);
    compare("create (bare: one line)", BATCH, bare_line, create, || (0..BATCH).try_for_each(unlink))?;
    (0..BATCH).try_for_each(create)?;
    compare("unlink (bare: one line)", BATCH, bare_line, unlink, || (0..BATCH).try_for_each(create))
}
