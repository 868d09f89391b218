//! Whole runs: the shipped code on the clock.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use laboratory::experiment::{Case, Experiment, FIGURES, Load, One, Outcome, Where};
use laboratory::loads::filebench;
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

/// Eight readers of 4 KiB fill the module that has all data. Four of them are one hop away, where a
/// byte takes 1 / 0.654 times as long of it, until a policy moves them.
#[test]
fn readers_have_the_bandwidth_that_the_figures_say() {
    let mut experiment = figure("nthread-5b", 4.0);
    let nova = run(&experiment, "read-only", "NOVA");
    let all_local = 6e9 / 3.0 / 1e6;
    // Those that are near read more than the others, and at most all.
    let half_remote = all_local / (0.5 * (1.0 + 1.0 / 0.654));
    assert!((half_remote..all_local).contains(&nova.value) && nova.controllers[0] > 0.98, "{nova:?}");
    (experiment.seconds, experiment.paper_seconds) = (40.0, 40.0);
    let moved = run(&experiment, "read-only", "NThread_rl");
    assert_eq!(moved.moves, (4, 0));
    // All but the first of forty windows: four at a time, 0.5 µs of software a call.
    let by_cores = 4.0 * 4096.0 / (4096.0 * 0.629e-9 + 0.5e-6) / 3.0 / 1e6;
    let wanted = (39.0 * by_cores + nova.value) / 40.0;
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
    let experiment = figure("audit", 10.0);
    for (series, audit) in [("NOVA", 4398.0), ("NOVA_n", 5020.0), ("NThread_rl", 5390.0)] {
        let outcome = run(&experiment, "readers", series);
        let here = outcome.value / 200.0;
        eprintln!("{series}: {here:.0}, audit {audit}: {outcome:?}");
        assert!((here / audit - 1.0).abs() < 0.03, "{series}: {here} {audit}");
        assert!(outcome.cores.iter().all(|cores| *cores <= 10.0), "never more calls than cores");
    }
}

/// Two programs with a file system each: all that one writes and reads is on its own node, and only
/// what counts is counted.
#[test]
fn programs_at_once_have_their_own_files_and_places() {
    let text = |beside: bool, on: u32| {
        format!(
            r#"
        paper = "none"
        figure = "two"
        title = "two"
        value = "operations_s"
        seconds = 2.0
        paper_seconds = 2.0
        factor = 200.0
        effect = []
        machine = {{ nodes = 2, cores = 2, memory = "optane" }}
        [[point]]
        name = "two"
        [[point.loads]]
        load = {{ kind = "fio", threads = 1, block = 4096, file_bytes = 1e8, read = 0.5 }}
        starts_on = 0
        bound = true
        [[point.loads]]
        load = {{ kind = "fio", threads = 2, block = 4096, file_bytes = 1e8, read = 1.0 }}
        files_on = 1
        starts_on = {on}
        bound = true
        beside = {beside}
        [[series]]
        name = "NOVA"
        placement = "node0"
    "#
        )
    };
    let run = |beside, on| run(&Experiment::parse(&text(beside, on)).unwrap(), "two", "NOVA");
    let (both, first, away) = (run(false, 1), run(true, 1), run(true, 0));
    // Two readers at 0.629 ns a byte and 0.5 µs a call, and nobody else is there.
    let readers = 2.0 / (4096.0 * 0.629e-9 + 0.5e-6);
    assert!(((both.value - first.value) / readers - 1.0).abs() < 0.01, "{both:?} {first:?}");
    assert_eq!(both.done.calls, first.done.calls);
    assert!(both.cores.iter().zip([1.0, 2.0]).all(|(cores, wanted)| (cores - wanted).abs() < 0.05), "{both:?}");
    // Where its threads run changes nothing for the controllers that serve them.
    assert!(away.controllers[1] > 0.25 && (away.cores[1], away.cores[0] > 1.9) == (0.0, true), "{away:?}");
}

#[test]
fn a_point_has_one_load_or_several() {
    let text = FIGURES.iter().find(|(name, _)| *name == "nthread-5a").unwrap().1;
    let none = text.replacen("load = {", "loads = [] # {", 1);
    let why = "point read-only has one load, or several in `loads`, none of them of a host";
    assert_eq!(Experiment::parse(&none).unwrap_err().to_string(), why);
}

/// Policies moved what the load had bound, which the shipped program leaves alone.
#[test]
fn what_a_load_has_bound_is_left_where_it_is() {
    let mut experiment = figure("nthread-5a", 4.0);
    let one = |bound| One {
        load: Load::Fio { threads: 2, block: 4096, file_bytes: 4e9, read: 1.0, think_s: 0.0 },
        files_on: 0,
        starts_on: Some(1),
        bound,
        beside: false,
    };
    let moves = [true, false].map(|bound| {
        let point = experiment.point.first_mut().unwrap();
        (point.load, point.loads) = (None, vec![one(bound)]);
        run(&experiment, "read-only", "NThread_rl").moves
    });
    assert_eq!(moves, [(0, 0), (2, 0)]);
}

/// The constants said to be calibrated gave 29.5 GB/s and 1,029,000 operations a second: they had
/// been chosen for a model that is no more.
#[test]
fn what_is_calibrated_comes_out() {
    let fig2 = run(&figure("dragonfly-2", 10.0), "Node0, normal", "NOVA").value;
    assert!((fig2 / 972e3 - 1.0).abs() < 0.01, "Dragonfly Fig. 2, Node0: {fig2}");
    let text = FIGURES.iter().find(|(known, _)| *known == "dragonfly-6a").unwrap().1;
    let mut heavy = Experiment::parse(&text.replace("\"operations_s\"", "\"mb_s\"")).unwrap();
    (heavy.seconds, heavy.paper_seconds) = (6.0, 6.0);
    heavy.series[0].placement = Where::Node0;
    let [local, remote] = [0, 1].map(|node| {
        let point = heavy.point.first_mut().unwrap();
        point.loads.truncate(1);
        (point.loads[0].starts_on, point.loads[0].bound) = (Some(node), true);
        run(&heavy, "webserver", "baseline").value
    });
    assert!((local / 20_700.0 - 1.0).abs() < 0.02, "TH_l: {local}");
    assert!((remote / 13_500.0 - 1.0).abs() < 0.05, "TH_r: {remote}");
}

/// Fileserver wrote smaller files at a larger factor, and did three times as much.
#[test]
fn a_small_set_keeps_the_size_of_its_files() {
    let fileserver: filebench::Load = toml::from_str(
        "personality = 'fileserver'\nthreads = 7\nfiles = 1e3\nfile_bytes = 131072.0\nio_bytes = 1048576.0",
    )
    .unwrap();
    assert!(fileserver.bytes(200.0) > 50.0 * 131072.0, "{}", fileserver.bytes(200.0));
    assert_eq!(fileserver.bytes(200.0), fileserver.bytes(20.0));
}
