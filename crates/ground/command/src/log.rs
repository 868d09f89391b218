//! Structured logs on stderr: warnings by default, more with `-v`, JSON lines with `--json`.

use std::io::IsTerminal;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::args::Global;
use crate::output::background::Log;

/// Environment variable with a filter such as `host=debug,engine=info`.
const FILTER: &str = "HOMENODE_LOG";

pub fn init(global: &Global) {
    let level = match global.verbose {
        // What the engine warns of is printed with the window, as a note.
        0 => "warn,engine=off",
        1 => "info",
        _ => "debug",
    };
    let given = std::env::var(FILTER).ok().and_then(|filter| filter.parse::<Targets>().ok());
    let filter = given.or_else(|| level.parse().ok()).unwrap_or_default();
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    // A line that cannot be written is lost: the alternative, a line about that on the same stderr,
    // panics.
    let layer = tracing_subscriber::fmt::layer().with_writer(|| Log).with_ansi(colours).log_internal_errors(false);
    let registry = tracing_subscriber::registry();
    match global.json {
        true => registry.with(layer.json().with_filter(filter)).init(),
        false => registry.with(layer.without_time().with_target(false).with_filter(filter)).init(),
    }
}
