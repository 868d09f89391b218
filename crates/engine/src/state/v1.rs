//! State files of version 1, which homenode wrote before moves could copy.
//!
//! They hold threads only, with start times in hundredths of a second and the plane's own facts as the field `family`.

use placement::Subject;
use serde::Deserialize;
use serde_json::Value;
use topology::CpuSet;

use super::records::Record;
use crate::{Masks, Undo};

/// The version that this reads.
pub const VERSION: u32 = 1;
/// Nanoseconds in a unit of start times: `USER_HZ` of Linux is 100.
const NS_PER_TICK: u64 = 10_000_000;

#[derive(Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Old {
    Hold {
        #[serde(default)]
        comm: String,
        undo: Thread,
    },
    Made {
        tid: u32,
        start: u64,
    },
    NotMade {
        tid: u32,
        start: u64,
    },
    Done {
        tid: u32,
        start: u64,
    },
}

#[derive(Deserialize)]
struct Thread {
    tid: u32,
    pid: u32,
    start: u64,
    before: CpuSet,
    ours: CpuSet,
    #[serde(default)]
    unbound: bool,
    #[serde(default)]
    family: Option<Value>,
}

/// A line of version 1 as a record of today; `None` if it is damaged.
pub fn record(line: &[u8]) -> Option<Record> {
    let subject = |tid, start: u64| Subject::Thread { tid, start: start.saturating_mul(NS_PER_TICK) };
    Some(match serde_json::from_slice(line).ok()? {
        Old::Made { tid, start } => Record::Made { subject: subject(tid, start), ours: None },
        Old::NotMade { tid, start } => Record::NotMade { subject: subject(tid, start), ours: None },
        Old::Done { tid, start } => Record::Done { subject: subject(tid, start) },
        Old::Hold { comm, undo: Thread { tid, pid, start, before, ours, unbound, family } } => {
            let masks = Some(Masks { before, ours, unbound });
            let payload = family.map(|f| f.to_string()).unwrap_or_default();
            Record::Hold { comm, undo: Undo { subject: subject(tid, start), pid, masks, payload } }
        }
    })
}
