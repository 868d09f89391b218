//! Draws the live view on a terminal of any size.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table};

use session::window::Window;

use super::keys::{Choices, HELP};
use super::model::{By, Column, FILE_COLUMNS, NODE_COLUMNS, PROCESS_COLUMNS, SERVICE_COLUMNS, THREAD_COLUMNS};
use crate::output::escape;

/// Columns between two columns of a table.
const GAP: u16 = 1;

pub struct Picture<'a> {
    /// The window, sorted and filtered; absent before the first has passed.
    pub window: Option<&'a Window>,
    pub choices: &'a Choices,
    pub volumes: usize,
    /// The lines of what is opened.
    pub opened: Option<&'a [String]>,
    /// Remote shares of the host, newest first.
    pub shares: &'a VecDeque<Option<f64>>,
    /// Why there will be no further window.
    pub ended: Option<&'a str>,
}

/// How many rows are seen at once in an area of this height.
pub fn page(height: u16, window: Option<&Window>) -> usize {
    let [_, _, _, _, rows, _, _] = areas(Rect::new(0, 0, 1, height), window);
    usize::from(rows.height.saturating_sub(1))
}

/// How many lines of what is opened are seen at once.
pub fn lines(height: u16, window: Option<&Window>) -> usize {
    usize::from(below_nodes(Rect::new(0, 0, 1, height), window).height)
}

/// From this height on there is a line for the sparkline and the cost.
const ROOMY: u16 = 16;

/// Title, shares, nodes, copies and volumes, rows, files, footer. Rows keep at least a third of the
/// height, but for files, which get at most a third of what is left.
fn areas(area: Rect, window: Option<&Window>) -> [Rect; 7] {
    let (nodes, copies, files) = window.map_or((0, 0, 0), |w| (w.nodes.len(), w.lines().len(), w.files.len()));
    let shares = u16::from(area.height >= ROOMY);
    let most = (area.height.saturating_sub(2 + shares) * 2 / 3).max(2);
    let lines = |n: usize, most: u16| u16::try_from(n).unwrap_or(u16::MAX).min(most);
    let nodes = lines(nodes + 2, most);
    let copies = lines(copies, most - nodes);
    let left = area.height.saturating_sub(2 + shares + nodes + copies);
    let files = if files == 0 { 0 } else { lines(files + 2, left / 3) };
    let [one, shares, nodes, copies, files] = [1, shares, nodes, copies, files].map(Constraint::Length);
    Layout::vertical([one, shares, nodes, copies, Constraint::Min(0), files, one]).areas(area)
}

/// Where what is opened is shown.
fn below_nodes(area: Rect, window: Option<&Window>) -> Rect {
    let [_, _, _, copies, rows, files, _] = areas(area, window);
    copies.union(rows).union(files)
}

pub fn draw(frame: &mut Frame<'_>, picture: &Picture<'_>) {
    let area = frame.area();
    let [title, shares, node_area, copy_area, row_area, file_area, footer] = areas(area, picture.window);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled(heading(picture.window, title.width), bold), title);
    if let Some(window) = picture.window {
        if picture.choices.place(picture.volumes) == 0 {
            head(frame, shares, window, picture.shares);
        }
        frame.render_widget(table(&NODE_COLUMNS, &window.nodes, node_area.width), node_area);
    }
    match (picture.window, picture.opened) {
        (Some(window), Some(lines)) => {
            let above = picture.choices.opened.as_ref().map_or(0, |(_, above)| *above);
            let lines: Vec<Line<'_>> = lines.iter().skip(above).map(|line| Line::raw(line.as_str())).collect();
            frame.render_widget(Text::from(lines), below_nodes(area, Some(window)));
        }
        (Some(window), None) => {
            let copies: Vec<Line<'_>> = window.lines().iter().map(|line| Line::raw(escape(line))).collect();
            frame.render_widget(Text::from(copies), copy_area);
            let (choices, width) = (picture.choices, row_area.width);
            let rows = match choices.rows_by(picture.volumes) {
                By::Thread => selectable(&THREAD_COLUMNS, &window.threads, choices, width),
                By::Process => {
                    selectable(&PROCESS_COLUMNS, window.processes.as_deref().unwrap_or_default(), choices, width)
                }
                By::Service => {
                    selectable(&SERVICE_COLUMNS, window.services.as_deref().unwrap_or_default(), choices, width)
                }
            };
            frame.render_widget(rows, row_area);
            frame.render_widget(table(&FILE_COLUMNS, &window.files, file_area.width), file_area);
        }
        (None, _) => {}
    }
    frame.render_widget(
        Line::styled(status(picture, footer.width), Style::new().add_modifier(Modifier::REVERSED)),
        footer,
    );
    if picture.choices.help {
        help(frame);
    }
}

/// The remote shares of the host in the last windows, and what `top` itself costs.
fn head(frame: &mut Frame<'_>, area: Rect, window: &Window, shares: &VecDeque<Option<f64>>) {
    let label = Line::raw("remote:");
    let cost = Line::raw(window.own_cost().unwrap_or_default());
    let [words, bars, own] = Layout::horizontal([
        Constraint::Length(label.width() as u16),
        Constraint::Fill(1),
        Constraint::Length(cost.width() as u16),
    ])
    .spacing(GAP)
    .areas(area);
    let last = shares.iter().take(bars.width.into()).rev();
    let percent = last.map(|share| share.map(|share| (share * 100.0).round() as u64));
    frame.render_widget(label, words);
    frame.render_widget(Sparkline::default().data(percent).max(100), bars);
    frame.render_widget(cost, own);
}

/// The rows from the first that is shown on, with the selected one in reverse.
fn selectable<'a, R>(columns: &[Column<R>], rows: &[R], choices: &Choices, width: u16) -> Table<'a> {
    let scroll = choices.scroll.min(rows.len());
    styled(columns, rows.get(scroll..).unwrap_or_default(), width, choices.selected.checked_sub(scroll))
}

/// The longest heading that fits.
fn heading(window: Option<&Window>, width: u16) -> &str {
    let Some(window) = window else { return "the first window is on its way" };
    let fits = |text: &&String| text.chars().count() <= usize::from(width);
    window.headings.iter().find(fits).or(window.headings.last()).map_or("", |text| text)
}

fn status(picture: &Picture<'_>, width: u16) -> String {
    let choices = picture.choices;
    if let Some(why) = picture.ended {
        return format!(" {why} · q quit ");
    }
    if picture.opened.is_some() {
        return " Enter, Esc back · arrows, pages scroll · ? help · q quit ".to_owned();
    }
    if choices.typing {
        return format!(" filter: {}▏ Enter keep · Esc clear ", escape(&choices.filter));
    }
    if let Some(why) = &choices.said {
        return format!(" {} ", escape(why));
    }
    let mut parts = Vec::new();
    if choices.paused {
        parts.push("paused".to_owned());
    }
    match choices.rows_by(picture.volumes) {
        By::Thread => {}
        By::Process => parts.push("processes".to_owned()),
        By::Service => parts.push("services".to_owned()),
    }
    parts.push(format!("sort {}{}", name(choices.sort), if choices.reverse { ", reversed" } else { "" }));
    if !choices.filter.is_empty() {
        parts.push(format!("filter {}", escape(&choices.filter)));
    }
    parts.push(format!("window {} s", choices.window_s));
    if picture.volumes > 0 {
        parts.push("Tab volumes".to_owned());
    }
    parts.push("? help".to_owned());
    parts.push("q quit".to_owned());
    // A small terminal needs the list of keys most.
    while parts.len() > 2 && parts.iter().map(|p| p.chars().count() + 3).sum::<usize>() > usize::from(width) {
        parts.remove(parts.len() - 3);
    }
    format!(" {} ", parts.join(" · "))
}

fn name(sort: super::model::Sort) -> String {
    use clap::ValueEnum;
    sort.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

fn table<'a, R>(columns: &[Column<R>], rows: &[R], width: u16) -> Table<'a> {
    styled(columns, rows, width, None)
}

fn styled<'a, R>(columns: &[Column<R>], rows: &[R], width: u16, selected: Option<usize>) -> Table<'a> {
    let columns = fitting(columns, width);
    let cell = |text: String, head: &str| {
        let side = if head.starts_with('>') { Alignment::Right } else { Alignment::Left };
        Cell::from(Text::from(text).alignment(side))
    };
    let heads = columns.iter().map(|c| cell(c.head.trim_start_matches('>').to_owned(), c.head));
    let heads = Row::new(heads.collect::<Vec<_>>()).style(Style::new().add_modifier(Modifier::BOLD | Modifier::DIM));
    let body = rows.iter().enumerate().map(|(n, row)| {
        let row = Row::new(columns.iter().map(|c| cell(escape(&(c.cell)(row)), c.head)).collect::<Vec<_>>());
        if selected == Some(n) { row.style(Style::new().add_modifier(Modifier::REVERSED)) } else { row }
    });
    let last = columns.len().saturating_sub(1);
    let widths = columns.iter().enumerate().map(|(i, c)| match i == last && !c.head.starts_with('>') {
        true => Constraint::Min(c.width),
        false => Constraint::Length(c.width),
    });
    Table::new(body.collect::<Vec<_>>(), widths.collect::<Vec<_>>()).header(heads).column_spacing(GAP)
}

/// The columns that fit: the most expendable go first.
fn fitting<R>(columns: &[Column<R>], width: u16) -> Vec<&Column<R>> {
    let mut fitting: Vec<_> = columns.iter().collect();
    while fitting.iter().map(|c| c.width + GAP).sum::<u16>() > width + GAP {
        let Some(worst) = fitting.iter().enumerate().max_by_key(|(_, c)| c.expendable).map(|(i, _)| i) else { break };
        if fitting.len() == 1 {
            break;
        }
        fitting.remove(worst);
    }
    fitting
}

fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let lines: Vec<_> = HELP.iter().map(|(keys, what)| Line::from(format!("{keys:<15} {what}"))).collect();
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let width = 70.min(area.width);
    let area = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), area);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chrono::Local;
    use engine::journal;
    use placement::{FileUse, NodeLoad, ObservedFile, Plan, Snapshot, Thread, testing};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::{By, Sort, Who, sort};
    use super::super::{Seen, detail, with_rows};
    use super::*;
    use crate::commands::explain;
    use crate::output::limits::Limits;
    use session::window::{FileRow, Mounted, Rates, ServiceRow, ThreadRow};
    use topology::{NodeBytes, NodeId};

    /// Two nodes and three threads, one with a control character in its name.
    fn snapshot() -> Snapshot {
        let thread = |tid: u32, comm: &str, read_mb: u64| Thread {
            pid: 100,
            comm: comm.to_owned(),
            start_ns: None,
            cpu_s: 0.8,
            write_bytes: [(NodeId(1), 2000)].into_iter().collect(),
            ..testing::thread(tid, 1, &[(0, read_mb), (1, 1)], 0)
        };
        let node = |id: u32| NodeLoad { read_bytes: 300_000_000, memory_free: 8_000_000_000, ..testing::node(id, 1) };
        let threads = vec![thread(101, "rocksdb:low3", 300), thread(102, "postgres", 0), thread(103, "a\u{1b}b", 5)];
        let mut snapshot = testing::snapshot(vec![node(0), node(1)], threads);
        for (thread, path) in snapshot.threads.iter_mut().zip(["/db/a\u{1b}b", "/db/c"]) {
            let file = testing::file(u64::from(thread.tid));
            let read_bytes = thread.read_bytes.clone();
            thread.group = Some("/system.slice/db.service".into());
            thread.files = vec![FileUse { file, read_bytes, ..FileUse::default() }];
            let bytes = [(NodeId(0), 4 << 20)].into_iter().collect();
            snapshot.files.push(ObservedFile { file, path: Some(path.to_owned()), bytes, ..ObservedFile::default() });
        }
        snapshot
    }

    fn journals() -> Vec<Arc<[journal::Line]>> {
        let lines = [
            r#"{"time":1.0,"tid":101,"pid":100,"comm":"rocksdb:low3","event":"moved","from":0,"to":1,"reason":"read_locality","why":"once"}"#,
            r#"{"time":2.0,"tid":9,"pid":9,"comm":"other","event":"moved","from":0,"to":1,"reason":"read_locality","why":"another"}"#,
            r#"{"time":3.0,"tid":101,"pid":100,"comm":"rocksdb:low3","event":"undone","result":"restored","affinity":"0-3","occasion":"on exit"}"#,
            r#"{"time":4.0,"tid":102,"pid":100,"comm":"post\u001bgres","event":"gone"}"#,
        ];
        let entries = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        vec![journal::history(entries).into()]
    }

    fn window() -> Window {
        let snapshot = snapshot();
        let plan: Plan = placement::policy("nthread", &placement::nthread::Settings::default())
            .unwrap()
            .decide(&snapshot.topology(), &snapshot);
        let mut window = Window::new(&snapshot, &plan, &Limits::recorded(0));
        window.threads[0].rule = Some("db".into());
        window.threads[0].last_move = Some("10:02:31 0 → 1".to_owned());
        window.cost = Some(engine::Cost { cpu: 0.0042, memory_bytes: 31 << 20 });
        sort(&mut window, Sort::Remote, false);
        window
    }

    fn screen(width: u16, height: u16, change: impl FnOnce(&mut Choices)) -> String {
        screen_of(window(), width, height, change)
    }

    fn screen_of(window: Window, width: u16, height: u16, change: impl FnOnce(&mut Choices)) -> String {
        let mut choices = Choices::new(Sort::Remote, By::Thread, false, String::new(), 1.0);
        change(&mut choices);
        let seen = Seen { window, snapshot: snapshot(), journals: journals() };
        let volumes = seen.window.volumes.len();
        let (place, by) = (choices.place(volumes), choices.rows_by(volumes));
        let mut window = with_rows(choices.chosen(seen.window.clone()), &seen.snapshot, by);
        sort(&mut window, Sort::Remote, false);
        let opened = choices.opened.as_ref().map(|(who, _)| detail::lines(who, &window, &seen, place));
        let shares = [Some(0.5), Some(0.75), None, Some(1.0), Some(0.0)].into();
        let (window, opened) = (Some(&window), opened.as_deref());
        let picture = Picture { window, choices: &choices, volumes, opened, shares: &shares, ended: None };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &picture)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let rows = buffer.content().chunks(usize::from(width));
        let line = |row: &[ratatui::buffer::Cell]| {
            row.iter().map(|c| c.symbol()).collect::<String>().trim_end().to_owned() + "\n"
        };
        let text: String = rows.map(line).collect();
        // The time of the first event, wherever this runs.
        text.replace(explain::time(0.0, Local::now()).trim_end_matches('0'), "DAY TIME 0")
    }

    #[test]
    fn wide() {
        insta::assert_snapshot!(screen(120, 12, |_| ()));
    }

    #[test]
    fn eighty_by_twenty_four() {
        insta::assert_snapshot!(screen(80, 24, |_| ()));
    }

    #[test]
    fn forty_by_ten() {
        insta::assert_snapshot!(screen(40, 10, |_| ()));
    }

    #[test]
    fn help_covers_the_middle() {
        insta::assert_snapshot!(screen(80, 24, |c| c.help = true));
    }

    #[test]
    fn services_are_shown_in_the_place_of_threads() {
        let service = |service: &str, read_bytes_per_s| ServiceRow {
            service: service.to_owned(),
            processes: 2,
            threads: 17,
            nodes: vec![NodeId(0), NodeId(1)],
            rules: ["batch".into(), "db".into()].into(),
            rates: Rates {
                remote_share: Some(0.5),
                remote_bytes_per_s: read_bytes_per_s / 2.0,
                read_bytes_per_s,
                write_bytes_per_s: 1e6,
            },
            could_be_local_share: Some(0.25),
            cpu: 1.5,
        };
        let mut window = window();
        let services =
            [service("postgresql.service", 2e9), service("", 1e6), service("user@7.service/a\u{1b}.scope", 3e9)];
        window.services = Some(services.into());
        sort(&mut window, Sort::Remote, false);
        insta::assert_snapshot!(screen_of(window, 120, 12, |c| c.by = By::Service));
    }

    #[test]
    fn processes_fold_their_threads() {
        insta::assert_snapshot!(screen(80, 12, |c| c.by = By::Process));
    }

    #[test]
    fn a_thread_is_opened_with_its_files_and_moves() {
        let who = Who::Thread { tid: 101, start_ns: None, comm: "rocksdb:low3".to_owned() };
        insta::assert_snapshot!(screen(100, 20, |c| c.opened = Some((who, 0))));
    }

    /// With those of all its threads.
    #[test]
    fn a_service_and_a_process_are_opened_alike() {
        let of = |who: Who| screen(100, 24, |c| c.opened = Some((who, 0)));
        let service = of(Who::Service("db.service".to_owned()));
        insta::assert_snapshot!(service);
        let process = of(Who::Process { pid: 100, comm: "rocksdb:low3".to_owned() });
        let below = |screen: &str| screen.lines().skip(6).map(str::to_owned).collect::<Vec<_>>();
        assert!(below(&process).iter().any(|line| line.contains("/db/c")), "{process}");
        assert!(!process.contains("(tid 9)") && !service.contains("(tid 9)"));
    }

    #[test]
    fn what_is_gone_or_of_a_volume_says_so() {
        let who = || Who::Thread { tid: 7, start_ns: None, comm: "gone".to_owned() };
        let gone = screen(100, 20, |c| c.opened = Some((who(), 0)));
        assert!(gone.contains("no thread of it touched file data") && gone.contains("no moves"), "{gone}");
        let volume = screen_of(with_a_volume(window()), 100, 20, |c| (c.shown, c.opened) = (1, Some((who(), 0))));
        assert!(volume.contains("only the server of the volume knows"), "{volume}");
    }

    #[test]
    fn the_selected_row_is_seen_wherever_it_is() {
        let screen = screen(80, 8, |c| (c.selected, c.scroll) = (2, 2));
        assert!(!screen.contains("rocksdb") && screen.contains("postgres"), "{screen}");
    }

    #[test]
    fn a_volume_has_a_line_beside_the_host_and_tab_shows_it() {
        let screen = |shown: usize| {
            screen_of(with_a_volume(window()), 100, 16, |choices| (choices.shown, choices.all) = (shown, true))
        };
        insta::assert_snapshot!("beside_a_volume", screen(0));
        insta::assert_snapshot!("a_volume", screen(1));
        assert_eq!(screen(2), screen(0));
    }

    fn with_a_volume(host: Window) -> Window {
        let threads = vec![ThreadRow { last_move: Some("10:02:31 1 → 0".to_owned()), ..host.threads[1].clone() }];
        let file = FileRow {
            file: topology::FileId { dev: 41, ino: 4, generation: 0 },
            path: Some("/data/of/a/very/long/path/to/a/17.sst".to_owned()),
            bytes: [(topology::NodeId(0), 4 << 20), (topology::NodeId(1), 1 << 16)].into_iter().collect(),
            read: NodeBytes::default(),
            threads: 1,
            rates: Rates {
                remote_share: Some(0.25),
                remote_bytes_per_s: 1e6,
                read_bytes_per_s: 4e6,
                write_bytes_per_s: 2e6,
            },
        };
        let (mount, policy) = ("/data".into(), "nthread".to_owned());
        let emulated = Some("emulated optane, scale 200".to_owned());
        let window =
            Window { remote_share: Some(0.25), nodes: host.nodes.clone(), threads, files: vec![file], ..host.clone() };
        Window {
            volumes: vec![Mounted { version: 1, mount, pid: 7, policy, emulated, age_s: 0.5, written: None, window }],
            ..host
        }
    }

    #[test]
    fn no_size_is_too_small() {
        for width in 1..12 {
            for height in 1..12 {
                screen(width, height, |c| c.help = height % 2 == 0);
                screen_of(with_a_volume(window()), width, height, |c| c.shown = 1);
                let who = Who::Service("db.service".to_owned());
                screen(width, height, |c| (c.opened, c.selected) = (Some((who, 3)), 2));
            }
        }
    }
}
