//! `homenode-fs mkfs` and `homenode-fs fsck`, and what the sub-commands of `homenode-fs fs` share.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::fs::fsck::Losses;
use ::fs::medium::{At, Mapped, Medium, Persistence, RegionFile};
use ::fs::{Damage, Error, Layout, Options, Volume};
use linux::locks;
use serde_json::json;

use super::content;
use crate::args::{FSCK_FAILED, FsckArgs, LogsArg, MkfsArgs, VolumeArgs};
use command::args::Global;
use command::config::Config;
use command::exit::{Exit, Failure};
use command::machine;
use command::output::units::{count, size};
use command::output::{self, progress};
use command::signals::Stop;

/// Smallest `--size`. What is below it was probably meant to have a unit.
const SMALLEST: u64 = 1 << 18;
/// Bytes for each inode where the logs are kept twice: an inode is a page of 4 KiB then, and its
/// twin, so these take an eighth of the volume. Files have 189 KB on average, and half of them more
/// than 4 KiB (Agrawal et al., FAST '07).
const BYTES_PER_INODE_TWICE: u64 = 64 << 10;
/// What to do about damaged file data.
const DATA_HINT: &str = "--repair cannot bring file data back: restore these files from a backup, or remove them; \
    all other files can be used";
/// What to do where a repair would lose something.
const LOSS_HINT: &str = "nothing was changed; copy out what can be read first (mount -o ro, fs get --damaged); \
    fsck --yes repairs, and loses that";
/// How long to wait for a region: the server of a mount ends a little after umount(8) has returned.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn mkfs(global: &Global, args: &MkfsArgs) -> Result<Exit, Failure> {
    let logs_twice = args.logs == LogsArg::Twice;
    let bytes_per_inode = args.bytes_per_inode.unwrap_or(if logs_twice { BYTES_PER_INODE_TWICE } else { 16 << 10 });
    if bytes_per_inode < 4096 {
        let why = "a file takes a block of 4 KiB at least";
        return Err(Failure::new(Exit::Usage, format!("--bytes-per-inode {}", size(bytes_per_inode)), why));
    }
    if logs_twice && args.regions.len() < 2 {
        let why = "takes two regions or more: each keeps the logs of another one, too";
        return Err(Failure::new(Exit::Usage, "--logs twice", why));
    }
    if let Some(bytes) = args.size.filter(|bytes| *bytes < SMALLEST) {
        let why = format!("a region has at least {}", size(SMALLEST));
        let hint = format!("--size {}KiB is the least; a number without a unit means bytes", SMALLEST >> 10);
        return Err(Failure::new(Exit::Usage, format!("--size {}", size(bytes)), why).hint(hint));
    }
    let topology = machine::read(Path::new(machine::SYS), &Config::load(global.config.as_deref())?)?;
    let (mut files, mut nodes, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let places: Vec<_> = args.regions.iter().map(|region| split(region)).collect::<Result<_, _>>()?;
    let given: Vec<PathBuf> = places.iter().map(|place| place.0.clone()).collect();
    // Also before a file is made, as the second could not be made then.
    if let Some(region) = repeated(&given).and_then(|i| given.get(i)) {
        return Err(twice(region));
    }
    let mut new = Created(Vec::new());
    for (path, node) in places {
        let here = node.filter(|node| topology.node(topology::NodeId(*node)).is_some());
        if let Some(node) = node.filter(|_| here.is_none()) {
            let name = path.display().to_string();
            let name = output::escape(&name);
            tracing::warn!("{name}: this machine has no node {node}, so the region's memory is not bound to it");
        }
        let file = open_region(&path, args.size, &mut new)?;
        let path = path.canonicalize().map_err(|e| Failure::io("find", &path, &e))?;
        let known = |node: u32| topology.node(topology::NodeId(node)).is_some();
        nodes.push(node.or_else(|| node_of_device(Path::new(machine::SYS), &file, known)));
        files.push((RegionFile { file, bind: None }, here, path.clone()));
        names.push(path.as_os_str().as_bytes().to_vec());
    }
    if let Some(region) = repeated(&names).and_then(|i| given.get(i)) {
        return Err(twice(region));
    }
    let regions: Vec<RegionFile> =
        files.into_iter().map(|(file, node, path)| bind(file, node, &path)).collect::<Result<_, _>>()?;
    let mapped = Arc::new(Mapped::new(&regions).map_err(|e| {
        let mut all = regions.iter().zip(&given);
        let unfit = all.find(|(region, _)| Mapped::new(std::slice::from_ref(*region)).is_err());
        failure(unfit.map_or_else(|| "mkfs".to_owned(), |(_, path)| format!("cannot map {}", path.display())), e)
    })?);
    if let Some(index) = (0..regions.len()).find(|i| ::fs::superblock_of(&*mapped, *i).is_ok()).filter(|_| !args.force)
    {
        let region = given.get(index).map_or_else(String::new, |path| path.display().to_string());
        return Err(Failure::new(Exit::Usage, region, "is part of a volume already").hint("--force overwrites it"));
    }
    if !args.force {
        for (index, (region, path)) in regions.iter().zip(&given).enumerate() {
            refuse_content(path, &region.file, (&mapped, index))?;
        }
    }
    // Bound to their nodes by now, so the memory comes from there.
    for (region, path) in regions.iter().zip(&given) {
        ::fs::reserve(&region.file).map_err(|e| Failure::io("reserve space for", path, &e))?;
    }
    let mut volume = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut volume))
        .map_err(|e| Failure::io("read", Path::new("/dev/urandom"), &e))?;
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64);
    let journals = std::thread::available_parallelism().map_or(1, |n| n.get().min(16) as u32);
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let layout = Layout {
        volume,
        created,
        nodes,
        names,
        journals,
        data_checksums: !args.no_data_checksums,
        bytes_per_inode,
        logs_twice,
        owner,
    };
    ::fs::mkfs(Box::new(Arc::clone(&mapped)), &layout).map_err(|e| failure("mkfs", e))?;
    new.0.clear();
    let total = (0..mapped.regions()).map(|i| mapped.len(i)).sum();
    if global.json {
        output::print_json(&json!({"volume": hex(&volume), "regions": mapped.regions(), "size": total}))?;
    } else {
        output::print(&format!("volume {}: {}, {}\n", hex(&volume), count(mapped.regions(), "region"), size(total)))?;
    }
    Ok(Exit::Done)
}

/// Fails where a region has content.
fn refuse_content(path: &Path, file: &File, (mapped, region): (&Mapped, usize)) -> Result<(), Failure> {
    let io = |e: io::Error| Failure::io("read", path, &e);
    let is_file = file.metadata().map_err(io)?.is_file();
    // Device DAX knows no read(2), and to look at a hole of a file through its mapping would give
    // it memory.
    let mut read = |at, out: &mut [u8]| match is_file {
        true => content::read(file, at, out),
        false => mapped.read(At { region, offset: at }, out).map_err(io::Error::other),
    };
    let extents = if is_file { content::extents(file) } else { Vec::new() };
    let Some(at) = content::find(mapped.len(region), &extents, &mut read).map_err(io)? else { return Ok(()) };
    let why = format!("is not empty: byte {at} is not zero");
    Err(Failure::new(Exit::Usage, path.display().to_string(), why).hint("--force overwrites it"))
}

/// The node of a DAX device's memory, as sysfs has it: the one that it is or would be part of, if
/// the machine knows that one, else the one that it is attached to. Files have none.
fn node_of_device(sys: &Path, file: &File, known: impl Fn(u32) -> bool) -> Option<u32> {
    let metadata = file.metadata().ok().filter(|metadata| metadata.file_type().is_char_device())?;
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let device = sys.join(format!("dev/char/{major}:{minor}"));
    // -1, where there is none, is no number of a node.
    let read = |name| std::fs::read_to_string(device.join(name)).ok()?.trim().parse::<u32>().ok();
    read("target_node").filter(|node| known(*node)).or_else(|| read("numa_node"))
}

/// Memory that is allocated page by page goes to the region's node; a device or a disk file is
/// where it is.
fn bind(region: RegionFile, node: Option<u32>, path: &Path) -> Result<RegionFile, Failure> {
    let Some(node) = node else { return Ok(region) };
    let alone = Mapped::new(std::slice::from_ref(&region)).map_err(|e| failure(path.display().to_string(), e))?;
    let is_file = region.file.metadata().is_ok_and(|metadata| metadata.is_file());
    let volatile = is_file && alone.persistence(0) == Some(Persistence::Volatile);
    Ok(RegionFile { bind: volatile.then_some(node), ..region })
}

/// `PATH@NODE`, `PATH`, or `PATH@` for a path that has an `@` in its last name.
fn split(region: &str) -> Result<(PathBuf, Option<u32>), Failure> {
    match region.rsplit_once('@') {
        Some((path, "")) => Ok((path.into(), None)),
        Some((path, node)) if !node.contains('/') => {
            let digits = Some(node).filter(|node| node.bytes().all(|byte| byte.is_ascii_digit()));
            let number = digits.and_then(|node| node.parse().ok());
            let usage = || {
                let why = format!("`{node}` is no number of a node");
                Failure::new(Exit::Usage, region, why).hint("a path with an @ in it ends with @NODE, or with @ alone")
            };
            Ok((path.into(), Some(number.ok_or_else(usage)?)))
        }
        _ => Ok((region.into(), None)),
    }
}

/// Files that `mkfs` created: removed unless it succeeds.
struct Created(Vec<PathBuf>);

impl Drop for Created {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(e) = std::fs::remove_file(path) {
                eprintln!("homenode: cannot remove {}: {e}", path.display());
            }
        }
    }
}

fn open_region(path: &Path, size: Option<u64>, created: &mut Created) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let hint = |e: &io::Error, kind, hint| {
        let failure = Failure::io(if size.is_some() { "create" } else { "open" }, path, e);
        if e.kind() == kind { failure.hint(hint) } else { failure }
    };
    let Some(size) = size else {
        let missing = "--size creates the files";
        return options.open(path).map_err(|e| hint(&e, io::ErrorKind::NotFound, missing));
    };
    let exists = "without --size, mkfs uses files and devices that exist, with --force also those that have a volume";
    // Who can read a region can read every file on it.
    let file =
        options.create_new(true).mode(0o600).open(path).map_err(|e| hint(&e, io::ErrorKind::AlreadyExists, exists))?;
    created.0.push(path.to_owned());
    let odd = "hugetlbfs has files of whole huge pages only, such as 1GiB (1G is 1000000000)";
    file.set_len(size).map_err(|e| {
        let failure = Failure::io("size", path, &e);
        if e.kind() == io::ErrorKind::InvalidInput { failure.hint(odd) } else { failure }
    })?;
    Ok(file)
}

/// Checks a volume. Exit codes as fsck(8) has them: 0 fine, 1 repaired, 4 damaged, 8 not checked,
/// 32 stopped; 16, wrong usage, comes from `main`. 2, which asks for a restart, has no case.
pub fn fsck(global: &Global, args: &FsckArgs) -> Result<Exit, Failure> {
    check(global, args).map_err(|failure| failure.exiting(Exit::Command(FSCK_FAILED)))
}

fn check(global: &Global, args: &FsckArgs) -> Result<Exit, Failure> {
    // Without --repair it only looks.
    let repairs = args.repair || args.yes;
    let opened = if repairs { map_by(&args.volume, ::fs::open_files_to_repair) } else { map_to_look(&args.volume) };
    let medium = opened?;
    let stop = Stop::on_signals()?;
    let look = || {
        let bar = progress::bar(global.json, 0, "checking {wide_bar} {percent} %  {eta} left");
        let watch = |done, all| {
            bar.set_length(all);
            bar.set_position(done);
            !stop.requested()
        };
        let report = ::fs::fsck::check_with(Box::new(Arc::clone(&medium)), &watch);
        bar.finish_and_clear();
        report
    };
    let before = look();
    let crashed = before.as_ref().is_ok_and(|report| !report.clean);
    let mut repaired = None;
    let mut failed = None;
    let mut losses = Losses::default();
    if repairs && !stop.requested() && before.as_ref().map_or(true, ::fs::fsck::Report::is_repairable) {
        let agree = &mut |lost: &Losses| {
            losses = lost.clone();
            args.yes
        };
        match ::fs::fsck::repair_if(Arc::<Mapped>::clone(&medium), agree) {
            Ok(done) => repaired = done,
            Err(e) => failed = Some(failure("repair", e)),
        }
    }
    // What was mended is said, too.
    let mended = before.as_ref().map_or_else(|_| Vec::new(), |report| report.damage.clone());
    let report = match if repaired.is_some() { look() } else { before } {
        Ok(report) => report,
        Err(e) => {
            let code = if matches!(e, Error::Interrupted) { 32 } else { FSCK_FAILED };
            failure("fsck", e).exiting(Exit::Command(code)).report(global.json);
            return Ok(Exit::Command(code));
        }
    };
    let damage: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
    let of_data = report.damage.iter().any(|damage| matches!(damage, Damage::Data { .. }));
    let unsure = repaired.is_none() && failed.is_none() && losses != Losses::default();
    if global.json {
        output::print_json(&json!({
            "clean": report.clean && damage.is_empty(), "unmounted": report.clean,
            "inodes": report.inodes, "orphans": report.orphans.len(),
            "journals": report.journals, "logs": if report.logs_twice { "twice" } else { "once" }, "repaired": repaired.is_some(), "damage": damage,
            "found": repaired.map_or(0, |done| done.found), "emptied": repaired.map_or(0, |done| done.emptied),
            "kept": repaired.map_or(0, |done| done.kept), "mended": repaired.map_or(0, |done| done.mended),
            "lost": told(&losses),
            "hint": if unsure { Some(LOSS_HINT) } else { of_data.then_some(DATA_HINT) },
        }))?;
    } else {
        let mut text = String::new();
        if let Some(done) = repaired {
            let mended = mended.iter().filter(|damage| !report.damage.contains(damage));
            text.extend(mended.map(|damage| format!("mended: {}\n", output::escape(&damage.to_string()))));
            let did = [
                (done.found, "in lost+found now"),
                (done.mended, "a flipped bit put right, nothing lost"),
                (done.kept, "damaged, and has all that could be read"),
                (done.emptied, "damaged, and empty now"),
                (done.removed, "named without being there, and not named any more"),
            ];
            let did = did.iter().filter(|(number, _)| *number > 0);
            text.extend(did.map(|(number, what)| format!("{}: {what}\n", count(*number, "file or directory"))));
        }
        let verb = if unsure { "would lose" } else { "lost" };
        text.extend(told(&losses).iter().map(|line| format!("{verb}: {line}\n")));
        text.extend(damage.iter().map(|line| format!("{}\n", output::escape(line))));
        let state = match (report.clean, crashed) {
            (true, true) => "was not unmounted, and is recovered",
            (true, false) => "unmounted cleanly",
            (false, _) => "not unmounted",
        };
        text += &format!(
            "{state}: {}, {}, {}{}, {}\n",
            count(report.inodes as usize, "inode"),
            count(report.orphans.len(), "orphan"),
            count(report.journals, "unfinished journal"),
            if report.logs_twice { ", logs twice" } else { "" },
            if damage.is_empty() { "no damage".to_owned() } else { count(damage.len(), "fault") },
        );
        if unsure {
            text += &format!("  hint: {LOSS_HINT}\n");
        } else if of_data {
            text += &format!("  hint: {DATA_HINT}\n");
        }
        output::print(&text)?;
    }
    if let Some(failure) = &failed {
        failure.report(global.json);
    }
    Ok(match (damage.is_empty(), repaired.is_some()) {
        (false, _) => Exit::Command(4),
        (true, true) => Exit::Partly,
        (true, false) if failed.is_some() => Exit::Command(FSCK_FAILED),
        (true, false) => Exit::Done,
    })
}

/// Lines of what a repair loses.
fn told(losses: &Losses) -> Vec<String> {
    let lines = losses.lines.iter().map(|(ino, lines)| {
        let lines = count(*lines, "line");
        format!("inode {ino}: what {lines} of its log said, a name or some blocks each; the rest stays")
    });
    let emptied = losses.emptied.iter().map(|ino| format!("inode {ino}: all of it, as nothing of its log can be read"));
    let shared =
        losses.shared.iter().map(|ino| format!("inode {ino}: all of it, as another one has a block of it, too"));
    let names = (losses.names > 0).then(|| format!("{} that lead to nothing", count(losses.names, "name")));
    let blocks =
        (losses.blocks > 0).then(|| format!("{} that other files have by now", count(losses.blocks as usize, "block")));
    lines.chain(emptied).chain(shared).chain(names).chain(blocks).collect()
}

pub fn map(args: &VolumeArgs) -> Result<Arc<Mapped>, Failure> {
    map_by(args, ::fs::open_files)
}

/// The same for looking only: nothing is stored, and the regions need not be writable.
pub fn map_to_look(args: &VolumeArgs) -> Result<Arc<Mapped>, Failure> {
    let mapped = map_by(args, ::fs::open_files_to_look)?;
    for why in mapped.missing() {
        let line = format!("{why}; what is on it gives EIO (--region PATH says where a region is now)");
        output::complain(&format!("homenode: {}\n", output::escape(&line)));
    }
    Ok(mapped)
}

fn map_by(args: &VolumeArgs, open: fn(&[PathBuf]) -> ::fs::Result<Mapped>) -> Result<Arc<Mapped>, Failure> {
    let paths: Vec<PathBuf> = std::iter::once(&args.volume).chain(&args.region).cloned().collect();
    let begin = Instant::now();
    // Before: while they are mapped nobody else may look.
    if until_free(begin, || ::fs::is_copied_while_mounted(&paths)).unwrap_or(false) {
        let path = args.volume.display().to_string();
        output::complain(&format!(
            "homenode: {}: this volume was mounted when its regions were copied or moved here: a copy of a mounted \
             volume mixes moments, and what was written meanwhile may be lost or damaged; homenode-fs fsck checks it\n",
            output::escape(&path)
        ));
    }
    until_free(begin, || open(&paths)).map(Arc::new).map_err(|error| {
        let holder = matches!(error, Error::InUse).then(|| holder(&args.volume)).flatten();
        let failure = failure(args.volume.display().to_string(), error);
        match holder {
            Some(holder) => {
                failure.hint(format!("{holder} has it; mount --bind shows a mounted volume in a second directory"))
            }
            None => failure,
        }
    })
}

/// Asks again until nobody else has the regions, for [`PATIENCE`] from `begin` on: a server that
/// was killed has them for a moment still.
fn until_free<T>(begin: Instant, mut ask: impl FnMut() -> ::fs::Result<T>) -> ::fs::Result<T> {
    loop {
        match ask() {
            Err(Error::InUse) if begin.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(10)),
            answer => return answer,
        }
    }
}

/// The process that has a region: `process 4121 (homenode-fs mount /srv/a /data)`.
fn holder(region: &Path) -> Option<String> {
    let stat = rustix::fs::stat(region).ok()?;
    let dev = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let pid = locks::flock(|lock| lock.dev == dev && lock.ino == stat.st_ino)?;
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
    Some(format!("process {pid} ({command})"))
}

/// Runs `work` on a volume and its regions, where it only looks: nothing is stored, and damage
/// stops it only where it leads to some.
pub fn with_look(
    global: &Global,
    args: &VolumeArgs,
    work: impl FnOnce(&Volume, &Mapped) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let mapped = map_to_look(args)?;
    work(&open(global, args, &mapped, Volume::look)?, &mapped)
}

/// Runs `work` on a mounted volume and its regions, and unmounts it, also after an error: else the
/// next mount would have to read all logs.
pub fn with_volume(
    global: &Global,
    args: &VolumeArgs,
    work: impl FnOnce(&Volume, &Mapped) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let mapped = map(args)?;
    let volume = open(global, args, &mapped, Volume::mount)?;
    let done = work(&volume, &mapped);
    let unmounted = unmount(volume);
    let exit = done?;
    unmounted.map(|_| exit)
}

pub fn unmount(volume: Volume) -> Result<Exit, Failure> {
    volume.unmount().map_err(|e| failure("unmount", e))?;
    Ok(Exit::Done)
}

/// Opens a volume, and says what damage there is, and what that means for the volume.
fn open(
    global: &Global,
    args: &VolumeArgs,
    mapped: &Arc<Mapped>,
    by: fn(Box<dyn Medium>, Options) -> ::fs::Result<Volume>,
) -> Result<Volume, Failure> {
    let topology = machine::read(Path::new(machine::SYS), &Config::load(global.config.as_deref())?).ok();
    let volume = by(Box::new(Arc::clone(mapped)), Options { topology, ..Options::default() });
    let volume = volume.map_err(|e| failure(args.volume.display().to_string(), e))?;
    for line in damage_lines(&volume, &args.volume) {
        output::complain(&format!("homenode: {}\n", output::escape(&line)));
    }
    Ok(volume)
}

/// Lines of damage that a command says on its way to what it is for.
const DAMAGE_LINES: usize = 10;

/// What damage a mount went past, and what that means for the volume.
pub fn damage_lines(volume: &Volume, path: &Path) -> Vec<String> {
    let (path, damage) = (path.display(), volume.damage());
    let mut lines: Vec<String> = damage.iter().take(DAMAGE_LINES).map(|damage| format!("{path}: {damage}")).collect();
    if !damage.is_empty() {
        let more = if damage.len() > DAMAGE_LINES { ", some of it above" } else { "" };
        let faults = count(damage.len(), "fault");
        lines.push(format!(
            "{path}: {faults}{more}: what is damaged is out of reach (EUCLEAN), and for changes no block is free that it may own; \
             homenode-fs fsck --repair mends that"
        ));
    }
    lines
}

/// Why an operation on a volume failed.
pub fn failure(what: impl Into<String>, error: Error) -> Failure {
    let (what, error) = match error {
        Error::Region(path, error) => (path.display().to_string(), *error),
        error => (what.into(), error),
    };
    let exit = match &error {
        Error::NotAVolume(_) | Error::RegionMissing(..) | Error::Invalid(_) | Error::NoRegionOnNode(_) => Exit::Usage,
        Error::InUse | Error::Busy => Exit::Busy,
        _ => Exit::Io,
    };
    match &error {
        Error::Io(cause) => Failure::from_error(exit, what, cause),
        error if matches!(exit, Exit::Io | Exit::Busy) => Failure::from_error(exit, what, error).errno(error.errno()),
        Error::RegionMissing(..) => {
            Failure::from_error(exit, what, &error).errno(error.errno()).hint("--region PATH says where it is now")
        }
        error => Failure::from_error(exit, what, error),
    }
}

/// The index of the first that was there before.
fn repeated<T: PartialEq>(all: &[T]) -> Option<usize> {
    all.iter().enumerate().position(|(i, one)| all.iter().take(i).any(|earlier| earlier == one))
}

fn twice(region: &Path) -> Failure {
    Failure::new(
        Exit::Usage,
        region.display().to_string(),
        "the same file is given twice: each region is one of its own",
    )
}

fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without `@NODE` the node of a device was unknown, also where the kernel tells it.
    #[test]
    fn a_dax_device_brings_its_node_with_it() {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join("dev/char/1:3"); // that of /dev/null
        std::fs::create_dir_all(&device).unwrap();
        let null = File::open("/dev/null").unwrap();
        let node = |known: u32| node_of_device(sys.path(), &null, |node| node <= known);
        assert_eq!(node(1), None);
        std::fs::write(device.join("target_node"), "2\n").unwrap();
        std::fs::write(device.join("numa_node"), "-1\n").unwrap();
        assert_eq!((node(2), node(1)), (Some(2), None));
        std::fs::write(device.join("numa_node"), "1\n").unwrap();
        assert_eq!((node(2), node(1)), (Some(2), Some(1)));
        let file = tempfile::tempfile().unwrap();
        assert_eq!(node_of_device(sys.path(), &file, |_| true), None);
    }
}
