//! The mapped files of one process, sample after sample.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::patient::{self, MEMORY};
use placement::MappedMemory;

use super::heat::{self, Heat, Rule, Sums};
use super::kernel::{Found, Kernel, Mapping, Target};
use super::places::Places;
use super::rows::{self, Facts, Row};
use crate::pass::Ended;
use crate::types::ObserveError;

/// Longest walk of one sample, within a stride; the next one begins with the mappings that it did
/// not reach. A walk takes 1.5 ms for each GiB of 4 KiB pages, so this is 60 GiB.
const WALK_LONGEST: Duration = Duration::from_millis(100);

/// Addresses walked between two looks at the clock.
const STRIDE: u64 = 1 << 30;

/// Most pages for which there is room for one process: 16 GiB of 4 KiB pages, in 8 MiB of memory. A
/// table of 512 entries takes the room of all, also where only one of them maps memory.
pub const SLOTS_MOST: u64 = 4 << 20;

/// The room that a mapping takes itself: of 65,000 mappings without a page, half find room.
const REGION_SLOTS: u64 = size_of::<(Name, Region)>() as u64 / heat::SLOT_BYTES;

/// Seconds that a program loses for each page that it accesses after its bit was cleared: the
/// processor walks the page table and sets the bit with a locked store. 330 to 370 ns measured for
/// random 4 KiB pages (AMD EPYC in a virtual machine); without nested page tables it is less.
const SET_AGAIN_S: f64 = 350e-9;

/// Identity of a mapping from sample to sample: its start, device and inode.
type Name = (u64, u32, u64);

#[derive(Debug)]
pub struct Region {
    pub mapping: Mapping,
    pub heat: Heat,
    pub row: Row,
    /// Whether the bits were cleared at the last sample.
    cleared: bool,
    /// Samples that count: those after a first clearing.
    pub samples: u32,
}

impl Region {
    fn new(mapping: Mapping) -> Self {
        Self { mapping, heat: Heat::default(), row: Row::Cleared, cleared: false, samples: 0 }
    }

    pub fn add_to(&self, sums: &mut Sums, rule: Rule) {
        self.heat.add_to(sums, rule, (self.mapping.start, self.mapping.end), self.row != Row::Cleared);
    }
}

#[derive(Debug)]
pub struct Process {
    pid: u32,
    target: Target,
    found: Option<Found>,
    /// Its file of this name, or why it cannot be written.
    clear_refs: Result<Arc<File>, io::Error>,
    regions: BTreeMap<Name, Region>,
    /// Bytes of mappings for which there was no time or room.
    beyond: u64,
    /// How many mappings were listed, if it has more.
    unlisted: Option<usize>,
    /// Address of the first mapping that the last walk did not reach; 0 if it reached all.
    next: u64,
    /// Entries that this sample has seen, and the room that they take.
    entries: u64,
    slots: u64,
    /// The room that this sample may take.
    room: u64,
    directory: PathBuf,
    /// When it was last asked about.
    pub asked: Instant,
    pub sampled: Option<Instant>,
    pub samples: u32,
    /// Seconds that the last sample has cost the process: its processors have set so many bits
    /// again since the sample before.
    pub lost_s: f64,
    /// Its bytes by node, as of the last sample.
    pub mapped: Vec<MappedMemory>,
    /// Limits of these figures.
    pub notes: Vec<String>,
}

impl Process {
    /// A process that is to be sampled. Whether there is one the first sample says.
    pub fn new(proc_root: &Path, pid: u32) -> Self {
        let directory = proc_root.join(pid.to_string());
        Self {
            pid,
            target: Target { tid: pid, start_ns: 0 },
            found: None,
            clear_refs: clear_refs(pid, &directory),
            regions: BTreeMap::new(),
            beyond: 0,
            unlisted: None,
            next: 0,
            entries: 0,
            slots: 0,
            room: SLOTS_MOST,
            directory,
            asked: Instant::now(),
            sampled: None,
            samples: 0,
            lost_s: 0.0,
            mapped: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Its mappings, by rising address.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.values()
    }

    /// When it started, ns since boot, as the last sample found it.
    pub fn start_ns(&self) -> Option<u64> {
        self.found.map(|found| found.start_ns)
    }

    fn limits(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let pid = self.pid;
        let mut ever: BTreeMap<&str, u64> = BTreeMap::new();
        for region in self.regions() {
            if let Row::Ever(why) = &region.row {
                *ever.entry(why).or_default() += region.heat.mapped().1;
            }
        }
        for (why, bytes) in ever {
            notes.push(format!(
                "process {pid}: {:.1} MB of mapped files count as touched, not as hot: {why}",
                mb(bytes)
            ));
        }
        let elsewhere: u64 = self.regions().map(|region| region.heat.elsewhere()).sum();
        if elsewhere > 0 {
            notes
                .push(format!("process {pid}: {:.1} MB of mapped files are on memory of no known node", mb(elsewhere)));
        }
        if self.beyond > 0 {
            notes.push(format!(
                "process {pid}: mappings of {:.1} MB were not looked at: a sample has no time or room for them",
                mb(self.beyond)
            ));
        }
        if let Some(listed) = self.unlisted {
            notes.push(format!("process {pid}: mappings beyond the first {listed} that count were not looked at"));
        }
        notes
    }

    /// Room for pages that its last sample takes, in pages.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// The next samples take room for no more than so many pages.
    pub fn limit(&mut self, room: u64) {
        self.room = room.min(SLOTS_MOST);
    }

    /// Looks at the accessed bits and clears them. `false`: the process has ended.
    pub fn sample(
        &mut self,
        kernel: &mut Kernel,
        places: &Places,
        rule: Rule,
        least_bytes: u64,
        clears_dax: bool,
    ) -> Result<bool, ObserveError> {
        if matches!(&self.clear_refs, Err(error) if error.kind() == io::ErrorKind::TimedOut) {
            self.clear_refs = clear_refs(self.pid, &self.directory);
        }
        let Some((found, mut mappings, ended)) = kernel.mappings(self.target, least_bytes)? else { return Ok(false) };
        self.unlisted = (ended == Ended::Cut).then_some(mappings.len());
        if self.found.is_some_and(|before| before.memory != found.memory) {
            // Another program since.
            self.regions.clear();
        }
        // From now on only this process counts.
        self.target.start_ns = found.start_ns;
        self.found = Some(found);
        let begun = Instant::now();
        let mut before = std::mem::take(&mut self.regions);
        (self.beyond, self.entries, self.slots) = (0, 0, 0);
        // From where the last walk stopped, so that each mapping has its turn on a slow machine,
        // too.
        let turn = mappings.iter().position(|mapping| mapping.start >= self.next).unwrap_or(0);
        mappings.rotate_left(turn);
        self.next = 0;
        for mapping in mappings {
            let name = (mapping.start, mapping.dev, mapping.ino);
            if self.slots >= self.room {
                self.beyond += mapping.end - mapping.start;
                continue;
            }
            let known = before.remove(&name);
            if begun.elapsed() > WALK_LONGEST {
                if self.next == 0 {
                    self.next = mapping.start;
                }
                // Its figures stay as the last walk that reached it found them.
                match known {
                    Some(region) => {
                        self.entries += region.heat.mapped().0;
                        self.slots += REGION_SLOTS + region.heat.slots();
                        self.regions.insert(name, Region { mapping, ..region });
                    }
                    None => self.beyond += mapping.end - mapping.start,
                }
                continue;
            }
            let mut region = known.unwrap_or_else(|| Region::new(mapping.clone()));
            region.mapping = mapping;
            if !self.walk(kernel, places, &mut region, begun)? {
                return Ok(false);
            }
            self.regions.insert(name, region);
        }
        let again: u64 = self.regions().map(|region| region.heat.set_again()).sum();
        self.clear(clears_dax);
        // Not the time of clearing: loads go on meanwhile, and it is in our own budget. On a busy
        // virtual machine it is mostly the wait for processors that do not run, and a long wait
        // would put off the next sample by a hundred times as much.
        self.lost_s = again as f64 * SET_AGAIN_S;
        let mut sums = Sums::default();
        self.regions().for_each(|region| region.add_to(&mut sums, rule));
        self.mapped = sums.listed();
        self.notes = self.limits();
        self.sampled = Some(Instant::now());
        self.samples = self.samples.saturating_add(1);
        Ok(true)
    }

    /// `false`: the process has ended.
    fn walk(
        &mut self,
        kernel: &mut Kernel,
        places: &Places,
        region: &mut Region,
        begun: Instant,
    ) -> Result<bool, ObserveError> {
        let Mapping { start, end, .. } = region.mapping;
        let (heat, cleared) = (&mut region.heat, region.cleared);
        heat.begin();
        self.slots += REGION_SLOTS;
        let (mut at, mut seen, mut taken) = (start, 0, 0);
        while at < end {
            if self.enough(begun) {
                self.beyond += end - at;
                break;
            }
            let to = end.min(at.saturating_add(STRIDE));
            match kernel.walk(self.target, (at, to), &mut |piece| heat.see(piece, (start, end), places, cleared))? {
                Some(found) if self.found == Some(found) => {}
                _ => return Ok(false),
            }
            self.entries += heat.mapped().0 - seen;
            self.slots += heat.slots() - taken;
            (seen, taken) = (heat.mapped().0, heat.slots());
            at = to;
        }
        heat.end();
        Ok(true)
    }

    /// Whether a sample has taken as much time and memory as it may.
    fn enough(&self, begun: Instant) -> bool {
        begun.elapsed() > WALK_LONGEST || self.slots >= self.room
    }

    /// Clears the bits of all mappings of files, where that can be done for any that counts. It
    /// takes the lock of the process's memory: a process that holds this for long is not waited
    /// for.
    fn clear(&mut self, clears_dax: bool) {
        let mut facts = Facts { clears_dax, refused: None, entries: self.entries };
        match &self.clear_refs {
            Ok(file) if self.regions().any(|region| rows::choose(region.mapping.dax, &facts) == Row::Cleared) => {
                let cached = self.regions().filter(|region| !region.mapping.dax);
                let cached = cached.map(|region| region.heat.mapped().1).sum();
                let seen = self.entries;
                let may = self.regions().map(|region| region.mapping.dax).collect::<BTreeSet<bool>>();
                let (mut file, statm) = (Arc::clone(file), self.directory.join("statm"));
                let cleared = patient::ask(self.pid, MEMORY, move || {
                    let statm = std::fs::read_to_string(statm).unwrap_or_default();
                    let facts = Facts { clears_dax, refused: None, entries: entries(seen, &statm, cached) };
                    if may.iter().any(|dax| rows::choose(*dax, &facts) == Row::Cleared) {
                        // 3: the mappings of files (Documentation/filesystems/proc.rst).
                        file.write_all(b"3")?;
                    }
                    Ok(facts)
                });
                match cleared {
                    Ok(found) => facts = found,
                    Err(error) => facts.refused = Some(cause(&error)),
                }
            }
            Ok(_) => {}
            Err(error) => facts.refused = Some(cause(error)),
        }
        for region in self.regions.values_mut() {
            region.row = rows::choose(region.mapping.dax, &facts);
            let cleared = region.row == Row::Cleared;
            if cleared && !region.cleared {
                // What was accessed before the first clearing is no sample.
                region.heat.forget();
            } else if cleared {
                region.samples += 1;
            }
            region.cleared = cleared;
        }
    }
}

/// Opens a process's `clear_refs`. The open file stays with this process, whichever process gets
/// its id later.
fn clear_refs(pid: u32, directory: &Path) -> Result<Arc<File>, io::Error> {
    let path = directory.join("clear_refs");
    patient::ask(pid, MEMORY, move || OpenOptions::new().write(true).open(path)).map(Arc::new)
}

fn cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "the process does not answer".to_owned(),
        _ => crate::cause::of_io(error),
    }
}

/// Entries of the page table for mappings of files: those seen, and one for each other page of a
/// file in `/proc/PID/statm` (its third number). `cached`: bytes that the entries seen map and that
/// the kernel counts there; it does not count persistent memory.
fn entries(seen: u64, statm: &str, cached: u64) -> u64 {
    let shared: u64 = statm.split_whitespace().nth(2).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    seen + shared.saturating_sub(cached / rustix::param::page_size() as u64)
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `clear_refs` visits all mappings of files, not only those that were looked at.
    #[test]
    fn pages_that_were_not_looked_at_count_as_entries_to_clear() {
        let page = rustix::param::page_size() as u64;
        // 1,000 pages of files, of which 600 were seen; 512 of these by one large entry.
        assert_eq!(entries(89, "5000 3000 1000 9 0 800 0\n", 600 * page), 89 + 400);
        // Persistent memory is not counted, and an unreadable file counts nothing.
        assert_eq!((entries(7, "5000 3000 0 9", 0), entries(7, "", 3 * page)), (7, 7));
    }
}
