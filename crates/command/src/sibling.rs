//! Programs that are installed beside this one.
//!
//! **Problem.** `homenode hot` draws a picture, and `homenode mkfs` makes a file system, but other
//! programs do it, so that a daemon with root's powers links no library that draws or reads tables.
//!
//! **Approach.** The program beside our own executable is started, with the same arguments: never
//! one from PATH, which belongs to whoever set it. As with a command of our own, its exit code is
//! ours.
//!
//! **Limits.** A missing program is an error that names its package.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::exit::{Exit, Failure};

/// The laboratory's program.
pub const LAB: &str = "homenode-lab";
/// The file system's program.
pub const FS: &str = "homenode-fs";

/// Where a program is, if it is installed.
fn path(program: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::from_error(Exit::Io, "cannot find our own program", &e))?;
    Ok(own.with_file_name(program))
}

fn failed(program: &str, path: &std::path::Path, error: &io::Error) -> Failure {
    let failure = Failure::from_error(Exit::Unsupported, format!("cannot start {}", path.display()), error);
    match error.kind() {
        io::ErrorKind::NotFound => {
            failure.exiting(Exit::Unsupported).hint(format!("put {program} beside homenode, as `make install` does"))
        }
        _ => failure,
    }
}

/// Becomes a program, with our own arguments. Returns only if that fails.
pub fn become_program(program: &str) -> Failure {
    let path = match path(program) {
        Ok(path) => path,
        Err(failure) => return failure,
    };
    let error = Command::new(&path).arg0("homenode").args(std::env::args_os().skip(1)).exec();
    failed(program, &path, &error)
}

/// What a program answers on stdout to `input` on stdin. Its complaints go where ours go.
///
/// # Errors
///
/// It cannot be started, or it fails.
pub fn ask(program: &str, args: &[&str], input: &[u8]) -> Result<Vec<u8>, Failure> {
    let path = path(program)?;
    let mut child = Command::new(&path)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(program, &path, &e))?;
    let cannot = |e: &io::Error| Failure::from_error(Exit::Io, format!("cannot talk to {}", path.display()), e);
    // It reads all of stdin before it answers. If it ends before, its exit status says more than a
    // broken pipe.
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input));
    let output = child.wait_with_output().map_err(|e| cannot(&e))?;
    if !output.status.success() {
        return Err(Failure::new(Exit::Partly, path.display().to_string(), format!("it failed ({})", output.status)));
    }
    written.map_err(|e| cannot(&e))?;
    Ok(output.stdout)
}
