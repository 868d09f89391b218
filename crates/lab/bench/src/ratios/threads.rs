//! Threads that each work on a file of their own, beside as many that copy.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fs::medium::{At, Medium};
use fs::{Ino, NewFile};
use rustix::thread::CpuSet;

use super::own::{BLOCK, FILE, MIB, Memory, stream};
use super::rounds::{Rounds, fastest, random, relative, time};
use crate::{Result, quartiles};

const SIZE: usize = 32 * MIB;
/// Calls of a thread in a batch: so few that in some batches no thread is interrupted.
const CALLS: usize = 300;

/// Prints for 1, 2, 4, … threads, up to one a CPU, how long a call takes and how much faster all
/// together are than one is, relative to their number.
pub fn measure(rounds: &Rounds, memory: &Memory) -> Result<()> {
    let most = std::thread::available_parallelism()?.get();
    let counts: Vec<usize> = (0..).map(|i| 1 << i).take_while(|n| *n < most).chain([most]).collect();
    if !rounds.wants("threads") || most == 1 {
        return Ok(());
    }
    let bare = memory.bare(&[most * SIZE])?;
    let (volume, _) = memory.volume(&[most * (2 * SIZE + MIB) + 16 * MIB], false)?;
    let own = |name: &str, i: usize| volume.create(Ino::ROOT, format!("{name} {i}").as_bytes(), NewFile { ..FILE });
    let files = (0..most).map(|i| Ok(own("data", i)?.ino)).collect::<Result<Vec<Ino>>>()?;
    let logs = (0..most).map(|i| Ok(own("log", i)?.ino)).collect::<Result<Vec<Ino>>>()?;
    for file in &files {
        (0..SIZE / MIB).try_for_each(|i| volume.write(*file, (i * MIB) as u64, &vec![1; MIB]))?;
    }
    let of = |all: &[Ino], thread: usize| all.get(thread).copied().ok_or("more threads than files");
    let place = |i: usize| random(i, SIZE / BLOCK) * BLOCK;
    let data = [7; BLOCK];
    type Call<'a> = &'a (dyn Fn(usize, usize) -> Result<()> + Sync);
    let kinds: [(&str, &str, Call<'_>); 5] = [
        ("read at random, 4 KiB", "bare: memcpy", &|thread, i| {
            let at = At { region: 0, offset: (thread * SIZE + place(i)) as u64 };
            Ok(bare.read(at, black_box(&mut [0; BLOCK]))?)
        }),
        ("read at random, 4 KiB", "homenode", &|thread, i| {
            Ok(volume.read(of(&files, thread)?, place(i) as u64, black_box(&mut [0; BLOCK])).map(drop)?)
        }),
        ("write at random, 4 KiB", "bare: past the caches, fence", &|thread, i| {
            stream(&bare, thread * SIZE + place(i), &data)
        }),
        ("overwrite at random, 4 KiB", "homenode", &|thread, i| {
            Ok(volume.write(of(&files, thread)?, place(i) as u64, &data)?)
        }),
        ("append, 4 KiB", "homenode", &|thread, _| Ok(volume.append(of(&logs, thread)?, &data).map(drop)?)),
    ];
    println!("\nThreads with a file each; 100 % of linear: so many threads do so many times as much.\n");
    println!("| operation | by | threads | median | of linear: median (quartiles) | fastest | of linear |");
    println!("|---|---|---|---|---|---|---|");
    for (what, by, call) in kinds {
        let mut times = vec![Vec::new(); counts.len()];
        for round in 0..10 * rounds.rounds {
            for (count, times) in counts.iter().zip(&mut times) {
                times.push(together(*count, round * CALLS, call)?);
                if what == "append, 4 KiB" {
                    logs.iter().take(*count).try_for_each(|log| volume.truncate(*log, 0))?;
                }
            }
        }
        let one = times.first().cloned().unwrap_or_default();
        for (count, times) in counts.iter().zip(&times) {
            let [low, median, high] = relative(&one, times);
            println!(
                "| {what} | {by} | {count} | {} | {:.0} % ({:.0}–{:.0}) | {} | {:.0} % |",
                time(quartiles(times.clone())[1]),
                100.0 * median,
                100.0 * low,
                100.0 * high,
                time(fastest(times)),
                100.0 * fastest(&one) / fastest(times),
            );
        }
    }
    Ok(())
}

/// Nanoseconds of a call, from call `first` on, of the slowest while so many threads, each on a CPU
/// of its own, call at once.
fn together(count: usize, first: usize, call: &(dyn Fn(usize, usize) -> Result<()> + Sync)) -> Result<f64> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let ready = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .take(count)
            .enumerate()
            .map(|(thread, cpu)| {
                let ready = &ready;
                scope.spawn(move || {
                    let mut only = CpuSet::new();
                    only.set(cpu);
                    let bound = rustix::thread::sched_setaffinity(None, &only);
                    let warm = call(thread, first); // makes its counters
                    // Spins: who sleeps begins late.
                    ready.fetch_add(1, Ordering::AcqRel);
                    while ready.load(Ordering::Acquire) < count {
                        std::hint::spin_loop();
                    }
                    let begin = Instant::now();
                    (first..first + CALLS).try_for_each(|i| call(thread, i))?;
                    let took = begin.elapsed().as_nanos() as f64 / CALLS as f64;
                    bound?;
                    warm.map(|()| took)
                })
            })
            .collect();
        let took = threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")?);
        took.collect::<Result<Vec<f64>>>().map(|took| took.into_iter().fold(0.0, f64::max))
    })
}
