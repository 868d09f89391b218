//! Checks that a directory can be trusted with undo records.
//!
//! A user who can replace a component of the path controls the state file, and with it the
//! affinities that root restores. So each component, symbolic links included, must belong to us or
//! to root, and no other user may write it. A parent may be a sticky directory such as `/tmp`:
//! there, other users can add entries but cannot rename or remove ours. The state directory itself
//! may not be sticky.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::EngineError;

/// As many symbolic links as the kernel follows.
const MOST_LINKS: usize = 40;
const STICKY: u32 = 0o1000;
const WRITABLE: u32 = 0o022;

/// Refuses a path with a component that another user can write. Components that do not exist yet
/// pass.
pub fn trusted(path: &Path) -> Result<(), EngineError> {
    let us = rustix::process::geteuid().as_raw();
    let look = |at: &Path| std::fs::symlink_metadata(at);
    let absolute = std::path::absolute(path).map_err(EngineError::io("look at", path))?;
    let mut at = PathBuf::from("/");
    let mut rest = names(&absolute);
    let mut links = 0;
    let root = look(&at).map_err(EngineError::io("look at", &at))?;
    judge(&at, &root, us, rest.is_empty())?;
    while let Some(name) = rest.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(name);
        let meta = match look(&next) {
            Ok(meta) => meta,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(EngineError::io("look at", &next)(source)),
        };
        judge(&next, &meta, us, rest.is_empty())?;
        if meta.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Err(untrusted(path, "leads through too many symbolic links".into()));
            }
            let target = std::fs::read_link(&next).map_err(EngineError::io("read", &next))?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            rest.extend(names(&target));
        } else {
            at = next;
        }
    }
    // The path may end in "..", or in a link to ".".
    let last = look(&at).map_err(EngineError::io("look at", &at))?;
    judge(&at, &last, us, true)
}

/// Refuses a file that another user owns or can write. One that does not exist passes.
pub(super) fn trusted_file(path: &Path) -> Result<(), EngineError> {
    let us = rustix::process::geteuid().as_raw();
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(EngineError::io("look at", path)(source)),
    };
    let kind_fault = (!meta.is_file()).then(|| "is not a regular file".to_owned());
    let fault = kind_fault.or_else(|| owner_fault(meta.uid(), us)).or_else(|| mode_fault(meta.mode(), true));
    fault.map_or(Ok(()), |fault| Err(untrusted(path, fault)))
}

/// The names of a path, last first.
fn names(path: &Path) -> Vec<OsString> {
    let name = |c: Component<'_>| match c {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(name).collect()
}

fn judge(path: &Path, meta: &Metadata, us: u32, last: bool) -> Result<(), EngineError> {
    let fault = match () {
        () if meta.is_symlink() => owner_fault(meta.uid(), us),
        () if !meta.is_dir() => Some("is not a directory".into()),
        () => owner_fault(meta.uid(), us).or_else(|| mode_fault(meta.mode(), last)),
    };
    fault.map_or(Ok(()), |why| Err(untrusted(path, why)))
}

fn owner_fault(owner: u32, us: u32) -> Option<String> {
    let ours = owner == us || owner == 0;
    (!ours).then(|| format!("belongs to user {owner}, it must belong to user {us} or to root"))
}

fn mode_fault(mode: u32, last: bool) -> Option<String> {
    let safe = mode & WRITABLE == 0 || (mode & STICKY != 0 && !last);
    (!safe).then(|| format!("is writable by others (mode {:o}), it must be 755 or stricter", mode & 0o7777))
}

fn untrusted(path: &Path, why: String) -> EngineError {
    EngineError::Untrusted { path: path.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn owner_and_mode_decide() {
        assert_eq!(owner_fault(1000, 1000).or(owner_fault(0, 1000)).or(owner_fault(0, 0)), None);
        assert!(owner_fault(1000, 0).is_some() && owner_fault(1001, 1000).is_some());
        for (mode, last, fault) in [
            (0o755, true, false),
            (0o700, true, false),
            (0o775, true, true),
            (0o777, false, true),
            (0o1777, false, false),
            (0o1777, true, true),
        ] {
            assert_eq!(mode_fault(mode, last).is_some(), fault, "{mode:o} {last}");
        }
    }

    #[test]
    fn each_component_is_judged_also_behind_links() {
        let tmp = tempfile::tempdir().unwrap();
        let open = tmp.path().join("open");
        create_dir(&open).unwrap();
        create_dir(open.join("state")).unwrap();
        create_dir(tmp.path().join("closed")).unwrap();
        symlink("open/state", tmp.path().join("link")).unwrap();
        symlink("turn", tmp.path().join("turn")).unwrap();
        let check = |path: &str| trusted(&tmp.path().join(path)).map_err(|e| e.to_string());
        assert_eq!(check("open/state/new/below"), Ok(()));
        assert_eq!(check("link"), Ok(()));
        set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        for path in ["open/state", "link", "link/new", "closed/../open/state", "open/new"] {
            let error = check(path).unwrap_err();
            assert!(error.contains("/open: is writable by others (mode 777)"), "{path}: {error}");
        }
        set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(check("open/state"), Ok(()));
        for path in ["open", "open/state/..", "open/state/self"] {
            if path.ends_with("self") {
                symlink("..", open.join("state/self")).unwrap();
            }
            assert!(check(path).is_err(), "{path}");
        }
        assert!(check("turn/state").unwrap_err().contains("too many symbolic links"));
    }
}
