//! What can be wrong with a file.

use super::{MAX_BUFFERS, MAX_FILE_BYTES, MAX_ID_LEN};
use std::fmt;

/// What is wrong with a file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {fault}")]
pub struct CsvError {
    /// The line, counted from 1.
    pub line: u32,
    /// The character in the line at which the cell begins, counted from 1.
    pub column: u32,
    /// What is wrong there.
    pub fault: CsvFault,
}

/// What is wrong with a cell or a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CsvFault {
    /// The file is longer than [`MAX_FILE_BYTES`].
    #[error("the file has {bytes} bytes; at most {MAX_FILE_BYTES} are read")]
    FileTooLong {
        /// Its length.
        bytes: usize,
    },
    /// More than [`MAX_BUFFERS`] buffers.
    #[error("more than {MAX_BUFFERS} buffers")]
    TooManyBuffers,
    /// An id is longer than [`MAX_ID_LEN`].
    #[error("an id of {bytes} bytes; at most {MAX_ID_LEN} are read")]
    IdTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The line is not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// There is no first line.
    #[error("the file is empty; its first line must name the columns: id,lower,upper,size")]
    NoHeader,
    /// A column that the format does not have.
    #[error("unknown column `{name}`; known are id, lower, upper, size, offset and alignment")]
    UnknownColumn {
        /// Its name.
        name: Box<str>,
    },
    /// The same column twice.
    #[error("the column `{column}` stands twice in the first line")]
    ColumnTwice {
        /// The column.
        column: Column,
    },
    /// A column that must be there.
    #[error("the first line names no column `{column}`")]
    MissingColumn {
        /// The column.
        column: Column,
    },
    /// Not as many cells as columns.
    #[error("{found} cells, but the first line names {expected} columns")]
    Cells {
        /// Cells of the line.
        found: usize,
        /// Columns of the file.
        expected: usize,
    },
    /// Not a number, or out of range.
    #[error("`{column}` is `{text}`: a whole number from 0 to {max} is wanted")]
    Number {
        /// The column.
        column: Column,
        /// The cell (its beginning, if it is long).
        text: Box<str>,
        /// The largest legal number.
        max: u64,
    },
    /// Not a power of two.
    #[error("`alignment` is {value}: a power of two is wanted")]
    Alignment {
        /// The cell.
        value: u64,
    },
    /// `upper` is less than `lower`.
    #[error("the buffer ends at step {upper}, before it begins at step {lower}")]
    Reversed {
        /// Its first step.
        lower: u32,
        /// The step it is said to end before.
        upper: u32,
    },
    /// An empty id.
    #[error("the id is empty")]
    EmptyId,
    /// Two buffers with one id.
    #[error("the id `{id}` stands in line {first} already")]
    IdTwice {
        /// The id.
        id: Box<str>,
        /// The line where it stands first.
        first: u32,
    },
}

/// A column of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Column {
    /// What the buffer is called.
    Id,
    /// Its first step.
    Lower,
    /// The step after its last one.
    Upper,
    /// Its bytes.
    Size,
    /// Its fixed offset, or nothing.
    Offset,
    /// Its alignment, or nothing.
    Alignment,
}

impl Column {
    pub(super) const ALL: [Self; 6] = [Self::Id, Self::Lower, Self::Upper, Self::Size, Self::Offset, Self::Alignment];
    pub(super) const REQUIRED: [Self; 4] = [Self::Id, Self::Lower, Self::Upper, Self::Size];

    /// Its name in the first line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Lower => "lower",
            Self::Upper => "upper",
            Self::Size => "size",
            Self::Offset => "offset",
            Self::Alignment => "alignment",
        }
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
