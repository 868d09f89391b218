//! How long the engine lets a load be moved about.

/// What a policy must know of the engine's settings (`[engine]`) to plan moves that will be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds that a moved thread stays before it may be moved again.
    pub dwell_s: f64,
    /// Windows after which a load that stays the same keeps its placement; 0: never.
    pub settle_windows: u32,
    /// Seconds after which such a load is looked at again.
    pub again_s: f64,
}

impl Default for Pace {
    /// The engine's defaults.
    fn default() -> Self {
        Self { dwell_s: 3.0, settle_windows: 10, again_s: 600.0 }
    }
}
