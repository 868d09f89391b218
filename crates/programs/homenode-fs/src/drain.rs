//! `homenode-fs drain`: empties a region, of a mounted volume or one that is not.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use linux::volume::{self, Drain, State};
use serde_json::json;

use super::fs_volume::{failure, with_volume};
use crate::args::DrainArgs;
use command::args::Global;
use command::exit::{Exit, Failure};
use command::output::units::{count, size};
use command::output::{self, progress};
use command::signals::Stop;

const BLOCK: u64 = ::fs::format::BLOCK_BYTES;
const BAR: &str = "{wide_bar} {bytes} of {total_bytes}  {eta} left";

/// How many of those that stay are listed for a person.
const LINES: usize = 20;

pub fn run(global: &Global, args: &DrainArgs) -> Result<Exit, Failure> {
    let stop = Stop::on_signals()?;
    let path = &args.volume.volume;
    if path.is_dir() {
        return on_mount(global, path, args, &stop);
    }
    if args.use_again {
        let why = "means something only on a mount: a volume that is not mounted uses all of its regions";
        return Err(Failure::new(Exit::Usage, "--use-again", why));
    }
    with_volume(global, &args.volume, |volume, _| {
        let first = volume.held(args.index);
        let bar = progress::bar(global.json, first.blocks * BLOCK, BAR);
        let done = volume.drain(args.index, |left| {
            bar.set_position(first.blocks.saturating_sub(left.blocks) * BLOCK);
            !stop.requested()
        });
        bar.finish_and_clear();
        let told = ::mount::told(args.index, (first, volume.held(args.index)), Some(&done), Duration::ZERO);
        done.map_err(|e| failure(format!("region {}", args.index), e))?;
        tell(global, &told)
    })
}

fn on_mount(global: &Global, path: &Path, args: &DrainArgs, stop: &Stop) -> Result<Exit, Failure> {
    let root = File::open(path).map_err(|e| Failure::io("open", path, &e))?;
    let refusal = |error: io::Error| {
        let what = format!("region {} of {}", args.index, path.display());
        let failure = |exit, why: &str| Failure::new(exit, what.clone(), why);
        match error.raw_os_error() {
            Some(libc::EINVAL) => failure(Exit::Usage, "there is no such region, or no other one is left in use"),
            Some(libc::EBUSY) => failure(Exit::Busy, "a region of this mount is being emptied already"),
            Some(libc::EROFS) => failure(Exit::Io, "the mount is read-only"),
            Some(libc::EPERM) => {
                failure(Exit::Unsupported, "to empty a region of a mounted volume takes CAP_SYS_ADMIN")
                    .hint("this needs root: try sudo")
            }
            Some(libc::EOPNOTSUPP | libc::ENODATA) => {
                failure(Exit::Usage, "no volume is mounted there; give the directory that it is mounted on")
            }
            _ => Failure::from_error(Exit::Io, what, &error),
        }
    };
    if args.use_again {
        volume::drain(&root, &format!("use {}", args.index)).map_err(refusal)?;
        return Ok(Exit::Done);
    }
    volume::drain(&root, &args.index.to_string()).map_err(refusal)?;
    let bar = progress::bar(global.json, 0, BAR);
    let done = volume::follow_drain(&root, |now| {
        bar.set_length(now.bytes);
        bar.set_position(now.bytes.saturating_sub(now.left_bytes));
        !stop.requested()
    });
    bar.finish_and_clear();
    let done = done.map_err(|e| Failure::io("ask the mount about", path, &e))?;
    if let Some(why) = &done.why {
        let what = format!("region {} of {}", args.index, path.display());
        return Err(Failure::new(Exit::Io, what, why.clone()).errno(done.errno.unwrap_or(libc::EIO)));
    }
    tell(global, &done)
}

fn tell(global: &Global, done: &Drain) -> Result<Exit, Failure> {
    let (stopped, empty) = (done.state != State::Done, done.left_bytes == 0 && done.left_inodes == 0);
    let forget = done.stays.iter().any(|stays| stays.why == ::fs::Why::Remembered.to_string());
    let forget = forget
        .then_some("echo 2 > /proc/sys/vm/drop_caches makes the kernel forget what nobody has open; then drain again");
    if global.json {
        output::print_json(&json!({
            "region": done.region, "empty": empty, "stopped": stopped, "moved": done.bytes.saturating_sub(done.left_bytes),
            "left": done.left_bytes, "left_inodes": done.left_inodes, "stays": done.stays,
            "more": done.more, "hint": forget,
        }))?;
    } else {
        let mut text = format!("region {}: ", done.region);
        let inodes = count(done.left_inodes as usize, "inode");
        text += &match empty {
            true => "empty; it gets nothing new until the volume is unmounted\n".to_owned(),
            false => format!("{} of blocks and {inodes} are left\n", size(done.left_bytes)),
        };
        for stays in done.stays.iter().take(LINES) {
            let path = stays.path.clone().unwrap_or_else(|| format!("inode {}", stays.inode));
            text += &format!("stays: {}: {}\n", output::escape(&path), output::escape(&stays.why));
        }
        let more = done.more + done.stays.len().saturating_sub(LINES);
        if more > 0 {
            text += &format!("stays: {more} more\n");
        }
        if stopped {
            text += "stopped: what has moved stays where it is now\n";
        }
        text.extend(forget.map(|hint| format!("  hint: {hint}\n")));
        output::print(&text)?;
    }
    Ok(if empty { Exit::Done } else { Exit::Partly })
}
