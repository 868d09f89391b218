//! `homenode trial`: whether a policy helps the load of this machine.
//!
//! **Problem.** The load is live. It must be as it was after each period, or the next one would see
//! what the last one left; and after the trial, however it ends.
//!
//! **Approach.** One plane observes from the first window to the last, so that both arms pay for it
//! alike. A period has an engine of its own, which has the plane lent; at its end `Engine::finish`
//! puts everything back. With homenode off, its policy moves nothing ([`Off`]). A period begins
//! with an empty window, because a window has everything since the one before. The design and the
//! statistics are those of `trial`.
//!
//! **Limits.** What observing costs is in both arms, so it is no part of the effect
//! (`bench/observe` measures it); so is what an engine does in each window. The CPU time is that of
//! threads that touched file data in a window.

mod back;
mod design;
pub mod last;
mod metric;
mod outcome;
mod report;

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use command::args::PolicyArgs;
use engine::guardrail::{BEFORE, Before, Work};
use engine::{Engine, Finished, Plane, Spent, StateDir};
use host::HostPlane;
use placement::{Policy, Traits};
use session::policies::Programs;
use session::{policies, undo};
use trial::{Arm, Harm, order};

use self::back::Back;
use self::design::Design;
pub use self::design::TrialArgs;
use self::outcome::{Period, Sums};
use self::report::{Judged, Report};
use crate::child::Child;
use crate::commands::off::Off;
use crate::commands::plane;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::machine;
use crate::notify;
use crate::output;
use crate::signals::Stop;
use command::args::Global;

/// Tries policies until the trial is over, one clearly hurts, or a signal comes.
pub fn run(global: &Global, args: &TrialArgs) -> Result<Exit, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let window_s = args.observe.window.unwrap_or(config.engine.window_s);
    let settings = engine::Settings { window_s, dry_run: false, ..config.engine() };
    let nodes = machine::read(Path::new(machine::SYS), &config)?.nodes.len();
    let design = Design::of(args, window_s, nodes)?;
    let programs = Programs::kept(design.policies.iter().map(String::as_str), args.policy_user.as_deref())?;
    let chosen = |name: &str| {
        let policy = PolicyArgs {
            policy: Some(name.to_owned()),
            policy_user: None, // its keeper knows
            margin: args.margin,
            min_bytes: args.min_bytes,
        };
        policies::chosen(&policy, &config, &programs)
    };
    let traits = design.policies.iter().map(|name| Ok(chosen(name)?.traits())).collect::<Result<Vec<_>, Failure>>()?;
    let traits = traits.into_iter().fold(Traits::default(), Traits::union);
    let state = undo::open_state(&global.state_dir)?;
    let stop = Stop::on_signals()?;
    let mut child = Child::hold(&args.command, global.json)?;
    let moves_data = traits.moves_files || traits.moves_processes;
    if moves_data {
        linux::files::raise_limit();
    }
    output::detach();
    let mut plane = {
        let child = child.as_ref().map(Child::pid);
        let scope = plane::scope(&args.observe.scope, child)?;
        plane::open(&config, &args.observe, scope, traits, moves_data)?
    };
    let recovered = engine::recover(&mut plane, &state)
        .map_err(|e| Failure::from_error(Exit::Unsupported, "cannot restore", &e))?;
    let interference = if stop.requested() { Vec::new() } else { plane::interference(&|| stop.requested()) };
    plane::move_only(traits, child.is_some())?;
    let mut report = Report::new(global.json, &design);
    report.start(&plane, &recovered, &interference)?;
    // Before CMD has begun, a number about it may not be there.
    if let Some(metric) = design.metric.as_deref().filter(|_| child.is_none() && !stop.requested()) {
        match metric::ask(metric, &|| stop.requested()) {
            Err(why) if !stop.requested() => return Err(Failure::new(Exit::Usage, "--metric", why)),
            _ => {}
        }
    }
    if let Some(child) = child.as_mut().filter(|_| !stop.requested()) {
        output::background::OUT.settle()?;
        child.go()?;
    }
    notify::ready(Some(window_s));
    let mut trial = Trial {
        design: &design,
        settings: &settings,
        bounds: &config.guardrail,
        before: VecDeque::new(),
        plane: &mut plane,
        state: &state,
        stop: &stop,
        harms: vec![Harm::new(&design.statistics()); design.policies.len()],
        finished: Finished::default(),
        spent: Spent::default(),
    };
    let ran = trial.run(&mut child, &mut report, &chosen);
    let Trial { harms, finished, .. } = trial;
    notify::stopping();
    drop(plane);
    // The result is told whatever this gives.
    let ended = child.as_mut().map_or(Ok(()), Child::terminate);
    let judged = report.judge(&harms);
    let told = report.end(&judged, &finished, stop.requested());
    if let Err(failure) = report.last(&judged, &finished, stop.requested()).save(state.path()) {
        tracing::warn!("{}: `homenode report` does not have this trial", failure.line());
    }
    ran.and(told).and(ended)?;
    let done = judged.iter().all(Judged::decided) && finished.complete();
    Ok(if done { Exit::Done } else { Exit::Partly })
}

/// Makes a policy of this name, which has seen nothing yet.
type Choose<'a> = dyn Fn(&str) -> Result<Box<dyn Policy>, Failure> + 'a;

struct Trial<'a> {
    design: &'a Design,
    settings: &'a engine::Settings,
    bounds: &'a engine::settings::Guardrail,
    /// Windows with homenode off, before this round.
    before: VecDeque<Work>,
    plane: &'a mut HostPlane,
    state: &'a StateDir,
    stop: &'a Stop,
    /// One for each policy.
    harms: Vec<Harm>,
    /// All that was put back.
    finished: Finished,
    /// What was copied in the last 24 hours: one limit for all periods.
    spent: Spent,
}

impl Trial<'_> {
    fn run(&mut self, child: &mut Option<Child>, report: &mut Report<'_>, chosen: &Choose<'_>) -> Result<(), Failure> {
        // The guardrail of the first round must know what was before it.
        let before_s = BEFORE as f64 * self.design.window_s;
        let (stop, ended) = (self.stop, &mut || child.as_mut().is_some_and(Child::ended));
        let sums = Sums::new(0.0, before_s, self.design.window_s);
        let Some((_, works)) = self.period(Box::new(Off), sums, None, &mut || stop.requested() || ended())? else {
            return Ok(());
        };
        self.before = works;
        for round in 0..self.design.rounds {
            let hurts = |arm: &Arm| matches!(arm, Arm::On(n) if self.harms.get(*n).is_some_and(Harm::clear));
            let mut arms = order(self.design.seed, round as u64, self.design.policies.len());
            arms.retain(|arm| !hurts(arm));
            if arms.len() < 2 {
                break;
            }
            let mut periods = Vec::new();
            let (mut off, before) = (VecDeque::new(), Before::of(&self.before));
            for arm in arms {
                let stop = self.stop;
                let mut over = || stop.requested() || child.as_mut().is_some_and(Child::ended);
                if over() {
                    return Ok(());
                }
                let name = match arm {
                    Arm::Off => None,
                    Arm::On(n) => self.design.policies.get(n),
                };
                let policy = name.map_or_else(|| Ok(Box::new(Off) as Box<dyn Policy>), |name| chosen(name))?;
                // What was cut short is in no round.
                let Design { wash_out_s, period_s, window_s, metric, .. } = self.design;
                let sums = Sums::new(*wash_out_s, *period_s, *window_s).guarded(self.bounds, before);
                let Some((period, works)) = self.period(policy, sums, metric.as_deref(), &mut over)? else {
                    return Ok(());
                };
                if arm == Arm::Off {
                    off = works;
                }
                report.period(round, arm, &period)?;
                periods.push((arm, period));
            }
            self.before = off;
            report.round(periods, &mut self.harms);
            if !report.can_tell(&self.harms) {
                break;
            }
        }
        Ok(())
    }

    /// One period; `None` if it was cut short. Whatever happens, everything is put back at its end.
    /// Its windows come with it.
    fn period(
        &mut self,
        policy: Box<dyn Policy>,
        mut sums: Sums,
        metric: Option<&str>,
        over: &mut dyn FnMut() -> bool,
    ) -> Result<Option<(Period, VecDeque<Work>)>, Failure> {
        let Self { settings, plane, state, stop, .. } = self;
        let mut moves = 0;
        let mut back = Back::default();
        let again = state.again().map_err(|e| cannot(&e))?;
        let engine = Engine::new(&mut **plane, policy, settings.clone(), Some(again)).map_err(|e| cannot(&e))?;
        let mut engine = engine.with_spent(std::mem::take(&mut self.spent));
        // What was between the periods is in none: a window has everything since the last one
        // ended.
        let mut ran = engine.plane_mut().observe(Duration::ZERO).map(drop).map_err(|e| cannot(&e));
        while ran.is_ok() && !sums.over() && !over() {
            ran = engine.step().map_err(|e| cannot(&e)).map(|report| {
                back.note(&report);
                moves += report.outcomes.iter().filter(|outcome| outcome::was_made(&outcome.result)).count();
                notify::alive();
                sums.add(&report.snapshot);
            });
        }
        // The number belongs to what the policy did, and not to what comes after.
        sums.ask(metric, stop);
        let came = stop.came();
        let mut ended = engine.finish_until(&|| stop.came() > came);
        self.spent = engine.spent();
        // Whatever follows would be a period without it.
        ran = ran.and(policies::ended(engine.policy()));
        drop(engine);
        let (restored, moved_back) = (ended.restored, ended.moved_back);
        if ran.is_ok() && !back.is_empty() && !over() {
            ran = self.send_back(back, &mut ended);
        }
        let stayed = outcome::stayed(&ended);
        outcome::add(&mut self.finished, ended);
        ran?;
        let (values, beyond, ran) = (sums.values(), sums.beyond(), sums.ran());
        let period = Period { values, moves, restored, moved_back, beyond, ran, stayed };
        Ok(sums.over().then(|| (period, sums.works().clone())))
    }

    /// One window in which threads go back to where they were; then they may run everywhere again.
    fn send_back(&mut self, back: Back, ended: &mut Finished) -> Result<(), Failure> {
        // All at once: this is no load that is placed.
        let settings = engine::Settings { moves_per_s: 1e6, burst: 1_000_000, ..self.settings.clone() };
        let state = self.state.again().map_err(|e| cannot(&e))?;
        let mut engine =
            Engine::new(&mut *self.plane, Box::new(back), settings, Some(state)).map_err(|e| cannot(&e))?;
        let stepped = engine.step();
        outcome::add(ended, engine.finish());
        stepped.map(drop).map_err(|e| cannot(&e))
    }
}

fn cannot(e: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::from_error(Exit::Unsupported, "cannot go on", e)
}
