//! The judge of random machines.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use laboratory::regret::draw;

/// No placement of a policy that moves threads only is better than what the search finds, nor is
/// the kernel's, by more than the half percent that the search does not look at and the shorter
/// time of its runs.
#[test]
fn the_search_beats_the_kernel_and_policies_that_move_threads_and_finds_the_same_twice() {
    let mut gains = 0;
    for number in 0..3 {
        let scenario = draw(3, number);
        let best = scenario.best().unwrap();
        assert!(number > 0 || best == scenario.best().unwrap(), "{}", scenario.describe());
        for policy in [None, Some("nthread")] {
            let value = scenario.with(policy).unwrap();
            assert!(value < 1.03 * best.value, "{policy:?}: {value}, {best:?}, {}", scenario.describe());
            gains += u32::from(value < 0.95 * best.value);
        }
    }
    assert!(gains > 0, "no scenario is one in which a placement matters");
    assert_ne!(draw(3, 0).describe(), draw(4, 0).describe());
}
