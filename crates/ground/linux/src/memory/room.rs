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

use crate::{cpuset, mounts};

/// Bytes that a node can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
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

/// Bytes that the control groups of this process may still take, with the file pages in them that
/// nobody has used for long; `None` where nothing limits them.
pub fn of_group(proc_root: &Path) -> Option<u64> {
    let read = |file: &str| std::fs::read(proc_root.join("self").join(file)).unwrap_or_default();
    let groups = String::from_utf8_lossy(&read("cgroup")).into_owned();
    let table = read("mountinfo");
    let rooms = mounts::list(&table).filter_map(|mount| {
        let (files, line) = match mount.fs_type.as_str() {
            "cgroup2" => (&V2, ""),
            "cgroup" if mount.options.split(',').any(|option| option == "memory") => (&V1, "memory"),
            _ => return None,
        };
        let path = groups.lines().find_map(|group| {
            let (controllers, path) = group.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|controller| controller == line).then_some(path)
        })?;
        let group = cpuset::dir(&mount, path)?;
        let ancestors = group.ancestors().take_while(|dir| dir.starts_with(&mount.point));
        ancestors.filter_map(|dir| of_one_group(dir, files)).min()
    });
    rooms.min()
}

/// Files of a control group: its limits, what it has taken, and the field of memory.stat for file
/// pages that nobody has used for long.
type Files = ([&'static str; 2], &'static str, &'static str);
const V1: Files = (["memory.limit_in_bytes"; 2], "memory.usage_in_bytes", "total_inactive_file ");
const V2: Files = (["memory.max", "memory.high"], "memory.current", "inactive_file ");

fn of_one_group(dir: &Path, (limits, used, unused): &Files) -> Option<u64> {
    let text = |file: &str| std::fs::read_to_string(dir.join(file)).ok();
    let number = |file: &str| text(file)?.trim().parse::<u64>().ok();
    let limit = limits.iter().filter_map(|file| number(file)).min()?;
    let unused = text("memory.stat")?.lines().find_map(|line| line.strip_prefix(unused)?.parse().ok());
    Some(limit.saturating_sub(number(used)?.saturating_sub(unused.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `warm` read 300 MiB into a group of 64 MiB, and found most of it evicted.
    #[test]
    fn the_tightest_of_the_control_groups_limits() {
        const UNLIMITED: &str = "9223372036854771712";
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display().to_string();
        let put = |file: &str, text: &str| {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text.replace("{}", &root)).unwrap();
        };
        assert_eq!(of_group(dir.path()), None);
        put("self/cgroup", "4:memory:/m/x\n1:name=systemd:/a/b\n0::/a/b\n");
        put(
            "self/mountinfo",
            "30 23 0:28 / {}/v2 rw - cgroup2 cgroup2 rw\n31 23 0:29 / {}/v1 rw - cgroup cgroup rw,memory\n",
        );
        assert_eq!(of_group(dir.path()), None);
        for (group, max, high, used, unused) in
            [("v2/a/b", "max", "max", "7", "3"), ("v2/a", "1000", "max", "700", "50")]
        {
            put(&format!("{group}/memory.max"), max);
            put(&format!("{group}/memory.high"), high);
            put(&format!("{group}/memory.current"), used);
            put(&format!("{group}/memory.stat"), &format!("anon 9\nactive_file 8\ninactive_file {unused}\n"));
        }
        assert_eq!(of_group(dir.path()), Some(1000 - 650));
        put("v2/a/b/memory.high", "200\n");
        assert_eq!(of_group(dir.path()), Some(200 - 4));
        for (group, limit, used) in [("v1/m/x", UNLIMITED, "40"), ("v1/m", "100\n", "40\n")] {
            put(&format!("{group}/memory.limit_in_bytes"), limit);
            put(&format!("{group}/memory.usage_in_bytes"), used);
            put(&format!("{group}/memory.stat"), "inactive_file 1\ntotal_inactive_file 30\n");
        }
        assert_eq!(of_group(dir.path()), Some(90));
        // It may have more than its limit, which was lowered.
        put("v1/m/memory.usage_in_bytes", "400\n");
        assert_eq!(of_group(dir.path()), Some(0));
    }

    #[test]
    fn free_memory_and_unused_file_pages_are_room() {
        let text = "Node 0 MemTotal: 900 kB\nNode 0 MemFree:   10 kB\nNode 0 Inactive(anon): 4 kB\nNode 0 Inactive(file): 5 kB\n";
        assert_eq!(parse(text), Some(Room { free: 10 * 1024, unused: 5 * 1024 }));
        assert_eq!(parse("Node 0 MemFree: many kB\nNode 0 Inactive(file): 5 kB"), None);
        assert_eq!(parse("Node 0 MemFree: 1 kB"), None);
    }
}
