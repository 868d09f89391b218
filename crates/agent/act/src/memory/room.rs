//! The room for a process's memory on a node.
//!
//! The kernel makes room for pages that are moved as for new ones: it takes free memory first, then
//! drops file pages that nobody has used for long (`Inactive(file)`). What is in use it does not
//! count on.
//!
//! **Limits.** Dirty file pages are counted, although they must be written before they can be
//! dropped.

use std::path::Path;

use topology::NodeId;

/// Bytes that a node can take; `None` where sysfs does not tell.
pub fn room(sys_root: &Path, node: NodeId) -> Option<u64> {
    let text = std::fs::read_to_string(sys_root.join(format!("devices/system/node/node{node}/meminfo"))).ok()?;
    parse(&text)
}

/// Sums lines such as `Node 1 MemFree:  65536 kB`.
fn parse(meminfo: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.split_once(name))?;
        line.1.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    field(" MemFree:")?.checked_add(field(" Inactive(file):")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_and_unused_file_pages_are_room() {
        let text = "Node 0 MemTotal: 900 kB\nNode 0 MemFree:   10 kB\nNode 0 Inactive(anon): 4 kB\nNode 0 Inactive(file): 5 kB\n";
        assert_eq!(parse(text), Some(15 * 1024));
        assert_eq!(parse("Node 0 MemFree: many kB\nNode 0 Inactive(file): 5 kB"), None);
        assert_eq!(parse("Node 0 MemFree: 1 kB"), None);
    }
}
