//! Test programs whose tests say what they need, and why they did not run.
//!
//! **Problem.** Many tests need root, another kernel, a program or several nodes. Rust's own
//! harness knows no test that finds out while it runs that it cannot run. It counts such a test as
//! passed. Also, many tests start processes that do one thing: read a file, have threads, hang.
//!
//! **Approach.** [`cases!`] makes a list of tests from the names of functions, with what they need
//! in front. A need is a [`Tried`], as is a test: an error fails the test, and the error [`Skip`]
//! skips it and says why. libtest-mimic runs the list and prints results as Rust's own harness
//! does. A process that a test starts is the test program itself in a role: [`myself`] starts it,
//! and [`run`] plays it.
//!
//! **Limits.** A target in Cargo.toml says `harness = false`. Needs are looked at when a test runs,
//! so `--list` shows all tests. What a leg of tools/test leaves out (see [`leg`]), `main` leaves
//! out of the list.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed};
use rustix::process::{Pid, Signal};
use topology::CpuSet;

pub use libtest_mimic::Trial;

pub mod files;
pub mod pages;
pub mod world;

/// Why a test cannot run here.
#[derive(Debug)]
pub struct Skip(pub String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// What fails a test, or skips it ([`Skip`]).
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The result of a test, of what it needs, or of a part of it.
pub type Tried<T = ()> = Result<T, Error>;

/// Skips the test that returns this.
pub fn skip<T>(why: impl Into<String>) -> Tried<T> {
    Err(Skip(why.into()).into())
}

/// Skips a test, unless this is so.
pub fn need(so: bool, why: impl Into<String>) -> Tried {
    if so { Ok(()) } else { skip(why) }
}

pub fn all<const N: usize>(needs: [Tried; N]) -> Tried {
    needs.into_iter().collect()
}

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

/// What a test may return; it also fails if it panics.
pub trait Ending {
    fn ending(self) -> Result<Completion, Failed>;
}

impl Ending for () {
    fn ending(self) -> Result<Completion, Failed> {
        Ok(Completion::Completed)
    }
}

impl Ending for Tried {
    fn ending(self) -> Result<Completion, Failed> {
        match self {
            Err(error) if error.is::<Skip>() => Ok(Completion::ignored_with(error.to_string())),
            ended => Ok(ended.map(|()| Completion::Completed)?),
        }
    }
}

impl Ending for anyhow::Result<()> {
    fn ending(self) -> Result<Completion, Failed> {
        match self {
            Err(error) if error.is::<Skip>() => Ok(Completion::ignored_with(error.to_string())),
            Err(error) => Err(format!("{error:#}").into()),
            Ok(()) => Ok(Completion::Completed),
        }
    }
}

#[derive(Clone, Copy)]
pub struct Case {
    pub module: &'static str,
    pub name: &'static str,
    /// Whether it can run here, and then how it ended.
    pub run: fn() -> Result<Completion, Failed>,
}

impl Case {
    /// Called `MODULE::NAME`, by the module just below `main`.
    pub fn of_module(self) -> Trial {
        let module = self.module.split("::").nth(1).unwrap_or_default();
        Trial::ignorable_test(format!("{module}::{}", self.name), self.run)
    }
}

impl From<Case> for Trial {
    fn from(case: Case) -> Self {
        Self::ignorable_test(case.name, case.run)
    }
}

/// A test that is made while the program runs.
pub fn trial<E: Ending>(name: impl Into<String>, run: impl FnOnce() -> E + Send + 'static) -> Trial {
    Trial::ignorable_test(name, || run().ending())
}

/// A list of tests, `&[Case]`: `cases![a, b]` if they need nothing, or groups that each begin with
/// their needs: `cases![[] a; [root()] b, c; [root(), installed("fio")] d]`. A test is the function
/// of its name, or another one: `a = || b(1)`.
#[macro_export]
macro_rules! cases {
    (@ $name:ident) => { $name };
    (@ $name:ident $run:expr) => { $run };
    ($($name:ident $(= $run:expr)?),+ $(,)?) => { $crate::cases![[] $($name $(= $run)?),+] };
    ($($needs:tt $($name:ident $(= $run:expr)?),+ $(,)?);+ $(;)?) => {
        &[$($($crate::Case {
            module: module_path!(),
            name: stringify!($name),
            run: || match $crate::all($needs) {
                Ok(()) => $crate::Ending::ending($crate::cases!(@ $name $($run)?)()),
                missing => $crate::Ending::ending(missing),
            },
        }),+),+]
    };
}

/// What the program plays as a process of a test: the role's name, and the function.
pub type Role = (&'static str, fn(&[String]) -> Result<Completion, Failed>);

/// A list of roles, `&[Role]`: `roles!["reader": be_reader, "writer": be_writer]`.
#[macro_export]
macro_rules! roles {
    ($($name:literal: $be:expr),* $(,)?) => {{
        const ROLES: &[$crate::Role] = &[$(($name, |args| $crate::Ending::ending($be(args)))),*];
        ROLES
    }};
}

pub fn myself(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|error| panic!("this program: {error}")));
    command.args(["--role", role]);
    command
}

/// A process that is killed when it is dropped, with its group if it leads one.
pub struct Ends(pub Child);

impl Drop for Ends {
    fn drop(&mut self) {
        kill_group(&mut self.0);
    }
}

impl Ends {
    /// How it ends. One that has not ended after so long hangs.
    pub fn end(&mut self, what: &str, limit: Duration) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap_or_else(|error| panic!("{what}: {error}")) {
                println!("{what}: {status} after {:.2} s", began.elapsed().as_secs_f64());
                return status;
            }
            assert!(began.elapsed() < limit, "{what} hangs");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn terminate(&self) {
        _ = rustix::process::kill_process(Pid::from_child(&self.0), Signal::TERM);
    }
}

/// Ends a child, and its group if the child leads one.
pub fn kill_group(child: &mut Child) {
    // This fails if it does not lead a group.
    _ = rustix::process::kill_process_group(Pid::from_child(child), Signal::KILL);
    _ = child.kill();
    _ = child.wait();
}

/// Sets a flag when it is dropped, also after a panic: a scope waits for the threads that look at
/// it.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the tests that the command line asks for, or, as `--role ROLE`, plays that role.
pub fn run(roles: &[Role], tests: impl IntoIterator<Item = impl Into<Trial>>) {
    main(roles, tests, Arguments::from_args);
}

/// The same, one test after the other and in one thread.
pub fn run_one_by_one(roles: &[Role], tests: impl IntoIterator<Item = impl Into<Trial>>) {
    main(roles, tests, || Arguments { test_threads: Some(1), ..Arguments::from_args() });
}

fn main(roles: &[Role], tests: impl IntoIterator<Item = impl Into<Trial>>, arguments: fn() -> Arguments) {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, role, rest @ ..] = args.as_slice()
        && flag == "--role"
    {
        let (_, be) = roles.iter().find(|(name, _)| name == role).unwrap_or_else(|| panic!("no role {role}"));
        if let Err(failed) = be(rest) {
            eprintln!("{role}: {}", failed.message().unwrap_or("failed"));
            std::process::exit(1);
        }
        return;
    }
    libtest_mimic::run(&arguments(), tests.into_iter().map(Into::into).collect()).exit();
}

/// The leg of tools/test that runs in a virtual machine, by name (`HOMENODE_LEG`).
pub fn leg() -> Option<String> {
    std::env::var("HOMENODE_LEG").ok()
}

/// Whether `make test-long` runs (`HOMENODE_LONG`): tests are as long as they can be.
pub fn long() -> bool {
    std::env::var_os("HOMENODE_LONG").is_some_and(|value| !value.is_empty())
}

/// Needs `make test-long`. Tests of `make test` hold most of what this one does.
pub fn is_long() -> Tried {
    need(long(), "runs in make test-long")
}

/// Needs another machine than that with the oldest kernel: what is tested is the same there.
pub fn any_kernel() -> Tried {
    need(long() || leg().as_deref() != Some("oldest"), "the same on every kernel")
}

pub fn root() -> Tried {
    need(rustix::process::geteuid().is_root(), "needs root")
}

/// Needs root and a `/dev/fuse` that works.
pub fn mounting() -> Tried {
    need(rustix::process::geteuid().is_root(), "mounting needs root")?;
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.map_or_else(|error| skip(format!("/dev/fuse: {error}")), |_| Ok(()))
}

/// Needs this version of Linux, or a later one.
pub fn linux_from(major: u32, minor: u32) -> Tried {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let own = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    need(own >= (major, minor), format!("needs Linux {major}.{minor}, this is {release}"))
}

/// Needs a program of PATH.
pub fn installed(program: &str) -> Tried {
    need(find(program).is_some(), format!("{program} is not installed"))
}

/// A program of PATH.
pub fn find(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Needs two CPUs, and that the tests may use all that are online: these.
pub fn cpus() -> Tried<CpuSet> {
    let own = rustix::thread::sched_getaffinity(None)?;
    let own: CpuSet =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu)).map(|cpu| cpu as u32).collect();
    let online: CpuSet = std::fs::read_to_string("/sys/devices/system/cpu/online")?.trim().parse()?;
    need(own == online, format!("the tests themselves are bound to the CPUs {own}"))?;
    need(own.len() > 1, "needs two CPUs")?;
    Ok(own)
}

pub fn two_cpus() -> Tried {
    cpus().map(drop)
}

/// Where tests make files that should be on a disk: `$HOMENODE_TEST_DIR`, or cargo's directory,
/// which is on one more often than /tmp is.
pub fn disk() -> PathBuf {
    let cargos = || Some(std::env::current_exe().ok()?.ancestors().nth(3)?.join("tmp")).filter(|dir| dir.is_dir());
    std::env::var_os("HOMENODE_TEST_DIR").map(PathBuf::from).or_else(cargos).unwrap_or_else(std::env::temp_dir)
}
