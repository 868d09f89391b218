use std::os::unix::fs::symlink;

use super::*;

/// pmem0 on node 0 (raw, with a partition), pmem1 on node 1 (fsdax), pmem9 on no node; dm-0 across
/// both, dm-1 on one, dm-2 across dm-0 and pmem9.
pub fn sys() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for (path, node) in [("ndbus0/region0", "0\n"), ("ndbus0/region1", "1\n"), ("ndbus0/region9", "-1\n")] {
        fs::create_dir_all(root.join("devices").join(path)).unwrap();
        fs::write(root.join("devices").join(path).join("numa_node"), node).unwrap();
    }
    fs::create_dir_all(root.join("dev/block")).unwrap();
    for (number, path, slaves) in [
        ("259:0", "devices/ndbus0/region0/namespace0.0/block/pmem0", &[][..]),
        ("259:1", "devices/ndbus0/region1/pfn1.0/block/pmem1", &[]),
        ("259:2", "devices/ndbus0/region0/namespace0.0/block/pmem0/pmem0p1", &[]),
        ("259:9", "devices/ndbus0/region9/pfn9.0/block/pmem9", &[]),
        ("254:0", "devices/virtual/block/dm-0", &["259:0", "259:1"]),
        ("254:1", "devices/virtual/block/dm-1", &["259:2", "259:0"]),
        ("254:2", "devices/virtual/block/dm-2", &["254:0", "259:9"]),
        ("9:0", "devices/virtual/block/md0", &["259:0", "259:1"]),
        ("8:0", "devices/virtual/block/zram0", &[]),
    ] {
        fs::create_dir_all(root.join(path).join("slaves")).unwrap();
        if path.contains("/dm-") {
            fs::create_dir_all(root.join(path).join("dm")).unwrap();
        }
        symlink(root.join(path), root.join("dev/block").join(number)).unwrap();
        for slave in slaves {
            symlink(root.join("dev/block").join(slave), root.join(path).join("slaves").join(slave)).unwrap();
        }
    }
    dir
}

/// Tables of the devices above, in sectors. On dm-0, pmem1 comes first, from its sector 8 on.
fn table(device: (u32, u32)) -> io::Result<Vec<Target>> {
    let linear = |start, end, below, at| Target { start, end, linear: Some((below, at)) };
    match device {
        (254, 0) => Ok(vec![linear(0, 16, (259, 1), 8), linear(16, 32, (259, 0), 0)]),
        (254, 2) => {
            Ok(vec![linear(0, 8, (259, 9), 0), linear(8, 24, (254, 0), 8), Target { start: 24, end: 40, linear: None }])
        }
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn layout(device: (u32, u32)) -> Layout {
    Layout::read(sys().path(), device, &table).unwrap()
}

#[test]
fn a_device_is_on_the_node_of_its_region() {
    let nodes = |device| layout(device).nodes().into_iter().map(|n| n.map(|n| n.0)).collect::<Vec<_>>();
    assert_eq!(nodes((259, 0)), [Some(0)]);
    assert_eq!(nodes((259, 1)), [Some(1)]);
    assert_eq!(nodes((259, 2)), [Some(0)]);
    assert_eq!(nodes((259, 9)), [None]);
    assert_eq!(nodes((254, 0)), [Some(0), Some(1)]);
    // All parts on one node: no table needed.
    assert_eq!(nodes((254, 1)), [Some(0)]);
    // Not device-mapper: which range is where is not known.
    assert_eq!(nodes((9, 0)), [None]);
    assert_eq!(nodes((8, 0)), [None]);
}

#[test]
fn ranges_are_on_the_nodes_of_their_parts() {
    let parts = |device, start, len| {
        layout(device)
            .split(start * SECTOR, len * SECTOR)
            .map(|(n, node)| (n / SECTOR, node.map(|n| n.0)))
            .collect::<Vec<_>>()
    };
    assert_eq!(parts((254, 0), 0, 32), [(16, Some(1)), (16, Some(0))]);
    assert_eq!(parts((254, 0), 12, 8), [(4, Some(1)), (4, Some(0))]);
    assert_eq!(parts((254, 0), 16, 1), [(1, Some(0))]);
    // Sector 8 of dm-2 is sector 8 of dm-0, which has pmem1 up to its sector 16.
    assert_eq!(parts((254, 2), 0, 40), [(8, None), (8, Some(1)), (8, Some(0)), (16, None)]);
    let whole = layout((254, 0));
    assert!(whole.is_on(0, 16 * SECTOR, NodeId(1)) && !whole.is_on(0, 17 * SECTOR, NodeId(1)));
}

#[test]
fn an_unreadable_node_is_not_that_of_the_device_above() {
    let sys = sys();
    // A directory cannot be read as a file, yet it exists.
    fs::create_dir(sys.path().join("devices/ndbus0/region0/namespace0.0/numa_node")).unwrap();
    assert!(Layout::read(sys.path(), (259, 0), &table).is_err());
}

#[test]
fn a_table_that_cannot_be_read_is_an_error() {
    let refuse = |_| Err(io::ErrorKind::PermissionDenied.into());
    assert!(Layout::read(sys().path(), (254, 0), &refuse).is_err());
}
