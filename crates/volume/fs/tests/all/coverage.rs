//! Every store to the medium belongs to a mechanism that makes it safe: "Mechanisms" of
//! docs/FORMAT.md. A medium looks at each store, with what the volume says at that moment, and
//! notes which it is; one that is in none is a fault. Idea: Silhouette (FAST '25).
//!
//! What the mechanisms are worth, crash tests say: they try states, this says that there is no
//! store that they do not know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use fs::format::entry::Entry;
use fs::format::inode::{self, Inode as Line};
use fs::format::page::{self, SLOTS, Seal};
use fs::format::superblock::{STATE_BLOCK, SUM, Superblock, copies};
use fs::format::word::{self, Field, Owner};
use fs::format::{Block, Ino, LINE, LogPos, journal};
use fs::medium::{At, Medium};
use fs::{Result, Space, Subject, Volume};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng as StdRng;

use crate::crash::{history, prelude};
use crate::medium::{Image, Ram, blank};
use crate::model::observe;
use crate::operations::Op;
use crate::random::{any_op, prune, setting};
use crate::{mount_whole, options};

const BLOCK: usize = 4096;

/// What makes a store safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mechanism {
    /// There is no volume yet: superblocks come last.
    NoVolume,
    /// One copy of a superblock while another is valid.
    SuperblockCopy,
    /// A sealed word of block 2, in one piece.
    StateWord,
    /// Records of a journal that is empty.
    JournalRecords,
    /// Its commit, and its end.
    JournalWord,
    /// A record of a committed journal.
    Journaled,
    /// The tail of a log, alone.
    Tail,
    /// The line of an inode that is not in use.
    FreshInode,
    /// The end of an inode that no directory names.
    Orphan,
    /// Behind the tail of a log.
    BehindTail,
    /// The link from the page of the tail to the next one.
    NextPage,
    /// A link past pages of a log that say nothing any more.
    ShorterChain,
    /// A block that no log has: new data, pages of a new log, a checkpoint.
    FreshBlock,
    /// A block that reads as zeros until an entry says otherwise.
    Unwritten,
    /// The checksum of one of these.
    FreshSum,
}

use Mechanism::*;

const ALL: [Mechanism; 15] = [
    NoVolume,
    SuperblockCopy,
    StateWord,
    JournalRecords,
    JournalWord,
    Journaled,
    Tail,
    FreshInode,
    Orphan,
    BehindTail,
    NextPage,
    ShorterChain,
    FreshBlock,
    Unwritten,
    FreshSum,
];

/// What a block is to the logs.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// A page: place in its log, whose, and the tail if it is in it.
    Log(usize, Ino, Option<usize>),
    Data,
    Unwritten,
}

/// What the volume says now.
#[derive(Default)]
struct Now {
    blocks: BTreeMap<Block, Use>,
    used: BTreeSet<Ino>,
    named: BTreeSet<Ino>,
}

impl Now {
    fn of(image: &Image, superblock: &Superblock) -> Self {
        let block = |at: Block| image.get(at.region())?.get(at.index() as usize * BLOCK..)?.get(..BLOCK);
        let mut now = Self::default();
        let mut names: BTreeMap<Ino, BTreeSet<Ino>> = BTreeMap::new();
        for (region, layout) in superblock.regions.iter().enumerate() {
            for ino in (1..layout.inodes).map(|slot| Ino::new(region, slot as u32)) {
                let (at, offset) = superblock.inode_at(ino).unwrap();
                let line = &block(at).unwrap()[offset as usize..][..LINE];
                let Ok(Line::Used { generation, head, tail }) = inode::decode(ino, line) else { continue };
                now.used.insert(ino);
                let mut runs: BTreeMap<u64, (Block, bool)> = BTreeMap::new();
                let own = names.entry(ino).or_default();
                let (mut at, mut number) = (head.page, 0);
                while let Some(contents) = block(at) {
                    let Ok(sequence) = page::decode(contents, ino, generation, at) else { break };
                    let end = if at == tail.page { tail.slot } else { SLOTS };
                    now.blocks.insert(at, Use::Log(number, ino, (at == tail.page).then_some(tail.slot)));
                    let mut slot = 1;
                    while slot < end {
                        let Ok((entry, slots, _)) = Entry::decode(contents, Seal { ino, generation, sequence }, slot)
                        else {
                            break;
                        };
                        slot += slots;
                        match entry {
                            Entry::Pad => break,
                            Entry::Extent(run, _) => runs.extend(
                                (0..run.count).map(|i| (run.file_block + i, (run.block.offset(i), run.unwritten))),
                            ),
                            Entry::Hole { file_block, count, .. } => {
                                runs.retain(|at, _| !(file_block..file_block + count).contains(at));
                            }
                            Entry::Size(size) => runs.retain(|at, _| *at < size.div_ceil(BLOCK as u64)),
                            Entry::Link { ino, .. } => _ = own.insert(ino),
                            Entry::Unlink { ino, .. } => _ = own.remove(&ino),
                            _ => {}
                        }
                    }
                    match page::next(contents, at, generation) {
                        Ok(next) if at != tail.page => (at, number) = (next, number + 1),
                        _ => break,
                    }
                }
                let uses = runs.into_values();
                now.blocks.extend(uses.map(|(at, unwritten)| (at, if unwritten { Use::Unwritten } else { Use::Data })));
            }
        }
        let mut todo = vec![Ino::ROOT];
        while let Some(ino) = todo.pop().filter(|_| now.named.len() < 10_000) {
            if now.named.insert(ino) {
                todo.extend(names.get(&ino).into_iter().flatten());
            }
        }
        now
    }
}

#[derive(Default)]
struct Book {
    now: Option<Now>,
    counts: BTreeMap<Mechanism, u64>,
    outside: Vec<String>,
    /// Lines of logs and data that no fence has made durable.
    stored: BTreeSet<(usize, u64)>,
    flushed: BTreeSet<(usize, u64)>,
}

/// Memory that knows what a store is for.
#[derive(Clone)]
struct Covered(Ram, Arc<Mutex<Book>>);

/// That of a volume: each region has one.
fn superblock(image: &Image) -> Option<Superblock> {
    let of = |region: &Vec<u8>| {
        let copy = |index: u64| Superblock::decode(region.get(index as usize * BLOCK..)?.first_chunk()?).ok();
        copies((region.len() / BLOCK) as u64).into_iter().find_map(copy)
    };
    image.iter().map(of).collect::<Option<Vec<_>>>()?.into_iter().next()
}

impl Covered {
    fn new(ram: &Ram) -> Self {
        Self(ram.clone(), Arc::default())
    }

    /// Notes a store before it is done.
    fn note(&self, at: At, data: &[u8], past_caches: bool) {
        let (mut at, mut rest) = (at, data);
        while !rest.is_empty() {
            let len = rest.len().min(BLOCK - at.offset as usize % BLOCK);
            self.note_in_block(at, &rest[..len], past_caches);
            (at.offset, rest) = (at.offset + len as u64, &rest[len..]);
        }
    }

    fn note_in_block(&self, at: At, data: &[u8], past_caches: bool) {
        let (image, mut book) = (self.0.0.lock().unwrap(), self.1.lock().unwrap());
        let Some(superblock) = superblock(&image) else {
            *book.counts.entry(NoVolume).or_default() += 1;
            return;
        };
        let mechanism = book.mechanism(&image, &superblock, at, data);
        match mechanism {
            Ok(mechanism) => *book.counts.entry(mechanism).or_default() += 1,
            Err(why) => book.outside.push(format!("{why}: {} bytes at {at:?}", data.len())),
        }
        let commits = matches!(mechanism, Ok(Tail | JournalWord | ShorterChain)) && data != [0; 8];
        let first = book.stored.first().or(book.flushed.first()).copied();
        if commits && let Some(first) = first {
            let what = mechanism.unwrap();
            book.outside.push(format!("{what:?} before line {first:?} is durable"));
        }
        let block = at.offset / BLOCK as u64;
        if block >= superblock.data_from(at.region).unwrap() && block < superblock.data_end(at.region) && !commits {
            let lines = at.offset / LINE as u64..(at.offset + data.len() as u64).div_ceil(LINE as u64);
            let lines = lines.map(|line| (at.region, line));
            if past_caches { book.flushed.extend(lines) } else { book.stored.extend(lines) }
        }
        if !matches!(mechanism, Ok(FreshBlock | BehindTail | FreshSum | Unwritten)) {
            book.now = None;
        }
    }

    fn done(&self, what: &str) {
        let book = self.1.lock().unwrap();
        assert!(book.outside.is_empty(), "{what}: {:?}", &book.outside[..book.outside.len().min(5)]);
    }
}

impl Book {
    fn mechanism(
        &mut self,
        image: &Image,
        superblock: &Superblock,
        at: At,
        data: &[u8],
    ) -> std::result::Result<Mechanism, &'static str> {
        let (block, offset) = (Block::new(at.region, at.offset / BLOCK as u64), at.offset % BLOCK as u64);
        let old = &image[at.region][at.offset as usize..][..data.len()];
        let word = || Some(u64::from_le_bytes(data.try_into().ok()?)).filter(|_| offset.is_multiple_of(8));
        let contents = |at: Block| &image[at.region()][at.index() as usize * BLOCK..][..BLOCK];
        let region = superblock.regions[at.region];
        let others = copies(region.blocks).into_iter().filter(|copy| *copy != block.index());
        if copies(region.blocks).contains(&block.index()) {
            let mut valid = others.filter(|copy| {
                Superblock::decode(contents(Block::new(at.region, *copy)).first_chunk().unwrap()).is_ok()
            });
            return valid.next().map(|_| SuperblockCopy).ok_or("the last copy of a superblock");
        }
        let journals: Vec<Block> =
            (0..superblock.regions.len()).flat_map(|region| superblock.journals_of(region)).collect();
        if block.index() == STATE_BLOCK {
            let owner = |generation| Owner { id: if offset == 64 { block.raw() } else { STATE_BLOCK }, generation };
            let field = [(0, Field::State), (64, Field::Mount), (128, Field::Scrub)];
            let field = field.into_iter().find(|(at, _)| *at == offset).ok_or("no word of block 2")?.1;
            let sealed = word().is_some_and(|word| word == 0 || word::unseal(owner(0), field, word).is_some());
            return if sealed { Ok(StateWord) } else { Err("not a sealed word") };
        }
        if journals.contains(&block) {
            let is_empty = contents(block)[..8] == [0; 8];
            let mut new = contents(block).to_vec();
            new[offset as usize..][..data.len()].copy_from_slice(data);
            return match offset {
                64.. if is_empty => Ok(JournalRecords),
                0 if word() == Some(0) => {
                    let records = journal::decode(block, contents(block)).unwrap_or_default();
                    let stored = records.iter().all(|record| {
                        let (at, line) = superblock.inode_at(record.ino).unwrap();
                        let line = &contents(at)[(line + record.place()) as usize..][..8];
                        line == record.word.to_le_bytes()
                    });
                    if stored { Ok(JournalWord) } else { Err("the end of a journal before its records are stored") }
                }
                0 if is_empty && word().is_some() && journal::decode(block, &new).is_ok() => Ok(JournalWord),
                _ => Err("in a journal that is committed"),
            };
        }
        let now = self.now.get_or_insert_with(|| Now::of(image, superblock));
        let is_live = |block: Block| !matches!(now.blocks.get(&block), None | Some(Use::Unwritten));
        let tables = superblock.inode_at(Ino::new(at.region, 1)).unwrap().0.index();
        let data_from = superblock.data_from(at.region).unwrap();
        let sums = superblock.sum_at(Block::new(at.region, data_from));
        let sums = sums.map(|(block, _)| block.index() - data_from * SUM / BLOCK as u64);
        let tables_end = sums.unwrap_or(data_from);
        if let Some(sums) = sums.filter(|sums| (*sums..data_from).contains(&block.index())) {
            let first = (at.offset - sums * BLOCK as u64) / SUM;
            let mut of = (first..first + (data.len() as u64).div_ceil(SUM)).map(|i| Block::new(at.region, i));
            return if of.any(is_live) { Err("the checksum of a block in use") } else { Ok(FreshSum) };
        }
        if (tables..tables_end).contains(&block.index()) {
            let slot = (at.offset - tables * BLOCK as u64) / LINE as u64;
            let (ino, place) = (Ino::new(at.region, slot as u32), offset % LINE as u64);
            if !now.used.contains(&ino) {
                return Ok(FreshInode);
            }
            let word = word().ok_or("more than a word of an inode")?;
            let record = |at: &Block| journal::decode(*at, contents(*at)).unwrap_or_default();
            let mut records = journals.iter().flat_map(record);
            let journaled = records.any(|r| (r.ino, r.place(), r.word) == (ino, place, word));
            return match place {
                _ if journaled => Ok(Journaled),
                inode::TAIL => Ok(Tail),
                inode::STATE if !now.named.contains(&ino) => Ok(Orphan),
                inode::STATE => Err("the end of an inode with a name"),
                _ => Err("the head of a log without a journal"),
            };
        }
        match now.blocks.get(&block) {
            None if block.index() < data_from => Err("where nothing is stored after mkfs"),
            None => Ok(FreshBlock),
            Some(Use::Unwritten) => Ok(Unwritten),
            Some(Use::Data) if old == data => Err("data in place, the same"),
            Some(Use::Data) => Err("data in place"),
            Some(Use::Log(_, _, Some(tail))) if offset as usize >= tail * LINE => Ok(BehindTail),
            Some(Use::Log(_, _, Some(_))) if offset == page::NEXT && data.len() == 8 => Ok(NextPage),
            Some(Use::Log(number, ino, None)) if offset == page::NEXT && data.len() == 8 => {
                let later = now.blocks.iter().any(|(to, used)| {
                    let Ok(Line::Used { generation, .. }) = line(image, superblock, *ino) else { return false };
                    matches!(used, Use::Log(n, i, _) if i == ino && n > number)
                        && page::next_word(block, generation, *to).to_le_bytes() == data
                });
                if later { Ok(ShorterChain) } else { Err("a link to what is no later page") }
            }
            Some(Use::Log(..)) => Err("what is before the tail of a log"),
        }
    }
}

fn line(image: &Image, superblock: &Superblock, ino: Ino) -> std::result::Result<Line, &'static str> {
    let (at, offset) = superblock.inode_at(ino).unwrap();
    let at = at.index() as usize * BLOCK + offset as usize;
    inode::decode(ino, &image[ino.region()][at..][..LINE])
}

impl Medium for Covered {
    fn below(&self) -> Option<&dyn Medium> {
        Some(&self.0)
    }
    fn write(&self, at: At, data: &[u8]) -> Result<()> {
        self.note(at, data, false);
        self.0.write(at, data)
    }
    fn write_data(&self, at: At, data: &[u8]) -> Result<()> {
        self.note(at, data, true);
        self.0.write(at, data)
    }
    fn store_u64(&self, at: At, word: u64) -> Result<()> {
        self.note(at, &word.to_le_bytes(), false);
        self.0.store_u64(at, word)
    }
    fn flush(&self, at: At, len: u64) -> Result<()> {
        let mut book = self.1.lock().unwrap();
        for line in at.offset / LINE as u64..(at.offset + len).div_ceil(LINE as u64) {
            if book.stored.remove(&(at.region, line)) {
                book.flushed.insert((at.region, line));
            }
        }
        Ok(())
    }
    fn fence(&self) -> Result<()> {
        self.1.lock().unwrap().flushed.clear();
        Ok(())
    }
}

/// All of these on a volume whose stores are noted, with a crash or an unmount now and then.
struct Mix {
    ram: Ram,
    book: Arc<Mutex<Book>>,
    counts: BTreeMap<Mechanism, u64>,
}

impl Mix {
    fn mount(&self) -> Volume {
        mount_whole(Box::new(Covered(self.ram.clone(), Arc::clone(&self.book))), options(2)).unwrap()
    }

    fn new(blocks: &[u64], data_checksums: bool) -> Self {
        let (ram, book) = (Ram::new(blank(blocks)), Arc::<Mutex<Book>>::default());
        crate::format_with(Box::new(Covered(ram.clone(), Arc::clone(&book))), 2, data_checksums);
        Self { ram, book, counts: BTreeMap::new() }
    }

    /// A new look at what is there, which nothing had to make durable.
    fn done(&mut self, what: &str) {
        Covered(self.ram.clone(), Arc::clone(&self.book)).done(what);
        let book = std::mem::take(&mut *self.book.lock().unwrap());
        book.counts.into_iter().for_each(|(mechanism, count)| *self.counts.entry(mechanism).or_default() += count);
    }
}

/// HOMENODE_FS_STORES says how many random operations there are.
#[test]
fn every_store_belongs_to_a_mechanism() {
    let (ops, seed) = (setting("HOMENODE_FS_STORES", 1500), setting("HOMENODE_FS_SEED", 1));
    let mut rng = StdRng::seed_from_u64(seed);
    let mut all: BTreeMap<Mechanism, u64> = BTreeMap::new();
    for sums in [false, true] {
        let mut mix = Mix::new(&[300, 320], sums);
        let mut volume = mix.mount();
        let s = String::from;
        let fixed = prelude().into_iter().chain(history()).chain([
            Op::DropHistory(s("/h")),
            Op::Allocate(s("/b"), 0, 60_000, true),
            Op::Clean(s("/h")),
            Op::CleanAround(s("/h"), 4, Box::new(Op::Append(s("/h"), 100, 1))),
            Op::Leaving(1, Box::new(Op::Truncate(s("/h"), 0))),
            Op::Unnamed(s("/u"), 9000, 3),
            Op::Drain(1),
        ]);
        for op in fixed {
            op.on_volume(&volume).unwrap();
            mix.done(&format!("{op:?}"));
        }
        volume.set_quota(Subject::User(3), Space { blocks: 9, files: 0 }).unwrap();
        volume.scrub(fs::ScrubPlace::default(), None, &mut |_| {}, &mut |_| true).unwrap();
        mix.done("a quota and a scrub");
        // A volume that is full: what was allocated is written where it is.
        let (full, filler) = (crate::create(&volume, "full").unwrap(), crate::create(&volume, "filler").unwrap());
        volume.allocate(full, 0, 4 * 4096, false).unwrap();
        for len in [64 * 4096, 4096, 10] {
            while volume.append(filler, &vec![1; len]).is_ok() {}
        }
        volume.write(full, 4096, &[1; 3000]).unwrap();
        volume.unlink(Ino::ROOT, b"filler").unwrap();
        mix.done("a full volume");
        for i in 0..ops {
            let op = prune(&observe(&volume), 16).unwrap_or_else(|| any_op(&mut rng));
            let _ = op.on_volume(&volume);
            mix.done(&format!("{op:?}, {i} of seed {seed}"));
            if i % 200 == 100 {
                // An orphan, and then nothing that an unmount would do.
                let file = crate::create(&volume, &format!("orphan{i}")).unwrap();
                volume.open(file).unwrap();
                volume.write(file, 0, &[1; 9000]).unwrap();
                volume.unlink(Ino::ROOT, format!("orphan{i}").as_bytes()).unwrap();
                drop(volume);
                volume = mix.mount();
                mix.done("a mount after a crash");
            } else if i % 200 == 0 {
                volume.unmount().unwrap();
                mix.done("an unmount");
                volume = mix.mount();
                mix.done("a mount");
            }
        }
        volume.unmount().unwrap();
        mix.done("an unmount");
        // The first copy of a superblock is lost.
        mix.ram.0.lock().unwrap()[0][..4096].fill(0);
        mix.mount().scrub(fs::ScrubPlace::default(), None, &mut |_| {}, &mut |_| true).unwrap();
        mix.done("a scrub");
        mix.counts.into_iter().for_each(|(mechanism, count)| *all.entry(mechanism).or_default() += count);
    }
    println!("{all:?}");
    assert!(ALL.iter().all(|mechanism| all.contains_key(mechanism)), "{all:?}");
}

/// The medium would notice: each of these stores is in no mechanism.
#[test]
fn a_store_that_belongs_to_no_mechanism_is_noticed() {
    let mut mix = Mix::new(&[300, 320], true);
    let volume = mix.mount();
    prelude().iter().for_each(|op| op.on_volume(&volume).unwrap());
    mix.done("the prelude");
    let image = mix.ram.image();
    let superblock = superblock(&image).unwrap();
    let now = Now::of(&image, &superblock);
    let place = |is: &dyn Fn(&Use) -> bool| *now.blocks.iter().find(|(_, used)| is(used)).unwrap().0;
    let data = place(&|used| matches!(used, Use::Data));
    let log = place(&|used| matches!(used, Use::Log(_, _, Some(_))));
    let at = |block: Block, offset: u64| At { region: block.region(), offset: block.index() * 4096 + offset };
    let (sum, sum_at) = superblock.sum_at(data).unwrap();
    let (line, line_at) = superblock.inode_at(Ino::ROOT).unwrap();
    let tail = |slot| inode::pos_word(Ino::ROOT, 1, Field::Tail, LogPos { page: log, slot });
    let stores: [(&str, At, Vec<u8>); 9] = [
        ("data in place", at(data, 100), vec![1; 8]),
        ("what is before the tail", at(log, 64), vec![1; 64]),
        ("the checksum of a block in use", at(sum, sum_at), vec![1; 4]),
        ("more than a word", at(line, line_at), vec![1; 64]),
        ("the head of a log", at(line, line_at + inode::HEAD), vec![1; 8]),
        ("the end of an inode with a name", at(line, line_at), vec![1; 8]),
        ("not a sealed word", at(Block::new(0, STATE_BLOCK), 0), vec![1; 8]),
        ("in a journal", at(superblock.journals_of(0).next().unwrap(), 0), vec![1; 8]),
        ("no word of block 2", at(Block::new(0, STATE_BLOCK), 72), vec![0; 8]),
    ];
    for (what, at, bytes) in stores {
        let covered = Covered::new(&Ram::new(image.clone()));
        covered.write(at, &bytes).unwrap();
        let outside = &covered.1.lock().unwrap().outside;
        assert!(outside.len() == 1 && outside[0].starts_with(what), "{what}: {outside:?}");
    }
    // An entry that no fence made durable, and its tail.
    let covered = Covered::new(&Ram::new(image.clone()));
    covered.write(at(log, 62 * 64), &[1; 64]).unwrap();
    covered.flush(at(log, 62 * 64), 64).unwrap();
    covered.store_u64(at(line, line_at + inode::TAIL), tail(63)).unwrap();
    assert!(covered.1.lock().unwrap().outside[0].starts_with("Tail before line"));
}
