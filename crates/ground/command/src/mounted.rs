//! Files of mounted volumes, as the commands of both programs look at and move them.
//!
//! The mount's server does the work ([`linux::volume`]). What it refuses, and why, is said here in
//! the words of the command line, with its exit codes.

use std::io;
use std::path::Path;

use linux::residency::ResidencyError;
use linux::residency::open::{self, Opened};
use linux::volume::{self, Migration, Order, Place};
use topology::NodeId;

use crate::exit::{Exit, Failure};
use crate::output::units::size;

/// Opens a file without side effects, and asks where it is if a mounted volume has it.
///
/// # Errors
///
/// It cannot be opened or asked about, or is no regular file.
pub fn open(path: &Path) -> Result<(Opened, Option<Place>), ResidencyError> {
    let file = open::open(path)?;
    let place = volume::place(&file.fd).map_err(|e| ResidencyError::file("ask the mount about", path, e))?;
    Ok((file, place))
}

/// Starts to move a file of a mounted volume to a node.
///
/// # Errors
///
/// The server refuses, or the kernel does before it asks the server.
pub fn start(file: &Opened, to: NodeId, rate: Option<f64>) -> Result<(), Failure> {
    volume::order(&file.fd, Order::To(to, rate.map(|rate| (rate as u64).max(1))))
        .map_err(|error| refusal(&file.path.display().to_string(), to, &error))
}

/// Why a move could not be started.
fn refusal(what: &str, to: NodeId, error: &io::Error) -> Failure {
    let failure = |exit, why: String| Failure::new(exit, what, why).errno(error.raw_os_error().unwrap_or(libc::EIO));
    match error.raw_os_error() {
        Some(libc::ENXIO) => failure(Exit::Usage, format!("no region of the volume is on node {to}")),
        Some(libc::EBUSY) => failure(Exit::Busy, "it is being moved already".to_owned()),
        Some(libc::EUSERS) => failure(Exit::Busy, "the mount moves as many files as it can at a time".to_owned())
            .hint("try again when one of them has arrived"),
        Some(libc::EROFS) => failure(Exit::Io, "the mount is read-only".to_owned()),
        Some(libc::EPERM) => {
            failure(Exit::Unsupported, "moving files of a mounted volume takes CAP_SYS_ADMIN".to_owned())
                .hint("this needs root: try sudo")
        }
        _ => Failure::from_error(Exit::Io, what, error),
    }
}

/// Why a migration has failed; `None`: it has not.
pub fn failure(what: &str, migration: &Migration) -> Option<Failure> {
    let exit = if migration.errno == Some(libc::EBUSY) { Exit::Busy } else { Exit::Io };
    let failure = Failure::new(exit, what, migration.why.as_deref()?).errno(migration.errno.unwrap_or(libc::EIO));
    Some(match migration.moved_bytes {
        0 => failure,
        moved => failure.hint(format!("{} moved before and stay there", size(moved))),
    })
}
