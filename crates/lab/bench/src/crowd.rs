//! Many threads of many processes that read many files: what observing them costs.
//!
//! ```text
//! homenode-bench crowd DIR PROCESSES THREADS FILES SECONDS    each second, every thread reads its share of the files
//! ```
//!
//! The files have one page each, are made in DIR if they are missing, and stay there. Prints a line
//! when all threads read.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::{Result, again};

pub fn main(args: &[&str]) -> Result<()> {
    let number = |text: &str| text.parse::<usize>().unwrap();
    match *args {
        ["--process", dir, first, threads, each, seconds] => {
            process(Path::new(dir), number(first), number(threads), number(each), number(seconds) as u64);
        }
        [dir, processes, threads, files, seconds] => {
            let (processes, threads, files) = (number(processes), number(threads), number(files));
            let (per_process, each) = (threads / processes, files / threads);
            for n in 0..files {
                let file = path(Path::new(dir), n);
                if !file.exists() {
                    fs::create_dir_all(file.parent().unwrap()).unwrap();
                    fs::write(file, [1; 4096]).unwrap();
                }
            }
            let start = |n: usize| -> Child {
                let first = n * per_process * each;
                let own = [first, per_process, each].map(|number| number.to_string());
                let mut command = again("crowd").unwrap();
                command.args(["--process", dir]).args(own).arg(seconds).stdout(Stdio::piped()).spawn().unwrap()
            };
            let mut children: Vec<Child> = (0..processes).map(start).collect();
            for child in &mut children {
                let mut line = String::new();
                BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
                assert_eq!(line, "ready\n");
            }
            println!("{} threads of {processes} processes read {files} files", processes * per_process);
            for mut child in children {
                assert!(child.wait().unwrap().success());
            }
        }
        _ => return Err("usage: crowd DIR PROCESSES THREADS FILES SECONDS".into()),
    }
    Ok(())
}

/// A hundred files in a directory.
fn path(dir: &Path, n: usize) -> PathBuf {
    dir.join(format!("{}/{n}", n / 100))
}

/// A process whose threads read `each` files a second, from number `first` on.
fn process(dir: &Path, first: usize, threads: usize, each: usize, seconds: u64) {
    let began = Instant::now();
    let read = |thread: usize| {
        let mut page = [0; 4096];
        // Not all at once: spread over the second, and the files of a thread, too.
        let pause = Duration::from_micros((first + thread * each) as u64 * 997 % 1_000_000);
        std::thread::sleep(pause);
        while began.elapsed() < Duration::from_secs(seconds) {
            let next = Instant::now() + Duration::from_secs(1);
            for n in first + thread * each..first + (thread + 1) * each {
                File::open(path(dir, n)).unwrap().read_exact_at(&mut page, 0).unwrap();
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    };
    std::thread::scope(|scope| {
        for thread in 1..threads {
            std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, move || read(thread)).unwrap();
        }
        println!("ready");
        read(0);
    });
}
