//! Settings of the loop: `[engine]` in `homenode.toml`.

use placement::Pace;
use serde::{Deserialize, Serialize};

use crate::EngineError;

/// Settings of the loop and its rails. Times are seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Length of a window. Default 1. Shorter reacts faster and sees fewer bytes to judge by.
    pub window_s: f64,
    /// How long a moved thread stays before it may be moved again. Default 3: two windows show what
    /// a move did.
    pub dwell_s: f64,
    /// How long a thread stays that was moved back to where it came from. Default 60.
    pub cooldown_s: f64,
    /// Highest lasting rate of moves on the whole machine, per second. Default 64.
    pub moves_per_s: f64,
    /// How many moves may be made at once after a quiet time. Default 256.
    pub burst: u32,
    /// When a thread that goes back and forth is left alone.
    pub oscillation: Oscillation,
    /// When a load counts as placed.
    pub settle: Settle,
    /// Limits on the cost of homenode itself.
    pub budget: Budget,
    /// Largest size of the journal in bytes, both of its files together. Default 8 MiB: it lies in
    /// memory under `/run`.
    #[serde(deserialize_with = "topology::units::bytes")]
    pub journal_bytes: u64,
    /// Moves that copy, and moves that do not pay: `[moves]` in `homenode.toml`. Without that
    /// section, as in a simulation, they are unlimited.
    #[serde(skip, default = "Moves::unlimited")]
    pub moves: Moves,
    /// When a service is put back: `[guardrail]` in `homenode.toml`. Without that section, as in a
    /// simulation, never.
    #[serde(skip, default = "Guardrail::off")]
    pub guardrail: Guardrail,
    /// Bind threads even while a sched_ext scheduler runs. Default false: such a scheduler may take
    /// threads with a custom mask off its normal path (scx_layered sends them to fallback queues).
    pub beside_sched_ext: bool,
    /// Decide and report, change nothing, write nothing. Default false.
    pub dry_run: bool,
    /// File bytes/s from which on a thread is busy, and its load counts. No key: the same for all,
    /// but for memory that is slower than any real one.
    #[serde(skip, default = "busy_bytes_s")]
    pub busy_bytes_s: f64,
}

fn busy_bytes_s() -> f64 {
    placement::load_change::BUSY_BYTES_S
}

/// Limits on moves that copy (files, and the memory of processes), and when a move has not paid:
/// `[moves]` in `homenode.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Moves {
    /// Bytes per second that all copies together may take. Default 5e8: a quarter of the writes
    /// that one Optane module of 128 GB sustains (1.85 GB/s, NThread's machine), so that a copy
    /// leaves the load most of the slowest memory there is.
    #[serde(deserialize_with = "topology::units::rate")]
    pub rate: f64,
    /// Bytes that may be copied in 24 hours. Default 1.6e12: a hundredth of what an Optane module
    /// of 128 GB may be written each day of its five years (292 PB in all, Intel's data sheet).
    /// Copies take no more of its endurance than that.
    #[serde(deserialize_with = "topology::units::bytes_limit")]
    pub bytes_per_day: f64,
    /// How many copies may run at once, and beyond these one of each rule that has none. Default 2:
    /// one goes on while the other waits for a busy page.
    pub at_once: u32,
    /// How many windows before and after a plan are compared; a plan after which every window was
    /// worse than every window before is taken back. Default 5: by chance that happens once in 252
    /// plans (5 of 10 windows can be chosen in 252 ways). 0: never.
    pub rollback: u32,
}

/// Lowest [`Moves::rate`] that the engine takes.
pub const LEAST_RATE: f64 = 1e6;

impl Default for Moves {
    fn default() -> Self {
        Self { rate: 5e8, bytes_per_day: 1.6e12, at_once: 2, rollback: 5 }
    }
}

impl Moves {
    /// No limit, and no plan is taken back: a modelled machine has limits of its own.
    pub fn unlimited() -> Self {
        Self { rate: 1e15, bytes_per_day: 1e18, at_once: 1_000_000, rollback: 0 }
    }
}

/// When a service goes worse after a move, is put back, and is left alone: `[guardrail]` in
/// `homenode.toml`, and for the periods of `homenode trial`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Guardrail {
    /// By which share the file bytes read per second may fall. Default 0.3.
    pub read_fall: f64,
    /// By how much the share of the time in which its threads wait for a CPU may rise. Default 0.3.
    pub wait_rise: f64,
    /// For how many windows in a row it must be so. Default 3: one or two are the move itself. 0:
    /// never.
    pub windows: u32,
    /// How long the service is left alone then. Default 600.
    pub pause_s: f64,
}

impl Default for Guardrail {
    fn default() -> Self {
        Self { read_fall: 0.3, wait_rise: 0.3, windows: 3, pause_s: 600.0 }
    }
}

impl Guardrail {
    /// Nothing is put back.
    pub fn off() -> Self {
        Self { windows: 0, ..Self::default() }
    }
}

/// When a thread that goes back and forth is left alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Oscillation {
    /// How many reversals (a move back to the node of the move before) are too many. Default 3, at
    /// most 16.
    pub reversals: u32,
    /// Within how long. Default 300.
    pub span_s: f64,
    /// How long the thread is left alone then. Default 3600.
    pub leave_alone_s: f64,
}

/// When a load counts as placed: its threads and processes are not moved any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settle {
    /// After how many windows (or decision periods of the policy, where they are longer) of the
    /// same load. Default 10; 0: never.
    pub windows: u32,
    /// After how many seconds a load that has stayed the same is looked at again, as its data may
    /// have drifted. Default 600.
    pub again_s: f64,
}

/// Cost of homenode itself above which it observes less.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// CPU time per second: 0.03 (the default) is three hundredths of one CPU.
    pub cpu: f64,
    /// Resident memory in bytes. Default 64 MiB.
    #[serde(deserialize_with = "topology::units::bytes")]
    pub memory_bytes: u64,
    /// For how many consecutive windows the cost must exceed the budget. Default 5: start-up and
    /// single bursts do not count.
    pub windows: u32,
}

/// Most reversals that are remembered per thread.
pub(crate) const MAX_REVERSALS: u32 = 16;

impl Default for Settings {
    fn default() -> Self {
        Self {
            window_s: 1.0,
            dwell_s: Pace::default().dwell_s,
            cooldown_s: 60.0,
            moves_per_s: 64.0,
            burst: 256,
            oscillation: Oscillation::default(),
            settle: Settle::default(),
            budget: Budget::default(),
            journal_bytes: 8 << 20,
            moves: Moves::unlimited(),
            guardrail: Guardrail::off(),
            beside_sched_ext: false,
            dry_run: false,
            busy_bytes_s: busy_bytes_s(),
        }
    }
}

impl Default for Settle {
    fn default() -> Self {
        let Pace { settle_windows, again_s, .. } = Pace::default();
        Self { windows: settle_windows, again_s }
    }
}

impl Default for Oscillation {
    fn default() -> Self {
        Self { reversals: 3, span_s: 300.0, leave_alone_s: 3600.0 }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self { cpu: 0.03, memory_bytes: 64 << 20, windows: 5 }
    }
}

impl Settings {
    /// The part of them that a policy gets.
    pub fn pace(&self) -> Pace {
        Pace { dwell_s: self.dwell_s, settle_windows: self.settle.windows, again_s: self.settle.again_s }
    }

    /// Refuses values that cannot be, naming the setting and the value.
    pub fn validate(&self) -> Result<(), EngineError> {
        let check = |section: &str, name: &str, value: f64, least: f64, most: f64| match value >= least && value <= most
        {
            true => Ok(()),
            false => Err(EngineError::Settings(format!("{section}.{name} is {value}, it must be {least} to {most}"))),
        };
        let within = |name: &str, value: f64, least: f64, most: f64| check("engine", name, value, least, most);
        let within_guardrail =
            |name: &str, value: f64, least: f64, most: f64| check("guardrail", name, value, least, most);
        let within_moves = |name: &str, value: f64, least: f64, most: f64| check("moves", name, value, least, most);
        const YEAR: f64 = 366.0 * 86_400.0;
        within("window_s", self.window_s, 0.01, 3600.0)?;
        within("dwell_s", self.dwell_s, 0.0, YEAR)?;
        within("cooldown_s", self.cooldown_s, 0.0, YEAR)?;
        within("moves_per_s", self.moves_per_s, 0.001, 1e6)?;
        within("burst", self.burst.into(), 1.0, 1e6)?;
        within("oscillation.reversals", self.oscillation.reversals.into(), 1.0, MAX_REVERSALS.into())?;
        within("oscillation.span_s", self.oscillation.span_s, 0.0, YEAR)?;
        within("oscillation.leave_alone_s", self.oscillation.leave_alone_s, 0.0, YEAR)?;
        within("settle.windows", self.settle.windows.into(), 0.0, 1e6)?;
        within("settle.again_s", self.settle.again_s, 1.0, YEAR)?;
        within("budget.cpu", self.budget.cpu, 0.0001, 1024.0)?;
        within("budget.memory_bytes", self.budget.memory_bytes as f64, 1e6, 1e15)?;
        within("budget.windows", self.budget.windows.into(), 1.0, 1e6)?;
        within_moves("rate", self.moves.rate, LEAST_RATE, 1e15)?;
        within_moves("bytes_per_day", self.moves.bytes_per_day, 0.0, 1e18)?;
        within_moves("at_once", self.moves.at_once.into(), 1.0, 1e6)?;
        within_moves("rollback", self.moves.rollback.into(), 0.0, 1000.0)?;
        within_guardrail("read_fall", self.guardrail.read_fall, 0.01, 1.0)?;
        within_guardrail("wait_rise", self.guardrail.wait_rise, 0.01, 1.0)?;
        within_guardrail("windows", self.guardrail.windows.into(), 0.0, 1000.0)?;
        within_guardrail("pause_s", self.guardrail.pause_s, 0.0, YEAR)?;
        within("journal_bytes", self.journal_bytes as f64, 65_536.0, 1e12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_absent_settings_take_them() {
        Settings::default().validate().unwrap();
        let some: Settings = serde_json::from_str(r#"{"dwell_s":3,"oscillation":{"span_s":9}}"#).unwrap();
        assert_eq!(some.dwell_s, 3.0);
        assert_eq!(some.oscillation, Oscillation { span_s: 9.0, ..Oscillation::default() });
        assert_eq!(some.burst, Settings::default().burst);
    }

    #[test]
    fn unknown_settings_are_errors_that_name_them() {
        for text in [r#"{"dwel_s":3}"#, r#"{"budget":{"dwel_s":3}}"#, r#"{"oscillation":{"dwel_s":3}}"#] {
            let error = serde_json::from_str::<Settings>(text).unwrap_err().to_string();
            assert!(error.contains("dwel_s"), "{error}");
        }
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        let bad = [
            ("window_s", Settings { window_s: 0.0, ..Settings::default() }),
            ("window_s", Settings { window_s: f64::NAN, ..Settings::default() }),
            ("dwell_s", Settings { dwell_s: -1.0, ..Settings::default() }),
            ("moves_per_s", Settings { moves_per_s: 0.0, ..Settings::default() }),
            ("burst", Settings { burst: 0, ..Settings::default() }),
            (
                "oscillation.reversals",
                Settings {
                    oscillation: Oscillation { reversals: 17, ..Oscillation::default() },
                    ..Settings::default()
                },
            ),
            (
                "guardrail.read_fall",
                Settings { guardrail: Guardrail { read_fall: 30.0, ..Guardrail::default() }, ..Settings::default() },
            ),
            (
                "budget.cpu",
                Settings { budget: Budget { cpu: f64::INFINITY, ..Budget::default() }, ..Settings::default() },
            ),
        ];
        for (name, settings) in bad {
            let error = settings.validate().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
