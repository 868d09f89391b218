//! The user's own number.
//!
//! **Problem.** A command may hang, print for ever, or print no number. The trial must go on.
//!
//! **Approach.** It has its own process group and a limited time; then the group is killed. What it
//! prints beyond a limit is not read.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// How long the command may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that are read of what it prints.
const MOST: u64 = 64 << 10;

/// Runs the command and returns the number in its last line.
pub fn ask(command: &str, stop: &dyn Fn() -> bool) -> Result<f64, String> {
    within(command, PATIENCE, stop)
}

fn within(command: &str, patience: Duration, stop: &dyn Fn() -> bool) -> Result<f64, String> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut child = shell.spawn().map_err(|e| format!("cannot start /bin/sh: {e}"))?;
    let group = Pid::from_child(&child);
    let out = child.stdout.take();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = out.map(|out| out.take(MOST).read_to_end(&mut text));
        // Nobody waits any more where it took too long.
        let _ = tell.send((read.is_some_and(|read| read.is_ok()), text, child.wait()));
    });
    let end = Instant::now() + patience;
    let (read, text, status) = loop {
        match told.recv_timeout(Duration::from_millis(50)) {
            Ok(answer) => break answer,
            Err(RecvTimeoutError::Timeout) if Instant::now() < end && !stop() => {}
            Err(_) => {
                // It has not been waited for, so the id is its own.
                let _ = kill_process_group(group, Signal::KILL);
                return Err(format!("no answer within {} s", patience.as_secs()));
            }
        }
    };
    match status {
        Ok(status) if !status.success() => return Err(format!("it ended with {status}")),
        Err(e) => return Err(format!("it cannot be waited for: {e}")),
        Ok(_) if !read => return Err("what it prints cannot be read".to_owned()),
        Ok(_) => {}
    }
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let number = line.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| format!("`{}` is not a number", line.chars().take(40).collect::<String>().escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_number() {
        let ask = |command: &str| ask(command, &|| false);
        assert_eq!(ask("echo tps; echo ' 12.5 '; echo"), Ok(12.5));
        assert_eq!(ask("echo 1e3"), Ok(1000.0));
        for (command, why) in
            [("echo fast", "`fast` is not"), ("true", "`` is not"), ("echo inf", "`inf`"), ("exit 3", "exit status: 3")]
        {
            let error = ask(command).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_command_that_hangs_or_never_stops_printing_is_given_up() {
        let soon = Duration::from_millis(200);
        for command in ["sleep 1000", "sleep 1000 & sleep 1000", "yes"] {
            let error = within(command, soon, &|| false);
            assert!(error.is_err(), "{command}: {error:?}");
        }
        assert!(within("sleep 1000", Duration::from_secs(1000), &|| true).is_err());
    }
}
