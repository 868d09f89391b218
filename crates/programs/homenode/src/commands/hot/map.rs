//! The heat map as text: for each mapping a line of heat and a line of nodes.

use std::io::IsTerminal;

use topology::NodeId;

use super::view::View;
use crate::output::escape;
use crate::output::units::{count, seconds, size};

/// Columns of a mapping where the terminal's width is not known.
const COLUMNS: usize = 72;

/// From never accessed to accessed in each sample.
const SHADES: [char; 5] = ['.', '░', '▒', '▓', '█'];

/// Colours of the nodes, by turns (ANSI).
const COLORS: [u8; 6] = [34, 33, 32, 35, 36, 31];

#[derive(Clone, Copy, Debug)]
pub struct Style {
    columns: usize,
    colors: bool,
}

impl Style {
    pub fn of_stdout() -> Self {
        let terminal = std::io::stdout().is_terminal();
        let width = terminal.then(|| crossterm::terminal::size().ok()).flatten().map_or(COLUMNS, |(w, _)| w.into());
        // Two blanks before each line, and none of a terminal's last column.
        let columns = width.saturating_sub(9).clamp(16, 120);
        Self { columns, colors: terminal && std::env::var_os("NO_COLOR").is_none() }
    }

    pub fn columns(self) -> usize {
        self.columns
    }

    #[cfg(test)]
    pub fn plain(columns: usize) -> Self {
        Self { columns, colors: false }
    }
}

/// A node's letter: its number, or a letter from 10 on.
pub(super) fn letter(node: NodeId) -> char {
    char::from_digit(node.0 % 36, 36).unwrap_or('?')
}

/// How hot a part is, as a shade. Whatever was accessed at all is not shown as never accessed.
pub(super) fn shade(heat: f64) -> char {
    let index = if heat > 0.0 { 1 + (heat * 3.999) as usize } else { 0 };
    SHADES.get(index.min(SHADES.len() - 1)).copied().unwrap_or('?')
}

pub fn text(process: &str, views: &[View], samples: u32, took_s: f64, style: Style) -> String {
    let least = super::view::rule(samples).least;
    let mut text = format!(
        "{}: {} in {}; {}\n",
        escape(process),
        count(samples as usize, "sample"),
        seconds(took_s),
        if samples < least {
            format!("too few to call a page hot: that takes {least}")
        } else {
            format!("hot: accessed in at least {least} of them")
        }
    );
    if views.is_empty() {
        text.push_str("it maps no file of 1 MiB or more except its program\n");
        return text;
    }
    for view in views {
        text.push_str(&region(view, style));
    }
    text.push_str(&format!(
        "\nheat: {} never accessed, {} to {} in each sample, blank not mapped\n",
        SHADES[0], SHADES[1], SHADES[4]
    ));
    text
}

fn region(view: &View, style: Style) -> String {
    let cells = view.columns(style.columns);
    let mut heat = String::new();
    let mut nodes = String::new();
    for cell in &cells {
        let (Some(share), Some(node)) = (cell.heat(view.samples), cell.node()) else {
            heat.push(' ');
            nodes.push(' ');
            continue;
        };
        let color = COLORS[node.0 as usize % COLORS.len()];
        match style.colors {
            true => heat.push_str(&format!("\u{1b}[{color}m{}\u{1b}[0m", shade(share))),
            false => heat.push(shade(share)),
        }
        nodes.push(letter(node));
    }
    let mut text = format!(
        "\n{}   {:x}-{:x}   {}{}\n  heat  {}\n  node  {}\n",
        escape(&view.path),
        view.start,
        view.end,
        size(view.end - view.start),
        if view.cleared { "" } else { "   ever touched" },
        heat.trim_end(),
        nodes.trim_end(),
    );
    for m in view.sums.listed() {
        let touched = m.touched_bytes.unwrap_or(0);
        let (hot, all) = (size(m.hot_bytes), size(m.hot_bytes + m.cold_bytes));
        text.push_str(&match view.cleared {
            true => format!("  node {}: {hot} hot, {} touched of {all} mapped\n", m.node, size(touched)),
            false => format!("  node {}: {} touched of {all} mapped\n", m.node, size(touched)),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use observe::mapped::{Sum, Sums};

    use super::super::view::{CELLS, Cell};
    use super::*;

    #[test]
    fn a_mapping_is_two_lines_and_its_sums() {
        let cell = |node, times: u64| Cell { nodes: [(NodeId(node), 4096)].into(), accessed: 4096 * times };
        let cells = (0..CELLS).map(|i| match i * 6 / CELLS {
            0 => cell(0, 8),
            1 => cell(0, 4),
            2 => cell(1, 1),
            3 => cell(11, 0),
            _ => Cell::default(),
        });
        let mut sums = Sums::default();
        sums.0.insert(NodeId(0), Sum { hot: 2 << 20, cold: 1 << 20, touched: 3 << 20 });
        let view = View {
            start: 0x7f00_0000_0000,
            end: 0x7f00_0060_0000,
            path: "/data/\u{1b}x".to_owned(),
            samples: 8,
            cleared: true,
            cells: cells.collect(),
            sums,
        };
        let style = Style { columns: 24, colors: false };
        let drawn = text("x (pid 7)", std::slice::from_ref(&view), 8, 10.04, style);
        assert_eq!(
            drawn,
            "\
x (pid 7): 8 samples in 10.0 s; hot: accessed in at least 4 of them

/data/\\u{1b}x   7f0000000000-7f0000600000   6.0 MiB
  heat  ████▒▒▒▒░░░░....
  node  00001111bbbb"
                .replace("00001111bbbb", "000000001111bbbb")
                + "
  node 0: 2.0 MiB hot, 3.0 MiB touched of 3.0 MiB mapped

heat: . never accessed, ░ to █ in each sample, blank not mapped
"
        );
        let ever = View { cleared: false, samples: 1, ..view };
        assert!(region(&ever, style).contains("ever touched"), "{}", region(&ever, style));
        assert!(region(&ever, Style { colors: true, ..style }).contains("\u{1b}[34m█\u{1b}[0m"));
    }
}
