//! Tests that say why they cannot run, in a program that also plays the programs they start.

use libtest_mimic::{Arguments, Completion, Trial};

/// The result of a test: done, or the reason why it cannot run here.
pub type Tried = Result<(), String>;

/// What the program plays, by name.
pub type Role = (&'static str, fn(&[String]));

/// A test; it fails if it panics.
pub fn trial(name: &str, test: impl FnOnce() -> Tried + Send + 'static) -> Trial {
    Trial::ignorable_test(name, || Ok(test().map_or_else(Completion::ignored_with, |()| Completion::Completed)))
}

/// Runs the tests or, as `--role ROLE`, plays that role.
pub fn run(roles: &[Role], tests: Vec<Trial>) {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, role, rest @ ..] = args.as_slice()
        && flag == "--role"
    {
        let (_, be) = roles.iter().find(|(name, _)| name == role).unwrap_or_else(|| panic!("no role {role}"));
        return be(rest);
    }
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
