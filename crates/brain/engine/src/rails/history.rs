//! The past of one thread: its moves, the nodes it has left, and refusals.

use topology::NodeId;

use super::{HeldBack, Rail};
use crate::Settings;
use crate::settings::MAX_REVERSALS;

/// First pause after a refusal in seconds; each further one doubles it.
const RETRY_S: f64 = 10.0;
/// Longest pause after a refusal in seconds.
const RETRY_MAX_S: f64 = 640.0;
/// Most nodes that are remembered as left.
const MAX_LEFT: usize = 16;

/// One thread's past. Times are seconds of the snapshots' clock.
#[derive(Clone, Debug)]
pub struct History {
    last_move: f64,
    /// Nodes the thread was moved away from, with the time.
    left: Vec<(NodeId, f64)>,
    /// Times of the moves that led back to a node in `left`.
    reversals: Vec<f64>,
    /// Whether the last move was one of them.
    reversed: bool,
    alone_until: f64,
    /// It is left alone because its last move did not pay, not because it went back and forth.
    unpaid: bool,
    refusals: u32,
    retry_at: f64,
}

impl Default for History {
    fn default() -> Self {
        Self {
            last_move: f64::NEG_INFINITY,
            left: Vec::new(),
            reversals: Vec::new(),
            reversed: false,
            alone_until: f64::NEG_INFINITY,
            unpaid: false,
            refusals: 0,
            retry_at: f64::NEG_INFINITY,
        }
    }
}

impl History {
    /// Whether the thread may be moved now.
    pub fn check(&self, now: f64, settings: &Settings) -> Result<(), HeldBack> {
        let since = now - self.last_move;
        // In a dry run a move counts as made, so that the rails show what they would do.
        let was = if settings.dry_run { "would have been" } else { "was" };
        if now < self.alone_until {
            let Settings { oscillation: o, .. } = settings;
            if self.unpaid {
                let why = format!("its last move did not pay: left alone for {:.0} s more", self.alone_until - now);
                return Err(HeldBack::new(Rail::LeftAlone, why));
            }
            let why = format!(
                "went back and forth {} times within {:.0} s: left alone for {:.0} s more",
                o.reversals,
                o.span_s,
                self.alone_until - now
            );
            return Err(HeldBack::new(Rail::LeftAlone, why));
        }
        if since < settings.dwell_s {
            let why = format!("{was} moved {since:.1} s ago, stays at least {} s", settings.dwell_s);
            return Err(HeldBack::new(Rail::Dwell, why));
        }
        if self.reversed && since < settings.cooldown_s {
            let why = format!("{was} moved back {since:.1} s ago, stays at least {} s", settings.cooldown_s);
            return Err(HeldBack::new(Rail::Cooldown, why));
        }
        if now < self.retry_at {
            let why = format!("was refused {} times, next try in {:.0} s", self.refusals, self.retry_at - now);
            return Err(HeldBack::new(Rail::Backoff, why));
        }
        Ok(())
    }

    /// A move was made. Returns a sentence when that was one back-and-forth too many.
    pub fn made(&mut self, now: f64, from: NodeId, to: NodeId, settings: &Settings) -> Option<String> {
        self.last_move = now;
        self.refusals = 0;
        self.reversed = false;
        if from == to {
            // A thread bound where it is has not left its node.
            return None;
        }
        let oscillation = &settings.oscillation;
        let since = now - oscillation.span_s;
        self.left.retain(|l| l.1 >= since && l.0 != from);
        self.reversals.retain(|r| *r >= since);
        self.reversed = self.left.iter().any(|l| l.0 == to);
        if self.left.len() >= MAX_LEFT {
            self.left.remove(0);
        }
        self.left.push((from, now));
        if !self.reversed {
            return None;
        }
        self.reversals.push(now);
        if self.reversals.len() < oscillation.reversals.min(MAX_REVERSALS) as usize {
            return None;
        }
        self.reversals.clear();
        (self.alone_until, self.unpaid) = (now + oscillation.leave_alone_s, false);
        Some(format!(
            "went back and forth {} times within {:.0} s: left alone for {:.0} s",
            oscillation.reversals, oscillation.span_s, oscillation.leave_alone_s
        ))
    }

    /// A move did not pay and was taken back.
    pub fn did_not_pay(&mut self, now: f64, settings: &Settings) {
        (self.alone_until, self.unpaid) = (now + settings.oscillation.leave_alone_s, true);
    }

    pub fn refused(&mut self, now: f64) {
        let pause = (RETRY_S * f64::from(1u32 << self.refusals.min(16))).min(RETRY_MAX_S);
        self.refusals = self.refusals.saturating_add(1);
        self.retry_at = now + pause;
    }

    /// Until when anything remembered here could hold the thread back, or count against it.
    pub fn matters_until(&self, settings: &Settings) -> f64 {
        let moved = settings.dwell_s.max(settings.cooldown_s).max(settings.oscillation.span_s);
        // A refusal is remembered for one more pause, so that the next one pauses longer.
        let refused = if self.refusals > 0 { self.retry_at + RETRY_MAX_S } else { f64::NEG_INFINITY };
        (self.last_move + moved).max(self.alone_until).max(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that was bound where it runs has not left that node, so coming back later is no
    /// reversal.
    #[test]
    fn binding_in_place_is_not_leaving() {
        let settings = Settings::default();
        let mut history = History::default();
        let (a, b) = (NodeId(0), NodeId(1));
        for (now, from, to, reversed) in
            [(0.0, a, a, false), (20.0, a, b, false), (40.0, b, b, false), (60.0, b, a, true)]
        {
            assert_eq!(history.made(now, from, to, &settings), None);
            assert_eq!(history.reversed, reversed, "{from} to {to} at {now}");
        }
        let mut history = History::default();
        history.made(0.0, a, a, &settings);
        history.made(20.0, b, a, &settings);
        assert!(!history.reversed && history.reversals.is_empty());
    }
}
