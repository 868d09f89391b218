//! `homenode run`: the daemon in the foreground.
//!
//! **Problem.** Every move must be undone however the run ends: by a signal, with its command, by a closed stdout, or by a fault
//! of the plane.
//!
//! **Approach.** One loop and one exit, where `Engine::finish` runs and its result is printed.
//!
//! **Limits.** A stop ends the current window early; the policy still decides on it.

use std::time::Duration;

use engine::{Engine, Finished, Plane};
use linux::interference::Interference;
use placement::Policy;
use serde_json::json;

use crate::child::Child;
use crate::cli::{Global, RunArgs};
use crate::commands::mounts::Teller;
use crate::commands::report::{self, Lines};
use crate::commands::top::model::Window;
use crate::commands::{policies, restore, session};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::notify;
use crate::output::limits::Limits;
use crate::output::units::{count, seconds};
use crate::output::{self, escape, words};
use crate::signals::Stop;

/// Observes and moves until stopped.
pub fn run(global: &Global, args: &RunArgs) -> Result<Exit, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let settings = engine::Settings {
        window_s: args.observe.window.unwrap_or(config.engine.window_s),
        dry_run: args.dry_run || config.engine.dry_run,
        ..config.engine()
    };
    let policy = policies::chosen(&args.policy, &config, 1.0)?;
    let state = if settings.dry_run { None } else { Some(restore::open_state(global)?) };
    let stop = Stop::on_signals()?;
    let mut child = Child::hold(&args.command, global.json)?;
    if args.move_back {
        // Each process that is to go back takes two. The command has begun before, so it keeps the usual limit.
        session::raise_open_files();
    }
    // Nobody waits for output from here on, so that nothing keeps moves from being undone. The threads that write can give up all
    // privileges as long as this one has them.
    output::detach();
    let plane = {
        let child = child.as_ref().map(Child::pid);
        session::open(&config, &args.observe, child, policy.traits().wants_mapped, args.move_back)?
    };
    let limits = Limits::of(plane.limits(), global.verbose);
    // Undoes what a crashed run left behind, before anything that could take time.
    let mut engine = Engine::new(plane, policy, settings.clone(), state)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot start", &e))?;
    let interference = if stop.requested() { Vec::new() } else { session::interference(&|| stop.requested()) };
    session::move_only(engine.policy().traits(), child.is_some())?;
    let mut out = Output { json: global.json, quiet: args.quiet, lines: Lines::new(limits), label: None, teller: None };
    let topology = engine.plane().topology();
    let less = policies::without_bandwidth(engine.policy(), topology);
    let told = out.start(engine.policy(), &settings, topology.nodes.len(), &interference, less.as_deref());
    let ran = told.and_then(|()| out.recovered(engine.recovered())).and_then(|()| match &mut child {
        // A command that has not begun when the stop comes never begins, nor one whose user cannot be told anything.
        Some(child) if !stop.requested() => {
            output::background::OUT.settle()?;
            child.go()
        }
        _ => Ok(()),
    });
    notify::ready(Some(settings.window_s));
    let ran = ran.and_then(|()| windows(&mut engine, &mut out, &|| stop.requested(), child.as_mut(), args.windows));
    notify::stopping();
    let came = stop.came();
    let finished = engine.finish_until(&|| stop.came() > came);
    drop(engine);
    let told = out.finished(&finished);
    let exit = match child {
        Some(child) if !child.began() => Exit::Partly,
        Some(mut child) => {
            // The command may run on for long: report failures now.
            for failure in [&ran, &told].into_iter().filter_map(|r| r.as_ref().err()).filter(|f| !f.is_broken_pipe()) {
                failure.report(global.json);
            }
            let mut passed_on = false;
            while !child.ended() {
                if !passed_on && stop.requested() && !stop.by_interrupt() {
                    child.terminate()?;
                    passed_on = true;
                }
                // A signal or the command's end unparks this thread; the limit is for a wake-up that came before.
                std::thread::park_timeout(Duration::from_millis(100));
            }
            return Ok(child.wait());
        }
        None if finished.complete() => Exit::Done,
        None => Exit::Partly,
    };
    ran.and(told).map(|()| exit)
}

/// Runs window after window until something ends the run.
pub fn windows<P: Plane>(
    engine: &mut Engine<P>,
    out: &mut Output,
    stop: &dyn Fn() -> bool,
    mut child: Option<&mut Child>,
    most: Option<u64>,
) -> Result<(), Failure> {
    let mut window = 0;
    while !stop() && most.is_none_or(|most| window < most) {
        let report = engine.step().map_err(|e| Failure::from_error(Exit::Unsupported, "cannot go on", &e))?;
        window += 1;
        notify::alive();
        out.window(window, &report)?;
        if child.as_mut().is_some_and(|child| child.ended()) {
            break;
        }
    }
    Ok(())
}

/// Prints to stdout.
pub struct Output {
    json: bool,
    quiet: bool,
    lines: Lines,
    /// Begins every line of figures, where they are emulated.
    label: Option<String>,
    /// Tells other commands what happens on a mounted volume; absent on a host, where policies move less than elsewhere.
    teller: Option<Teller>,
}

impl Output {
    /// Prints what happens on a mounted volume.
    pub fn of_volume(json: bool, quiet: bool, limits: Limits, teller: Teller) -> Self {
        Self { json, quiet, lines: Lines::new(limits), label: teller.label(), teller: Some(teller) }
    }

    /// Description of the run that begins.
    pub fn start(
        &self,
        policy: &dyn Policy,
        settings: &engine::Settings,
        nodes: usize,
        interference: &[Interference],
        unknown: Option<&str>,
    ) -> Result<(), Failure> {
        let less = policies::on_a_host(policy.traits(), settings.moves.dax).filter(|_| self.teller.is_none());
        let policy = policy.name();
        if self.json {
            output::print_json_line(&json!({
                "kind": "start",
                "version": 1,
                "policy": policy,
                "window_s": settings.window_s,
                "dry_run": settings.dry_run,
                "nodes": nodes,
                "policy_limit": less,
                "bandwidth_limit": unknown,
                "emulated": self.label,
                "interference": interference,
            }))?;
            return Ok(());
        }
        let dry = if settings.dry_run { ", dry run: nothing is changed" } else { "" };
        let mut text =
            format!("policy {policy}, window {}, {}{dry}\n", seconds(settings.window_s), count(nodes, "node"));
        for found in interference {
            text.push_str(&format!("note: {}\n", escape(&words::interference(found))));
        }
        if let Some(label) = &self.label {
            text = format!("{label}: {text}");
        }
        for less in less.into_iter().chain(unknown) {
            text.push_str(&format!("note: policy {policy}: {less}\n"));
        }
        if nodes == 1 {
            text.push_str("note: one node: every read is local, there is nothing to move\n");
        }
        Ok(output::print(&text)?)
    }

    /// The moves of a crashed run that were undone.
    pub fn recovered(&self, recovered: &Finished) -> Result<(), Failure> {
        if *recovered == Finished::default() {
            return Ok(());
        }
        match self.json {
            true => output::print_json_line(&report::finished_json("recovered", recovered))?,
            false => output::print(&format!("after a crash: {}", report::finished(recovered)))?,
        }
        Ok(())
    }

    fn window(&mut self, window: u64, report: &engine::WindowReport) -> Result<(), Failure> {
        if let Some(teller) = &mut self.teller {
            teller.tell(Window::of_volume(&report.snapshot, &report.plan));
        }
        if self.json {
            let mut value = report::json(window, report);
            if let (Some(label), Some(object)) = (&self.label, value.as_object_mut()) {
                object.insert("emulated".to_owned(), json!(label));
            }
            return Ok(output::print_json_line(&value)?);
        }
        let (mut text, news) = self.lines.window(window, report);
        if let Some(label) = &self.label {
            text = format!("{label}: {text}");
        }
        if news || !self.quiet {
            output::print(&text)?;
        }
        Ok(())
    }

    /// Moves that were undone.
    pub fn finished(&self, finished: &Finished) -> Result<(), Failure> {
        match self.json {
            true => output::print_json_line(&report::finished_json("end", finished))?,
            false => output::print(&format!("stopped: {}", report::finished(finished)))?,
        }
        Ok(())
    }
}
