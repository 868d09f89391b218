//! `homenode-fs fs`: a volume's space and files, without mounting it for others. Where a file is,
//! and moving it, works on a mount, too.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use ::fs::medium::Mapped;
use ::fs::{Attributes, Error, Ino, Kind, NewFile, Rename, Volume};
use linux::residency::open::Opened;
use linux::volume::{self, Place, State};
use serde_json::json;
use topology::NodeId;

use super::fs_volume::{failure, with_look, with_volume};
use super::scrub;
use crate::args::{FsCommand, GetArgs, LsArgs, MigrateArgs, PathArgs, PutArgs};
use command::args::Global;
use command::exit::{Exit, Failure};
use command::mounted;
use command::output::table::Table;
use command::output::units::size;
use command::output::{self, progress};
use command::signals::Stop;

const CHUNK: usize = 1 << 20;
/// What a bar of bytes shows.
const OF_BYTES: &str = "{wide_bar} {bytes} of {total_bytes}  {eta} left";
const BLOCK: u64 = ::fs::format::BLOCK_BYTES;

/// Runs a sub-command of `homenode-fs fs`.
pub fn run(global: &Global, command: &FsCommand) -> Result<Exit, Failure> {
    match command {
        FsCommand::Info(args) => with_look(global, args, |volume, mapped| info(global, volume, mapped)),
        FsCommand::Ls(args) => with_look(global, &args.volume, |volume, _| ls(global, args, volume)),
        FsCommand::Put(args) => put(global, args),
        FsCommand::Get(args) => with_look(global, &args.file.volume, |volume, _| get(global, args, volume)),
        FsCommand::Rm(args) => with_volume(global, &args.volume, |volume, _| rm(args, volume)),
        FsCommand::Where(args) => match args.within() {
            Some((volume, path)) => with_look(global, &volume, |volume, _| where_(global, path, volume)),
            None => where_on_mount(global, &args.file),
        },
        FsCommand::Migrate(args) => {
            let stop = Stop::on_signals()?;
            match args.file.within() {
                Some((volume, path)) => {
                    with_volume(global, &volume, |volume, _| migrate(global, (path, args), volume, &stop))
                }
                None => migrate_on_mount(global, args, &stop),
            }
        }
        FsCommand::Scrub(args) => scrub::run(global, args),
        FsCommand::Quota(args) => crate::quota::run(global, args),
    }
}

fn info(global: &Global, volume: &Volume, mapped: &Mapped) -> Result<Exit, Failure> {
    let usage = volume.usage();
    let mut table = Table::new(&["region", "node", ">size", ">free", ">free inodes", "memory", "made durable by"]);
    let mut regions = Vec::new();
    for (index, region) in usage.regions.iter().enumerate() {
        let by = mapped.persistence(index).map_or_else(String::new, |p| p.to_string());
        let durability = mapped.durability(index).map_or_else(String::new, |d| d.to_string());
        let (all, free) = (region.blocks * BLOCK, region.free_blocks * BLOCK);
        regions.push(json!({
            "region": index, "node": region.node, "size": all, "free": free,
            "free_inodes": region.free_inodes, "durability": durability, "persistence": by,
        }));
        let inodes = region.free_inodes.to_string();
        table.row([index.to_string(), node_name(region.node), size(all), size(free), inodes, durability, by]);
    }
    if global.json {
        output::print_json(
            &json!({"regions": regions, "logs": if volume.has_logs_twice() { "twice" } else { "once" }}),
        )?;
    } else {
        let logs = if volume.has_logs_twice() { "logs: twice, each on its region and the next one\n" } else { "" };
        output::print(&(table.render() + logs))?;
    }
    Ok(Exit::Done)
}

fn node_name(node: Option<u32>) -> String {
    node.map_or_else(|| "unknown".to_owned(), |node| node.to_string())
}

fn find(volume: &Volume, path: &str) -> Result<Ino, Failure> {
    volume.resolve(path.as_bytes()).map_err(|e| failure(path, e))
}

fn ls(global: &Global, args: &LsArgs, volume: &Volume) -> Result<Exit, Failure> {
    let fail = |e| failure(args.path.as_str(), e);
    let dir = find(volume, &args.path)?;
    let mut table = Table::new(&["kind", ">mode", ">links", ">size", "name"]);
    let mut names = Vec::new();
    for name in volume.names(dir, 0, usize::MAX).map_err(fail)? {
        let text = linux::shown(std::os::unix::ffi::OsStrExt::from_bytes(&name.name));
        let stat = match volume.stat(name.named.ino) {
            // It can be removed, so it has to be seen.
            Err(Error::Damaged(_)) => {
                names.push(json!({"name": text, "ino": name.named.ino.raw(), "kind": "damaged"}));
                table.row(["damaged".to_owned(), "-".to_owned(), "-".to_owned(), "-".to_owned(), text]);
                continue;
            }
            stat => stat.map_err(fail)?,
        };
        let (kind, mode) = (kind_name(stat.kind), format!("{:04o}", stat.attributes.mode & 0o7777));
        let links = stat.attributes.links;
        names.push(json!({
            "name": text, "ino": stat.ino.raw(), "kind": kind, "mode": mode, "links": links, "size": stat.size,
        }));
        table.row([kind.to_owned(), mode, links.to_string(), size(stat.size), text]);
    }
    if global.json {
        output::print_json(&json!({"path": args.path, "names": names}))?;
    } else if !names.is_empty() {
        output::print(&table.render())?;
    }
    Ok(Exit::Done)
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symlink",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::CharDevice => "char device",
        Kind::BlockDevice => "block device",
    }
}

/// The directory of a path within the volume, and its last name.
fn place<'a>(volume: &Volume, path: &'a str) -> Result<(Ino, &'a str), Failure> {
    let (dir, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", path));
    Ok((find(volume, dir)?, name))
}

fn put(global: &Global, args: &PutArgs) -> Result<Exit, Failure> {
    let mut from = File::open(&args.local).map_err(|e| Failure::io("open", &args.local, &e))?;
    let len = from.metadata().map_err(|e| Failure::io("look at", &args.local, &e))?.len();
    let stop = Stop::on_signals()?;
    with_volume(global, &args.volume, |volume, _| {
        let bar = progress::bar(global.json, len, OF_BYTES);
        let copied = put_in(volume, args, &mut from, |done| {
            bar.inc(done);
            !stop.requested()
        });
        bar.finish_and_clear();
        copied.map(|()| Exit::Done)
    })
}

/// Copies a file; `go_on` is told how many bytes were copied since it was asked last. Until it is
/// complete the copy has no name, so a crash leaves the old file or the new one. Where it replaces
/// one, a crash right before that can leave the copy as `.homenode-put.N` beside it.
fn put_in(volume: &Volume, args: &PutArgs, from: &mut File, go_on: impl Fn(u64) -> bool) -> Result<(), Failure> {
    let fail = |e| failure(args.path.as_str(), e);
    let (dir, name) = place(volume, &args.path)?;
    let mut new = NewFile { mode: 0o644, ..NewFile::default() };
    match volume.lookup(dir, name.as_bytes()) {
        Ok(old) if old.kind == Kind::File => {
            let Attributes { mode, uid, gid, .. } = old.attributes;
            new = NewFile { mode, uid, gid, ..new };
        }
        Ok(_) | Err(Error::NotFound) => {}
        Err(e) => return Err(fail(e)),
    }
    let ino = volume.create_unnamed(dir, new).map_err(fail)?.ino;
    let mut buffer = vec![0; CHUNK];
    let mut done = 0;
    let copied = loop {
        if !go_on(done) {
            break Err(Failure::new(Exit::Partly, args.path.as_str(), "stopped by a signal, nothing was copied"));
        }
        match from.read(&mut buffer) {
            Ok(0) => break name_it(volume, ino, dir, name.as_bytes()).map_err(fail),
            Ok(len) => {
                if let Err(e) = volume.append(ino, buffer.get(..len).unwrap_or_default()) {
                    break Err(fail(e));
                }
                done = len as u64;
            }
            Err(e) => break Err(Failure::io("read", &args.local, &e)),
        }
    };
    let closed = volume.close(ino).map_err(fail);
    copied.and(closed)
}

/// Gives a file without a name one, in place of what has it.
fn name_it(volume: &Volume, ino: Ino, dir: Ino, name: &[u8]) -> ::fs::Result<()> {
    match volume.link(ino, dir, name) {
        Err(Error::Exists) => {}
        linked => return linked.map(drop),
    }
    // By another name, which nobody has: only a rename replaces a name.
    let mut number = 0_u64;
    let other = loop {
        let other = format!(".homenode-put.{number}");
        match volume.link(ino, dir, other.as_bytes()) {
            Err(Error::Exists) => number += 1,
            linked => break linked.map(|_| other)?,
        }
    };
    let renamed = volume.rename((dir, other.as_bytes()), (dir, name), Rename::Replace);
    if renamed.is_err() {
        volume.unlink(dir, other.as_bytes())?;
    }
    renamed
}

fn rm(args: &PathArgs, volume: &Volume) -> Result<Exit, Failure> {
    let (dir, name) = place(volume, &args.path)?;
    let removed = match volume.unlink(dir, name.as_bytes()) {
        Err(Error::IsDirectory) => volume.rmdir(dir, name.as_bytes()),
        removed => removed,
    };
    removed.map_err(|e| failure(args.path.as_str(), e))?;
    Ok(Exit::Done)
}

fn get(global: &Global, args: &GetArgs, volume: &Volume) -> Result<Exit, Failure> {
    let ino = find(volume, &args.file.path)?;
    let fail = |e| failure(args.file.path.as_str(), e);
    let stat = volume.stat(ino).map_err(fail)?;
    if stat.kind == Kind::Directory {
        return Err(fail(Error::IsDirectory));
    }
    if args.damaged {
        volume.take_doubtful();
    }
    if args.local.as_os_str() == "-" {
        let lost = copy_out(global, args, volume, (ino, stat.size), &mut io::stdout().lock())?;
        return Ok(tell_lost(args, &lost));
    }
    // What is no file, such as a pipe, takes the bytes as they come; so does a link to nothing,
    // which stays.
    let there = std::fs::metadata(&args.local);
    if there.as_ref().map_or_else(|_| args.local.is_symlink(), |there| !there.is_file()) {
        let mut to = File::create(&args.local).map_err(|e| Failure::io("create", &args.local, &e))?;
        let lost = copy_out(global, args, volume, (ino, stat.size), &mut to)?;
        return Ok(tell_lost(args, &lost));
    }
    // The file has its name when it is whole. A link leads to the file that gets another content.
    let target = args.local.canonicalize().unwrap_or_else(|_| args.local.clone());
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let create = |e| Failure::io("create a file in", dir, &e);
    let mode = std::fs::Permissions::from_mode(0o666);
    let new = tempfile::Builder::new().prefix(".homenode-get").permissions(mode).tempfile_in(dir);
    let mut to = new.map_err(create)?;
    let lost = copy_out(global, args, volume, (ino, stat.size), to.as_file_mut())?;
    if let Ok(there) = there
        && !is_replaced(&target, &there, to.as_file())
    {
        let file = File::options().write(true).truncate(true).open(&target);
        let mut file = file.map_err(|e| Failure::io("open", &args.local, &e))?;
        let copied = to.rewind().and_then(|()| io::copy(to.as_file_mut(), &mut file));
        copied.map_err(|e| Failure::io("write", &args.local, &e))?;
        return Ok(tell_lost(args, &lost));
    }
    to.persist(&target).map_err(|e| Failure::io("create", &args.local, &e.error))?;
    Ok(tell_lost(args, &lost))
}

/// Makes a new file one that can take the place of another, so that nobody sees half of it: with
/// the same owner and mode. One that has other names, or an ACL, or that may not be given its
/// owner, is not replaced.
fn is_replaced(path: &Path, there: &Metadata, new: &File) -> bool {
    let acl = rustix::fs::getxattr(path, c"system.posix_acl_access", &mut [0_u8; 0]).is_ok();
    let owned = || std::os::unix::fs::fchown(new, Some(there.uid()), Some(there.gid()));
    // A change of the owner takes bits of the mode away.
    there.nlink() == 1 && !acl && owned().and_then(|()| new.set_permissions(there.permissions())).is_ok()
}

/// Copies a file out. Returns the ranges that are lost or may be older than they should be: with
/// `--damaged`, else they are an error.
fn copy_out(
    global: &Global,
    args: &GetArgs,
    volume: &Volume,
    (ino, size): (Ino, u64),
    to: &mut dyn Write,
) -> Result<Vec<(u64, u64)>, Failure> {
    let fail = |e| failure(args.file.path.as_str(), e);
    let mut lost = if args.damaged { volume.doubtful(ino).map_err(fail)? } else { Vec::new() };
    let bar = progress::bar(global.json, size, OF_BYTES);
    let (mut buffer, mut offset) = (vec![0; CHUNK], 0);
    loop {
        let len = match volume.read(ino, offset, &mut buffer) {
            // Block by block, with zeros for those that cannot be read.
            Err(error) if args.damaged && matches!(error, Error::Damaged(_) | Error::Io(_)) => {
                let block = buffer.get_mut(..BLOCK as usize).unwrap_or_default();
                match volume.read(ino, offset, block) {
                    Ok(len) => len,
                    Err(_) => {
                        block.fill(0);
                        let end = (offset + BLOCK).min(size);
                        lost.push((offset, end));
                        (end - offset) as usize
                    }
                }
            }
            read => read.map_err(fail)?,
        };
        if len == 0 {
            break;
        }
        to.write_all(buffer.get(..len).unwrap_or_default()).map_err(|e| Failure::io("write", &args.local, &e))?;
        offset += len as u64;
        bar.set_position(offset);
    }
    bar.finish_and_clear();
    to.flush()?;
    Ok(lost)
}

fn tell_lost(args: &GetArgs, lost: &[(u64, u64)]) -> Exit {
    for (from, to) in lost {
        let path = output::escape(&args.file.path);
        output::complain(&format!("homenode: {path}: bytes {from} to {to} are lost, or older than they should be\n"));
    }
    if lost.is_empty() { Exit::Done } else { Exit::Partly }
}

fn where_(global: &Global, path: &str, volume: &Volume) -> Result<Exit, Failure> {
    let ino = find(volume, path)?;
    let fail = |e| failure(path, e);
    let len = volume.stat(ino).map_err(fail)?.size;
    let nodes = volume.bytes_by_node(ino).map_err(fail)?;
    tell_place(global, (path, len), nodes.into_iter().map(|(node, bytes)| (node_name(node), bytes)).collect())
}

/// A file that a mounted volume has, and where it is.
fn on_mount(path: &Path) -> Result<(Opened, Place), Failure> {
    let (file, place) = mounted::open(path).map_err(|e| Failure::from_error(Exit::Usage, "fs", &e))?;
    let on_none = || {
        let hint = "of a volume that is not mounted, give a region and the path within: fs where VOLUME PATH";
        Failure::new(Exit::Usage, path.display().to_string(), "is not on a mounted volume").hint(hint)
    };
    Ok((file, place.ok_or_else(on_none)?))
}

fn where_on_mount(global: &Global, path: &Path) -> Result<Exit, Failure> {
    let (file, place) = on_mount(path)?;
    let known = place.nodes.iter().map(|(node, bytes)| (node_name(Some(node.0)), bytes));
    let unknown = Some((node_name(None), place.unknown)).filter(|(_, bytes)| *bytes > 0);
    tell_place(global, (&linux::shown(path.as_os_str()), file.size), known.chain(unknown).collect())
}

/// Says on which nodes a file is.
fn tell_place(global: &Global, (path, len): (&str, u64), nodes: BTreeMap<String, u64>) -> Result<Exit, Failure> {
    if global.json {
        output::print_json(&json!({"path": path, "size": len, "nodes": nodes}))?;
    } else {
        let heads = ["file".to_owned(), ">size".to_owned()].into_iter();
        let heads: Vec<String> = heads.chain(nodes.keys().map(|node| format!(">node {node}"))).collect();
        let mut table = Table::new(&heads);
        table.row([path.to_owned(), size(len)].into_iter().chain(nodes.values().map(|bytes| size(*bytes))));
        output::print(&table.render())?;
    }
    Ok(Exit::Done)
}

fn migrate(global: &Global, (path, args): (&str, &MigrateArgs), volume: &Volume, stop: &Stop) -> Result<Exit, Failure> {
    let ino = find(volume, path)?;
    let blocks = volume.stat(ino).map_err(|e| failure(path, e))?.blocks;
    let bar = progress::bar(global.json, blocks * BLOCK, OF_BYTES);
    let mut moved = 0;
    let done = volume.migrate_file(ino, args.to, args.rate.map(|rate| rate as u64), |now| {
        moved = now.moved * BLOCK;
        bar.set_position(moved);
        !stop.requested()
    });
    bar.finish_and_clear();
    let done = done.map_err(|e| {
        let failure = failure(path, e);
        if moved > 0 { failure.hint(format!("{} moved before and stay there", size(moved))) } else { failure }
    })?;
    tell_moved(global, (path, args.to), done.moved * BLOCK, done.cancelled)
}

fn migrate_on_mount(global: &Global, args: &MigrateArgs, stop: &Stop) -> Result<Exit, Failure> {
    let (file, _) = on_mount(&args.file.file)?;
    let path = linux::shown(file.path.as_os_str());
    mounted::start(&file, NodeId(args.to), args.rate)?;
    let bar = progress::bar(global.json, 0, OF_BYTES);
    let done = volume::follow(&file.fd, |now| {
        bar.set_length(now.bytes.max(now.moved_bytes));
        bar.set_position(now.moved_bytes);
        !stop.requested()
    });
    bar.finish_and_clear();
    let done = done.map_err(|e| Failure::io("ask the mount about", &file.path, &e))?;
    match mounted::failure(&path, &done) {
        Some(failure) => Err(failure),
        None => tell_moved(global, (&path, args.to), done.moved_bytes, done.state == State::Stopped),
    }
}

/// Says what a migration has moved.
fn tell_moved(global: &Global, (path, to): (&str, u32), moved: u64, stopped: bool) -> Result<Exit, Failure> {
    if global.json {
        output::print_json(&json!({"path": path, "to": to, "moved": moved, "stopped": stopped}))?;
    } else {
        let why = if stopped { ", then stopped; the file is whole, partly on each node" } else { "" };
        output::print(&format!("{}: moved {} to node {to}{why}\n", output::escape(path), size(moved)))?;
    }
    Ok(if stopped { Exit::Partly } else { Exit::Done })
}
