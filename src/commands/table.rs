//! Plain text tables, no wider than [`WIDTH`].

use std::fmt::Write;

/// Widest line of a table.
pub const WIDTH: usize = 100;
/// Narrowest column of text that is still shortened.
const NARROWEST: usize = 8;

/// The text, or its beginning and `…` where it is wider than `width`.
#[must_use]
pub fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept = text.chars().take(width.saturating_sub(1));
    kept.chain(std::iter::once('…')).collect()
}

/// The text in lines of at most `width`, cut at blanks; a word that is wider is cut anywhere.
#[must_use]
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut room = width;
    for word in text.split(' ') {
        let needed = word.chars().count() + usize::from(room < width);
        if needed <= room {
            room -= needed;
            let line = lines.last_mut().map(|l| (l.is_empty(), l));
            if let Some((empty, line)) = line {
                line.push_str(if empty { "" } else { " " });
                line.push_str(word);
            }
            continue;
        }
        let letters: Vec<char> = word.chars().collect();
        lines.extend(letters.chunks(width.max(1)).map(|part| part.iter().collect::<String>()));
        room = width.saturating_sub(lines.last().map_or(0, |l| l.chars().count()));
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// How a column is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// Text, shortened where the line would be too wide.
    Left,
    /// Text that is kept whole, on further lines where the line would be too wide: only for the last column.
    Wrapped,
    /// Numbers.
    Right,
}

/// Rows of cells under headings; columns are as wide as their widest cell. Where that makes a line wider than [`WIDTH`],
/// the widest columns of text are shortened; numbers never are.
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
        let widths = self.narrowed((0..self.columns.len()).map(width).collect(), indent);
        let mut text = String::new();
        for line in lines() {
            let mut out = " ".repeat(indent);
            let mut rest = Vec::new();
            for ((cell, &width), (column, _)) in line.iter().zip(&widths).zip(&self.columns) {
                let start = out.chars().count();
                // Writing to a string cannot fail.
                let _ = match column {
                    Column::Left => write!(out, "{:<width$}  ", fit(cell, width)),
                    Column::Right => write!(out, "{cell:>width$}  "),
                    Column::Wrapped => {
                        let mut parts = wrapped(cell, width).into_iter();
                        let first = parts.next().unwrap_or_default();
                        rest = parts.map(|part| " ".repeat(start) + &part).collect();
                        write!(out, "{first}")
                    }
                };
            }
            for line in std::iter::once(out).chain(rest) {
                text.push_str(line.trim_end());
                text.push('\n');
            }
        }
        text
    }

    /// Takes from the widest column of text until a line fits, or no column can give more.
    fn narrowed(&self, mut widths: Vec<usize>, indent: usize) -> Vec<usize> {
        let between = 2 * widths.len().saturating_sub(1) + indent;
        let texts = || self.columns.iter().enumerate().filter(|(_, (kind, _))| *kind != Column::Right).map(|(i, _)| i);
        while widths.iter().sum::<usize>() + between > WIDTH {
            let Some(widest) = texts().max_by_key(|&i| widths[i]).filter(|&i| widths[i] > NARROWEST) else { break };
            widths[widest] -= 1;
        }
        widths
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
    #[test]
    fn long_names_are_shortened_so_that_lines_fit() {
        let columns = [(Column::Left, "from"), (Column::Left, "to"), (Column::Right, "bytes")];
        let mut table = Table::new(&columns);
        table.push(["a".repeat(300), "b".repeat(20), "18446744073709551615".to_owned()]);
        let text = table.render(2);
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        assert!(text.contains('…') && text.contains(&"b".repeat(20)) && text.contains("18446744073709551615"));
        assert_eq!(wrapped("one two threefour", 5), ["one", "two", "three", "four"]);
        assert_eq!(wrapped("a b c", 5), ["a b c"]);
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abcd", 3), "ab…");
    }
}
