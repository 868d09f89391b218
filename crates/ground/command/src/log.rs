//! Structured logs on stderr: warnings by default, more with `-v`, JSON lines with `--json`.
//!
//! Names of files and threads in them are of others: what they could write to the terminal, or a
//! line of their own, is shown.

use std::io::{self, IsTerminal, Write};

use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

use crate::args::Global;
use crate::output;
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
    tracing_subscriber::registry().with(layer(global.json, colours, || Log).with_filter(filter)).init();
}

fn layer<S, W, M>(json: bool, colours: bool, writer: M) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Write,
    M: Fn() -> W + Send + Sync + 'static,
{
    // A line that cannot be written is lost: the alternative, a line about that on the same stderr,
    // panics.
    let layer = tracing_subscriber::fmt::layer().log_internal_errors(false).with_ansi(colours);
    if json {
        return layer.json().with_writer(move || Json(writer())).boxed();
    }
    // Field by field: the colours of a line are control characters, too.
    let fields = debug_fn(|to, field, value| {
        let value = output::escape(&format!("{value:?}"));
        if field.name() == "message" { write!(to, "{value}") } else { write!(to, "{field}={value}") }
    });
    layer.without_time().with_target(false).fmt_fields(fields.delimited(" ")).with_writer(writer).boxed()
}

/// Gets a whole line at once.
struct Json<W>(W);

impl<W: Write> Write for Json<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let safe = output::json_escape(&String::from_utf8_lossy(line));
        self.0.write_all(safe.as_bytes()).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A thread that is called so made a line of its own.
    #[test]
    fn a_name_forges_no_line_of_the_log() {
        let name = "a\r\nERROR homenode: \u{1b}[31m\u{202e}\u{9b}é";
        for (json, colours) in [(false, false), (false, true), (true, false)] {
            let kept = Kept::default();
            let writer = kept.clone();
            let layer = layer(json, colours, move || writer.clone());
            tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
                let error = io::Error::other(name);
                tracing::warn!(comm = name, %error, "{name}: moved");
            });
            let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
            let plain = text.replace("\u{1b}[33m", "").replace("\u{1b}[0m", "");
            let line = plain.strip_suffix('\n').unwrap();
            assert_eq!(output::escape(line), line);
            assert!(line.contains('é'), "{line}");
            if json {
                let value: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(value["fields"]["comm"], name);
                assert_eq!(value["fields"]["message"], format!("{name}: moved"));
            } else {
                assert!(line.trim_start().starts_with(r"WARN a\r\nERROR homenode: \u{1b}[31m"), "{line}");
            }
        }
    }
}
