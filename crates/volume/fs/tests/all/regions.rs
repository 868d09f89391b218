//! Volumes of 1 to 64 regions, and regions that are missing or belong elsewhere.

use std::path::PathBuf;
use std::sync::Arc;

use fs::{Error, Ino, Layout, Migration, NewFile, Options, Placement, Volume};

use crate::crash::use_and_empty;
use crate::medium::{Image, Ram, blank};
use crate::{fresh, layout, options, seal, settled, sound};

/// A volume on unequal regions with a file over all of them.
fn example(count: usize, id: u8) -> (Image, Ino, Vec<u8>) {
    example_of(&(0..count as u64).map(|i| 40 + i * 7 % 23).collect::<Vec<_>>(), id)
}

fn example_of(sizes: &[u64], id: u8) -> (Image, Ino, Vec<u8>) {
    let count = sizes.len();
    let ram = Ram::new(blank(sizes));
    let nodes = (0..count as u32).map(Some).collect();
    let layout = Layout { volume: [id; 16], nodes, data_checksums: true, ..layout() };
    fs::mkfs(Box::new(ram.clone()), &layout).unwrap();
    let volume = Volume::mount(Box::new(ram.clone()), options(1)).unwrap();
    let file = volume.create(Ino::ROOT, b"f", NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
    let data: Vec<u8> = (0..count * 16 * 4096).map(|i| (i / 99) as u8).collect();
    volume.write(file, 0, &data).unwrap();
    volume.unmount().unwrap();
    (ram.image(), file, data)
}

fn refusal(image: Image) -> String {
    let check = fs::fsck::check(Box::new(Ram::new(image.clone()))).map(|_| ()).unwrap_err().to_string();
    let mount = Volume::mount(Box::new(Ram::new(image)), options(1)).map(|_| ()).unwrap_err().to_string();
    assert_eq!(check, mount);
    mount
}

#[test]
fn one_three_and_sixty_four_regions_of_unequal_sizes_work() {
    for count in [1, 3, 64] {
        let (image, file, data) = example(count, 1);
        let ram = Ram::new(image);
        let volume = Volume::mount(Box::new(ram.clone()), options(1)).unwrap();
        let nodes = volume.bytes_by_node(file).unwrap();
        assert_eq!(nodes.len(), count, "one stripe of 16 blocks on each node");
        let mut out = vec![0; data.len()];
        assert_eq!(volume.read(file, 0, &mut out).unwrap(), data.len());
        assert!(out == data);
        let last = count as u32 - 1;
        volume.truncate(file, 16 * 4096).unwrap();
        assert_eq!(volume.migrate_file(file, last, None, |_| true).unwrap().moved, if count == 1 { 0 } else { 16 });
        assert_eq!(volume.bytes_by_node(file).unwrap().keys().collect::<Vec<_>>(), [&Some(last)]);
        drop(volume);
        sound(Box::new(ram.clone()));
        use_and_empty(&Volume::mount(Box::new(ram), options(2)).unwrap()).unwrap();
    }
    let ram = Ram::new(blank(&[40; 65]));
    assert_eq!(fs::mkfs(Box::new(ram), &layout()).unwrap_err().to_string(), "invalid: a volume has 1 to 64 regions");
}

/// The mount succeeded, and the first write failed with ENXIO.
#[test]
fn a_placement_on_a_node_without_a_region_is_refused_by_the_mount() {
    let (image, ..) = example(2, 1);
    let on = |node| {
        let options = Options { placement: Placement::Node(node), ..options(1) };
        Volume::mount(Box::new(Ram::new(image.clone())), options).map(drop)
    };
    on(1).unwrap();
    assert!(matches!(on(9), Err(Error::NoRegionOnNode(9))));
}

/// With one region nothing wrote the word anew, so repair said that it had and the volume stayed
/// unmountable.
#[test]
fn a_damaged_number_of_the_last_mount_is_repaired() {
    for (count, region) in [(1, 0), (3, 0), (3, 2)] {
        let (mut image, ..) = example(count, 1);
        image[region][2 * 4096 + 64..][..8].copy_from_slice(&[0x5a; 8]);
        let ram = Ram::new(image);
        let mount = || Volume::mount(Box::new(ram.clone()), options(1));
        assert!(matches!(mount(), Err(Error::Damaged(_))), "{count} {region}");
        assert_eq!(fs::fsck::check(Box::new(ram.clone())).unwrap().damage.len(), 1);
        fs::fsck::repair(Arc::new(ram.clone())).unwrap();
        mount().unwrap().unmount().unwrap();
        sound(Box::new(ram));
    }
}

/// Repair gave a region that was put back from an older mount the number of the others.
#[test]
fn damage_does_not_hide_that_regions_were_mounted_apart() {
    let (old, ..) = example(3, 1);
    let ram = Ram::new(old.clone());
    Volume::mount(Box::new(ram.clone()), options(1)).unwrap().unmount().unwrap();
    let mut image = ram.image();
    image[2] = old[2].clone();
    image[0][2 * 4096 + 64..][..8].copy_from_slice(&[0x5a; 8]);
    assert!(refusal(image.clone()).contains("region 2 and region 1 were last mounted apart"));
    assert!(fs::fsck::repair(Arc::new(Ram::new(image))).is_err());
}

#[test]
fn a_region_that_is_missing_or_belongs_elsewhere_gives_a_clear_error() {
    let (image, ..) = example(3, 1);
    let (other, ..) = example(3, 2);
    assert_eq!(refusal(image[..2].to_vec()), "not a volume: 2 of its 3 regions were given");
    let swap = |at: usize, with: &Vec<u8>| {
        let mut image = image.clone();
        image[at] = with.clone();
        refusal(image)
    };
    assert_eq!(swap(1, &other[1]), "not a volume: region 1 belongs to another volume than region 0");
    assert_eq!(swap(0, &other[0]), "not a volume: region 1 belongs to another volume than region 0");
    assert_eq!(swap(1, &image[2]), "not a volume: region 2 was given as region 1");
    assert_eq!(swap(2, &vec![0; image[2].len()]), "not a volume: region 2: not a homenode region");
    assert_eq!(swap(1, &image[1][..100_000].to_vec()), "not a volume: region 1 has 100000 of 192512 bytes");
    let mut more = image.clone();
    more.push(image[2].clone());
    assert_eq!(refusal(more), "not a volume: region 2 was given as region 3");
    // A checksum that is right does not help: the layouts differ.
    let (larger, ..) = example(2, 1);
    assert_eq!(swap(1, &larger[1]), "not a volume: region 1 describes the volume otherwise than region 0");
}

/// A volume with two regions on node 0, a smaller and a larger one, and one on each of nodes 1 and
/// 2.
fn two_on_node_0() -> Volume {
    let ram = Ram::new(blank(&[60, 120, 200, 100]));
    let nodes = [0, 0, 1, 2].map(Some).to_vec();
    fs::mkfs(Box::new(ram.clone()), &Layout { nodes, ..layout() }).unwrap();
    Volume::mount(Box::new(ram), options(1)).unwrap()
}

fn written(volume: &Volume, blocks: u64, node: u32) -> Ino {
    let name = format!("{blocks} on {node}");
    let file = volume.create(Ino::ROOT, name.as_bytes(), NewFile { mode: 0o644, ..NewFile::default() }).unwrap().ino;
    volume.write_to(file, 0, &vec![node as u8 + 1; blocks as usize * 4096], Placement::Node(node)).unwrap();
    file
}

fn in_regions(volume: &Volume, file: Ino) -> [u64; 4] {
    let mut blocks = [0; 4];
    volume.map(file).unwrap().iter().for_each(|run| blocks[run.block.region()] += run.count);
    blocks
}

/// A migration knew regions: "to node 0" moved what was on node 0, and failed when the first region
/// of the node was full.
#[test]
fn a_migration_goes_to_all_regions_of_a_node_and_leaves_what_is_there() {
    let volume = two_on_node_0();
    let there = written(&volume, 32, 0);
    assert_eq!(in_regions(&volume, there), [16, 16, 0, 0], "the node's regions take turns");
    assert_eq!(volume.migrate_file(there, 0, None, |_| true).unwrap().moved, 0);
    let file = written(&volume, 90, 1);
    assert_eq!(volume.migrate_file(file, 0, None, |_| true).unwrap().moved, 90);
    let [first, second, ..] = in_regions(&volume, file);
    assert!(first > 0 && second > 40 && first + second == 90, "{first} {second}");
    let fell_back: u64 = volume.usage().regions.iter().map(|r| r.traffic.fallback_blocks).sum();
    assert_eq!(fell_back, 0, "another region of the node is where it was meant for");
    use_and_empty(&volume).unwrap();
}

#[test]
fn a_migration_from_a_node_leaves_what_is_on_others() {
    let volume = two_on_node_0();
    let file = written(&volume, 48, 0);
    volume.write_to(file, 0, &[9; 20 * 4096], Placement::Node(2)).unwrap();
    let from = |from| Migration { to: 1, from, ..Migration::default() };
    assert_eq!(volume.migrate(file, from(Some(2)), |_| true).unwrap().moved, 20);
    assert_eq!(volume.migrate(file, from(Some(2)), |_| true).unwrap().moved, 0);
    let nodes: Vec<_> = volume.bytes_by_node(file).unwrap().into_values().map(|bytes| bytes / 4096).collect();
    assert_eq!(nodes, [28, 20]);
    assert_eq!(volume.migrate(file, from(None), |_| true).unwrap().moved, 28);
    use_and_empty(&volume).unwrap();
}

/// A promotion brings ranges of a file near; what lies beside them stays, and so does the log.
#[test]
fn a_migration_of_a_range_moves_its_blocks_from_one_node_and_nothing_else() {
    let (_, volume) = fresh(&[200, 200]);
    let file = written(&volume, 40, 0);
    volume.write_to(file, 12 * 4096, &[9; 4 * 4096], Placement::Node(1)).unwrap();
    let free = || [0, 1].map(|region| volume.usage().regions[region].free_blocks);
    let before = free();
    let range = |to, first| {
        let (from, end) = (Some(1 - to), Some(24));
        Migration { to, from, first, end, leave_log: true, ..Migration::default() }
    };
    let on_1 = |first, end| volume.bytes_on_node(file, (first, end), 1).unwrap() / 4096;
    assert_eq!(volume.migrate(file, range(1, 8), |_| true).unwrap().moved, 12);
    assert_eq!(free(), [before[0] + 12, before[1] - 12]);
    assert_eq!([on_1(0, 8), on_1(8, 24), on_1(24, 99)], [0, 16, 0]);
    assert_eq!(volume.migrate(file, range(1, 8), |_| true).unwrap().moved, 0);
    // Stopped, it goes on where it was.
    let half = volume.migrate(file, range(0, 8), |progress| progress.moved < 1).unwrap();
    assert!(half.cancelled && (1..16).contains(&half.moved), "{half:?}");
    assert_eq!(on_1(0, 99), 16 - half.moved);
    let rest = volume.migrate(file, range(0, half.next), |_| true).unwrap();
    assert_eq!((half.moved + rest.moved, on_1(0, 99)), (16, 0));
    let mut out = vec![0; 40 * 4096];
    volume.read(file, 0, &mut out).unwrap();
    assert!((0..40).all(|block| out[block * 4096] == if (12..16).contains(&block) { 9 } else { 1 }));
    use_and_empty(&volume).unwrap();
}

/// It took what is kept of the new node, and the rest from the old one, so that the next move wrote
/// it all anew. Without room there either, a move that was done was an error.
#[test]
fn a_log_that_finds_no_room_on_the_new_node_stays_and_the_move_is_done() {
    let (_, volume) = fresh(&[200, 200]);
    let file = written(&volume, 10, 0);
    for i in 0..8 {
        volume.set_xattr(file, format!("user.{i}").as_bytes(), &[1; 3000], fs::SetXattr::Any).unwrap();
    }
    let free = || [0, 1].map(|region| volume.usage().regions[region].free_blocks);
    let kept = volume.usage().regions[1].reserved_blocks;
    written(&volume, free()[1] - kept - 12, 1);
    let before = free();
    assert_eq!(before[1], kept + 12);
    assert_eq!(volume.migrate_file(file, 1, None, |_| true).unwrap().moved, 10);
    assert_eq!(free(), [before[0] + 10, kept + 2], "the log stays as a whole");
    assert_eq!(volume.migrate_file(file, 1, None, |_| true).unwrap().moved, 0);
    assert_eq!(free(), [before[0] + 10, kept + 2]);
    // Nor is there room on the old node.
    let full = written(&volume, free()[0] - kept, 0);
    assert_eq!(volume.migrate_file(file, 1, None, |_| true).unwrap().moved, 0);
    let before = free();
    volume.punch_hole(full, 0, 20 * 4096).unwrap();
    volume.truncate(volume.resolve(b"176 on 1").unwrap_or(full), 4096).unwrap();
    assert_eq!(volume.migrate_file(file, 1, None, |_| true).unwrap().moved, 0);
    assert!(free()[0] > before[0] + 20, "the log went");
    use_and_empty(&volume).unwrap();
}

/// 8 KiB at the beginning of a region ended the volume: both copies of the superblock lay there.
#[test]
fn what_is_made_on_an_end_of_a_region_by_mistake_is_repaired() {
    let wreck = |image: &mut Image, region: usize, head: usize, tail: usize| {
        let end = image[region].len();
        image[region][..head].fill(0x77);
        image[region][end - tail..].fill(0x77);
    };
    // mkswap; a boot sector; a partition table has 17 KiB at each end; and all copies alone.
    for (region, head, tail, mounts) in [
        (0, 8192, 0, true),
        (1, 4096, 0, true),
        (1, 17 << 10, 17 << 10, false),
        (0, 17 << 10, 17 << 10, false),
        (2, 8192, 128 << 10, false),
    ] {
        let (mut image, file, data) = example_of(&[2100, 2100, 2100], 1);
        wreck(&mut image, region, head, tail);
        let ram = Ram::new(image);
        let read = |volume: &Volume| {
            let mut out = vec![0; data.len()];
            volume.read(file, 0, &mut out).is_ok() && out == data
        };
        let what = format!("region {region}, {head} and {tail} bytes");
        let mount = || Volume::mount(Box::new(Ram::new(ram.image())), options(1));
        assert_eq!(mount().is_ok_and(|volume| read(&volume)), mounts, "{what}");
        assert!(read(&Volume::look(Box::new(ram.clone()), options(1)).unwrap()), "{what}");
        assert!(!fs::fsck::check(Box::new(ram.clone())).unwrap().damage.is_empty(), "{what}");
        fs::fsck::repair(Arc::new(ram.clone())).unwrap();
        settled(Box::new(ram.clone()));
        let volume = mount().unwrap();
        assert!(read(&volume), "{what}");
        use_and_empty(&volume).unwrap();
    }
    // What nothing says that it is a region of this volume stays as it is.
    let (mut image, ..) = example(3, 1);
    image[1].fill(0);
    let ram = Ram::new(image.clone());
    let refused = fs::fsck::repair(Arc::new(ram.clone())).unwrap_err().to_string();
    assert!(refused.contains("nothing else on it says"), "{refused}");
    assert!(ram.image()[1] == image[1]);
}

#[test]
fn format_1_is_refused_by_one_line() {
    let (mut image, ..) = example(1, 1);
    let end = image[0].len();
    for at in [0, 4096, end - 4096] {
        let block = &mut image[0][at..at + 4096];
        block[8..12].copy_from_slice(&1_u32.to_le_bytes());
        seal(block);
    }
    let said = refusal(image);
    assert_eq!(said.lines().count(), 1);
    assert!(said.contains("earlier version"), "{said}");
}

/// A mounted volume whose regions are files, and where those are.
pub struct Files {
    pub place: tempfile::TempDir,
    pub paths: Vec<PathBuf>,
    pub volume: Volume,
}

/// Regions of 4 MiB, each on a node of its own.
pub fn on_files(count: u32) -> Files {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let paths: Vec<_> = (0..count).map(|i| place.path().join(format!("r{i}"))).collect();
    let files = paths.iter().map(|path| {
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(4 << 20).unwrap();
        fs::medium::RegionFile { file, bind: None }
    });
    let mapped = fs::medium::Mapped::new(&files.collect::<Vec<_>>()).unwrap();
    let names = paths.iter().map(|path| path.as_os_str().as_encoded_bytes().to_vec()).collect();
    fs::mkfs(Box::new(mapped), &Layout { nodes: (0..count).map(Some).collect(), names, ..layout() }).unwrap();
    let volume = Volume::mount(Box::new(fs::open_files(&paths).unwrap()), options(1)).unwrap();
    Files { place, paths, volume }
}

/// The volume without one of its regions, to look at.
pub fn look_without(paths: &[PathBuf], lost: usize) -> Volume {
    let gone = paths[lost].with_extension("gone");
    std::fs::rename(&paths[lost], &gone).unwrap();
    let left: Vec<_> = paths.iter().filter(|path| **path != paths[lost]).cloned().collect();
    let volume = Volume::look(Box::new(fs::open_files_to_look(&left[..1]).unwrap()), options(1)).unwrap();
    std::fs::rename(&gone, &paths[lost]).unwrap();
    volume
}

/// Two regions, a file wholly on one of them: without the other nothing could be reached.
#[test]
fn a_missing_region_costs_what_is_on_it() {
    for (lost, clean) in [(1, true), (1, false), (0, true), (0, false)] {
        let Files { place, paths, volume } = on_files(2);
        let mut inos = Vec::new();
        for node in [0, 1] {
            let file = fs::on_node(node, || crate::create(&volume, &format!("f{node}")).unwrap());
            volume.write_to(file, 0, &[7; 9000], Placement::Node(node)).unwrap();
            inos.push(file);
        }
        if clean {
            volume.unmount().unwrap()
        } else {
            drop(volume)
        }

        std::fs::rename(&paths[lost], place.path().join("gone")).unwrap();
        let given = &paths[1 - lost..2 - lost];
        assert!(matches!(fs::open_files(given), Err(Error::RegionMissing(region, _)) if region == lost));
        let volume = Volume::look(Box::new(fs::open_files_to_look(given).unwrap()), options(1)).unwrap();
        let said = volume.damage().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(said.iter().any(|line| line.contains("the region is missing")), "{said:?}");
        let names: Vec<_> = volume.names(Ino::ROOT, 0, 9).unwrap();
        let mut out = vec![0; 9000];
        let whole = inos[1 - lost];
        assert!(names.iter().any(|name| name.named.ino == whole), "lost {lost}, clean {clean}: {names:?}");
        assert_eq!(volume.read(whole, 0, &mut out).unwrap(), 9000);
        assert!(out == [7; 9000]);
        let errno = volume.read(inos[lost], 0, &mut out).unwrap_err().errno();
        assert!([libc::EIO, libc::EUCLEAN, libc::ENOENT].contains(&errno), "{errno}");
    }
}

/// After a clean unmount what only a directory on the missing region had named had no name.
#[test]
fn what_a_directory_on_a_missing_region_named_can_be_seen() {
    for clean in [true, false] {
        let Files { place: _place, paths, volume } = on_files(3);
        let made = |node, dir, name: &[u8], mode| {
            fs::on_node(node, || volume.create(dir, name, NewFile { mode, ..NewFile::default() }).unwrap().ino)
        };
        let dir = made(1, Ino::ROOT, b"dir", libc::S_IFDIR | 0o755);
        let file = made(0, dir, b"file", 0o644);
        assert_eq!((dir.region(), file.region()), (1, 0));
        if clean {
            volume.unmount().unwrap();
        } else {
            drop(volume);
        }
        let volume = look_without(&paths, 1);
        let found = volume.resolve(format!("#{file}").as_bytes());
        assert_eq!(found.unwrap(), file, "unmounted: {clean}");
    }
}
