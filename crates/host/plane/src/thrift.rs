//! What observing the host costs, and how it costs less.

use engine::{Cost, Thrift};
use observe::{ObserveError, Observed};

use crate::HostPlane;
use crate::facts::Facts;

/// How far windows may be stretched. A run ends only when its window does.
const STRETCH_MAX: u32 = 4;

#[derive(Debug)]
pub(crate) struct Spent {
    /// In the last window, without copies: they are paced, and not for observing.
    cost: Option<Cost>,
    /// CPU time of copies up to the last window, in seconds.
    copied_s: f64,
    /// Factor by which windows are longer than requested, to cost less.
    pub stretch: u32,
}

impl Default for Spent {
    fn default() -> Self {
        Self { cost: None, copied_s: 0.0, stretch: 1 }
    }
}

impl Spent {
    /// Takes in a window. `copied_s`: the CPU time of all copies so far.
    pub fn window(&mut self, seen: &Observed, copied_s: f64) {
        let own_s = seen.cost.cpu_s - (copied_s - std::mem::replace(&mut self.copied_s, copied_s));
        self.cost = Some(Cost {
            cpu: if seen.window_s > 0.0 { own_s.max(0.0) / seen.window_s } else { 0.0 },
            memory_bytes: seen.cost.rss_bytes.saturating_add(seen.cost.kernel_bytes),
        });
    }
}

/// After an error nothing was saved: other ways are tried.
fn said(done: Result<Option<String>, ObserveError>) -> Option<String> {
    done.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot look at fewer threads");
        None
    })
}

impl Thrift for HostPlane {
    fn cost(&self) -> Option<Cost> {
        self.spent.cost
    }

    /// First looks at fewer threads of a user who has thousands: nobody else pays for them. Then
    /// looks at fewer files and processes. Sampling adapts to the load by itself; the remaining
    /// cost is each window's pass over all threads and entries. So at last this makes windows
    /// longer.
    fn shed(&mut self) -> Option<String> {
        if let Some(less) = self.observer().and_then(|observer| said(observer.shed())) {
            return Some(less);
        }
        if let Some(less) = self.facts.as_mut().and_then(Facts::shed) {
            return Some(less);
        }
        let stretch = &mut self.spent.stretch;
        if *stretch >= STRETCH_MAX {
            return None;
        }
        *stretch *= 2;
        Some(format!("windows are now {stretch} times as long as set"))
    }

    fn relax(&mut self) -> Option<String> {
        let stretch = &mut self.spent.stretch;
        if *stretch == 1 {
            let facts = self.facts.as_mut().and_then(Facts::relax);
            return facts.or_else(|| said(self.observer()?.relax()));
        }
        *stretch /= 2;
        Some(match stretch {
            1 => "windows have their set length again".to_owned(),
            n => format!("windows are now {n} times as long as set"),
        })
    }
}
