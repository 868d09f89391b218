//! Files whose page cache is on a given node.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::{io, thread};

use anyhow::{Context, Result, anyhow, ensure};

use crate::pages;

/// Writes a file of `bytes` so that its cached pages are on `node`, and checks with `move_pages`
/// that they are.
pub fn put(path: &Path, bytes: u64, node: u32) -> Result<()> {
    write(path, bytes, node)?;
    let share = pages::share_on(path, node)?;
    ensure!(share == 1.0, "{}: only {:.1} % of its cache is on node {node}", path.display(), share * 100.0);
    Ok(())
}

/// Writes a file of `bytes`, and syncs it.
///
/// The memory policy of the writing thread decides where a page of the cache is allocated, so a
/// separate thread, bound to the node, writes the file.
pub fn write(path: &Path, bytes: u64, node: u32) -> Result<()> {
    let what = || path.display().to_string();
    thread::scope(|scope| {
        scope
            .spawn(|| -> Result<()> {
                bind_memory(node).with_context(|| format!("binding memory to node {node}"))?;
                let mut file = File::create(path).with_context(what)?;
                let block: Vec<u8> =
                    (0..1 << 20).map(|i: u32| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
                let mut left = bytes;
                while left > 0 {
                    let n = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
                    file.write_all(&block[..n]).with_context(what)?;
                    left -= n as u64;
                }
                // Dirty pages would be written back in the middle of a measurement.
                file.sync_all().with_context(what)
            })
            .join()
            .map_err(|_| anyhow!("writing {} panicked", path.display()))?
    })
}

/// Binds the calling thread's memory to one node.
pub fn bind_memory(node: u32) -> io::Result<()> {
    const MPOL_BIND: libc::c_int = 2;
    let bits = libc::c_ulong::BITS;
    let mut mask = vec![0 as libc::c_ulong; (node / bits) as usize + 1];
    if let Some(word) = mask.last_mut() {
        *word = 1 << (node % bits);
    }
    // The kernel reads one bit less than it is told.
    let max_node = mask.len() * bits as usize + 1;
    // SAFETY: the mask has at least `max_node - 1` bits and outlives the call, which changes only
    // this thread's policy.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_BIND, mask.as_ptr(), max_node) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_node_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(put(&dir.path().join("file"), 4096, 1023).is_err());
    }
}
