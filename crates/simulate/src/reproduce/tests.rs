//! All experiments once, with one seed, looked at from several sides.

use std::collections::BTreeSet;

use super::causes::CAUSES;
use super::*;

/// Every figure with one seed; half a minute in a debug build, so it is shared.
fn figures() -> &'static [Figure] {
    static FIGURES: OnceLock<Vec<Figure>> = OnceLock::new();
    FIGURES.get_or_init(|| reproduce(&Paper::ALL, &Bench::new(1, &|_, _| {})).unwrap())
}

#[test]
fn every_number_that_the_papers_state_is_compared_with_one_of_ours() {
    for paper in Paper::ALL {
        for stated in &paper.data().stated {
            let points = figures().iter().filter(|f| f.paper == paper && f.id == stated.figure).flat_map(|f| &f.points);
            let of: Vec<&Point> = points.filter(|p| p.series == stated.series && p.point == stated.point).collect();
            assert_eq!(of.len(), 1, "{stated:?}");
            assert_eq!((of[0].paper_value, of[0].unit), (Some(stated.value), stated.unit.as_str()), "{stated:?}");
        }
    }
}

#[test]
fn figures_are_complete() {
    let mut names = BTreeSet::new();
    for figure in figures() {
        let name = format!("{} {}", figure.paper.name(), figure.id);
        assert!(!figure.points.is_empty() && !figure.setup.is_empty(), "{name}");
        assert!(figure.points.iter().all(|p| p.homenode_value.is_finite()), "{name}: {:?}", figure.points);
        let drawn: usize = match &figure.plot {
            Plot::Bars { groups, series, .. } => {
                assert!(series.iter().all(|s| s.1.len() == groups.len()), "{name}");
                series.len() * groups.len()
            }
            Plot::Lines { series, .. } => series.iter().map(|s| s.1.len()).sum(),
        };
        assert!(drawn > 1, "{name}: nothing to draw");
        assert!(names.insert(figure.png_name()), "{name} twice");
    }
    let wanted = [
        "nthread-2",
        "nthread-4",
        "nthread-5a",
        "nthread-5b",
        "nthread-6a",
        "nthread-6b",
        "nthread-7a",
        "nthread-7b",
        "nthread-7c",
        "nthread-8",
        "nthread-9",
        "nthread-table-ii",
        "dragonfly-2",
        "dragonfly-6a",
        "dragonfly-6b",
        "dragonfly-6c",
        "dragonfly-6d",
        "npolicy-3a",
        "npolicy-3b",
        "arc-5.2",
        "arc-6.1",
        "arc-8.1",
        "arc-8.5",
        "arc-8.6",
    ];
    for figure in wanted {
        assert!(names.contains(&format!("{figure}.png")), "{figure} is missing");
    }
}

#[test]
fn what_was_calibrated_comes_out() {
    for constant in CALIBRATED {
        for (paper, [figure, series, point]) in constant.on {
            let figure = figures().iter().find(|f| f.paper == *paper && f.id == *figure).unwrap();
            let p = figure.points.iter().find(|p| p.series == *series && p.point == *point).unwrap();
            assert_eq!(p.kind, Kind::Calibrated, "{}", constant.name);
            let difference = p.difference().unwrap();
            // Chosen when the model had all threads of a file set share its data, and not chosen again since.
            let off = if constant.name == "OPTANE_READ_S" { 0.23 } else { 0.12 };
            assert!(difference.abs() < off, "{}: {difference:+.3} of {series}, {point}", constant.name);
        }
    }
}

#[test]
fn every_miss_has_a_cause_and_every_cause_a_miss() {
    let mut needed = BTreeSet::new();
    let mut note = |figure: &Figure, series: &str, point: &str| {
        let cause = CAUSES.iter().position(|c| c.is_of(figure.paper, figure.id, series, point));
        needed.insert(
            cause.unwrap_or_else(|| panic!("{} {}: {series}, {point}: no cause", figure.paper.name(), figure.id)),
        );
    };
    for figure in figures() {
        figure.points.iter().filter(|p| p.missed()).for_each(|p| note(figure, &p.series, &p.point));
        figure.checks.iter().filter(|c| !c.holds).for_each(|c| note(figure, "ordering", &c.statement));
    }
    let unneeded: Vec<usize> = (0..CAUSES.len()).filter(|c| !needed.contains(c)).collect();
    assert!(unneeded.is_empty(), "nothing is missed that causes {unneeded:?} explain");
}

/// What is met today. A change of the model that makes it less must say why here.
#[test]
fn the_score_does_not_get_worse_unseen() {
    let pinned = |met, missed, beside_met, beside_missed, calibrated, orderings, orderings_missed| Score {
        met,
        missed,
        beside_met,
        beside_missed,
        calibrated,
        orderings,
        orderings_missed,
    };
    let today = [
        (Paper::NThread, pinned(21, 9, 11, 3, 5, 97, 11)),
        (Paper::Dragonfly, pinned(0, 6, 5, 5, 2, 14, 8)),
        (Paper::NPolicy, pinned(2, 0, 3, 0, 3, 16, 0)),
        (Paper::Arc, pinned(11, 1, 0, 0, 2, 11, 1)),
    ];
    assert_eq!(score(figures()), BTreeMap::from(today));
}

#[test]
fn the_table_has_the_promised_columns() {
    let bytes = csv(figures()).unwrap();
    let mut reader = ::csv::Reader::from_reader(bytes.as_slice());
    let columns = ["paper", "figure", "series", "point", "unit", "paper_value", "homenode_value", "kind"];
    assert_eq!(reader.headers().unwrap(), &::csv::StringRecord::from(columns.to_vec()));
    let mut rows = 0;
    for row in reader.records() {
        let row = row.unwrap();
        rows += 1;
        assert!(Paper::ALL.iter().any(|p| p.name() == &row[0]), "{row:?}");
        assert!((1..5).all(|c| !row[c].is_empty()), "{row:?}");
        assert!(row[5].is_empty() || row[5].parse::<f64>().unwrap().is_finite(), "{row:?}");
        assert!(row[6].parse::<f64>().unwrap().is_finite(), "{row:?}");
        assert!(matches!(&row[7], "calibrated" | "predicted"), "{row:?}");
        assert!(&row[7] != "calibrated" || !row[5].is_empty(), "calibrated on nothing: {row:?}");
    }
    assert_eq!(rows, figures().iter().map(|f| f.points.len()).sum::<usize>());
}

#[test]
fn the_report_needs_nothing_else_and_shows_every_figure_and_miss() {
    let plots = vec![b"png".to_vec(); figures().len()];
    let html = report::html(figures(), &plots, 1, None);
    for outside in ["http://", "https://", "src=\"/", "<script", "<link"] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert_eq!(html.matches("<img").count(), figures().len());
    assert!(!html.contains("NaN") && !html.contains("cause not known"));
    for cause in CAUSES {
        assert!(html.contains(&maud::html! { (cause.why()) }.into_string()), "{}", cause.why());
    }
}

#[test]
fn a_miss_without_a_cause_says_so() {
    let mut d = Draft::new(Paper::Arc, "none", "nothing", "nowhere");
    d.check("it works", false, "it does not");
    let figure = d.plot(Plot::Bars { y: "", groups: vec!["a".into()], series: vec![("b".into(), vec![1.0])] });
    assert!(report::html(&[figure], &[Vec::new()], 1, None).contains("cause not known"));
}

#[test]
fn percentages_are_met_by_the_ratio_they_stand_for() {
    let point = |unit, paper, here| Point {
        series: String::new(),
        point: String::new(),
        unit,
        paper_value: Some(paper),
        homenode_value: here,
        kind: Kind::Predicted,
    };
    // 15 % less and 5 % less: 0.85 and 0.95, a ratio of 1.118.
    assert_eq!(point("%", 15.0, 5.0).met(), Some(true));
    // 0.85 and 1.0: 1.176.
    assert_eq!(point("%", 15.0, 0.0).met(), Some(false));
    assert_eq!(point("x", 2.0, 2.3).met(), Some(true));
    assert_eq!(point("x", 2.0, 2.31).met(), Some(false));
}
