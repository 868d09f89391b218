//! The form of a file of the history.
//!
//! **Problem.** A week of ten-second summaries must fit into 200 MB, and a crash can cut a file
//! short, or a disk damage it, anywhere.
//!
//! **Approach.** After [`MAGIC`], a frame for each summary: the length of its body and a checksum,
//! four bytes each, little-endian. A body is numbers of seven bits a byte, the lowest first, as in
//! LEB128; what can be added up is left out. A text is given once: from then on it is a number, its
//! place among the texts of the file. A body begins with how many of those there were before it, so
//! that a frame that is lost takes its own texts along and moves no others. [`layout`] is the one
//! description, for [`Coder::Write`] and [`Coder::Read`].
//!
//! **Limits.** The checksum (FNV-1a) finds faults, not forgery: the directory is root's.

use std::collections::{BTreeMap, HashMap};
use std::io;

use placement::flow::{Flow, Pair, Sums};
use topology::{NodeBytes, NodeId};

use super::{Busy, Node, Service, Summary};
use crate::map::File;

pub const MAGIC: &[u8; 8] = b"HNPAST2\n";
/// Length of a file, seconds.
pub(super) const HOUR: f64 = 3600.0;
/// Length and checksum.
const HEAD: usize = 8;
/// Longest body, bytes: few of ours come near, and no longer one is written.
const LONGEST: usize = 4 << 20;
/// Most texts that are taken to be lost: an hour of ours has 360 frames of at most 600 new ones.
const MOST_LOST: u64 = 1 << 20;

/// The place of each text of a file.
pub type Texts = HashMap<String, u64>;

/// A summary as a frame; `texts` are those of the file so far. It stays as it is, but for times,
/// which become whole milliseconds.
///
/// # Errors
///
/// It is so long that nothing behind it could be read. `texts` then has some that are in no frame.
pub fn encode(summary: &mut Summary, texts: &mut Texts) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEAD];
    let mut known = texts.len() as u64;
    let mut coder = Coder::Write { bytes: &mut bytes, texts };
    coder.int(&mut known);
    layout(&mut coder, summary);
    if bytes.len() > HEAD + LONGEST {
        return Err(io::Error::other(format!("a summary has {} bytes", bytes.len())));
    }
    let (len, sum) = ((bytes.len() - HEAD) as u32, checksum(bytes.get(HEAD..).unwrap_or_default()));
    for (to, byte) in bytes.iter_mut().zip(len.to_le_bytes().into_iter().chain(sum.to_le_bytes())) {
        *to = byte;
    }
    Ok(bytes)
}

/// The summaries of a file, in order, and how many of it are damaged or cut short, at least.
pub fn decode(file: &[u8]) -> (Vec<Summary>, u64) {
    let mut summaries = Vec::new();
    let damaged = each(file, false, |summary| summaries.push(summary));
    (summaries, damaged)
}

/// The same whatever the checksums: for those who look for what could make it panic.
#[doc(hidden)]
pub fn decode_any(file: &[u8]) -> Vec<Summary> {
    let mut summaries = Vec::new();
    each(file, true, |summary| summaries.push(summary));
    summaries
}

/// Passes on the summaries of a file one by one: an hour of them takes 15 MB and more. Returns how
/// many are damaged or cut short, at least. `any`: whatever the checksums.
pub fn each(file: &[u8], any: bool, mut to: impl FnMut(Summary)) -> u64 {
    let (mut damaged, mut texts) = (0, Vec::new());
    let Some(mut rest) = file.strip_prefix(MAGIC) else { return 1 };
    while !rest.is_empty() {
        let Some((len, sum, after)) = head(rest) else { return damaged + 1 };
        // What follows cannot be found without its length.
        let Some((body, after)) = after.split_at_checked(len).filter(|_| len <= LONGEST) else { return damaged + 1 };
        rest = after;
        match (any || checksum(body) == sum).then(|| summary(body, &mut texts)).flatten() {
            Some(summary) => to(summary),
            None => damaged += 1,
        }
    }
    damaged
}

fn head(bytes: &[u8]) -> Option<(usize, u32, &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    let (sum, rest) = rest.split_first_chunk()?;
    Some((u32::from_le_bytes(*len) as usize, u32::from_le_bytes(*sum), rest))
}

fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn summary(body: &[u8], texts: &mut Vec<String>) -> Option<Summary> {
    let (mut known, mut summary) = (0, Summary::default());
    let mut coder = Coder::Read { rest: body, texts, bad: false };
    coder.int(&mut known);
    coder.lose(known);
    layout(&mut coder, &mut summary);
    matches!(coder, Coder::Read { bad: false, .. }).then_some(summary)
}

/// All of a summary, in order: written, or read into what is given.
fn layout(c: &mut Coder, summary: &mut Summary) {
    let Summary { unix_s, seconds, windows, lost, services, nodes, threads, files } = summary;
    c.milli(unix_s);
    c.milli(seconds);
    c.int(windows);
    c.int(lost);
    c.map(services, |c, name, Service { rules, processes, threads, cpu_s, bytes }| {
        c.text(name);
        c.list(rules, Coder::text);
        c.int(processes);
        c.int(threads);
        c.milli(cpu_s);
        c.flow(bytes);
    });
    c.map(nodes, |c, id, node| {
        let Node { cpus, cpu_s, controller_s, read_bytes, write_bytes, unlisted_read_bytes, memory_free } = node;
        c.small(&mut id.0);
        c.int(cpus);
        c.option(cpu_s, Coder::milli);
        c.option(controller_s, Coder::milli);
        [read_bytes, write_bytes, unlisted_read_bytes, memory_free].into_iter().for_each(|bytes| c.int(bytes));
    });
    c.map(threads, |c, (tid, start_ns), Busy { pid, process_start_ns, comm, service, rule, node, cpu_s, bytes }| {
        c.small(tid);
        c.int(start_ns);
        c.small(pid);
        c.int(process_start_ns);
        [comm, service, rule].into_iter().for_each(|text| c.text(text));
        c.small(&mut node.0);
        c.milli(cpu_s);
        c.flow(bytes);
    });
    c.map(files, |c, id, File { file: _, path, size, nodes, bytes }| {
        c.small(&mut id.dev);
        c.int(&mut id.ino);
        c.small(&mut id.generation);
        c.option(path, Coder::text);
        c.option(size, Coder::int);
        let mut on: Vec<(NodeId, u64)> = nodes.iter().collect();
        c.list(&mut on, |c, (node, bytes)| {
            c.small(&mut node.0);
            c.int(bytes);
        });
        *nodes = on.into_iter().collect::<NodeBytes>();
        c.flow(bytes);
    });
}

enum Coder<'a> {
    Write {
        bytes: &'a mut Vec<u8>,
        texts: &'a mut Texts,
    },
    /// Once it is bad, all values are 0 and all lists empty.
    Read {
        rest: &'a [u8],
        texts: &'a mut Vec<String>,
        bad: bool,
    },
}

impl Coder<'_> {
    fn int(&mut self, value: &mut u64) {
        match self {
            Self::Write { bytes, .. } => {
                let mut left = *value;
                while left > 0x7f {
                    bytes.push(left as u8 | 0x80);
                    left >>= 7;
                }
                bytes.push(left as u8);
            }
            Self::Read { rest, bad, .. } => {
                *value = 0;
                for shift in (0..64).step_by(7) {
                    let Some((byte, after)) = rest.split_first().filter(|_| !*bad) else { break };
                    *rest = after;
                    *value |= u64::from(byte & 0x7f) << shift;
                    if byte & 0x80 == 0 {
                        return;
                    }
                }
                (*bad, *value) = (true, 0);
            }
        }
    }

    fn small(&mut self, value: &mut u32) {
        let mut wide = u64::from(*value);
        self.int(&mut wide);
        *value = wide as u32;
    }

    /// Seconds, to the millisecond.
    fn milli(&mut self, seconds: &mut f64) {
        let mut ms = (*seconds * 1e3).round() as u64;
        self.int(&mut ms);
        *seconds = ms as f64 / 1e3;
    }

    fn option<T: Default>(&mut self, value: &mut Option<T>, each: fn(&mut Self, &mut T)) {
        let mut there = u64::from(value.is_some());
        self.int(&mut there);
        if there > 0 {
            each(self, value.get_or_insert_default());
        }
    }

    fn text(&mut self, text: &mut String) {
        let mut at = match self {
            Self::Write { texts, .. } => texts.get(text).copied().unwrap_or(texts.len() as u64),
            Self::Read { .. } => 0,
        };
        self.int(&mut at);
        let mut len = text.len() as u64;
        match self {
            Self::Write { texts, .. } if at == texts.len() as u64 => {
                texts.insert(text.clone(), at);
                self.int(&mut len);
                if let Self::Write { bytes, .. } = self {
                    bytes.extend(text.as_bytes());
                }
            }
            Self::Read { texts, .. } if at == texts.len() as u64 => {
                self.int(&mut len);
                let Self::Read { rest, texts, bad } = self else { return };
                match usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len)).filter(|_| !*bad) {
                    Some((new, after)) => {
                        *rest = after;
                        *text = String::from_utf8_lossy(new).into_owned();
                        texts.push(text.clone());
                    }
                    None => *bad = true,
                }
            }
            Self::Read { texts, bad, .. } => match usize::try_from(at).ok().and_then(|at| texts.get(at)) {
                Some(known) => text.clone_from(known),
                None => *bad = true,
            },
            Self::Write { .. } => {}
        }
    }

    /// Frames with texts of so many places before this one are lost.
    fn lose(&mut self, known: u64) {
        let Self::Read { texts, bad, .. } = self else { return };
        match known {
            // A frame that is bad inside may have left more.
            _ if known <= MOST_LOST => texts.resize(known as usize, "(lost)".to_owned()),
            _ => *bad = true,
        }
    }

    fn list<T: Default>(&mut self, items: &mut Vec<T>, each: impl Fn(&mut Self, &mut T)) {
        let mut len = items.len() as u64;
        self.int(&mut len);
        if let Self::Write { .. } = self {
            return items.iter_mut().for_each(|item| each(self, item));
        }
        items.clear();
        // Each takes a byte or more, so what is given bounds them.
        for _ in 0..len {
            let mut item = T::default();
            each(self, &mut item);
            if matches!(self, Self::Read { bad: true, .. }) {
                return;
            }
            items.push(item);
        }
    }

    fn map<K: Ord + Default, V: Default>(&mut self, map: &mut BTreeMap<K, V>, each: fn(&mut Self, &mut K, &mut V)) {
        let mut items: Vec<(K, V)> = std::mem::take(map).into_iter().collect();
        self.list(&mut items, |coder, (key, value)| each(coder, key, value));
        *map = items.into_iter().collect();
    }

    /// What of its sums follows from the pairs is not written.
    fn flow(&mut self, Flow { sums, pairs }: &mut Flow) {
        self.list(pairs, |c, Pair { cpu_node, data_node, read_bytes, write_bytes, could_be_local_bytes }| {
            c.small(&mut cpu_node.0);
            c.small(&mut data_node.0);
            [read_bytes, write_bytes, could_be_local_bytes].into_iter().for_each(|bytes| c.int(bytes));
        });
        let sum = |of: fn(&Pair) -> u64| pairs.iter().map(of).fold(0, u64::saturating_add);
        *sums = Sums {
            read_bytes: sum(|pair| pair.read_bytes),
            write_bytes: sum(|pair| pair.write_bytes),
            could_be_local_bytes: sum(|pair| pair.could_be_local_bytes),
            ..*sums
        };
        self.int(&mut sums.remote_bytes);
        self.int(&mut sums.handed_bytes);
    }
}
