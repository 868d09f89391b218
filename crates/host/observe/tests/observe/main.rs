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
mod groups;
mod paths;
mod programs;
mod scopes;
mod threads;

use std::sync::LazyLock;

use observe::{Capabilities, Hooks, Settings, choose};
use testing::{Tried, roles, skip};

/// What a result depends on beside this machine, each with what the one before it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Varies {
    /// Nothing, or it needs more than an emulated machine has.
    Never,
    /// As the next, but emulated CPUs take long for it: `make test-long` runs it in a virtual
    /// machine.
    Long,
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
    /// Whether the test runs in a virtual machine (`HOMENODE_LEG`), with these hooks. `make
    /// test-long` runs more there, though less of it can differ.
    fn runs_in(self, leg: Option<&str>, hooks: Hooks) -> bool {
        let least = match (leg, hooks) {
            (None, _) => return true,
            (_, Hooks::Tracepoints) => [Self::WithStructures, Self::WithKernels],
            (Some("oldest"), _) => [Self::WithKernels, Self::WithHooks],
            (Some(_), _) => [Self::WithHooks, Self::Long],
        };
        self >= least[usize::from(testing::long())]
    }
}

/// One test.
struct Case {
    name: &'static str,
    varies: Varies,
    /// A program that the test runs.
    needs: Option<&'static str>,
    run: fn(Hooks) -> Tried,
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

/// Needs a kernel that takes these hooks.
fn observing(capabilities: &Capabilities, hooks: Hooks) -> Tried {
    if let Some((what, cause)) = choose(capabilities, &Settings { hooks, ..Settings::default() }).blocked {
        return skip(format!("{what} is missing: {cause}"));
    }
    match capabilities.functions.cause() {
        Some(cause) if hooks == Hooks::Best => skip(cause),
        _ => Ok(()),
    }
}

fn main() {
    static CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(Capabilities::probe);
    let leg = testing::leg();
    let mut trials = Vec::new();
    for (way, hooks) in [("functions", Hooks::Best), ("tracepoints", Hooks::Tracepoints)] {
        let cases = [
            // One after the other, they share an observer.
            paths::CASES,
            calls::CASES,
            threads::CASES,
            scopes::CASES,
            groups::CASES,
            accuracy::FIO,
            accuracy::CASES,
            descendants::CASES,
            programs::CASES,
        ];
        for case in cases.into_iter().flatten().filter(|case| case.varies.runs_in(leg.as_deref(), hooks)) {
            trials.push(testing::trial(format!("{way}::{}", case.name), move || {
                observing(&CAPABILITIES, hooks)?;
                case.needs.map_or(Ok(()), testing::installed)?;
                (case.run)(hooks)
            }));
        }
    }
    // They count what happens on the machine.
    testing::run_one_by_one(roles!["reader": common::be_reader, "many": threads::be_many], trials);
}
