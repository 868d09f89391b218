//! A file that moves to and fro between two regions on one node.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fs::medium::{At, Mapped, Medium};
use fs::{Ino, Migration, Volume};

use super::own::{BLOCK, FILE, MIB, Memory};
use super::rounds::{Contender, Rounds, random};
use crate::Result;

/// Bytes that one call moves.
const PART: usize = 4 * MIB;
/// Bytes that a migration commits at once.
const STEP: usize = 256 << 10;

/// Against ways to copy as many bytes in the same steps, where no part is in the processor's cache
/// when its turn comes; and the reads of another thread meanwhile.
pub fn measure(rounds: &Rounds, memory: &Memory, size: usize) -> Result<()> {
    let moves = rounds.wants("move of 4 MiB");
    if !moves && !rounds.wants("reads during a move") {
        return Ok(());
    }
    let (volume, _) = memory.volume(&[size + 16 * MIB, size + 16 * MIB], false)?;
    let file = volume.create(Ino::ROOT, b"moving", FILE)?.ino;
    (0..size / MIB).try_for_each(|mib| volume.write(file, (mib * MIB) as u64, &vec![1; MIB]))?;
    if moves {
        parts(rounds, memory, &volume, (file, size))?;
    }
    if rounds.wants("reads during a move") { beside(memory, &volume, (file, size)) } else { Ok(()) }
}

fn parts(rounds: &Rounds, memory: &Memory, volume: &Volume, (file, size): (Ino, usize)) -> Result<()> {
    let bare = memory.bare(&[size, size])?;
    let all = size / PART;
    let steps = |i: usize| {
        (0..PART / STEP).map(move |step| {
            let offset = (i % all * PART + step * STEP) as u64;
            let at = |way: usize| At { region: way % 2, offset };
            (at(i / all), at(i / all + 1))
        })
    };
    let twice = |bare: &Mapped, buffer: &mut [u8], (from, to): (At, At)| -> Result<()> {
        bare.read(from, buffer)?;
        bare.write(to, buffer)?;
        bare.flush(to, buffer.len() as u64)?;
        Ok(bare.fence()?)
    };
    let (mut memories, mut buffer) = ([vec![1_u8; size], vec![2_u8; size]], vec![0; STEP]);
    let contenders = vec![
        Contender::new("bare: memcpy", |i| {
            let [one, two] = &mut memories;
            let (from, to) = if (i / all).is_multiple_of(2) { (one, two) } else { (two, one) };
            let part = i % all * PART..(i % all + 1) * PART;
            let (from, to) = (from.get(part.clone()).ok_or("outside")?, to.get_mut(part).ok_or("outside")?);
            from.chunks(STEP).zip(to.chunks_mut(STEP)).for_each(|(from, to)| to.copy_from_slice(from));
            black_box(to);
            Ok(())
        }),
        Contender::new("bare: memcpy twice, clwb, fence", |i| {
            steps(i).try_for_each(|step| twice(&bare, &mut buffer, step))
        }),
        Contender::new("bare: past the caches, fence", |i| {
            // Another part than the call before, which left its own in the cache.
            steps(i + all / 2).try_for_each(|(from, to)| {
                bare.copy_data(from, to, STEP)?;
                Ok(bare.fence()?)
            })
        }),
        Contender::new("homenode, durable", |i| {
            let (first, most) = ((i % all * PART / BLOCK) as u64, (PART / BLOCK) as u64);
            let node = ((i / all + 1) % 2) as u32;
            let migration = Migration { to: node, first, ..Migration::default() };
            Ok(volume.migrate(file, migration, |done| done.moved < most).map(drop)?)
        }),
    ];
    Rounds { rounds: 10 * rounds.rounds, only: None }.compare("move of 4 MiB", 1, contenders)
}

/// What goes on beside the reads, so many times.
type Work<'a> = &'a dyn Fn(usize) -> Result<()>;

/// What one thread's reads take: alone, beside bare copies of as many bytes in other memory, which
/// share nothing with it but the processor and its memory, and beside moves of the file.
fn beside(memory: &Memory, volume: &Volume, (file, size): (Ino, usize)) -> Result<()> {
    let bare = memory.bare(&[size, size])?;
    let copy = |turn: usize| -> Result<()> {
        (0..size / STEP).try_for_each(|step| {
            let at = |region: usize| At { region, offset: (step * STEP) as u64 };
            bare.copy_data(at(turn % 2), at((turn + 1) % 2), STEP)?;
            Ok(bare.fence()?)
        })
    };
    let mover = |turn: usize| Ok(volume.migrate_file(file, ((turn + 1) % 2) as u32, None, |_| true).map(drop)?);
    let stop = AtomicBool::new(false);
    let reads = |least: usize| -> Result<Vec<u64>> {
        let (mut times, mut out) = (Vec::new(), [0; BLOCK]);
        while times.len() < least || (least == 0 && !stop.load(Ordering::Relaxed)) {
            let begin = Instant::now();
            volume.read(file, (random(times.len(), size / BLOCK) * BLOCK) as u64, black_box(&mut out))?;
            times.push(begin.elapsed().as_nanos() as u64);
        }
        times.sort_unstable();
        Ok(times)
    };
    println!("\n| a thread reads 4 KiB at random | reads | median | p99 | p99.9 |\n|---|---|---|---|---|");
    let print = |what: &str, times: &[u64]| {
        let at = |share: f64| times.get(((times.len() - 1) as f64 * share) as usize).copied().unwrap_or_default();
        println!("| {what} | {} | {} ns | {} ns | {} ns |", times.len(), at(0.5), at(0.99), at(0.999));
    };
    for round in 1..=3 {
        print(&format!("the file stays, {round}"), &reads(200_000)?);
        for (what, work) in [
            ("beside a bare copy of other memory, 8 times", &copy as Work<'_>),
            ("it moves to and fro, 8 times", &mover),
        ] {
            stop.store(false, Ordering::Relaxed);
            let times = std::thread::scope(|scope| {
                let reader = scope.spawn(|| reads(0));
                let worked = (0..8).try_for_each(work);
                stop.store(true, Ordering::Relaxed);
                worked?;
                reader.join().map_err(|_| "the reader panicked")?
            })?;
            print(&format!("{what}, {round}"), &times);
        }
    }
    Ok(())
}
