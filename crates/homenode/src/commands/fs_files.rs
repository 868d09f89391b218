//! `homenode fs`: a volume's space and files, without mounting it for others.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};

use ::fs::{Error, Ino, Kind, NewFile, Volume};
use serde_json::json;

use super::fs_args::{DebugCommand, FsCommand, GetArgs, LogArgs, MigrateArgs, PathArgs, PutArgs, VolumeArgs};
use super::fs_volume::{failure, map, mount, unmount};
use crate::cli::Global;
use crate::exit::{Exit, Failure};
use crate::output::table::Table;
use crate::output::units::size;
use crate::output::{self, progress};

const CHUNK: usize = 1 << 20;
const BLOCK: u64 = ::fs::format::BLOCK_BYTES;

/// Runs a sub-command of `homenode fs`.
pub fn run(global: &Global, command: &FsCommand) -> Result<Exit, Failure> {
    match command {
        FsCommand::Info(args) => info(global, args),
        FsCommand::Ls(args) => ls(global, args),
        FsCommand::Put(args) => put(global, args),
        FsCommand::Get(args) => get(global, args),
        FsCommand::Where(args) => where_(global, args),
        FsCommand::Migrate(args) => migrate(global, args),
        FsCommand::Debug(DebugCommand::Log(args)) => log(args),
    }
}

fn info(global: &Global, args: &VolumeArgs) -> Result<Exit, Failure> {
    let (volume, mapped) = mount(global, args)?;
    let usage = volume.usage();
    let mut table = Table::new(&["region", "node", ">size", ">free", ">free inodes", "made durable by"]);
    let mut regions = Vec::new();
    for (index, region) in usage.regions.iter().enumerate() {
        let by = mapped.persistence(index).map_or_else(String::new, |p| p.to_string());
        let (all, free) = (region.blocks * BLOCK, region.free_blocks * BLOCK);
        regions.push(json!({
            "region": index, "node": region.node, "size": all, "free": free,
            "free_inodes": region.free_inodes, "persistence": by,
        }));
        let inodes = region.free_inodes.to_string();
        table.row([index.to_string(), node_name(region.node), size(all), size(free), inodes, by]);
    }
    if global.json {
        output::print_json(&json!({"regions": regions}))?;
    } else {
        output::print(&table.render())?;
    }
    unmount(volume)
}

fn node_name(node: Option<u32>) -> String {
    node.map_or_else(|| "unknown".to_owned(), |node| node.to_string())
}

fn find(volume: &Volume, path: &str) -> Result<Ino, Failure> {
    volume.resolve(path.as_bytes()).map_err(|e| failure(path, e))
}

fn ls(global: &Global, args: &PathArgs) -> Result<Exit, Failure> {
    let (volume, _) = mount(global, &args.volume)?;
    let fail = |e| failure(args.path.as_str(), e);
    let dir = find(&volume, &args.path)?;
    let mut table = Table::new(&["kind", ">mode", ">links", ">size", "name"]);
    let mut names = Vec::new();
    for name in volume.names(dir, 0, usize::MAX).map_err(fail)? {
        let stat = volume.stat(name.named.ino).map_err(fail)?;
        let text = String::from_utf8_lossy(&name.name).into_owned();
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
    unmount(volume)
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

fn put(global: &Global, args: &PutArgs) -> Result<Exit, Failure> {
    let mut from = File::open(&args.local).map_err(|e| Failure::io("open", &args.local, &e))?;
    let (volume, _) = mount(global, &args.volume)?;
    let fail = |e| failure(args.path.as_str(), e);
    let (dir, name) = args.path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", &args.path));
    let dir = find(&volume, dir)?;
    let ino = match volume.lookup(dir, name.as_bytes()) {
        Ok(found) => {
            volume.truncate(found.ino, 0).map_err(fail)?;
            found.ino
        }
        Err(Error::NotFound) => {
            let new = NewFile { mode: 0o644, ..NewFile::default() };
            volume.create(dir, name.as_bytes(), new).map_err(fail)?.ino
        }
        Err(e) => return Err(fail(e)),
    };
    let mut buffer = vec![0; CHUNK];
    loop {
        let len = from.read(&mut buffer).map_err(|e| Failure::io("read", &args.local, &e))?;
        if len == 0 {
            return unmount(volume);
        }
        volume.append(ino, buffer.get(..len).unwrap_or_default()).map_err(fail)?;
    }
}

fn get(global: &Global, args: &GetArgs) -> Result<Exit, Failure> {
    let (volume, _) = mount(global, &args.file.volume)?;
    let ino = find(&volume, &args.file.path)?;
    let mut to: Box<dyn Write> = if args.local.as_os_str() == "-" {
        Box::new(io::stdout().lock())
    } else {
        Box::new(File::create(&args.local).map_err(|e| Failure::io("create", &args.local, &e))?)
    };
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    loop {
        let len = volume.read(ino, offset, &mut buffer).map_err(|e| failure(args.file.path.as_str(), e))?;
        if len == 0 {
            to.flush()?;
            return unmount(volume);
        }
        to.write_all(buffer.get(..len).unwrap_or_default()).map_err(|e| Failure::io("write", &args.local, &e))?;
        offset += len as u64;
    }
}

fn where_(global: &Global, args: &PathArgs) -> Result<Exit, Failure> {
    let (volume, _) = mount(global, &args.volume)?;
    let ino = find(&volume, &args.path)?;
    let fail = |e| failure(args.path.as_str(), e);
    let len = volume.stat(ino).map_err(fail)?.size;
    let nodes: BTreeMap<String, u64> =
        volume.bytes_by_node(ino).map_err(fail)?.into_iter().map(|(node, bytes)| (node_name(node), bytes)).collect();
    if global.json {
        output::print_json(&json!({"path": args.path, "size": len, "nodes": nodes}))?;
    } else {
        let heads = ["file".to_owned(), ">size".to_owned()].into_iter();
        let heads: Vec<String> = heads.chain(nodes.keys().map(|node| format!(">node {node}"))).collect();
        let mut table = Table::new(&heads);
        table.row([args.path.clone(), size(len)].into_iter().chain(nodes.values().map(|bytes| size(*bytes))));
        output::print(&table.render())?;
    }
    unmount(volume)
}

fn migrate(global: &Global, args: &MigrateArgs) -> Result<Exit, Failure> {
    let (volume, _) = mount(global, &args.file.volume)?;
    let path = args.file.path.as_str();
    let ino = find(&volume, path)?;
    let blocks = volume.stat(ino).map_err(|e| failure(path, e))?.blocks;
    let bar = progress::bar(global.json, blocks * BLOCK, "{wide_bar} {bytes} of {total_bytes}  {eta} left");
    let moved = volume.migrate_file(ino, args.to, None, |now| {
        bar.set_position(now.moved * BLOCK);
        true
    });
    bar.finish_and_clear();
    let moved = moved.map_err(|e| failure(path, e))?.moved;
    let bytes = moved * BLOCK;
    if global.json {
        output::print_json(&json!({"path": path, "to": args.to, "moved": bytes}))?;
    } else {
        output::print(&format!("{path}: moved {} to node {}\n", size(bytes), args.to))?;
    }
    unmount(volume)
}

fn log(args: &LogArgs) -> Result<Exit, Failure> {
    let ino =
        Ino::from_raw(args.ino).ok_or_else(|| Failure::new(Exit::Usage, args.ino.to_string(), "is no inode number"))?;
    let lines =
        ::fs::debug::log_lines(Box::new(map(&args.volume)?), ino).map_err(|e| failure(format!("inode {ino}"), e))?;
    for line in &lines {
        output::print(&format!("{}\n", output::escape(line)))?;
    }
    Ok(Exit::Done)
}
