//! The database of the laboratory beside the real one, as counted: see `loads::lsm`.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::rc::Rc;
use std::sync::Arc;

use fs::format::Ino;
use laboratory::loads::lsm::{Benchmark, Counts, Db, Load};
use laboratory::machine::{Build, Machine};
use laboratory::thread::Lab;
use memory_model::{Memory, Profile};

/// Runs one thread for so many seconds on a database of 50,000 keys, then gets so many keys.
/// The counts before the gets and, of the gets alone, after them; tables of level 0.
fn run(benchmark: Benchmark, put_bw: Option<f64>, seconds: f64, then: u64) -> ([Counts; 2], usize) {
    let profile = Profile { scale: 1.0, ..Profile::named("optane").unwrap() };
    let topology = profile.topology(&(0..8).collect(), 1, 4 << 30);
    let build = Build { topology, memory: vec![Memory::OPTANE], link_bw: f64::INFINITY, slice_s: 3e-3, seed: 1 };
    let machine = Arc::new(Machine::new(build));
    let mut lab = Lab::new(Arc::clone(&machine), 200_000, fs::Placement::Node(0), 1).unwrap();
    lab.end_ns = (seconds * 1e9) as u64;
    let lab = Rc::new(lab);
    let load = Load { benchmark, threads: 1, keys: 10e6, put_bw };
    let db = clock::run(move || {
        let db = Db::new(&load, &lab, Ino::ROOT, 200.0, fs::Placement::Node(0)).unwrap();
        let (own, after) = (Rc::clone(&db), Rc::clone(&lab));
        lab.start();
        Rc::clone(&db).start(&lab, load);
        let counts = Rc::new(std::cell::Cell::new(([Counts::default(); 2], 0)));
        let out = Rc::clone(&counts);
        lab.spawn(move |t| {
            t.sleep(seconds + 1.0);
            let before = own.counts();
            for _ in 0..then {
                let key = t.random(50_000) as u32;
                own.get(t, key);
            }
            let end = own.counts();
            let gets = (end.gets.0 - before.gets.0, end.gets.1 - before.gets.1);
            counts.set(([before, Counts { gets, ..end }], own.newest()));
            drop(after);
        });
        out
    });
    db.unwrap().get()
}

fn near(what: &str, here: f64, counted: f64, within: f64) {
    println!("{what}: {here:.2}, counted {counted:.2}");
    assert!((here / counted - 1.0).abs() <= within, "{what}: {here} and {counted}");
}

#[test]
fn a_get_reads_what_rocksdb_reads() {
    let ([_, Counts { gets, .. }], _) = run(Benchmark::Readrandom, None, 0.01, 20_000);
    near("blocks of a get", gets.1 as f64 / gets.0 as f64, 199_963.0 / 200_000.0, 0.01);
}

#[test]
fn a_put_writes_what_rocksdb_writes() {
    let ([Counts { puts, flushed, compacted, .. }, Counts { gets, .. }], newest) =
        run(Benchmark::Overwrite, Some(2.5e6), 25_000.0 * 4128.0 / 2.5e6, 20_000);
    let each = |bytes: u64| bytes as f64 / puts.0 as f64;
    near("puts", puts.0 as f64, 25_000.0, 0.01);
    near("log", each(puts.1), 4128.0, 0.01);
    near("level 0", each(flushed), 4160.1, 0.02);
    near("compactions read", each(compacted.0), 44_010.0, 0.03);
    near("compactions wrote", each(compacted.1), 41_893.0, 0.03);
    // Each table of level 0 has one; there were three.
    near("blocks of a get below level 0", gets.1 as f64 / gets.0 as f64 - newest as f64, 5.74 - 3.0, 0.05);
}
