//! Tells systemd about readiness and stopping (`sd_notify`), if it asks.
//!
//! One datagram to the socket named in `NOTIFY_SOCKET`; a failure does not stop homenode.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Windows that a watchdog allows for one: the plane stretches windows up to fourfold, and the
/// kernel may be slow.
const WINDOWS: f64 = 20.0;

/// The pause between two signs that undoing goes on.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Whether a service manager waits for signs: this is a service.
pub fn is_service() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Ready to work, in windows of so many seconds. A watchdog that expects a sign more often than
/// they end gets more patience.
pub fn ready(window_s: Option<f64>) {
    let limit = std::env::var("WATCHDOG_USEC").ok().and_then(|usec| usec.parse::<u64>().ok());
    let needed = window_s.map_or(0, |window_s| (window_s * WINDOWS * 1e6) as u64);
    match limit {
        Some(limit) if limit < needed => send(&format!("READY=1\nWATCHDOG_USEC={needed}")),
        _ => send("READY=1"),
    }
}

/// The loop goes on: a window has ended. Only the loop says so, so that a watchdog notices that it
/// hangs.
pub fn alive() {
    if std::env::var_os("WATCHDOG_USEC").is_some() {
        send("WATCHDOG=1");
    }
}

/// How often [`alive`] is due, if a watchdog waits for it: twice in its time.
pub fn watchdog() -> Option<Duration> {
    let us = std::env::var("WATCHDOG_USEC").ok()?.parse::<u64>().ok()?;
    Some(Duration::from_micros(us / 2))
}

/// homenode is undoing its moves.
pub fn stopping() {
    send("STOPPING=1");
}

/// Undoing goes on, as copies that go back take hours. Call it often: systemd is told in time, and
/// does not kill homenode as long as that goes on (`TimeoutStopSec=`).
#[derive(Debug, Default)]
pub struct Undoing(Cell<Option<Instant>>);

impl Undoing {
    pub fn goes_on(&self) {
        if self.0.get().is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            self.0.set(Some(Instant::now()));
            send(&format!("EXTEND_TIMEOUT_USEC={}", (TOLD_EVERY * 6).as_micros()));
        }
    }
}

fn send(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send_to(&name, state) {
        tracing::warn!("cannot tell systemd {state}: {error}");
    }
}

/// Does not wait where the queue of the socket is full: its reader may hang, and moves are undone
/// after `STOPPING=1`.
fn send_to(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager that did not read kept moves from being undone.
    #[test]
    fn a_manager_that_does_not_read_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let _unread = UnixDatagram::bind(&path).unwrap();
        let full = (0..100_000).find_map(|_| send_to(path.as_os_str(), "WATCHDOG=1").err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }
}
