//! Output to the user: tables, figures and the words of homenode, the same in every sub-command.

pub mod background;
pub mod limits;
pub mod progress;
pub mod table;
pub mod units;
pub mod words;

use std::fmt::Write as _;
use std::io;

use serde::Serialize;

/// Text from outside (file names, thread names, messages) with control characters shown, not sent
/// to the terminal.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // Neither do formatting characters that reorder or hide text belong in a name.
            c if c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                // Writing to a string cannot fail.
                let _ = write!(safe, "{}", c.escape_default());
            }
            c => safe.push(c),
        }
    }
    safe
}

/// One JSON value and a newline on stdout, pretty for people.
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value).map_err(io::Error::from)?;
    text.push(b'\n');
    print_raw(&text)
}

/// One JSON value on one line, at once: for streams.
pub fn print_json_line(value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::from)?;
    line.push(b'\n');
    print_raw(&line)
}

/// A result on stdout: as JSON, or for people.
pub fn tell(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> io::Result<()> {
    if json { print_json(value) } else { print(&text()) }
}

/// A line for each note.
pub fn notes(notes: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    notes.into_iter().map(|note| format!("note: {}\n", escape(note.as_ref()))).collect()
}

/// Text on stdout, at once.
pub fn print(text: &str) -> io::Result<()> {
    print_raw(text.as_bytes())
}

fn print_raw(bytes: &[u8]) -> io::Result<()> {
    background::OUT.put(bytes)
}

/// From now on nobody waits for output: for programs that hold moves.
pub fn detach() {
    background::OUT.detach();
    background::ERR.detach();
}

/// Waits for output as long as somebody reads it, and says what was lost.
///
/// # Errors
///
/// stdout cannot be written to.
pub fn drain() -> io::Result<()> {
    let out = background::OUT.drain();
    if let Ok(lost @ 1..) = out {
        complain(&format!("homenode: {} of output lost: nobody read it\n", units::count(lost as usize, "line")));
    }
    // Where stderr leads nowhere nothing can be said.
    let _ = background::ERR.drain();
    out.map(drop)
}

/// Text on stderr. What cannot be written is lost.
pub fn complain(text: &str) {
    let _ = background::ERR.put(text.as_bytes());
}
