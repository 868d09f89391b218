//! What the software of a file system costs a CPU.

use crate::figures::{CALL_S, EXT4_APPEND_S, NAME_S, NOVA_APPEND_S, OPEN_S};

/// What a program asks of a file system, as far as the software's time differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A read.
    Read,
    /// A write, over old bytes or beyond the end.
    Write,
    /// To open a file, and to close it again.
    Open,
    /// To make or remove a name.
    Name,
    /// Anything else, such as a file's attributes.
    Other,
}

/// CPU seconds of each call, without the time of the memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Software {
    /// A read.
    pub read_s: f64,
    /// A write.
    pub write_s: f64,
    /// Opening and closing.
    pub open_s: f64,
    /// Making or removing a name.
    pub name_s: f64,
    /// Any other call.
    pub other_s: f64,
    /// What the program itself does for each call.
    pub program_s: f64,
}

impl Software {
    /// NOVA's, which writes as homenode's file system does: to new blocks, with an entry in a log.
    /// The program takes nothing.
    pub const NOVA: Self = Self {
        read_s: CALL_S,
        write_s: NOVA_APPEND_S,
        open_s: OPEN_S,
        name_s: NAME_S * NOVA_APPEND_S / EXT4_APPEND_S,
        other_s: CALL_S,
        program_s: 0.0,
    };

    /// Seconds of a call, the program's own included.
    pub fn of(&self, call: Call) -> f64 {
        let call_s = match call {
            Call::Read => self.read_s,
            Call::Write => self.write_s,
            Call::Open => self.open_s,
            Call::Name => self.name_s,
            Call::Other => self.other_s,
        };
        call_s + self.program_s
    }
}
