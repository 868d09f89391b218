//! What one user's files may take, of the volume and of memory.

use fs::{Error, Ino, NewFile, Quota, SetAttributes, SetXattr, Space, Subject, Volume};

use crate::medium::Ram;
use crate::{create, fresh, mount_whole, options};

const USER: u32 = 1000;
const PROJECT: Subject = Subject::Project(7);

fn create_by(volume: &Volume, parent: Ino, name: &str, uid: u32) -> fs::Result<Ino> {
    let new = NewFile { mode: 0o644, uid, ..NewFile::default() };
    volume.create(parent, name.as_bytes(), new).map(|stat| stat.ino)
}

fn directory(volume: &Volume, name: &str, uid: u32) -> Ino {
    let new = NewFile { mode: 0o040_755, uid, ..NewFile::default() };
    volume.create(Ino::ROOT, name.as_bytes(), new).unwrap().ino
}

fn limit(volume: &Volume, subject: Subject, blocks: u64, files: u64) {
    volume.set_quota(subject, Space { blocks, files }).unwrap();
    if volume.start_counting() {
        volume.count_all(|| true);
    }
}

fn of(volume: &Volume, subject: Subject) -> Quota {
    let (whole, all) = volume.quotas();
    assert!(whole);
    all.get(&subject).copied().unwrap_or_default()
}

/// What the logs and extents of each inode say.
fn counted_anew(ram: &Ram, subject: Subject) -> Space {
    let again = mount_whole(Box::new(Ram::new(ram.image())), options(1)).unwrap();
    of(&again, subject).used
}

fn is_refused<T: std::fmt::Debug>(done: fs::Result<T>) {
    assert!(matches!(done, Err(Error::Quota)), "{done:?}");
}

#[test]
fn nobody_has_more_than_the_quota_and_what_is_given_back_can_be_used() {
    let (ram, volume) = fresh(&[300, 300]);
    let user = Subject::User(USER);
    let file = create_by(&volume, Ino::ROOT, "f", USER).unwrap();
    volume.write(file, 0, &[1; 8 * 4096]).unwrap();
    limit(&volume, user, 20, 5);
    // Those before the limit count, with a page of the log each.
    assert_eq!(of(&volume, user).used, Space { blocks: 9, files: 1 });
    is_refused(volume.write(file, 8 * 4096, &[1; 12 * 4096]));
    volume.write(file, 8 * 4096, &[1; 11 * 4096]).unwrap();
    is_refused(volume.allocate(file, 1 << 20, 4096, false));
    is_refused(volume.zero_range(file, 1 << 20, 4096, true));
    is_refused(create_by(&volume, Ino::ROOT, "g", USER));
    // What takes the place of other blocks has room; so has everybody else.
    volume.write(file, 4096, &[2; 18 * 4096]).unwrap();
    let others = create(&volume, "others").unwrap();
    volume.write(others, 0, &[3; 30 * 4096]).unwrap();
    assert_eq!(of(&volume, user).used, Space { blocks: 20, files: 1 });
    volume.truncate(file, 4096).unwrap();
    for name in ["g", "h", "i", "j"] {
        create_by(&volume, Ino::ROOT, name, USER).unwrap();
    }
    is_refused(create_by(&volume, Ino::ROOT, "k", USER));
    volume.unlink(Ino::ROOT, b"j").unwrap();
    create_by(&volume, Ino::ROOT, "k", USER).unwrap();
    // Another owner.
    volume.set_attributes(file, SetAttributes { uid: Some(0), ..SetAttributes::default() }).unwrap();
    assert_eq!(of(&volume, user).used, Space { blocks: 4, files: 4 });
    assert_eq!(counted_anew(&ram, user), of(&volume, user).used);
    limit(&volume, user, 0, 0);
    volume.set_attributes(file, SetAttributes { uid: Some(USER), ..SetAttributes::default() }).unwrap();
    volume.write(file, 0, &[4; 40 * 4096]).unwrap();
    assert!(volume.xattrs(Ino::ROOT).unwrap().is_empty());
    assert!(matches!(volume.set_quota(Subject::User(0), Space { blocks: 1, files: 1 }), Err(Error::Invalid(_))));
}

/// Attributes and names take blocks as well.
#[test]
fn logs_count_for_the_quota_of_their_owner() {
    let (ram, volume) = fresh(&[300, 300]);
    let user = Subject::User(USER);
    limit(&volume, user, 20, 0);
    let file = create_by(&volume, Ino::ROOT, "f", USER).unwrap();
    let set = |i: u32| volume.set_xattr(file, format!("user.{i}").as_bytes(), &[5; 3900], SetXattr::Any);
    let fit = (0..16).take_while(|i| set(*i).is_ok()).count();
    assert!((14..=16).contains(&fit), "{fit}");
    let dir = directory(&volume, "d", USER);
    let name =
        |i: u32| volume.create(dir, format!("{i:0>200}").as_bytes(), NewFile { mode: 0o600, ..NewFile::default() });
    let made = (0..200).map_while(|i| name(i).ok()).count();
    assert!(made < 200, "others' files in the user's directory lengthen its log");
    is_refused(name(1000));
    let used = of(&volume, user).used;
    assert!(used.blocks <= 20 && used.blocks >= 18, "{used:?}");
    assert_eq!(counted_anew(&ram, user), used);
    for i in 0..16 {
        let _ = volume.remove_xattr(file, format!("user.{i}").as_bytes());
    }
    volume.clean(file).unwrap();
    assert!(of(&volume, user).used.blocks < used.blocks - fit as u64 + 2);
    assert_eq!(counted_anew(&ram, user), of(&volume, user).used);
    name(1000).unwrap();
}

#[test]
fn files_of_a_project_are_those_that_were_made_below_its_directory() {
    let (ram, volume) = fresh(&[300, 300]);
    let dir = directory(&volume, "d", 0);
    volume.set_project(dir, 7).unwrap();
    limit(&volume, PROJECT, 12, 0);
    let below = volume.create(dir, b"e", NewFile { mode: 0o040_755, ..NewFile::default() }).unwrap().ino;
    let file = create_by(&volume, below, "f", USER).unwrap();
    let link = NewFile { mode: 0o120_777, target: b"f", ..NewFile::default() };
    let link = volume.create(below, b"l", link).unwrap().ino;
    assert!([dir, below, file, link].iter().all(|ino| volume.project(*ino).unwrap() == 7));
    assert_eq!(of(&volume, PROJECT).used, Space { blocks: 5, files: 4 });
    is_refused(volume.write(file, 0, &[1; 8 * 4096]));
    volume.write(file, 0, &[1; 7 * 4096]).unwrap();
    assert!(volume.xattrs(file).unwrap().is_empty());
    let other = create(&volume, "other").unwrap();
    assert_eq!(volume.project(other).unwrap(), 0);
    volume.set_project(file, 0).unwrap();
    assert_eq!(of(&volume, PROJECT).used, Space { blocks: 4, files: 3 });
    volume.set_project(file, 7).unwrap();
    assert_eq!(counted_anew(&ram, PROJECT), of(&volume, PROJECT).used);
}

/// Limits are attributes of the root, and took of what an inode may have: after some 1,500 nobody
/// could give the root an attribute any more.
#[test]
fn limits_take_nothing_of_the_attributes_that_the_root_may_have() {
    let (_, volume) = fresh(&[400]);
    for uid in 1..=1700 {
        volume.set_quota(Subject::User(uid), Space { blocks: u64::from(uid), files: 0 }).unwrap();
    }
    volume.set_quota(Subject::User(9), Space { blocks: 1, files: 1 }).unwrap();
    let set = |i: u32| volume.set_xattr(Ino::ROOT, format!("user.{i}").as_bytes(), &[1; 4000], SetXattr::Any);
    (0..16).for_each(|i| set(i).unwrap());
    assert!(matches!(set(16), Err(Error::AttributeTooLarge)));
    assert_eq!(volume.quotas().1.len(), 1700);
    volume.set_quota(Subject::User(9), Space::default()).unwrap();
    set(15).unwrap();
}

/// With a checkpoint, and after a crash, which finds an orphan.
#[test]
fn quotas_survive_a_remount_and_a_crash() {
    let (ram, volume) = fresh(&[300, 300]);
    let user = Subject::User(USER);
    limit(&volume, user, 30, 100);
    limit(&volume, PROJECT, 50, 0);
    let file = create_by(&volume, Ino::ROOT, "f", USER).unwrap();
    volume.write(file, 0, &[1; 10 * 4096]).unwrap();
    let used = of(&volume, user);
    volume.unmount().unwrap();
    let volume = mount_whole(Box::new(ram.clone()), options(1)).unwrap();
    assert_eq!(of(&volume, user), used);
    assert_eq!(of(&volume, PROJECT).limit, Space { blocks: 50, files: 0 });
    let orphan = create_by(&volume, Ino::ROOT, "o", USER).unwrap();
    volume.open(orphan).unwrap();
    volume.write(orphan, 0, &[1; 10 * 4096]).unwrap();
    volume.unlink(Ino::ROOT, b"o").unwrap();
    assert_eq!(of(&volume, user).used.blocks, used.used.blocks + 11, "it is open");
    is_refused(volume.write(file, 10 * 4096, &[1; 9 * 4096]));
    drop(volume);
    let volume = mount_whole(Box::new(ram), options(1)).unwrap();
    assert_eq!(of(&volume, user), used);
    volume.write(file, 10 * 4096, &[1; 9 * 4096]).unwrap();
}

/// Counting takes a while, and nobody waits for it.
#[test]
fn what_changes_while_a_volume_is_counted_counts_once() {
    let (ram, volume) = fresh(&[600, 600]);
    let make = |i: u32| create_by(&volume, Ino::ROOT, &format!("f{i}"), USER).unwrap();
    let files: Vec<Ino> = (0..60).map(make).collect();
    assert!(volume.start_counting() && !volume.start_counting());
    std::thread::scope(|scope| {
        scope.spawn(|| volume.count_all(|| true));
        for (i, file) in files.iter().enumerate() {
            match i % 3 {
                0 => volume.write(*file, 0, &[1; 9000]).unwrap(),
                1 => volume.unlink(Ino::ROOT, format!("f{i}").as_bytes()).unwrap(),
                _ => _ = create_by(&volume, Ino::ROOT, &format!("g{i}"), USER).unwrap(),
            }
        }
    });
    let used = of(&volume, Subject::User(USER)).used;
    assert_eq!(used, Space { blocks: 60 + 20 * 3, files: 60 });
    limit(&volume, Subject::User(USER), 1000, 0);
    assert_eq!(counted_anew(&ram, Subject::User(USER)), used);
}

/// An unprivileged user who held files made the server as large as he wanted.
#[test]
fn inodes_that_a_kernel_remembers_go_when_their_owner_has_too_many() {
    const FILES: u32 = 1000;
    let (ram, volume) = fresh(&[2500, 2500]);
    let others = create(&volume, "others").unwrap();
    volume.remember(others).unwrap();
    let dir = directory(&volume, "d", USER);
    volume.remember(dir).unwrap();
    volume.bound_memory(1 << 20);
    let held: Vec<Ino> = (0..FILES)
        .map(|i| {
            let file = create_by(&volume, dir, &format!("f{i}"), USER).unwrap();
            volume.remember(file).unwrap();
            if volume.is_over() {
                volume.shrink();
            }
            file
        })
        .collect();
    // A quarter of the bound is for one owner, and what is left of the names of the root.
    assert!(volume.memory() < 300 << 10 && volume.inodes_in_memory() < 400, "{}", volume.memory());
    assert!(volume.inodes_in_memory() > 10);
    // They are as they were, open and without a name, too.
    let file = held[7];
    volume.open(file).unwrap();
    volume.write(file, 0, b"text").unwrap();
    volume.shrink();
    volume.unlink(dir, b"f7").unwrap();
    let mut text = [0; 4];
    assert_eq!((volume.read(file, 0, &mut text).unwrap(), &text), (4, b"text"));
    volume.close(file).unwrap();
    assert_eq!(volume.leaving(), 1);
    for file in &held {
        volume.forget(*file, 1).unwrap();
        assert!(matches!(volume.forget(*file, 1), Err(Error::NotFound | Error::Invalid(_))));
    }
    assert!(matches!(volume.stat(file), Err(Error::NotFound)));
    assert_eq!(volume.leaving(), 0);
    volume.lookup(dir, b"f8").unwrap();
    volume.unmount().unwrap();
    crate::settled(Box::new(ram));
}

/// Memory has only the names' hashes of long ones; the log is rewritten in the meantime.
#[test]
fn long_attributes_are_read_from_the_log_wherever_it_is() {
    let (ram, volume) = fresh(&[300, 300]);
    let file = create(&volume, "f").unwrap();
    let value = |i: u8, round: u8| vec![i ^ round; 200 + 37 * usize::from(i)];
    let name = |i: u8| format!("user.{}{i}", "n".repeat(usize::from(i) * 10)).into_bytes();
    let check = |volume: &Volume, round: u8| {
        for i in (0..20_u8).filter(|i| i % 5 != 4) {
            assert_eq!(volume.xattr(file, &name(i)).unwrap(), value(i, round), "{i}");
        }
        assert!(matches!(volume.xattr(file, &name(4)), Err(Error::NoAttribute)));
        let mut names: Vec<Vec<u8>> = (0..20_u8).filter(|i| i % 5 != 4).map(name).collect();
        names.sort();
        assert_eq!(volume.xattrs(file).unwrap(), names);
    };
    let mut last = 0;
    for round in 0..6_u8 {
        for i in 0..20 {
            volume.set_xattr(file, &name(i), &value(i, round), SetXattr::Any).unwrap();
            volume.write(file, u64::from(i) * 4096, &[round; 100]).unwrap();
        }
        (4..20).step_by(5).for_each(|i| volume.remove_xattr(file, &name(i)).unwrap());
        check(&volume, round);
        match round % 3 {
            0 => volume.clean(file).unwrap(),
            1 => assert!(volume.clean_in_steps(file, 3, || true).unwrap()),
            _ => {}
        }
        check(&volume, round);
        last = round;
    }
    assert!(matches!(volume.set_xattr(file, &name(3), b"", SetXattr::Create), Err(Error::Exists)));
    assert!(matches!(volume.set_xattr(file, &name(4), b"", SetXattr::Replace), Err(Error::NoAttribute)));
    drop(volume);
    check(&mount_whole(Box::new(ram), options(1)).unwrap(), last);
}

/// Each file that was removed stayed counted, until every request let go of everybody's inodes.
#[test]
fn what_is_removed_takes_no_memory() {
    let (_ram, volume) = fresh(&[300, 300]);
    let before = volume.memory();
    for round in 0..100 {
        let file = create_by(&volume, Ino::ROOT, "f", USER).unwrap();
        (0..round % 7).for_each(|i| volume.write(file, 2 * i * 4096, &[1; 4096]).unwrap());
        volume.remember(file).unwrap();
        volume.unlink(Ino::ROOT, b"f").unwrap();
        volume.forget(file, 1).unwrap();
    }
    // The root's names and extents.
    assert!(volume.memory() < before + 4096, "{before} bytes, then {}", volume.memory());
}

/// The log of a file that is written over grows by pages, which a user at his limit may have.
#[test]
fn at_the_limit_a_file_is_written_over_again_and_again() {
    let (ram, volume) = fresh(&[300, 300]);
    let user = Subject::User(USER);
    let file = create_by(&volume, Ino::ROOT, "f", USER).unwrap();
    volume.write(file, 0, &[1; 8 * 4096]).unwrap();
    limit(&volume, user, 9, 1);
    for i in 0..400 {
        volume.write(file, i % 8 * 4096, &[2; 4096]).unwrap();
    }
    is_refused(volume.write(file, 8 * 4096, &[3; 4096]));
    assert_eq!(counted_anew(&ram, user), of(&volume, user).used);
}
