//! `homenode top`: nodes and threads, live.
//!
//! **Problem.** A window blocks for seconds, keys want an answer at once, and a terminal that is
//! left in raw mode is worse than no view at all.
//!
//! **Approach.** One thread observes and sends windows, one reads keys; the main one draws, and
//! gives the terminal back on every way out: end, error, signal, panic.
//!
//! **Limits.** Last moves are those in the journal of the state directory; what other tools move is
//! not known.

mod detail;
mod keys;
mod last_moves;
pub mod model;
mod past;
mod view;
mod volumes;

use std::collections::VecDeque;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::Duration;

use clap::Args;
use crossterm::event::{self, Event};
use engine::Thrift;
use engine::journal::Line;
use host::HostPlane;
use placement::{Policy, Snapshot, Traits};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use command::args::Global;
use session::history::Range;
use session::window::{self, Window};

use crate::commands::past::{nothing, time};
use crate::commands::plane;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::options::ObserveArgs;
use crate::output::limits::Limits;
use crate::output::table::Table;
use crate::output::{self, escape};
use crate::signals::Stop;
use keys::{Choices, Step};
use last_moves::LastMoves;
use model::{By, Column, FILE_COLUMNS, NODE_COLUMNS, PROCESS_COLUMNS, SERVICE_COLUMNS, Sort, THREAD_COLUMNS, Who};
use past::Past;
use view::Picture;
use volumes::Volumes;

/// `homenode top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// How to observe.
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// Begin at TIME in what `homenode run` has kept, such as 03:00, "yesterday 3am", "2h ago" or
    /// "2026-11-28 03:00"
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["pid", "unit", "not_unit", "cgroup"])]
    pub at: Option<f64>,
    /// Print one window as text (or JSON) and end
    #[arg(long)]
    pub once: bool,
    /// What has a row
    #[arg(long, value_enum, default_value_t = By::Thread)]
    pub by: By,
    /// Column to sort rows by, largest first
    #[arg(long, value_enum, default_value_t)]
    pub sort: Sort,
    /// Also show threads that touched no file data
    #[arg(short, long)]
    pub all: bool,
    /// Show only threads whose name, tid or pid contains TEXT, and services whose name does
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
}

/// How long keys are waited for before the next look at windows and signals.
const TICK: Duration = Duration::from_millis(100);
/// Windows whose remote share is kept for the head.
const MOST_SHARES: usize = 120;

pub fn run(global: &Global, args: &TopArgs) -> Result<Exit, Failure> {
    if global.json && !args.once {
        let failure = Failure::new(Exit::Usage, "usage", "top --json needs --once: the live view is no JSON");
        return Err(failure.hint("`homenode map --json` adds up several windows"));
    }
    let config = Config::load(global.config.as_deref())?;
    let window_s = args.observe.window.unwrap_or(config.engine.window_s);
    let past = Past::new(global.history_dir(), args.at)?;
    match (args.at, past.seen()) {
        (Some(at_s), None) => return Err(nothing(global, Range { since_s: at_s, until_s: at_s })),
        (Some(_), Some(seen)) if args.once => return print(global, args, seen),
        _ => {}
    }
    if args.once {
        let seen = Source::open(&config, args, &global.state_dir, global.verbose)?
            .window(Duration::from_secs_f64(window_s))?;
        return print(global, args, seen);
    }
    if !std::io::stdout().is_terminal() {
        let why = "stdout is not a terminal";
        return Err(
            Failure::new(Exit::Usage, "cannot show a live view", why).hint("`homenode top --once` prints one window")
        );
    }
    let choices = Choices::new(args.sort, args.by, args.all, args.filter.clone(), window_s);
    let (args, state_dir, verbose) = (args.clone(), global.state_dir.clone(), global.verbose);
    live(move || Source::open(&config, &args, &state_dir, verbose), choices, past)
}

/// A window with the rows that are wanted.
fn print(global: &Global, args: &TopArgs, seen: Seen) -> Result<Exit, Failure> {
    let mut window = with_rows(seen.window, &seen.snapshot, args.by);
    model::sort(&mut window, args.sort, false);
    model::filter(&mut window, args.all, &args.filter);
    output::tell(global.json, &window, || text(&window, args.by))?;
    Ok(Exit::Done)
}

struct Source {
    plane: HostPlane,
    /// Knows the load of nodes.
    policy: Box<dyn Policy>,
    moves: LastMoves,
    volumes: Volumes,
    limits: Limits,
}

impl Source {
    fn open(config: &Config, args: &TopArgs, state_dir: &Path, verbose: u8) -> Result<Self, Failure> {
        let plane = plane::open(
            config,
            &args.observe,
            plane::looked_at(&args.observe.scope, config)?,
            Traits::default(),
            false,
        )?;
        plane::observe_only()?;
        Ok(Self {
            limits: Limits::of(plane.limits(), verbose),
            plane,
            policy: placement::policy("nthread", &config.nthread)
                .ok_or_else(|| Failure::new(Exit::Usage, "policy nthread", "there is none of this name"))?,
            moves: LastMoves::new(state_dir),
            volumes: Volumes::new(state_dir),
        })
    }

    fn window(&mut self, length: Duration) -> Result<Seen, Failure> {
        let snapshot: Snapshot = plane::observe(&mut self.plane, length)?;
        let plan = self.policy.decide(&snapshot.topology(), &snapshot);
        self.moves.refresh();
        let (volumes, mut journals): (_, Vec<_>) = self.volumes.now().into_iter().unzip();
        journals.insert(0, Arc::clone(&self.moves.lines));
        let cost = self.plane.cost();
        let mut window = Window { volumes, cost, ..Window::new(&snapshot, &plan, &self.limits) };
        self.moves.add_to(&mut window);
        Ok(Seen { window, snapshot, journals })
    }
}

/// One window, what it was made of, and the journals of the host and of each volume.
struct Seen {
    window: Window,
    snapshot: Snapshot,
    journals: Vec<Arc<[Line]>>,
}

fn with_rows(mut window: Window, snapshot: &Snapshot, by: By) -> Window {
    match by {
        By::Thread => {}
        By::Process => window.processes = Some(window::process_rows(&window.threads)),
        // A summary of the past has its own.
        By::Service if window.ended_unix_s.is_some() => {}
        By::Service => window.services = Some(window::service_rows(snapshot)),
    }
    window
}

/// One window as text, with such rows, and then those of the volumes.
fn text(window: &Window, by: By) -> String {
    let [heading, ..] = &window.headings;
    let mut text = format!("{}\n\n", escape(heading)) + &table(&NODE_COLUMNS, &window.nodes);
    if model::count(window, by) > 0 {
        text.push('\n');
        text.push_str(&match by {
            By::Thread => table(&THREAD_COLUMNS, &window.threads),
            By::Process => table(&PROCESS_COLUMNS, window.processes.as_deref().unwrap_or_default()),
            By::Service => table(&SERVICE_COLUMNS, window.services.as_deref().unwrap_or_default()),
        });
    }
    if !window.files.is_empty() {
        text.push('\n');
        text.push_str(&table(&FILE_COLUMNS, &window.files));
    }
    for copy in &window.copies {
        text.push_str(&format!("{}\n", escape(&copy.line())));
    }
    text.push_str(&output::notes(&window.shown_notes));
    for volume in &window.volumes {
        text.push('\n');
        text.push_str(&self::text(&Window::of_mount(volume), By::Thread));
    }
    if let Some(cost) = window.own_cost() {
        text.push_str(&format!("\n{cost}\n"));
    }
    text
}

fn table<R>(columns: &[Column<R>], rows: &[R]) -> String {
    let heads: Vec<_> = columns.iter().map(|c| c.head).collect();
    let mut table = Table::new(&heads);
    for row in rows {
        table.row(columns.iter().map(|c| (c.cell)(row)));
    }
    table.render()
}

fn live(
    open: impl FnOnce() -> Result<Source, Failure> + Send + 'static,
    mut choices: Choices,
    mut past: Past,
) -> Result<Exit, Failure> {
    let stop = Stop::or_killed()?;
    let watch = Watch::start(open, &choices)?;
    let mut terminal = ratatui::try_init().map_err(|e| {
        Failure::from_error(Exit::Io, "cannot use the terminal", &e).hint("`homenode top --once` needs none")
    })?;
    let ended =
        plane::observe_only().and_then(|()| draw_until_quit(&mut terminal, &watch, &mut choices, &mut past, &stop));
    // A terminal that is gone takes no more, and nobody sees what ratatui says of that: to the same
    // terminal, which is a panic.
    if ratatui::try_restore().is_err() || terminal.show_cursor().is_err() {
        std::mem::forget(terminal);
        return Ok(Exit::Done);
    }
    ended.map(|()| Exit::Done)
}

struct Watch {
    windows: Receiver<Result<Seen, Failure>>,
    window_ms: Arc<AtomicU64>,
    thread: thread::Thread,
}

impl Watch {
    /// Observes in a thread of its own (a plane stays where it was opened) until nobody listens.
    /// Returns when it is open.
    fn start(
        open: impl FnOnce() -> Result<Source, Failure> + Send + 'static,
        choices: &Choices,
    ) -> Result<Self, Failure> {
        let window_ms = Arc::new(AtomicU64::new(milliseconds(choices.window_s)));
        let length = Arc::clone(&window_ms);
        // A terminal that does not read takes none: the observer waits, instead of piling them up.
        let (send, windows) = mpsc::sync_channel(1);
        let (opened, is_open) = mpsc::channel();
        let observing = thread::spawn(move || {
            let mut source = match open() {
                Ok(source) => source,
                // The caller waits for this answer.
                Err(failure) => return drop(opened.send(Err(failure))),
            };
            let _ = opened.send(Ok(()));
            loop {
                let length = Duration::from_millis(length.load(Ordering::Relaxed));
                let window = source.window(length);
                let failed = window.is_err();
                if send.send(window).is_err() || failed {
                    return;
                }
            }
        });
        let gone = |_| Failure::new(Exit::Unsupported, "cannot observe", "the observing thread has ended");
        is_open.recv().map_err(gone)??;
        Ok(Self { windows, window_ms, thread: observing.thread().clone() })
    }

    /// From now on windows have the chosen length; the one under way ends if it has another.
    fn choose(&self, choices: &Choices) {
        let length = milliseconds(choices.window_s);
        if self.window_ms.swap(length, Ordering::Relaxed) != length {
            self.thread.unpark();
        }
    }
}

fn draw_until_quit(
    terminal: &mut ratatui::DefaultTerminal,
    watch: &Watch,
    choices: &mut Choices,
    past: &mut Past,
    stop: &Stop,
) -> Result<(), Failure> {
    let failure = |e: std::io::Error| Failure::from_error(Exit::Io, "cannot use the terminal", &e);
    let events = events().map_err(failure)?;
    let mut newest: Option<Seen> = None;
    let mut ended: Option<String> = None;
    let mut shares = VecDeque::new();
    let (mut page, mut rows, mut under) = (0, 0, None);
    let mut changed = true;
    while !stop.requested() && !choices.quit {
        match watch.windows.try_recv() {
            Ok(Ok(_)) if choices.paused => {}
            Ok(Ok(seen)) => {
                shares.truncate(MOST_SHARES - 1);
                shares.push_front(seen.window.remote_share);
                newest = Some(seen);
                changed = true;
            }
            Ok(Err(failure)) => {
                ended = Some(failure.to_string());
                changed = true;
            }
            // The observing thread has panicked, and ratatui's hook has given the terminal back.
            Err(TryRecvError::Disconnected) if ended.is_none() => {
                return Err(Failure::new(Exit::Unsupported, "cannot go on", "the observing thread has ended"));
            }
            Err(_) => {}
        }
        // Drawn only when there is something new: the view must cost less than what it shows.
        if std::mem::take(&mut changed) {
            let old = past.seen();
            let base = old.as_ref().or(newest.as_ref());
            let volumes = base.map_or(0, |seen| seen.window.volumes.len());
            let (place, by) = (choices.place(volumes), choices.rows_by(volumes));
            let shown = base.map(|seen| {
                let mut window = with_rows(choices.chosen(seen.window.clone()), &seen.snapshot, by);
                if choices.opened.is_none() {
                    model::filter(&mut window, choices.all, &choices.filter);
                }
                model::sort(&mut window, choices.sort, choices.reverse);
                window
            });
            let opened = choices.opened.as_ref().zip(base.zip(shown.as_ref()));
            let opened = opened.map(|((who, _), (seen, window))| detail::lines(who, window, seen, place));
            let height = terminal.size().map_err(failure)?.height;
            (page, rows) = match &opened {
                Some(lines) => (view::lines(height, shown.as_ref()), lines.len()),
                None => (view::page(height, shown.as_ref()), shown.as_ref().map_or(0, |w| model::count(w, by))),
            };
            match &mut choices.opened {
                Some((_, above)) => *above = (*above).min(rows.saturating_sub(page)),
                None => choices.follow(rows, page),
            }
            under = shown.as_ref().and_then(|window| Who::at(window, by, choices.selected));
            let (window, opened, ended) = (shown.as_ref(), opened.as_deref(), ended.as_deref());
            let picture = Picture { window, choices, volumes, opened, shares: &shares, ended };
            terminal.draw(|frame| view::draw(frame, &picture)).map_err(failure)?;
        }
        match events.recv_timeout(TICK) {
            Ok(event) => {
                if let Event::Key(key) = event.map_err(failure)? {
                    choices.key(key, rows, page, under.take());
                    watch.choose(choices);
                    if let Some(step) = choices.step.take() {
                        choices.said = past.step(step == Step::Back);
                    }
                }
                changed = true;
            }
            Err(RecvTimeoutError::Timeout) => {}
            // The terminal is gone, and nobody looks any more.
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
    Ok(())
}

/// What the user does, until the terminal is gone or nobody listens. crossterm reads a terminal
/// that is gone for ever, in the thread that asks, so this looks first, and leaves that thread to
/// itself.
fn events() -> std::io::Result<Receiver<std::io::Result<Event>>> {
    // As crossterm chooses it.
    let stdin = std::io::stdin();
    let terminal =
        if stdin.is_terminal() { stdin.as_fd().try_clone_to_owned()? } else { File::open("/dev/tty")?.into() };
    let (send, events) = mpsc::channel();
    thread::spawn(move || {
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        loop {
            let mut look = [PollFd::new(&terminal, PollFlags::IN)];
            // A signal ends the wait early: the terminal may have a new size.
            let _ = poll(&mut look, Some(&tick));
            if look[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
                return;
            }
            let next = || event::poll(Duration::ZERO)?.then(event::read).transpose();
            while let Some(event) = next().transpose() {
                if send.send(event).is_err() {
                    return;
                }
            }
        }
    });
    Ok(events)
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}
