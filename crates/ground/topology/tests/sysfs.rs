//! Machines of many shapes, whole and damaged, read from directories in the kernel's formats.
//!
//! `tests/fixtures` holds each machine as files, as `homenode nodes --capture` writes it. Tests of
//! other crates use them, too.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use topology::config::NodeConfig;
use topology::{CpuSet, MemoryKind, NodeId, Region, TierSource, Topology, capture, sysfs};

const GIB: u64 = 1 << 30;

/// The directory of a machine.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The names of all machines.
fn all() -> impl Iterator<Item = String> {
    fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap())
}

/// Copies a machine to a directory, with links as links.
fn copy(machine: &str, to: &Path) {
    assert!(Command::new("cp").arg("-rT").arg(fixture(machine)).arg(to).status().unwrap().success());
}

/// A copy of a machine, with these files more.
fn with(machine: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(machine, dir.path());
    for (file, text) in files {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn read(name: &str) -> Topology {
    sysfs::read(&fixture(name)).unwrap()
}

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// (id, online CPUs, GiB, kind) of each node.
fn shape(machine: &Topology) -> Vec<(u32, String, u64, MemoryKind)> {
    machine.nodes.iter().map(|n| (n.id.0, n.cpus.to_string(), n.memory_bytes / GIB, n.memory)).collect()
}

fn distances(machine: &Topology) -> Vec<Vec<u32>> {
    let ids: Vec<_> = machine.nodes.iter().map(|n| n.id).collect();
    ids.iter().map(|&a| ids.iter().map(|&b| machine.distance(a, b).unwrap()).collect()).collect()
}

/// Every file and link below a directory, with its text or target.
fn tree(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap().file_type();
            let below = path.strip_prefix(dir).unwrap().to_owned();
            if kind.is_symlink() {
                found.insert(below, fs::read_link(&path).unwrap().display().to_string());
            } else if kind.is_dir() {
                todo.push(path);
            } else {
                found.insert(below, fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn one_node() {
    let machine = read("one-node");
    assert_eq!(shape(&machine), [(0, "0-7".into(), 16, MemoryKind::Dram)]);
    assert_eq!(distances(&machine), [[10]]);
    assert_eq!(machine.regions, []);
}

/// It has no directory of nodes.
#[test]
fn a_kernel_without_numa_is_one_node() {
    let machine = read("no-numa");
    assert_eq!(shape(&machine), [(0, "0-2".into(), 0, MemoryKind::Dram)]);
    // Three of four blocks of 0x8000000 bytes are online.
    assert_eq!(machine.nodes[0].memory_bytes, 3 * 134_217_728);
    assert_eq!(machine.nodes[0].offline_cpus, cpus("3"));
    assert_eq!(distances(&machine), [[10]]);
}

#[test]
fn free_memory_is_read_where_the_kernel_shows_it() {
    let free = |name| sysfs::free_memory(&fixture(name), &read(name));
    assert_eq!(free("memory-less"), [(NodeId(0), 16 * GIB), (NodeId(1), 0)].into());
    assert!(free("no-numa").is_empty());
}

#[test]
fn two_sockets() {
    let machine = read("two-sockets");
    let expected = [(0, "0-7,16-23".into(), 64, MemoryKind::Dram), (1, "8-15,24-31".into(), 64, MemoryKind::Dram)];
    assert_eq!(shape(&machine), expected);
    assert_eq!(distances(&machine), [[10, 21], [21, 10]]);
    assert_eq!(machine.node_of_cpu(24), Some(NodeId(1)));
    assert_eq!(machine.node_of_cpu(32), None);
    assert_eq!(machine.cpus(), cpus("0-31"));
}

#[test]
fn four_sockets_in_a_ring() {
    let machine = read("four-sockets-ring");
    assert_eq!(distances(&machine), [[10, 16, 22, 16], [16, 10, 16, 22], [22, 16, 10, 16], [16, 22, 16, 10]]);
    assert!(machine.nodes.iter().all(|n| n.cpus.len() == 8 && n.memory_bytes == 128 * GIB));
}

#[test]
fn epyc_with_four_nodes_per_socket() {
    let machine = read("epyc-nps4");
    assert_eq!(machine.nodes.len(), 8);
    assert_eq!(machine.nodes[7].cpus, cpus("112-127,240-255"));
    for (a, row) in distances(&machine).iter().enumerate() {
        for (b, distance) in row.iter().enumerate() {
            let expected = if a == b {
                10
            } else if a / 4 == b / 4 {
                12
            } else {
                32
            };
            assert_eq!(*distance, expected, "{a} {b}");
        }
    }
}

/// They interleave CPU numbers inside a socket, so lists are long and not ranges.
#[test]
fn sub_numa_clusters() {
    let machine = read("sub-numa-clusters");
    assert_eq!(machine.nodes[0].cpus, cpus("0-3,7-9,13-15,20"));
    assert_eq!(machine.node_of_cpu(20), Some(NodeId(0)));
    assert_eq!(machine.node_of_cpu(19), Some(NodeId(1)));
    assert_eq!(machine.distance(NodeId(2), NodeId(3)), Some(11));
    assert_eq!(machine.cpus().len(), 41);
}

#[test]
fn a_cxl_node_has_memory_and_no_cpus() {
    let machine = read("cxl-cpuless");
    assert_eq!(shape(&machine)[2], (2, String::new(), 256, MemoryKind::CpuLess));
    assert_eq!(machine.distance(NodeId(2), NodeId(1)), Some(24));
    // region0 is onlined as node 2; region1 has no DAX device yet, its memory device is near node
    // 1; region2 is not set up.
    let region = |name: &str, node, start, size| Region {
        name: name.into(),
        node: Some(NodeId(node)),
        start: Some(start),
        size,
        devices: Vec::new(),
    };
    let expected =
        [region("cxl-region0", 2, 0x40_8000_0000, 256 * GIB), region("cxl-region1", 1, 0x80_8000_0000, 256 << 20)];
    assert_eq!(machine.regions, expected);
}

/// The tier of each node, and what tells it, of the machine with CXL memory and these files more.
fn tiers(more: &[(&str, &str)]) -> Vec<(u32, TierSource)> {
    let dir = with("cxl-cpuless", more);
    let tier = |node: topology::Node| node.tier.map(|tier| (tier.rank, tier.from)).unwrap();
    sysfs::read(dir.path()).unwrap().nodes.into_iter().map(tier).collect()
}

/// The kernel's tiers said nothing on real machines with CXL: all nodes were in one.
#[test]
fn tiers_come_from_what_speaks_of_all_nodes() {
    const FIRST: &str = "devices/virtual/memory_tiering/memory_tier4/nodelist";
    const SECOND: &str = "devices/virtual/memory_tiering/memory_tier22/nodelist";
    const LATENCY: [&str; 3] = [
        "devices/system/node/node0/access1/initiators/read_latency",
        "devices/system/node/node1/access0/initiators/read_latency",
        "devices/system/node/node2/access1/initiators/read_latency",
    ];
    const BANDWIDTH: [&str; 2] = [
        "devices/system/node/node0/access1/initiators/read_bandwidth",
        "devices/system/node/node2/access1/initiators/read_bandwidth",
    ];
    use TierSource::{Cpus, Firmware, Kernel};
    assert_eq!(tiers(&[]), [(0, Cpus), (0, Cpus), (1, Cpus)]);
    assert_eq!(tiers(&[(FIRST, "0-2\n")]), [(0, Cpus), (0, Cpus), (1, Cpus)]);
    assert_eq!(tiers(&[(FIRST, "0-1\n"), (SECOND, "2\n")]), [(0, Kernel), (0, Kernel), (1, Kernel)]);
    let latency = |of: [&'static str; 3]| [(LATENCY[0], of[0]), (LATENCY[1], of[1]), (LATENCY[2], of[2])];
    let slow = [(0, Firmware), (0, Firmware), (1, Firmware)];
    assert_eq!(tiers(&[&latency(["80\n", "85\n", "250\n"])[..], &[(FIRST, "0-2\n")]].concat()), slow);
    // High-bandwidth memory has no CPUs, and is no slower.
    assert_eq!(tiers(&latency(["110\n", "110\n", "120\n"]))[2], (0, Firmware));
    assert_eq!(tiers(&[(BANDWIDTH[0], "131000\n"), (BANDWIDTH[1], "460000\n")])[2], (0, Cpus));
    // 0 is unknown.
    assert_eq!(tiers(&latency(["80\n", "85\n", "0\n"]))[2], (1, Cpus));
}

/// As POWER numbers its sockets.
#[test]
fn ids_can_be_sparse() {
    let machine = read("sparse-ids");
    assert_eq!(machine.nodes.iter().map(|n| n.id.0).collect::<Vec<_>>(), [0, 8]);
    assert_eq!(machine.distance(NodeId(0), NodeId(8)), Some(40));
    assert_eq!(machine.distance(NodeId(8), NodeId(8)), Some(10));
    assert_eq!(machine.distance(NodeId(0), NodeId(1)), None);
    assert!(machine.node(NodeId(1)).is_none());
    assert_eq!(machine.node_of_cpu(64), Some(NodeId(8)));
}

#[test]
fn a_node_without_memory() {
    let machine = read("memory-less");
    assert_eq!(shape(&machine)[1], (1, "4-7".into(), 0, MemoryKind::None));
}

#[test]
fn persistent_memory_has_a_node_a_range_and_devices() {
    let machine = read("two-sockets-pmem");
    let size = 135_291_469_824;
    let expected = [
        Region {
            name: "region0".into(),
            node: Some(NodeId(0)),
            start: Some(0x18_8000_0000),
            size,
            devices: vec!["pmem0".into()],
        },
        Region {
            name: "region1".into(),
            node: Some(NodeId(1)),
            start: Some(0x38_0000_0000),
            size,
            devices: vec!["pmem1.1s".into(), "pmem1".into()],
        },
        // Its firmware says no node, and its range only root may read.
        Region { name: "region10".into(), node: None, start: None, size: 256 << 20, devices: vec![] },
    ];
    assert_eq!(machine.regions, expected);
}

#[test]
fn offline_cpus_belong_to_their_node() {
    let machine = read("offline-cpus");
    let nodes: Vec<_> = machine.nodes.iter().map(|n| (n.cpus.clone(), n.offline_cpus.clone(), n.memory)).collect();
    // All CPUs of the second are offline: it still is a node with CPUs.
    let expected = [(cpus("0-2"), cpus("3"), MemoryKind::Dram), (cpus(""), cpus("4-5"), MemoryKind::Dram)];
    assert_eq!(nodes, expected);
    assert_eq!(machine.node_of_cpu(4), None);
}

/// The error of reading a copy of `two-sockets-pmem` with one file replaced or removed.
fn damaged(file: &str, text: Option<&[u8]>) -> String {
    let dir = with("two-sockets-pmem", &[]);
    let path = dir.path().join(file);
    match text {
        Some(text) => fs::write(&path, text).unwrap(),
        None => fs::remove_file(&path).unwrap(),
    }
    let error = sysfs::read(dir.path()).unwrap_err().to_string();
    assert!(error.contains(&path.display().to_string()) || error.contains("node/online"), "names no file: {error}");
    error
}

#[test]
fn a_missing_file_is_named_with_its_errno() {
    for file in [
        "devices/system/cpu/online",
        "devices/system/node/online",
        "devices/system/node/node1/cpulist",
        "devices/system/node/node0/distance",
        "devices/system/node/node1/meminfo",
    ] {
        let error = damaged(file, None);
        assert!(error.contains("No such file or directory (os error 2)"), "{error}");
    }
}

#[test]
fn errors_show_text_that_no_kernel_prints() {
    let node1 = |file: &str| format!("devices/system/node/node1/{file}");
    for (file, text, expected) in [
        (node1("distance"), "21\n", "`21` has 1 distances for 2 online nodes"),
        (node1("distance"), "21 10 21\n", "`21 10 21` has 3 distances for 2 online nodes"),
        (node1("distance"), "21 ten\n", "has `ten`, not a distance"),
        (node1("distance"), "21 99999999999\n", "has `99999999999`, not a distance"),
        (node1("cpulist"), "sixteen\n", "`sixteen` is not a list"),
        (node1("cpulist"), "16-4000000000\n", "`16-4000000000` is not a list"),
        (node1("cpulist"), "0-31\n", "`0-31` has CPU 0, as has node 0"),
        (node1("meminfo"), "", "`` has no line with MemTotal"),
        (node1("meminfo"), "Node 1 MemTotal: lots kB\n", "`Node 1 MemTotal: lots kB` is not a size"),
        (node1("meminfo"), "Node 1 MemTotal: 18446744073709551615 kB\n", "is not a size in kB"),
        (node1("meminfo"), "Node 1 MemTotal: 64 GB\n", "is not a size in kB"),
        ("devices/system/node/online".into(), "\n", "`` names no node"),
        ("devices/system/node/online".into(), "0-\n", "`0-` is not a list"),
        ("devices/system/cpu/online".into(), "\n", "`` names no CPU"),
        ("devices/system/cpu/online".into(), "64\n", "`0-1` are nodes without any online CPU"),
    ] {
        let error = damaged(&file, Some(text.as_bytes()));
        assert!(error.contains(expected), "{file}: {error}");
    }
    let long = damaged("devices/system/node/node0/cpulist", Some("x".repeat(5000).as_bytes()));
    assert!(long.contains('…') && long.len() < 400, "{long}");
    assert!(damaged("devices/system/node/node0/cpulist", Some(b"\xff\xfe\0")).contains("is not text"));
}

#[test]
fn a_node_without_its_directory_is_an_error() {
    let dir = with("two-sockets", &[]);
    fs::remove_dir_all(dir.path().join("devices/system/node/node1")).unwrap();
    let error = sysfs::read(dir.path()).unwrap_err().to_string();
    assert!(error.contains("node1/cpulist: No such file or directory (os error 2)"), "{error}");
}

#[test]
fn a_missing_root_is_named() {
    let error = sysfs::read(Path::new("/nonexistent/sys")).unwrap_err().to_string();
    assert_eq!(error, "cannot read /nonexistent/sys/devices/system/cpu/online: No such file or directory (os error 2)");
}

/// Runs `f` as an ordinary user, in a thread that gives up root.
fn unprivileged<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            let nobody = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        f()
    })
    .join()
    .unwrap()
}

/// A machine on disk with a `file` that only root may read.
fn closed(machine: &str, file: &str) -> tempfile::TempDir {
    let dir = with(machine, &[]);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(dir.path().join(file), fs::Permissions::from_mode(0o000)).unwrap();
    dir
}

#[test]
fn an_unreadable_file_is_named_with_its_errno() {
    for file in ["devices/system/node/node1", "devices/system/node/node1/meminfo"] {
        let dir = closed("two-sockets-pmem", file);
        let root = dir.path().to_owned();
        let error = unprivileged(move || sysfs::read(&root)).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains("Permission denied (os error 13)"), "{error}");
        fs::set_permissions(dir.path().join(file), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn a_physical_range_that_only_root_may_read_is_unknown() {
    let dir = closed("two-sockets-pmem", "bus/nd/devices/region0/resource");
    let root = dir.path().to_owned();
    let machine = unprivileged(move || sysfs::read(&root)).unwrap();
    assert_eq!((machine.regions[0].start, machine.regions[0].node), (None, Some(NodeId(0))));
    assert_eq!(machine.regions[1].start, Some(0x38_0000_0000));
}

#[test]
fn a_capture_of_a_capture_is_the_same_machine() {
    for name in all() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("capture");
        let captured = capture::capture(&fixture(&name), &to).unwrap();
        assert_eq!(captured.topology, read(&name));
        assert_eq!(sysfs::read(&to).unwrap(), captured.topology, "{name}");
        assert_eq!(captured.files, tree(&to).len());
    }
}

#[test]
fn this_machine_is_captured_without_privileges() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let to = dir.path().join("capture");
    let captured = unprivileged(move || capture::capture(Path::new("/sys"), &to)).unwrap();
    assert_eq!(sysfs::read(&captured.dir).unwrap(), captured.topology);
    assert!(!captured.topology.cpus().is_empty());
}

#[test]
fn a_capture_never_overwrites_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let sys = fixture("two-sockets");
    fs::write(dir.path().join("mine"), "").unwrap();
    let error = capture::capture(&sys, dir.path()).unwrap_err().to_string();
    assert!(error.contains("is not empty"), "{error}");
    assert_eq!(tree(dir.path()).len(), 1);

    let error = capture::capture(&sys, &dir.path().join("mine")).unwrap_err().to_string();
    assert!(error.contains("mine") && error.contains("os error 20"), "{error}");
    let error = capture::capture(&sys, &dir.path().join("no/such/place")).unwrap_err().to_string();
    assert!(error.contains("os error 2"), "{error}");

    // An empty directory is accepted. If the machine cannot be read, none is created.
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    capture::capture(&sys, &empty).unwrap();
    let absent = dir.path().join("absent");
    capture::capture(&dir.path().join("mine"), &absent).unwrap_err();
    assert!(!absent.exists());
}

#[test]
fn a_capture_that_cannot_be_written_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    fs::set_permissions(&empty, fs::Permissions::from_mode(0o555)).unwrap();
    // The fixtures may be in a directory that other users cannot enter.
    let sys = dir.path().join("sys");
    copy("two-sockets", &sys);
    let to = empty.clone();
    let error = unprivileged(move || capture::capture(&sys, &to)).unwrap_err().to_string();
    assert!(error.contains("cannot write") && error.contains("os error 13"), "{error}");
    assert!(tree(&empty).is_empty());
}

#[test]
fn configured_bandwidth_reaches_its_node_and_no_other() {
    let mut machine = read("two-sockets");
    let config = NodeConfig { read_bw_max: Some(6.8e9), write_bw_max: None, ..NodeConfig::default() };
    machine.configure(&BTreeMap::from([(NodeId(1), config)])).unwrap();
    assert_eq!(machine.nodes[1].read_bw_max, Some(6.8e9));
    assert_eq!(machine.nodes[1].write_bw_max, None);
    assert_eq!(machine.nodes[0].read_bw_max, None);
}

#[test]
fn the_firmware_tells_bandwidth_as_the_nearest_cpu_gets_it() {
    // Node 0 as a kernel before 5.11 shows it; node 1 has a device nearer than any CPU.
    let dir = with(
        "two-sockets",
        &[
            ("devices/system/node/node0/access0/initiators/read_bandwidth", "131072\n"),
            ("devices/system/node/node0/access0/initiators/write_bandwidth", "65536\n"),
            ("devices/system/node/node1/access0/initiators/read_bandwidth", "999999\n"),
            ("devices/system/node/node1/access1/initiators/read_bandwidth", "6800\n"),
            ("devices/system/node/node1/access1/initiators/write_bandwidth", "0\n"),
        ],
    );
    let mut machine = sysfs::read(dir.path()).unwrap();
    let told: Vec<_> = machine.nodes.iter().map(|n| (n.read_bw_max, n.write_bw_max)).collect();
    assert_eq!(told, [(Some(131_072e6), Some(65_536e6)), (Some(6.8e9), None)]);
    // What the user says comes first.
    let config = NodeConfig { read_bw_max: Some(5e9), write_bw_max: None, ..NodeConfig::default() };
    machine.configure(&BTreeMap::from([(NodeId(0), config)])).unwrap();
    assert_eq!((machine.nodes[0].read_bw_max, machine.nodes[0].write_bw_max), (Some(5e9), Some(65_536e6)));
    // A capture has these files, too.
    let copy = tempfile::tempdir().unwrap();
    assert_eq!(capture::capture(dir.path(), copy.path()).unwrap().topology.nodes[1].read_bw_max, Some(6.8e9));
}

/// One of them, empty on an odd machine, ended every command.
#[test]
fn an_odd_optional_attribute_is_unknown() {
    const MACHINE: &str = "cxl-cpuless";
    const OPTIONAL: [&str; 12] = [
        "devices/system/node/node0/access0/initiators/read_bandwidth",
        "devices/system/node/node0/access1/initiators/write_bandwidth",
        "devices/system/node/node2/access1/initiators/read_latency",
        "devices/virtual/memory_tiering/memory_tier4/nodelist",
        "bus/dax/devices/dax7.0/target_node",
        "bus/cxl/devices/region0/size",
        "bus/cxl/devices/region0/resource",
        "bus/cxl/devices/region0/dax_region0/dax0.0/target_node",
        "bus/cxl/devices/region1/target0",
        "bus/nd/devices/region3/size",
        "bus/nd/devices/region3/resource",
        "bus/nd/devices/region3/numa_node",
    ];
    let whole = read(MACHINE);
    for file in OPTIONAL {
        for text in ["", "\n", "fast\n", "-2\n", "99999999999999999999\n", "0x\n", "\0\n"] {
            let dir = with(MACHINE, &[(file, text)]);
            let machine = sysfs::read(dir.path()).unwrap_or_else(|e| panic!("{file} `{text}`: {e}"));
            assert_eq!(machine.nodes.len(), whole.nodes.len(), "{file} `{text}`");
            assert!(machine.nodes.iter().all(|n| n.read_bw_max.is_none()), "{file} `{text}`");
        }
        // What is refused, and what is a directory.
        let dir = with(MACHINE, &[(file, "1\n")]);
        let path = dir.path().join(file);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        sysfs::read(dir.path()).unwrap_or_else(|e| panic!("{file}: {e}"));
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "1\n").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).unwrap();
        let root = dir.path().to_owned();
        unprivileged(move || sysfs::read(&root)).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
    let blocks = with("no-numa", &[("devices/system/memory/block_size_bytes", "many\n")]);
    assert_eq!(sysfs::read(blocks.path()).unwrap().nodes[0].memory_bytes, 0);
}

/// On GH200, GB200, MI300A and POWER9 a node without CPUs is a GPU's memory. It was taken for slow
/// memory, to which cached files may go.
#[test]
fn memory_without_cpus_is_a_tier_only_if_something_names_it() {
    const DAX_0: &str = "bus/cxl/devices/region0/dax_region0/dax0.0/target_node";
    let kind = |machine: &Topology| (machine.nodes[2].memory, machine.nodes[2].tier.map(|tier| (tier.rank, tier.from)));
    let told = |more: &[(&str, &str)]| sysfs::read(with("cxl-cpuless", more).path()).unwrap();
    let slow = (MemoryKind::CpuLess, Some((1, TierSource::Cpus)));
    assert_eq!(kind(&told(&[])), slow);
    let nobodys = told(&[(DAX_0, "7\n")]);
    assert_eq!(kind(&nobodys), (MemoryKind::Unknown, None));
    assert_eq!((nobodys.of_unknown_kind(), nobodys.has_slow_memory()), (vec![NodeId(2)], false));
    assert_eq!(nobodys.above_the_slowest(), []);
    for file in ["bus/dax/devices/dax1.0/target_node", "bus/nd/devices/region3/target_node"] {
        assert_eq!(kind(&told(&[(DAX_0, "7\n"), (file, "2\n")])), slow, "{file}");
    }
    // Firmware that promises it a latency does not name it.
    let latency = |node: u32| format!("devices/system/node/node{node}/access1/initiators/read_latency");
    let (zero, one, two) = (latency(0), latency(1), latency(2));
    let more = [(DAX_0, "7\n"), (zero.as_str(), "80\n"), (one.as_str(), "85\n"), (two.as_str(), "400\n")];
    assert_eq!(kind(&told(&more)), (MemoryKind::Unknown, None));
    // The user names it, or names what a device names as not for files.
    let says =
        |file_data| BTreeMap::from([(NodeId(2), NodeConfig { file_data: Some(file_data), ..NodeConfig::default() })]);
    let mut named = nobodys.clone();
    named.configure(&says(true)).unwrap();
    assert_eq!(kind(&named), (MemoryKind::CpuLess, Some((1, TierSource::Configuration))));
    assert!(named.has_slow_memory());
    named.configure(&says(false)).unwrap();
    assert_eq!(named, nobodys);
    let mut cpus = read("two-sockets");
    cpus.configure(&BTreeMap::from([(NodeId(1), says(false).into_values().next().unwrap())])).unwrap();
    assert_eq!(cpus, read("two-sockets"), "it says nothing of nodes with CPUs");
}

#[test]
fn the_outline_changes_when_cpus_or_nodes_come_or_go() {
    let dir = with("two-sockets", &[]);
    let before = sysfs::outline(dir.path()).unwrap();
    assert_eq!(sysfs::outline(dir.path()).unwrap(), before);
    for file in ["devices/system/cpu/online", "devices/system/node/online", "devices/system/node/has_cpu"] {
        let path = dir.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, "0\n").unwrap();
        assert_ne!(sysfs::outline(dir.path()).unwrap(), before, "{file}");
        fs::write(&path, text).unwrap();
    }
    // A kernel without NUMA has the first file only.
    sysfs::outline(&fixture("no-numa")).unwrap();
}

#[test]
fn a_wrong_configuration_changes_nothing() {
    let before = read("sparse-ids");
    let good = NodeConfig { read_bw_max: Some(1e9), write_bw_max: Some(1e9), ..NodeConfig::default() };
    for (node, config, expected) in [
        (1, good.clone(), "[node.1] in the configuration: this machine has no node 1, only node 0, 8"),
        (
            8,
            NodeConfig { write_bw_max: Some(-1.0), ..good.clone() },
            "write_bw_max of node 8: -1 is not a positive number of bytes per second",
        ),
        (
            8,
            NodeConfig { read_bw_max: Some(f64::NAN), ..good.clone() },
            "read_bw_max of node 8: NaN is not a positive number of bytes per second",
        ),
    ] {
        let mut machine = before.clone();
        let nodes = BTreeMap::from([(NodeId(0), good.clone()), (NodeId(node), config)]);
        assert_eq!(machine.configure(&nodes).unwrap_err().to_string(), expected);
        assert_eq!(machine, before);
    }
}

#[test]
fn network_devices_have_a_node_where_the_firmware_says_one() {
    let dir = tempfile::tempdir().unwrap();
    for (name, node) in [("eth1", Some("1\n")), ("eth0", Some("0\n")), ("old", Some("-1\n")), ("lo", None)] {
        let device = dir.path().join("class/net").join(name);
        fs::create_dir_all(&device).unwrap();
        if let Some(node) = node {
            fs::create_dir(device.join("device")).unwrap();
            fs::write(device.join("device/numa_node"), node).unwrap();
        }
    }
    assert_eq!(sysfs::network_devices(dir.path()), [("eth0".to_owned(), NodeId(0)), ("eth1".to_owned(), NodeId(1))]);
    assert_eq!(sysfs::network_devices(&dir.path().join("none")), []);
}

#[test]
fn a_topology_survives_json() {
    for name in all() {
        let machine = read(&name);
        let json = serde_json::to_string(&machine).unwrap();
        assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), machine);
    }
}
