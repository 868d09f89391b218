//! What servers of mounts publish for other commands: their last window.
//!
//! **Problem.** Only the server of a volume sees who uses it, but `top` and `explain` are other
//! processes.
//!
//! **Approach.** A server with a policy writes its last window into its state directory, as a whole
//! and by rename. Readers look at the state directory that they were given and at those of mounts
//! below it.
//!
//! **Limits.** A mount without a policy observes nothing, so it publishes nothing.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use command::exit::Failure;
use linux::clock::boot_s;
use rustix::fs::{CWD, RenameFlags};
use serde::Serialize;

use crate::window::{Mounted, Window};

/// The last window of a mount, in its state directory.
const WINDOW: &str = "window.json";
/// More than this is read of no file: it is not ours.
const LONGEST: u64 = 64 << 20;
/// How often a file is read that changes meanwhile.
const TRIES: u32 = 10;
/// Where a server writes its last window. Dropping it removes the window.
pub struct Publisher {
    dir: PathBuf,
    mounted: Mounted,
}

impl Publisher {
    /// For the mount on `mount`, whose state directory is `dir`.
    pub fn new(dir: &Path, mount: &Path, policy: &str, emulated: Option<String>) -> Self {
        let mount = mount.canonicalize().unwrap_or_else(|_| mount.to_owned());
        let mount = PathBuf::from(linux::shown(mount.as_os_str())); // JSON has no others
        let (version, pid, policy) = (1, std::process::id(), policy.to_owned());
        let (age_s, written, window) = (0.0, None, Window::default());
        Self { dir: dir.to_owned(), mounted: Mounted { version, mount, pid, policy, emulated, age_s, written, window } }
    }

    /// Label of emulated memory.
    pub fn label(&self) -> Option<String> {
        self.mounted.emulated.clone()
    }

    /// Publishes a window. The mount goes on without: a failure is only logged.
    pub fn publish(&mut self, window: Window) {
        self.mounted.window = window;
        self.mounted.written = Some((boot(), boot_s()));
        // It has paths of files in directories that not everybody may read.
        let written = std::fs::create_dir_all(&self.dir).and_then(|()| write(&self.dir, WINDOW, &self.mounted, 0o600));
        if let Err(error) = written {
            tracing::warn!("{}: {error}: top does not show this mount", self.dir.join(WINDOW).display());
        }
    }
}

/// Writes a file of this mode into a state directory, as a whole and by rename. The two files
/// change places, so that the next text has room on a disk that is full by then.
pub(crate) fn write(dir: &Path, name: &str, what: &impl Serialize, mode: u32) -> std::io::Result<()> {
    let (next, path) = (next(dir, name), dir.join(name));
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(mode).open(&next)?;
    // Whatever the umask, and whoever left it there.
    file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    let text = serde_json::to_vec(what)?;
    file.write_all(&text)?;
    file.set_len(text.len() as u64)?;
    // There is none at first, and not every file system can do it.
    match rustix::fs::renameat_with(CWD, &next, CWD, &path, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(_) => std::fs::rename(&next, &path),
    }
}

fn next(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.new"))
}

/// Reads such a file. Who is slow can have opened it before it changed places, and sees it being
/// written over: then it is read again.
pub(crate) fn text(path: &Path) -> std::io::Result<Vec<u8>> {
    whole(path, &mut || ())
}

/// `opened`: what a test does while the file is open.
fn whole(path: &Path, opened: &mut dyn FnMut()) -> std::io::Result<Vec<u8>> {
    let mut tries = TRIES;
    loop {
        let mut text = Vec::new();
        let file = std::fs::File::open(path)?;
        let state = |of: std::fs::Metadata| (of.dev(), of.ino(), of.mtime(), of.mtime_nsec());
        let before = state(file.metadata()?);
        opened();
        file.take(LONGEST).read_to_end(&mut text)?;
        tries -= 1;
        if tries == 0 || state(std::fs::metadata(path)?) == before {
            return Ok(text);
        }
    }
}

/// Removes what was written; perhaps nothing ever was.
pub(crate) fn remove(dir: &Path, name: &str) {
    for path in [dir.join(name), next(dir, name)] {
        let _ = std::fs::remove_file(path);
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        remove(&self.dir, WINDOW);
    }
}

/// The last window of the mount whose state directory this is; `None` if it publishes nothing, or
/// its server has ended.
pub fn read(dir: &Path) -> Option<Mounted> {
    let path = dir.join(WINDOW);
    // What a later build wrote is left out.
    let mut mounted: Mounted = serde_json::from_slice(&text(&path).ok()?).ok()?;
    let pid = i32::try_from(mounted.pid).ok().and_then(rustix::process::Pid::from_raw)?;
    // The wall clock may have been set since.
    let (then, written_s) = mounted.written.take()?;
    if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) || then != boot() {
        return None;
    }
    mounted.age_s = (boot_s() - written_s).max(0.0);
    Some(mounted)
}

/// The state directories of mounts below this one, in order.
pub fn state_dirs(state_dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let dir = state_dir.join("volumes");
    let failure = |e: &std::io::Error| Failure::io("read", &dir, e);
    let mut dirs: Vec<PathBuf> = match std::fs::read_dir(&dir) {
        Ok(entries) => {
            entries.map(|entry| entry.map(|entry| entry.path()).map_err(|e| failure(&e))).collect::<Result<_, _>>()?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failure(&error)),
    };
    dirs.sort();
    Ok(dirs)
}

/// The name of a mount's state directory, as `systemd-escape --path` has it.
pub fn escape(dir: &Path) -> String {
    let bytes = dir.as_os_str().as_bytes();
    let parts = bytes.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    let plain =
        |at: usize, byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_') || byte == b'.' && at > 0;
    let path = parts.collect::<Vec<_>>().join(&b'/');
    let escaped = path.iter().enumerate().map(|(at, byte)| match byte {
        b'/' => "-".to_owned(),
        byte if plain(at, *byte) => char::from(*byte).to_string(),
        byte => format!("\\x{byte:02x}"),
    });
    if path.is_empty() { "-".to_owned() } else { escaped.collect() }
}

/// The mount point of this state directory, or its name if that was hashed.
pub fn unescape(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or(dir.as_os_str()).as_bytes();
    let (mut path, mut at) = (vec![b'/'], 0);
    while let Some(byte) = name.get(at) {
        let code = name.get(at + 2..at + 4).filter(|_| name.get(at..at + 2) == Some(b"\\x"));
        let code = code.and_then(|code| u8::from_str_radix(str::from_utf8(code).ok()?, 16).ok());
        at += if code.is_some() { 4 } else { 1 };
        path.push(code.unwrap_or(if *byte == b'-' { b'/' } else { *byte }));
    }
    let path = Path::new(OsStr::from_bytes(&path));
    let known = if path.exists() { path.as_os_str() } else { OsStr::from_bytes(name) };
    linux::shown(known)
}

pub(crate) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_window_is_told_while_its_server_runs_and_not_after() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("volumes/data");
        let mut publisher = Publisher::new(&state, Path::new("/"), "nthread", None);
        assert_eq!(read(&state), None);
        publisher.publish(Window { window_s: 1.0, ..Window::default() });
        let told_now = read(&state).unwrap();
        assert_eq!(told_now.name(), "volume / · policy nthread");
        assert_eq!(Mounted { age_s: 10.0, ..told_now.clone() }.name(), "volume / · policy nthread · silent for 10.0 s");
        assert_eq!(state_dirs(dir.path()).unwrap(), [state.as_path()]);
        // The age is no matter of the wall clock, which may be set: a server that had stopped
        // looked alive.
        let path = state.join(WINDOW);
        let later = SystemTime::now() + std::time::Duration::from_secs(3600);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        let mut told: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let before = told["written"][1].as_f64().unwrap() - 60.0;
        told["written"][1] = before.into();
        std::fs::write(&path, told.to_string()).unwrap();
        assert!(read(&state).unwrap().name().contains("silent for"), "{}", read(&state).unwrap().name());
        assert!(!serde_json::to_string(&read(&state).unwrap()).unwrap().contains("written"));
        told["written"][0] = "another".into();
        std::fs::write(&path, told.to_string()).unwrap();
        assert_eq!(read(&state), None, "it was written before this boot");
        // A server that was killed has left its window.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        publisher.mounted.pid = child.id();
        publisher.publish(Window::default());
        assert_eq!(read(&state), None);
        drop(publisher);
        assert!(!state.join(WINDOW).exists());
    }

    /// Also if somebody had left one for all to read.
    #[test]
    fn nobody_else_may_read_the_last_window() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join(format!("{WINDOW}.new"));
        std::fs::write(&left, "").unwrap();
        std::fs::set_permissions(&left, std::fs::Permissions::from_mode(0o666)).unwrap();
        let mut publisher = Publisher::new(dir.path(), Path::new("/"), "nthread", None);
        publisher.publish(Window::default());
        let mode = dir.path().join(WINDOW).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    /// Two files change places, and the one that was open is written over.
    #[test]
    fn who_reads_slowly_sees_no_file_that_is_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let publish = |text: &str| write(dir.path(), WINDOW, &text, 0o600).unwrap();
        ["a", "b"].into_iter().for_each(publish);
        let mut opened = 0;
        let read = whole(&dir.path().join(WINDOW), &mut || {
            opened += 1;
            if opened == 1 {
                publish("c");
                std::fs::write(next(dir.path(), WINDOW), "\"half").unwrap();
            }
        });
        assert_eq!((read.unwrap(), opened), (b"\"c\"".to_vec(), 2));
        // It changes all the time, and a reader comes to an end.
        let mut change = || ["d", "e", "f"].into_iter().for_each(publish);
        assert!(whole(&dir.path().join(WINDOW), &mut change).is_ok());
    }

    #[test]
    fn a_mount_point_is_found_from_the_name_of_its_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        let names = [&b"a-b"[..], b"a\\b", b"a\\x2db", b"a b", b".a", b"\xc3\xa9", b"\xff", b"\xfe", b"a\nb"];
        let mut states = std::collections::BTreeSet::new();
        for name in names {
            let mount = dir.path().join(OsStr::from_bytes(name));
            std::fs::create_dir(&mount).unwrap();
            let state = escape(&mount);
            assert!(state.bytes().all(|byte| byte.is_ascii_graphic()), "{state}");
            assert_eq!(unescape(&Path::new("/run/homenode/volumes").join(&state)), linux::shown(mount.as_os_str()));
            assert!(states.insert(state), "two mounts share a state directory");
            // Mount points that are no UTF-8 were not published, without an error.
            let mut publisher = Publisher::new(&dir.path().join("state"), &mount, "nthread", None);
            publisher.publish(Window::default());
            assert_eq!(read(&dir.path().join("state")).unwrap().mount, Path::new(&linux::shown(mount.as_os_str())));
        }
        // As `systemd-escape --path` says.
        let escaped =
            ["/", "/a/b", "//a//b/", "/.a/.b", "/a b", "/a-b", "/x\u{e9}"].map(|path| escape(Path::new(path)));
        assert_eq!(escaped, ["-", "a-b", "a-b", "\\x2ea-.b", "a\\x20b", "a\\x2db", "x\\xc3\\xa9"]);
        assert_eq!(unescape(Path::new("/run/homenode/volumes/0123456789abcdef")), "0123456789abcdef");
    }
}
