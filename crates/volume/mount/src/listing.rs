//! Where a listing of a directory is, as the offset that the kernel hands back.
//!
//! **Problem.** A program that renames what it lists gives each file a new name, with a new cookie,
//! behind all others. A listing that goes on to the end, wherever that is by then, never gets
//! there. Nothing of a listing is kept between two requests: the kernel opens directories by
//! itself.
//!
//! **Approach.** The offset also says which cookies were given when the listing began: `end`,
//! rounded up, in the upper bits. A listing that begins anew, also by `rewinddir`, comes with
//! offset 0.
//!
//! **Limits.** Rounding lets a listing show up to one name in 256 of those that came after it
//! began.

/// Bits of an offset for the cookie: `fs` gives none above.
const COOKIE_BITS: u32 = 48;
/// Bits for the leading digits of the end; the rest, up to the sign, says by how many bits they are
/// shifted.
const DIGITS: u32 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Names after this cookie are left.
    pub after: u64,
    /// Names from this cookie on are newer than the listing.
    pub end: u64,
}

impl Place {
    /// The place that an offset says; one that begins a listing ends before `next`, the cookie of
    /// the next name to come.
    pub(crate) fn of(offset: u64, next: impl FnOnce() -> u64) -> Self {
        let (after, code) = (offset & ((1 << COOKIE_BITS) - 1), offset >> COOKIE_BITS);
        let end = (code & ((1 << DIGITS) - 1)).checked_shl((code >> DIGITS) as u32).filter(|end| *end > 0);
        Self { after, end: end.unwrap_or_else(next) }
    }

    /// The offset of the place behind a name of this listing.
    pub(crate) fn behind(self, cookie: u64) -> u64 {
        let shift = (u64::BITS - self.end.leading_zeros()).saturating_sub(DIGITS);
        let digits = self.end.div_ceil(1 << shift);
        // Rounding up can have added a digit.
        let over = digits >> DIGITS;
        let code = (u64::from(shift) + over) << DIGITS | digits >> over;
        code << COOKIE_BITS | cookie
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_has_its_cookie_and_the_end_rounded_up_a_little() {
        let ends = (0..49).flat_map(|bit| [1, 1 << bit, (1 << bit) + 1, (2 << bit) - 1]).filter(|end| *end <= 1 << 48);
        for end in ends {
            for cookie in [1, 3, end - end.min(1), (1 << 48) - 1] {
                let offset = Place { after: 0, end }.behind(cookie);
                assert!(i64::try_from(offset).is_ok(), "kernels take it for a signed number");
                let place = Place::of(offset, || unreachable!());
                assert_eq!(place.after, cookie);
                assert!((end..=end + end / 256).contains(&place.end), "{end} {place:?}");
                assert_eq!(Place::of(place.behind(cookie), || 0), place, "it stays so");
            }
        }
        assert_eq!(Place::of(0, || 7), Place { after: 0, end: 7 });
    }
}
