//! How stores become durable on this processor and this kind of memory.

use std::fmt;

/// The persistence primitive of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// The memory is lost with the machine: stores are visible to the next process that maps it,
    /// and that is all.
    Volatile,
    /// Lines are written back with this instruction, then `sfence`.
    Lines(Instruction),
    Msync,
}

/// An instruction that writes a line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Writes back and keeps the line.
    Clwb,
    /// Writes back and drops the line.
    ClflushOpt,
    /// Writes back, drops, and waits for the one before.
    Clflush,
}

impl fmt::Display for Persistence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Volatile => "nothing: a power cut loses this memory",
            Self::Lines(Instruction::Clwb) => "clwb, sfence",
            Self::Lines(Instruction::ClflushOpt) => "clflushopt, sfence",
            Self::Lines(Instruction::Clflush) => "clflush, sfence",
            Self::Msync => "msync",
        })
    }
}

impl Instruction {
    /// The best one this processor has. `None`: homenode knows none for this architecture.
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            if __cpuid(0).eax < 7 {
                return Some(Self::Clflush);
            }
            let features = __cpuid_count(7, 0).ebx;
            let found = if features & 1 << 24 != 0 {
                Self::Clwb
            } else if features & 1 << 23 != 0 {
                Self::ClflushOpt
            } else {
                Self::Clflush
            };
            Some(found)
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }
}

/// Waits for the lines that were written back.
pub fn store_fence() {
    // A fence orders; on x86 `sfence` also waits for the write-backs, which the compiler's fence
    // does not promise.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has sfence, and it touches no memory of its own.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
