//! Writes a file as a whole: it takes the place of an older one once it is complete.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// Writes this text to a file of this mode. Whoever reads the file meanwhile sees the old one.
pub fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let next = {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        PathBuf::from(name)
    };
    let create = || -> std::io::Result<()> {
        // Nobody else's file, and through no link: others may be able to write the directory.
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&next)?;
        let mut rest = || -> std::io::Result<()> {
            // Whatever the umask.
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.write_all(text.as_bytes())?;
            fs::rename(&next, path)
        };
        let written = rest();
        if written.is_err() {
            // Half of it is of no use.
            let _ = fs::remove_file(&next);
        }
        written
    };
    let written = match create() {
        // Left by one that was killed, and had our id.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => fs::remove_file(&next).and_then(|()| create()),
        written => written,
    };
    written.map_err(|e| Failure::io("write", path, &e))
}
