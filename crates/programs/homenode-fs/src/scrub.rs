//! `homenode-fs fs scrub`: has the server of a mount read the whole volume, and says what is
//! damaged.

use std::fs::File;
use std::io;

use crate::args::ScrubArgs;
use command::args::Global;
use command::exit::{Exit, Failure};
use command::output::units::{count, size};
use command::output::{self, progress};
use command::signals::Stop;
use linux::volume::{self, Scrub, ScrubFault, ScrubOrder, State};

/// Exit code for damage, as fsck(8) has it.
const DAMAGED: u8 = 4;
const HINT: &str = "file data has one copy: restore these files from a backup, or remove them; what is no data \
    homenode-fs fsck --repair mends, once the volume is unmounted";

/// Starts, follows or stops a scrub.
pub fn run(global: &Global, args: &ScrubArgs) -> Result<Exit, Failure> {
    let name = linux::shown(args.mount.as_os_str());
    let mount = File::open(&args.mount).map_err(|e| Failure::io("open", &args.mount, &e))?;
    let refused = |e: io::Error| refusal(&name, &e);
    if args.status {
        return tell(global, &name, &volume::scrub(&mount).map_err(refused)?);
    }
    if args.stop {
        volume::order_scrub(&mount, ScrubOrder::Cancel).map_err(refused)?;
        let ended = volume::follow_scrub(&mount, |_| true).map_err(refused)?;
        return tell(global, &name, &ended).map(|_| Exit::Done);
    }
    let stop = Stop::on_signals()?;
    let rate = args.rate.map(|rate| (rate as u64).max(1));
    volume::order_scrub(&mount, ScrubOrder::Start(rate)).map_err(refused)?;
    if args.background {
        return tell(global, &name, &volume::scrub(&mount).map_err(refused)?).map(|_| Exit::Done);
    }
    let bar = progress::bar(global.json, 0, "{wide_bar} {bytes} of {total_bytes}  {eta} left");
    let ended = volume::follow_scrub(&mount, |now| {
        bar.set_length(now.used_bytes.max(now.bytes));
        bar.set_position(now.bytes);
        !stop.requested()
    });
    bar.finish_and_clear();
    let ended = ended.map_err(refused)?;
    let exit = tell(global, &name, &ended)?;
    // Without a state another server serves the mount by now, which knows of no scrub.
    Ok(if ended.state.is_none() { Exit::Partly } else { exit })
}

/// Why the mount does not do it.
fn refusal(name: &str, error: &io::Error) -> Failure {
    let failure = |exit, why: &str| Failure::new(exit, name, why).errno(error.raw_os_error().unwrap_or(libc::EIO));
    match error.raw_os_error() {
        Some(libc::EBUSY) => failure(Exit::Busy, "a scrub of it is under way").hint("--status says how far it is"),
        Some(libc::ENODATA) => failure(Exit::Usage, "no scrub of it is under way"),
        Some(libc::EPERM) => failure(Exit::Unsupported, "a scrub of a mounted volume takes CAP_SYS_ADMIN")
            .hint("this needs root: try sudo"),
        Some(libc::EOPNOTSUPP) => failure(Exit::Usage, "is not on a mounted volume")
            .hint("homenode-fs fsck checks a volume that is not mounted, and all of its data"),
        _ => Failure::from_error(Exit::Io, name, error),
    }
}

/// Says what a scrub has found.
fn tell(global: &Global, name: &str, scrub: &Scrub) -> Result<Exit, Failure> {
    if global.json {
        output::print_json(scrub)?;
    } else {
        let mut text: String = scrub.faults.iter().map(|fault| format!("{}\n", output::escape(&line(fault)))).collect();
        let told = scrub.faults.len() as u64;
        if scrub.damaged + scrub.mended > told {
            text += &format!("{} more\n", count((scrub.damaged + scrub.mended - told) as usize, "fault"));
        }
        let state = match scrub.state {
            None => "no scrub since it was mounted",
            Some(State::Running) => "a scrub is under way",
            Some(State::Done) => "all read",
            Some(State::Stopped) => "stopped; the next scrub goes on there",
            Some(State::Failed) => "failed",
        };
        let damage = match (scrub.damaged, scrub.mended) {
            (0, 0) => "no damage".to_owned(),
            (damaged, 0) => count(damaged as usize, "fault"),
            (damaged, mended) => format!("{}, {mended} mended", count(damaged as usize, "fault")),
        };
        let (data, inodes) = (size(scrub.bytes), count(scrub.inodes as usize, "inode"));
        text += &format!("{}: {state}: {data} of data, {inodes}, {damage}\n", output::escape(name));
        if !scrub.data_checksums {
            text += "  file data has no checksums here: only what cannot be read is found in it\n";
        }
        if scrub.damaged > 0 {
            text += &format!("  hint: {HINT}\n");
        }
        output::print(&text)?;
    }
    Ok(match scrub.state {
        _ if scrub.damaged > 0 => Exit::Command(DAMAGED),
        Some(State::Failed) => Exit::Io,
        Some(State::Stopped) => Exit::Partly,
        _ => Exit::Done,
    })
}

/// `/a/b: bytes 4096 to 8192: data in block …`.
fn line(fault: &ScrubFault) -> String {
    let what = match (&fault.path, fault.ino) {
        (Some(path), _) => format!("{path}: "),
        (None, Some(ino)) => format!("inode {ino}: "),
        (None, None) => String::new(),
    };
    let bytes = fault.bytes.map_or_else(String::new, |(from, to)| format!("bytes {from} to {to}: "));
    format!("{what}{bytes}{}{}", fault.what, if fault.mended { "; mended" } else { "" })
}
