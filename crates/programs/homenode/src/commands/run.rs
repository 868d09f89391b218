//! `homenode run`: the daemon in the foreground.
//!
//! **Problem.** Every move must be undone however the run ends: by a signal, with its command, by a
//! closed stdout, or by a fault of the plane.
//!
//! **Approach.** One loop and one exit, where `Engine::finish` runs and its result is printed.
//!
//! **Limits.** A stop ends the current window early; the policy still decides on it.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use command::args::{Global, PolicyArgs};
use engine::{Engine, Plane};
use host::HostPlane;
use observe::Scope;
use placement::Policy;
use session::history::{self, Recorder};
use session::policies::Programs;
use session::totals::Totals;
use session::windows::{Output, windows};
use session::{policies, undo};

use crate::child::Child;
use crate::commands::neighbours::Neighbours;
use crate::commands::off::Off;
use crate::commands::plane::{self, PROC};
use crate::commands::rules::{self, Reload};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::notify;
use crate::options::ObserveArgs;
use crate::output;
use crate::output::limits::Limits;
use crate::signals::Stop;

/// `homenode run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// How to decide.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// Print the moves without making them
    #[arg(long)]
    pub dry_run: bool,
    /// Move only what `[[service]]` in homenode.toml allows, also if it allows nothing yet. Without
    /// this option such rules apply, too, where there are any and no option chooses threads
    #[arg(long, conflicts_with_all = ["observe_only", "policy", "margin", "min_bytes", "pid", "unit", "not_unit",
        "cgroup", "command"])]
    pub by_rules: bool,
    /// Move nothing and only count, for `homenode export`
    #[arg(long, conflicts_with_all = ["dry_run", "policy", "margin", "min_bytes", "move_back"])]
    pub observe_only: bool,
    /// At the end, also send memory and file data back to the nodes that it was on, at the rate of
    /// all moves
    #[arg(long, conflicts_with = "dry_run")]
    pub move_back: bool,
    /// Print only windows with moves or news
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
    /// End after N windows. CMD goes on, and homenode waits for its end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub windows: Option<u64>,
    /// Command to start and manage
    #[arg(last = true, value_name = "CMD", conflicts_with_all = ["pid", "unit", "not_unit", "cgroup"])]
    pub command: Vec<OsString>,
}

pub fn run(global: &Global, args: &RunArgs) -> Result<Exit, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let settings = engine::Settings {
        window_s: args.observe.window.unwrap_or(config.engine.window_s),
        // Who only observes moves nothing anyway, and counts.
        dry_run: !args.observe_only && (args.dry_run || config.engine.dry_run),
        guardrail: config.guardrail.clone(),
        ..config.engine()
    };
    let chosen = args.command.is_empty() && rules::apply(&config, &args.observe.scope);
    let by_rules = args.by_rules || chosen && !args.observe_only && rules::may(&args.policy, settings.dry_run)?;
    let policy = match args.observe_only {
        true => Box::new(Off) as Box<dyn Policy>,
        false if by_rules => Box::new(policies::by_rules(&config)?),
        false => {
            let programs = Programs::kept([args.policy.name()], args.policy.policy_user.as_deref())?;
            policies::chosen(&args.policy, &config, &programs)?
        }
    };
    let state = if settings.dry_run { None } else { Some(undo::open_state(&global.state_dir)?) };
    let stop = Stop::or_reload()?;
    let mut child = Child::hold(&args.command, global.json)?;
    if args.move_back {
        // Each process that is to go back takes two. The command has begun before, so it keeps the
        // usual limit.
        linux::files::raise_limit();
    }
    // Output waits for no reader from here on, so that nothing keeps moves from being undone. The
    // threads that write can give up all privileges as long as this one has them.
    output::detach();
    let plane = {
        let scope = match by_rules {
            true => Scope::Ruled(config.rules()),
            false => plane::scope(&args.observe.scope, child.as_ref().map(Child::pid))?,
        };
        plane::open(&config, &args.observe, scope, policy.traits(), args.move_back)?
    };
    let limits = Limits::of(plane.limits(), global.verbose);
    // Undoes what a crashed run left behind, before anything that could take time.
    let mut engine = Engine::new(plane, policy, settings.clone(), state)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot start", &e))?;
    // When a machine starts, other services come later.
    if by_rules && !notify::is_service() {
        plane::say_absent("rule ", &config.rules());
    }
    let interference = if stop.requested() { Vec::new() } else { plane::interference(&|| stop.requested()) };
    // Its thread can give up all privileges as long as this one has them.
    let history = (config.history.keep && !settings.dry_run)
        .then(|| Recorder::start(&global.history_dir(), config.history.bytes));
    if !config.history.keep
        && !settings.dry_run
        && let Err(error) = history::forget(&global.history_dir())
    {
        tracing::warn!("the history stays: cannot start a thread: {error}");
    }
    match args.observe_only && child.is_none() {
        true => plane::observe_only()?,
        false => plane::move_only(engine.policy().traits(), child.is_some())?,
    }
    // In a dry run the state directory is somebody else's.
    let totals = (!settings.dry_run).then(|| {
        let mut totals = Totals::new(&global.state_dir, Path::new(PROC), engine.policy().name());
        if let Some(history) = history {
            totals.keep(history);
        }
        totals
    });
    let mut out = Output::of_host(global.json, args.quiet, limits, totals);
    let granted = engine.policy().traits();
    let last = config.service.clone();
    let mut reload = Reload { file: global.config.as_deref(), by_rules, granted, begun: &config, last };
    if by_rules && let Some(status) = out.status() {
        status.rule(&config.service);
    }
    let topology = engine.plane().topology();
    let less = policies::without_bandwidth(engine.policy(), topology);
    let told = out.start(engine.policy(), &settings, topology.nodes.len(), &interference, less.as_deref());
    let mut neighbours = Neighbours::default();
    let ran = told.and_then(|()| out.recovered(engine.recovered())).and_then(|()| match &mut child {
        // A command that has not begun when the stop comes never begins, nor one whose user cannot
        // be told anything.
        Some(child) if !stop.requested() => {
            output::background::OUT.settle()?;
            child.go()
        }
        _ => Ok(()),
    });
    notify::ready(Some(settings.window_s));
    let ran = ran.and_then(|()| {
        let mut ended = || child.as_mut().is_some_and(Child::ended);
        let mut between = |engine: &mut Engine<HostPlane>, out: &mut Output| {
            neighbours.window(out)?;
            match stop.take_reload() {
                true => reload.now(engine, out),
                false => Ok(()),
            }
        };
        windows(&mut engine, &mut out, &|| stop.requested(), &mut ended, &mut between, args.windows)
    });
    notify::stopping();
    plane::hurry();
    let came = stop.came();
    let undoing = notify::Undoing::default();
    let finished = engine.finish_until(&|| {
        undoing.goes_on();
        stop.came() > came
    });
    // From now on another one may have the directory.
    out.publish_no_more();
    drop(engine);
    let told = out.finished(&finished);
    let exit = match child {
        Some(child) if !child.began() => Exit::Partly,
        Some(mut child) => {
            // The command may run on for long: report failures now.
            for failure in [&ran, &told].into_iter().filter_map(|r| r.as_ref().err()).filter(|f| !f.is_broken_pipe()) {
                failure.report(global.json);
            }
            if !global.json && !child.ended() {
                let (name, pid) = (child.name(), child.pid());
                // Its reader may be gone; the command goes on.
                let _ = output::print(&format!("no longer observing; waiting for {name} (pid {pid})\n"));
            }
            let mut passed_on = false;
            while !child.ended() {
                if !passed_on && stop.requested() && !stop.by_interrupt() {
                    child.terminate()?;
                    passed_on = true;
                }
                // A signal or the command's end unparks this thread; the limit is for a wake-up
                // that came before.
                std::thread::park_timeout(Duration::from_millis(100));
            }
            return Ok(child.wait());
        }
        None if finished.complete() => Exit::Done,
        None => Exit::Partly,
    };
    ran.and(told).map(|()| exit)
}
