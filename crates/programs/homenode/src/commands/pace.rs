//! Works that copy, step by step: with a limit on the rate, a progress bar and an eye on signals.

use std::thread;
use std::time::{Duration, Instant};

use act::copying::Copying;

use crate::output::{escape, progress};
use crate::signals::Stop;

/// How long one step of a rate-limited work lasts: short beside the second that a rate refers to.
const STEP: Duration = Duration::from_millis(100);

/// Bytes of one step without a limit: a fraction of a second, so that Ctrl-C acts at once.
const UNLIMITED: u64 = 64 << 20;

pub(super) struct Pace<'a> {
    /// Most bytes a second.
    pub rate: Option<f64>,
    /// No progress bar.
    pub json: bool,
    pub stop: &'a Stop,
}

impl Pace<'_> {
    /// Does a work until it is over or a signal comes. Returns the time that it took, and why it
    /// ended early if it did.
    pub fn drive(&self, name: &str, work: &mut dyn Copying) -> (Duration, Option<String>) {
        let bar =
            progress::bar(self.json, work.copied().total, "{msg} {wide_bar} {bytes} of {total_bytes}  {eta} left");
        bar.set_message(escape(name));
        let start = Instant::now();
        let mut paced = Duration::ZERO;
        let mut why = None;
        loop {
            if self.stop.requested() {
                work.stop();
                why = Some("stopped by a signal".to_owned());
                break;
            }
            let step = self.rate.map_or(UNLIMITED, |rate| (rate * STEP.as_secs_f64()).max(1.0) as u64);
            match work.step(step) {
                Ok(true) => break,
                Ok(false) => {}
                Err(e) => {
                    why = Some(format!("stopped by an error: {}", crate::exit::errno_names(&e.to_string())));
                    break;
                }
            }
            let copied = work.copied();
            bar.set_length(copied.total);
            bar.set_position(copied.moved + copied.failed());
            if let Some(rate) = self.rate {
                paced += Duration::from_secs_f64(step as f64 / rate);
                while let Some(left) =
                    paced.checked_sub(start.elapsed()).filter(|left| !left.is_zero() && !self.stop.requested())
                {
                    // A signal unparks.
                    thread::park_timeout(left);
                }
            }
        }
        bar.finish_and_clear();
        (start.elapsed(), why)
    }
}
