//! Progress of long work, on stderr, if that is a terminal.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar that counts to `length`, drawn by indicatif's `template`; hidden with `--json` or without
/// a terminal.
pub fn bar(json: bool, length: u64, template: &str) -> ProgressBar {
    if json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
