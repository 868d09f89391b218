//! Programs that measure what homenode costs, most of them beside its peers. The scripts in
//! `bench/` run them.
//!
//! ```text
//! homenode-bench NAME [ARGUMENT]...      NAME is a module, which says what it measures and takes
//! ```

mod mount;
mod observe;
mod ratios;
mod systems;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.split_first() {
        Some((&"mount", args)) => mount::main(args),
        Some((&"observe", args)) => observe::main(args),
        Some((&"ratios", args)) => ratios::main(args),
        _ => Err("usage: homenode-bench NAME [ARGUMENT]...".into()),
    }
}

/// This program, to play a part of the measurement `name` in a process of its own.
fn again(name: &str) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(name);
    Ok(command)
}

/// Such a process that has said its first line; killed when dropped.
struct Part {
    child: Child,
    said: String,
}

impl Part {
    fn start<S: AsRef<OsStr>>(name: &str, args: impl IntoIterator<Item = S>) -> std::io::Result<Self> {
        let child = again(name)?.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut part = Self { child, said: String::new() };
        if let Some(out) = &mut part.child.stdout {
            BufReader::new(out).read_line(&mut part.said)?;
        }
        Ok(part)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same numbers without order each time: below `most`, others for each seed.
fn random_numbers(seed: u64, most: u64) -> impl Iterator<Item = u64> {
    let mut random = lab::hot_set::Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    std::iter::repeat_with(move || random.draw() % most)
}

/// The middle one is the median.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|i| values.get(values.len().saturating_sub(1) * i / 4).copied().unwrap_or(f64::NAN))
}
