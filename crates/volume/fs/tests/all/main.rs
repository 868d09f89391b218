//! Tests of the file system through its public interface, on media that live in this process.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod checksums;
mod clean;
mod concurrent;
mod coverage;
mod crash;
mod damage;
mod drain;
mod emulated;
mod failures;
mod full;
mod leaving;
mod lives;
mod mapped;
mod medium;
mod model;
mod operations;
mod owners;
mod pieces;
mod random;
mod recovery;
mod regions;
mod rescue;
mod salvage;
mod scrub;
mod semantics;
mod twins;
mod unreadable;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use fs::medium::Medium;
use fs::{Ino, Layout, NewFile, Options, Placement, Volume};

use crate::medium::{Ram, blank};

/// Sizes of the regions of a test volume, in blocks: unequal.
pub const REGIONS: [u64; 2] = [40, 52];

/// Options that make every run the same: a clock that counts.
pub fn options(parts: usize) -> Options {
    let clock = AtomicI64::new(1_000_000);
    let clock = Arc::new(move || clock.fetch_add(1, Ordering::Relaxed));
    Options { placement: Placement::Interleave, topology: None, parts, clock, inherits: false }
}

/// Mounts a volume in which recovery finds no damage.
pub fn mount_whole(medium: Box<dyn Medium>, options: Options) -> fs::Result<Volume> {
    let volume = Volume::mount(medium, options)?;
    match volume.damage().first().cloned() {
        Some(damage) => Err(damage.into()),
        None => Ok(volume),
    }
}

/// Memory with a new volume on regions of so many blocks.
pub fn formatted(blocks: &[u64]) -> Ram {
    let ram = Ram::new(blank(blocks));
    format(Box::new(ram.clone()), 1);
    ram
}

/// The same, and the volume, mounted.
pub fn fresh(blocks: &[u64]) -> (Ram, Volume) {
    let ram = formatted(blocks);
    (ram.clone(), mount_whole(Box::new(ram), options(1)).unwrap())
}

/// Makes a file in the root directory.
pub fn create(volume: &Volume, name: &str) -> fs::Result<Ino> {
    volume.create(Ino::ROOT, name.as_bytes(), NewFile { mode: 0o644, ..NewFile::default() }).map(|stat| stat.ino)
}

/// What is alike in the volumes of these tests.
pub fn layout() -> Layout {
    Layout { volume: [7; 16], created: 1, ..Layout::default() }
}

/// Sizes of the regions of a test volume that keeps its logs twice.
pub const TWICE: [u64; 2] = [84, 96];

/// Makes a volume of two regions that keeps its logs twice.
pub fn format_twice(medium: Box<dyn Medium>, data_checksums: bool) {
    let nodes = vec![Some(0), Some(1)];
    fs::mkfs(medium, &Layout { nodes, data_checksums, logs_twice: true, ..layout() }).unwrap();
}

/// Makes a volume on a medium: node 0 and node 1.
pub fn format(medium: Box<dyn Medium>, journals: u32) {
    format_with(medium, journals, false);
}

/// The same, with or without checksums of file data.
pub fn format_with(medium: Box<dyn Medium>, journals: u32, data_checksums: bool) {
    let nodes = (0..medium.regions() as u32).map(Some).collect();
    fs::mkfs(medium, &Layout { nodes, journals, data_checksums, ..layout() }).unwrap();
}
