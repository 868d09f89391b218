//! Hotness of mapped files on the kernel that runs these tests, compared with what the program that
//! maps them counted itself.
//!
//! Needs root and BTF; the test of persistent memory needs /mnt/pmem0 (see vm/run). What is missing
//! is said. Files are below `$HOMENODE_TEST_DIR`, or cargo's target.

mod load;
mod patterns;
mod program;

use std::path::Path;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use observe::mapped::Mapped;

/// Output of a test.
pub type Outcome = Result<Completion, Failed>;

/// Fails a test with a sentence.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        match $condition {
            true => {}
            false => return Err(format!($($message)+).into()),
        }
    };
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let [_, command, path] = words.as_slice()
        && command == "load"
    {
        if let Err(error) = load::run(path) {
            eprintln!("load: {error}");
            std::process::exit(1);
        }
        return;
    }
    let mut arguments = Arguments::from_args();
    // One at a time: each has half of a small machine's memory in files.
    arguments.test_threads = Some(1);
    let blocked = open().err().map(|error| error.to_string());
    let oldest = std::env::var("HOMENODE_LEG").as_deref() == Ok("oldest");
    let others: &[patterns::Case] = if oldest { &[] } else { patterns::CASES };
    let trials = patterns::OF_EACH_KERNEL.iter().chain(others).map(|(name, run)| {
        let skip = blocked.clone();
        Trial::ignorable_test(*name, move || match skip {
            Some(why) => Ok(Completion::ignored_with(why)),
            None => run(),
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

/// The object under test.
pub fn open() -> Result<Mapped, observe::ObserveError> {
    Mapped::open(Path::new("/proc"), &topology::sysfs::read(Path::new("/sys")).unwrap_or_default())
}
