//! What a program that decides writes to its standard error.
//!
//! **Problem.** Its author must see it. But the program is another user's, and homenode's standard
//! error may be root's terminal: who has that can send it control characters and read its keys.
//!
//! **Approach.** The program has a pipe. A thread without privileges reads it, and writes each line
//! behind `exec: `, with control characters shown. What is more than [`LINES`] in a second is left
//! out and counted.
//!
//! **Limits.** If nobody reads homenode's standard error, the program waits, and no one else.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use command::args::PROGRAM;
use command::output::{complain, escape, units};
use rustix::thread::CapabilitySet;

/// Longest line, in bytes. The rest of a longer one is the next line.
const LINE: u64 = 1024;
const LINES: usize = 200;
const SECOND: Duration = Duration::from_secs(1);

/// Shows what can be read there. The channel is closed at the end.
pub(super) fn show(from: impl Read + Send + 'static) -> io::Result<Receiver<()>> {
    let (reads, ends) = channel();
    let read = move || {
        let _reads = reads;
        if let Err(error) = linux::privileges::keep_only(CapabilitySet::empty()) {
            tracing::warn!(%error, "the reader of a program's errors keeps privileges");
        }
        pass_on(BufReader::new(from), complain);
    };
    std::thread::Builder::new().name("errors".to_owned()).spawn(read)?;
    Ok(ends)
}

fn pass_on(mut from: impl BufRead, mut tell: impl FnMut(&str)) {
    let (mut since, mut lines, mut line) = (Instant::now(), 0_usize, Vec::new());
    loop {
        line.clear();
        let read = from.by_ref().take(LINE).read_until(b'\n', &mut line);
        let is_end = !matches!(read, Ok(1..));
        if is_end || since.elapsed() >= SECOND {
            if let more @ 1.. = lines.saturating_sub(LINES) {
                tell(&format!("{PROGRAM} {} left out\n", units::count(more, "line")));
            }
            (since, lines) = (Instant::now(), 0);
        }
        if is_end {
            return;
        }
        lines += 1;
        if lines <= LINES {
            let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
            tell(&format!("{PROGRAM} {}\n", escape(&text)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(written: &[u8]) -> String {
        let mut told = String::new();
        pass_on(written, |line| told += line);
        told
    }

    #[test]
    fn what_a_program_complains_of_is_escaped_and_bounded() {
        let hostile = "a\u{1b}]0;x\u{7}\rhomenode: b\u{202e}\n\u{1b}[6n";
        assert_eq!(told(hostile.as_bytes()), "exec: a\\u{1b}]0;x\\u{7}\\rhomenode: b\\u{202e}\nexec: \\u{1b}[6n\n");
        assert_eq!(told(b"\xff\n\n"), "exec: \u{fffd}\nexec: \n");
        let long = told("x".repeat(5000).as_bytes());
        assert!(long.lines().count() == 5 && long.lines().all(|line| line.len() <= 1030), "{long}");
        let many = told("x\n".repeat(1000).as_bytes());
        assert_eq!((many.lines().count(), many.lines().last()), (LINES + 1, Some("exec: 800 lines left out")));
    }
}
