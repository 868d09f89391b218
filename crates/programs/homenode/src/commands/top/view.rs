//! Draws the live view on a terminal of any size.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table};

use session::window::Window;

use super::keys::{Choices, HELP};
use super::model::{Column, FILE_COLUMNS, NODE_COLUMNS, SERVICE_COLUMNS, THREAD_COLUMNS};
use crate::output::escape;

/// Columns between two columns of a table.
const GAP: u16 = 1;

pub struct Picture<'a> {
    /// The window, sorted and filtered; absent before the first has passed.
    pub window: Option<&'a Window>,
    pub choices: &'a Choices,
    pub volumes: usize,
    /// Why there will be no further window.
    pub ended: Option<&'a str>,
}

/// How many threads are seen at once in an area of this height.
pub fn page(height: u16, window: Option<&Window>) -> usize {
    let [_, _, _, threads, _, _] = rows(Rect::new(0, 0, 1, height), window);
    usize::from(threads.height.saturating_sub(1))
}

/// Title, nodes, copies and volumes, threads, files, footer. Threads keep at least a third of the
/// height, but for files, which get at most a third of what is left.
fn rows(area: Rect, window: Option<&Window>) -> [Rect; 6] {
    let (nodes, copies, files) = window.map_or((0, 0, 0), |w| (w.nodes.len(), w.lines().len(), w.files.len()));
    let most = (area.height.saturating_sub(2) * 2 / 3).max(2);
    let lines = |n: usize, most: u16| u16::try_from(n).unwrap_or(u16::MAX).min(most);
    let nodes = lines(nodes + 2, most);
    let copies = lines(copies, most - nodes);
    let left = area.height.saturating_sub(2 + nodes + copies);
    let files = if files == 0 { 0 } else { lines(files + 2, left / 3) };
    let [one, nodes, copies, files] = [1, nodes, copies, files].map(Constraint::Length);
    Layout::vertical([one, nodes, copies, Constraint::Min(0), files, one]).areas(area)
}

pub fn draw(frame: &mut Frame<'_>, picture: &Picture<'_>) {
    let [title, node_area, copy_area, thread_area, file_area, footer] = rows(frame.area(), picture.window);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled(heading(picture.window, title.width), bold), title);
    if let Some(window) = picture.window {
        frame.render_widget(table(&NODE_COLUMNS, &window.nodes, node_area.width), node_area);
        let copies: Vec<Line<'_>> = window.lines().iter().map(|line| Line::raw(escape(line))).collect();
        frame.render_widget(Text::from(copies), copy_area);
        let (scroll, width) = (picture.choices.scroll, thread_area.width);
        let rows = match picture.choices.shows_services(picture.volumes) {
            // Those of the first window are still to come.
            true => table(&SERVICE_COLUMNS, from(window.services.as_deref().unwrap_or_default(), scroll), width),
            false => table(&THREAD_COLUMNS, from(&window.threads, scroll), width),
        };
        frame.render_widget(rows, thread_area);
        frame.render_widget(table(&FILE_COLUMNS, &window.files, file_area.width), file_area);
    }
    frame.render_widget(
        Line::styled(status(picture, footer.width), Style::new().add_modifier(Modifier::REVERSED)),
        footer,
    );
    if picture.choices.help {
        help(frame);
    }
}

/// The rows that are left after so many.
fn from<R>(rows: &[R], scroll: usize) -> &[R] {
    rows.get(scroll.min(rows.len())..).unwrap_or_default()
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
    if choices.typing {
        return format!(" filter: {}▏ Enter keep · Esc clear ", escape(&choices.filter));
    }
    let mut parts = Vec::new();
    if choices.paused {
        parts.push("paused".to_owned());
    }
    if choices.shows_services(picture.volumes) {
        parts.push("services".to_owned());
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
    let columns = fitting(columns, width);
    let cell = |text: String, head: &str| {
        let side = if head.starts_with('>') { Alignment::Right } else { Alignment::Left };
        Cell::from(Text::from(text).alignment(side))
    };
    let heads = columns.iter().map(|c| cell(c.head.trim_start_matches('>').to_owned(), c.head));
    let heads = Row::new(heads.collect::<Vec<_>>()).style(Style::new().add_modifier(Modifier::BOLD | Modifier::DIM));
    let body = rows
        .iter()
        .map(|row| Row::new(columns.iter().map(|c| cell(escape(&(c.cell)(row)), c.head)).collect::<Vec<_>>()));
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
    use placement::{NodeLoad, Plan, Thread, testing};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::{By, Sort};
    use super::*;
    use crate::commands::top::model::sort;
    use crate::output::limits::Limits;
    use session::window::{FileRow, Mounted, Rates, ServiceRow, ThreadRow};
    use topology::NodeId;

    /// Two nodes and three threads, one with a control character in its name.
    fn window() -> Window {
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
        let snapshot = testing::snapshot(vec![node(0), node(1)], threads);
        let plan: Plan = placement::policy("nthread", &placement::nthread::Settings::default())
            .unwrap()
            .decide(&snapshot.topology(), &snapshot);
        let mut window = Window::new(&snapshot, &plan, &Limits::recorded(0));
        window.threads[0].rule = Some("db".into());
        window.threads[0].last_move = Some("10:02:31 0 → 1".to_owned());
        sort(&mut window, Sort::Remote, false);
        window
    }

    fn screen(width: u16, height: u16, change: impl FnOnce(&mut Choices)) -> String {
        screen_of(window(), width, height, change)
    }

    fn screen_of(window: Window, width: u16, height: u16, change: impl FnOnce(&mut Choices)) -> String {
        let mut choices = Choices::new(Sort::Remote, By::Thread, false, String::new(), 1.0);
        change(&mut choices);
        let volumes = window.volumes.len();
        let window = choices.chosen(window);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| draw(frame, &Picture { window: Some(&window), choices: &choices, volumes, ended: None }))
            .unwrap();
        let buffer = terminal.backend().buffer().clone();
        let rows = buffer.content().chunks(usize::from(width));
        rows.map(|row| row.iter().map(|c| c.symbol()).collect::<String>().trim_end().to_owned() + "\n").collect()
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
        insta::assert_snapshot!(screen_of(window, 120, 12, |c| c.services = true));
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
            }
        }
    }
}
