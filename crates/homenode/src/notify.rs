//! Tells systemd about readiness and stopping (`sd_notify`), if it asks.
//!
//! One datagram to the socket named in `NOTIFY_SOCKET`; a failure does not stop homenode.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Observing has begun.
pub fn ready() {
    send("READY=1");
}

/// homenode is undoing its moves.
pub fn stopping() {
    send("STOPPING=1");
}

fn send(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to));
    if let Err(error) = sent {
        tracing::warn!("cannot tell systemd {state}: {error}");
    }
}
