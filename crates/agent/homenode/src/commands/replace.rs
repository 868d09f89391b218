//! Writes a file as a whole: it takes the place of an older one once it is complete.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// Writes this text to a file of this mode. Whoever reads the file meanwhile sees the old one.
pub fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    begin(path, text, mode).map(drop)
}

/// A file that was written as a whole, and gets another text later.
pub struct Begun {
    file: fs::File,
    path: PathBuf,
}

impl Begun {
    /// Puts this text in the place of the first. It takes no right to the directory any more.
    pub fn end(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.file.set_len(0).and_then(|()| self.file.write_all_at(text.as_bytes(), 0));
        written.map_err(|e| Failure::io("write", &self.path, &e))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Writes this text as [`write`] does, and keeps the file open for another one.
pub fn begin(path: &Path, text: &str, mode: u32) -> Result<Begun, Failure> {
    let next = {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        PathBuf::from(name)
    };
    let create = || -> std::io::Result<fs::File> {
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
        written.map(|()| file)
    };
    let file = match create() {
        // Left by one that was killed, and had our id.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => fs::remove_file(&next).and_then(|()| create()),
        created => created,
    };
    let file = file.map_err(|e| Failure::io("write", path, &e))?;
    Ok(Begun { file, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_begun_file_ends_with_the_last_text_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        fs::write(&path, "of an earlier time").unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, "of somebody else").unwrap();
        let mut begun = begin(&path, "a long text that comes first", 0o600).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a long text that comes first");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // What has taken its name since is not ours.
        fs::rename(&path, dir.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        begun.end("the last").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("moved")).unwrap(), "the last");
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "of somebody else");
        // A link is replaced, not followed; nothing half written stays.
        write(&path, "whole", 0o644).unwrap();
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), fs::read_to_string(&elsewhere).unwrap().len()),
            ("whole".to_owned(), 16)
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    /// A trial of half an hour would end without its page.
    #[test]
    fn what_cannot_be_written_is_said_at_once_by_name() {
        let error = begin(Path::new("/nowhere/page.html"), "", 0o600).err().unwrap().line();
        assert!(error.contains("/nowhere/page.html") && error.contains("ENOENT"), "{error}");
    }
}
