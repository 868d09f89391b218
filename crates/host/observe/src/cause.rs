//! Errors of the system in words: the errno's name, then its meaning.

use std::error::Error;
use std::io;

use rustix::io::Errno;

/// An I/O error, such as `EPERM (Operation not permitted)`.
pub(super) fn of_io(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(raw) => named(raw),
        None => error.to_string(),
    }
}

pub(super) fn of_bpf(error: &libbpf_rs::Error) -> String {
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(e) = source {
        if let Some(io) = e.downcast_ref::<io::Error>() {
            return of_io(io);
        }
        source = e.source();
    }
    // The error that libbpf-rs wraps is not always in the chain, but its text ends in "(os error
    // N)".
    let text = format!("{error:#}");
    let raw = text.rsplit_once("(os error ").and_then(|(_, tail)| tail.split_once(')')?.0.parse().ok());
    raw.map_or(text, named)
}

fn named(raw: i32) -> String {
    let name = match Errno::from_raw_os_error(raw) {
        Errno::PERM => "EPERM",
        Errno::ACCESS => "EACCES",
        Errno::NOENT => "ENOENT",
        Errno::SRCH => "ESRCH",
        Errno::INVAL => "EINVAL",
        Errno::BUSY => "EBUSY",
        Errno::NOMEM => "ENOMEM",
        Errno::NOSPC => "ENOSPC",
        Errno::TOOBIG => "E2BIG",
        Errno::NOSYS => "ENOSYS",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        // Kernel-internal by definition, yet BPF returns it when it cannot make a trampoline.
        e if e.raw_os_error() == 524 => return "ENOTSUPP (Operation not supported)".to_owned(),
        _ => return io::Error::from_raw_os_error(raw).to_string(),
    };
    let text = io::Error::from_raw_os_error(raw).to_string();
    format!("{name} ({})", text.split(" (os error").next().unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_is_named_and_explained() {
        assert_eq!(of_io(&io::Error::from_raw_os_error(libc::EPERM)), "EPERM (Operation not permitted)");
        assert_eq!(of_bpf(&libbpf_rs::Error::from_raw_os_error(libc::EINVAL)), "EINVAL (Invalid argument)");
        assert_eq!(of_bpf(&libbpf_rs::Error::from_raw_os_error(524)), "ENOTSUPP (Operation not supported)");
    }
}
