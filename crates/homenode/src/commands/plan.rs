//! `homenode plan`: shows which threads would move, and why.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use placement::Snapshot;

use crate::cli::{Global, PlanArgs};
use crate::commands::{policies, session};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::output::limits::Limits;
use crate::output::{self, words};

/// Largest snapshot that is read: 100,000 threads with ten files each are below it.
const LARGEST: u64 = 1 << 30;

/// Prints the plan for a snapshot file, or for one window of this machine.
pub fn run(global: &Global, args: &PlanArgs) -> Result<Exit, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let mut policy = policies::chosen(&args.policy, &config, 1.0)?;
    let (snapshot, limits) = match &args.snapshot {
        Some(path) => (read_snapshot(path)?, Limits::recorded(global.verbose)),
        None => {
            let window = Duration::from_secs_f64(args.observe.window.unwrap_or(config.engine.window_s));
            let mut plane = session::open(&config, &args.observe, None, policy.traits().wants_mapped, false)?;
            (session::observe(&mut plane, window)?, Limits::of(&plane, global.verbose))
        }
    };
    let topology = snapshot.topology();
    let plan = policy.decide(&topology, &snapshot);
    if global.json {
        output::print_json(&plan)?;
    } else {
        output::print(&words::plan(&plan, &snapshot, &limits))?;
        if let Some(less) = policies::without_bandwidth(&*policy, &topology) {
            output::print(&format!("note: policy {}: {less}\n", policy.name()))?;
        }
    }
    Ok(Exit::Done)
}

/// The snapshot in a file, `-` being stdin.
pub fn read_snapshot(path: &Path) -> Result<Snapshot, Failure> {
    let mut text = String::new();
    let (name, read) = if path == Path::new("-") {
        ("stdin".to_owned(), io::stdin().lock().take(LARGEST).read_to_string(&mut text))
    } else {
        let read = fs::File::open(path).and_then(|file| file.take(LARGEST).read_to_string(&mut text));
        (path.display().to_string(), read)
    };
    match read {
        Ok(_) => Snapshot::from_json(&text).map_err(|e| Failure::from_error(Exit::Usage, name, &e)),
        Err(e) => Err(Failure::from_error(Exit::Usage, format!("cannot read {name}"), &e)),
    }
}
