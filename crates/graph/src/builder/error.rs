//! Why the builder refuses an operation.

use crate::dtype::DType;
use crate::error::{GraphError, ShapeFault};
use crate::id::TensorId;
use crate::op::Op;
use crate::tensor::{Dims, Tensor};
use std::fmt;

/// Why a tensor cannot be built. The builder is unchanged after an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An operand that this builder does not have.
    #[error("{op}: operand {id} does not exist, this builder has {count} tensors")]
    UnknownTensor {
        /// The operation.
        op: Op,
        /// The missing tensor.
        id: TensorId,
        /// How many there are.
        count: usize,
    },
    /// Operands that do not go together.
    #[error("{op}: {why}; operands: {operands}")]
    Operands {
        /// The operation.
        op: Op,
        /// What is wrong with them.
        why: OperandFault,
        /// What they are.
        operands: Operands,
    },
    /// An operation handed to a method of another family.
    #[error("{op} is no {family} operation")]
    Family {
        /// The operation.
        op: Op,
        /// What the method builds.
        family: &'static str,
    },
    /// More dimensions, or strides, than a tensor has.
    #[error("{op}: {found} {what}, but at most {limit} are possible here")]
    Dimensions {
        /// The operation.
        op: Op,
        /// What was given.
        what: &'static str,
        /// How many.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A result whose shape is out of range.
    #[error("{op}: the result {dtype} {ne:?} is impossible: {why}")]
    Shape {
        /// The operation.
        op: Op,
        /// Type of the result.
        dtype: DType,
        /// Extents of the result.
        ne: Dims,
        /// What is wrong with it.
        why: ShapeFault,
    },
    /// A tensor, or the graph, breaks a rule of the verifier.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// What is wrong with the operands of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandFault {
    /// Extents that are no multiples.
    #[error("the extents of one must be multiples of the other's")]
    NotRepeatable,
    /// Extents that differ.
    #[error("the extents must agree")]
    ExtentsDiffer,
    /// Numbers of elements that differ.
    #[error("the numbers of elements must agree")]
    ElementsDiffer,
    /// Types that differ.
    #[error("the types must agree")]
    TypesDiffer,
    /// A type that the operation does not take.
    #[error("an operand has a type that the operation does not take")]
    WrongType,
    /// Gaps between elements or rows.
    #[error("an operand must be contiguous")]
    NotContiguous,
    /// Gaps between the elements of a row.
    #[error("the rows of an operand must be contiguous")]
    RowsNotContiguous,
    /// Strides that grow inwards.
    #[error("the first operand must not be transposed")]
    Transposed,
    /// More dimensions than the operation takes.
    #[error("an operand has too many dimensions")]
    TooManyDimensions,
    /// Axes that are no permutation of 0 to 3, or an axis above 3.
    #[error("the axes must be distinct and below 4")]
    BadAxes,
    /// An odd extent that would have to be halved.
    #[error("the innermost extent must be even")]
    OddExtent,
    /// More elements asked for than there are.
    #[error("more elements are asked for than the innermost extent has")]
    TooFewElements,
    /// A bias without the mask that it applies to.
    #[error("a maximal bias needs a mask")]
    BiasWithoutMask,
    /// A parameter that does not apply to the operation.
    #[error("the parameter does not apply to this operation")]
    NoSuchParameter,
}

/// Operands as they are printed in errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operands(Box<[Operand]>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Operand {
    id: TensorId,
    name: Box<str>,
    dtype: DType,
    ne: Dims,
    nb: Dims,
}

impl Operands {
    pub(super) fn of<'t>(tensors: impl Iterator<Item = (TensorId, &'t Tensor)>) -> Self {
        let operand =
            |(id, t): (TensorId, &Tensor)| Operand { id, name: t.name.clone(), dtype: t.dtype, ne: t.ne, nb: t.nb };
        Self(tensors.map(operand).collect())
    }
}

impl fmt::Display for Operands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Operand { id, name, dtype, ne, nb }) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{id} `{name}` {dtype} {ne:?} strides {nb:?}")?;
        }
        Ok(())
    }
}
