//! What can go wrong when a node is computed.

use loadmaster_graph::{DType, Dims, Op};
use std::fmt;

/// Position of a source among a node's operands; prints as `src0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SourceIndex(pub u8);

impl fmt::Display for SourceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src{}", self.0)
    }
}

/// The element types of a node: its sources in order, then its result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Types {
    /// Sources; a hole is `None`.
    pub src: Vec<Option<DType>>,
    /// Result.
    pub dst: DType,
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, dtype) in self.src.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{}", dtype.map_or("-", DType::name))?;
        }
        write!(f, ") -> {}", self.dst)
    }
}

/// Why a node was not computed. The result's bytes are then unspecified; nothing outside it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// There is no kernel for these types. [`super::supports`] says so before a node is placed.
    #[error("{op}: no CPU kernel for {types}; place the node on a device that supports it")]
    Unsupported {
        /// The operation.
        op: Op,
        /// Its types.
        types: Types,
    },
    /// An operand that the operation needs is a hole.
    #[error("{op}: {operand} is missing")]
    MissingSource {
        /// The operation.
        op: Op,
        /// The hole.
        operand: SourceIndex,
    },
    /// Extents or strides break a rule of the operation.
    #[error("{op}: {rule} (result {dst:?}, sources {src:?})")]
    Shape {
        /// The operation.
        op: Op,
        /// The rule.
        rule: &'static str,
        /// Extents of the result.
        dst: Dims,
        /// Extents of the sources that are there, in order.
        src: Vec<Dims>,
    },
    /// A parameter word is out of range.
    #[error("{op}: parameter word {word} is {value:#x}: {rule}")]
    Parameter {
        /// The operation.
        op: Op,
        /// Index of the word.
        word: u8,
        /// Its value.
        value: u32,
        /// What it must be.
        rule: &'static str,
    },
    /// An index read from a tensor does not name a row.
    #[error("{op}: index {index} in {operand} is not in 0..{rows}")]
    Index {
        /// The operation.
        op: Op,
        /// The operand that holds it.
        operand: SourceIndex,
        /// The index.
        index: i64,
        /// How many rows there are.
        rows: u64,
    },
}
