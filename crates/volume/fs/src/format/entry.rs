//! Log entries: 1 to 63 slots of 64 bytes.
//!
//! ```text
//!  0  CRC32C of inode number, generation, page sequence, slot, and of bytes 4 to the end     u32
//!  4  kind      u8
//!  5  flags     u8
//!  6  slots     u8
//!  7  reserved, 0
//!  8  time, ns since 1970      i64
//! 16  what the kind says: see each arm of `Entry::body`
//! ```

use smallvec::SmallVec;

use super::mend;
use super::page::{SLOTS, Seal};
use super::{Block, Ino, LINE, MAX_NAME, MAX_SIZE, get_i64, get_u16, get_u32, get_u64, put};

const BODY: usize = 16;
/// Most bytes of an extended attribute: name and value, in one log page.
pub const MAX_XATTR: usize = (SLOTS - 1) * LINE - BODY - 4;

/// Type of a file, from its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Fifo = 1,
    CharDevice = 2,
    Directory = 4,
    BlockDevice = 6,
    File = 8,
    Symlink = 10,
    Socket = 12,
}

impl Kind {
    /// The kind that a mode's upper bits say.
    pub fn of_mode(mode: u32) -> Option<Self> {
        Self::from_raw((mode >> 12) as u8)
    }

    /// The upper bits of a mode.
    pub fn mode_bits(self) -> u32 {
        u32::from(self as u8) << 12
    }

    fn from_raw(raw: u8) -> Option<Self> {
        let kinds =
            [Self::Fifo, Self::CharDevice, Self::Directory, Self::BlockDevice, Self::File, Self::Symlink, Self::Socket];
        kinds.into_iter().find(|kind| *kind as u8 == raw)
    }
}

/// The attributes of an inode, all of them but its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Names in directories; 2 + subdirectories for a directory.
    pub links: u32,
    /// Time of the last access, ns since 1970.
    pub atime: i64,
    /// Time of the last change of the data.
    pub mtime: i64,
    /// Time of the last change of the inode.
    pub ctime: i64,
    /// Device number of a device file.
    pub rdev: u64,
}

/// A run of blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block of the file.
    pub file_block: u64,
    pub block: Block,
    pub count: u64,
    /// Allocated only: reads as zeros.
    pub unwritten: bool,
}

impl Run {
    /// Most blocks in one run.
    pub const MAX: u64 = u32::MAX as u64;

    /// The file block after the run.
    pub fn end(&self) -> u64 {
        self.file_block + self.count
    }

    /// Whether another run goes on where this one ends, in the file and in its region, so that both
    /// are one.
    pub fn adjoins(&self, next: &Self) -> bool {
        let same_region = self.block.region() == next.block.region();
        let adjacent =
            self.end() == next.file_block && same_region && self.block.index() + self.count == next.block.index();
        adjacent && self.unwritten == next.unwritten && self.count + next.count <= Self::MAX
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// The rest of the page is unused.
    Pad,
    /// All attributes. For a directory with the least cookie that a new name may get.
    Attributes(Attributes, u64),
    /// Maps blocks. `None` for the size: a migration, which changes neither size nor times.
    Extent(Run, Option<u64>),
    /// Unmaps blocks.
    Hole {
        /// First block of the file.
        file_block: u64,
        count: u64,
        /// The size from now on.
        size: u64,
    },
    /// Sets the size and unmaps the blocks beyond it.
    Size(u64),
    Link {
        ino: Ino,
        /// The place of the name in listings.
        cookie: u64,
        kind: Kind,
        name: &'a [u8],
    },
    Unlink {
        ino: Ino,
        name: &'a [u8],
    },
    Xattr {
        name: &'a [u8],
        value: &'a [u8],
    },
    XattrGone(&'a [u8]),
}

/// The kind of an extended attribute.
const XATTR: u8 = 8;
/// Slots of a name of 255 bytes; only attributes with long values have more.
const SHORT: usize = 5;

fn get_u8(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

const UNWRITTEN: u8 = 1;
const MIGRATED: u8 = 2;

impl<'a> Entry<'a> {
    pub fn slots(&self) -> usize {
        let body = match self {
            Self::Link { name, .. } => 18 + name.len(),
            Self::Unlink { name, .. } => 9 + name.len(),
            Self::Xattr { name, value } => 4 + name.len() + value.len(),
            Self::XattrGone(name) => 1 + name.len(),
            _ => 48,
        };
        (BODY + body).div_ceil(LINE)
    }

    /// Slots of the entry of an extended attribute whose name and value have so many bytes.
    pub fn xattr_slots(bytes: usize) -> usize {
        (BODY + 4 + bytes).div_ceil(LINE)
    }

    /// Whether any slot of a page may begin an entry that sets an extended attribute.
    pub fn may_have_xattrs(page: &[u8]) -> bool {
        page.chunks(LINE).skip(1).any(|slot| get_u8(slot, 4) == XATTR)
    }

    /// The bytes of the entry in slot `slot` of a page with this seal.
    pub fn encode(&self, seal: Seal, slot: usize, time: i64) -> SmallVec<[u8; LINE]> {
        let slots = self.slots();
        let mut out = SmallVec::from_elem(0, slots * LINE);
        let (kind, flags) = self.body(out.get_mut(BODY..).unwrap_or_default());
        put(&mut out, 4, &[kind, flags, slots as u8]);
        put(&mut out, 8, &time.to_le_bytes());
        let crc = checksum(seal, slot, &out);
        put(&mut out, 0, &crc.to_le_bytes());
        out
    }

    fn body(&self, out: &mut [u8]) -> (u8, u8) {
        match *self {
            Self::Pad => (1, 0),
            Self::Attributes(a, next_cookie) => {
                put(out, 0, &a.mode.to_le_bytes());
                put(out, 4, &a.uid.to_le_bytes());
                put(out, 8, &a.gid.to_le_bytes());
                put(out, 12, &a.links.to_le_bytes());
                put(out, 16, &a.atime.to_le_bytes());
                put(out, 24, &a.mtime.to_le_bytes());
                put(out, 32, &a.rdev.to_le_bytes());
                put(out, 40, &next_cookie.to_le_bytes());
                (2, 0)
            }
            Self::Extent(run, size) => {
                put(out, 0, &run.file_block.to_le_bytes());
                put(out, 8, &run.block.raw().to_le_bytes());
                put(out, 16, &(run.count as u32).to_le_bytes());
                put(out, 24, &size.unwrap_or(0).to_le_bytes());
                (3, if run.unwritten { UNWRITTEN } else { 0 } | if size.is_none() { MIGRATED } else { 0 })
            }
            Self::Hole { file_block, count, size } => {
                put(out, 0, &file_block.to_le_bytes());
                put(out, 8, &count.to_le_bytes());
                put(out, 16, &size.to_le_bytes());
                (4, 0)
            }
            Self::Size(size) => {
                put(out, 0, &size.to_le_bytes());
                (5, 0)
            }
            Self::Link { ino, cookie, kind, name } => {
                put(out, 0, &ino.raw().to_le_bytes());
                put(out, 8, &cookie.to_le_bytes());
                put(out, 16, &[kind as u8, name.len() as u8]);
                put(out, 18, name);
                (6, 0)
            }
            Self::Unlink { ino, name } => {
                put(out, 0, &ino.raw().to_le_bytes());
                put(out, 8, &[name.len() as u8]);
                put(out, 9, name);
                (7, 0)
            }
            Self::Xattr { name, value } => {
                put(out, 0, &[name.len() as u8]);
                put(out, 2, &(value.len() as u16).to_le_bytes());
                put(out, 4, name);
                put(out, 4 + name.len(), value);
                (XATTR, 0)
            }
            Self::XattrGone(name) => {
                put(out, 0, &[name.len() as u8]);
                put(out, 1, name);
                (9, 0)
            }
        }
    }

    /// Reads the entry in slot `slot` of a page with this seal: the entry, its slots and its time.
    /// An error says what is wrong with it.
    pub fn decode(page: &'a [u8], seal: Seal, slot: usize) -> Result<(Self, usize, i64), &'static str> {
        let at = slot * LINE;
        let slots = usize::from(*page.get(at + 6).ok_or("a log entry is outside of its page")?);
        let bytes = page.get(at..at + slots * LINE).filter(|_| slots > 0).ok_or("a log entry crosses its page")?;
        if checksum(seal, slot, bytes) != get_u32(bytes, 0) {
            return Err("a log entry's checksum is wrong");
        }
        let (kind, flags) = (bytes[4], bytes[5]);
        let time = get_i64(bytes, 8);
        let entry = Self::decode_body(kind, flags, time, bytes.get(BODY..).unwrap_or_default())?;
        Ok((entry, slots, time))
    }

    /// The sequence of the page with which the entry in slot `slot` is whole. A checksum is linear,
    /// so there is one for any bytes: what no entry looks like is none.
    pub fn sequence_of(page: &[u8], (ino, generation): (Ino, u32), slot: usize) -> Option<u32> {
        let at = slot * LINE;
        let bytes = page.get(at..at + usize::from(*page.get(at + 6)?) * LINE).filter(|bytes| !bytes.is_empty())?;
        let seal = |sequence| Seal { ino, generation, sequence };
        let none = checksum(seal(0), slot, bytes);
        // What each bit of it changes of the checksum.
        let bits = (0..u32::BITS).map(|bit| (checksum(seal(1 << bit), slot, bytes) ^ none, 1 << bit));
        let mut bits: Vec<(u32, u32)> = bits.collect();
        let (mut rest, mut sequence) = (get_u32(bytes, 0) ^ none, 0);
        for bit in 0..u32::BITS {
            let has = |sum: u32| sum >> bit & 1 == 1;
            let (sum, own) = bits.swap_remove(bits.iter().position(|(sum, _)| has(*sum))?);
            bits.iter_mut().filter(|(other, _)| has(*other)).for_each(|other| *other = (other.0 ^ sum, other.1 ^ own));
            if has(rest) {
                (rest, sequence) = (rest ^ sum, sequence ^ own);
            }
        }
        let (entry, _, time) = Entry::decode(page, seal(sequence), slot).ok()?;
        (entry.encode(seal(sequence), slot, time).as_slice() == bytes).then_some(sequence)
    }

    /// The bytes of the entry in slot `slot`, of which one bit has flipped, as they were. `None`:
    /// the damage is another.
    pub fn mended(page: &[u8], seal: Seal, slot: usize) -> Option<Vec<u8>> {
        let from = page.get(slot * LINE..)?;
        // Its length may have flipped, too.
        let said = usize::from(*from.get(6)?);
        let lengths = (0..8).map(|bit| said ^ 1 << bit).filter(|slots| *slots <= SHORT);
        // In noise a try for each bit of a long piece would take long.
        let own = Some(said).filter(|slots| *slots <= SHORT || get_u8(from, 4) == XATTR);
        for slots in own.into_iter().chain(lengths).filter(|slots| *slots > 0) {
            let Some(mut bytes) = from.get(..slots * LINE).map(<[u8]>::to_vec) else { continue };
            let whole = |bytes: &[u8]| {
                usize::from(get_u8(bytes, 6)) == slots && checksum(seal, slot, bytes) == get_u32(bytes, 0)
            };
            if mend::flip(&mut bytes, whole).is_some() {
                return Some(bytes);
            }
        }
        None
    }

    /// Reads bytes that [`Entry::mended`] gave.
    pub fn decode_mended(bytes: &'a [u8]) -> Result<(Self, usize, i64), &'static str> {
        let time = get_i64(bytes, 8);
        let entry = Self::decode_body(get_u8(bytes, 4), get_u8(bytes, 5), time, bytes.get(BODY..).unwrap_or_default())?;
        Ok((entry, bytes.len() / LINE, time))
    }

    fn decode_body(kind: u8, flags: u8, time: i64, body: &'a [u8]) -> Result<Self, &'static str> {
        Ok(match kind {
            1 => Self::Pad,
            2 => Self::Attributes(decode_attributes(body, time)?, get_u64(body, 40)),
            3 => {
                let run = Run {
                    file_block: get_u64(body, 0),
                    block: Block::from_raw(get_u64(body, 8)).ok_or("an extent has an impossible address")?,
                    count: u64::from(get_u32(body, 16)),
                    unwritten: flags & UNWRITTEN != 0,
                };
                check_range(run.file_block, run.count)?;
                Self::Extent(run, if flags & MIGRATED == 0 { Some(check_size(get_u64(body, 24))?) } else { None })
            }
            4 => {
                let (file_block, count) = (get_u64(body, 0), get_u64(body, 8));
                check_range(file_block, count)?;
                Self::Hole { file_block, count, size: check_size(get_u64(body, 16))? }
            }
            5 => Self::Size(check_size(get_u64(body, 0))?),
            6 => {
                let raw = |at| body.get(at).copied().unwrap_or(0);
                Self::Link {
                    // The root directory needs no name, and would go with it.
                    ino: Ino::from_raw(get_u64(body, 0))
                        .filter(|ino| *ino != Ino::ROOT)
                        .ok_or("a name has an impossible inode number")?,
                    cookie: get_u64(body, 8),
                    kind: Kind::from_raw(raw(16)).ok_or("a name has an unknown kind")?,
                    name: name(body, 17, 18)
                        .ok()
                        .filter(|name| !matches!(*name, b"." | b"..") && !name.iter().any(|b| matches!(b, 0 | b'/')))
                        .ok_or("a name is none that a file can have")?,
                }
            }
            7 => Self::Unlink {
                ino: Ino::from_raw(get_u64(body, 0)).ok_or("a name has an impossible inode number")?,
                name: name(body, 8, 9)?,
            },
            XATTR => {
                let name = name(body, 0, 4)?;
                let from = 4 + name.len();
                let value = body.get(from..from + usize::from(get_u16(body, 2))).ok_or("an attribute is too long")?;
                Self::Xattr { name, value }
            }
            9 => Self::XattrGone(name(body, 0, 1)?),
            _ => return Err("a log entry is of an unknown kind"),
        })
    }
}

fn decode_attributes(body: &[u8], ctime: i64) -> Result<Attributes, &'static str> {
    let mode = get_u32(body, 0);
    Kind::of_mode(mode).ok_or("its mode has an unknown kind")?;
    Ok(Attributes {
        mode,
        uid: get_u32(body, 4),
        gid: get_u32(body, 8),
        links: get_u32(body, 12),
        atime: get_i64(body, 16),
        mtime: get_i64(body, 24),
        ctime,
        rdev: get_u64(body, 32),
    })
}

fn name(body: &[u8], length_at: usize, from: usize) -> Result<&[u8], &'static str> {
    let length = usize::from(body.get(length_at).copied().unwrap_or(0));
    body.get(from..from + length)
        .filter(|name| !name.is_empty() && name.len() <= MAX_NAME)
        .ok_or("a name's length is wrong")
}

fn check_range(file_block: u64, count: u64) -> Result<(), &'static str> {
    let most = MAX_SIZE / super::BLOCK_BYTES;
    if count > 0 && file_block <= most && count <= most - file_block {
        Ok(())
    } else {
        Err("an extent is beyond the largest file")
    }
}

fn check_size(size: u64) -> Result<u64, &'static str> {
    if size <= MAX_SIZE { Ok(size) } else { Err("its size is beyond the largest file") }
}

/// Of whose entry it is and of all of it but the checksum.
fn checksum(seal: Seal, slot: usize, bytes: &[u8]) -> u32 {
    /// In one piece and aligned, because a call for each part costs more than the copy.
    #[repr(align(8))]
    struct First([u8; 20 + LINE - 4]);
    let mut first = First([0; _]);
    put(&mut first.0, 0, &seal.ino.raw().to_le_bytes());
    put(&mut first.0, 8, &seal.generation.to_le_bytes());
    put(&mut first.0, 12, &seal.sequence.to_le_bytes());
    put(&mut first.0, 16, &(slot as u32).to_le_bytes());
    put(&mut first.0, 20, bytes.get(4..LINE).unwrap_or_default());
    match bytes.get(LINE..) {
        None | Some([]) => crc32c::crc32c(&first.0),
        Some(rest) => crc32c::crc32c_append(crc32c::crc32c(&first.0), rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEAL: Seal = Seal { ino: Ino::ROOT, generation: 2, sequence: 3 };

    fn examples() -> Vec<Entry<'static>> {
        let run = Run { file_block: 9, block: Block::new(3, 77), count: 5, unwritten: true };
        let attributes =
            Attributes { mode: 0o100_644, uid: 1, gid: 2, links: 3, atime: 4, mtime: -5, ctime: 1_000, rdev: 7 };
        vec![
            Entry::Pad,
            Entry::Attributes(attributes, 12),
            Entry::Extent(run, Some(60_000)),
            Entry::Extent(Run { unwritten: false, ..run }, None),
            Entry::Hole { file_block: 1, count: 2, size: 3 },
            Entry::Size(1 << 40),
            Entry::Link { ino: Ino::new(5, 6), cookie: 9, kind: Kind::Symlink, name: &[b'x'; 255] },
            Entry::Unlink { ino: Ino::new(5, 6), name: b"a" },
            Entry::Xattr { name: b"user.a", value: &[7; 3000] },
            Entry::XattrGone(b"user.a"),
        ]
    }

    #[test]
    fn each_entry_reads_back_and_no_flipped_bit_goes_unnoticed() {
        for entry in examples() {
            let mut page = vec![0; LINE];
            page.extend(entry.encode(SEAL, 1, 1_000));
            assert_eq!(Entry::decode(&page, SEAL, 1), Ok((entry, entry.slots(), 1_000)));
            assert!(Entry::decode(&page, Seal { sequence: 4, ..SEAL }, 1).is_err());
            assert_eq!(Entry::sequence_of(&page, (SEAL.ino, SEAL.generation), 1), Some(SEAL.sequence));
            for at in LINE..page.len() {
                page[at] ^= 1;
                assert!(Entry::decode(&page, SEAL, 1).is_err(), "{entry:?}: byte {at}");
                // A length that grew has nothing behind it here, and values are long.
                if entry.slots() <= SHORT {
                    let mended = Entry::mended(&page, SEAL, 1);
                    let mended = mended.unwrap_or_else(|| panic!("{entry:?}: byte {at} is not mended"));
                    assert_eq!(Entry::decode_mended(&mended), Ok((entry, entry.slots(), 1_000)));
                }
                page[at] ^= 1;
            }
        }
    }

    #[test]
    fn lengths_and_numbers_are_checked_even_when_the_checksum_is_right() {
        let forge = |kind: u8, at: usize, value: &[u8]| {
            let mut bytes = vec![0; LINE];
            bytes[4] = kind;
            bytes[6] = 1;
            put(&mut bytes, at, value);
            let crc = checksum(SEAL, 0, &bytes);
            put(&mut bytes, 0, &crc.to_le_bytes());
            Entry::decode(&bytes, SEAL, 0).map(|_| ())
        };
        assert!(forge(3, 24, &u64::MAX.to_le_bytes()).is_err());
        assert!(forge(3, 16, &u64::MAX.to_le_bytes()).is_err());
        assert!(forge(5, 16, &u64::MAX.to_le_bytes()).is_err());
        assert!(forge(7, 24, &[255]).is_err());
        assert!(forge(8, 16, &[200]).is_err());
        assert!(forge(200, 16, &[0]).is_err());
    }
}
