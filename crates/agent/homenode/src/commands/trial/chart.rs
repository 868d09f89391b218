//! The charts of a trial, as SVG that stands in an HTML page. Pure.
//!
//! **Problem.** The page must show its charts wherever it is opened, without a program or a font of
//! this machine, and a name in it must not become markup.
//!
//! **Approach.** Lines, circles and text with coordinates that are worked out here. All text goes
//! through [`text`]. Arms differ in shape and colour (Okabe and Ito's, which people who see few
//! colours can tell apart). What a mark stands for is in its `<title>`, which browsers show.
//!
//! **Limits.** Widths of text are estimated. Beyond [`SHAPES`] arms look alike; their names do not.

use std::fmt::Write;

/// Width of a chart in its own units; it shrinks with the page.
const WIDTH: f64 = 860.0;

/// Room to the left and right of what is plotted.
const LEFT: f64 = 120.0;
const RIGHT: f64 = 20.0;

/// Height of what is plotted of the periods.
const PERIODS: f64 = 260.0;

/// Height of an interval's row, and of the head and the axis of its outcome.
const ROW: f64 = 26.0;
const HEAD: f64 = 24.0;
const AXIS: f64 = 30.0;

/// Arms with a shape of their own; the first is homenode off.
const SHAPES: usize = 5;
const COLORS: [&str; SHAPES] = ["#555555", "#0072b2", "#cc79a7", "#e69f00", "#56b4e9"];

/// Colours of an interval: none is that of an arm but homenode off.
const BETTER: &str = "#009e73";
const WORSE: &str = "#d55e00";
const UNCLEAR: &str = "#555555";

/// Text as it stands in HTML and SVG: no markup, no control characters.
pub fn text(text: &str) -> String {
    let mut safe = String::new();
    for c in crate::output::escape(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// One period.
pub struct Mark {
    /// The arm: 0 is homenode off.
    pub arm: usize,
    /// The value; not drawn where it is not finite.
    pub value: f64,
    /// What it stands for.
    pub title: String,
}

/// The periods of one round.
pub struct Round {
    /// In the order in which they ran.
    pub marks: Vec<Mark>,
    /// Whether the round counts; one that does not is drawn pale.
    pub counts: bool,
}

/// The value of each period, from left to right as they ran, with the mean of each arm as a dashed
/// line. `arms`: their names. `shown` gives a value's words, which differ where values are as far
/// from each other as it is told.
pub fn periods(rounds: &[Round], arms: &[&str], shown: &dyn Fn(f64, f64) -> String) -> String {
    let marks = || rounds.iter().flat_map(|round| &round.marks);
    let values: Vec<f64> = marks().map(|mark| mark.value).filter(|value| value.is_finite()).collect();
    let scale = Scale::of(&values, 0.08);
    let (top, bottom) = (34.0, 34.0 + PERIODS);
    let y = |value: f64| bottom - PERIODS * scale.at(value);
    let slot = (WIDTH - LEFT - RIGHT) / marks().count().max(1) as f64;
    let mut svg = begin(bottom + 40.0, "Value of each period, in the order in which they ran");
    let mut at = LEFT;
    for (arm, name) in arms.iter().enumerate() {
        mark(&mut svg, arm, (at + 6.0, 12.0), 1.0, name);
        label(&mut svg, (at + 18.0, 16.0), "start", name);
        at += 34.0 + 7.5 * name.chars().count() as f64;
    }
    // Every second, or fifth, … round has its number, so that numbers do not touch.
    let wide = slot * marks().count() as f64 / rounds.len().max(1) as f64;
    let every = [1, 2, 5, 10, 20, 50, 100].into_iter().find(|n| wide * f64::from(*n) >= 24.0).unwrap_or(200);
    let mut from = LEFT;
    for (n, round) in rounds.iter().enumerate() {
        let width = slot * round.marks.len() as f64;
        if n % 2 == 0 {
            let _ = write!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{PERIODS:.1}\" class=\"band\"/>"
            );
        }
        if (n + 1).is_multiple_of(every as usize) {
            label(&mut svg, (from + width / 2.0, bottom + 16.0), "middle", &(n + 1).to_string());
        }
        from += width;
    }
    label(&mut svg, (LEFT + (WIDTH - LEFT - RIGHT) / 2.0, bottom + 34.0), "middle", "round");
    for tick in scale.ticks() {
        line(&mut svg, (LEFT, y(tick)), (WIDTH - RIGHT, y(tick)), "grid");
        label(&mut svg, (LEFT - 8.0, y(tick) + 4.0), "end", &shown(tick, scale.step()));
    }
    for arm in 0..arms.len() {
        let counted = rounds.iter().filter(|round| round.counts).flat_map(|round| &round.marks);
        let of: Vec<f64> = counted.filter(|m| m.arm == arm).map(|m| m.value).filter(|v| v.is_finite()).collect();
        if !of.is_empty() {
            let mean = y(of.iter().sum::<f64>() / of.len() as f64);
            let _ = write!(
                svg,
                "<path d=\"M{LEFT:.1} {mean:.1}H{:.1}\" stroke=\"{}\" class=\"mean\"/>",
                WIDTH - RIGHT,
                color(arm)
            );
        }
    }
    let mut from = LEFT;
    for round in rounds {
        let points: Vec<_> = round.marks.iter().enumerate().map(|(i, m)| (from + slot * (i as f64 + 0.5), m)).collect();
        from += slot * round.marks.len() as f64;
        let known = || points.iter().filter(|(_, m)| m.value.is_finite());
        let path: Vec<String> = known().map(|(x, m)| format!("{x:.1},{:.1}", y(m.value))).collect();
        let _ = write!(svg, "<polyline points=\"{}\" class=\"round\"/>", path.join(" "));
        for (x, m) in known() {
            mark(&mut svg, m.arm, (*x, y(m.value)), if round.counts { 1.0 } else { 0.3 }, &m.title);
        }
    }
    svg + "</svg>\n"
}

/// The effect of one policy on one outcome.
pub struct Bar {
    pub policy: String,
    pub mean: f64,
    /// The interval's ends.
    pub low: f64,
    pub high: f64,
    /// The smallest effect that shows, if it is known.
    pub smallest: Option<f64>,
    /// Whether all of the interval is better (`true`) or worse; `None` if it has zero in it.
    pub better: Option<bool>,
}

/// One outcome: a row for each policy, on an axis of its own. `shown` gives a change's words, as in
/// [`periods`].
pub fn effects(outcome: &str, bars: &[Bar], shown: &dyn Fn(f64, f64) -> String) -> String {
    let ends = |bar: &Bar| [bar.low, bar.high, bar.mean, -bar.smallest.unwrap_or(0.0), bar.smallest.unwrap_or(0.0)];
    let values: Vec<f64> = bars.iter().flat_map(ends).chain([0.0]).filter(|value| value.is_finite()).collect();
    let scale = Scale::of(&values, 0.05);
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * scale.at(value);
    let bottom = HEAD + ROW * bars.len() as f64;
    let mut svg = begin(bottom + AXIS, outcome);
    let _ = write!(svg, "<text x=\"0\" y=\"15\" class=\"head\">{}</text>", text(outcome));
    for tick in scale.ticks() {
        line(&mut svg, (x(tick), HEAD), (x(tick), bottom), "grid");
        label(&mut svg, (x(tick), bottom + 16.0), "middle", &shown(tick, scale.step()));
    }
    for (n, bar) in bars.iter().enumerate() {
        let y = HEAD + ROW * (n as f64 + 0.5);
        let color = match bar.better {
            Some(true) => BETTER,
            Some(false) => WORSE,
            None => UNCLEAR,
        };
        label(&mut svg, (LEFT - 8.0, y + 4.0), "end", &bar.policy);
        if let Some(smallest) = bar.smallest.filter(|smallest| *smallest > 0.0) {
            let (from, to) = (x(-smallest), x(smallest));
            let _ = write!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" class=\"small\"/>",
                y - 9.0,
                to - from,
                18.0
            );
        }
        let (low, high) = (x(bar.low), x(bar.high));
        // Finer than the axis.
        let [mean, from, to] = [bar.mean, bar.low, bar.high].map(|value| shown(value, scale.step() / 10.0));
        let title = format!("{}: {mean}, {from} to {to}", bar.policy);
        let (up, down) = (y - 6.0, y + 6.0);
        let _ = write!(
            svg,
            "<g stroke=\"{color}\" fill=\"{color}\"><title>{}</title><path d=\"M{low:.1} {y:.1}H{high:.1}\" \
             class=\"bar\"/><path d=\"M{low:.1} {up:.1}V{down:.1}M{high:.1} {up:.1}V{down:.1}\" class=\"bar\"/>\
             <circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"5\"/></g>",
            text(&title),
            x(bar.mean),
        );
    }
    line(&mut svg, (x(0.0), HEAD - 4.0), (x(0.0), bottom + 4.0), "zero");
    svg + "</svg>\n"
}

/// The same for a terminal: the interval, its mean, and zero, in so many characters. Zero is in the
/// middle, so that rows under each other can be compared.
pub fn strip(mean: f64, low: f64, high: f64, columns: usize) -> String {
    let most = [mean, low, high].into_iter().map(f64::abs).fold(0.0, f64::max);
    let half = (columns.saturating_sub(1) / 2) as f64;
    let place = |value: f64| if most > 0.0 { (half + half * value / most).round() as usize } else { half as usize };
    let (mean, low, high, zero) = (place(mean), place(low), place(high), place(0.0));
    let cell = |at: usize| match at {
        _ if at == mean => '●',
        _ if at == zero && at == low => '├',
        _ if at == zero && at == high => '┤',
        _ if at == zero && low < at && at < high => '┼',
        _ if at == zero => '│',
        _ if at == low => '├',
        _ if at == high => '┤',
        _ if low < at && at < high => '─',
        _ => ' ',
    };
    (0..=2 * half as usize).map(cell).collect()
}

fn begin(height: f64, what: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
         aria-label=\"{}\">",
        text(what)
    )
}

fn label(svg: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", text(words));
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
    let _ = write!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>");
}

fn color(arm: usize) -> &'static str {
    // The first is off's alone.
    let n = if arm == 0 { 0 } else { 1 + (arm - 1) % (SHAPES - 1) };
    COLORS.get(n).copied().unwrap_or(UNCLEAR)
}

/// The shape of an arm.
fn mark(svg: &mut String, arm: usize, (x, y): (f64, f64), opacity: f64, title: &str) {
    let color = color(arm);
    let shape = match arm {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"#ffffff\" stroke=\"{color}\""),
        _ => {
            let points: &[(f64, f64)] = match (arm - 1) % (SHAPES - 1) {
                0 => &[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)],
                1 => &[(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)],
                2 => &[(0.0, -5.5), (5.5, 4.5), (-5.5, 4.5)],
                _ => &[(0.0, 5.5), (5.5, -4.5), (-5.5, -4.5)],
            };
            let points: Vec<String> = points.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
            format!("<polygon points=\"{}\" fill=\"{color}\" stroke=\"{color}\"", points.join(" "))
        }
    };
    let tag = if arm == 0 { "circle" } else { "polygon" };
    let _ = write!(svg, "{shape} opacity=\"{opacity}\"><title>{}</title></{tag}>", text(title));
}

/// An axis.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// Has these values in it, and this share of their range on either side.
    fn of(values: &[f64], margin: f64) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let range = high - low;
        match range.is_finite() && range > 0.0 {
            true => Self { low: low - margin * range, high: high + margin * range },
            // One value, or none.
            false if low.is_finite() => Self { low: low - low.abs().max(1.0), high: low + low.abs().max(1.0) },
            false => Self { low: 0.0, high: 1.0 },
        }
    }

    /// Where a value is: 0 is the lower end, 1 the upper one.
    fn at(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// Between two ticks: 1, 2 or 5 times a power of ten; NaN where there are none.
    fn step(&self) -> f64 {
        let rough = (self.high - self.low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= rough);
        step.filter(|step| step.is_finite() && *step > 0.0).unwrap_or(f64::NAN)
    }

    /// Some round numbers: multiples of the step.
    fn ticks(&self) -> Vec<f64> {
        let step = self.step();
        if step.is_nan() {
            return Vec::new();
        }
        let first = (self.low / step).ceil();
        (0..12).map(|n| (first + f64::from(n)) * step).take_while(|tick| *tick <= self.high).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: &[f64], b: &[f64]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9)
    }

    #[test]
    fn ticks_are_round_numbers_within_the_axis() {
        assert!(near(&Scale { low: -0.03, high: 0.21 }.ticks(), &[0.0, 0.05, 0.1, 0.15, 0.2]));
        assert!(near(&Scale { low: 1.1e9, high: 1.9e9 }.ticks(), &[1.2e9, 1.4e9, 1.6e9, 1.8e9]));
        // One value, none, and what is no number, have an axis too.
        for values in [&[5.0][..], &[0.0, 0.0], &[], &[f64::NAN], &[1e300, -1e300], &[1e-300]] {
            let scale = Scale::of(values, 0.05);
            let (at, ticks) = (scale.at(scale.low), scale.ticks());
            assert!(at == 0.0 && ticks.len() <= 12 && scale.low < scale.high, "{values:?}: {ticks:?}");
        }
    }

    #[test]
    fn a_strip_has_zero_in_the_middle() {
        for (mean, low, high, strip) in [
            (5.0, 2.5, 10.0, "          │  ├─●────┤"),
            (-5.0, -10.0, 10.0, "├────●────┼─────────┤"),
            (-8.0, -10.0, -6.0, "├─●─┤     │          "),
            (4.0, 0.0, 10.0, "          ├───●─────┤"),
            (0.0, 0.0, 0.0, "          ●          "),
        ] {
            assert_eq!(super::strip(mean, low, high, 21), strip);
        }
    }

    #[test]
    fn marks_stand_where_their_values_are() {
        let mark = |arm, value| Mark { arm, value, title: format!("{value}") };
        let rounds = [
            Round { marks: vec![mark(0, 10.0), mark(1, 20.0)], counts: true },
            Round { marks: vec![mark(1, f64::NAN), mark(0, 10.0)], counts: false },
        ];
        let svg = periods(&rounds, &["off", "nthread"], &|value, _| format!("{value}"));
        // The names' own marks, then those of the periods; what is not known is not drawn.
        assert_eq!((svg.matches("<circle").count(), svg.matches("<polygon").count()), (3, 2), "{svg}");
        assert_eq!(svg.matches("opacity=\"0.3\"").count(), 1);
        // Four slots of 180 after 120. The axis is 8 % of the range longer on either side.
        let at = |x: f64, y: f64| format!("cx=\"{x:.1}\" cy=\"{y:.1}\"");
        let low = 34.0 + 260.0 * 1.08 / 1.16;
        assert!(svg.contains(&at(210.0, low)) && svg.contains(&at(750.0, low)), "{svg}");
        assert!(svg.contains(&format!("points=\"390.0,{:.1} ", 34.0 + 260.0 * 0.08 / 1.16 - 5.5)), "{svg}");
        assert!(svg.contains("class=\"mean\""), "{svg}");
        assert!(periods(&[], &["off"], &|value, _| format!("{value}")).ends_with("</svg>\n"));
    }

    #[test]
    fn an_interval_is_coloured_by_what_it_says() {
        let bar = |better| Bar { policy: "a".to_owned(), mean: 2.0, low: 1.0, high: 3.0, smallest: Some(0.5), better };
        let svg = |better| effects("speed", &[bar(better)], &|value, _| format!("{value}"));
        assert!(svg(Some(true)).contains(BETTER) && !svg(Some(true)).contains(WORSE));
        assert!(svg(Some(false)).contains(WORSE) && !svg(None).contains(WORSE));
        assert!(svg(None).contains("<title>a: 2, 1 to 3</title>") && svg(None).contains("class=\"small\""));
    }

    #[test]
    fn ticks_have_the_digits_that_tell_them_apart() {
        use crate::output::units::{changed, digits};
        let bar = Bar {
            policy: "a".to_owned(),
            mean: 0.0012,
            low: 0.001,
            high: 0.0014,
            smallest: Some(0.0002),
            better: Some(true),
        };
        let svg = effects("speed", &[bar], &|value, step| changed(value, digits(100.0 * step)));
        let labels: Vec<&str> =
            svg.split("text-anchor=\"middle\">").skip(1).filter_map(|s| s.split('<').next()).collect();
        assert_eq!(labels, ["0.00 %", "+0.05 %", "+0.10 %"], "{svg}");
        assert!(svg.contains("<title>a: +0.120 %, +0.100 % to +0.140 %</title>"), "{svg}");
    }

    #[test]
    fn text_is_no_markup() {
        assert_eq!(text("<a href='x'>\u{1b}\"&</a>"), "&lt;a href=&#39;x&#39;&gt;\\u{1b}&quot;&amp;&lt;/a&gt;");
    }
}
