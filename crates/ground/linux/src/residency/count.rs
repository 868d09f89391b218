//! Counts the pages of a mapping per node.
//!
//! `/proc/self/numa_maps` has a line for each mapping, with the entries of its page table, such as
//!
//! ```text
//! 7fc378400000 default file=/data/kv mapped=16384 N0=16000 N1=384 kernelpagesize_kB=4
//! ```
//!
//! (`fs/proc/task_mmu.c`, `show_numa_map`). The kernel walks each mapping when its line is read, so
//! reading stops at the wanted line. A kernel without NUMA has no such file, and one node.

use std::fs::File;
use std::io::{self, Read};

use topology::NodeId;

use crate::pages;

/// Bytes per read. The kernel walks as many mappings as fill the buffer. A line with a file is
/// longer than this, so the wanted line ends a buffer.
const READ: usize = 64;

/// Bytes per read within the wanted line: fewer than the shortest line has, so that the kernel
/// walks at most one mapping after it. That mapping is empty (see `map`).
const READ_ON: usize = 16;

/// What an error of [`mapping`] says of its file.
pub(super) const COUNT: &str = "count, by node, the cached pages of";

/// Bytes per node in the page table of the mapping at `start`. On a kernel without NUMA: `entered`
/// bytes on node 0.
pub(super) fn mapping(start: usize, entered: u64) -> io::Result<Vec<(NodeId, u64)>> {
    let maps = match File::open("/proc/self/numa_maps") {
        Ok(maps) => maps,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            std::fs::metadata("/proc/self/maps")?;
            return Ok(vec![(NodeId(0), entered)]);
        }
        Err(e) => return Err(e),
    };
    find(maps, start)
}

/// The counts of the mapping at `start`.
fn find(mut maps: impl Read, start: usize) -> io::Result<Vec<(NodeId, u64)>> {
    let wanted = format!("{start:x} ");
    let mut line = Vec::new();
    let mut buffer = [0; READ];
    loop {
        let size = if line.starts_with(wanted.as_bytes()) { READ_ON } else { READ };
        let read = maps.read(&mut buffer[..size])?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no mapping at {start:#x} in numa_maps")));
        }
        for &byte in &buffer[..read] {
            if byte != b'\n' {
                line.push(byte);
            } else if line.starts_with(wanted.as_bytes()) {
                let odd = || {
                    io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!("odd line in numa_maps: {}", line.escape_ascii()),
                    )
                };
                return parse(&line).ok_or_else(odd);
            } else {
                line.clear();
            }
        }
    }
}

/// Bytes per node of one line. `None` if a count is not a number.
fn parse(line: &[u8]) -> Option<Vec<(NodeId, u64)>> {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<u64>().ok();
    let mut pages = Vec::new();
    let mut page_size = rustix::param::page_size() as u64;
    for field in line.split(u8::is_ascii_whitespace) {
        // The kernel escapes spaces in a file name; the rest may look like a count.
        if field.starts_with(b"file=") {
            continue;
        }
        let Some(equals) = field.iter().position(|b| *b == b'=') else { continue };
        let (key, value) = (&field[..equals], &field[equals + 1..]);
        if key == b"kernelpagesize_kB" {
            page_size = number(value)?.checked_mul(1024)?;
        } else if let Some(node) = key.strip_prefix(b"N") {
            pages.push((NodeId(u32::try_from(number(node)?).ok()?), number(value)?));
        }
    }
    pages.into_iter().map(|(node, n)| Some((node, n.checked_mul(page_size)?))).collect()
}

/// The node of the page at an address; `None` if the page is not in our page table.
pub fn page(address: usize) -> Option<NodeId> {
    match pages::nodes(&[address]) {
        Ok(mut nodes) => nodes.next().flatten(),
        // A kernel without NUMA.
        Err(error) => (error.raw_os_error() == Some(libc::ENOSYS)).then_some(NodeId(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(line: &str) -> Option<Vec<(u32, u64)>> {
        Some(parse(line.as_bytes())?.into_iter().map(|(n, b)| (n.0, b)).collect())
    }

    #[test]
    fn a_line_gives_bytes_per_node() {
        let line = "7fc378400000 default file=/data/kv mapped=16384 active=0 N0=16000 N8=384 kernelpagesize_kB=4\n";
        assert_eq!(nodes(line), Some(vec![(0, 16_000 * 4096), (8, 384 * 4096)]));
        // Nothing entered, or huge pages.
        assert_eq!(nodes("7fc378400000 default file=/data/kv\n"), Some(vec![]));
        assert_eq!(nodes("7f00 default file=/h huge dirty=3 N1=3 kernelpagesize_kB=2048\n"), Some(vec![(1, 3 << 21)]));
    }

    #[test]
    fn a_file_name_is_not_a_count() {
        assert_eq!(nodes("7f00 default file=N0=77 mapped=1 N1=1 kernelpagesize_kB=4"), Some(vec![(1, 4096)]));
        assert_eq!(nodes("7f00 default file=/x N0=many"), None);
        assert_eq!(nodes("7f00 default N0=18446744073709551615 kernelpagesize_kB=4"), None);
    }

    #[test]
    fn the_whole_address_identifies_the_line() {
        let maps = "7f00 default N0=1\n7f0000 default N0=2\n7f000 default N0=3\n";
        let get = |start| find(maps.as_bytes(), start).map(|n| n[0].1 / rustix::param::page_size() as u64);
        assert_eq!(get(0x7f000).unwrap(), 3);
        assert_eq!(get(0x7f00).unwrap(), 1);
        assert!(get(0x7f).unwrap_err().to_string().contains("no mapping at 0x7f"));
    }
}
