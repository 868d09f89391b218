//! Whole runs: the shipped code on the clock.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use laboratory::experiment::{Case, Experiment, FIGURES, Outcome};
use laboratory::report::Results;

/// A figure of the laboratory, shorter: so many seconds of its 60, with its data.
fn figure(name: &str, seconds: f64) -> Experiment {
    let text = FIGURES.iter().find(|(known, _)| *known == name).unwrap().1;
    let mut experiment = Experiment::parse(text).unwrap();
    (experiment.seconds, experiment.paper_seconds) = (seconds, seconds);
    experiment
}

fn run(experiment: &Experiment, point: &str, series: &str) -> Outcome {
    let point = experiment.point.iter().position(|known| known.name == point).unwrap();
    let series = experiment.series.iter().position(|known| known.name == series).unwrap();
    experiment.run(Case { point, series }, 1).unwrap()
}

#[test]
fn every_figure_can_be_read_and_names_what_exists() {
    for (name, text) in FIGURES {
        let experiment = Experiment::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!experiment.cases(&[]).is_empty() && !experiment.effect.is_empty(), "{name}");
    }
    let wrong = FIGURES[0].1.replace("over = \"NOVA\"", "over = \"NOWA\"");
    assert_eq!(Experiment::parse(&wrong).unwrap_err().to_string(), "there is no series called NOWA");
}

#[test]
fn the_same_run_twice_is_the_same_to_the_byte_and_another_seed_is_another_run() {
    for (name, point, series) in [("nthread-5b", "rw60", "NThread"), ("nthread-6a", "varmail", "NOVA_n")] {
        let experiment = figure(name, 4.0);
        let (mut twice, mut other) = ([Results::default(), Results::default()], Results::default());
        let point = experiment.point.iter().position(|known| known.name == point).unwrap();
        let series = experiment.series.iter().position(|known| known.name == series).unwrap();
        let case = Case { point, series };
        for results in &mut twice {
            results.add(case, 1, experiment.run(case, 1).unwrap());
        }
        assert_eq!(twice[0].csv(&experiment), twice[1].csv(&experiment));
        other.add(case, 1, experiment.run(case, 2).unwrap());
        assert_ne!(twice[0].csv(&experiment), other.csv(&experiment));
    }
}

/// Four readers of 4 KiB fill the module that has all data. Two of them are one hop away, where a
/// byte takes 1 / 0.654 times as long of it, until a policy moves them.
#[test]
fn readers_have_the_bandwidth_that_the_figures_say() {
    let mut experiment = figure("nthread-5a", 4.0);
    let nova = run(&experiment, "read-only", "NOVA");
    let all_local = 6e9 / 3.0 / 1e6;
    // Those that are near read more than the others, and at most all.
    let half_remote = all_local / (0.5 * (1.0 + 1.0 / 0.654));
    assert!((half_remote..all_local).contains(&nova.value) && nova.controllers[0] > 0.98, "{nova:?}");
    (experiment.seconds, experiment.paper_seconds) = (40.0, 40.0);
    let moved = run(&experiment, "read-only", "NThread_rl");
    assert_eq!(moved.moves, (2, 0));
    // All but the first of forty windows.
    let wanted = (39.0 * all_local + nova.value) / 40.0;
    assert!((moved.value / wanted - 1.0).abs() < 0.005, "{} {wanted}", moved.value);
}

/// The engine sees the paper's time: a lead of 200 MB/s in reads moves a thread, less does not.
#[test]
fn policies_are_told_the_papers_time() {
    for factor in [100.0, 400.0] {
        let mut experiment = figure("nthread-5a", 4.0);
        experiment.factor = factor;
        // Four threads read 550 and 90 MB/s each.
        assert_eq!(run(&experiment, "read-only", "NThread_rl").moves.0, 2, "{factor}");
        assert_eq!(run(&experiment, "rw20", "NThread_rl").moves.0, 0, "{factor}");
        assert!(run(&experiment, "rw20", "NThread_rl, 4 MiB/s").moves.0 >= 2, "{factor}");
    }
}

/// A node with more threads than cores: where cores were only reckoned, calls waited for memory
/// that had no core, and 100 readers on ten cores had 2,658 operations/s, half of what ten cores
/// that are held have. The audit's numbers are at scale 200.
#[test]
fn a_hundred_readers_on_ten_cores_fill_the_module() {
    let text = r#"
        paper = "none"
        figure = "readers"
        title = "100 readers of whole files of 16 KiB, 83 files on node 0"
        value = "operations_s"
        seconds = 10.0
        paper_seconds = 10.0
        factor = 200.0
        effect = []
        [machine]
        nodes = 2
        cores = 10
        memory = "optane"
        link_bw = inf
        [[point]]
        name = "readers"
        [point.load]
        kind = "filebench"
        personality = "readers"
        threads = 100
        files = 16600.0
        file_bytes = 16384.0
        io_bytes = 1048576.0
        [[series]]
        name = "NOVA"
        placement = "node0"
        [[series]]
        name = "NOVA_n"
        placement = "random"
        [[series]]
        name = "NThread_rl"
        placement = "local"
        policy = "nthread-rl"
        nthread = { locality_margin = 4194304.0 }
    "#;
    let experiment = Experiment::parse(text).unwrap();
    for (series, audit) in [("NOVA", 4398.0), ("NOVA_n", 5020.0), ("NThread_rl", 5390.0)] {
        let outcome = run(&experiment, "readers", series);
        let here = outcome.value / 200.0;
        eprintln!("{series}: {here:.0}, audit {audit}: {outcome:?}");
        assert!((here / audit - 1.0).abs() < 0.05, "{series}: {here} {audit}");
        assert!(outcome.cores.iter().all(|cores| *cores <= 10.0), "never more calls than cores");
    }
}
