//! CPU sets behave like sets of numbers, and their text like the kernel's.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;

use proptest::prelude::*;
use topology::CpuSet;

fn numbers() -> impl Strategy<Value = BTreeSet<u32>> {
    // Dense and small, or sparse and beyond the 1,024 of libc's cpu_set_t.
    prop_oneof![prop::collection::btree_set(0_u32..40, 0..40), prop::collection::btree_set(0_u32..65_536, 0..20),]
}

fn set(numbers: &BTreeSet<u32>) -> CpuSet {
    numbers.iter().copied().collect()
}

fn members(set: &CpuSet) -> BTreeSet<u32> {
    set.iter().collect()
}

proptest! {
    #[test]
    fn text_reads_back(a in numbers()) {
        let text = set(&a).to_string();
        prop_assert_eq!(members(&text.parse().unwrap()), a);
        // Runs are joined: no two neighbours stand side by side as separate parts.
        let ends: Vec<(u32, u32)> = text
            .split(',')
            .filter(|p| !p.is_empty())
            .map(|p| p.split_once('-').map_or_else(
                || (p.parse().unwrap(), p.parse().unwrap()),
                |(x, y)| (x.parse().unwrap(), y.parse().unwrap()),
            ))
            .collect();
        prop_assert!(ends.windows(2).all(|w| w[0].1 + 1 < w[1].0));
    }

    #[test]
    fn json_reads_back(a in numbers()) {
        let json = serde_json::to_string(&set(&a)).unwrap();
        prop_assert_eq!(serde_json::from_str::<CpuSet>(&json).unwrap(), set(&a));
    }

    #[test]
    fn operations_are_those_of_sets(a in numbers(), b in numbers()) {
        let (x, y) = (set(&a), set(&b));
        prop_assert_eq!(members(&x.union(&y)), &a | &b);
        prop_assert_eq!(members(&x.intersection(&y)), &a & &b);
        prop_assert_eq!(members(&x.difference(&y)), &a - &b);
        prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
        prop_assert!(x.intersection(&y).is_subset(&x));
        prop_assert_eq!(x == y, a == b);
        prop_assert_eq!(x.len(), a.len());
        prop_assert_eq!(x.is_empty(), a.is_empty());
        prop_assert!(a.iter().all(|&cpu| x.contains(cpu)));
    }

    #[test]
    fn any_text_is_a_set_or_an_error(text in "[0-9,\\- a-z]{0,24}") {
        if let Ok(set) = text.parse::<CpuSet>() {
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }
}
