//! `auto`: what it decides, that it stops, and how far it is from the best there is.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod toy;

use placement::auto::{Auto, Settings};
use placement::{Move, nthread, policy};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use toy::Toy;

fn auto() -> Auto {
    Auto::new(Settings::default())
}

/// Bytes/s after `windows` windows under a policy of the papers.
fn under(name: &str, toy: &Toy, windows: u32) -> f64 {
    let mut toy = toy.clone();
    toy.run(policy(name, &nthread::Settings::default()).unwrap().as_mut(), windows)
}

#[test]
fn remote_readers_go_to_their_data() {
    let mut toy = Toy::new(2, 8.0);
    for i in 0..4 {
        let f = toy.file(0, 4000.0);
        toy.reader(i % 2, f, 1e-9);
    }
    let before = toy.rates().total();
    let after = toy.run(&mut auto(), 20);
    assert!(toy.threads.iter().all(|t| t.node == 0), "{:?}", toy.moves);
    assert_eq!(toy.moves.len(), 2);
    assert!(after > 1.05 * before);
}

#[test]
fn read_contention_moves_files_and_threads() {
    // 16 readers fill node 0's controller; NThread moves no data, and so can do nothing (V-C).
    let mut toy = Toy::new(2, 16.0);
    for _ in 0..16 {
        let f = toy.file(0, 500.0);
        toy.reader(0, f, 0.2e-9);
    }
    assert!(under("nthread", &toy, 40) < 6.81e9);
    let after = toy.run(&mut auto(), 40);
    assert!(after > 13.5e9, "{after:e} of 13.6e9: {:?}", toy.moves);
    let files = toy.moves.iter().filter(|(_, mv)| matches!(mv, Move::File { .. })).count();
    assert_eq!(files, 8, "{:?}", toy.moves);
}

fn random(runner: &mut TestRunner, most_nodes: usize, most_threads: usize) -> Toy {
    let strategy = (2..=most_nodes, 1..=most_threads, 1u32..=8, any::<u64>());
    let (nodes, threads, cpus, seed) = strategy.new_tree(runner).unwrap().current();
    let mut state = seed | 1;
    let mut pick = |n: u64| {
        // xorshift64*: any numbers will do, the same every time.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    };
    let mut toy = Toy::new(nodes, f64::from(cpus));
    for a in 0..nodes {
        for b in 0..a {
            let d = [16, 21, 21, 31][pick(4) as usize];
            (toy.distance[a][b], toy.distance[b][a]) = (d, d);
        }
    }
    let skew = pick(3);
    for i in 0..threads {
        let home = if skew == 0 { 0 } else { pick(nodes as u64) as usize };
        let f = toy.file(home, 20_000.0);
        toy.reader(i % nodes, f, [0.1e-9, 0.3e-9, 1e-9, 3e-9][pick(4) as usize]);
        let writes = [0.0, 0.0, 0.2, 0.6][pick(4) as usize];
        let t = toy.threads.last_mut().unwrap();
        t.writes = writes;
        t.reads[0].1 = 1.0 - writes;
        t.off_s = [0.0, 0.0, 1e-9][pick(3) as usize];
    }
    toy
}

#[test]
fn regret() {
    let config = Config { failure_persistence: None, ..Config::default() };
    let mut runner =
        TestRunner::new_with_rng(config, proptest::test_runner::TestRng::deterministic_rng(Default::default()));
    let mut worst: Vec<(f64, usize, Toy)> = Vec::new();
    let papers = ["nthread", "nthread-rl", "nthread-cpu", "dragonfly", "arc"];
    let mut lost = vec![0.0; papers.len() + 1];
    for case in 0..100 {
        let toy = random(&mut runner, 3, 6);
        let best = toy.best();
        for (i, p) in papers.iter().enumerate() {
            lost[i] += 1.0 - (under(p, &toy, 20) / best).min(1.0);
        }
        let mut own = toy.clone();
        let rate = own.run(&mut auto(), 20);
        let late = own.moves.iter().filter(|m| m.0 > 10).count();
        if late > 0 {
            println!("case {case}: {late} late moves");
            for m in &own.moves {
                println!("  {m:?}");
            }
            println!("{:?} {:?}", toy.nodes[0], toy.distance);
            for t in &toy.threads {
                println!("   {t:?} {:?}", toy.files[t.reads[0].0]);
            }
        }
        lost[papers.len()] += 1.0 - (rate / best).min(1.0);
        worst.push((rate / best, case, toy));
    }
    worst.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("{papers:?} auto: {:?}", lost);
    for (r, case, toy) in worst.iter().take(6) {
        println!("{case} {r:.4} papers {:?}", papers.map(|p| under(p, toy, 20) / toy.best()));
    }
    let (_, _, toy) = &worst[0];
    let mut own = toy.clone();
    own.run(&mut auto(), 20);
    println!("{:?}", toy.nodes);
    println!("{:?}", toy.distance);
    for t in &toy.threads {
        println!("{t:?} {:?}", toy.files[t.reads[0].0]);
    }
    for m in &own.moves {
        println!("{m:?}");
    }
}
