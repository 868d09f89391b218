//! Structured logs on stderr: warnings by default, more with `-v`, JSON lines with `--json`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::args::Global;
use crate::output::background::Log;

/// Environment variable with a filter such as `host=debug,engine=info`.
const FILTER: &str = "HOMENODE_LOG";

/// Starts logging.
pub fn init(global: &Global) {
    let level = match global.verbose {
        // What the engine warns of is printed with the window, as a note.
        0 => "warn,engine=off",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new(level));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    // A line that cannot be written is lost: the alternative, a line about that on the same stderr, panics.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Log)
        .with_ansi(colours)
        .log_internal_errors(false);
    if global.json { builder.json().init() } else { builder.without_time().with_target(false).init() }
}
