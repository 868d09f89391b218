//! The volume as the engine drives it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use engine::{Copies, JobState, Plane, Subject};
use fs::format::Ino;
use laboratory::machine::{Build, Machine};
use laboratory::plane::LabPlane;
use laboratory::thread::Lab;
use memory_model::{Memory, Profile};
use placement::{Move, Reason};
use topology::{FileId, NodeId};

fn lab() -> Rc<Lab> {
    let profile = Profile { scale: 1.0, ..Profile::named("optane").unwrap() };
    let topology = profile.topology(&(0..16).collect(), 2, 1 << 30);
    let build = Build { topology, memory: vec![Memory::OPTANE; 2], link_bw: f64::INFINITY, slice_s: 3e-3, seed: 1 };
    let mut lab = Lab::new(Arc::new(Machine::new(build)), 20_000, fs::Placement::Local, 1).unwrap();
    lab.end_ns = 10_000_000_000;
    Rc::new(lab)
}

/// Copies that began together each had the rate for themselves and those before them.
#[test]
fn copies_that_run_side_by_side_share_the_pace() {
    const RATE: f64 = 100e6;
    for (copies, bytes) in [(1, 8 << 20), (8, 1 << 20), (64, 16 << 10)] {
        let lab = lab();
        let took = clock::run(move || {
            let fill = |i| lab.fill(Ino::ROOT, &format!("file{i}"), bytes, fs::Placement::Node(0)).unwrap();
            let files: Vec<_> = (0..copies).map(fill).collect();
            lab.start();
            let mut plane = LabPlane::new(lab);
            let took = Rc::new(Cell::new(0.0));
            let out = Rc::clone(&took);
            clock::spawn(move || {
                plane.copies().unwrap().pace(RATE);
                for file in &files {
                    let subject = Subject::File(FileId { dev: 7, ino: file.0.raw(), generation: file.1 });
                    let mv = Move {
                        subject,
                        pid: 0,
                        from: NodeId(0),
                        to: NodeId(1),
                        reason: Reason::ReadLocality,
                        why: String::new().into(),
                        ranges: Vec::new(),
                    };
                    plane.start(&mv, &[], &mut |_| Ok(())).unwrap();
                }
                plane.settle();
                let all = plane.poll();
                assert!(all.iter().all(|job| job.state == JobState::Done && job.done == bytes), "{all:?}");
                took.set(clock::now_ns() as f64 * 1e-9);
            });
            out
        });
        let (took, wanted) = (took.unwrap().get(), f64::from(copies) * bytes as f64 / RATE);
        assert!((took / wanted - 1.0).abs() < 0.05, "{copies} copies: {took} s, {wanted}");
    }
}

/// The number of a file that is removed while another thread has it open was the next new file's.
#[test]
fn an_open_file_keeps_its_number_when_another_thread_removes_it() {
    let lab = lab();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&seen);
    clock::run(move || {
        let file = lab.fill(Ino::ROOT, "a", 8192, fs::Placement::Node(0)).unwrap();
        lab.start();
        let own = Rc::clone(&seen);
        lab.spawn(move |t| {
            assert!(t.open(file));
            t.sleep(1e-3);
            own.borrow_mut().push((t.read(file, 0, 8192), t.size(file)));
            t.close(file);
            assert!(!t.open(file), "it is gone, whoever has its number");
        });
        lab.spawn(move |t| {
            t.sleep(1e-4);
            assert!(t.remove(Ino::ROOT, "a"));
            let new = t.create(Ino::ROOT, "b").unwrap();
            t.append(new, 100);
            seen.borrow_mut().push((t.read(new, 0, 8192), t.size(new)));
            t.sleep(2e-3);
            t.close(new);
        });
    })
    .unwrap();
    assert_eq!(*out.borrow(), [(100, 100), (8192, 8192)]);
}
