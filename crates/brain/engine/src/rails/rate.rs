//! The machine-wide limit on moves: a token bucket.

/// Tokens that refill at a rate up to a burst; each move takes one. Over any time T at most
/// `burst + rate × T` moves pass.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Option<f64>,
}

impl TokenBucket {
    /// A full bucket: `rate` tokens per second, at most `burst`.
    pub fn new(rate: f64, burst: u32) -> Self {
        Self { rate, burst: burst.into(), tokens: burst.into(), at: None }
    }

    /// Adds what has come in until `now` seconds.
    pub fn refill(&mut self, now: f64) {
        if let Some(at) = self.at {
            self.tokens = (self.tokens + (now - at).max(0.0) * self.rate).min(self.burst);
        }
        self.at = Some(now);
    }

    pub fn take(&mut self) -> bool {
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }

    pub fn give_back(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.burst);
    }
}
