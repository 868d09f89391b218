//! The limits of an observation in one line. `doctor`, `-v` and JSON list them in full.

use super::units::count;

/// More notes than this about a recorded window are counted.
const FEW: usize = 2;

/// How much to print of a window's notes.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The kernel's limits, which all windows share; `None` if they cannot be told from other
    /// notes.
    kernel: Option<Vec<String>>,
    all: bool,
}

impl Limits {
    /// For a host whose kernel has these limits. With `-v`, each is printed.
    pub fn of(kernel: Vec<String>, verbose: u8) -> Self {
        Self { kernel: Some(kernel), all: verbose > 0 }
    }

    pub fn recorded(verbose: u8) -> Self {
        Self { kernel: None, all: verbose > 0 }
    }

    pub fn lines(&self, notes: &[String]) -> Vec<String> {
        match &self.kernel {
            _ if self.all => notes.to_vec(),
            Some(limits) => {
                let (known, other): (Vec<_>, Vec<_>) = notes.iter().cloned().partition(|note| limits.contains(note));
                let line = match known.len() {
                    0 => None,
                    n => Some(format!("{} on what this kernel shows: `homenode doctor`", count(n, "limit"))),
                };
                line.into_iter().chain(other).collect()
            }
            None if notes.len() > FEW => {
                vec![format!("{} on what this window shows: -v lists them", count(notes.len(), "limit"))]
            }
            None => notes.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|t| (*t).to_owned()).collect()
    }

    #[test]
    fn limits_of_the_kernel_take_one_line() {
        let kernel = Some(notes(&["tmpfs is not seen", "DAX is not seen"]));
        let window = notes(&["tmpfs is not seen", "DAX is not seen", "sampled: 1 in 3"]);
        let limits = Limits { kernel, all: false };
        assert_eq!(limits.lines(&window), ["2 limits on what this kernel shows: `homenode doctor`", "sampled: 1 in 3"]);
        assert_eq!(limits.lines(&notes(&["sampled: 1 in 3"])), ["sampled: 1 in 3"]);
        assert_eq!(Limits { all: true, ..limits }.lines(&window), window);
    }

    #[test]
    fn many_notes_of_a_recording_are_counted() {
        let limits = Limits::recorded(0);
        assert_eq!(limits.lines(&notes(&["a", "b"])), ["a", "b"]);
        assert_eq!(limits.lines(&notes(&["a", "b", "c"])), ["3 limits on what this window shows: -v lists them"]);
        assert_eq!(Limits::recorded(1).lines(&notes(&["a", "b", "c"])).len(), 3);
    }
}
