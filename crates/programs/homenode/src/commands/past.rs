//! `--since`, `--until`, `--at`: what the daemon has kept, in the place of what is observed now.
//!
//! **Approach.** Times are local ones, as people say them. [`session::history`] has the summaries.

use std::ops::RangeInclusive;

use chrono::{DateTime, Days, Local, LocalResult, NaiveDate, NaiveTime, TimeDelta, TimeZone};
use clap::Args;
use command::args::Global;
use session::history::{self, Cursor, Found, Range, Summary};
use session::map::{Map, Report};
use session::status::now_s;

use crate::commands::explain;
use crate::exit::{Exit, Failure};
use crate::output::units::count;

/// Which part of the history to show.
#[derive(Debug, Clone, Default, Args)]
pub struct PastArgs {
    /// Observe nothing: show what `homenode run` has kept since TIME, such as 03:00,
    /// "yesterday 3am", "2h ago", "2026-11-28 03:00" or @1764298800
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["windows", "window", "exact", "steady",
        "pid", "unit", "not_unit", "cgroup", "touch_own_affinity", "beside_sched_ext", "at"])]
    pub since: Option<f64>,
    /// The end of that [default: now]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "since", conflicts_with = "at")]
    pub until: Option<f64>,
    /// Observe nothing: show the ten seconds around TIME, or the minute if that was more than a day
    /// ago
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["windows", "window", "exact", "steady",
        "pid", "unit", "not_unit", "cgroup", "touch_own_affinity", "beside_sched_ext"])]
    pub at: Option<f64>,
}

impl PastArgs {
    /// What is asked for; `None` is the present.
    ///
    /// # Errors
    ///
    /// It ends before it begins.
    pub fn range(&self) -> Result<Option<Range>, Failure> {
        let range = match (self.since, self.at) {
            (Some(since_s), _) => Range { since_s, until_s: self.until.unwrap_or_else(now_s) },
            (None, Some(at)) => Range { since_s: at, until_s: at },
            (None, None) => return Ok(None),
        };
        if range.since_s > range.until_s {
            let [since, until] = [range.since_s, range.until_s].map(|at| explain::time(at, Local::now()));
            return Err(Failure::new(Exit::Usage, "usage", format!("--since {since} is after the end, {until}")));
        }
        Ok(Some(range))
    }

    /// The map of that time, with at most `most` processes and files; `each` has every summary.
    /// `None` if the present is wanted.
    pub fn map(&self, global: &Global, most: usize, mut each: impl FnMut(&Summary)) -> Option<Result<Report, Failure>> {
        let range = match self.range().transpose()? {
            Ok(range) => range,
            Err(failure) => return Some(Err(failure)),
        };
        let mut map = Map::default();
        let mut add = |summary: &Summary| {
            map.add_summary(summary);
            each(summary);
        };
        let dir = global.history_dir();
        let found = match self.at {
            Some(at) => Cursor::at(&dir, at).map(|cursor| {
                let cursor = cursor.as_ref().and_then(Cursor::summary);
                cursor.filter(|summary| summary.has(at)).map_or_else(Found::default, |summary| {
                    add(summary);
                    Found::of(summary)
                })
            }),
            None => history::read::read(&dir, range, add),
        };
        Some(found.and_then(|found| {
            if found.summaries == 0 {
                return Err(nothing(global, range));
            }
            let mut report = map.report(most);
            report.between_unix_s = found.between_s;
            let busiest = history::BUSIEST;
            report.notes =
                vec![format!("processes and files: those of the {busiest} busiest threads and files of each part")];
            let missing = count((found.lost + found.damaged) as usize, "part");
            report.notes.extend((found.lost + found.damaged > 0).then(|| {
                format!("missing: {missing} of ten seconds or a minute: the disk was full or slow, or a crash came")
            }));
            Ok(report)
        }))
    }
}

/// Nothing was kept of this time: what was.
pub fn nothing(global: &Global, range: Range) -> Failure {
    let dir = global.history_dir();
    let end = |at| Cursor::at(&dir, at).ok().flatten();
    let (first, last) = (end(0.0), end(f64::INFINITY));
    let ends = first.as_ref().and_then(Cursor::summary).zip(last.as_ref().and_then(Cursor::summary));
    let why = match ends {
        Some((first, last)) => format!("it has {}", between((first.begin_s(), last.unix_s))),
        None => format!("{} has none", dir.display()),
    };
    let what = match range.since_s < range.until_s {
        true => format!("no history of {}", between((range.since_s, range.until_s))),
        false => format!("no history of {}", explain::time(range.since_s, Local::now())),
    };
    Failure::new(Exit::Partly, what, why)
        .hint("`homenode run` keeps it while it runs, unless [history] of homenode.toml says not to")
}

/// `2026-11-28 03:00:00 to 2026-11-28 03:10:00`, without the day if that is today.
pub fn between((begin_s, end_s): (f64, f64)) -> String {
    let now = Local::now();
    format!("{} to {}", explain::time(begin_s, now), explain::time(end_s, now))
}

/// What calendars can be asked for, far from their ends: seconds since 1970.
const TIMES: RangeInclusive<f64> = 0.0..=1e11;

/// A time as people say it, in seconds since 1970.
pub fn time(text: &str) -> Result<f64, String> {
    let time = parse(text, &Local::now())?;
    if TIMES.contains(&time) { Ok(time) } else { Err("not a time between 1970 and 5138".to_owned()) }
}

fn parse<Z: TimeZone>(text: &str, now: &DateTime<Z>) -> Result<f64, String> {
    let wrong = || {
        "not a time such as 03:00, \"yesterday 3am\", \"2h ago\", \"2026-11-28 03:00\", or @ and seconds since 1970"
            .to_owned()
    };
    let text = text.trim().to_ascii_lowercase();
    let now_s = now.timestamp_millis() as f64 / 1e3;
    if text == "now" {
        return Ok(now_s);
    }
    if let Some(unix) = text.strip_prefix('@') {
        return unix.parse().ok().filter(|s: &f64| s.is_finite()).ok_or_else(wrong);
    }
    if let Some(ago) = text.strip_suffix("ago") {
        return span(ago).map(|s| now_s - s).ok_or_else(wrong);
    }
    let (day, clock) = match text.split_once([' ', 't']).filter(|(day, _)| day.contains('-')) {
        Some((day, clock)) => (Some(date(day).ok_or_else(wrong)?), clock),
        None if text.contains('-') => (Some(date(&text).ok_or_else(wrong)?), ""),
        None => match (text.strip_prefix("yesterday"), text.strip_prefix("today")) {
            (Some(clock), _) => (now.date_naive().checked_sub_days(Days::new(1)), clock),
            (None, Some(clock)) => (Some(now.date_naive()), clock),
            (None, None) => (None, text.as_str()),
        },
    };
    let clock = match clock.trim() {
        "" if day.is_some() => NaiveTime::MIN,
        clock => of_day(clock).ok_or_else(wrong)?,
    };
    let on = |day: NaiveDate| match now.timezone().from_local_datetime(&day.and_time(clock)) {
        LocalResult::Single(time) | LocalResult::Ambiguous(time, _) => Ok(time.timestamp() as f64),
        LocalResult::None => Err("that day has no such time: clocks were put forward".to_owned()),
    };
    match day {
        Some(day) => on(day),
        // The last one: at 8 o'clock, 23:00 is that of the night.
        None => match on(now.date_naive()).ok().filter(|time| *time <= now_s) {
            Some(time) => Ok(time),
            None => on(now.date_naive().pred_opt().ok_or_else(wrong)?),
        },
    }
}

/// `2026-11-28`.
fn date(text: &str) -> Option<NaiveDate> {
    let mut parts = text.splitn(3, '-').map(|part| part.parse::<u32>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    (1970..5138).contains(&year).then_some(())?;
    NaiveDate::from_ymd_opt(year as i32, month, day)
}

/// `3am`, `3:30pm`, `15:30`, `15:30:10`.
fn of_day(text: &str) -> Option<NaiveTime> {
    let half = text.strip_suffix("am").map(|t| (t, 0)).or_else(|| text.strip_suffix("pm").map(|t| (t, 12)));
    let mut parts = half.map_or(text, |(clock, _)| clock.trim()).split(':').map(str::parse::<u32>);
    let (hour, minute, second) = (parts.next()?.ok()?, parts.next(), parts.next());
    let hour = match half {
        Some((_, half)) if (1..=12).contains(&hour) => hour % 12 + half,
        None if minute.is_some() => hour,
        _ => return None,
    };
    let rest = |part: Option<Result<u32, _>>| part.unwrap_or(Ok(0)).ok();
    parts.next().is_none().then_some(())?;
    NaiveTime::from_hms_opt(hour, rest(minute)?, rest(second)?)
}

/// `2h`, `90 min`, `1 day`, in seconds.
fn span(text: &str) -> Option<f64> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.')?);
    let unit = match unit.trim() {
        "s" | "sec" | "second" | "seconds" => TimeDelta::seconds(1),
        "m" | "min" | "minute" | "minutes" => TimeDelta::minutes(1),
        "h" | "hour" | "hours" => TimeDelta::hours(1),
        "d" | "day" | "days" => TimeDelta::days(1),
        _ => return None,
    };
    number.parse::<f64>().ok().map(|n| n * unit.num_seconds() as f64)
}

#[cfg(test)]
mod tests {
    use chrono::FixedOffset;

    use super::*;

    #[test]
    fn times_are_read_as_people_say_them() {
        // A Sunday, in a zone that is two hours ahead.
        let now = FixedOffset::east_opt(7200).unwrap().with_ymd_and_hms(2026, 11, 29, 8, 0, 0).unwrap();
        let of = |text: &str| {
            let time = parse(text, &now).unwrap_or_else(|why| panic!("{text}: {why}"));
            DateTime::from_timestamp(time as i64, 0)
                .unwrap()
                .with_timezone(&now.timezone())
                .format("%d %H:%M:%S")
                .to_string()
        };
        for (text, time) in [
            ("now", "29 08:00:00"),
            ("03:00", "29 03:00:00"),
            ("3am", "29 03:00:00"),
            ("23:00", "28 23:00:00"),
            ("12am", "29 00:00:00"),
            ("12:30 PM", "28 12:30:00"),
            ("yesterday 3am", "28 03:00:00"),
            ("Yesterday", "28 00:00:00"),
            ("yesterday 15:30:10", "28 15:30:10"),
            ("today", "29 00:00:00"),
            ("today 9am", "29 09:00:00"),
            ("2h ago", "29 06:00:00"),
            ("90 min ago", "29 06:30:00"),
            ("1.5 hours ago", "29 06:30:00"),
            ("2 days ago", "27 08:00:00"),
            ("2026-11-28", "28 00:00:00"),
            ("2026-11-28 03:00", "28 03:00:00"),
            ("2026-11-28T03:00:05", "28 03:00:05"),
            ("@1795932000", "29 08:00:00"),
        ] {
            assert_eq!(of(text), time, "{text}");
        }
        for text in [
            "",
            "3",
            "25:00",
            "13pm",
            "0am",
            "3:61",
            "1:2:3:4",
            "ago",
            "h ago",
            "2 weeks ago",
            "@",
            "@inf",
            "@x",
            "2026-02-30",
            "262142-12-31",
            "2026-11-28 x",
            "tomorrow",
            "yesterdayx",
            "-1h ago",
            "\u{e9}ago",
        ] {
            assert!(parse(text, &now).unwrap_err().contains("yesterday 3am"), "{text}");
        }
        for text in ["@-1", "@1e12", "@8210266876799", "99999999 days ago"] {
            assert!(time(text).unwrap_err().contains("between 1970 and 5138"), "{text}");
        }
        assert_eq!(time("@1e11"), Ok(1e11));
    }
}
