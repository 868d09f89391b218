//! Plain tables: no lines, two spaces between columns, figures to the right.

use comfy_table::{CellAlignment, ContentArrangement, Table as Inner, presets};

use super::escape;

pub struct Table {
    inner: Inner,
    figures: Vec<bool>,
}

impl Table {
    /// A table with these column heads; heads that start with `>` stand over figures, which are
    /// aligned to the right.
    pub fn new(heads: &[impl AsRef<str>]) -> Self {
        let heads = heads.iter().map(AsRef::as_ref);
        let mut table = Self::plain(0);
        table.figures = heads.clone().map(|head| head.starts_with('>')).collect();
        table.inner.set_header(heads.map(|head| head.trim_start_matches('>')));
        table
    }

    /// A table without heads whose columns are all text.
    pub fn plain(columns: usize) -> Self {
        let mut inner = Inner::new();
        inner.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        Self { inner, figures: vec![false; columns] }
    }

    /// Adds a row; control characters in it are shown, not sent.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.inner.add_row(cells.into_iter().map(|cell| escape(&cell)));
    }

    /// The table as lines, each with its newline and without trailing blanks; nothing for a table
    /// without rows or heads.
    pub fn render(mut self) -> String {
        for (column, figures) in self.inner.column_iter_mut().zip(&self.figures) {
            column.set_padding((0, 2));
            column.set_cell_alignment(if *figures { CellAlignment::Right } else { CellAlignment::Left });
        }
        let mut text = self.inner.trim_fmt();
        if !text.is_empty() {
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_to_the_right_and_lines_end_where_the_text_ends() {
        let mut table = Table::new(&["file", ">size"]);
        table.row(["a".to_owned(), "1.0 GiB".to_owned()]);
        table.row(["b\u{1b}[1m".to_owned(), "2 B".to_owned()]);
        let lines = ["file           size", "a           1.0 GiB", "b\\u{1b}[1m      2 B", ""];
        assert_eq!(table.render(), lines.join("\n"));
    }

    #[test]
    fn an_empty_table_is_no_line() {
        assert_eq!(Table::plain(3).render(), "");
    }
}
