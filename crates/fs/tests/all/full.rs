//! A volume, or one region of it, that is full.

use fs::{Error, Ino, NewFile, Placement, Volume};

use crate::crash::use_and_empty;
use crate::medium::{Ram, blank};
use crate::{REGIONS, format, options};

fn volume() -> Volume {
    let ram = Ram::new(blank(&REGIONS));
    format(Box::new(ram.clone()), 1);
    Volume::mount(Box::new(ram), options(2)).unwrap()
}

fn create(volume: &Volume, name: &str) -> Result<Ino, Error> {
    volume.create(Ino::ROOT, name.as_bytes(), NewFile { mode: 0o644, ..NewFile::default() }).map(|stat| stat.ino)
}

#[test]
fn a_full_region_hands_over_to_the_next_and_counts_it() {
    let volume = volume();
    let file = create(&volume, "file").unwrap();
    for block in 0..50 {
        volume.write_to(file, block * 4096, &[1; 4096], Placement::Node(0)).unwrap();
    }
    let usage = volume.usage();
    assert_eq!(usage.regions[0].free_blocks, usage.regions[0].reserved_blocks);
    let nodes = volume.bytes_by_node(file).unwrap();
    assert_eq!(nodes[&Some(0)] + nodes[&Some(1)], 50 * 4096);
    assert_eq!(usage.regions[1].traffic.fallback_blocks * 4096, nodes[&Some(1)]);
    assert!(matches!(volume.write_to(file, 0, &[1], Placement::Node(7)), Err(Error::NoRegionOnNode(7))));
    let moved = volume.migrate_file(file, 0, None, |_| true);
    assert!(matches!(moved, Err(Error::NoSpace)), "{moved:?}");
    use_and_empty(&volume).unwrap();
}

#[test]
fn a_full_volume_refuses_growth_keeps_its_data_and_can_be_emptied() {
    let volume = volume();
    let mut files = Vec::new();
    let full = loop {
        match create(&volume, &format!("file {}", files.len())).and_then(|ino| {
            files.push(ino);
            volume.write(ino, 0, &[files.len() as u8; 9000])
        }) {
            Ok(()) => {}
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::NoSpace), "{full}");
    let last = files.pop().unwrap();
    let mut data = [0; 9000];
    for (i, ino) in files.iter().enumerate() {
        assert_eq!(volume.read(*ino, 0, &mut data).unwrap(), 9000);
        assert!(data.iter().all(|byte| *byte == i as u8 + 1), "file {i}");
    }
    assert!(matches!(volume.write(files[0], 0, &[0; 1 << 20]), Err(Error::NoSpace)));
    assert_eq!(volume.stat(files[0]).unwrap().size, 9000);
    volume.truncate(last, 0).unwrap();
    use_and_empty(&volume).unwrap();
}

#[test]
fn all_inodes_in_use() {
    let volume = volume();
    let free: u64 = volume.usage().regions.iter().map(|r| r.free_inodes).sum();
    let made = (0..).map_while(|i| create(&volume, &i.to_string()).ok()).count() as u64;
    assert_eq!(made, free);
    volume.unlink(Ino::ROOT, b"0").unwrap();
    create(&volume, "again").unwrap();
    use_and_empty(&volume).unwrap();
}
