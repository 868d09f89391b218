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

use crate::medium::{Image, Ram, blank};

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
    create_in(volume, Ino::ROOT, name)
}

pub fn create_in(volume: &Volume, dir: Ino, name: &str) -> fs::Result<Ino> {
    volume.create(dir, name.as_bytes(), NewFile { mode: 0o644, ..NewFile::default() }).map(|stat| stat.ino)
}

/// Blocks that are free in all regions.
pub fn free(volume: &Volume) -> u64 {
    volume.usage().regions.iter().map(|region| region.free_blocks).sum()
}

/// Blocks that are not.
pub fn used(volume: &Volume) -> u64 {
    volume.usage().regions.iter().map(|region| region.blocks).sum::<u64>() - free(volume)
}

/// What a check says of a volume in which it finds nothing wrong.
#[track_caller]
pub fn sound(medium: Box<dyn Medium>) -> fs::fsck::Report {
    let report = fs::fsck::check(medium).unwrap();
    assert_eq!(report.damage, [], "{report:?}");
    report
}

/// The same, and it was unmounted and has no inode without a name.
#[track_caller]
pub fn settled(medium: Box<dyn Medium>) {
    let report = sound(medium);
    assert!(report.clean && report.orphans.is_empty(), "{report:?}");
}

/// The pages of an inode's log: sequence, region and offset.
pub fn log_pages(image: &Image, ino: Ino) -> Vec<(u32, usize, usize)> {
    let mut found = Vec::new();
    for (region, bytes) in image.iter().enumerate() {
        let own = |block: &[u8]| block[4..8] == *b"HLOG" && block[8..16] == ino.raw().to_le_bytes();
        let pages = bytes.chunks(4096).enumerate().filter(|(_, block)| own(block));
        let sequence = |block: &[u8]| u32::from_le_bytes(block[20..24].try_into().unwrap());
        found.extend(pages.map(|(at, block)| (sequence(block), region, at * 4096)));
    }
    found.sort_unstable();
    found
}

/// Seals a superblock that was changed.
pub fn seal(block: &mut [u8]) {
    block[12..16].fill(0);
    let crc = crc32c::crc32c(block);
    block[12..16].copy_from_slice(&crc.to_le_bytes());
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

/// A volume on such regions, and its memory.
pub fn twice() -> (Ram, Volume) {
    let ram = Ram::new(blank(&TWICE));
    format_twice(Box::new(ram.clone()), false);
    (ram.clone(), mount_whole(Box::new(ram), options(1)).unwrap())
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
