//! Threads that use one volume together.

use fs::{Error, Ino, Migration, NewFile, Rename, Volume};

use crate::crash::use_and_empty;
use crate::medium::{Ram, blank};
use crate::{create, create_in, format, fresh, options};

fn volume() -> (Ram, Volume) {
    let ram = Ram::new(blank(&[700, 900]));
    format(Box::new(ram.clone()), 2);
    (ram.clone(), Volume::mount(Box::new(ram), options(2)).unwrap())
}

#[test]
fn a_migration_stops_when_asked_and_only_one_runs() {
    let (_, volume) = volume();
    let file = create(&volume, "file").unwrap();
    let data: Vec<u8> = (0..500_000).map(|i| (i / 100) as u8).collect();
    volume.write(file, 0, &data).unwrap();
    let migrated = volume
        .migrate_file(file, 1, None, |progress| {
            assert!(matches!(volume.migrate_file(file, 0, None, |_| true), Err(Error::Busy)));
            progress.moved < 30
        })
        .unwrap();
    assert!(migrated.cancelled && migrated.moved == 32, "{migrated:?}");
    let mut out = vec![0; data.len()];
    volume.read(file, 0, &mut out).unwrap();
    assert!(out == data);
    use_and_empty(&volume).unwrap();
}

/// A file of many runs that moves in parts: each part goes on where the one before stopped, and
/// looks at no run twice.
#[test]
fn a_migration_in_parts_looks_at_each_run_once() {
    const RUNS: u64 = 300;
    let (_, volume) = fresh(&[500, 500]);
    let file = |name: &str| {
        let file = create(&volume, name).unwrap();
        for run in 0..RUNS {
            volume.write_to(file, run * 8192, &[run as u8; 4096], fs::Placement::Node(0)).unwrap(); // no two join
        }
        assert_eq!(volume.map(file).unwrap().len() as u64, RUNS);
        file
    };
    let in_parts = |file: Ino, resume: bool| {
        let (mut moved, mut looked, mut next) = (0, 0, 0);
        loop {
            let first = if resume { next } else { 0 };
            let part =
                volume.migrate(file, Migration { to: 1, first, ..Migration::default() }, |p| p.moved < 16).unwrap();
            (moved, looked, next) = (moved + part.moved, looked + part.looked, part.next);
            if !part.cancelled {
                assert_eq!(moved, RUNS);
                assert_eq!(
                    volume.bytes_by_node(file).unwrap().into_iter().collect::<Vec<_>>(),
                    [(Some(1), RUNS * 4096)]
                );
                return looked;
            }
        }
    };
    let resumed = file("resumed");
    assert_eq!(in_parts(resumed, true), RUNS);
    volume.unlink(Ino::ROOT, b"resumed").unwrap();
    // From the beginning each time: those of all parts before, and the first that is elsewhere,
    // once more.
    let parts = RUNS / 16;
    let again = (1..=parts).map(|part| part * 16).sum::<u64>();
    assert_eq!(in_parts(file("restarted"), false), RUNS + again);
}

/// Names made, moved between directories and removed by four threads: no deadlock, nothing lost.
#[test]
fn threads_that_change_the_same_directories() {
    let (ram, volume) = volume();
    let dir = |name: &str| {
        volume.create(Ino::ROOT, name.as_bytes(), NewFile { mode: 0o040_755, ..NewFile::default() }).unwrap().ino
    };
    let dirs = [dir("x"), dir("y"), Ino::ROOT];
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let volume = &volume;
            scope.spawn(move || {
                for round in 0..300_usize {
                    let name = |i: usize| format!("n{}", i % 5);
                    let (a, b) = (dirs[round % 3], dirs[(round + thread) % 3]);
                    let results = [
                        create_in(volume, a, &name(round)).map(|_| ()),
                        volume.rename((a, name(round).as_bytes()), (b, name(round + 1).as_bytes()), Rename::Replace),
                        volume
                            .lookup(b, name(round).as_bytes())
                            .and_then(|s| volume.link(s.ino, a, name(thread).as_bytes()).map(|_| ())),
                        volume.rename((a, b"x"), (b, b"y"), Rename::Exchange),
                        volume.unlink(b, name(round + thread).as_bytes()),
                    ];
                    for error in results.into_iter().filter_map(Result::err) {
                        assert!(
                            matches!(
                                error,
                                Error::NotFound
                                    | Error::Exists
                                    | Error::NoSpace
                                    | Error::IsDirectory
                                    | Error::Invalid(_)
                                    | Error::NotPermitted
                            ),
                            "{error}"
                        );
                    }
                }
            });
        }
    });
    let tree = crate::model::observe(&volume);
    drop(volume);
    crate::sound(Box::new(ram.clone()));
    let volume = Volume::mount(Box::new(ram), options(2)).unwrap();
    assert!(crate::model::observe(&volume) == tree);
    use_and_empty(&volume).unwrap();
}
