//! What servers of mounts tell other commands: their last window, and their journals.
//!
//! **Problem.** Only its server sees who uses a volume, but `top` and `explain` are other processes.
//!
//! **Approach.** A server with a policy writes its last window into its state directory, as a whole and by rename. Readers look
//! at the state directory that they were given and at those of mounts below it.
//!
//! **Limits.** A mount without a policy observes nothing, so it tells nothing.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::top::model::Window;
use crate::exit::Failure;
use crate::output::units::seconds;

/// The last window of a mount, in its state directory.
const WINDOW: &str = "window.json";
/// The next one, until it is complete.
const NEXT: &str = "window.json.new";
/// A server that has told nothing for this many windows, and [`SLACK_S`], is late.
const LATE_WINDOWS: f64 = 2.0;
/// Seconds that a decision may take.
const SLACK_S: f64 = 2.0;

/// A mount and its last window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mounted {
    /// Format version, 1.
    pub version: u32,
    /// Mount point.
    pub mount: PathBuf,
    /// The server's process.
    pub pid: u32,
    /// Policy that decides for it.
    pub policy: String,
    /// Label of emulated memory; absent for real memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated: Option<String>,
    /// Seconds since the window ended; 0 while it is written.
    #[serde(default)]
    pub age_s: f64,
    /// The window.
    pub window: Window,
}

impl Mounted {
    /// `volume /data · policy nthread · emulated optane, scale 200`.
    pub fn name(&self) -> String {
        let emulated = self.emulated.as_ref().map_or(String::new(), |label| format!(" · {label}"));
        let late = self.age_s > LATE_WINDOWS * self.window.window_s + SLACK_S;
        let late = if late { format!(" · silent for {}", seconds(self.age_s)) } else { String::new() };
        format!("volume {} · policy {}{emulated}{late}", self.mount.display(), self.policy)
    }
}

/// Where a server writes its last window. Dropped, it takes the window away.
pub struct Teller {
    dir: PathBuf,
    mounted: Mounted,
}

impl Teller {
    /// For the mount on `mount`, whose state directory is `dir`.
    pub fn new(dir: &Path, mount: &Path, policy: &str, emulated: Option<String>) -> Self {
        let mount = mount.canonicalize().unwrap_or_else(|_| mount.to_owned());
        let (pid, policy, window) = (std::process::id(), policy.to_owned(), Window::default());
        Self { dir: dir.to_owned(), mounted: Mounted { version: 1, mount, pid, policy, emulated, age_s: 0.0, window } }
    }

    /// Label of emulated memory.
    pub fn label(&self) -> Option<String> {
        self.mounted.emulated.clone()
    }

    /// Tells a window. The mount goes on without: a failure is only logged.
    pub fn tell(&mut self, window: Window) {
        self.mounted.window = window;
        let next = self.dir.join(NEXT);
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&self.dir)?;
            // It has paths of files in directories that not everybody may read.
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&next)?;
            file.write_all(&serde_json::to_vec(&self.mounted)?)?;
            std::fs::rename(&next, self.dir.join(WINDOW))
        };
        if let Err(error) = write() {
            tracing::warn!("{}: {error}: top does not show this mount", next.display());
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        // It may never have told anything.
        let _ = std::fs::remove_file(self.dir.join(WINDOW));
    }
}

/// The last window of the mount whose state directory this is; `None` if it tells nothing, or its server has ended.
pub fn told(dir: &Path) -> Option<Mounted> {
    let path = dir.join(WINDOW);
    let written = path.metadata().and_then(|meta| meta.modified()).ok()?;
    // What a later build wrote is left out.
    let mut mounted: Mounted = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
    let pid = i32::try_from(mounted.pid).ok().and_then(rustix::process::Pid::from_raw)?;
    if rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
        return None;
    }
    mounted.age_s = SystemTime::now().duration_since(written).map_or(0.0, |age| age.as_secs_f64());
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

/// The name of a mount's state directory, as systemd-escape(1) has it.
pub fn escape(dir: &Path) -> String {
    let path = dir.to_string_lossy();
    path.trim_matches('/').replace('\\', "\\x5c").replace('-', "\\x2d").replace('/', "-")
}

/// The mount point of this state directory, or its name if that was hashed.
pub fn unescape(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy();
    let path = format!("/{}", name.replace('-', "/").replace("\\x2d", "-").replace("\\x5c", "\\"));
    if Path::new(&path).exists() { path } else { name.into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_told_while_its_server_runs_and_not_after() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("volumes/data");
        let mut teller = Teller::new(&state, Path::new("/"), "nthread", None);
        assert_eq!(told(&state), None);
        teller.tell(Window { window_s: 1.0, ..Window::default() });
        let told_now = told(&state).unwrap();
        assert_eq!(told_now.name(), "volume / · policy nthread");
        assert_eq!(Mounted { age_s: 10.0, ..told_now.clone() }.name(), "volume / · policy nthread · silent for 10.0 s");
        assert_eq!(state_dirs(dir.path()).unwrap(), [state.as_path()]);
        // A server that was killed has left its window.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        teller.mounted.pid = child.id();
        teller.tell(Window::default());
        assert_eq!(told(&state), None);
        drop(teller);
        assert!(!state.join(WINDOW).exists());
    }

    #[test]
    fn a_mount_point_is_found_from_the_name_of_its_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a-b", "a\\b", "a\\x2db"] {
            let mount = dir.path().join(name);
            std::fs::create_dir(&mount).unwrap();
            let state = Path::new("/run/homenode/volumes").join(escape(&mount));
            assert_eq!(unescape(&state), mount.display().to_string());
        }
        assert_eq!(unescape(Path::new("/run/homenode/volumes/0123456789abcdef")), "0123456789abcdef");
    }
}
