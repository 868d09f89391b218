//! A disk that is full: no move without its undo record, nothing lost, the file and the error are
//! named.
//!
//! Needs root for a tmpfs of a few pages.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test stops at the first surprise

#[path = "fake/mod.rs"]
mod fake;

use std::path::{Path, PathBuf};
use std::process::Command;

use ::testing::{Case, Tried, cases, skip};
use engine::{Engine, MoveEvent, Settings, StateDir, recover};

use fake::{Fake, go_home, set};

/// A tmpfs of 32 KiB, unmounted when dropped.
struct Tmpfs(PathBuf, #[allow(dead_code)] tempfile::TempDir);

impl Tmpfs {
    fn mount() -> Tried<Self> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("small");
        std::fs::create_dir(&path)?;
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=32k,mode=755", "homenode-test"]).arg(&path).output();
        match mount {
            Ok(out) if out.status.success() => Ok(Self(path, dir)),
            Ok(out) => skip(format!("a tmpfs cannot be mounted here: {}", String::from_utf8_lossy(&out.stderr).trim())),
            Err(error) => skip(format!("mount cannot be run: {error}")),
        }
    }

    /// Leaves no byte free, nor a page.
    fn fill(&self) {
        let chunk = [0; 4096];
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        while std::io::Write::write_all(&mut filler, &chunk).is_ok() {}
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn engine(plane: &Fake, dir: &Path) -> Engine<Fake> {
    let settings = Settings { burst: 4, moves_per_s: 4.0, ..Settings::default() };
    Engine::new(plane.clone(), go_home(), settings, Some(StateDir::open(dir).unwrap())).unwrap()
}

/// Moves threads until the state file cannot grow; then nothing moves, all is said, and nothing is
/// forgotten.
fn moves_wait_for_space() -> Tried {
    let disk = Tmpfs::mount()?;
    let plane = Fake::new((1..=200).map(|tid| (tid, 0, 1)));
    let mut engine = engine(&plane, &disk.0);
    engine.step().unwrap();
    disk.fill();
    let refused = (0..100)
        .find_map(|_| {
            let report = engine.step().unwrap();
            let why = report.outcomes.iter().find_map(|o| match &o.result {
                MoveEvent::NotWritten { why } => Some(why.clone()),
                _ => None,
            })?;
            assert!(
                report.outcomes.iter().all(|o| o.result != MoveEvent::Applied),
                "a batch is written down as a whole"
            );
            assert!(report.notes.contains(&why), "{:?}", report.notes);
            Some(why)
        })
        .expect("the disk is full");
    assert!(refused.contains("state.jsonl: No space left on device (os error 28)"), "{refused}");
    let made = plane.world().made.len();
    assert!(made >= 4);
    for _ in 0..5 {
        engine.step().unwrap();
    }
    assert_eq!(plane.world().made.len(), made, "nothing moves while the disk is full");

    // Killed now: what is on disk undoes all of it, on the full disk too.
    let wreck = tempfile::tempdir().unwrap();
    std::fs::copy(disk.0.join("state.jsonl"), wreck.path().join("state.jsonl")).unwrap();
    let mut after = Fake::of(plane.world().tasks.clone());
    let finished = recover(&mut after, &StateDir::open(wreck.path()).unwrap()).unwrap();
    assert_eq!((finished.restored, finished.failed, finished.notes.len()), (made, 0, 0));

    // With space again, the moves go on: nothing was held against the threads.
    disk.empty();
    engine.step().unwrap();
    assert!(plane.world().made.len() > made);
    disk.fill();
    let made = plane.world().made.len();
    let finished = engine.finish();
    assert_eq!((finished.restored, finished.failed), (made, 0));
    assert!(plane.world().tasks.values().all(|t| t.mask == set("0-5")));
    assert!(!disk.0.join("state.jsonl").exists());
    Ok(())
}

/// A start on a full disk is refused before anything is moved; `recover` works.
fn start_is_refused() -> Tried {
    let disk = Tmpfs::mount()?;
    let plane = Fake::new([(1, 0, 1)]);
    let mut first = engine(&plane, &disk.0);
    first.step().unwrap();
    let state = std::fs::read(disk.0.join("state.jsonl")).unwrap();
    drop(first);
    plane.world().taskset(1, "2-3"); // as after a crash
    std::fs::write(disk.0.join("state.jsonl"), state).unwrap();
    disk.fill();
    let finished = recover(&mut plane.clone(), &StateDir::open(&disk.0).unwrap()).unwrap();
    assert_eq!((finished.restored, plane.world().mask(1)), (1, set("0-5")));
    disk.fill(); // the page that the old file took
    let state = StateDir::open(&disk.0).unwrap();
    let Err(error) = Engine::new(plane.clone(), go_home(), Settings::default(), Some(state)) else {
        panic!("started on a full disk");
    };
    let text = error.to_string();
    assert!(text.contains("state.jsonl.new: No space left on device (os error 28)"), "{text}");
    assert!(!disk.0.join("state.jsonl.new").exists());
    Ok(())
}

const CASES: &[Case] = cases![moves_wait_for_space, start_is_refused];

fn main() {
    ::testing::run(&[], CASES.to_vec());
}
