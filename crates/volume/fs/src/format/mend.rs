//! A flipped bit, found by the check that it breaks.
//!
//! **Problem.** A bit that flips in memory breaks the check of all that the check covers.
//!
//! **Approach.** Each single flip of a piece changes its check in another way. So the one flip that
//! makes the check right again is the one that happened, unless many bits are wrong: of pieces of
//! noise one in ten million passes for an entry with a flipped bit, and one in a thousand for a
//! word, which leads to a page that says whose it is.
//!
//! **Limits.** Two flips in one piece are not mended.

/// Flips the one bit of `bytes` that makes `right` true. `None`: there is none, or several.
pub fn flip(bytes: &mut [u8], right: impl Fn(&[u8]) -> bool) -> Option<()> {
    let mut found = None;
    for bit in 0..bytes.len() * 8 {
        toggle(bytes, bit);
        let mends = right(bytes);
        toggle(bytes, bit);
        if mends && found.replace(bit).is_some() {
            return None;
        }
    }
    found.map(|bit| toggle(bytes, bit))
}

fn toggle(bytes: &mut [u8], bit: usize) {
    if let Some(byte) = bytes.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
}
