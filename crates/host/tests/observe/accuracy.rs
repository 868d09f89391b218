//! How close the sums are: against what fio reports, and without bias over many windows.

use std::fs::File;
use std::os::unix::fs::FileExt;

use host::observe::{Hooks, Settings};
use libtest_mimic::Completion;

use crate::common::*;
use crate::{Case, ensure};

pub const CASES: &[Case] = &[
    Case { name: "fio_psync", needs: &["fio"], run: |hooks| fio_agrees("psync", "--loops=8", hooks) },
    Case { name: "fio_mmap", needs: &["fio"], run: |hooks| fio_agrees("mmap", "--loops=1", hooks) },
    Case { name: "fio_io_uring", needs: &["fio"], run: |hooks| fio_agrees("io_uring", "--loops=8", hooks) },
    Case { name: "fio_libaio", needs: &["fio"], run: |hooks| fio_agrees("libaio", "--loops=8", hooks) },
    Case { name: "fio_writes", needs: &["fio"], run: fio_writes },
    Case { name: "sampling_has_no_bias", needs: &[], run: sampling_has_no_bias },
    Case { name: "a_full_table_is_reported", needs: &[], run: a_full_table_is_reported },
];

/// Bytes within 5 % (sampled) and 1 % (exact) of what fio's own report says.
fn fio_agrees(engine: &str, loops: &str, hooks: Hooks) -> Outcome {
    let directory = directory()?;
    let file = cached_file(directory.path(), "data", 128 * MIB, 4096)?;
    let engine = format!("--ioengine={engine}");
    for exact in [false, true] {
        let mut observer = open(&settings(exact, hooks))?;
        let (said, seen, windows) =
            fio(&mut observer, &file, &[&engine, "--rw=read", "--bs=4k", "--size=128m", loops])?;
        let share = if exact { 0.01 } else { 0.05 };
        let notes = windows.iter().map(|w| w.notes.clone()).max_by_key(Vec::len);
        println!("{engine}, exact {exact}: {:.4} of {} bytes", seen.read.total() as f64 / said.read as f64, said.read);
        ensure!(
            close(seen.read.total(), said.read, share),
            "exact {exact}: saw {seen:?}, fio says {said:?}; {notes:?}"
        );
    }
    Ok(Completion::Completed)
}

fn fio_writes(hooks: Hooks) -> Outcome {
    let directory = directory()?;
    let file = cached_file(directory.path(), "data", 64 * MIB, 4096)?;
    for exact in [false, true] {
        let mut observer = open(&settings(exact, hooks))?;
        let (said, seen, _) =
            fio(&mut observer, &file, &["--ioengine=psync", "--rw=write", "--bs=16k", "--size=64m", "--loops=8"])?;
        let share = if exact { 0.01 } else { 0.05 };
        println!("exact {exact}: {:.4} of {} bytes", seen.written.total() as f64 / said.written as f64, said.written);
        if !file_system_is_exact(&file)? {
            return Ok(Completion::ignored_with("writes of this file system are counted once per page"));
        }
        ensure!(close(seen.written.total(), said.written, share), "exact {exact}: saw {seen:?}, fio says {said:?}");
    }
    Ok(Completion::Completed)
}

/// Reads of different sizes, many at a time: their sum over many windows is right, each size for itself.
fn sampling_has_no_bias(hooks: Hooks) -> Outcome {
    const WINDOWS: usize = 30;
    let directory = directory()?;
    let sizes = [4096, 20_000, 200_000];
    let mut observer = open(&settings(false, hooks))?;
    let files: Vec<_> = sizes
        .iter()
        .map(|size| cached_file(directory.path(), &size.to_string(), 8 * MIB, 4096))
        .collect::<Result<_, _>>()?;
    let rounds = [24u64, 24, 24];
    let mut shares: [Vec<f64>; 3] = Default::default();
    for _ in 0..WINDOWS {
        let jobs: Vec<Job<'_>> = sizes
            .iter()
            .zip(&files)
            .zip(rounds)
            .map(|((size, path), rounds)| {
                let job = move || {
                    let file = File::open(path)?;
                    let mut buffer = vec![0; *size];
                    for _ in 0..rounds {
                        for at in (0..8 * MIB - *size as u64).step_by(*size) {
                            file.read_exact_at(&mut buffer, at)?;
                        }
                    }
                    Ok(())
                };
                Box::new(job) as Job<'_>
            })
            .collect();
        let (seen, _) = watch(&mut observer, jobs)?;
        for (i, seen) in seen.iter().enumerate() {
            let said = rounds[i] * ((8 * MIB - sizes[i] as u64).div_ceil(sizes[i] as u64)) * sizes[i] as u64;
            shares[i].push(seen.read(&files[i])? as f64 / said as f64);
        }
    }
    for (size, shares) in sizes.iter().zip(&shares) {
        let n = shares.len() as f64;
        let mean = shares.iter().sum::<f64>() / n;
        let deviation = (shares.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
        let z = (mean - 1.0) / (deviation / n.sqrt()).max(1e-4);
        println!("{size} bytes: mean {mean:.4}, deviation {deviation:.4}, z {z:.1}");
        // One in 15,000 by chance.
        ensure!(z.abs() < 4.0, "reads of {size} bytes: mean {mean:.4}, deviation {deviation:.4}, z {z:.1}");
    }
    Ok(Completion::Completed)
}

/// What finds no room is in the nodes' sums, and said.
fn a_full_table_is_reported(hooks: Hooks) -> Outcome {
    let directory = directory()?;
    let files: Vec<_> =
        (0..64).map(|i| cached_file(directory.path(), &i.to_string(), 65_536, 4096)).collect::<Result<_, _>>()?;
    let mut observer = open(&Settings { max_entries: 8, ..settings(true, hooks) })?;
    let (seen, observed) = watch_one(&mut observer, || files.iter().try_for_each(|path| pread_all(path, 4096)))?;
    let thread = seen.thread.ok_or("the thread was not reported")?.thread;
    let total = observed.node_read.total();
    ensure!(thread.read_bytes.total() < 64 * 65_536, "all fitted: {}", thread.read_bytes.total());
    ensure!(total >= 64 * 65_536, "the nodes' sum is {total}");
    ensure!(observed.notes.iter().any(|n| n.contains("table of 8 entries was full")), "{:?}", observed.notes);
    // The next window starts with an empty table.
    let (seen, observed) = watch_one(&mut observer, || pread_all(&files[0], 4096))?;
    ensure!(seen.read(&files[0])? == 65_536, "{seen:?}; {:?}", observed.notes);
    Ok(Completion::Completed)
}
