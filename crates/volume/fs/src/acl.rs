//! POSIX access control lists, as values of extended attributes.
//!
//! **Problem.** A list and the mode of a file say the same thing twice: the mode's group bits are
//! the list's mask. A new file takes its list from the default list of its directory.
//!
//! **Approach.** A list is kept in the form in which the kernel exchanges it
//! (`linux/posix_acl_xattr.h`, version 2: a version, then entries of tag, permissions and id,
//! little endian). The functions here are pure; the rules are those of POSIX 1003.1e draft 17,
//! section 23.1, as Linux applies them (`fs/posix_acl.c`).
//!
//! **Limits.** The kernel checks permissions. This crate only keeps lists and modes in step.

/// The extended attribute that holds the list of a file.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The extended attribute that holds the list which new files of a directory get.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const PERMISSIONS: u16 = 0o7;

/// To which users an entry applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

impl Tag {
    fn of(raw: u16) -> Option<Self> {
        use Tag::{Group, Mask, Other, Owner, OwningGroup, User};
        [Owner, User, OwningGroup, Group, Mask, Other].into_iter().find(|tag| *tag as u16 == raw)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    permissions: u16,
    id: u32,
}

/// A valid list: entries in the order of their tags, with a mask if it names users or groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Reads a list. `None`: it is not valid.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (version, rest) = value.split_first_chunk()?;
        let (entries, []) = rest.as_chunks::<8>() else { return None };
        let entry = |raw: &[u8; 8]| {
            let [t0, t1, p0, p1, id @ ..] = *raw;
            let tag = Tag::of(u16::from_le_bytes([t0, t1]))?;
            let permissions = u16::from_le_bytes([p0, p1]);
            (permissions & !PERMISSIONS == 0).then(|| Entry { tag, permissions, id: u32::from_le_bytes(id) })
        };
        let entries: Vec<Entry> = entries.iter().map(entry).collect::<Option<_>>()?;
        let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let once = [Tag::Owner, Tag::OwningGroup, Tag::Other].into_iter().all(|tag| count(tag) == 1);
        let masks = count(Tag::Mask);
        let named = count(Tag::User) + count(Tag::Group) > 0;
        let valid = u32::from_le_bytes(*version) == VERSION
            && entries.is_sorted_by_key(|entry| entry.tag)
            && once
            && masks <= 1
            && (masks == 1 || !named);
        valid.then_some(Self(entries))
    }

    /// The list as the value of an attribute.
    pub fn to_bytes(&self) -> Vec<u8> {
        let entries = self.0.iter().flat_map(|entry| {
            let [t0, t1] = (entry.tag as u16).to_le_bytes();
            let [p0, p1] = entry.permissions.to_le_bytes();
            let [a, b, c, d] = entry.id.to_le_bytes();
            [t0, t1, p0, p1, a, b, c, d]
        });
        VERSION.to_le_bytes().into_iter().chain(entries).collect()
    }

    /// Whether the mode says all of it.
    pub fn is_mode(&self) -> bool {
        self.0.iter().all(|entry| !matches!(entry.tag, Tag::User | Tag::Group | Tag::Mask))
    }

    /// The entry that the mode's group bits stand for: the mask, or the owning group's where there
    /// is none.
    fn group_tag(&self) -> Tag {
        if self.0.iter().any(|entry| entry.tag == Tag::Mask) { Tag::Mask } else { Tag::OwningGroup }
    }

    /// Place of an entry's permissions in a mode; `None` for entries that a mode does not show.
    fn shift(&self, tag: Tag) -> Option<u32> {
        match tag {
            Tag::Owner => Some(6),
            Tag::Other => Some(0),
            tag if tag == self.group_tag() => Some(3),
            _ => None,
        }
    }

    /// The permissions of the mode that goes with it: nine bits.
    pub fn mode(&self) -> u32 {
        let bits = self.0.iter().filter_map(|entry| Some(u32::from(entry.permissions) << self.shift(entry.tag)?));
        bits.fold(0, |mode, bits| mode | bits)
    }

    /// The list after `chmod`.
    #[must_use]
    pub fn with_mode(&self, mode: u32) -> Self {
        self.map(|permissions_of_mode, _| permissions_of_mode, mode)
    }

    /// The access list of a new file in a directory with this default list: the creating program
    /// asked for `mode`, and neither grants more than the other. Its [`Acl::mode`] is the new
    /// file's.
    #[must_use]
    pub fn for_new(&self, mode: u32) -> Self {
        self.map(|permissions_of_mode, permissions| permissions_of_mode & permissions, mode)
    }

    fn map(&self, new: impl Fn(u16, u16) -> u16, mode: u32) -> Self {
        let entry = |entry: &Entry| {
            let permissions = self
                .shift(entry.tag)
                .map_or(entry.permissions, |shift| new((mode >> shift) as u16 & PERMISSIONS, entry.permissions));
            Entry { permissions, ..*entry }
        };
        Self(self.0.iter().map(entry).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Tag, u16, u32)]) -> Acl {
        let entry = |&(tag, permissions, id): &_| Entry { tag, permissions, id };
        let acl = Acl(entries.iter().map(entry).collect());
        assert_eq!(Acl::parse(&acl.to_bytes()), Some(acl.clone()));
        acl
    }

    const NOBODY: u32 = u32::MAX;

    fn with_a_user() -> Acl {
        acl(&[
            (Tag::Owner, 7, NOBODY),
            (Tag::User, 6, 12345),
            (Tag::OwningGroup, 5, NOBODY),
            (Tag::Mask, 7, NOBODY),
            (Tag::Other, 1, NOBODY),
        ])
    }

    #[test]
    fn the_mask_is_the_modes_group() {
        let acl = with_a_user();
        assert_eq!((acl.mode(), acl.is_mode()), (0o771, false));
        let chmodded = acl.with_mode(0o640);
        assert_eq!(chmodded.mode(), 0o640);
        // The owning group's own entry stays: 5, of which the mask leaves 4.
        assert_eq!(chmodded.0[2].permissions, 5);
        assert_eq!(chmodded.0[1].permissions, 6);
    }

    #[test]
    fn a_short_list_is_the_mode() {
        let acl = acl(&[(Tag::Owner, 6, NOBODY), (Tag::OwningGroup, 4, NOBODY), (Tag::Other, 0, NOBODY)]);
        assert_eq!((acl.mode(), acl.is_mode()), (0o640, true));
        assert_eq!(acl.with_mode(0o751).mode(), 0o751);
    }

    #[test]
    fn a_new_file_gets_no_more_than_it_asked_for() {
        // 771 and 640 have 640 in common.
        assert_eq!(with_a_user().for_new(0o640).mode(), 0o640);
        assert_eq!(with_a_user().for_new(0o777).mode(), 0o771);
    }

    #[test]
    fn invalid_lists_are_refused() {
        let good = with_a_user().to_bytes();
        assert!(Acl::parse(&good[..good.len() - 1]).is_none());
        assert!(Acl::parse(&[2, 0, 0, 0]).is_none());
        assert!(Acl::parse(b"").is_none());
        let spoilt = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Acl::parse(&bytes)
        };
        assert!(spoilt(0, 1).is_none()); // another version
        assert!(spoilt(4, 0x02).is_none()); // no owner
        assert!(spoilt(4, 0x03).is_none()); // no such tag
        assert!(spoilt(6, 8).is_none()); // no such permission
        assert!(spoilt(28, 0x20).is_none()); // a user without a mask, two others
    }
}
