//! `homenode replay`: runs a policy and the rails over a recording.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use engine::{Engine, Masks, Plane, PlaneError, Started, Undo, Undone, Write};
use placement::{Move, Snapshot};
use topology::Topology;

use command::args::{Global, PolicyArgs};
use session::policies::{self, Programs};
use session::report;

use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::output::limits::Limits;
use crate::recording::Reader;

/// `homenode replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Recording that `homenode record` wrote (`-` for stdin)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How to decide.
    #[command(flatten)]
    pub policy: PolicyArgs,
}

/// Prints a plan per window of the recording.
pub fn run(global: &Global, args: &ReplayArgs) -> Result<Exit, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let programs = Programs::waited_for(args.policy.policy_user.as_deref());
    let policy = policies::chosen(&args.policy, &config, &programs)?;
    let mut reader = Reader::open(&args.file)?;
    let failure = |e: engine::EngineError| Failure::from_error(Exit::Usage, "cannot replay", &e);
    let mut engine = Engine::new(Recorded::default(), policy, config.engine(), None).map_err(failure)?;
    let mut lines = report::Lines::new(Limits::recorded(global.verbose));
    let mut window = 0;
    while let Some(snapshot) = reader.next_snapshot()? {
        window += 1;
        engine.plane_mut().next(snapshot);
        let report = engine.step().map_err(failure)?;
        policies::ended(engine.policy())?;
        if global.json {
            output::print_json_line(&report::json(window, &report))?;
        } else {
            output::print(&lines.window(window, &report).0)?;
        }
    }
    if window == 0 {
        return Err(Failure::new(Exit::Usage, args.file.display().to_string(), "contains no window"));
    }
    Ok(Exit::Done)
}

/// A plane that shows a recording. Every move succeeds, so that the rails behave as on a host.
#[derive(Default)]
struct Recorded {
    topology: Topology,
    snapshot: Option<Snapshot>,
}

impl Recorded {
    fn next(&mut self, snapshot: Snapshot) {
        self.topology = snapshot.topology();
        self.snapshot = Some(snapshot);
    }
}

impl Plane for Recorded {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self, _: Duration) -> Result<Snapshot, PlaneError> {
        self.snapshot.take().ok_or_else(|| PlaneError::Gone { what: "the recording".to_owned() })
    }

    fn prepare(&mut self, mv: &Move) -> Result<Vec<Undo>, PlaneError> {
        let cpus = self.topology.cpus();
        if !mv.subject.is_thread() {
            return Err(PlaneError::refused("not_a_thread", "only moves of threads are replayed"));
        }
        let masks = Some(Masks { before: cpus.clone(), ours: cpus, unbound: false });
        Ok(vec![Undo { subject: mv.subject, pid: mv.pid, masks, payload: None }])
    }

    fn start(&mut self, _: &Move, _: &[Undo], _: &mut Write<'_>) -> Result<Started, PlaneError> {
        Ok(Started::done())
    }

    fn undo(&mut self, _: &Undo) -> Result<Undone, PlaneError> {
        Ok(Undone::Restored)
    }
}
