//! The node of each cached page of a file, by `move_pages(2)` without target nodes.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, bail};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::param::page_size;

/// Counts a file's pages by node. Maps the file and thereby reads in uncached pages: meant for
/// fully cached files.
pub fn nodes_of(path: &Path) -> Result<BTreeMap<i32, usize>> {
    let mut nodes = BTreeMap::new();
    for node in each(path)? {
        *nodes.entry(node).or_default() += 1;
    }
    Ok(nodes)
}

/// The node of each page of a file, likewise.
pub fn each(path: &Path) -> Result<Vec<i32>> {
    mapped(path, |base, len| {
        populate(base, len).with_context(|| format!("populate {}", path.display()))?;
        nodes(base, 0..len.div_ceil(page_size()))
    })
}

/// The number and the node of each cached page of a file. Reads in none.
pub fn cached(path: &Path) -> Result<Vec<(u64, i32)>> {
    cached_among(path, |_| true)
}

/// The same of those pages whose numbers are wanted; the others are not touched.
pub fn cached_among(path: &Path, wanted: impl Fn(u64) -> bool) -> Result<Vec<(u64, i32)>> {
    mapped(path, |base, len| {
        let pages = len.div_ceil(page_size());
        let mut cached = vec![0u8; pages];
        // SAFETY: the range is a mapping, and the array has an element for each of its pages.
        if unsafe { libc::mincore(base, len, cached.as_mut_ptr()) } != 0 {
            bail!("mincore {}: {}", path.display(), std::io::Error::last_os_error());
        }
        // SAFETY: the range is a mapping. Without readahead a touch reads in nothing else.
        unsafe { madvise(base, len, Advice::Random) }.context("madvise")?;
        let mut found = Vec::new();
        let is_cached = |page: &usize| cached.get(*page).is_some_and(|c| c & 1 == 1);
        for page in (0..pages).filter(|page| wanted(*page as u64)).filter(is_cached) {
            let at = base.cast::<u8>().wrapping_add(page * page_size()).cast();
            populate(at, page_size()).with_context(|| format!("populate {}", path.display()))?;
            found.push(page);
        }
        let nodes = nodes(base, found.iter().copied())?;
        Ok(found.into_iter().map(|page| page as u64).zip(nodes).collect())
    })
}

/// Maps a file for the duration of a call; an empty file gives nothing.
fn mapped<T>(path: &Path, look: impl FnOnce(*mut libc::c_void, usize) -> Result<Vec<T>>) -> Result<Vec<T>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let len = usize::try_from(file.metadata()?.len())?;
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: a new mapping at an address that the kernel chooses; nothing reads it, and it is
    // unmapped below.
    let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0) }
        .with_context(|| format!("mmap {}", path.display()))?;
    let looked = look(base, len);
    // SAFETY: the mapping made above; nothing refers to it any more.
    unsafe { munmap(base, len) }.context("munmap")?;
    looked
}

/// Enters the pages of a part of a mapping into our page table.
fn populate(at: *mut libc::c_void, len: usize) -> rustix::io::Result<()> {
    // SAFETY: reads from the file and changes no memory.
    unsafe { madvise(at, len, Advice::LinuxPopulateRead) }
}

/// The nodes of these pages of a mapping.
fn nodes(base: *mut libc::c_void, pages: impl Iterator<Item = usize>) -> Result<Vec<i32>> {
    let addresses: Vec<*const libc::c_void> =
        pages.map(|page| base.cast::<u8>().wrapping_add(page * page_size()).cast_const().cast()).collect();
    let mut status = vec![0i32; addresses.len()];
    // SAFETY: both arrays have as many elements as told and outlive the call; without nodes nothing
    // is moved.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            addresses.len(),
            addresses.as_ptr(),
            ptr::null::<libc::c_int>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if result != 0 {
        bail!("move_pages: {}", std::io::Error::last_os_error());
    }
    Ok(status)
}

/// Share of a file's pages that are on `node`, 0 to 1.
pub fn share_on(path: &Path, node: u32) -> Result<f64> {
    let nodes = nodes_of(path)?;
    let all: usize = nodes.values().sum();
    let there = i32::try_from(node).ok().and_then(|n| nodes.get(&n)).copied().unwrap_or(0);
    Ok(if all == 0 { 0.0 } else { there as f64 / all as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_a_fresh_file_is_on_some_node() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![1; 10 * page_size() + 1]).unwrap();
        let nodes = nodes_of(&path).unwrap();
        assert_eq!(nodes.values().sum::<usize>(), 11);
        assert!(nodes.keys().all(|n| *n >= 0), "{nodes:?}");
        assert!(nodes_of(&dir.path().join("none")).is_err());
    }
}
