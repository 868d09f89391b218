//! Media for tests: memory, and memory that knows what a crash would leave.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::{self, ThreadId};

use fs::Result;
use fs::medium::{At, Medium};

pub const LINE: usize = 64;
pub type Line = [u8; LINE];

/// Contents of all regions.
pub type Image = Vec<Vec<u8>>;

pub fn blank(blocks: &[u64]) -> Image {
    blocks.iter().map(|count| vec![0; *count as usize * 4096]).collect()
}

/// One region of which each block takes memory up to its last line that is not zero: for more files
/// than there is memory for their blocks. Clones share it.
#[derive(Clone)]
pub struct Sparse(Arc<Vec<Chunk>>, u64);

/// What is kept of each block.
type Chunk = RwLock<Vec<Box<[u8]>>>;

/// Blocks that share a lock.
const CHUNK: u64 = 4096;

impl Sparse {
    pub fn new(blocks: u64) -> Self {
        let chunk = |i: u64| RwLock::new(vec![Box::default(); CHUNK.min(blocks - i * CHUNK) as usize]);
        Self(Arc::new((0..blocks.div_ceil(CHUNK)).map(chunk).collect()), blocks * 4096)
    }

    /// Bytes that are kept.
    pub fn kept(&self) -> u64 {
        self.0
            .iter()
            .flat_map(|chunk| chunk.read().unwrap().iter().map(|block| block.len() as u64).collect::<Vec<_>>())
            .sum()
    }

    /// The parts of a range that lie in one block each: which chunk, which block of it, where in
    /// it, and how much.
    fn parts(&self, at: At, len: usize) -> Result<impl Iterator<Item = (usize, usize, usize, usize)>> {
        at.within(len, if at.region == 0 { self.1 } else { 0 })?;
        let end = at.offset + len as u64;
        Ok((at.offset / 4096..end.div_ceil(4096)).map(move |block| {
            let (from, to) = ((block * 4096).max(at.offset), (block * 4096 + 4096).min(end));
            ((block / CHUNK) as usize, (block % CHUNK) as usize, (from % 4096) as usize, (to - from) as usize)
        }))
    }
}

impl Medium for Sparse {
    fn regions(&self) -> usize {
        1
    }
    fn len(&self, _: usize) -> u64 {
        self.1
    }
    fn read(&self, at: At, mut out: &mut [u8]) -> Result<()> {
        for (chunk, block, from, len) in self.parts(at, out.len())? {
            let (part, rest) = out.split_at_mut(len);
            let blocks = self.0[chunk].read().unwrap();
            let kept = blocks[block].get(from..).unwrap_or_default();
            let kept = &kept[..kept.len().min(len)];
            part[..kept.len()].copy_from_slice(kept);
            part[kept.len()..].fill(0);
            out = rest;
        }
        Ok(())
    }
    fn write(&self, at: At, mut data: &[u8]) -> Result<()> {
        for (chunk, block, from, len) in self.parts(at, data.len())? {
            let (part, rest) = data.split_at(len);
            let mut blocks = self.0[chunk].write().unwrap();
            let used =
                part.iter().rposition(|byte| *byte != 0).map_or(0, |last| (from + last + 1).next_multiple_of(LINE));
            let kept = &mut blocks[block];
            if kept.len() < used {
                let mut longer = vec![0; used].into_boxed_slice();
                longer[..kept.len()].copy_from_slice(kept);
                *kept = longer;
            }
            let to = kept.len().min(from + len);
            if from < to {
                kept[from..to].copy_from_slice(&part[..to - from]);
            }
            data = rest;
        }
        Ok(())
    }
    fn write_data(&self, at: At, data: &[u8]) -> Result<()> {
        self.write(at, data)
    }
    fn load_u64(&self, at: At) -> Result<u64> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
    fn store_u64(&self, at: At, word: u64) -> Result<()> {
        self.write(at, &word.to_le_bytes())
    }
    fn flush(&self, at: At, len: u64) -> Result<()> {
        self.parts(at, len as usize).map(|_| ())
    }
    fn fence(&self) -> Result<()> {
        Ok(())
    }
}

/// Plain memory: a crash loses nothing. Clones share it.
#[derive(Clone)]
pub struct Ram(pub Arc<Mutex<Image>>);

impl Ram {
    pub fn new(image: Image) -> Self {
        Self(Arc::new(Mutex::new(image)))
    }

    pub fn image(&self) -> Image {
        self.0.lock().unwrap().clone()
    }
}

fn place(image: &Image, at: At, len: usize) -> Result<std::ops::Range<usize>> {
    let start = at.within(len, image.get(at.region).map_or(0, Vec::len) as u64)?;
    Ok(start..start + len)
}

impl Medium for Ram {
    fn regions(&self) -> usize {
        self.0.lock().unwrap().len()
    }
    fn len(&self, region: usize) -> u64 {
        self.0.lock().unwrap().get(region).map_or(0, |r| r.len() as u64)
    }
    fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        let image = self.0.lock().unwrap();
        let range = place(&image, at, out.len())?;
        out.copy_from_slice(&image[at.region][range]);
        Ok(())
    }
    fn write(&self, at: At, data: &[u8]) -> Result<()> {
        let mut image = self.0.lock().unwrap();
        let range = place(&image, at, data.len())?;
        image[at.region][range].copy_from_slice(data);
        Ok(())
    }
    fn write_data(&self, at: At, data: &[u8]) -> Result<()> {
        self.write(at, data)
    }
    fn load_u64(&self, at: At) -> Result<u64> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
    fn store_u64(&self, at: At, word: u64) -> Result<()> {
        assert_eq!(at.offset % 8, 0);
        self.write(at, &word.to_le_bytes())
    }
    fn flush(&self, at: At, len: u64) -> Result<()> {
        place(&self.0.lock().unwrap(), at, len as usize).map(|_| ())
    }
    fn fence(&self) -> Result<()> {
        Ok(())
    }
}

/// What a medium is asked for: where, and how many bytes.
pub enum Access {
    Read(At, usize),
    Load(At),
    Write(At, usize),
    Flush(At),
    Fence,
}

/// A medium that asks somebody before each access.
pub struct Watched<M>(pub M, pub Box<dyn Fn(Access) -> Result<()> + Send + Sync>);

impl<M: Medium> Medium for Watched<M> {
    fn below(&self) -> Option<&dyn Medium> {
        Some(&self.0)
    }
    fn can_store(&self, at: At) -> Result<()> {
        (self.1)(Access::Load(at))?;
        self.0.can_store(at)
    }
    fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        (self.1)(Access::Read(at, out.len()))?;
        self.0.read(at, out)
    }
    fn write(&self, at: At, data: &[u8]) -> Result<()> {
        (self.1)(Access::Write(at, data.len()))?;
        self.0.write(at, data)
    }
    fn write_data(&self, at: At, data: &[u8]) -> Result<()> {
        (self.1)(Access::Write(at, data.len()))?;
        self.0.write_data(at, data)
    }
    fn load_u64(&self, at: At) -> Result<u64> {
        (self.1)(Access::Load(at))?;
        self.0.load_u64(at)
    }
    fn store_u64(&self, at: At, word: u64) -> Result<()> {
        (self.1)(Access::Write(at, 8))?;
        self.0.store_u64(at, word)
    }
    fn flush(&self, at: At, len: u64) -> Result<()> {
        (self.1)(Access::Flush(at))?;
        self.0.flush(at, len)
    }
    fn fence(&self) -> Result<()> {
        (self.1)(Access::Fence)?;
        self.0.fence()
    }
}

/// Memory of which an access is an error if this says so, which can ask whether it hits a line.
pub fn unreadable(ram: &Ram, is_bad: impl Fn(&dyn Fn(At) -> bool) -> bool + Send + Sync + 'static) -> Watched<Ram> {
    let check = move |access: Access| {
        let (at, len) = match access {
            Access::Read(at, len) | Access::Write(at, len) => (at, len as u64),
            Access::Load(at) => (at, 8),
            Access::Flush(_) | Access::Fence => return Ok(()),
        };
        let hits = |line: At| {
            line.region == at.region && at.offset < line.offset + LINE as u64 && line.offset < at.offset + len
        };
        if is_bad(&hits) { Err(std::io::Error::from_raw_os_error(libc::EIO).into()) } else { Ok(()) }
    };
    Watched(ram.clone(), Box::new(check))
}

/// Counts the bytes that are read.
pub fn counting<M: Medium>(medium: M, bytes: &Arc<AtomicU64>) -> Watched<M> {
    let bytes = Arc::clone(bytes);
    let count = move |access: Access| {
        if let Access::Read(_, len) = access {
            bytes.fetch_add(len as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    Watched(medium, Box::new(count))
}

/// A line that was stored to since it was last durable.
#[derive(Clone)]
pub struct InFlight {
    /// Contents after each store. A crash may leave any of them.
    pub versions: Vec<Line>,
    /// The versions that flushes cover, and which thread's fence waits for each.
    flushed: Vec<(usize, ThreadId)>,
    /// Which call of `write_data` stored it: those lines go together.
    pub data: Option<u64>,
}

/// Contents that a crash before a fence could leave.
pub struct CrashPoint<'a> {
    pub durable: &'a Image,
    pub in_flight: &'a BTreeMap<(usize, u64), InFlight>,
}

/// A deliberate fault: leaves out one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Flush(u64),
    Fence(u64),
    /// Each so many-th of them.
    Flushes(u64),
    /// Each so many-th of them.
    Fences(u64),
}

type Hook = Box<dyn FnMut(&CrashPoint<'_>) + Send>;

#[derive(Default)]
struct Recording {
    durable: Image,
    in_flight: BTreeMap<(usize, u64), InFlight>,
    calls: u64,
    flushes: u64,
    fences: u64,
    sabotage: Option<Sabotage>,
    hook: Option<Hook>,
}

/// Memory that loses what was not flushed and fenced, as the processor's caches do.
#[derive(Clone)]
pub struct Recorder {
    now: Ram,
    rest: Arc<Mutex<Recording>>,
}

impl Recorder {
    pub fn new(image: Image) -> Self {
        let rest = Recording { durable: image.clone(), ..Recording::default() };
        Self { now: Ram::new(image), rest: Arc::new(Mutex::new(rest)) }
    }

    /// Calls `hook` before every fence from now on.
    pub fn on_fence(&self, hook: Option<Hook>) {
        self.rest.lock().unwrap().hook = hook;
    }

    /// Counts flushes and fences from now on and leaves one of them out.
    pub fn sabotage(&self, sabotage: Option<Sabotage>) {
        let mut rest = self.rest.lock().unwrap();
        (rest.sabotage, rest.flushes, rest.fences) = (sabotage, 0, 0);
    }

    /// How many flushes and fences there were since `sabotage`.
    pub fn counts(&self) -> (u64, u64) {
        let rest = self.rest.lock().unwrap();
        (rest.flushes, rest.fences)
    }

    /// Shows what a crash now could leave.
    pub fn look(&self, look: impl FnOnce(&CrashPoint<'_>)) {
        let rest = self.rest.lock().unwrap();
        look(&CrashPoint { durable: &rest.durable, in_flight: &rest.in_flight });
    }

    fn stored(&self, at: At, len: usize, data: bool) {
        let mut rest = self.rest.lock().unwrap();
        rest.calls += 1;
        let call = rest.calls;
        let image = self.now.0.lock().unwrap();
        let first = at.offset / LINE as u64;
        for line in first..(at.offset + len as u64).div_ceil(LINE as u64) {
            let from = line as usize * LINE;
            let contents: Line = image[at.region][from..from + LINE].try_into().unwrap();
            let new = InFlight { versions: Vec::new(), flushed: Vec::new(), data: None };
            let entry = rest.in_flight.entry((at.region, line)).or_insert(new);
            entry.versions.push(contents);
            entry.data = data.then_some(call);
        }
    }
}

impl Medium for Recorder {
    fn below(&self) -> Option<&dyn Medium> {
        Some(&self.now)
    }
    fn write(&self, at: At, data: &[u8]) -> Result<()> {
        self.now.write(at, data)?;
        self.stored(at, data.len(), false);
        Ok(())
    }
    fn write_data(&self, at: At, data: &[u8]) -> Result<()> {
        self.now.write(at, data)?;
        self.stored(at, data.len(), true);
        self.flush(at, data.len() as u64)
    }
    fn store_u64(&self, at: At, word: u64) -> Result<()> {
        self.now.store_u64(at, word)?;
        self.stored(at, 8, false);
        Ok(())
    }
    fn flush(&self, at: At, len: u64) -> Result<()> {
        let mut rest = self.rest.lock().unwrap();
        rest.flushes += 1;
        match rest.sabotage {
            Some(Sabotage::Flush(nth)) if nth == rest.flushes => return Ok(()),
            Some(Sabotage::Flushes(nth)) if rest.flushes.is_multiple_of(nth) => return Ok(()),
            _ => {}
        }
        for line in at.offset / LINE as u64..(at.offset + len).div_ceil(LINE as u64) {
            if let Some(line) = rest.in_flight.get_mut(&(at.region, line)) {
                let by = thread::current().id();
                line.flushed.retain(|(_, other)| *other != by);
                line.flushed.push((line.versions.len() - 1, by));
            }
        }
        Ok(())
    }
    fn fence(&self) -> Result<()> {
        let mut rest = self.rest.lock().unwrap();
        rest.fences += 1;
        match rest.sabotage {
            Some(Sabotage::Fence(nth)) if nth == rest.fences => return Ok(()),
            Some(Sabotage::Fences(nth)) if rest.fences.is_multiple_of(nth) => return Ok(()),
            _ => {}
        }
        let rest = &mut *rest;
        if let Some(hook) = &mut rest.hook {
            hook(&CrashPoint { durable: &rest.durable, in_flight: &rest.in_flight });
        }
        rest.in_flight.retain(|(region, line), entry| {
            let own = entry.flushed.iter().find(|(_, by)| *by == thread::current().id()).map(|(version, _)| *version);
            if let Some(flushed) = own {
                let from = *line as usize * LINE;
                rest.durable[*region][from..from + LINE].copy_from_slice(&entry.versions[flushed]);
                entry.versions.drain(..=flushed);
                // What others have flushed since still waits for their fences.
                entry.flushed.retain(|(version, _)| *version > flushed);
                entry.flushed.iter_mut().for_each(|(version, _)| *version -= flushed + 1);
            }
            !entry.versions.is_empty()
        });
        Ok(())
    }
}
