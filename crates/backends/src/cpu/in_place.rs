//! Which operands may share the result's memory.

use super::ops::unary::is_unary;
use loadmaster_alloc::InPlaceTable;
use loadmaster_alloc::in_place::{Operands, ViewReuse};
use loadmaster_graph::{Op, OpKind};

/// The operands that may stand exactly where the result stands: same address, type, extents and strides.
///
/// Kernels of these operations read every element of a group before they write it, whichever of the listed operands
/// shares the memory. All other operands must not overlap the result.
#[must_use]
pub fn in_place() -> InPlaceTable {
    let table = Op::ALL.iter().fold(InPlaceTable::none(), |table, &op| table.allow(op, operands(op)));
    table.through_views(ViewReuse::WholeRoot)
}

fn operands(op: Op) -> Operands {
    match op {
        Op::Add | Op::Sub | Op::Mul | Op::Div | Op::SoftMax => Operands::FIRST_TWO,
        Op::AddId | Op::Scale | Op::Clamp | Op::Fill | Op::Norm | Op::RmsNorm | Op::L2Norm | Op::Rope => {
            Operands::FIRST
        }
        Op::Dup | Op::Cont => Operands::FIRST,
        _ if op.kind() == OpKind::Glu => Operands::FIRST_TWO,
        _ if is_unary(op) => Operands::FIRST,
        _ => Operands::NONE,
    }
}
