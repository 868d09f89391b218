//! Window after window, and what is printed of each.

use command::args::on_a_host;
use command::exit::{Exit, Failure};
use command::notify;
use command::output::limits::Limits;
use command::output::units::{count, seconds};
use command::output::{self, escape, words};
use command::rules::Service;
use engine::{Engine, Finished, Plane, Tally};
use linux::interference::Interference;
use placement::Policy;
use serde_json::json;

use crate::published::Publisher;
use crate::report::{self, Lines};
use crate::status::Status;
use crate::totals::Totals;
use crate::window::Window;

/// What a program does between two windows.
pub type Between<'a, P> = dyn FnMut(&mut Engine<P>, &mut Output) -> Result<(), Failure> + 'a;

/// Runs window after window, with `between` after each, until it is time to `stop`, the last window
/// was the end (`over`), or `most` windows have passed.
///
/// # Errors
///
/// The plane cannot go on, or the reader of the output is gone.
pub fn windows<P: Plane>(
    engine: &mut Engine<P>,
    out: &mut Output,
    stop: &dyn Fn() -> bool,
    over: &mut dyn FnMut() -> bool,
    between: &mut Between<'_, P>,
    most: Option<u64>,
) -> Result<(), Failure> {
    let mut window = 0;
    while !stop() && most.is_none_or(|most| window < most) {
        let report = engine.step().map_err(|e| Failure::from_error(Exit::Unsupported, "cannot go on", &e))?;
        window += 1;
        notify::alive();
        out.window(window, &report, engine.tally())?;
        between(engine, out)?;
        if over() {
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
    /// Shows other commands what happens on a mounted volume; absent on a host.
    publisher: Option<Publisher>,
    /// Shows everybody what happens on a host; absent on a mounted volume and in a dry run.
    totals: Option<Totals>,
}

impl Output {
    /// Prints what happens on a host, and adds it up.
    pub fn of_host(json: bool, quiet: bool, limits: Limits, totals: Option<Totals>) -> Self {
        Self { json, quiet, lines: Lines::new(limits), label: None, publisher: None, totals }
    }

    pub fn of_volume(json: bool, quiet: bool, limits: Limits, publisher: Publisher) -> Self {
        let label = publisher.label();
        Self { json, quiet, lines: Lines::new(limits), label, publisher: Some(publisher), totals: None }
    }

    /// Description of the run that begins.
    ///
    /// # Errors
    ///
    /// The reader of the output is gone.
    pub fn start(
        &self,
        policy: &dyn Policy,
        settings: &engine::Settings,
        nodes: usize,
        interference: &[Interference],
        unknown: Option<&str>,
    ) -> Result<(), Failure> {
        let less = on_a_host(policy.traits()).filter(|_| self.publisher.is_none());
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

    /// Programs that place threads or memory, too, and have come or gone since the start.
    ///
    /// # Errors
    ///
    /// The reader of the output is gone.
    pub fn neighbours(&self, came: &[Interference], gone: &[Interference]) -> Result<(), Failure> {
        if came.is_empty() && gone.is_empty() {
            return Ok(());
        }
        if self.json {
            let line = json!({ "kind": "interference", "came": came, "gone": gone });
            return Ok(output::print_json_line(&line)?);
        }
        let mut text = String::new();
        for found in came {
            text.push_str(&format!("note: since the start: {}\n", escape(&words::interference(found))));
        }
        for Interference { name, found, .. } in gone {
            text.push_str(&format!("note: {} is gone ({})\n", escape(name), escape(found)));
        }
        Ok(output::print(&text)?)
    }

    /// The moves of a crashed run that were undone.
    ///
    /// # Errors
    ///
    /// The reader of the output is gone.
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

    fn window(&mut self, window: u64, report: &engine::WindowReport, tally: &Tally) -> Result<(), Failure> {
        if let Some(totals) = &mut self.totals {
            totals.window(report, tally);
        }
        if let Some(publisher) = &mut self.publisher {
            publisher.publish(Window::of_volume(&report.snapshot, &report.plan));
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

    /// What everybody sees of rules and reloads.
    pub fn status(&mut self) -> Option<&mut Status> {
        self.totals.as_mut().map(Totals::status)
    }

    /// Rules were read again: what has changed and needs a restart, or why they stay as they were.
    ///
    /// # Errors
    ///
    /// The reader of the output is gone.
    pub fn reloaded(
        &mut self,
        begun_s: f64,
        rules: &[Service],
        said: Result<Vec<String>, String>,
    ) -> Result<(), Failure> {
        let text = match &said {
            Ok(later) => {
                let later = later.iter().map(|what| format!("; {what}"));
                format!("reloaded: {}{}\n", count(rules.len(), "rule"), later.collect::<String>())
            }
            Err(why) => format!("not reloaded: {why}\n"),
        };
        match self.json {
            true => {
                let (error, later) = (said.as_ref().err(), said.as_ref().ok());
                let rules = rules.len();
                let line = json!({ "kind": "reload", "rules": rules, "error": error, "later": later });
                output::print_json_line(&line)?;
            }
            false => output::print(&text)?,
        }
        if let Some(status) = self.status() {
            if said.is_ok() {
                status.rule(rules);
            }
            status.reloaded(begun_s, said);
        }
        Ok(())
    }

    /// Takes back what everybody sees: the state directory is about to be somebody else's.
    pub fn publish_no_more(&mut self) {
        self.totals = None;
    }

    /// Moves that were undone.
    ///
    /// # Errors
    ///
    /// The reader of the output is gone.
    pub fn finished(&self, finished: &Finished) -> Result<(), Failure> {
        match self.json {
            true => output::print_json_line(&report::finished_json("end", finished))?,
            false => output::print(&format!("stopped: {}", report::finished(finished)))?,
        }
        Ok(())
    }
}
