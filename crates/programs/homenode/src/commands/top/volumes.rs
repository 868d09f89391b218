//! The mounted volumes that homenode observes, as their servers tell.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::journal::Line;
use session::published;
use session::window::Mounted;

use super::last_moves::LastMoves;

/// The mounts of a state directory, and what their journals say.
pub struct Volumes {
    state_dir: PathBuf,
    moves: HashMap<PathBuf, LastMoves>,
}

impl Volumes {
    /// Those whose state directory is this one or below it.
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), moves: HashMap::new() }
    }

    /// Their last windows, with the last moves of their threads and the copies that go on; and
    /// their journals.
    pub fn now(&mut self) -> Vec<(Mounted, Arc<[Line]>)> {
        // Whoever may not look there sees the host alone.
        let below = published::state_dirs(&self.state_dir).unwrap_or_default();
        let dirs = [self.state_dir.clone()].into_iter().chain(below);
        let told: Vec<_> = dirs.filter_map(|dir| Some((published::read(&dir)?, dir))).collect();
        self.moves.retain(|dir, _| told.iter().any(|(_, told)| told == dir));
        let with_moves = |(mut mounted, dir): (Mounted, PathBuf)| {
            let moves = self.moves.entry(dir).or_insert_with_key(|dir| LastMoves::new(dir));
            moves.refresh();
            moves.add_to(&mut mounted.window);
            (mounted, Arc::clone(&moves.lines))
        };
        told.into_iter().map(with_moves).collect()
    }
}
