//! The keys of the live view, apart from the terminal.

use clap::ValueEnum;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use session::window::Window;

use super::model::{By, Sort};

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
    /// Services are shown in the place of threads.
    pub services: bool,
    /// The display stands still.
    pub paused: bool,
    pub help: bool,
    /// Number of threads above the first one shown.
    pub scroll: usize,
    /// What is shown: 0 is the host, then the volumes, round and round.
    pub shown: usize,
    /// Window length, seconds.
    pub window_s: f64,
    pub quit: bool,
}

/// The help: keys and their effects.
pub const HELP: [(&str, &str); 12] = [
    ("q, Ctrl-C", "quit"),
    ("?", "this help"),
    ("p, space", "pause, continue"),
    ("s, S", "sort by the next, the previous column"),
    ("r", "reverse the order"),
    ("/", "filter by name, tid or pid; Enter keeps, Esc clears"),
    ("Tab", "the next mounted volume, then the host again"),
    ("u", "services in the place of threads, and back"),
    ("a", "also show threads that touched no file data"),
    ("+, -", "longer, shorter window"),
    ("arrows, pages", "scroll, as do Home and End"),
    ("", "remote: share of file bytes read from another node"),
];

impl Choices {
    /// The choices of the command line.
    pub fn new(sort: Sort, by: By, all: bool, filter: String, window_s: f64) -> Self {
        Self { sort, services: by == By::Service, all, filter, window_s, ..Self::default() }
    }

    /// The window of the host or the volume that is to be shown.
    pub fn chosen(&self, host: Window) -> Window {
        let volume = (self.shown % (host.volumes.len() + 1)).checked_sub(1);
        volume.and_then(|i| host.volumes.get(i)).map(Window::of_mount).unwrap_or(host)
    }

    /// Whether services are shown: they are known of the host only.
    pub fn shows_services(&self, volumes: usize) -> bool {
        self.services && self.shown.is_multiple_of(volumes + 1)
    }

    /// Takes one key. `threads` is how many rows there are to scroll over, `page` how many are seen
    /// at once.
    pub fn key(&mut self, key: KeyEvent, threads: usize, page: usize) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => self.quit = true,
            _ if self.typing => self.type_filter(key.code),
            _ if self.help => self.help = false,
            KeyCode::Char('q') => self.quit = true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => self.sort_next(1),
            KeyCode::Char('S') => self.sort_next(Sort::value_variants().len() - 1),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('a') => self.all = !self.all,
            KeyCode::Char('u') => (self.services, self.scroll) = (!self.services, 0),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('+' | '=') => self.window_s = longer(self.window_s),
            KeyCode::Char('-') => self.window_s = shorter(self.window_s),
            KeyCode::Tab => {
                self.shown += 1;
                self.scroll = 0;
            }
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(page),
            KeyCode::PageDown => self.scroll += page,
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = threads,
            _ => {}
        }
        self.scroll = self.scroll.min(threads.saturating_sub(page));
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
        self.scroll = 0;
    }

    fn sort_next(&mut self, step: usize) {
        let all = Sort::value_variants();
        let at = all.iter().position(|sort| *sort == self.sort).unwrap_or_default();
        self.sort = all.get((at + step) % all.len()).copied().unwrap_or(self.sort);
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
            choices.key(KeyEvent::from(code), 100, 10);
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
        c.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), 0, 0);
        assert!(c.quit);
    }

    #[test]
    fn services_take_the_place_of_threads_and_go_again() {
        let mut c = choices();
        c.scroll = 5;
        press(&mut c, "u");
        assert_eq!((c.services, c.scroll), (true, 0));
        press(&mut c, "/u\nu");
        assert_eq!((c.services, c.filter.as_str()), (false, "u"));
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
    fn scrolling_and_windows_stay_within_bounds() {
        let mut c = choices();
        c.key(KeyEvent::from(KeyCode::Up), 100, 10);
        assert_eq!(c.scroll, 0);
        c.key(KeyEvent::from(KeyCode::End), 100, 10);
        assert_eq!(c.scroll, 90);
        c.key(KeyEvent::from(KeyCode::Down), 5, 10); // threads have gone
        assert_eq!(c.scroll, 0);
        press(&mut c, "++++++++++");
        assert_eq!(c.window_s, 60.0);
        press(&mut c, "----------");
        assert_eq!(c.window_s, 0.2);
    }
}
