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
            c if is_hidden(c) => {
                // Writing to a string cannot fail.
                let _ = write!(safe, "{}", c.escape_default());
            }
            c => safe.push(c),
        }
    }
    safe
}

/// Control characters, and those that reorder or hide text: neither belong in a name.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// JSON text with such characters of strings written as `\u202e`: it has the same value.
pub fn json_escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // Between values.
            '\n' => safe.push(c),
            c if is_hidden(c) => {
                for half in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(safe, "\\u{half:04x}");
                }
            }
            c => safe.push(c),
        }
    }
    safe
}

/// One JSON value and a newline on stdout, pretty for people.
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    print(&(json_escape(&text) + "\n"))
}

/// One JSON value on one line, at once: for streams.
pub fn print_json_line(value: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(value).map_err(io::Error::from)?;
    print(&(json_escape(&line) + "\n"))
}

/// A result on stdout: as JSON, or for people.
pub fn tell(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> io::Result<()> {
    if json { print_json(value) } else { print(&text()) }
}

pub fn notes(notes: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    notes.into_iter().map(|note| format!("note: {}\n", escape(note.as_ref()))).collect()
}

/// Text on stdout, at once.
pub fn print(text: &str) -> io::Result<()> {
    background::OUT.put(text.as_bytes())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Invisible in a name: a soft hyphen, a vowel separator, notes between lines, tags.
    #[test]
    fn characters_that_show_nothing_are_hidden() {
        let hidden = "\u{ad}\u{180e}\u{fff9}\u{fffa}\u{fffb}\u{e0000}\u{e0041}\u{e007f}";
        assert_eq!(hidden.chars().filter(|c| !is_hidden(*c)).collect::<String>(), "");
        assert!(!hidden.contains(&escape(hidden)) && escape("né 語 🙂") == "né 語 🙂");
        let text = json_escape(&serde_json::Value::from(hidden).to_string());
        assert!(text.is_ascii(), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), hidden);
    }

    /// `--json` and `report --names` gave names as they were to the terminal.
    #[test]
    fn no_output_has_characters_that_reorder_or_hide_text() {
        let name = "a\u{202e}b\u{7f}\u{9b}\u{feff}\u{2066}\u{61c}é\n\u{1b}[31m";
        let value = serde_json::json!({ name: [name] });
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        for text in [json_escape(&value.to_string()), json_escape(&pretty)] {
            assert!(text.chars().all(|c| c == '\n' || !is_hidden(c)), "{text}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
        assert!(escape(name).chars().all(|c| !is_hidden(c)), "{}", escape(name));
    }
}
