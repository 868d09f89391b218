//! Observing the kernel that runs these tests: what a workload says it read against what was seen.
//!
//! Needs root, BTF and fio; without them a test is skipped and says why. Each test runs once per way of counting (sampled,
//! exact) and per set of hooks (the best that the kernel takes, tracepoints only).

mod common;

use common::*;
use host::observe::{Capabilities, Hooks, Settings, choose};
use libtest_mimic::{Arguments, Completion, Trial};

fn main() {
    let mut arguments = Arguments::from_args();
    // They count what happens on the machine: one at a time.
    arguments.test_threads = Some(1);
    let capabilities = Capabilities::probe();
    let skip =
        choose(&capabilities, &Settings::default()).blocked.map(|(what, cause)| format!("{what} is missing: {cause}"));
    let mut trials = Vec::new();
    for (hooks, way) in [(Hooks::Best, "functions"), (Hooks::Tracepoints, "tracepoints")] {
        if hooks == Hooks::Best && !capabilities.functions.available() {
            let why = capabilities.functions.to_string();
            trials.push(Trial::ignorable_test("functions::all", move || Ok(Completion::ignored_with(why))));
            continue;
        }
        for engine in ["psync", "mmap", "io_uring", "libaio"] {
            for exact in [false, true] {
                let name = format!("{way}::fio_{engine}_{}", if exact { "exact" } else { "sampled" });
                let skip = skip.clone().or_else(|| (!has("fio")).then(|| "fio is not installed".to_owned()));
                trials.push(Trial::ignorable_test(name, move || match skip {
                    Some(why) => Ok(Completion::ignored_with(why)),
                    None => fio_agrees(engine, exact, hooks),
                }));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// Bytes per process within 5 % (sampled) and 1 % (exact) of what fio's own report says.
fn fio_agrees(engine: &str, exact: bool, hooks: Hooks) -> Outcome {
    let directory = directory()?;
    let file = cached_file(directory.path(), "data", 256 * MIB, 4096)?;
    let mut observer = open(&settings(exact, hooks))?;
    let option = format!("--ioengine={engine}");
    let (said, seen, windows) =
        fio(&mut observer, &file, &[&option, "--rw=read", "--bs=4k", "--size=256m", "--startdelay=1"])?;
    let share = if exact { 0.01 } else { 0.05 };
    let notes = windows.last().map(|w| w.notes.clone()).unwrap_or_default();
    println!("{engine}: {:.4}", seen.read.total() as f64 / said.read as f64);
    ensure!(close(seen.read.total(), said.read, share), "{engine}: saw {seen:?}, fio says {said:?}; {notes:?}");
    Ok(Completion::Completed)
}
