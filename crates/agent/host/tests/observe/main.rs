//! Observes the kernel that runs these tests, and compares what was seen with what the workload
//! did.
//!
//! Needs root and BTF, and fio for some tests; without them a test is skipped and says why. Each
//! test runs twice: with the best hooks that the kernel accepts, and with tracepoints only. Files
//! are below `$HOMENODE_TEST_DIR`, or cargo's target.

mod accuracy;
mod calls;
mod common;
mod facts;
mod lineage;
mod paths;
mod programs;
mod scopes;
mod threads;

use common::*;
use libtest_mimic::{Arguments, Completion, Trial};
use observe::{Capabilities, Hooks, Settings, choose};

/// One test.
struct Case {
    name: &'static str,
    /// Programs that the test runs.
    needs: &'static [&'static str],
    run: fn(Hooks) -> Outcome,
}

/// Cases that need no program.
#[macro_export]
macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        &[$($crate::Case { name: stringify!($name), needs: &[], run: $name }),+]
    };
}

fn main() {
    if let Ok(paths) = std::env::var(facts::READ) {
        // Ends when it is killed, or with the error.
        return facts::read_for_ever(&paths).unwrap_or_else(|error| eprintln!("{error}"));
    }
    let mut arguments = Arguments::from_args();
    // One at a time, as they count what happens on the machine.
    arguments.test_threads = Some(1);
    let capabilities = Capabilities::probe();
    let blocked = |hooks| {
        let chosen = choose(&capabilities, &Settings { hooks, ..Settings::default() });
        chosen.blocked.map(|(what, cause)| format!("{what} is missing: {cause}"))
    };
    let no_functions = capabilities.functions.cause().map(str::to_owned);
    let ways = [("functions", Hooks::Best, no_functions), ("tracepoints", Hooks::Tracepoints, None)];
    let mut trials = Vec::new();
    for (way, hooks, missing) in ways {
        let blocked = blocked(hooks);
        let cases = [
            paths::CASES,
            threads::CASES,
            scopes::CASES,
            accuracy::CASES,
            lineage::CASES,
            programs::CASES,
            calls::CASES,
            facts::CASES,
        ];
        for case in cases.into_iter().flatten() {
            let need =
                case.needs.iter().find(|program| !has(program)).map(|program| format!("{program} is not installed"));
            let skip = blocked.clone().or_else(|| missing.clone()).or(need);
            let run = case.run;
            trials.push(Trial::ignorable_test(format!("{way}::{}", case.name), move || match skip {
                Some(why) => Ok(Completion::ignored_with(why)),
                None => run(hooks),
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
