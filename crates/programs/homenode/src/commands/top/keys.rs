//! The keys of the live view, apart from the terminal.

use clap::ValueEnum;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use session::window::Window;

use super::model::{By, Sort, Who};

/// Window lengths that `+` and `-` choose from, in seconds.
const WINDOWS: [f64; 8] = [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    pub sort: Sort,
    /// The smallest value is on top.
    pub reverse: bool,
    /// Also show threads that touched no file data.
    pub all: bool,
    /// Show only threads whose name or id contains this.
    pub filter: String,
    /// Whether `filter` is being typed.
    pub typing: bool,
    /// What a row is.
    pub by: By,
    pub paused: bool,
    pub help: bool,
    /// The row that Enter opens.
    pub selected: usize,
    /// Number of rows above the first one shown.
    pub scroll: usize,
    /// What is looked at alone, and the number of its lines above the first one shown.
    pub opened: Option<(Who, usize)>,
    /// What is shown: 0 is the host, then the volumes, round and round.
    pub shown: usize,
    /// Window length, seconds.
    pub window_s: f64,
    pub quit: bool,
    /// Go to the summary before this one, or after.
    pub step: Option<Step>,
    /// Why that could not be.
    pub said: Option<String>,
}

/// In time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Back,
    On,
}

/// The help: keys and their effects.
pub const HELP: [(&str, &str); 14] = [
    ("q, Ctrl-C", "quit"),
    ("?", "this help"),
    ("p, space", "pause, continue"),
    ("s, S", "sort by the next, the previous column"),
    ("r", "reverse the order"),
    ("/", "filter by name, tid or pid; Enter keeps, Esc clears"),
    ("Tab", "the next mounted volume, then the host again"),
    ("Enter", "files and last moves of the selected row; again: back"),
    ("u", "threads, processes, services in turn"),
    ("a", "also show threads that touched no file data"),
    ("+, -", "longer, shorter window"),
    ("up, down, pages", "select a row, as do Home and End"),
    ("left, right", "back in the history of `homenode run`, and on to now"),
    ("", "remote: share of file bytes read from another node"),
];

impl Choices {
    /// The choices of the command line.
    pub fn new(sort: Sort, by: By, all: bool, filter: String, window_s: f64) -> Self {
        Self { sort, by, all, filter, window_s, ..Self::default() }
    }

    /// Which of the host (0) and the volumes (from 1) is to be shown.
    pub fn place(&self, volumes: usize) -> usize {
        self.shown % (volumes + 1)
    }

    /// The window of the host or the volume that is to be shown.
    pub fn chosen(&self, host: Window) -> Window {
        let volume = self.place(host.volumes.len()).checked_sub(1);
        volume.and_then(|i| host.volumes.get(i)).map(Window::of_mount).unwrap_or(host)
    }

    /// What a row is: services are known of the host only.
    pub fn rows_by(&self, volumes: usize) -> By {
        if self.by == By::Service && self.place(volumes) > 0 { By::Thread } else { self.by }
    }

    /// Takes one key. `rows` is how many rows there are, or lines of what is opened, `page` how
    /// many are seen at once, and `under` what is selected.
    pub fn key(&mut self, key: KeyEvent, rows: usize, page: usize, under: Option<Who>) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        self.said = None;
        let was_open = self.opened.is_some();
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => self.quit = true,
            _ if self.typing => self.type_filter(key.code),
            _ if self.help => self.help = false,
            KeyCode::Char('q') => self.quit = true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('+' | '=') => self.window_s = longer(self.window_s),
            KeyCode::Char('-') => self.window_s = shorter(self.window_s),
            KeyCode::Char('s') => self.sort_next(1),
            KeyCode::Char('S') => self.sort_next(Sort::value_variants().len() - 1),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Left => self.step = Some(Step::Back),
            KeyCode::Right => self.step = Some(Step::On),
            KeyCode::Enter | KeyCode::Esc if self.opened.is_some() => self.opened = None,
            code => {
                if let Some((_, above)) = &mut self.opened {
                    *above = turned(code, *above, rows, page).min(rows.saturating_sub(page));
                    return;
                }
                match code {
                    KeyCode::Enter => self.opened = under.map(|who| (who, 0)),
                    KeyCode::Char('a') => self.all = !self.all,
                    KeyCode::Char('u') => (self.by, self.selected) = (next(self.by), 0),
                    KeyCode::Char('/') => self.typing = true,
                    KeyCode::Tab => (self.shown, self.selected) = (self.shown + 1, 0),
                    KeyCode::Esc => self.filter.clear(),
                    code => self.selected = turned(code, self.selected, rows, page),
                }
            }
        }
        if !was_open {
            self.follow(rows, page);
        }
    }

    /// Keeps the selected row among the rows, and what is shown around it.
    pub fn follow(&mut self, rows: usize, page: usize) {
        self.selected = self.selected.min(rows.saturating_sub(1));
        let scroll = self.scroll.min(rows.saturating_sub(page)).max((self.selected + 1).saturating_sub(page));
        self.scroll = scroll.min(self.selected);
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.selected = 0;
    }

    fn sort_next(&mut self, step: usize) {
        let all = Sort::value_variants();
        self.sort = after(all, self.sort, step);
    }
}

fn next(by: By) -> By {
    after(By::value_variants(), by, 1)
}

/// The one that stands so far after it, round and round.
fn after<T: Copy + PartialEq>(all: &[T], one: T, step: usize) -> T {
    let at = all.iter().position(|other| *other == one).unwrap_or_default();
    all.get((at + step) % all.len().max(1)).copied().unwrap_or(one)
}

/// Where a key leads among so many rows.
fn turned(key: KeyCode, at: usize, rows: usize, page: usize) -> usize {
    match key {
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => at + 1,
        KeyCode::PageUp => at.saturating_sub(page),
        KeyCode::PageDown => at + page,
        KeyCode::Home => 0,
        KeyCode::End => rows,
        _ => at,
    }
}

fn longer(window_s: f64) -> f64 {
    WINDOWS.into_iter().find(|w| *w > window_s).unwrap_or(window_s)
}

fn shorter(window_s: f64) -> f64 {
    WINDOWS.into_iter().rev().find(|w| *w < window_s).unwrap_or(window_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices() -> Choices {
        Choices::new(Sort::Remote, By::Thread, false, String::new(), 1.0)
    }

    fn press(choices: &mut Choices, keys: &str) {
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                c => KeyCode::Char(c),
            };
            choices.key(KeyEvent::from(code), 100, 10, Some(Who::Service("db".to_owned())));
        }
    }

    #[test]
    fn a_filter_is_typed_kept_and_cleared() {
        let mut c = choices();
        press(&mut c, "/q?s\n");
        assert_eq!((c.filter.as_str(), c.typing, c.quit, c.help, c.sort), ("q?s", false, false, false, Sort::Remote));
        press(&mut c, "\u{1b}");
        assert_eq!(c.filter, "");
        press(&mut c, "/x\u{1b}");
        assert_eq!((c.filter.as_str(), c.typing), ("", false));
    }

    #[test]
    fn any_key_ends_help_and_does_nothing_else() {
        let mut c = choices();
        press(&mut c, "?q");
        assert!(!c.help && !c.quit);
        press(&mut c, "q");
        assert!(c.quit);
    }

    #[test]
    fn control_c_ends_even_while_typing() {
        let mut c = choices();
        press(&mut c, "/");
        c.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), 0, 0, None);
        assert!(c.quit);
    }

    #[test]
    fn arrows_go_back_and_on_in_time() {
        let mut c = choices();
        c.said = Some("no earlier history".to_owned());
        press(&mut c, "\n");
        c.key(KeyEvent::from(KeyCode::Left), 100, 10, None);
        assert_eq!((c.step.take(), c.said.as_deref(), c.opened.is_some()), (Some(Step::Back), None, true));
        c.key(KeyEvent::from(KeyCode::Right), 100, 10, None);
        assert_eq!(c.step, Some(Step::On));
    }

    #[test]
    fn threads_processes_and_services_come_in_turn() {
        let mut c = choices();
        c.selected = 5;
        press(&mut c, "u");
        assert_eq!((c.by, c.selected), (By::Process, 0));
        press(&mut c, "u");
        assert_eq!((c.rows_by(0), c.rows_by(1)), (By::Service, By::Service));
        // Nobody knows the services of a volume.
        c.shown = 1;
        assert_eq!(c.rows_by(1), By::Thread);
        press(&mut c, "/u\nu");
        assert_eq!((c.by, c.filter.as_str()), (By::Thread, "u"));
    }

    #[test]
    fn enter_opens_what_is_selected_and_esc_goes_back_to_it() {
        let mut c = choices();
        c.key(KeyEvent::from(KeyCode::Enter), 0, 10, None);
        assert_eq!(c.opened, None);
        press(&mut c, "/x\njj\n");
        assert_eq!(c.opened, Some((Who::Service("db".to_owned()), 0)));
        press(&mut c, "jjju/");
        assert_eq!((c.opened.as_ref().unwrap().1, c.selected, c.by, c.typing), (3, 2, By::Thread, false));
        press(&mut c, "\u{1b}");
        assert_eq!((&c.opened, c.selected, c.filter.as_str()), (&None, 2, "x"));
        press(&mut c, "\n\n");
        assert_eq!(c.opened, None);
        // Whatever number of lines was opened.
        press(&mut c, "\n");
        c.key(KeyEvent::from(KeyCode::Esc), 1, 10, None);
        assert_eq!((&c.opened, c.selected), (&None, 2));
    }

    #[test]
    fn sorting_goes_round_in_both_directions() {
        let mut c = choices();
        press(&mut c, "S");
        assert_eq!(c.sort, Sort::Name);
        press(&mut c, "sss");
        assert_eq!(c.sort, Sort::Bytes);
    }

    #[test]
    fn selection_and_windows_stay_within_bounds() {
        let mut c = choices();
        let mut at = |key, rows| {
            c.key(KeyEvent::from(key), rows, 10, None);
            (c.selected, c.scroll)
        };
        assert_eq!(at(KeyCode::Up, 100), (0, 0));
        assert_eq!(at(KeyCode::End, 100), (99, 90));
        assert_eq!(at(KeyCode::Up, 100), (98, 90));
        assert_eq!(at(KeyCode::PageUp, 100), (88, 88));
        assert_eq!(at(KeyCode::PageDown, 100), (98, 89));
        assert_eq!(at(KeyCode::Down, 5), (4, 0)); // rows have gone
        assert_eq!(at(KeyCode::Home, 0), (0, 0));
        press(&mut c, "++++++++++");
        assert_eq!(c.window_s, 60.0);
        press(&mut c, "----------");
        assert_eq!(c.window_s, 0.2);
    }
}
