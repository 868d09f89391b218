//! Writes machines as sysfs directories, in the kernel's own formats.
//!
//! `tests/fixtures/NAME` holds each of [`all`] as files, so that other crates and people can use
//! them (`HOMENODE_WRITE_FIXTURES=1 cargo test -p homenode-topology --test sysfs` writes them
//! anew); a test checks that they are what this module says.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A machine to write.
#[derive(Default)]
pub struct Machine {
    pub name: &'static str,
    pub nodes: Vec<Node>,
    /// CPUs online; all of the nodes' CPUs where empty.
    pub online: &'static str,
    pub present: &'static str,
    /// Files besides those of nodes: path below the root, text.
    pub files: Vec<(&'static str, &'static str)>,
}

/// A node to write.
pub struct Node {
    pub id: u32,
    pub cpulist: &'static str,
    pub offline: &'static [u32],
    pub mem_kib: u64,
    pub distance: &'static str,
}

const GIB: u64 = 1 << 20; // in KiB

fn node(id: u32, cpulist: &'static str, gib: u64, distance: &'static str) -> Node {
    Node { id, cpulist, offline: &[], mem_kib: gib * GIB, distance }
}

impl Machine {
    /// Writes the machine into `dir`, which must not exist.
    pub fn write(&self, dir: &Path) {
        let put = |file: String, text: &str| {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (list, text) in [("online", self.online), ("present", self.present), ("possible", self.present)] {
            put(format!("devices/system/cpu/{list}"), &format!("{text}\n"));
        }
        for (file, text) in &self.files {
            put((*file).to_owned(), text);
        }
        if self.nodes.is_empty() {
            return;
        }
        let ids = |keep: fn(&Node) -> bool| {
            let ids: topology::CpuSet = self.nodes.iter().filter(|n| keep(n)).map(|n| n.id).collect();
            format!("{ids}\n")
        };
        put("devices/system/node/online".into(), &ids(|_| true));
        put("devices/system/node/possible".into(), &ids(|_| true));
        put("devices/system/node/has_cpu".into(), &ids(|n| !n.cpulist.is_empty()));
        put("devices/system/node/has_memory".into(), &ids(|n| n.mem_kib > 0));
        for n in &self.nodes {
            let dir_of_node = format!("devices/system/node/node{}", n.id);
            put(format!("{dir_of_node}/cpulist"), &format!("{}\n", n.cpulist));
            put(format!("{dir_of_node}/distance"), &format!("{}\n", n.distance));
            put(format!("{dir_of_node}/meminfo"), &meminfo(n));
            for cpu in n.offline {
                symlink(format!("../../cpu/cpu{cpu}"), dir.join(format!("{dir_of_node}/cpu{cpu}"))).unwrap();
            }
        }
    }
}

fn meminfo(n: &Node) -> String {
    let free = n.mem_kib / 2;
    [("MemTotal:", n.mem_kib), ("MemFree:", free), ("MemUsed:", n.mem_kib - free), ("FilePages:", n.mem_kib / 4)]
        .iter()
        .map(|(key, kib)| format!("Node {} {key:<15}{kib:>8} kB\n", n.id))
        .collect()
}

/// The directory of a machine that is kept as files.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Every machine.
pub fn all() -> Vec<Machine> {
    vec![
        Machine {
            name: "one-node",
            nodes: vec![node(0, "0-7", 16, "10")],
            online: "0-7",
            present: "0-7",
            ..Machine::default()
        },
        // A kernel built without NUMA: no node directory; memory in blocks of 128 MiB, one of four
        // offline.
        Machine {
            name: "no-numa",
            online: "0-2",
            present: "0-3",
            files: vec![
                ("devices/system/memory/block_size_bytes", "8000000\n"),
                ("devices/system/memory/memory0/state", "online\n"),
                ("devices/system/memory/memory1/state", "online\n"),
                ("devices/system/memory/memory2/state", "offline\n"),
                ("devices/system/memory/memory32/state", "online\n"),
            ],
            ..Machine::default()
        },
        // Two sockets of 8 cores with two hardware threads each, numbered as firmware likes to.
        Machine {
            name: "two-sockets",
            nodes: vec![node(0, "0-7,16-23", 64, "10 21"), node(1, "8-15,24-31", 64, "21 10")],
            online: "0-31",
            present: "0-31",
            ..Machine::default()
        },
        Machine {
            name: "four-sockets-ring",
            nodes: vec![
                node(0, "0-7", 128, "10 16 22 16"),
                node(1, "8-15", 128, "16 10 16 22"),
                node(2, "16-23", 128, "22 16 10 16"),
                node(3, "24-31", 128, "16 22 16 10"),
            ],
            online: "0-31",
            present: "0-31",
            ..Machine::default()
        },
        Machine {
            name: "epyc-nps4",
            nodes: vec![
                node(0, "0-15,128-143", 32, "10 12 12 12 32 32 32 32"),
                node(1, "16-31,144-159", 32, "12 10 12 12 32 32 32 32"),
                node(2, "32-47,160-175", 32, "12 12 10 12 32 32 32 32"),
                node(3, "48-63,176-191", 32, "12 12 12 10 32 32 32 32"),
                node(4, "64-79,192-207", 32, "32 32 32 32 10 12 12 12"),
                node(5, "80-95,208-223", 32, "32 32 32 32 12 10 12 12"),
                node(6, "96-111,224-239", 32, "32 32 32 32 12 12 10 12"),
                node(7, "112-127,240-255", 32, "32 32 32 32 12 12 12 10"),
            ],
            online: "0-255",
            present: "0-255",
            ..Machine::default()
        },
        // Sub-NUMA clusters interleave CPU numbers inside a socket, so lists are long and not
        // ranges.
        Machine {
            name: "sub-numa-clusters",
            nodes: vec![
                node(0, "0-3,7-9,13-15,20", 48, "10 11 21 21"),
                node(1, "4-6,10-12,16-19", 48, "11 10 21 21"),
                node(2, "21-24,28-30,34-36", 48, "21 21 10 11"),
                node(3, "25-27,31-33,37-40", 48, "21 21 11 10"),
            ],
            online: "0-40",
            present: "0-40",
            ..Machine::default()
        },
        Machine {
            name: "cxl-cpuless",
            nodes: vec![
                node(0, "0-15", 64, "10 21 14"),
                node(1, "16-31", 64, "21 10 24"),
                node(2, "", 256, "14 24 10"),
            ],
            online: "0-31",
            present: "0-31",
            files: vec![
                // region0 is onlined as node 2; region1 has no DAX device yet, its memory device is
                // near node 1; region2 is not set up.
                ("bus/cxl/devices/region0/resource", "0x4080000000\n"),
                ("bus/cxl/devices/region0/size", "0x4000000000\n"),
                ("bus/cxl/devices/region0/target0", "decoder2.0\n"),
                ("bus/cxl/devices/region0/dax_region0/dax0.0/target_node", "2\n"),
                ("bus/cxl/devices/region1/resource", "0x8080000000\n"),
                ("bus/cxl/devices/region1/size", "0x10000000\n"),
                ("bus/cxl/devices/region1/target0", "decoder3.1\n"),
                ("bus/cxl/devices/endpoint3/uport/numa_node", "1\n"),
                ("bus/cxl/devices/region2/resource", "0xffffffffffffffff\n"),
                ("bus/cxl/devices/region2/size", "0\n"),
                ("bus/cxl/devices/region2/target0", "\n"),
            ],
        },
        // As POWER numbers its sockets.
        Machine {
            name: "sparse-ids",
            nodes: vec![node(0, "0-63", 256, "10 40"), node(8, "64-127", 256, "40 10")],
            online: "0-127",
            present: "0-127",
            ..Machine::default()
        },
        Machine {
            name: "memory-less",
            nodes: vec![node(0, "0-3", 32, "10 20"), node(1, "4-7", 0, "20 10")],
            online: "0-7",
            present: "0-7",
            ..Machine::default()
        },
        Machine {
            name: "two-sockets-pmem",
            nodes: vec![node(0, "0-15", 96, "10 21"), node(1, "16-31", 96, "21 10")],
            online: "0-31",
            present: "0-31",
            files: vec![
                ("bus/nd/devices/region0/numa_node", "0\n"),
                ("bus/nd/devices/region0/resource", "0x1880000000\n"),
                ("bus/nd/devices/region0/size", "135291469824\n"),
                ("bus/nd/devices/region0/pfn0.1/block/pmem0/dev", "259:0\n"),
                ("bus/nd/devices/region1/numa_node", "1\n"),
                ("bus/nd/devices/region1/resource", "0x3800000000\n"),
                ("bus/nd/devices/region1/size", "135291469824\n"),
                ("bus/nd/devices/region1/namespace1.0/block/pmem1/dev", "259:1\n"),
                ("bus/nd/devices/region1/btt1.0/block/pmem1.1s/dev", "259:2\n"),
                // A region whose firmware says no node, and whose range only root may read (no
                // resource file).
                ("bus/nd/devices/region10/numa_node", "-1\n"),
                ("bus/nd/devices/region10/size", "268435456\n"),
            ],
        },
        Machine {
            name: "offline-cpus",
            nodes: vec![
                Node { offline: &[3], ..node(0, "0-2", 8, "10 20") },
                // All of its CPUs are offline: it still is a node with CPUs.
                Node { offline: &[4, 5], ..node(1, "", 8, "20 10") },
            ],
            online: "0-2",
            present: "0-5",
            ..Machine::default()
        },
    ]
}
