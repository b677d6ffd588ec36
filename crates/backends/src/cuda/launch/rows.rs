//! Operations on rows: norms, soft maximum, rotation, sums, order.

use super::build::Build;
use super::node::Node;
use super::types::Launches;
use crate::cpu::Slopes;
use crate::error::Unsupported;
use loadmaster_graph::Op;

/// NORM, RMS_NORM, L2_NORM.
pub(super) fn norm(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (x, dst) = (node.src(0)?, node.dst());
    node.require(x.ne == dst.ne, "source and result must have the same extents")?;
    node.require(x.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    let eps = node.float(0);
    node.require_word(0, eps >= 0.0, "epsilon must not be negative")?;
    let op = match node.view().op {
        Op::RmsNorm => 0,
        Op::L2Norm => 1,
        _ => 2,
    };
    let build = Build::new("norm", "lm_norm", &dst).source(0, &x).ints([op]).floats([eps]);
    Ok(build.rows(dst.rows(), dst.ne[0]).into())
}

/// SOFT_MAX.
pub(super) fn soft_max(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (x, mask, sinks, dst) = (node.src(0)?, node.optional(1), node.optional(2), node.dst());
    node.require(x.ne == dst.ne, "source and result must have the same extents")?;
    node.require(x.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    if let Some(m) = mask {
        node.require(m.packed_rows() && m.ne[0] >= dst.ne[0] && m.ne[1] >= dst.ne[1], "the mask must cover a head")?;
        node.require(m.ne[2] > 0 && m.ne[3] > 0, "the mask must not be empty")?;
    }
    if let Some(s) = sinks {
        node.require(s.packed_rows() && s.ne[0] >= dst.ne[2], "there must be a sink for each head")?;
    }
    let slopes = Slopes::new(node.float(1), dst.ne[2]);
    let build = Build::new("norm", "lm_soft_max", &dst).source(0, &x).optional(1, mask).optional(2, sinks);
    let build = build.floats([node.float(0), node.float(1), slopes.m0, slopes.m1]).longs([slopes.whole.into()]);
    Ok(build.rows(dst.rows(), dst.ne[0]).into())
}

/// ROPE.
pub(super) fn rope(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (x, pos, factors, dst) = (node.src(0)?, node.src(1)?, node.optional(2), node.dst());
    let (width, dims, mode, offset) = (dst.ne[0], node.int(1), node.word(2), node.int(15));
    let fits = dims > 0 && dims % 2 == 0 && dims as u64 <= width;
    node.require_word(1, fits, "the number of rotated channels must be even and fit the row")?;
    node.require_word(2, mode == 0 || mode == 2, "only adjacent pairs (0) and halves (2) have a kernel")?;
    let inside = offset >= 0 && offset % 2 == 0 && i64::from(offset) + i64::from(dims) <= width as i64;
    node.require_word(15, inside, "the rotated channels must lie inside the row")?;
    node.require(x.ne == dst.ne, "source and result must have the same extents")?;
    node.require(x.packed_rows() && dst.packed_rows() && pos.packed_rows(), "rows must be packed")?;
    node.require(pos.ne[0] >= dst.ne[2], "there must be a position for each index of dimension 2")?;
    if let Some(f) = factors {
        node.require(f.packed_rows() && f.ne[0] >= dims as u64 / 2, "there must be a factor for each pair")?;
    }
    let tasks = width - dims as u64 / 2;
    let build = Build::new("rope", "lm_rope", &dst).source(0, &x).source(1, &pos).optional(2, factors);
    let build = build.ints([dims, (mode == 2).into(), offset]).floats(rotation(node, dims));
    Ok(build.each(tasks.saturating_mul(dst.rows())).into())
}

/// What `lm_rotation` takes: frequency scale, extrapolation, magnitude, YaRN's ramp, factor from angle to angle.
fn rotation(node: &Node<'_>, dims: i32) -> [f32; 6] {
    let base = node.float(5);
    let corr_dim = |rotations: f32| {
        let n = node.int(4) as f32 / (rotations * 2.0 * std::f32::consts::PI);
        dims as f32 * n.ln() / (2.0 * base.ln())
    };
    let low = corr_dim(node.float(9)).floor().max(0.0);
    let high = corr_dim(node.float(10)).ceil().min((dims - 1) as f32);
    [node.float(6), node.float(7), node.float(8), low, high, base.powf(-2.0 / dims as f32)]
}

/// SUM_ROWS, MEAN.
pub(super) fn sum_rows(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (x, dst) = (node.src(0)?, node.dst());
    node.require(dst.ne == [1, x.ne[1], x.ne[2], x.ne[3]], "the result must have one element per row")?;
    node.require(x.packed_rows(), "rows must be packed")?;
    let divisor = if node.view().op == Op::Mean { x.ne[0] as f32 } else { 1.0 };
    let build = Build::new("reduce", "lm_sum_rows", &dst).source(0, &x).ints([0]).floats([divisor]);
    Ok(build.rows(x.rows(), x.ne[0]).into())
}

/// SUM.
pub(super) fn sum(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (x, dst) = (node.src(0)?, node.dst());
    node.require(dst.ne == [1; 4], "the result must have one element")?;
    node.require(x.packed_rows(), "rows must be packed")?;
    let build = Build::new("reduce", "lm_sum_rows", &dst).source(0, &x).ints([1]).floats([1.0]);
    Ok(build.rows(1, x.ne[0]).into())
}

/// ARGMAX.
pub(super) fn argmax(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (x, dst) = (node.src(0)?, node.dst());
    node.require(dst.ne == [x.rows(), 1, 1, 1] && dst.packed_rows(), "the result must have one element per row")?;
    node.require(x.packed_rows() && x.ne[0] > 0, "rows must be packed and not empty")?;
    node.require(x.ne[0] <= i32::MAX as u64, "an index must fit 31 bits")?;
    Ok(Build::new("reduce", "lm_argmax", &dst).source(0, &x).rows(x.rows(), x.ne[0]).into())
}

/// ARGSORT.
pub(super) fn argsort(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (x, dst) = (node.src(0)?, node.dst());
    node.require(x.ne == dst.ne, "source and result must have the same extents")?;
    node.require(x.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    node.require_word(0, node.word(0) <= 1, "the order must be 0 (ascending) or 1 (descending)")?;
    node.require(x.ne[0] <= i32::MAX as u64, "an index must fit 31 bits")?;
    Ok(Build::new("reduce", "lm_argsort", &dst).source(0, &x).ints([node.int(0)]).each(x.elements()).into())
}
