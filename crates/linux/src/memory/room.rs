//! The room for memory on a node.
//!
//! The kernel makes room for pages that are moved as for new ones: it takes free memory first, then
//! drops file pages that nobody has used for long (`Inactive(file)`). What is in use it does not
//! count on.
//!
//! **Limits.** Dirty file pages are counted, although they must be written before they can be
//! dropped.

use std::path::Path;

use topology::{NodeId, sysfs};

/// Bytes that a node can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free memory.
    pub free: u64,
    /// File pages that nobody has used for long.
    pub unused: u64,
}

/// The room on a node; `None` where sysfs does not tell.
pub fn room(sys_root: &Path, node: NodeId) -> Option<Room> {
    parse(&std::fs::read_to_string(sys_root.join(format!("devices/system/node/node{node}/meminfo"))).ok()?)
}

/// From lines such as `Node 1 MemFree:  65536 kB`.
fn parse(meminfo: &str) -> Option<Room> {
    let field = |name: &str| sysfs::bytes(meminfo.lines().find_map(|line| line.split_once(name))?.1);
    Some(Room { free: field(" MemFree:")?, unused: field(" Inactive(file):")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_and_unused_file_pages_are_room() {
        let text = "Node 0 MemTotal: 900 kB\nNode 0 MemFree:   10 kB\nNode 0 Inactive(anon): 4 kB\nNode 0 Inactive(file): 5 kB\n";
        assert_eq!(parse(text), Some(Room { free: 10 * 1024, unused: 5 * 1024 }));
        assert_eq!(parse("Node 0 MemFree: many kB\nNode 0 Inactive(file): 5 kB"), None);
        assert_eq!(parse("Node 0 MemFree: 1 kB"), None);
    }
}
