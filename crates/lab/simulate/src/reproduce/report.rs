//! The report: one HTML file that needs nothing else.
//!
//! **Problem.** A reader must be able to judge the model by its inputs, its results and the papers'
//! results, without running anything.
//!
//! **Approach.** Overview, score, contents; all misses by cause; everything that the model was
//! given; then each figure with its setup, plot, stated numbers and orderings. Plots are inline
//! PNGs. Nothing in it depends on the time or the place.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::effect::{BAND, MARGIN, POINTS, Tally};
use super::fitted::{self, Given, Origin};
use super::score::{Held, Score, score, scores};
use super::{Check, Figure, Kind, Point, Trials};
use crate::calibration::{CALIBRATED, Calibrated};
use crate::papers::{Cause, Note, Paper};

const STYLE: &str = include_str!("report.css");
const UNKNOWN: &str = "No cause is known.";

/// The report on these figures, with the overview and their plots (PNG bytes, in the same order).
pub fn html(figures: &[Figure], overview: &[u8], plots: &[Vec<u8>], seeds: u64, trials: Option<&Trials>) -> String {
    let mut papers: Vec<Paper> = figures.iter().map(|f| f.paper).collect();
    papers.dedup();
    let body = html! {
        h1 { "The papers' results, reproduced" }
        p {
            "homenode " (env!("CARGO_PKG_VERSION")) ", " code { (command(&papers, seeds, trials.is_some())) } ". "
            "Each experiment ran on a simulated machine, under the policies and the engine that run on a host. Numbers are "
            "means of " (seeds) " start placements of the kernel; the same seeds give the same bytes."
        }
        h2 #overview { "Overview" }
        (picture("Stated effects, paper against homenode", overview))
        p {
            "Each dot is an effect that a paper states as a number. On the diagonal homenode agrees; the grey band counts as "
            "met; a model in which nothing has any effect draws every dot on the black line. Vertical lines span the seeds."
        }
        (summary(figures))
        (contents(figures, &papers, trials.is_some()))
        (misses(figures))
        @if let Some(trials) = trials { (trials.sections()) }
        (given(&papers))
        @for paper in &papers {
            h2 id=(paper.name()) { (paper.title()) }
            @for (figure, plot) in figures.iter().zip(plots).filter(|(f, _)| f.paper == *paper) {
                (section(figure, plot))
            }
        }
    };
    page("the papers' results, reproduced", &body)
}

/// A page with this in its title and this as its body.
pub(super) fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "homenode: " (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    page.into_string()
}

fn command(papers: &[Paper], seeds: u64, trials: bool) -> String {
    let which = match papers {
        [paper] => paper.name(),
        _ => "all",
    };
    let sensitivity = if trials { " --sensitivity" } else { "" };
    format!("homenode reproduce {which} --seeds {seeds}{sensitivity} --out DIR")
}

pub(super) fn picture(alt: &str, png: &[u8]) -> Markup {
    html! { img alt=(alt) src={ "data:image/png;base64," (STANDARD.encode(png)) }; }
}

fn summary(figures: &[Figure]) -> Markup {
    html! {
        h2 #score { "Score" }
        p {
            "An effect is a ratio minus 1, or a share, with its sign. It counts as met within " (percent(BAND)) " of the stated effect, "
            "or within " (POINTS) " points if that is more. The error is the geometric mean of how many times the ratios are too large "
            "or too small. Beside homenode stand the " em { "null model" } ", in which nothing has any effect, and the "
            em { "constants alone" } ": the same runs without queues, locks or shared CPUs, so that each operation takes what its "
            "constants say. A level is an amount that is compared with nothing; no effect can be read off it."
        }
        (table(figures, Kind::Predicted))
        (table(figures, Kind::Dependent))
        p {
            "Not scored: numbers that a constant was chosen on (" (kind(Kind::Calibrated)) ") and those that cannot come out "
            "otherwise (" (kind(Kind::Structural)) "). "
            (kind(Kind::Dependent)) " numbers restate a fit, or the model was changed with them in view: that they are met shows that "
            "the model is consistent, not that it predicts. "
            "An ordering is a statement without a number. " em { "Better" } " means by more than " (percent(MARGIN)) ", "
            em { "similar" } " within " (percent(MARGIN)) "."
        }
        table {
            thead {
                tr {
                    th { "" } th.n colspan="2" { "orderings, predicted" } th.n colspan="2" { "orderings, dependent" }
                    th.n colspan="2" { "not scored" }
                }
                tr {
                    th { "paper" } th.n { "held" } th.n { "missed" } th.n { "held" } th.n { "missed" } th.n { "numbers" }
                    th.n { "orderings" }
                }
            }
            tbody { @for (paper, s) in rows(figures) { tr {
                td { (paper) }
                (held(s.orderings)) (held(s.dependent_orderings))
                td.n { (s.calibrated + s.structural) } td.n { (s.structural_orderings) }
            } } }
        }
    }
}

/// Scores by paper, and of all of them if there are several.
fn rows(figures: &[Figure]) -> Vec<(&'static str, Score)> {
    let mut rows: Vec<_> = scores(figures).into_iter().map(|(paper, score)| (paper.name(), score)).collect();
    if rows.len() > 1 {
        rows.push(("all", score(figures)));
    }
    rows
}

fn table(figures: &[Figure], of: Kind) -> Markup {
    let error =
        |error: f64, t: &Tally| if t.effects > 0 { format!("{:.0} %", 100.0 * error) } else { "–".to_owned() };
    html! {
        table {
            thead {
                tr { th { (kind(of)) } th.n { "effects" } th.n colspan="3" { "met by" } th.n colspan="3" { "error of" } th.n { "levels" } }
                tr {
                    th { "paper" } th.n { "stated" }
                    th.n { "homenode" } th.n { "null model" } th.n { "constants alone" }
                    th.n { "homenode" } th.n { "null model" } th.n { "constants alone" }
                    th.n { "met" }
                }
            }
            tbody { @for (paper, s) in rows(figures) {
                @let t = if of == Kind::Predicted { s.predicted } else { s.dependent };
                tr {
                    td { (paper) } td.n { (t.effects) }
                    td.n { strong { (t.met) } } td.n { (t.null_met) } td.n { (t.alone_met) }
                    td.n { strong { (error(t.error, &t)) } } td.n { (error(t.null_error, &t)) } td.n { (error(t.alone_error, &t)) }
                    td.n { @if t.levels > 0 { (t.levels_met) " of " (t.levels) } @else { "–" } }
                }
            } }
        }
    }
}

fn held(of: Held) -> Markup {
    html! { td.n { (of.held) } td.n { @if of.missed > 0 { span.bad { (of.missed) } } @else { "0" } } }
}

fn contents(figures: &[Figure], papers: &[Paper], trials: bool) -> Markup {
    html! {
        h2 #contents { "Contents" }
        ul.contents {
            li {
                a href="#overview" { "Overview" } " · " a href="#score" { "Score" } " · " a href="#misses" { "Misses" } " · "
                @if trials { a href="#sensitivity" { "Sensitivity" } " · " a href="#hold-out" { "Hold-out" } " · " }
                a href="#given" { "Inputs of the model" }
            }
            @for paper in papers { li {
                a href={ "#" (paper.name()) } { (paper.name()) } ": "
                @for (i, figure) in figures.iter().filter(|f| f.paper == *paper).enumerate() {
                    @if i > 0 { " · " }
                    a href={ "#" (anchor(figure)) } title=(figure.title) { (figure.id) }
                }
            } }
        }
    }
}

/// A number or an ordering that was missed.
struct Missed<'a> {
    figure: &'a Figure,
    what: String,
    seen: String,
    kind: Kind,
}

impl Missed<'_> {
    fn line(&self) -> Markup {
        html! { div {
            a href={ "#" (anchor(self.figure)) } { (self.figure.paper.name()) " " (self.figure.id) } " · " (self.what) ": "
            span.soft { (self.seen) } " " (kind(self.kind))
        } }
    }
}

/// All misses of some figures by cause, in the order in which they come up.
fn missed(figures: &[Figure]) -> Vec<(Option<&'static Note>, Vec<Missed<'_>>)> {
    let mut all: Vec<(Option<&'static Note>, Vec<Missed<'_>>)> = Vec::new();
    for figure in figures {
        let points = figure.points.iter().filter(|p| figure.missed(p)).map(|p| {
            let [paper, here] = [p.paper_value, Some(p.homenode_value)].map(|v| amount(v, p.unit));
            let what = format!("{}, {}", p.series, p.point);
            (figure.cause(p), Missed { figure, what, seen: format!("paper {paper}, here {here}"), kind: p.kind })
        });
        let checks = figure.checks.iter().filter(|c| c.missed()).map(|c| {
            let (what, seen) = (c.statement.clone(), format!("here {}", c.seen));
            (figure.cause_of(c), Missed { figure, what, seen, kind: c.kind })
        });
        for (cause, miss) in points.chain(checks) {
            let same = |of: &Option<&Note>| of.map(std::ptr::from_ref) == cause.map(std::ptr::from_ref);
            match all.iter_mut().find(|m| same(&m.0)) {
                Some((_, misses)) => misses.push(miss),
                None => all.push((cause, vec![miss])),
            }
        }
    }
    all.sort_by_key(|(cause, _)| tag(*cause));
    all
}

fn tag(cause: Option<&Note>) -> Cause {
    cause.and_then(|note| note.cause).unwrap_or(Cause::Unknown)
}

fn misses(figures: &[Figure]) -> Markup {
    let missed = missed(figures);
    html! {
        h2 #misses { "Misses" }
        @if missed.is_empty() { p { "None." } } @else {
            table {
                thead { tr { th { "cause" } th { "missed" } } }
                tbody { @for (cause, misses) in &missed { tr {
                    td.cause {
                        strong { (tag(*cause).name()) } ". " (cause.map_or(UNKNOWN, |note| note.why.as_str()))
                    }
                    td { @for miss in misses { (miss.line()) } }
                } } }
            }
        }
    }
}

fn given(papers: &[Paper]) -> Markup {
    let mut given: Vec<&Given> = fitted::given().iter().collect();
    given.sort_by_key(|g| g.origin);
    html! {
        h2 #given { "Inputs of the model" }
        p {
            "Everything that the authors of the model chose, with the papers' numbers at hand: constants, settings of the experiments, "
            "and changes of the model. The last column has the results that an entry changed, if it was chosen or changed after scores were "
            "seen. The hardware constants that the papers state are below the table."
        }
        table {
            thead { tr { th { "input" } th.n { "value" } th { "kind" } th { "source, and reason for the choice" } th { "after scores" } } }
            tbody {
                @for c in CALIBRATED { tr {
                    td { code { (c.name) } } td.n { (amount(Some(c.value), c.unit)) } td { (Origin::Number.name()) }
                    td { (targets(c)) } td { (fitted::note(c.name).unwrap_or_default()) }
                } }
                @for g in given { tr {
                    td { (g.name) } td.n { (amount(g.value, &g.unit)) }
                    td { (g.origin.name()) } td { (g.source) } td { (g.after.as_deref().unwrap_or_default()) }
                } }
            }
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

pub(super) fn anchor(figure: &Figure) -> String {
    format!("{}-{}", figure.paper.name(), figure.id.replace([' ', '.'], "-"))
}

fn section(figure: &Figure, plot: &[u8]) -> Markup {
    let (stated, others): (Vec<&Point>, Vec<&Point>) = figure.points.iter().partition(|p| p.paper_value.is_some());
    html! {
        h3 id=(anchor(figure)) { (figure.name()) ": " (figure.title) }
        p.soft { (figure.setup) }
        (picture(&format!("Plot of {}", figure.title), plot))
        @if !stated.is_empty() {
            table {
                thead { tr {
                    th { "stated" } th { "" } th.n { "paper" } th.n { "homenode" } th.n { "over seeds" } th.n { "constants alone" }
                    th { "kind" } th { "" }
                } }
                tbody { @for point in stated { (line(figure, point)) } }
            }
        }
        @if !figure.checks.is_empty() { ul.checks { @for check in &figure.checks { (ordering(figure, check)) } } }
        @if !others.is_empty() {
            details {
                summary { "the other " (others.len()) " numbers of this figure" }
                table {
                    thead { tr { th { "series" } th { "point" } th.n { "homenode" } th.n { "over seeds" } } }
                    tbody { @for p in others { tr {
                        td { (p.series) } td { (p.point) } td.n { (amount(Some(p.homenode_value), p.unit)) } td.n { (range(p)) }
                    } } }
                }
            }
        }
    }
}

/// The lowest and the highest of any seed, where they differ.
fn range(point: &Point) -> String {
    let [low, high] = point.range.unwrap_or_default().map(|v| amount(Some(v), point.unit));
    if low == high { String::new() } else { format!("{low} … {high}") }
}

fn kind(kind: Kind) -> Markup {
    html! { span class=(kind.name()) { (kind.name()) } }
}

/// A kind with the reason for it.
fn kind_of(kind: Kind, why: Option<&'static str>) -> Markup {
    match why.filter(|_| matches!(kind, Kind::Dependent | Kind::Structural)) {
        Some(why) => html! { span class=(kind.name()) title=(why) { (kind.name()) } },
        None => self::kind(kind),
    }
}

fn line(figure: &Figure, point: &Point) -> Markup {
    let why = fitted::why(figure.paper, [figure.id, &point.series, &point.point]);
    html! {
        tr {
            td { (point.series) } td { (point.point) }
            td.n { (amount(point.paper_value, point.unit)) }
            td.n { (amount(Some(point.homenode_value), point.unit)) }
            td.n { (range(point)) }
            td.n { (amount(point.alone_value, point.unit)) }
            td { (kind_of(point.kind, why)) }
            td {
                @if point.kind.counts() { (verdict(figure.met(point) == Some(true), figure.cause(point))) }
                @if figure.null_met(point) == Some(true) { span.soft title="a model without any effect meets it, too" { " null" } }
            }
        }
    }
}

fn verdict(met: bool, cause: Option<&Note>) -> Markup {
    html! {
        @if met { span.good { "met" } } @else { a.bad href="#misses" title=(tag(cause).name()) { "missed" } }
    }
}

fn ordering(figure: &Figure, check: &Check) -> Markup {
    let why = fitted::why(figure.paper, [figure.id, "ordering", &check.statement]);
    let why = why.or(Some("both runs are the same to the last bit"));
    html! {
        li {
            @if !check.kind.counts() { span.soft { "– shows nothing" } }
            @else if check.holds { span.good { "✓ held" } }
            @else { a.bad href="#misses" title=(tag(figure.cause_of(check)).name()) { "✗ missed" } }
            " · " (check.statement) ": " span.soft { (check.seen) }
            @if let Some([held, of]) = check.seeds { @if held > 0 && held < of { span.soft { ", held with " (held) " of " (of) " seeds" } } }
            " " (kind_of(check.kind, why))
        }
    }
}

pub(super) fn percent(fraction: f64) -> String {
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
        "% more" => format!("{value:.1} % more"),
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
