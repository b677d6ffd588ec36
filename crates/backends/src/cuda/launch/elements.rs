//! Operations element by element.

use super::build::{Build, source};
use super::node::{Node, repeats_into};
use super::types::{Launches, Layout, Place};
use crate::error::Unsupported;
use loadmaster_graph::Op;

/// ADD, SUB, MUL, DIV.
pub(super) fn pair(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (a, b, dst) = (node.src(0)?, node.src(1)?, node.dst());
    node.require(a.ne == dst.ne, "the first source must have the result's extents")?;
    node.require(repeats_into(&b.ne, &dst.ne), "the second source must repeat into the result")?;
    let op = match node.view().op {
        Op::Add => 0,
        Op::Sub => 1,
        Op::Mul => 2,
        _ => 3,
    };
    let flat = [a, b, dst].iter().all(|t| t.plain() && t.ne == dst.ne);
    let build = Build::new("elementwise", "lm_binary", &dst).source(0, &a).source(1, &b);
    Ok(build.ints([op, flat.into()]).each(dst.elements()).into())
}

/// ADD_ID.
pub(super) fn add_id(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (a, b, ids, dst) = (node.src(0)?, node.src(1)?, node.src(2)?, node.dst());
    node.require(a.ne == dst.ne, "the first source must have the result's extents")?;
    node.require(b.ne[0] == dst.ne[0], "rows of the second source must be as long as the result's")?;
    node.require(ids.ne[0] == dst.ne[1] && ids.ne[1] == dst.ne[2], "there must be an index for each row")?;
    let build = Build::new("elementwise", "lm_add_id", &dst).source(0, &a).source(1, &b).source(2, &ids).watched();
    Ok(build.each(dst.elements()).into())
}

/// `LmUnary` of elementwise.cu.
fn unary_number(op: Op) -> Option<i32> {
    const ORDER: [Op; 29] = [
        Op::Abs,
        Op::Sgn,
        Op::Neg,
        Op::Step,
        Op::Relu,
        Op::Sqr,
        Op::Sqrt,
        Op::Floor,
        Op::Ceil,
        Op::Round,
        Op::Trunc,
        Op::Exp,
        Op::Expm1,
        Op::Sigmoid,
        Op::Silu,
        Op::Tanh,
        Op::Elu,
        Op::Log,
        Op::Sin,
        Op::Cos,
        Op::Softplus,
        Op::Hardswish,
        Op::Hardsigmoid,
        Op::Gelu,
        Op::GeluQuick,
        Op::GeluErf,
        Op::Scale,
        Op::Clamp,
        Op::Fill,
    ];
    ORDER.iter().position(|&o| o == op).map(|i| i as i32)
}

/// Whether an operation takes one source element by element.
pub(super) fn is_unary(op: Op) -> bool {
    unary_number(op).is_some()
}

/// One source, SCALE, CLAMP, FILL.
pub(super) fn unary(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (op, dst) = (node.view().op, node.dst());
    let number = node.require_some(unary_number(op), "it must be one of elementwise.cu")?;
    let words = match op {
        Op::Scale | Op::Clamp | Op::Fill => [node.float(0), node.float(1)],
        _ => [0.0; 2],
    };
    let build = Build::new("elementwise", "lm_unary", &dst).floats(words).each(dst.elements());
    if op == Op::Fill {
        return Ok(build.ints([number, 0]).into());
    }
    let x = node.src(0)?;
    node.require(x.ne == dst.ne, "source and result must have the same extents")?;
    let flat = x.plain() && dst.plain();
    Ok(build.source(0, &x).ints([number, flat.into()]).into())
}

/// Gated linear units.
pub(super) fn glu(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let dst = node.dst();
    let [(x, x_place), (g, g_place)] = gate_operands(node)?;
    let number = node.view().op.number_in_family() as i32;
    let build = Build::new("elementwise", "lm_glu", &dst).source_at(0, &x, x_place).source_at(1, &g, g_place);
    Ok(build.ints([number]).floats([node.float(2), node.float(3)]).each(dst.elements()).into())
}

/// What goes through the function and what multiplies it, both with the result's extents.
fn gate_operands(node: &Node<'_>) -> Result<[(Layout, Place); 2], Unsupported> {
    let (a, dst) = (node.src(0)?, node.dst());
    if let Some(b) = node.optional(1) {
        node.require(a.ne == dst.ne && b.ne == dst.ne, "both sources must have the result's extents")?;
        return Ok([(a, source(0)), (b, source(1))]);
    }
    let ne = [a.ne[0] / 2, a.ne[1], a.ne[2], a.ne[3]];
    node.require(a.ne[0] % 2 == 0 && ne == dst.ne, "the result must be half as wide as the source")?;
    let half = Layout { ne, ..a };
    let first = (half, source(0));
    let second = (half, Place { offset: ne[0] * a.nb[0], ..source(0) });
    Ok(if node.int(1) == 0 { [first, second] } else { [second, first] })
}
