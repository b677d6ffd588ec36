//! MiniMalloc's files: `id,lower,upper,size[,offset][,alignment]`, a line a buffer.
//!
//! The first line names the columns, in any order. A buffer is alive from step `lower` to the one before `upper`
//! (half-open). A cell of `offset` that is not empty fixes the buffer there; an empty cell of `alignment` means 1.
//! Format: Moffitt, MiniMalloc, ASPLOS 2023.

mod error;

pub use error::{Column, CsvError, CsvFault};

use super::problem::{PackBuffer, PackBufferId, PackProblem, Packing};
use loadmaster_graph::{Align, Bytes, Step};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Most bytes of a file.
pub const MAX_FILE_BYTES: usize = 256 << 20;
/// Most buffers of a file.
pub const MAX_BUFFERS: usize = 1 << 20;
/// Most bytes of an id.
pub const MAX_ID_LEN: usize = 256;

/// A packing problem with what its file says about each buffer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CsvProblem {
    /// The problem, without a chunk limit. Buffers stand in the order of the file.
    pub problem: PackProblem,
    /// The id of each buffer.
    pub ids: Vec<Box<str>>,
    /// The line of each buffer, counted from 1.
    pub lines: Vec<u32>,
}

impl CsvProblem {
    /// Reads a file. Errors: the first thing that is wrong, with its place. O(bytes + buffers log buffers).
    pub fn parse(file: &[u8]) -> Result<Self, CsvError> {
        if file.len() > MAX_FILE_BYTES {
            return Err(at(1, 1, CsvFault::FileTooLong { bytes: file.len() }));
        }
        let mut lines = (1u32..).zip(file.split(|&b| b == b'\n')).filter(|(_, l)| !l.trim_ascii().is_empty());
        let (number, line) = lines.next().ok_or(at(1, 1, CsvFault::NoHeader))?;
        let header = Header::parse(number, line)?;
        let mut file = Self::default();
        let mut known: BTreeMap<Box<str>, u32> = BTreeMap::new();
        for (number, line) in lines {
            if file.ids.len() == MAX_BUFFERS {
                return Err(at(number, 1, CsvFault::TooManyBuffers));
            }
            let row = Row::parse(number, line, &header)?;
            let id = row.id()?;
            if let Some(&first) = known.get(id) {
                return Err(row.error(Column::Id, CsvFault::IdTwice { id: id.into(), first }));
            }
            known.insert(id.into(), number);
            file.problem.buffers.push(row.buffer()?);
            file.ids.push(id.into());
            file.lines.push(number);
        }
        Ok(file)
    }

    /// The file with the offsets of a packing, in the order of the buffers: `id,lower,upper,size,offset`, and
    /// `alignment` if any buffer has one.
    #[must_use]
    pub fn with_offsets(&self, packing: &Packing) -> String {
        let aligned = self.problem.buffers.iter().any(|b| b.align != Align::ONE);
        let mut text = String::from(if aligned {
            "id,lower,upper,size,offset,alignment\n"
        } else {
            "id,lower,upper,size,offset\n"
        });
        for ((id, b), place) in self.ids.iter().zip(&self.problem.buffers).zip(&packing.places) {
            let (lower, upper) = (b.lifetime.start.get(), b.lifetime.end.get());
            // Writing to a string cannot fail.
            let _ = write!(text, "{id},{lower},{upper},{},{}", b.size.get(), place.offset.get());
            if aligned {
                let _ = write!(text, ",{}", b.align);
            }
            text.push('\n');
        }
        text
    }

    /// The id and the line of a buffer.
    #[must_use]
    pub fn origin(&self, buffer: PackBufferId) -> Option<(&str, u32)> {
        Some((self.ids.get(buffer.index())?, *self.lines.get(buffer.index())?))
    }
}

fn at(line: u32, column: u32, fault: CsvFault) -> CsvError {
    CsvError { line, column, fault }
}

/// The cells of a line with the column at which each begins, blanks around them dropped.
fn cells(number: u32, line: &[u8]) -> Result<Vec<(u32, &str)>, CsvError> {
    let text = std::str::from_utf8(line).map_err(|e| at(number, e.valid_up_to() as u32 + 1, CsvFault::NotUtf8))?;
    let cells = text.split(',').scan(1, |next, cell| {
        let column = *next;
        *next += cell.chars().count() as u32 + 1;
        Some((column, cell.trim()))
    });
    Ok(cells.collect())
}

/// Which column each cell belongs to.
struct Header {
    columns: Vec<Column>,
}

impl Header {
    fn parse(number: u32, line: &[u8]) -> Result<Self, CsvError> {
        let mut columns = Vec::new();
        for (place, name) in cells(number, line)? {
            let found = Column::ALL.into_iter().find(|c| c.name() == name);
            let column = found.ok_or_else(|| at(number, place, CsvFault::UnknownColumn { name: shortened(name) }))?;
            if columns.contains(&column) {
                return Err(at(number, place, CsvFault::ColumnTwice { column }));
            }
            columns.push(column);
        }
        match Column::REQUIRED.into_iter().find(|c| !columns.contains(c)) {
            Some(column) => Err(at(number, 1, CsvFault::MissingColumn { column })),
            None => Ok(Self { columns }),
        }
    }
}

/// One line, cell by cell.
struct Row<'t> {
    number: u32,
    /// By column.
    cells: [(u32, &'t str); Column::ALL.len()],
}

impl<'t> Row<'t> {
    fn parse(number: u32, line: &'t [u8], header: &Header) -> Result<Self, CsvError> {
        let cells = cells(number, line)?;
        let (found, expected) = (cells.len(), header.columns.len());
        if found != expected {
            return Err(at(number, 1, CsvFault::Cells { found, expected }));
        }
        let mut row = Self { number, cells: [(1, ""); Column::ALL.len()] };
        for (&column, cell) in header.columns.iter().zip(cells) {
            row.cells[column as usize] = cell;
        }
        Ok(row)
    }

    fn text(&self, column: Column) -> &'t str {
        self.cells[column as usize].1
    }

    fn error(&self, column: Column, fault: CsvFault) -> CsvError {
        at(self.number, self.cells[column as usize].0, fault)
    }

    fn id(&self) -> Result<&'t str, CsvError> {
        match self.text(Column::Id) {
            "" => Err(self.error(Column::Id, CsvFault::EmptyId)),
            id if id.len() > MAX_ID_LEN => Err(self.error(Column::Id, CsvFault::IdTooLong { bytes: id.len() })),
            id => Ok(id),
        }
    }

    /// `None`: the cell is empty or the column is not there.
    fn number(&self, column: Column, max: u64) -> Result<Option<u64>, CsvError> {
        let text = self.text(column);
        if text.is_empty() {
            return Ok(None);
        }
        // The parser of numbers takes a sign.
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(value) if digits && value <= max => Ok(Some(value)),
            _ => Err(self.error(column, CsvFault::Number { column, text: shortened(text), max })),
        }
    }

    fn required(&self, column: Column, max: u64) -> Result<u64, CsvError> {
        let missing = || self.error(column, CsvFault::Number { column, text: "".into(), max });
        self.number(column, max)?.ok_or_else(missing)
    }

    fn step(&self, column: Column) -> Result<u32, CsvError> {
        // The limit of the column is the limit of the type.
        self.required(column, u64::from(u32::MAX)).map(|step| step as u32)
    }

    fn buffer(&self) -> Result<PackBuffer, CsvError> {
        let (lower, upper) = (self.step(Column::Lower)?, self.step(Column::Upper)?);
        if lower > upper {
            return Err(self.error(Column::Upper, CsvFault::Reversed { lower, upper }));
        }
        let size = Bytes(self.required(Column::Size, u64::MAX)?);
        let offset = self.number(Column::Offset, u64::MAX)?.map(Bytes);
        let value = self.number(Column::Alignment, u64::MAX)?.unwrap_or(1);
        let align = Align::new(value).ok_or_else(|| self.error(Column::Alignment, CsvFault::Alignment { value }))?;
        Ok(PackBuffer { size, align, lifetime: Step(lower)..Step(upper), offset })
    }
}

/// The beginning of a text, for messages.
fn shortened(text: &str) -> Box<str> {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}
