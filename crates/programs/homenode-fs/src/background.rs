//! A server without a terminal: what it leaves, and where its messages go.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use command::output;

const LOG: &str = "/dev/log";

/// One line for stderr, and for the system's log, as stderr leads nowhere in the background.
pub fn say(line: &str) {
    let line = output::escape(line);
    output::complain(&format!("homenode: {line}\n"));
    // Facility daemon, severity error (RFC 3164).
    log(Path::new(LOG), &format!("<27>homenode[{}]: {line}\n", std::process::id()));
}

/// Hands a line to the system's log. It is lost where that takes no more, such as a stopped one:
/// who waited for it would neither undo moves nor end the mount.
fn log(to: &Path, entry: &str) {
    let logged = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(entry.as_bytes(), to)
    });
    if logged.is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
        let kernel = std::fs::OpenOptions::new().write(true).open("/dev/kmsg");
        // Where nobody listens nothing can be said.
        let _ = kernel.and_then(|mut kernel| kernel.write_all(entry.as_bytes()));
    }
}

/// Where memory fails so that the server must end, the system's log says why: in the background
/// nobody sees stderr.
pub fn log_failures() {
    let socket = UnixDatagram::unbound().and_then(|socket| socket.connect(LOG).map(|()| socket.into()));
    let kernel = || std::fs::OpenOptions::new().write(true).open("/dev/kmsg").map(Into::into);
    // Where nobody listens nothing can be said.
    if let Ok(log) = socket.or_else(|_: std::io::Error| kernel()) {
        ::fs::medium::log_failures_to(log);
    }
}

/// Lets go of the caller's terminal and directory.
pub fn leave_terminal() -> std::io::Result<()> {
    // It was started as /proc/self/exe.
    rustix::thread::set_name(c"homenode-fs")?;
    rustix::process::setsid()?;
    Ok(rustix::process::chdir("/")?)
}

/// Says that the mount works, and lets go of the caller's output.
pub fn go_to_background() -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "mounted")?;
    stdout.flush()?;
    leave_output()
}

/// Lets go of the caller's output.
pub fn leave_output() -> std::io::Result<()> {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stopped journald kept a mount whose memory had failed from undoing its moves.
    #[test]
    fn a_log_that_takes_no_more_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let reader = UnixDatagram::bind(&path).unwrap();
        let (told, ended) = std::sync::mpsc::channel();
        let to = path.clone();
        // More than net.unix.max_dgram_qlen, which systemd sets to 512.
        let writer = std::thread::spawn(move || {
            (0..1000).for_each(|number| log(&to, &format!("line {number}")));
            told.send(()).unwrap();
        });
        let waited = ended.recv_timeout(std::time::Duration::from_secs(60));
        let mut line = [0; 16];
        let len = reader.recv(&mut line).unwrap();
        drop(reader);
        std::fs::remove_file(&path).unwrap();
        writer.join().unwrap();
        assert_eq!((waited, &line[..len]), (Ok(()), &b"line 0"[..]));
    }
}
