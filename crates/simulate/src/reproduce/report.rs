//! The report: one HTML file that needs nothing else.
//!
//! **Problem.** Who wants to know whether to believe the model must see what it was told, what it says, what the papers say, and
//! where the two differ, without running anything.
//!
//! **Approach.** Summary, all misses with their causes, what the model was given; then each figure with its setup, plot,
//! stated numbers and orderings. Plots are inline PNGs. Nothing in it depends on when or where it was made.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{Check, Figure, Kind, Point, Score, TOLERANCE, Trials, score};
use crate::calibration::{CALIBRATED, Calibrated};
use crate::papers::Paper;

const STYLE: &str = include_str!("report.css");
const UNKNOWN: &str = "cause not known";

/// The report on these figures with their plots (PNG bytes, in the same order).
pub fn html(figures: &[Figure], plots: &[Vec<u8>], seeds: u64, trials: Option<&Trials>) -> String {
    let mut papers: Vec<Paper> = figures.iter().map(|f| f.paper).collect();
    papers.dedup();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "homenode: the papers' results, reproduced" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "The papers' results, reproduced" }
                p {
                    "Each experiment below ran on a simulated machine, under the policies and the engine that run on a host. "
                    "Means of " (seeds) " start placements of the kernel; the same seeds give the same bytes. homenode's safety rails "
                    "(how long a moved thread stays, how many moves a second) are open, as none of the papers has any."
                }
                (summary(figures, &papers))
                (misses(figures))
                (given(&papers))
                @if let Some(trials) = trials { (trials.sections()) }
                @for paper in &papers {
                    h2 id=(paper.name()) { (paper.title()) }
                    @for (figure, plot) in figures.iter().zip(plots).filter(|(f, _)| f.paper == *paper) {
                        (section(figure, plot))
                    }
                }
            }
        }
    };
    page.into_string()
}

fn summary(figures: &[Figure], papers: &[Paper]) -> Markup {
    let scores = score(figures);
    html! {
        h2 { "Summary" }
        p {
            "A stated number counts as met within " (percent(TOLERANCE)) " of the stated ratio. Numbers of figures on which nothing was "
            "calibrated come first. Where a constant of the model was chosen on one number of a figure, that one is "
            span.cal { "calibrated" } " and counts as neither; its neighbours, predicted but not by much, are counted apart. "
            "Orderings are what a paper reads off its bars: who beats whom, and who is like whom."
        }
        table {
            thead {
                tr {
                    th { "" } th.n colspan="2" { "stated numbers" } th.n colspan="2" { "beside calibrated ones" }
                    th.n { "calibrated" } th.n colspan="2" { "orderings" }
                }
                tr {
                    th { "paper" } th.n { "met" } th.n { "missed" } th.n { "met" } th.n { "missed" } th { "" }
                    th.n { "held" } th.n { "missed" }
                }
            }
            tbody {
                @for paper in papers {
                    @let Score { met, missed, beside_met, beside_missed, calibrated, orderings, orderings_missed }
                        = scores.get(paper).copied().unwrap_or_default();
                    tr {
                        td { a href={ "#" (paper.name()) } { (paper.name()) } }
                        td.n { (met) } td.n { (count_missed(missed)) }
                        td.n { (beside_met) } td.n { (count_missed(beside_missed)) }
                        td.n { (calibrated) }
                        td.n { (orderings) } td.n { (count_missed(orderings_missed)) }
                    }
                }
            }
        }
    }
}

fn count_missed(n: usize) -> Markup {
    html! { @if n > 0 { span.bad { (n) } } @else { "0" } }
}

/// Misses of one figure that have the same cause.
struct Missed<'a> {
    figure: &'a Figure,
    cause: Option<&'static str>,
    /// What was missed, and by how much.
    what: Vec<(String, String)>,
}

fn missed(figures: &[Figure]) -> Vec<Missed<'_>> {
    let mut all: Vec<Missed<'_>> = Vec::new();
    for figure in figures {
        let points = figure.points.iter().filter(|p| p.missed()).map(|p| {
            let [paper, here] = [p.paper_value, Some(p.homenode_value)].map(|v| amount(v, p.unit));
            let what = format!("{}, {}", p.series, p.point);
            (figure.cause(&p.series, &p.point), (what, format!("paper {paper}, here {here}")))
        });
        let checks = figure.checks.iter().filter(|c| !c.holds);
        let checks = checks.map(|c| (figure.cause_of(c), (c.statement.clone(), c.seen.clone())));
        for (cause, what) in points.chain(checks) {
            match all.iter_mut().find(|m| std::ptr::eq(m.figure, figure) && m.cause == cause && cause.is_some()) {
                Some(missed) => missed.what.push(what),
                None => all.push(Missed { figure, cause, what: vec![what] }),
            }
        }
    }
    all
}

fn misses(figures: &[Figure]) -> Markup {
    let missed = missed(figures);
    html! {
        h2 { "Misses" }
        @if missed.is_empty() { p { "None." } } @else {
            table {
                thead { tr { th { "figure" } th { "what" } th { "cause" } } }
                tbody { @for Missed { figure, cause, what } in &missed { tr {
                    td { a href={ "#" (anchor(figure)) } { (figure.paper.name()) " " (figure.id) } }
                    td { @for (what, seen) in what { div { (what) ": " span.soft { (seen) } } } }
                    td.cause { @match cause { Some(cause) => { (cause) } None => { span.bad { (UNKNOWN) } } } }
                } } }
            }
        }
    }
}

fn given(papers: &[Paper]) -> Markup {
    html! {
        h2 { "What the model was given" }
        p {
            "Hardware constants that the papers state, software costs that others have measured (" code { "calibration.rs" }
            " names the source of each), and these " (CALIBRATED.len()) " constants, each chosen so that one stated number comes out. "
            "Everything else in this report is predicted."
        }
        table {
            thead { tr { th { "constant" } th.n { "value" } th { "chosen on" } } }
            tbody { @for c in CALIBRATED { tr {
                td { code { (c.name) } } td.n { (amount(Some(c.value), c.unit)) } td { (targets(c)) }
            } } }
        }
        @for paper in papers {
            details {
                summary { "Constants stated by " (paper.name()) }
                table { tbody { @for c in &paper.data().constant { tr {
                    td { (c.name) } td.n { (amount(Some(c.value), &c.unit)) } td { (c.source) }
                } } } }
            }
        }
    }
}

fn targets(constant: &Calibrated) -> String {
    let target = |(paper, [figure, series, point]): &(Paper, [&str; 3])| {
        let stated = paper.stated(figure, series, point).map_or_else(String::new, |s| amount(Some(s.value), &s.unit));
        format!("{} {figure}: {series}, {point}, {stated}", paper.name())
    };
    constant.on.iter().map(target).collect::<Vec<_>>().join("; ")
}

fn anchor(figure: &Figure) -> String {
    format!("{}-{}", figure.paper.name(), figure.id.replace([' ', '.'], "-"))
}

fn section(figure: &Figure, plot: &[u8]) -> Markup {
    let (stated, others): (Vec<&Point>, Vec<&Point>) = figure.points.iter().partition(|p| p.paper_value.is_some());
    let alt = format!("Plot of {}", figure.title);
    html! {
        h3 id=(anchor(figure)) { (figure.name()) ": " (figure.title) }
        p.soft { (figure.setup) }
        img alt=(alt) src={ "data:image/png;base64," (STANDARD.encode(plot)) };
        @if !stated.is_empty() {
            table {
                thead { tr {
                    th { "stated in the paper" } th { "" } th.n { "paper" } th.n { "homenode" } th.n { "difference" } th { "kind" } th { "" }
                } }
                tbody { @for point in stated { (line(point)) } }
            }
        }
        @if !figure.checks.is_empty() { ul.checks { @for check in &figure.checks { (ordering(check)) } } }
        @for Missed { cause, what, .. } in missed(std::slice::from_ref(figure)) {
            p.cause {
                span.bad { "Missed: " }
                (what.into_iter().map(|w| w.0).collect::<Vec<_>>().join("; ")) ". "
                (cause.unwrap_or(UNKNOWN))
            }
        }
        @if !others.is_empty() {
            details {
                summary { "all " (others.len()) " other numbers of this figure" }
                table {
                    thead { tr { th { "series" } th { "point" } th.n { "homenode" } } }
                    tbody { @for p in others { tr {
                        td { (p.series) } td { (p.point) } td.n { (amount(Some(p.homenode_value), p.unit)) }
                    } } }
                }
            }
        }
    }
}

fn line(point: &Point) -> Markup {
    let difference = match (point.unit, point.paper_value, point.difference()) {
        ("%", Some(paper), _) => format!("{:+.1} points", point.homenode_value - paper),
        (_, _, Some(difference)) => format!("{:+.1} %", 100.0 * difference),
        _ => String::new(),
    };
    html! {
        tr {
            td { (point.series) } td { (point.point) }
            td.n { (amount(point.paper_value, point.unit)) }
            td.n { (amount(Some(point.homenode_value), point.unit)) }
            td.n { (difference) }
            td { @match point.kind {
                Kind::Calibrated => { span.cal { "calibrated" } }
                Kind::Predicted => { "predicted" }
            } }
            td { @match (point.kind, point.met()) {
                (Kind::Predicted, Some(true)) => { span.good { "met" } }
                (_, Some(false)) => { span.bad { "missed" } }
                _ => {}
            } }
        }
    }
}

fn ordering(check: &Check) -> Markup {
    html! {
        li {
            @if check.holds { span.good { "✓ held" } } @else { span.bad { "✗ missed" } }
            " · " (check.statement) ": " span.soft { (check.seen) }
        }
    }
}

fn percent(fraction: f64) -> String {
    format!("{:.0} %", 100.0 * fraction)
}

/// A value with its unit, as a person would write it.
pub(super) fn amount(value: Option<f64>, unit: &str) -> String {
    let Some(value) = value else { return String::new() };
    let scaled = |of: &[(f64, &str)]| {
        let (factor, unit) = of.iter().find(|s| value.abs() >= s.0).or(of.last()).copied().unwrap_or((1.0, unit));
        format!("{} {unit}", rounded(value / factor))
    };
    match unit {
        "" => rounded(value),
        "s" if value != 0.0 => scaled(&[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]),
        "s/B" => format!("{} ns/B", rounded(value * 1e9)),
        "B" => scaled(&[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1.0, "B")]),
        "B/s" => scaled(&[(1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")]),
        "x" => format!("{value:.3} ×"),
        "%" => format!("{value:.1} %"),
        _ => format!("{} {unit}", rounded(value)),
    }
}

/// Four digits.
fn rounded(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size == 0.0 => "0".to_owned(),
        _ if size == size.trunc() && size < 1e6 => format!("{value:.0}"),
        _ if size >= 1000.0 => format!("{value:.0}"),
        _ if size >= 100.0 => format!("{value:.1}"),
        _ if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::amount;

    #[test]
    fn amounts_read_well() {
        for (value, unit, text) in [
            (0.785e-9, "s/B", "0.785 ns/B"),
            (0.45e-9, "s", "0.450 ns"),
            (2.55e-6, "s", "2.550 µs"),
            (6.8e9, "B/s", "6.800 GB/s"),
            (128e9, "B", "128 GB"),
            (972.0, "kIOPS", "972 kIOPS"),
            (1.5, "x", "1.500 ×"),
            (0.0, "s", "0 s"),
        ] {
            assert_eq!(amount(Some(value), unit), text);
        }
    }
}
