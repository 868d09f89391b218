//! How the accessed bits of a mapping can be used on this kernel.
//!
//! **Problem.** A bit that is never cleared says "accessed since it was mapped", which tells hot
//! pages from touched ones no more. The kernel clears the bits of a process for whoever writes to
//! its `clear_refs`, but not all of them.
//!
//! **Approach.** A pure table, from facts: the first row that applies.
//!
//! | mapping | the bits are |
//! |---|---|
//! | page cache | cleared through `clear_refs` |
//! | persistent memory, Linux ≥ 6.16 | cleared through `clear_refs` |
//! | persistent memory before | never cleared: "ever touched" (6.15 and earlier skip DAX pages, which have no `struct page` of the usual kind: `vm_normal_page`) |
//! | any, so large that clearing would stall the process | never cleared |
//! | any, where `clear_refs` may not be written | never cleared |
//!
//! **Limits.** Nothing flushes the processors' caches of translations (TLB) when bits are cleared.
//! A page that stays in one looks cold until it is evicted: a working set of up to some 8 MiB of 4
//! KiB pages, or a few GiB of 2 MiB pages.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `clear_refs` also clears the bits of persistent memory (Linux 6.16 and later).
    pub clears_dax: bool,
    /// Why `clear_refs` of this process may not be written, if so.
    pub refused: Option<String>,
    /// Entries of the page table that clearing would visit.
    pub entries: u64,
}

/// Whether the bits say "since the last sample" or "ever".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    Cleared,
    /// They are never cleared, for this reason.
    Ever(String),
}

/// Most entries that are cleared at once. While the kernel clears them, the process cannot map or
/// unmap memory, and threads that fault may wait. It takes 12 to 22 ms for each GiB of 4 KiB pages,
/// which are 2^18 entries: at most 90 ms.
const CLEAR_MOST: u64 = 1 << 20;

/// The row of the table for a mapping.
pub fn choose(dax: bool, facts: &Facts) -> Row {
    match facts {
        Facts { refused: Some(why), .. } => Row::Ever(format!("clear_refs cannot be written: {why}")),
        Facts { clears_dax: false, .. } if dax => {
            Row::Ever("before Linux 6.16 the kernel does not clear the accessed bits of persistent memory".to_owned())
        }
        Facts { entries, .. } if *entries > CLEAR_MOST => {
            Row::Ever(format!("clearing {entries} accessed bits at once would stall the process"))
        }
        _ => Row::Cleared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table() {
        let facts = |clears_dax, refused: Option<&str>, entries| Facts {
            clears_dax,
            refused: refused.map(str::to_owned),
            entries,
        };
        for (dax, facts, why) in [
            (false, facts(false, None, 1 << 20), None),
            (true, facts(true, None, 1), None),
            (true, facts(false, None, 1), Some("before Linux 6.16")),
            (true, facts(true, None, (1 << 20) + 1), Some("stall")),
            (false, facts(true, None, (1 << 20) + 1), Some("stall")),
            (false, facts(true, Some("EACCES"), 1), Some("EACCES")),
            (true, facts(false, Some("EACCES"), 1), Some("EACCES")),
        ] {
            match (choose(dax, &facts), why) {
                (Row::Cleared, None) => {}
                (Row::Ever(said), Some(why)) if said.contains(why) => {}
                (row, why) => panic!("{dax} {facts:?}: {row:?}, not {why:?}"),
            }
        }
    }
}
