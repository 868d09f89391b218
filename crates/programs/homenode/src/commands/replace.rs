//! Writes a file as a whole: it takes the place of an older one once it is complete.
//!
//! **Limits.** What is there and is no regular file (a device, a pipe, a symbolic link) is refused,
//! and stays.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::exit::{Exit, Failure};

/// Writes this text to a file of this mode. Whoever reads the file meanwhile sees the old one.
pub fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    replaceable(path)?;
    Place::of(path).and_then(|place| place.write(text, mode)).map_err(|e| Failure::io("write", path, &e))
}

/// Refuses what is there and is no regular file, and the usual names of stdout.
pub fn replaceable(path: &Path) -> Result<(), Failure> {
    let why = match fs::symlink_metadata(path) {
        _ if path == Path::new("-") || path == Path::new("/dev/stdout") => "this is stdout, and a file is written",
        Ok(there) if there.is_symlink() => "this is a symbolic link, and it would be replaced",
        Ok(there) if !there.is_file() => "this is no regular file, and it would be replaced",
        // What else is wrong is found when it is written.
        Ok(_) | Err(_) => return Ok(()),
    };
    Err(Failure::new(Exit::Usage, format!("cannot write {}", path.display()), why).hint("name a regular or a new file"))
}

/// A file by its name in a directory that stays open: whoever owns a directory above may let its
/// path lead elsewhere meanwhile.
#[derive(Debug)]
pub struct Place {
    dir: OwnedFd,
    name: OsString,
}

impl Place {
    pub fn of(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(ErrorKind::IsADirectory)?.to_owned();
        let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { dir: rustix::fs::open(parent, flags, Mode::empty())?, name })
    }

    /// Begins a new file for it, of this mode.
    pub fn draft(&self, mode: u32) -> io::Result<Draft> {
        let mut name = self.name.clone();
        name.push(format!(".{}", std::process::id()));
        // Nobody else's file, and through no link: others may be able to write the directory.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let create = || openat(&self.dir, &name, flags, Mode::from_raw_mode(mode));
        let file = match create() {
            // Left by one that was killed, and had our id.
            Err(Errno::EXIST) => unlinkat(&self.dir, &name, AtFlags::empty()).and_then(|()| create()),
            created => created,
        }?;
        let draft = Draft { dir: self.dir.try_clone()?, name, to: self.name.clone(), file: file.into() };
        // Whatever the umask.
        draft.file.set_permissions(fs::Permissions::from_mode(mode))?;
        Ok(draft)
    }

    fn write(&self, text: &str, mode: u32) -> io::Result<()> {
        self.filled(text, mode)?.publish()
    }

    fn filled(&self, text: &str, mode: u32) -> io::Result<Draft> {
        let mut draft = self.draft(mode)?;
        draft.file.write_all(text.as_bytes())?;
        Ok(draft)
    }
}

/// The new file until it takes the place of the old one. Half of it is of no use: it is removed if
/// it does not.
#[derive(Debug)]
pub struct Draft {
    dir: OwnedFd,
    name: OsString,
    to: OsString,
    pub file: fs::File,
}

impl Draft {
    /// Lets it take the place of the old file.
    pub fn publish(self) -> io::Result<()> {
        Ok(renameat(&self.dir, &self.name, &self.dir, &self.to)?)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone already once it has taken its place.
        let _ = unlinkat(&self.dir, &self.name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "old").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for path in [at("link"), at("pipe"), dir.path().into(), "/dev/null".into(), "/dev/stdout".into(), "-".into()] {
            let failure = write(&path, "new", 0o600).unwrap_err();
            assert!(failure.line().contains("this is "), "{}", failure.line());
        }
        assert_eq!(fs::read_to_string(at("link")).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn the_old_file_stays_until_the_new_one_is_published() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let read = || fs::read_to_string(&path).unwrap();
        fs::write(&path, "old").unwrap();
        let place = Place::of(&path).unwrap();
        drop(place.filled("new", 0o600).unwrap());
        assert_eq!((read(), fs::read_dir(dir.path()).unwrap().count()), ("old".to_owned(), 1));
        let draft = place.filled("new", 0o640).unwrap();
        // A reader that has it open keeps the old text.
        let open = fs::File::open(&path).unwrap();
        assert_eq!(read(), "old");
        draft.publish().unwrap();
        assert_eq!((read(), io::read_to_string(open).unwrap()), ("new".to_owned(), "old".to_owned()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    /// Minutes later, root's file was renamed to where the path led then.
    #[test]
    fn what_was_begun_stays_in_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        [at("mine"), at("theirs")].iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let draft = Place::of(&at("mine/file")).unwrap().filled("new", 0o600).unwrap();
        fs::rename(at("mine"), at("moved")).unwrap();
        std::os::unix::fs::symlink(at("theirs"), at("mine")).unwrap();
        draft.publish().unwrap();
        assert_eq!(fs::read_to_string(at("moved/file")).unwrap(), "new");
        assert_eq!(fs::read_dir(at("moved")).unwrap().count(), 1);
        assert_eq!(fs::read_dir(at("theirs")).unwrap().count(), 0);
    }
}
