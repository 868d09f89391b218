//! Regions that are emptied before they go, and what a region costs that was not.

use fs::{Error, Held, Ino, Kind, NewFile, Placement, SetXattr, Volume, Why};

use crate::fresh;
use crate::model::{observe, try_observe};
use crate::regions::{Files, look_without, on_files};
use crate::twins::on_files_twice;

fn made(volume: &Volume, node: u32, dir: Ino, name: &str, mode: u32) -> Ino {
    let target: &[u8] = if mode & libc::S_IFMT == libc::S_IFLNK { b"some/target" } else { b"" };
    let new = NewFile { mode, target, ..NewFile::default() };
    fs::on_node(node, || volume.create(dir, name.as_bytes(), new).unwrap().ino)
}

/// What programs on each node make: a directory with a file, in it one more, links of both kinds,
/// attributes; and a file over all regions in the root.
pub fn fill(volume: &Volume, nodes: u32) {
    let local = |node, file, data: &[u8]| volume.write_to(file, 0, data, Placement::Node(node)).unwrap();
    for node in 0..nodes {
        let dir = made(volume, node, Ino::ROOT, &format!("d{node}"), libc::S_IFDIR | 0o755);
        let below = made(volume, node, dir, "below", libc::S_IFDIR | 0o755);
        let file = made(volume, node, dir, "file", 0o644);
        local(node, file, &[node as u8 + 1; 70_000]);
        volume.set_xattr(file, b"user.long", &[9; 3000], SetXattr::Any).unwrap();
        volume.allocate(file, 70_000, 9000, true).unwrap();
        volume.link(file, below, b"again").unwrap();
        volume.link(file, Ino::ROOT, format!("l{node}").as_bytes()).unwrap();
        made(volume, node, below, "symlink", libc::S_IFLNK | 0o777);
        made(volume, node, below, "fifo", libc::S_IFIFO | 0o600);
        for i in 0..100 {
            let file = made(volume, node, below, &format!("{i}"), 0o644);
            local(node, file, format!("{node} {i}").as_bytes());
        }
    }
    let all = made(volume, 0, Ino::ROOT, "all", 0o644);
    volume.write_to(all, 0, &vec![7; nodes as usize * 200_000], Placement::Interleave).unwrap();
}

/// A region that goes took along what was on it; nothing could empty it before.
#[test]
fn what_was_on_a_drained_region_survives_its_loss() {
    for clean in [true, false] {
        for fresh_mount in [false, true] {
            let Files { place: _place, paths, mut volume } = on_files(3);
            fill(&volume, 3);
            let before = observe(&volume);
            if fresh_mount {
                volume.unmount().unwrap();
                volume = Volume::mount(Box::new(fs::open_files(&paths).unwrap()), crate::options(2)).unwrap();
            }
            let times = |volume: &Volume| volume.stat(volume.resolve(b"d1").unwrap()).unwrap().attributes.mtime;
            let (held, mtime) = (volume.held(1), times(&volume));
            assert!(held.blocks > 100 && held.inodes == 105, "{held:?}");
            let mut told = Vec::new();
            let done = volume.drain(1, |left| {
                told.push(left);
                true
            });
            let done = done.unwrap();
            assert_eq!((done.left, done.stays.as_slice(), done.cancelled), (Held::default(), &[][..], false));
            assert!(told.first() == Some(&held) && told.iter().any(|left| left.blocks < held.blocks / 2));
            assert_eq!((observe(&volume), times(&volume)), (before.clone(), mtime), "and nobody sees it");
            for path in [&b"d1/below"[..], b"d0/below"] {
                let dir = volume.resolve(path).unwrap();
                let up = volume.lookup(dir, b"..").unwrap().ino;
                assert_eq!(up, volume.resolve(&path[..2]).unwrap());
            }
            // A region that is being drained gets nothing new.
            let new = made(&volume, 1, Ino::ROOT, "new", 0o644);
            volume.write_to(new, 0, &[1; 9000], Placement::Node(1)).unwrap();
            assert_eq!((volume.held(1), new.region() == 1), (Held::default(), false));
            volume.unlink(Ino::ROOT, b"new").unwrap();
            if clean {
                volume.unmount().unwrap();
            } else {
                drop(volume);
            }
            assert_eq!(try_observe(&look_without(&paths, 1)).unwrap(), before, "unmounted: {clean}");
            let volume = Volume::mount(Box::new(fs::open_files(&paths).unwrap()), crate::options(1)).unwrap();
            assert_eq!((volume.damage(), observe(&volume)), (&[][..], before));
            crate::crash::use_and_empty(&volume).unwrap();
        }
    }
}

#[test]
fn what_cannot_leave_a_region_is_told_with_its_reason() {
    let (_ram, volume) = fresh(&[1200, 1200]);
    fill(&volume, 2);
    let find = |path: &str| volume.resolve(path.as_bytes()).unwrap();
    let (open, known) = (find("d1/file"), find("d1/below/7"));
    volume.open(open).unwrap();
    volume.remember(known).unwrap();
    let stays = |volume: &Volume, region| {
        let done = volume.drain(region, |_| true).unwrap();
        let text = |path: &Option<Vec<u8>>| String::from_utf8(path.clone().unwrap()).unwrap();
        let stays = done.stays.iter().map(|stays| (text(&stays.path), stays.why.clone())).collect::<Vec<_>>();
        (done.left, stays)
    };
    let (left, told) = stays(&volume, 1);
    assert_eq!((left.blocks, left.inodes), (0, 2), "their blocks leave, their numbers stay");
    assert_eq!(told.len(), 2);
    let of_file = |path: &str| ["/l1", "/d1/file", "/d1/below/again"].contains(&path);
    assert!(told.iter().any(|(path, why)| of_file(path) && *why == Why::Open), "{told:?}");
    assert!(told.contains(&("/d1/below/7".to_owned(), Why::Remembered)), "{told:?}");
    volume.close(open).unwrap();
    volume.forget(known, 1).unwrap();
    assert_eq!(stays(&volume, 1), (Held::default(), Vec::new()), "drained again, they leave");
    // Somebody has to take what is written.
    assert!(matches!(volume.drain(0, |_| true), Err(Error::Invalid(_))));
    assert!(matches!(volume.drain(2, |_| true), Err(Error::Invalid(_))));
    volume.avoid(1, false).unwrap();
    let (left, told) = stays(&volume, 0);
    assert_eq!((left, told), (Held { blocks: 0, inodes: 1 }, vec![("/".to_owned(), Why::Root)]));
    volume.avoid(0, false).unwrap();

    // No room elsewhere, and a drain that is stopped: all is there, some here and some there.
    let large = made(&volume, 0, Ino::ROOT, "large", 0o644);
    while volume.append(large, &[3; 4096]).is_ok() {}
    let before = observe(&volume);
    let (left, told) = stays(&volume, 1);
    assert!(left.blocks > 0 && told.iter().any(|(_, why)| matches!(why, Why::Failed(why) if why.contains("no room"))));
    let mut steps = 0;
    let stopped = volume.drain(1, |_| {
        steps += 1;
        steps < 9
    });
    assert!(stopped.unwrap().cancelled);
    assert_eq!(observe(&volume), before);
    volume.avoid(1, false).unwrap();
    crate::crash::use_and_empty(&volume).unwrap();
}

/// What docs/volumes.md says that a lost region costs: of programs that each write on their node,
/// with a directory of their own. With the logs twice it costs the data on it, and no name.
#[test]
fn what_a_lost_region_costs() {
    for (lost, twice) in (0..3).flat_map(|lost| [(lost, false), (lost, true)]) {
        let (_place, paths, volume) = if twice {
            let place = tempfile::tempdir_in("/dev/shm").unwrap();
            let (paths, volume) = on_files_twice(place.path());
            (place, paths, volume)
        } else {
            let Files { place, paths, volume } = on_files(3);
            (place, paths, volume)
        };
        fill(&volume, 3);
        let all = observe(&volume);
        let inos: Vec<Ino> = (0..3)
            .flat_map(|node| {
                let below = volume.resolve(format!("d{node}/below").as_bytes()).unwrap();
                let names = volume.names(below, 0, 999).unwrap();
                names.into_iter().filter(|name| name.named.kind == Kind::File).map(|name| name.named.ino)
            })
            .collect();
        assert_eq!(inos.len(), 303);
        volume.unmount().unwrap();
        let volume = look_without(&paths, lost);
        // A file of the others keeps data and path, unless the root is lost: then its top directory
        // is called by its number.
        let whole = |ino: &&Ino| {
            let mut out = vec![0; 70_000];
            let size = volume.stat(**ino).map(|stat| stat.size);
            size.is_ok_and(|size| volume.read(**ino, 0, &mut out).is_ok_and(|len| len as u64 == size))
        };
        let kept = inos.iter().filter(whole).count();
        let seen = |path: &String| volume.resolve(path.as_bytes()).is_ok_and(|ino| volume.stat(ino).is_ok());
        let by_path = all.keys().filter(|path| seen(path)).count();
        println!(
            "region {lost} lost, logs twice: {twice}: {kept} of {} files whole, {by_path} of {} paths",
            inos.len(),
            all.len()
        );
        assert_eq!(kept, 202);
        if twice {
            assert_eq!(by_path, all.len(), "nothing has lost its name");
            continue;
        }
        assert_eq!(by_path, if lost == 0 { 1 } else { all.len() - 107 });
        let other = (lost + 1) % 3;
        let top = volume.names(Ino::ROOT, 0, 99).unwrap();
        assert!(top.iter().any(|name| name.name == format!("d{other}").as_bytes()) != (lost == 0));
    }
}

/// What a kernel would remember of a path while it works on it: no drain gives that another number.
struct Known<'a>(&'a Volume, Vec<Ino>);

impl<'a> Known<'a> {
    fn of(volume: &'a Volume, path: &str) -> fs::Result<Self> {
        let mut held = Self(volume, Vec::new());
        for name in path.split('/') {
            held.1.push(volume.lookup_to_remember(held.ino(), name.as_bytes())?.ino);
        }
        Ok(held)
    }

    fn ino(&self) -> Ino {
        self.1.last().copied().unwrap_or(Ino::ROOT)
    }
}

impl Drop for Known<'_> {
    fn drop(&mut self) {
        self.1.drain(..).for_each(|ino| self.0.forget(ino, 1).unwrap());
    }
}

#[test]
fn regions_are_drained_in_turns_while_others_work() {
    let (ram, volume) = fresh(&[3000, 3000]);
    let over = std::sync::atomic::AtomicUsize::new(0);
    let names = ["a", "b"];
    for name in names {
        let dir = made(&volume, 0, Ino::ROOT, name, libc::S_IFDIR | 0o755);
        made(&volume, 1, dir, "below", libc::S_IFDIR | 0o755);
    }
    let mut changed = 0;
    std::thread::scope(|scope| {
        for name in names {
            let (volume, over) = (&volume, &over);
            scope.spawn(move || {
                for round in 0..120_u8 {
                    let dir = Known::of(volume, &format!("{name}/below")).unwrap();
                    made(volume, u32::from(round % 2), dir.ino(), &format!("{round}"), 0o644);
                    drop(dir);
                    let file = Known::of(volume, &format!("{name}/below/{round}")).unwrap();
                    volume.write(file.ino(), 0, &[round + 1; 9000]).unwrap();
                    drop(file);
                    let (from, to) = (Known::of(volume, &format!("{name}/below")), Known::of(volume, name));
                    let (from, to) = (from.unwrap(), to.unwrap());
                    let old = format!("{round}");
                    if round % 3 == 0 {
                        volume.unlink(from.ino(), old.as_bytes()).unwrap();
                    } else {
                        let how = fs::Rename::Replace;
                        volume.rename((from.ino(), old.as_bytes()), (to.ino(), old.as_bytes()), how).unwrap();
                    }
                }
                over.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
        }
        let number = || volume.resolve(b"a/below").unwrap();
        for region in (0..2).cycle() {
            let before = number();
            volume.drain(region, |_| true).unwrap();
            volume.avoid(region, false).unwrap();
            changed += usize::from(number() != before);
            if over.load(std::sync::atomic::Ordering::Relaxed) == names.len() {
                break;
            }
        }
    });
    volume.drain(1, |_| true).unwrap();
    assert_eq!(volume.held(1), Held::default(), "nobody is at it any more");
    volume.unmount().unwrap();
    crate::settled(Box::new(ram.clone()));
    let volume = crate::mount_whole(Box::new(ram), crate::options(1)).unwrap();
    for (name, round) in names.into_iter().flat_map(|name| (0..120_u8).map(move |round| (name, round))) {
        let found = volume.resolve(format!("{name}/{round}").as_bytes());
        let mut out = vec![0; 9000];
        match round % 3 {
            0 => assert!(matches!(found, Err(Error::NotFound))),
            _ => assert!(volume.read(found.unwrap(), 0, &mut out).unwrap() == 9000 && out == [round + 1; 9000]),
        }
    }
    println!("a directory got {changed} other numbers");
    crate::crash::use_and_empty(&volume).unwrap();
}
