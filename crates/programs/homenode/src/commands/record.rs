//! `homenode record`: writes each window to a file.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use command::args::Global;
use placement::{Traits, Wish};

use crate::commands::plane;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::options::ObserveArgs;
use crate::output::{self, words};
use crate::recording::Writer;
use crate::signals::Stop;

/// `homenode record`.
#[derive(Debug, Args)]
#[command(
    mut_arg("touch_own_affinity", |arg| arg.help("Record threads with a custom affinity as `run` with this option \
        sees them: as ones that may move")),
    mut_arg("beside_sched_ext", |arg| arg.help("Record threads as `run` with this option sees them: as ones that may \
        move while a sched_ext scheduler runs")),
)]
pub struct RecordArgs {
    /// File to append to
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// End after N windows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub windows: Option<u64>,
}

pub fn run(global: &Global, args: &RecordArgs) -> Result<Exit, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let window = Duration::from_secs_f64(args.observe.window.unwrap_or(config.engine.window_s));
    let stop = Stop::or_killed()?;
    // A replay may be by a policy that looks at ranges.
    let wanted = Traits { wants_ranges: Wish::Needed, wants_idle: true, ..Traits::default() };
    let mut plane =
        plane::open(&config, &args.observe, plane::looked_at(&args.observe.scope, &config)?, wanted, false)?;
    // Where nothing can be observed no file is left behind.
    let mut writer = Writer::open(&args.file)?;
    plane::observe_only()?;
    let to_stdout = args.file.as_os_str() == "-";
    let mut windows = 0;
    while !stop.requested() && args.windows.is_none_or(|most| windows < most) {
        let snapshot = plane::observe(&mut plane, window)?;
        writer.append(&snapshot)?;
        windows += 1;
        if !global.json && !to_stdout {
            output::print(&format!("{}\n", words::window(&snapshot)))?;
        }
    }
    writer.finish()?;
    if global.json && !to_stdout {
        output::print_json(&serde_json::json!({"file": args.file, "windows": windows}))?;
    }
    Ok(Exit::Done)
}
