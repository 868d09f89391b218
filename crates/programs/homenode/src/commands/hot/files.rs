//! `homenode hot FILE…`: which ranges of files are read, from which node and by whom.
//!
//! **Problem.** What is read by `read()` leaves no mark on pages.
//!
//! **Approach.** The observer counts reads by ranges of 2 MiB over some windows, as for policy
//! promote. Of each range, node of its data and node of its readers the latest figure is shown.
//!
//! **Limits.** A window lists the ranges of the machine that were read most, so beside busy
//! programs the coldest ranges of a file can be missing. Ranges without reads in that time do not
//! show, nor what programs read through mappings (`hot --pid`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use command::args::Global;
use observe::Scope;
use observe::inode::Inodes;
use placement::{RANGE_BYTES, RangeHeat, Snapshot, Traits, Wish};
use serde_json::{Value, json};
use topology::{FileId, NodeId};

use super::map::{self, Style};
use crate::commands::plane;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::options::ObserveArgs;
use crate::output::table::Table;
use crate::output::units::{seconds, size};
use crate::output::{self, escape, progress};
use crate::signals::Stop;

#[derive(Debug)]
pub(in crate::commands) struct Named {
    path: PathBuf,
    /// The inode that is read through it.
    id: FileId,
    bytes: u64,
    /// Bytes read lately, and the number of windows, by first byte, node of the data and node of
    /// the readers.
    ranges: BTreeMap<(u64, NodeId, NodeId), (u64, u32)>,
}

impl Named {
    /// The file at a path, of which nothing is known yet.
    fn new(path: &Path, inodes: &mut Inodes) -> Result<Self, Failure> {
        let failed = |e| Failure::io("open", path, &e);
        let meta = fs::metadata(path).map_err(failed)?;
        if !meta.is_file() {
            return Err(Failure::new(Exit::Usage, path.display().to_string(), "not a regular file"));
        }
        let id = inodes.of(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), id, bytes: meta.len(), ranges: BTreeMap::new() })
    }

    pub(in crate::commands) fn all(paths: &[PathBuf]) -> Result<Vec<Self>, Failure> {
        let mut inodes = Inodes::new();
        paths.iter().map(|path| Self::new(path, &mut inodes)).collect()
    }

    fn add(&mut self, snapshot: &Snapshot) {
        let heat = snapshot.files.iter().filter(|file| file.file == self.id).flat_map(|file| &file.ranges);
        let heat: Vec<_> = heat.map(|r| ((r.start, r.node, r.by), (r.bytes, r.windows))).collect();
        self.ranges.extend(heat);
    }

    pub(in crate::commands) fn heat(&self) -> impl Iterator<Item = RangeHeat> {
        self.ranges.iter().map(|((start, node, by), (bytes, windows))| RangeHeat {
            start: *start,
            node: *node,
            by: *by,
            bytes: *bytes,
            windows: *windows,
        })
    }

    fn json(&self) -> Value {
        json!({"path": linux::shown(self.path.as_os_str()), "size": self.bytes, "ranges": self.heat().collect::<Vec<_>>()})
    }

    /// The node of most of the bytes read in each of so many parts of the file, and these bytes as
    /// a share of those of the hottest part; `None` where nothing was read.
    fn cells(&self, cells: usize) -> Vec<Option<(NodeId, f64)>> {
        let mut sums = vec![BTreeMap::<NodeId, f64>::new(); cells];
        let width = (self.bytes.max(1) as f64 / cells.max(1) as f64).max(1.0);
        for heat in self.heat() {
            let first = (heat.start as f64 / width) as usize;
            let end = heat.start.saturating_add(RANGE_BYTES).min(self.bytes.max(heat.start + 1));
            let last = ((end as f64 / width).ceil() as usize).max(first + 1).min(cells);
            let part = heat.bytes as f64 / last.saturating_sub(first).max(1) as f64;
            for sum in sums.get_mut(first..last).unwrap_or_default() {
                *sum.entry(heat.node).or_default() += part;
            }
        }
        let all = |sum: &BTreeMap<NodeId, f64>| sum.values().sum::<f64>();
        let most = sums.iter().map(all).fold(1.0, f64::max);
        let cell = |sum: &BTreeMap<NodeId, f64>| {
            let (node, _) = sum.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
            Some((*node, all(sum) / most))
        };
        sums.iter().map(cell).collect()
    }

    fn text(&self, style: Style) -> String {
        let cells = self.cells(style.columns());
        let shade = |cell: &Option<(NodeId, f64)>| cell.map_or(map::shade(0.0), |cell| map::shade(cell.1));
        let heat: String = cells.iter().map(shade).collect();
        let node: String = cells.iter().map(|cell| cell.map_or(' ', |cell| map::letter(cell.0))).collect();
        let mut starts: Vec<u64> = self.ranges.keys().map(|key| key.0).collect();
        starts.dedup();
        let all = self.bytes.div_ceil(RANGE_BYTES);
        let mut text = format!(
            "\n{}   {}   {} of {all} ranges of 2 MiB were read\n  heat  {heat}\n  node  {}\n",
            escape(&linux::shown(self.path.as_os_str())),
            size(self.bytes),
            starts.len(),
            node.trim_end()
        );
        let mut sums: BTreeMap<(NodeId, NodeId), (usize, usize, u64)> = BTreeMap::new();
        for heat in self.heat() {
            let sum = sums.entry((heat.node, heat.by)).or_default();
            *sum = (sum.0 + 1, sum.1 + usize::from(heat.windows > 1), sum.2.saturating_add(heat.bytes));
        }
        if !sums.is_empty() {
            let mut table = Table::new(&[">data on node", ">read by node", ">ranges", ">again", ">read lately"]);
            for ((node, by), (ranges, again, bytes)) in sums {
                let cells = [node.to_string(), by.to_string(), ranges.to_string(), again.to_string(), size(bytes)];
                table.row(cells);
            }
            text.push_str(&table.render());
        }
        text
    }
}

/// Observes the readers of these files for a time in seconds, or until a signal. `ready` is called
/// once the programs are loaded. Returns the time that it took, and the notes of the last window.
pub(in crate::commands) fn watch(
    global: &Global,
    files: &mut [Named],
    seconds: f64,
    stop: &Stop,
    ready: fn() -> Result<(), Failure>,
) -> Result<(f64, Vec<String>), Failure> {
    let config = Config::load(global.config.as_deref())?;
    let window = config.engine.window_s.min(seconds);
    let windows = (seconds / window).ceil().max(1.0) as u64;
    let observe = ObserveArgs { window: Some(window), ..ObserveArgs::default() };
    let wanted = Traits { wants_ranges: Wish::Needed, ..Traits::default() };
    let mut plane = plane::open(&config, &observe, Scope::default(), wanted, false)?;
    ready()?;
    let bar = progress::bar(global.json, windows, "observing {wide_bar} window {pos} of {len}");
    let (mut took_s, mut notes) = (0.0, Vec::new());
    for done in 0..windows {
        if stop.requested() {
            break;
        }
        bar.set_position(done);
        let snapshot = plane::observe(&mut plane, Duration::from_secs_f64(window))?;
        files.iter_mut().for_each(|file| file.add(&snapshot));
        took_s += snapshot.window_s;
        notes = snapshot.notes;
    }
    bar.finish_and_clear();
    Ok((took_s, notes))
}

/// Observes the readers of these files, and shows what they read.
pub(super) fn run(global: &Global, paths: &[PathBuf], watch_s: f64) -> Result<Exit, Failure> {
    let mut files = Named::all(paths)?;
    let (took_s, notes) = watch(global, &mut files, watch_s, &Stop::or_killed()?, plane::observe_only)?;
    let all: Vec<Value> = files.iter().map(Named::json).collect();
    output::tell(global.json, &json!({"seconds": took_s, "files": all, "notes": notes}), || {
        let style = Style::of_stdout();
        let head = format!("reads in {}; again: in more than one window\n", seconds(took_s));
        head + &files.iter().map(|file| file.text(style)).collect::<String>()
    })?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use placement::{ObservedFile, testing};

    use super::*;

    #[test]
    fn a_file_is_two_lines_and_its_sums() {
        let mut file = Named {
            path: "/data/x\u{1b}".into(),
            id: testing::file(9),
            bytes: 12 * RANGE_BYTES,
            ranges: BTreeMap::new(),
        };
        let heat = |start: u64, node, by, bytes, windows| RangeHeat {
            start: start * RANGE_BYTES,
            node: NodeId(node),
            by: NodeId(by),
            bytes,
            windows,
        };
        let window = |ranges: Vec<RangeHeat>| {
            let file = ObservedFile { file: testing::file(9), ranges, ..ObservedFile::default() };
            let other = ObservedFile { file: testing::file(8), ..file.clone() };
            Snapshot { files: vec![other, file], ..Snapshot::default() }
        };
        file.add(&window(vec![heat(0, 2, 0, 1 << 20, 1), heat(3, 2, 1, 5, 1)]));
        file.add(&window(vec![heat(0, 2, 0, 64 << 20, 2), heat(11, 0, 0, 32 << 20, 1)]));
        let text = file.text(Style::plain(24));
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines[0], "/data/x\\u{1b}   24.0 MiB   3 of 12 ranges of 2 MiB were read");
        assert_eq!(lines[1], "  heat  ██....░░..............▒▒");
        assert_eq!(lines[2], "  node  22    22              00");
        assert_eq!(lines.len(), 7, "{text}");
        assert_eq!(file.json()["ranges"][0], json!({"start": 0, "node": 2, "by": 0, "bytes": 64 << 20, "windows": 2}));
    }
}
