//! Operations that move elements: copies and casts, rows by index, repetition, concatenation.

use super::build::Build;
use super::node::{Node, repeats_into};
use super::types::{Launches, Layout};
use crate::cpu::quant::can_dequantize;
use crate::error::Unsupported;
use loadmaster_graph::DType;

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// DUP, CPY, CONT.
pub(super) fn copy(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (src, dst) = (node.src(0)?, node.dst());
    node.require(src.elements() == dst.elements(), "source and result must have as many elements")?;
    if src.dtype == dst.dtype {
        return Ok(same_type(&src, &dst).into());
    }
    if is_float(src.dtype) && is_float(dst.dtype) {
        return Ok(Build::new("copy", "lm_convert", &dst).source(0, &src).each(dst.elements()).into());
    }
    let (src, dst) = align_extents(src, dst);
    node.require(src.ne == dst.ne, "a quantized tensor keeps its extents unless it is contiguous")?;
    node.require(dst.packed_rows() && src.packed_rows(), "rows must be packed")?;
    if is_float(src.dtype) {
        let blocks = dst.elements() / dst.dtype.block_len();
        return Ok(Build::new("copy", "lm_quantize", &dst).source(0, &src).each(blocks).into());
    }
    node.require(can_dequantize(src.dtype), "there is no reader of the source's type")?;
    node.require(is_float(dst.dtype), "blocks are decoded into floats only")?;
    Ok(decode(&src, &dst).source(0, &src).into())
}

/// Elements that a thread decodes.
const DECODED: u64 = 32;

/// Rows of blocks into packed rows of a float type, the kernel's source 0 left open.
pub(super) fn decode(src: &Layout, dst: &Layout) -> Build {
    Build::new("copy", "lm_dequantize", dst).each(src.elements() / DECODED)
}

fn same_type(src: &Layout, dst: &Layout) -> Build {
    let (from, to) = (src.in_units(), dst.in_units());
    if src.contiguous() && dst.contiguous() {
        let bytes = to.elements().saturating_mul(dst.unit());
        return Build::new("copy", "lm_copy_bytes", dst).source(0, src).longs([bytes]).each(bytes.div_ceil(16));
    }
    let build = Build::new("copy", "lm_copy_units", dst).source(0, src).ints([dst.unit() as i32]);
    build.longs([to.ne[0], from.ne[0]]).each(to.elements())
}

/// A contiguous side takes the extents of the other: the order of elements stays the same.
fn align_extents(src: Layout, dst: Layout) -> (Layout, Layout) {
    if src.ne == dst.ne {
        return (src, dst);
    }
    if let Some(dst) = dst.reshaped(src.ne) {
        return (src, dst);
    }
    (src.reshaped(dst.ne).unwrap_or(src), dst)
}

/// REPEAT.
pub(super) fn repeat(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (src, dst) = (node.src(0)?, node.dst());
    node.require(repeats_into(&src.ne, &dst.ne), "the source must repeat into the result")?;
    let build = Build::new("copy", "lm_repeat", &dst).source(0, &src).ints([dst.unit() as i32]);
    Ok(build.each(dst.elements()).into())
}

/// CONCAT.
pub(super) fn concat(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (a, b, dst) = (node.src(0)?, node.src(1)?, node.dst());
    node.require_word(0, node.word(0) < 4, "the dimension must be 0 to 3")?;
    let dim = node.word(0) as usize;
    let along = |i: usize| a.ne[i].checked_add(b.ne[i]) == Some(dst.ne[i]);
    let fits = (0..4).all(|i| if i == dim { along(i) } else { a.ne[i] == dst.ne[i] && b.ne[i] == dst.ne[i] });
    node.require(fits, "the sources must fill the result along that dimension and agree in the others")?;
    let build = Build::new("copy", "lm_concat", &dst).source(0, &a).source(1, &b);
    Ok(build.ints([dst.unit() as i32, dim as i32]).each(dst.elements()).into())
}

/// GET_ROWS.
pub(super) fn get_rows(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (src, ids, dst) = (node.src(0)?, node.src(1)?, node.dst());
    node.require(dst.ne == [src.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]], "the result must have a row per index")?;
    node.require(src.ne[2] == ids.ne[1] && src.ne[3] == ids.ne[2], "indices must have the source's outer extents")?;
    node.require(src.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    node.require(src.ne[1] > 0, "there must be a row")?;
    let build = Build::new("rows", "lm_get_rows", &dst).source(0, &src).source(1, &ids).watched();
    Ok(build.each(dst.elements()).into())
}

/// Rows that are placed by one launch: each looks for later ones with its index.
const PLACED_TOGETHER: u64 = 2048;

/// SET_ROWS.
pub(super) fn set_rows(node: &Node<'_>) -> Result<Launches, Unsupported> {
    let (src, ids, dst) = (node.src(0)?, node.src(1)?, node.dst());
    node.require(src.ne[0] == dst.ne[0] && src.ne[2..] == dst.ne[2..], "rows and outer extents must agree")?;
    node.require(ids.ne[0] == src.ne[1], "there must be an index for each row")?;
    let repeats = src.ne[2].is_multiple_of(ids.ne[1]) && src.ne[3].is_multiple_of(ids.ne[2]);
    node.require(repeats, "indices must repeat over rows")?;
    node.require(src.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    let build = Build::new("rows", "lm_set_rows", &dst).source(0, &src).source(1, &ids).watched();
    let blocks = dst.ne[0] / dst.dtype.block_len();
    let chunk = |start: u64| {
        let end = (start + PLACED_TOGETHER).min(src.ne[1]);
        let threads = blocks * (end - start) * src.ne[2] * src.ne[3];
        build.clone().longs([start, end]).each(threads).done()
    };
    let starts = (0..src.ne[1]).step_by(PLACED_TOGETHER as usize);
    Ok(Launches { list: starts.map(chunk).collect(), scratch_bytes: 0 })
}
