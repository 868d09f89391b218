//! What a period did.

use std::collections::BTreeSet;

use engine::{Finished, MoveEvent};
use host::processor::Counted;
use observe::times::Times;
use placement::Snapshot;
use serde_json::{Map, Value, json};
use trial::Better;

use super::instruments::Seen;
use super::metric;
use crate::output::units::{digits, number, percent, rate, rate_within, short_time, short_time_within};
use crate::signals::Stop;

/// What is measured of each period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Key in JSON.
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
    Time,
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

const OTHERS: [Outcome; 3] = [
    Outcome { key: "read_bytes_per_s", name: "file bytes read per second", better: Better::Higher, form: Form::Rate },
    Outcome { key: "remote_share", name: "share of them from other nodes", better: Better::Lower, form: Form::Share },
    Outcome {
        key: "wait_share",
        name: "time waited for a CPU, of each second",
        better: Better::Lower,
        form: Form::Number,
    },
];

/// With `--read-times`, and the share of the reads that took no longer.
pub const READ_TIMES: [(Outcome, f64); 2] = [
    (Outcome { key: "read_p50_s", name: "time of a read, median", better: Better::Lower, form: Form::Time }, 0.5),
    (
        Outcome { key: "read_p99_s", name: "time of a read, 99th percentile", better: Better::Lower, form: Form::Time },
        0.99,
    ),
];

/// Of a control group, where the processors count it.
pub const IPC: Outcome = Outcome {
    key: "instructions_per_cycle",
    name: "instructions per cycle",
    better: Better::Higher,
    form: Form::Number,
};

/// Of a control group, where the processors count it.
pub const REMOTE_LOADS: Outcome = Outcome {
    key: "remote_loads_per_1000_instructions",
    name: "loads from other nodes' memory, per 1,000 instructions",
    better: Better::Lower,
    form: Form::Number,
};

/// All of a trial, with those that there are here; the first is what the verdict is about.
pub fn all(primary: Outcome, here: &[Outcome]) -> Vec<Outcome> {
    let rest = [CPU_EFFICIENCY].into_iter().chain(OTHERS).chain(here.iter().copied());
    std::iter::once(primary).chain(rest.filter(|outcome| *outcome != primary)).collect()
}

impl Outcome {
    /// The same, with another direction.
    pub fn towards(self, better: Better) -> Self {
        Self { better, ..self }
    }

    /// A value for people.
    pub fn shown(&self, value: f64) -> String {
        match self.form {
            _ if !value.is_finite() => "unknown".to_owned(),
            Form::Rate => rate(value),
            Form::Share => percent(value),
            Form::Time => short_time(value),
            Form::Number => number(value),
        }
    }

    /// A value for people, with the digits that tell it from one that is `step` away.
    pub fn shown_within(&self, value: f64, step: f64) -> String {
        match self.form {
            _ if !value.is_finite() => "unknown".to_owned(),
            Form::Rate => rate_within(value, step),
            Form::Share => format!("{:.*} %", digits(100.0 * step), 100.0 * value),
            Form::Time => short_time_within(value, step),
            Form::Number => format!("{value:.*}", digits(step)),
        }
    }

    /// A change for people, with its sign.
    pub fn signed(&self, change: f64) -> String {
        format!("{}{}", sign(change), self.shown(change.abs()))
    }

    /// The same, with the digits of [`Self::shown_within`].
    pub fn signed_within(&self, change: f64, step: f64) -> String {
        format!("{}{}", sign(change), self.shown_within(change.abs(), step))
    }
}

fn sign(change: f64) -> &'static str {
    match change {
        0.0 => "",
        _ if change < 0.0 => "-",
        _ => "+",
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
    read: f64,
    remote: f64,
    cpu_s: f64,
    wait_s: f64,
    /// If reads are timed.
    times: Option<Times>,
    /// Whether some are missing.
    lost: bool,
    /// Cycles, instructions, loads from other nodes.
    counted: [f64; 3],
    metric: Option<f64>,
}

impl Sums {
    /// `window_s`: the set length of a window.
    pub fn new(wash_out_s: f64, period_s: f64, window_s: f64) -> Self {
        Self { wash_out_s, period_s, tolerance_s: 0.1 * window_s, ..Self::default() }
    }

    /// A window counts if it began after the wash-out, or so little before that rounding may be
    /// why. CPU time counts of threads that touched file data: not that of homenode itself.
    pub fn add(&mut self, snapshot: &Snapshot, seen: &Seen) {
        let counts = self.elapsed_s >= self.wash_out_s - self.tolerance_s.min(0.1 * self.wash_out_s);
        self.elapsed_s += snapshot.window_s;
        if !counts {
            return;
        }
        self.seconds += snapshot.window_s;
        for thread in &snapshot.threads {
            self.read += thread.read_bytes.total() as f64;
            self.remote += thread.remote_bytes() as f64;
            self.cpu_s += if thread.file_bytes() > 0 { thread.cpu_s } else { 0.0 };
            self.wait_s += thread.wait_s.unwrap_or(0.0);
        }
        self.lost |= seen.lost;
        if let Some(times) = &seen.times {
            let sum = self.times.get_or_insert_default();
            let processes: BTreeSet<u32> = snapshot.threads.iter().map(|thread| thread.pid).collect();
            processes.iter().filter_map(|pid| times.get(pid)).for_each(|of| sum.add(of));
        }
        let Counted { cycles, instructions, remote_loads } = seen.counted;
        for (sum, events) in self.counted.iter_mut().zip([cycles, instructions, remote_loads]) {
            // One window without them, and the sum is not known.
            *sum += events.unwrap_or(f64::NAN);
        }
    }

    /// Whether the period is over.
    pub fn over(&self) -> bool {
        self.seconds > 0.0 && self.elapsed_s >= self.period_s - self.tolerance_s
    }

    /// Asks for the user's number, if there is one, once, at the end of a whole period.
    pub fn ask(&mut self, metric: Option<&str>, stop: &Stop) {
        if let Some(command) = metric.filter(|_| self.metric.is_none() && self.over()) {
            self.metric = Some(metric::ask(command, &|| stop.requested()).unwrap_or_else(|why| {
                tracing::warn!("--metric: {why}");
                f64::NAN
            }));
        }
    }

    pub fn values(&self) -> Values {
        let mut values = vec![
            (CPU_EFFICIENCY.key, self.read / self.cpu_s),
            ("read_bytes_per_s", self.read / self.seconds),
            ("remote_share", self.remote / self.read),
            ("wait_share", self.wait_s / self.seconds),
        ];
        if let Some(times) = &self.times {
            // The slowest are lost first: what is left would be too fast.
            let of = |share| times.quantile(share).filter(|_| !self.lost).unwrap_or(f64::NAN);
            values.extend(READ_TIMES.map(|(outcome, share)| (outcome.key, of(share))));
        }
        let [cycles, instructions, remote_loads] = self.counted;
        values.extend([(IPC.key, instructions / cycles), (REMOTE_LOADS.key, 1000.0 * remote_loads / instructions)]);
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
    use std::collections::BTreeMap;

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
            sums.add(&window(read, remote), &Seen::default());
            assert!(!sums.over());
        }
        sums.add(&window(100, 100), &Seen::default());
        assert!(sums.over());
        let values = sums.values();
        let of = |key| values.get(key);
        assert_eq!((of("read_bytes_per_s"), of("read_bytes_per_cpu_s")), (200.0, 400.0));
        assert_eq!((of("remote_share"), of("wait_share")), (0.5, 0.25));
        assert!(of("metric").is_nan());
        // Nothing read: what follows from it is unknown, not zero.
        let mut idle = Sums::new(0.0, 1.0, 1.0);
        idle.add(&Snapshot { window_s: 1.0, ..Snapshot::default() }, &Seen::default());
        assert!(idle.over() && idle.values().get("remote_share").is_nan());
        assert_eq!(idle.values().json()["remote_share"], Value::Null);
    }

    #[test]
    fn a_long_window_at_the_begin_does_not_count() {
        // A tenth of the window is longer than the wash-out.
        let mut sums = Sums::new(0.5, 20.0, 10.0);
        sums.add(&Snapshot { window_s: 10.0, ..window(1000, 1000) }, &Seen::default());
        assert!(!sums.over() && sums.values().get("remote_share").is_nan());
        // Nor does a long one widen the tolerance.
        let mut sums = Sums::new(1.0, 5.0, 1.0);
        for window_s in [4.0, 0.5] {
            sums.add(&Snapshot { window_s, ..window(1000, 0) }, &Seen::default());
        }
        assert!(!sums.over());
    }

    #[test]
    fn cpu_time_of_threads_without_files_does_not_count() {
        let mut sums = Sums::new(0.0, 1.0, 1.0);
        let mut both = window(100, 0);
        both.threads.push(Thread { cpu_s: 2.0, ..Thread::default() });
        sums.add(&both, &Seen::default());
        assert_eq!(sums.values().get("read_bytes_per_cpu_s"), 200.0);
    }

    #[test]
    fn reads_of_other_processes_and_of_the_wash_out_are_not_timed() {
        let mut sums = Sums::new(1.0, 2.0, 1.0);
        let of = |ns: u32| Times::from_iter([(ns, 10)]);
        let seen = |times| Seen { times: Some(times), ..Seen::default() };
        // Thread 0 of process 0 is in scope.
        sums.add(&window(100, 0), &seen([(0, of(8))].into()));
        sums.add(&window(100, 0), &seen([(0, of(4)), (7, of(2))].into()));
        assert_eq!(sums.values().get("read_p50_s"), 4.5e-9);
        assert_eq!(READ_TIMES[0].0.shown(1.25e-6), "1.2 µs");
        // Some are missing in a window that counts: unknown.
        let lost = |wash_out_s, windows: [bool; 2]| {
            let mut sums = Sums::new(wash_out_s, 2.0, 1.0);
            windows.iter().for_each(|lost| {
                sums.add(&window(100, 0), &Seen { lost: *lost, ..seen([(0, of(4))].into()) });
            });
            sums.values().json()["read_p99_s"].is_null()
        };
        assert!(lost(0.0, [true, false]) && lost(1.0, [false, true]) && !lost(1.0, [true, false]));
        // Timed, but nothing was read: unknown.
        let mut sums = Sums::new(0.0, 1.0, 1.0);
        sums.add(&window(0, 0), &seen(BTreeMap::new()));
        assert!(sums.values().get("read_p99_s").is_nan() && sums.values().json().contains_key("read_p99_s"));
    }

    #[test]
    fn what_one_window_lacks_the_period_lacks() {
        let seen = |cycles, remote_loads| {
            let counted = Counted { cycles: Some(cycles), instructions: Some(1000.0), remote_loads };
            Seen { counted, ..Seen::default() }
        };
        let mut sums = Sums::new(1.0, 3.0, 1.0);
        // The first is the wash-out.
        for seen in [seen(1.0, Some(9.0)), seen(500.0, Some(4.0)), seen(1500.0, Some(6.0))] {
            sums.add(&window(100, 0), &seen);
        }
        let values = sums.values();
        assert_eq!((values.get(IPC.key), values.get(REMOTE_LOADS.key)), (1.0, 5.0));
        sums.add(&window(100, 0), &seen(100.0, None));
        assert!(sums.values().get(IPC.key).is_finite() && sums.values().get(REMOTE_LOADS.key).is_nan());
        assert_eq!(all(METRIC, &[IPC]).iter().filter(|outcome| **outcome == IPC).count(), 1);
    }

    #[test]
    fn what_could_not_be_put_back_is_told() {
        assert_eq!(stayed(&Finished { restored: 3, gone: 1, ..Finished::default() }), None);
        assert!(stayed(&Finished { not_moved_back: 5, ..Finished::default() }).is_some());
        assert!(stayed(&Finished { failed: 1, ..Finished::default() }).is_some());
    }
}
