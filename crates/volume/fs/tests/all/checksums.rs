//! Checksums of file data.

use fs::{Damage, Error, Ino, NewFile, Placement, Volume};

use crate::medium::{Image, Ram, blank};
use crate::{format_with, options};

const DATA: [u8; 9000] = [0x5a; 9000];

/// A volume with a file on node 1 and a symbolic link; where the file's second block is in region
/// 1.
fn example(data_checksums: bool) -> (Image, Ino, usize) {
    let ram = Ram::new(blank(&[64, 64]));
    format_with(Box::new(ram.clone()), 1, data_checksums);
    let volume = Volume::mount(Box::new(ram.clone()), options(1)).unwrap();
    let file = volume.create(Ino::ROOT, b"f", NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
    volume.write_to(file, 0, &DATA, Placement::Node(1)).unwrap();
    let link = NewFile { mode: 0o120_777, target: b"target", ..NewFile::default() };
    volume.create(Ino::ROOT, b"l", link).unwrap();
    let run = volume.map(file).unwrap()[0];
    assert_eq!((run.block.region(), run.count), (1, 3));
    volume.unmount().unwrap();
    (ram.image(), file, run.block.offset(1).index() as usize * 4096)
}

#[test]
fn a_flipped_byte_of_data_is_found_by_reads_migrations_and_fsck() {
    let (mut image, file, second) = example(true);
    crate::sound(Box::new(Ram::new(image.clone())));
    image[1][second + 7] ^= 1;
    let report = fs::fsck::check(Box::new(Ram::new(image.clone()))).unwrap();
    let [Damage::Data { block, path: Some(path) }] = &report.damage[..] else { panic!("{report:?}") };
    assert_eq!((block.index() as usize * 4096, path.as_str()), (second, "/f"));
    assert!(report.damage[0].to_string().starts_with("/f: data in block "), "{}", report.damage[0]);
    let volume = Volume::mount(Box::new(Ram::new(image)), options(1)).unwrap();
    let mut out = [0; 9000];
    assert_eq!(volume.read(file, 0, &mut out[..4096]).unwrap(), 4096, "the first block is whole");
    assert_eq!(volume.read(file, 8192, &mut out).unwrap(), 808, "the last block is whole");
    for (offset, len) in [(0, 9000), (4096, 4096), (5000, 1)] {
        let error = volume.read(file, offset, &mut out[..len]).unwrap_err();
        assert_eq!(error.errno(), libc::EIO, "{error}");
    }
    assert!(matches!(volume.migrate_file(file, 0, None, |_| true), Err(Error::Damaged(Damage::Data { .. }))));
    assert!(matches!(volume.write(file, 5000, &[1]), Err(Error::Damaged(Damage::Data { .. }))), "part of a bad block");
    volume.write(file, 4096, &[2; 4096]).unwrap();
    assert_eq!(volume.read(file, 0, &mut out).unwrap(), 9000);
    assert_eq!(volume.migrate_file(file, 0, None, |_| true).unwrap().moved, 2, "the new block is on node 0 already");
    assert_eq!(volume.read(file, 0, &mut out).unwrap(), 9000);
}

#[test]
fn a_damaged_checksum_is_found_and_volumes_without_checksums_do_not_look() {
    let (mut image, file, second) = example(true);
    let sum = crc32c::crc32c(&[0x5a; 4096]).to_le_bytes();
    let table = (0..second).find(|at| image[1][*at..*at + 4] == sum).unwrap();
    image[1][table] ^= 1;
    let volume = Volume::mount(Box::new(Ram::new(image)), options(1)).unwrap();
    assert!(volume.read(file, 0, &mut [0; 10]).is_err());

    let (mut image, file, second) = example(false);
    image[1][second] ^= 1;
    let volume = Volume::mount(Box::new(Ram::new(image)), options(1)).unwrap();
    let mut out = DATA;
    assert_eq!(volume.read(file, 0, &mut out).unwrap(), 9000);
    assert_eq!(out[4096], 0x5b);
}
