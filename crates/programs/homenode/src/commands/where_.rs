//! `homenode where`: shows which node holds each file's cached data, or its blocks if it is on DAX
//! or on a volume.

use clap::Args;
use command::args::{Global, pid};
use placement::NodeBytes;
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::BufRead;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::mounted;
use indicatif::ProgressBar;
use linux::patient;
use linux::residency::open::Opened;
use linux::residency::{self, Residency, cached};
use linux::threads::is_gone;
use linux::volume::Place;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde_json::{Value, json};
use topology::NodeId;

use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::machine;
use crate::output::table::Table;
use crate::output::units::{percent, size};
use crate::output::{self, escape, progress};

/// `homenode where`.
#[derive(Debug, Args)]
pub struct WhereArgs {
    /// Files to look at; - reads their names from stdin, one a line (or see -0)
    #[arg(required_unless_present = "pid", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Look at all files in directories, and in those below them, of the same file system
    #[arg(short, long)]
    pub recursive: bool,
    /// Names on stdin end with a NUL, as `find -print0` writes them
    #[arg(short = '0', long)]
    pub null: bool,
    /// Look at the memory of a process, and at the files that it has open or mapped (repeat the
    /// option)
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = pid)]
    pub pid: Vec<u32>,
}

/// Files to look at, each once, and what could not be looked through.
#[derive(Default)]
struct List {
    files: Vec<PathBuf>,
    known: FxHashSet<(u64, u64)>,
    failed: Vec<Failure>,
}

impl List {
    /// Adds a file that is not there yet: it may have several names.
    fn add(&mut self, path: PathBuf) {
        let id = path.metadata().map(|meta| (meta.dev(), meta.ino()));
        if id.is_err() || id.is_ok_and(|id| self.known.insert(id)) {
            self.files.push(path);
        }
    }

    /// Adds the files of a directory. Links, pipes and other file systems are left out.
    fn walk(&mut self, dir: &Path, root: &Root) {
        let entries = fs::read_dir(dir).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => return self.failed.push(Failure::io("read", dir, &error).exiting(Exit::Partly)),
        };
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            // Gone meanwhile.
            let Ok(meta) = entry.metadata() else { continue };
            match meta.file_type() {
                kind if kind.is_dir() && root.has(&entry.path(), &meta) => self.walk(&entry.path(), root),
                kind if kind.is_file() && root.has(&entry.path(), &meta) => self.add(entry.path()),
                _ => {}
            }
        }
    }

    /// Adds the files that a process has open or mapped.
    fn of_process(&mut self, pid: u32) {
        // A process that hangs in exec answers nobody.
        match patient::ask(pid, "files", move || files_of(&Path::new(machine::PROC).join(pid.to_string()))) {
            Ok(all) => all.into_iter().for_each(|path| self.add(path)),
            // That of its memory says more.
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                self.failed.push(Failure::from_error(Exit::Partly, format!("files of process {pid}"), &error));
            }
        }
    }
}

/// The file system of a directory. Overlayfs and btrfs have several devices in one mount: one for
/// each layer or subvolume.
struct Root {
    device: u64,
    mount: Option<u64>,
}

impl Root {
    fn of(dir: &Path, meta: &fs::Metadata) -> Self {
        Self { device: meta.dev(), mount: mount_of(dir) }
    }

    fn has(&self, path: &Path, meta: &fs::Metadata) -> bool {
        meta.dev() == self.device || self.mount.is_some_and(|mount| mount_of(path) == Some(mount))
    }
}

/// The id of the mount that a path leads to; `None` where it is gone, or the kernel tells none.
fn mount_of(path: &Path) -> Option<u64> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = statx(CWD, path, flags, StatxFlags::MNT_ID).ok()?;
    // Linux before 5.8 leaves it 0 everywhere.
    (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id)
}

/// The files that a process has open or mapped, given its directory in /proc: those of another
/// mount namespace or root by the way that leads there.
fn files_of(of: &Path) -> io::Result<Vec<PathBuf>> {
    let maps = fs::read(of.join("maps"))?;
    // After five fields and some space; a file without a name any more ends in ` (deleted)`.
    let path = |line: &[u8]| Some(line.get(line.iter().position(|byte| *byte == b'/')?..)?.to_vec());
    let mapped = maps.split(|byte| *byte == b'\n').filter_map(path).map(|path| PathBuf::from(OsString::from_vec(path)));
    let open = fs::read_dir(of.join("fd"))?.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let (root, space) = (fs::read_link(of.join("root"))?, fs::read_link(of.join("ns/mnt"))?);
    let ours = root == Path::new("/") && space == fs::read_link(Path::new(machine::PROC).join("self/ns/mnt"))?;
    let reach = |path: PathBuf| match path.strip_prefix("/") {
        Ok(within) if !ours => of.join("root").join(within),
        _ => path,
    };
    let mut all: Vec<_> = mapped.chain(open).map(reach).filter(|path| path.is_file()).collect();
    all.sort();
    Ok(all)
}

/// The memory that a process alone has, as a row beside its files.
fn memory(pid: u32) -> Result<Residency, Failure> {
    let what = || format!("process {pid}");
    let nodes = linux::memory::resident(Path::new(machine::PROC), pid)
        .map_err(|e| Failure::from_error(Exit::Partly, what(), &e))?;
    let alive = Path::new(machine::PROC).join(pid.to_string()).exists();
    let nodes = match nodes {
        Some(nodes) => nodes,
        None if alive => NodeBytes::default(),
        None => return Err(Failure::new(Exit::Partly, what(), "no such process")),
    };
    let (path, size) = (format!("memory of process {pid}").into(), nodes.total());
    Ok(Residency { path, size, resident: size, nodes, ..Residency::default() })
}

/// Smaller files finish before a progress bar could be read.
const LARGE: u64 = 256 << 20;

/// Prints the nodes of each file. A file that fails does not stop the others.
pub fn run(global: &Global, args: &WhereArgs) -> Result<Exit, Failure> {
    let from_stdin = args.files.iter().any(|path| path.as_os_str() == "-");
    if args.null && !from_stdin {
        return Err(Failure::new(Exit::Usage, "usage", "-0 is about names on stdin, which - reads"));
    }
    let mut found = Vec::new();
    let mut exit = Exit::Done;
    let mut list = List::default();
    for path in args.files.iter().filter(|path| path.as_os_str() != "-") {
        match path.metadata() {
            Ok(meta) if args.recursive && meta.is_dir() => list.walk(path, &Root::of(path, &meta)),
            _ => list.add(path.clone()),
        }
    }
    if from_stdin {
        for name in io::stdin().lock().split(if args.null { 0 } else { b'\n' }) {
            let name = name.map_err(|e| Failure::from_error(Exit::Io, "cannot read stdin", &e))?;
            list.add(PathBuf::from(OsString::from_vec(name)));
        }
    }
    for pid in &args.pid {
        list.of_process(*pid);
        match memory(*pid) {
            Ok(memory) => found.push(memory),
            Err(failure) => list.failed.push(failure),
        }
    }
    for failure in &list.failed {
        failure.report(global.json);
        exit = Exit::Partly;
    }
    for path in &list.files {
        match look(path, global.json) {
            Ok(residency) => found.push(residency),
            Err(failure) => {
                failure.report(global.json);
                exit = Exit::Partly;
            }
        }
    }
    if global.json {
        output::print_json(&json!({"files": found.iter().map(file_json).collect::<Vec<_>>()}))?;
    } else if !found.is_empty() {
        // A machine whose sysfs is unreadable still has the nodes that the files are on.
        let known = machine::read(Path::new(machine::SYS), &Config::default()).map(|t| t.nodes).unwrap_or_default();
        let known = known.iter().filter(|n| n.memory_bytes > 0).map(|n| n.id);
        output::print(&text(&found, known.collect()))?;
    }
    Ok(exit)
}

fn look(path: &Path, json: bool) -> Result<Residency, Failure> {
    let failure = |e| Failure::from_error(Exit::Partly, "where", &e);
    let file = match mounted::open(path).map_err(failure)? {
        (file, Some(place)) => return Ok(on_volume(&file, place)),
        (file, None) => file,
    };
    let bar = match path.metadata() {
        Ok(meta) if meta.len() >= LARGE => {
            let bar = progress::bar(json, meta.len(), "{msg} {wide_bar} {percent} %  {eta} left");
            bar.with_message(escape(&path.display().to_string()))
        }
        _ => ProgressBar::hidden(),
    };
    let residency = residency::of_opened(&file, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    residency.map_err(failure)
}

/// A file of a mounted volume. What the kernel has in its cache, too, a note says.
fn on_volume(file: &Opened, place: Place) -> Residency {
    let mut notes = Vec::new();
    if place.unknown > 0 {
        notes.push(format!("{} are in regions without a node", size(place.unknown)));
    }
    let page = rustix::param::page_size() as u64;
    if let Some(pages @ 1..) = cached::count(&file.fd, 0, file.size.max(1)) {
        notes.push(format!("{} are in the kernel's cache, too, on the nodes of their readers", size(pages * page)));
    }
    Residency {
        path: file.path.clone(),
        size: file.size,
        resident: place.nodes.total() + place.unknown,
        nodes: place.nodes,
        dax: false,
        hidden: None,
        notes,
    }
}

/// One file; bytes are bytes. Where residency is hidden nothing is said about it.
fn file_json(file: &Residency) -> Value {
    let shown = file.hidden.is_none();
    json!({
        "path": linux::shown(file.path.as_os_str()),
        "size": file.size,
        "resident": shown.then_some(file.resident),
        "nodes": shown.then_some(&file.nodes),
        "dax": file.dax,
        "hidden": file.hidden,
        "notes": file.notes,
    })
}

/// The sum of what is known.
fn total(files: &[Residency]) -> Residency {
    let mut sum = Residency { path: "total".into(), ..Residency::default() };
    for file in files.iter().filter(|file| file.hidden.is_none()) {
        sum.resident += file.resident;
        file.nodes.iter().for_each(|(node, bytes)| sum.nodes.add(node, bytes));
    }
    sum.size = files.iter().map(|file| file.size).sum();
    sum
}

fn text(files: &[Residency], mut nodes: BTreeSet<NodeId>) -> String {
    nodes.extend(files.iter().flat_map(|f| f.nodes.iter().map(|(node, _)| node)));
    let mut heads = vec!["file".to_owned(), ">size".to_owned(), ">resident".to_owned()];
    heads.extend(nodes.iter().map(|node| format!(">node {node}")));
    let mut table = Table::new(&heads);
    let mut notes = String::new();
    let total = (files.len() > 1).then(|| total(files));
    for file in files.iter().chain(&total) {
        let path = file.path.display().to_string();
        let mut row = vec![path.clone(), size(file.size)];
        match &file.hidden {
            Some(why) => {
                row.push("hidden".to_owned());
                row.extend(nodes.iter().map(|_| "-".to_owned()));
                notes.push_str(&format!("{}: {}\n", escape(&path), escape(why)));
            }
            None => {
                row.push(size(file.resident));
                let placed = file.nodes.total();
                row.extend(nodes.iter().map(|node| match placed {
                    0 => "-".to_owned(),
                    placed => percent(file.nodes.get(*node) as f64 / placed as f64),
                }));
            }
        }
        for note in &file.notes {
            notes.push_str(&format!("{}: {}\n", escape(&path), escape(note)));
        }
        table.row(row);
    }
    table.render() + &notes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is not UTF-8 hid all mapped files, and those of a container were looked up in
    /// our mount namespace.
    #[test]
    fn files_of_a_process_are_found_by_the_way_that_leads_to_them() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let of = dir.path();
        let within = of.join("there");
        let odd = within.join(OsString::from_vec(b"data-\xff".to_vec()));
        fs::create_dir(&within).unwrap();
        fs::write(&odd, "x").unwrap();
        fs::write(within.join("open"), "x").unwrap();
        let mut maps = b"7f-80 r-xp 00000000 00:00 0 [vdso]\n7f-80 r--p 00000000 08:01 12    ".to_vec();
        maps.extend(std::os::unix::ffi::OsStrExt::as_bytes(odd.as_os_str()));
        fs::write(of.join("maps"), [maps.as_slice(), b"\n7f-80 r--p 00000000 08:01 13 /gone (deleted)\n"].concat())
            .unwrap();
        for name in ["fd", "ns"] {
            fs::create_dir(of.join(name)).unwrap();
        }
        symlink(within.join("open"), of.join("fd/3")).unwrap();
        symlink("socket:[1]", of.join("fd/4")).unwrap();
        symlink(fs::read_link("/proc/self/ns/mnt").unwrap(), of.join("ns/mnt")).unwrap();
        symlink("/", of.join("root")).unwrap();
        assert_eq!(files_of(of).unwrap(), [odd.clone(), within.join("open")]);
        fs::remove_file(of.join("ns/mnt")).unwrap();
        symlink("mnt:[1]", of.join("ns/mnt")).unwrap();
        let reach = |path: &Path| of.join("root").join(path.strip_prefix("/").unwrap());
        assert_eq!(files_of(of).unwrap(), [reach(&odd), reach(&within.join("open"))]);
    }

    fn file(path: &str, size: u64, nodes: &[(u32, u64)]) -> Residency {
        let nodes: NodeBytes = nodes.iter().map(|(node, bytes)| (NodeId(*node), *bytes)).collect();
        Residency {
            path: path.into(),
            size,
            resident: nodes.total(),
            nodes,
            dax: false,
            hidden: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_table_of_the_design() {
        let files = [
            file("/var/lib/pg/base/16384/2619", 1 << 30, &[(0, 1_052_266_987), (1, 21_474_837)]),
            file("/data/kv/000123.sst", 64 << 20, &[(1, 12 << 20)]),
        ];
        let text = text(&files, [NodeId(0), NodeId(1)].into());
        assert_eq!(
            text,
            "\
file                             size  resident  node 0  node 1
/var/lib/pg/base/16384/2619   1.0 GiB   1.0 GiB    98 %     2 %
/data/kv/000123.sst          64.0 MiB  12.0 MiB     0 %   100 %
total                         1.1 GiB   1.0 GiB    97 %     3 %
"
        );
    }

    #[test]
    fn what_the_kernel_hides_is_not_shown_as_nothing() {
        let hidden = Residency { hidden: Some("belongs to another user".into()), ..file("/etc/shadow", 1000, &[]) };
        let text = text(&[hidden, file("/empty", 0, &[])], [NodeId(0)].into());
        assert!(text.contains("hidden") && text.contains("/etc/shadow: belongs to another user"), "{text}");
        assert!(text.contains("/empty          0 B       0 B       -"), "{text}");
    }
}
