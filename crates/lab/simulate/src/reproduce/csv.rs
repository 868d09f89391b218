//! `results.csv`: one line per number, to check or to plot.

use serde::Serialize;

use super::{Figure, Kind};

/// One line. The order of the fields is the order of the columns.
#[derive(Serialize)]
struct Row<'a> {
    paper: &'static str,
    figure: &'a str,
    series: &'a str,
    point: &'a str,
    unit: &'a str,
    paper_value: String,
    homenode_value: String,
    kind: Kind,
    low: String,
    high: String,
    constants_alone: String,
    verdict: &'static str,
}

/// The numbers as CSV, with a header. `paper_value`, `constants_alone` and `verdict` are empty
/// where the paper gives only a picture; `low` and `high`, the range over the seeds, where there is
/// only one seed.
///
/// # Errors
///
/// Only those of the CSV writer, which writes to memory here.
pub fn csv(figures: &[Figure]) -> Result<Vec<u8>, ::csv::Error> {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    for figure in figures {
        for point in &figure.points {
            writer.serialize(Row {
                paper: figure.paper.name(),
                figure: figure.id,
                series: &point.series,
                point: &point.point,
                unit: point.unit,
                paper_value: point.paper_value.map(digits).unwrap_or_default(),
                homenode_value: digits(point.homenode_value),
                kind: point.kind,
                low: point.range.map(|r| digits(r[0])).unwrap_or_default(),
                high: point.range.map(|r| digits(r[1])).unwrap_or_default(),
                constants_alone: point.alone_value.map(digits).unwrap_or_default(),
                verdict: match figure.met(point).filter(|_| point.kind.counts()) {
                    Some(true) => "met",
                    Some(false) => "missed",
                    None => "",
                },
            })?;
        }
    }
    writer.into_inner().map_err(|e| e.into_error().into())
}

/// A number with six significant digits: more than the model deserves, few enough to compare by
/// eye.
fn digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{}", value + 0.0);
    }
    let decimals = (5 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (972.0, "972"),
            (0.123_456_78, "0.123457"),
            (1.5e-7, "0.00000015"),
            (1234567.8, "1234568"),
        ] {
            assert_eq!(digits(value), text);
        }
    }
}
