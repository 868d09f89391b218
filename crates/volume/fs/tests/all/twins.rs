//! Metadata that is kept twice: what a lost region, or a damaged line, costs then.

use std::path::PathBuf;
use std::sync::Arc;

use fs::format::superblock::LOGS_TWICE;
use fs::format::{Block, Ino};
use fs::medium::{At, Mapped, Medium, RegionFile};
use fs::{Damage, Error, Fault, Layout, NewFile, Placement, Result, ScrubPlace, SetXattr, Volume};

use crate::medium::{Access, Image, Ram, Watched, blank};
use crate::model::{Tree, observe};
use crate::{TWICE, create, format_twice, layout, mount_whole, options};

const BLOCK: usize = 4096;
const LINE: usize = 64;

/// A volume without the metadata of a region, which is said to be missing: its data can be read, so
/// that the whole tree can be compared.
pub struct LostMetadata {
    ram: Ram,
    lost: usize,
    data: std::ops::Range<u64>,
}

impl LostMetadata {
    pub fn new(image: Image, lost: usize) -> Self {
        let ram = Ram::new(image);
        let superblock = fs::superblock_of(&ram, 0).unwrap();
        let sums = superblock.sum_at(Block::new(lost, superblock.data(lost).start)).map(|(block, _)| block.index());
        let from = sums.unwrap_or(superblock.data(lost).start);
        Self { ram, lost, data: from * BLOCK as u64..superblock.data(lost).end * BLOCK as u64 }
    }

    fn check(&self, at: At) -> Result<()> {
        match at.region == self.lost && !self.data.contains(&at.offset) {
            true => Err(std::io::Error::from_raw_os_error(libc::EIO).into()),
            false => Ok(()),
        }
    }
}

impl Medium for LostMetadata {
    fn regions(&self) -> usize {
        self.ram.regions()
    }
    fn len(&self, region: usize) -> u64 {
        self.ram.len(region)
    }
    fn is_missing(&self, region: usize) -> bool {
        region == self.lost
    }
    fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        self.check(at)?;
        self.ram.read(at, out)
    }
    fn write(&self, _: At, _: &[u8]) -> Result<()> {
        unreachable!("a look stores nothing")
    }
    fn write_data(&self, _: At, _: &[u8]) -> Result<()> {
        unreachable!("a look stores nothing")
    }
    fn load_u64(&self, at: At) -> Result<u64> {
        self.check(at)?;
        self.ram.load_u64(at)
    }
    fn store_u64(&self, _: At, _: u64) -> Result<()> {
        unreachable!("a look stores nothing")
    }
    fn flush(&self, _: At, _: u64) -> Result<()> {
        Ok(())
    }
    fn fence(&self) -> Result<()> {
        Ok(())
    }
}

/// Three regions of 8 MiB in files, each on a node of its own, that keep their logs twice.
pub fn on_files_twice(place: &std::path::Path) -> (Vec<PathBuf>, Volume) {
    let paths: Vec<_> = (0..3).map(|i| place.join(format!("r{i}"))).collect();
    let files = paths.iter().map(|path| {
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(8 << 20).unwrap();
        RegionFile { file, bind: None }
    });
    let mapped = Mapped::new(&files.collect::<Vec<_>>()).unwrap();
    let names = paths.iter().map(|path| path.as_os_str().as_encoded_bytes().to_vec()).collect();
    let layout = Layout { nodes: (0..3).map(Some).collect(), names, logs_twice: true, ..layout() };
    fs::mkfs(Box::new(mapped), &layout).unwrap();
    let volume = Volume::mount(Box::new(fs::open_files(&paths).unwrap()), options(1)).unwrap();
    (paths, volume)
}

/// A volume of a few files with logs of one page and of several, links and attributes, and what it
/// says.
fn example(unmounted: bool) -> (Image, Tree) {
    let ram = Ram::new(blank(&TWICE));
    format_twice(Box::new(ram.clone()), false);
    let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
    let dir = NewFile { mode: libc::S_IFDIR | 0o755, ..NewFile::default() };
    let dir = volume.create(Ino::ROOT, b"d", dir).unwrap().ino;
    let a = create(&volume, "a").unwrap();
    volume.write(a, 0, &[1; 9000]).unwrap();
    volume.link(a, dir, b"again").unwrap();
    let b = volume.create(dir, b"b", NewFile { mode: 0o600, ..NewFile::default() }).unwrap().ino;
    // Of several pages.
    for i in 0..70_u8 {
        volume.set_xattr(b, format!("user.{i}").as_bytes(), &[i; 40], SetXattr::Any).unwrap();
    }
    volume.unlink(Ino::ROOT, b"a").unwrap();
    volume.rename((dir, b"b"), (Ino::ROOT, b"c"), fs::Rename::Replace).unwrap();
    let tree = observe(&volume);
    if unmounted {
        volume.unmount().unwrap();
    } else {
        drop(volume);
    }
    (ram.image(), tree)
}

/// The blocks of metadata of both copies, as region and block.
fn metadata(image: &Image) -> Vec<(usize, u64)> {
    let superblock = fs::superblock_of(&Ram::new(image.clone()), 0).unwrap();
    let both = (0..image.len()).flat_map(|region| {
        let (area, other, first) = superblock.twin(region).unwrap();
        let twin = first..first + area.end - area.start;
        area.map(move |block| (region, block)).chain(twin.map(move |block| (other, block)))
    });
    both.collect()
}

/// The ways in which a line is damaged.
fn damages(line: &[u8]) -> Vec<Vec<u8>> {
    let mut flipped = line.to_vec();
    flipped[9] ^= 4;
    vec![flipped, vec![0; LINE], (0..LINE as u8).collect()]
}

#[test]
fn damage_of_any_line_costs_nothing_and_a_repair_puts_it_right() {
    let (mut reported, mut tried) = (0, 0);
    for unmounted in [true, false] {
        let (image, tree) = example(unmounted);
        for (region, block) in metadata(&image) {
            for line in 0..BLOCK / LINE {
                let at = block as usize * BLOCK + line * LINE;
                for (way, bytes) in damages(&image[region][at..at + LINE]).into_iter().enumerate() {
                    // Two lines of three are of free blocks: of these a share will do.
                    if image[region][at..at + LINE] == [0; LINE] && (line + way) % 16 != 0 {
                        continue;
                    }
                    let what = || format!("region {region}, block {block}, line {line}, way {way}, {unmounted}");
                    let mut damaged = image.clone();
                    damaged[region][at..at + LINE].copy_from_slice(&bytes);
                    let ram = Ram::new(damaged);
                    let look = Volume::look(Box::new(ram.clone()), options(1)).unwrap();
                    assert!(look.damage().is_empty() && observe(&look) == tree, "{}: {:?}", what(), look.damage());
                    let report = fs::fsck::check(Box::new(ram.clone())).unwrap();
                    let of_copy = |damage: &Damage| matches!(damage, Damage::Copy { .. });
                    assert!(report.damage.len() <= 1 && report.damage.iter().all(of_copy), "{}: {report:?}", what());
                    reported += usize::from(!report.damage.is_empty());
                    tried += 1;
                    if tried % 3 == 0 {
                        fs::fsck::repair(Arc::new(ram.clone())).unwrap();
                    }
                    let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
                    assert_eq!(observe(&volume), tree, "{}", what());
                    if tried % 3 == 0 || !unmounted {
                        let agree = fs::debug::twins_agree(Box::new(ram.clone())).unwrap();
                        assert!(agree.is_empty(), "{}: {agree:?}", what());
                    }
                }
            }
        }
    }
    println!("{tried} damaged lines, {reported} of them reported");
    assert!(reported > 300, "{reported} of {tried}");
}

#[test]
fn a_scrub_mends_a_damaged_copy_of_a_line_while_it_is_mounted() {
    let (image, tree) = example(true);
    let mut mended = 0;
    for (region, block) in metadata(&image) {
        for line in 0..BLOCK / LINE {
            let at = block as usize * BLOCK + line * LINE;
            let ram = Ram::new(image.clone());
            let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
            ram.0.lock().unwrap()[region][at..at + LINE].fill(0x5a);
            let before = !fs::debug::twins_agree(Box::new(ram.clone())).unwrap().is_empty();
            if !before {
                continue; // nothing uses it
            }
            let mut faults: Vec<Fault> = Vec::new();
            volume.scrub(ScrubPlace::default(), None, &mut |fault| faults.push(fault), &mut |_| true).unwrap();
            let of_copy = |fault: &Fault| fault.mended && matches!(fault.damage, Damage::Copy { .. });
            // Lines of free inodes are not looked at.
            if !faults.is_empty() {
                assert!(faults.len() == 1 && faults.iter().all(of_copy), "{region} {block} {line}: {faults:?}");
                mended += 1;
                assert!(fs::debug::twins_agree(Box::new(ram)).unwrap().is_empty(), "{region} {block} {line}");
            }
            assert_eq!(observe(&volume), tree);
        }
    }
    assert!(mended > 180, "{mended}");
}

/// Memory that fails under a line of either copy, before a mount and under one.
#[test]
fn a_line_that_cannot_be_read_costs_nothing() {
    for unmounted in [true, false] {
        let (image, tree) = example(unmounted);
        for (region, block) in metadata(&image) {
            for line in (0..BLOCK / LINE).filter(|line| *line < 4 || line % 16 == 0) {
                let at = block as usize * BLOCK + line * LINE;
                let bad = move |at_: At, len: usize| {
                    let from = at_.offset as usize;
                    at_.region == region && from < at + LINE && at < from + len
                };
                let check = move |access: Access| match access {
                    Access::Read(at, len) | Access::Write(at, len) if bad(at, len) => {
                        Err(Error::from(std::io::Error::from_raw_os_error(libc::EIO)))
                    }
                    Access::Load(at) if bad(at, 8) => Err(std::io::Error::from_raw_os_error(libc::EIO).into()),
                    _ => Ok(()),
                };
                let ram = Ram::new(image.clone());
                let volume = mount_whole(Box::new(Watched(ram.clone(), Box::new(check))), options(1)).unwrap();
                assert_eq!(observe(&volume), tree, "region {region}, block {block}, line {line}");
                crate::crash::use_and_empty(&volume).unwrap();
                volume.unmount().unwrap();
            }
        }
    }
}

/// Everything that moves logs leaves both copies alike.
#[test]
fn migrations_drains_and_cleaning_keep_the_twins_alike() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let (paths, volume) = on_files_twice(place.path());
    crate::drain::fill(&volume, 3);
    let file = volume.resolve(b"d0/file").unwrap();
    volume.migrate_file(file, 2, None, |_| true).unwrap();
    for i in 0..300 {
        volume.write(file, (i % 7) * 8192, &[i as u8; 100]).unwrap();
    }
    volume.clean(file).unwrap();
    volume.clean(Ino::ROOT).unwrap();
    volume.drain(1, |_| true).unwrap();
    let tree = observe(&volume);
    drop(volume);
    let open = || Box::new(fs::open_files(&paths).unwrap());
    assert_eq!(fs::debug::twins_agree(open()).unwrap(), []);
    let volume = mount_whole(open(), options(2)).unwrap();
    assert_eq!(observe(&volume), tree);
    volume.unmount().unwrap();
    let report = fs::fsck::check(open()).unwrap();
    assert!(report.clean && report.damage.is_empty(), "{report:?}");
    let volume = mount_whole(open(), options(1)).unwrap();
    crate::crash::use_and_empty(&volume).unwrap();
    drop(volume);
    assert_eq!(fs::debug::twins_agree(open()).unwrap(), []);
}

/// A log page for each inode: what finds none fails as on a full volume, data goes on, and what is
/// removed makes room.
#[test]
fn a_full_area_for_logs_is_a_full_volume_for_new_files_only() {
    let ram = Ram::new(blank(&TWICE));
    format_twice(Box::new(ram.clone()), false);
    let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
    let large = create(&volume, "large").unwrap();
    let mut made = 0;
    let full = loop {
        match create(&volume, &format!("{made}")) {
            Ok(_) => made += 1,
            Err(full) => break full,
        }
    };
    assert!(matches!(full, Error::NoSpace));
    let usage = volume.usage();
    let free: u64 = usage.regions.iter().map(|region| region.free_inodes).sum();
    assert!(free == 0 && made > 25, "{free} {made}");
    // There is room for data, as much as is said.
    let left: u64 = usage.regions.iter().map(|region| region.free_blocks - region.reserved_blocks).sum();
    assert!(left > 20, "{left}");
    for block in 0..left {
        volume.write_to(large, block * 4096, &[1; 4096], Placement::Node(0)).unwrap();
    }
    assert!(matches!(volume.append(large, &[1; 4096]), Err(Error::NoSpace)));
    for i in 0..made {
        volume.unlink(Ino::ROOT, format!("{i}").as_bytes()).unwrap();
    }
    create(&volume, "again").unwrap();
    crate::crash::use_and_empty(&volume).unwrap();
    volume.unmount().unwrap();
    let report = fs::fsck::check(Box::new(ram)).unwrap();
    assert!(report.damage.is_empty() && report.clean, "{report:?}");
}

#[test]
fn one_region_has_no_twin_and_a_feature_nobody_knows_is_refused_in_one_line() {
    let one = Layout { logs_twice: true, ..layout() };
    let said = fs::mkfs(Box::new(Ram::new(blank(&[400]))), &one).unwrap_err().to_string();
    assert!(said.contains("two regions or more") && said.lines().count() == 1, "{said}");
    let ram = Ram::new(blank(&TWICE));
    format_twice(Box::new(ram.clone()), true);
    assert_eq!(fs::superblock_of(&ram, 1).unwrap().features, LOGS_TWICE);
    for feature in [2, 1 << 63] {
        let mut image = ram.image();
        for (region, copy) in [0, 1].into_iter().flat_map(|region| [0, 1, 2].map(|copy| (region, copy))) {
            let blocks = image[region].len() as u64 / BLOCK as u64;
            let at = fs::format::superblock::copies(blocks)[copy] as usize * BLOCK;
            let block = &mut image[region][at..at + BLOCK];
            block[32..40].copy_from_slice(&(LOGS_TWICE | feature).to_le_bytes());
            block[12..16].fill(0);
            let crc = crc32c::crc32c(block);
            block[12..16].copy_from_slice(&crc.to_le_bytes());
        }
        let said = Volume::mount(Box::new(Ram::new(image.clone())), options(1)).map(drop).unwrap_err().to_string();
        assert!(said.contains("later version") && said.lines().count() == 1, "{said}");
        assert!(Volume::look(Box::new(Ram::new(image)), options(1)).is_err());
    }
}
