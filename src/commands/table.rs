//! Plain text tables.

use std::fmt::Write;

/// How a column is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells under headings; columns are as wide as their widest cell.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(Column, String)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(columns: &[(Column, &str)]) -> Self {
        Self { columns: columns.iter().map(|&(c, heading)| (c, heading.to_owned())).collect(), rows: Vec::new() }
    }

    /// Adds a row; cells beyond the columns are dropped.
    pub fn push(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table, every line after `indent` spaces, without trailing blanks.
    #[must_use]
    pub fn render(&self, indent: usize) -> String {
        let headings: Vec<String> = self.columns.iter().map(|(_, h)| h.clone()).collect();
        let lines = || std::iter::once(&headings).chain(&self.rows);
        let width = |i: usize| lines().filter_map(|l| l.get(i)).map(|c| c.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        for line in lines() {
            let mut out = " ".repeat(indent);
            for ((cell, &width), (column, _)) in line.iter().zip(&widths).zip(&self.columns) {
                // Writing to a string cannot fail.
                let _ = match column {
                    Column::Left => write!(out, "{cell:<width$}  "),
                    Column::Right => write!(out, "{cell:>width$}  "),
                };
            }
            text.push_str(out.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[(Column::Left, "name"), (Column::Right, "bytes")]);
        table.push(["a".to_owned(), "1".to_owned()]);
        table.push(["longer".to_owned(), "1234567".to_owned()]);
        assert_eq!(table.render(2), "  name      bytes\n  a             1\n  longer  1234567\n");
    }
}
