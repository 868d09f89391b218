//! What a period did.

use std::collections::VecDeque;

use engine::guardrail::{Before, Beyond, Streak, Work};
use engine::settings::Guardrail;
use engine::{Finished, MoveEvent};
use placement::{Snapshot, flow};
use serde_json::{Map, Value, json};
use trial::{Better, Effect};

use super::metric;
use crate::output::units::{number, percent, rate};
use crate::signals::Stop;

/// What is measured of each period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    pub key: &'static str,
    /// For people.
    pub name: &'static str,
    pub better: Better,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Rate,
    Share,
    Number,
}

pub const CPU_EFFICIENCY: Outcome = Outcome {
    key: "read_bytes_per_cpu_s",
    name: "file bytes read per CPU second",
    better: Better::Higher,
    form: Form::Rate,
};

pub const METRIC: Outcome =
    Outcome { key: "metric", name: "what --metric prints", better: Better::Higher, form: Form::Number };

pub const READS: Outcome =
    Outcome { key: "read_bytes_per_s", name: "file bytes read per second", better: Better::Higher, form: Form::Rate };

const REMOTE: Outcome =
    Outcome { key: "remote_share", name: "share of them from other nodes", better: Better::Lower, form: Form::Share };

const WAITING: Outcome = Outcome {
    key: "wait_share",
    name: "time waited for a CPU, of each second",
    better: Better::Lower,
    form: Form::Number,
};

/// All of a trial; the first is what the verdict is about.
pub fn all(primary: Outcome) -> Vec<Outcome> {
    let rest = [CPU_EFFICIENCY, READS, REMOTE, WAITING];
    std::iter::once(primary).chain(rest.into_iter().filter(|outcome| *outcome != primary)).collect()
}

/// A change that is not by chance counts from here on: a tenth of what ends a period at once. A
/// trial is sure of changes that nobody feels.
const FELT: f64 = 0.03;

/// Whether a policy that makes this worse by so much does not help, whatever else it does: of bytes
/// read the share of those without it, of waiting seconds of each second.
pub fn guards(outcome: &Outcome, effect: &Effect) -> bool {
    let (Some(mean), Some(off)) = (effect.mean, effect.off) else { return false };
    (*outcome == READS && -mean >= FELT * off) || (*outcome == WAITING && mean >= FELT)
}

impl Outcome {
    pub fn towards(self, better: Better) -> Self {
        Self { better, ..self }
    }

    pub fn shown(&self, value: f64) -> String {
        match self.form {
            _ if !value.is_finite() => "unknown".to_owned(),
            Form::Rate => rate(value),
            Form::Share => percent(value),
            Form::Number => number(value),
        }
    }

    /// A change for people, with its sign.
    pub fn signed(&self, change: f64) -> String {
        let sign = match change {
            0.0 => "",
            _ if change < 0.0 => "-",
            _ => "+",
        };
        format!("{sign}{}", self.shown(change.abs()))
    }
}

/// The values of a period, in the order of [`all`]; NaN where one is not known.
#[derive(Clone, Debug, Default)]
pub struct Values(pub Vec<(&'static str, f64)>);

impl Values {
    pub fn get(&self, key: &str) -> f64 {
        self.0.iter().find(|(k, _)| *k == key).map_or(f64::NAN, |(_, value)| *value)
    }

    pub fn json(&self) -> Map<String, Value> {
        self.0.iter().map(|(key, value)| ((*key).to_owned(), json!(value.is_finite().then_some(value)))).collect()
    }
}

/// A period that was not cut short.
#[derive(Clone, Debug)]
pub struct Period {
    pub values: Values,
    pub moves: usize,
    pub restored: usize,
    pub moved_back: u64,
    /// Why it ended early.
    pub beyond: Option<Beyond>,
    /// Share of the time they wanted a CPU in which threads had one.
    pub ran: f64,
    /// Why the next period begins with what this one left; absent if it left nothing.
    pub stayed: Option<String>,
}

/// The sums of a period's windows, without those of the wash-out.
#[derive(Default)]
pub struct Sums {
    wash_out_s: f64,
    period_s: f64,
    /// How much too short rounding may make them.
    tolerance_s: f64,
    /// Since the period began.
    elapsed_s: f64,
    seconds: f64,
    bytes: flow::Sums,
    cpu_s: f64,
    wait_s: f64,
    metric: Option<f64>,
    bounds: Guardrail,
    before: Option<Before>,
    streak: Streak,
    beyond: Option<Beyond>,
    /// Each window.
    works: VecDeque<Work>,
}

impl Sums {
    /// `window_s`: the set length of a window.
    pub fn new(wash_out_s: f64, period_s: f64, window_s: f64) -> Self {
        Self { wash_out_s, period_s, tolerance_s: 0.1 * window_s, ..Self::default() }
    }

    /// Ends the period as soon as so many windows in a row are beyond these bounds. With homenode
    /// off, too: what the load does by itself ends periods of either kind as often.
    #[must_use]
    pub fn guarded(self, bounds: &Guardrail, before: Option<Before>) -> Self {
        Self { bounds: bounds.clone(), before, ..self }
    }

    /// The last windows that count.
    pub fn works(&self) -> &VecDeque<Work> {
        &self.works
    }

    pub fn beyond(&self) -> Option<Beyond> {
        self.beyond
    }

    pub fn ran(&self) -> f64 {
        let sum = |of: fn(&Work) -> f64| self.works.iter().map(of).sum::<f64>();
        1.0 - Work { busy_s: sum(|work| work.busy_s), wait_s: sum(|work| work.wait_s), ..Work::default() }.waited()
    }

    /// A window counts if it began after the wash-out, or so little before that rounding may be
    /// why. CPU time counts of threads that touched file data: not that of homenode itself.
    pub fn add(&mut self, snapshot: &Snapshot) {
        let counts = self.elapsed_s >= self.wash_out_s - self.tolerance_s.min(0.1 * self.wash_out_s);
        self.elapsed_s += snapshot.window_s;
        if !counts {
            return;
        }
        self.seconds += snapshot.window_s;
        for thread in &snapshot.threads {
            self.bytes.add(flow::Sums::of_thread(thread));
            self.cpu_s += if thread.file_bytes() > 0 { thread.cpu_s } else { 0.0 };
            self.wait_s += thread.wait_s.unwrap_or(0.0);
        }
        let mut work = Work::new(snapshot.window_s);
        snapshot.threads.iter().filter(|thread| thread.file_bytes() > 0).for_each(|thread| work.add(thread));
        let beyond = self.before.as_ref().and_then(|before| before.beyond(&work, &self.bounds));
        self.works.push_back(work);
        if self.streak.window(beyond.is_some(), &self.bounds) {
            self.beyond = beyond;
        }
    }

    pub fn over(&self) -> bool {
        self.beyond.is_some() || self.seconds > 0.0 && self.elapsed_s >= self.period_s - self.tolerance_s
    }

    /// Asks for the user's number, if there is one, at the end of a period: once more where that
    /// gives none.
    pub fn ask(&mut self, metric: Option<&str>, stop: &Stop) {
        if let Some(command) = metric.filter(|_| self.metric.is_none() && self.over()) {
            let ask = || metric::ask(command, &|| stop.requested());
            let answer = ask().or_else(|why| if stop.requested() { Err(why) } else { ask() });
            self.metric = Some(answer.unwrap_or_else(|why| {
                tracing::warn!("--metric: {why}");
                f64::NAN
            }));
        }
    }

    pub fn values(&self) -> Values {
        let read = self.bytes.read_bytes as f64;
        let mut values = vec![
            (CPU_EFFICIENCY.key, read / self.cpu_s),
            ("read_bytes_per_s", read / self.seconds),
            ("remote_share", self.bytes.remote_share().unwrap_or(f64::NAN)),
            ("wait_share", self.wait_s / self.seconds),
        ];
        values.extend(self.metric.map(|metric| (METRIC.key, metric)));
        Values(values)
    }
}

/// Whether a move was made, or a copy started.
pub fn was_made(event: &MoveEvent) -> bool {
    matches!(event, MoveEvent::Applied | MoveEvent::Started)
}

/// Why what a period has left is still there.
pub fn stayed(finished: &Finished) -> Option<String> {
    match finished {
        Finished { failed: 1.., .. } => Some(format!("{} threads could not be put back", finished.failed)),
        Finished { not_moved_back: 1.., .. } => Some(format!("{} bytes of data stayed", finished.not_moved_back)),
        _ => None,
    }
}

/// Adds up what was put back.
pub fn add(all: &mut Finished, one: Finished) {
    all.add_numbers(&one);
    one.notes.into_iter().for_each(|note| all.note(note));
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::{NodeBytes, Thread};
    use topology::NodeId;

    fn window(read: u64, remote: u64) -> Snapshot {
        let thread = Thread {
            cpu_s: 0.5,
            wait_s: Some(0.25),
            node: NodeId(0),
            read_bytes: [(NodeId(0), read - remote), (NodeId(1), remote)].into_iter().collect::<NodeBytes>(),
            ..Thread::default()
        };
        Snapshot { window_s: 1.0, threads: vec![thread], ..Snapshot::default() }
    }

    #[test]
    fn the_wash_out_does_not_count() {
        let mut sums = Sums::new(2.0, 4.0, 1.0);
        for (read, remote) in [(1000, 1000), (1000, 0), (300, 100)] {
            sums.add(&window(read, remote));
            assert!(!sums.over());
        }
        sums.add(&window(100, 100));
        assert!(sums.over());
        let values = sums.values();
        let of = |key| values.get(key);
        assert_eq!((of("read_bytes_per_s"), of("read_bytes_per_cpu_s")), (200.0, 400.0));
        assert_eq!((of("remote_share"), of("wait_share")), (0.5, 0.25));
        assert!(of("metric").is_nan());
        // Nothing read: what follows from it is unknown, not zero.
        let mut idle = Sums::new(0.0, 1.0, 1.0);
        idle.add(&Snapshot { window_s: 1.0, ..Snapshot::default() });
        assert!(idle.over() && idle.values().get("remote_share").is_nan());
        assert_eq!(idle.values().json()["remote_share"], Value::Null);
    }

    /// So many threads that read so many bytes each, run and wait so long.
    fn readers(n: u32, read: u64, cpu_s: f64, wait_s: f64) -> Snapshot {
        let mut window = window(read, 0);
        (window.threads[0].cpu_s, window.threads[0].wait_s) = (cpu_s, Some(wait_s));
        window.threads = vec![window.threads[0].clone(); n as usize];
        window
    }

    /// Readers that shared the CPUs of one node read for the whole period, half as much.
    #[test]
    fn a_period_ends_after_three_windows_beyond_a_bound() {
        let bounds = Guardrail::default();
        let mut off = Sums::new(2.0, 12.0, 1.0);
        (0..12).for_each(|_| off.add(&readers(8, 1000, 1.0, 0.0)));
        assert_eq!((off.works().len(), off.beyond(), off.ran()), (10, None, 1.0));
        let ends = |with: Snapshot, bounds: &Guardrail| {
            let mut on = Sums::new(2.0, 12.0, 1.0).guarded(bounds, Before::of(off.works()));
            let windows = (1..).find(|_| {
                on.add(&with);
                on.over()
            });
            (windows.unwrap(), on)
        };
        let (windows, on) = ends(readers(8, 600, 0.5, 0.5), &bounds);
        // Two of the wash-out, which do not count.
        assert_eq!((windows, on.beyond(), on.ran()), (5, Some(Beyond::Waited(0.0, 0.5)), 0.5));
        // More for each second of CPU time, and less in all.
        let values = |sums: &Sums| [CPU_EFFICIENCY.key, READS.key].map(|key| sums.values().get(key));
        assert_eq!([values(&off), values(&on)], [[1000.0, 8000.0], [1200.0, 4800.0]]);
        assert_eq!(ends(readers(8, 600, 0.5, 0.0), &bounds).0, 5);
        assert_eq!(ends(Snapshot { window_s: 1.0, ..Snapshot::default() }, &bounds).0, 5, "it stands still");
        assert_eq!(ends(readers(8, 800, 1.0, 0.2), &bounds).0, 12);
        assert_eq!(ends(readers(8, 600, 0.5, 0.5), &Guardrail::off()).0, 12);
    }

    #[test]
    fn a_long_window_at_the_begin_does_not_count() {
        // A tenth of the window is longer than the wash-out.
        let mut sums = Sums::new(0.5, 20.0, 10.0);
        sums.add(&Snapshot { window_s: 10.0, ..window(1000, 1000) });
        assert!(!sums.over() && sums.values().get("remote_share").is_nan());
        // Nor does a long one widen the tolerance.
        let mut sums = Sums::new(1.0, 5.0, 1.0);
        for window_s in [4.0, 0.5] {
            sums.add(&Snapshot { window_s, ..window(1000, 0) });
        }
        assert!(!sums.over());
    }

    #[test]
    fn cpu_time_of_threads_without_files_does_not_count() {
        let mut sums = Sums::new(0.0, 1.0, 1.0);
        let mut both = window(100, 0);
        both.threads.push(Thread { cpu_s: 2.0, ..Thread::default() });
        sums.add(&both);
        assert_eq!(sums.values().get("read_bytes_per_cpu_s"), 200.0);
    }

    #[test]
    fn what_could_not_be_put_back_is_told() {
        assert_eq!(stayed(&Finished { restored: 3, gone: 1, ..Finished::default() }), None);
        assert!(stayed(&Finished { not_moved_back: 5, ..Finished::default() }).is_some());
        assert!(stayed(&Finished { failed: 1, ..Finished::default() }).is_some());
    }
}
