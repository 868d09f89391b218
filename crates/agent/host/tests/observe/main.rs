//! Observes the kernel that runs these tests, and compares what was seen with what the workload
//! did.
//!
//! Needs root and BTF, and fio for some tests; without them a test is skipped and says why. Each
//! test runs twice: with the best hooks that the kernel accepts, and with tracepoints only. In the
//! virtual machines of `make test` run those whose results may differ there ([`Varies`]). Files are
//! below `$HOMENODE_TEST_DIR`, or cargo's target.

mod accuracy;
mod calls;
mod common;
mod descendants;
mod facts;
mod paths;
mod programs;
mod scopes;
mod threads;

use common::*;
use libtest_mimic::{Arguments, Completion, Trial};
use observe::{Capabilities, Hooks, Settings, choose};

/// What a result depends on beside this machine, each with what the one before it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Varies {
    /// Nothing, or it needs more than an emulated machine has.
    Never,
    /// Function hooks, which this machine may lack. How user space adds their records up is the
    /// same on every kernel.
    WithHooks,
    /// The kernel's functions that are hooked.
    WithKernels,
    /// Nodes, and structures of the kernel that only tracepoints read, as in walking the page
    /// cache.
    WithStructures,
}

impl Varies {
    /// Whether the test runs in a virtual machine (`HOMENODE_LEG`), with these hooks.
    fn runs_in(self, leg: Option<&str>, hooks: Hooks) -> bool {
        match (leg, hooks) {
            (None, _) => true,
            (_, Hooks::Tracepoints) => self >= Self::WithStructures,
            (Some("oldest"), _) => self >= Self::WithKernels,
            (Some(_), _) => self >= Self::WithHooks,
        }
    }
}

/// One test.
struct Case {
    name: &'static str,
    varies: Varies,
    /// A program that the test runs.
    needs: Option<&'static str>,
    run: fn(Hooks) -> Outcome,
}

/// Cases that need no program.
#[macro_export]
macro_rules! cases {
    ($($varies:ident: $($name:ident),+);+ $(;)?) => {
        &[$($($crate::Case {
            name: stringify!($name), varies: $crate::Varies::$varies, needs: None, run: $name
        }),+),+]
    };
}

fn main() {
    if let Ok(paths) = std::env::var(facts::READ) {
        // Ends when it is killed, or with the error.
        return facts::read_for_ever(&paths).unwrap_or_else(|error| eprintln!("{error}"));
    }
    if let Ok(wanted) = std::env::var(threads::MANY) {
        return threads::many(&wanted).unwrap_or_else(|error| eprintln!("{error}"));
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
    let leg = std::env::var("HOMENODE_LEG").ok();
    let mut trials = Vec::new();
    for (way, hooks, missing) in ways {
        let blocked = blocked(hooks);
        let cases = [
            // One after the other, they share an observer.
            paths::CASES,
            calls::CASES,
            threads::CASES,
            scopes::CASES,
            accuracy::FIO,
            accuracy::CASES,
            descendants::CASES,
            programs::CASES,
            facts::CASES,
        ];
        for case in cases.into_iter().flatten().filter(|case| case.varies.runs_in(leg.as_deref(), hooks)) {
            let need = case.needs.filter(|program| !has(program)).map(|program| format!("{program} is not installed"));
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
