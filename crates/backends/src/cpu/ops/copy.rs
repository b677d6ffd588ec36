//! DUP, CPY and CONT: the elements of one tensor in their order, into another layout and type.

use super::each_row;
use crate::cpu::ctx::{Cost, Env, Shared};
use crate::cpu::element::{self, Element, with_element};
use crate::cpu::error::KernelError;
use crate::cpu::quant::{can_quantize, row_reader, row_writer};
use crate::cpu::tensor::{NodeArgs, TensorMut, TensorRef, row_at};
use loadmaster_graph::{DType, contiguous_strides};

/// Whether elements of `src` can be written as `dst`.
pub(crate) fn types_fit(src: DType, dst: DType) -> bool {
    src == dst || (element::is_float(src) && can_quantize(dst)) || (dst == DType::F32 && row_reader(src).is_some())
}

/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn copy(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (src, dst) = (node.src(0)?, node.dst);
    node.require(src.elements() == dst.elements(), "source and result must have as many elements")?;
    let (src, dst) = align_extents(src, dst);
    let plain = element::is_float(src.dtype) && element::is_float(dst.dtype);
    if src.dtype == dst.dtype {
        node.require(blocks_line_up(&src, &dst), "blocks of source and result must line up")?;
        // SAFETY: same types, as many blocks.
        unsafe { copy_units(env, src, dst) };
        return Ok(());
    }
    if plain {
        // SAFETY: both are float types with as many elements.
        unsafe { convert(env, src, dst) };
        return Ok(());
    }
    node.require(src.ne == dst.ne, "a quantized tensor keeps its extents unless it is contiguous")?;
    node.require(dst.packed_rows() && src.packed_rows(), "rows must be packed")?;
    // SAFETY: same extents, packed rows.
    if unsafe { convert_rows(env, src, dst) } { Ok(()) } else { Err(node.unsupported()) }
}

/// A contiguous side takes the extents of the other: the order of elements stays the same.
fn align_extents(mut src: TensorRef, mut dst: TensorMut) -> (TensorRef, TensorMut) {
    if src.ne == dst.ne {
        return (src, dst);
    }
    if let Some(nb) = contiguous_strides(dst.dtype, &src.ne).filter(|_| dst.contiguous()) {
        (dst.ne, dst.nb) = (src.ne, nb);
    } else if let Some(nb) = contiguous_strides(src.dtype, &dst.ne).filter(|_| src.contiguous()) {
        (src.ne, src.nb) = (dst.ne, nb);
    }
    (src, dst)
}

fn blocks_line_up(src: &TensorRef, dst: &TensorMut) -> bool {
    let block = src.dtype.block_len();
    block == 1 || (src.ne[0].is_multiple_of(block) && dst.ne[0].is_multiple_of(block))
}

/// Extents in blocks.
fn units(dtype: DType, ne: [u64; 4]) -> [u64; 4] {
    [ne[0] / dtype.block_len(), ne[1], ne[2], ne[3]]
}

/// Same type: bytes move unchanged.
unsafe fn copy_units(env: &Env<'_>, src: TensorRef, dst: TensorMut) {
    let size = src.dtype.block_size().get() as usize;
    if src.contiguous() && dst.contiguous() {
        let bytes = (src.elements() / src.dtype.block_len()) as usize * size;
        env.team.split(bytes, 4096, Cost(1), |_, r| {
            // SAFETY: the range lies inside both; they may be the same bytes.
            unsafe { std::ptr::copy(src.base().add(r.start), dst.base().add(r.start), r.len()) };
        });
        return;
    }
    let (from, to) = (units(src.dtype, src.ne), units(dst.dtype, dst.ne));
    if from != to {
        // SAFETY: as many units on both sides.
        unsafe { walk(src, from, dst, to, |a, b| std::ptr::copy(a, b, size)) };
        return;
    }
    let packed = src.packed_rows() && dst.packed_rows();
    each_row(env, &to, Cost(2), |_, at| {
        // SAFETY: the row exists in both.
        unsafe {
            let (a, b) = (src.row(at), dst.row(at));
            if packed {
                std::ptr::copy(a, b, to[0] as usize * size);
                return;
            }
            for i in 0..to[0] {
                std::ptr::copy(a.add((i * src.nb[0]) as usize), b.add((i * dst.nb[0]) as usize), size);
            }
        }
    });
}

/// Visits the units of two tensors of different extents side by side.
unsafe fn walk(
    src: TensorRef,
    from: [u64; 4],
    dst: TensorMut,
    to: [u64; 4],
    mut visit: impl FnMut(*const u8, *mut u8),
) {
    for i in 0..from.iter().product() {
        // SAFETY: both indices are below the number of units.
        unsafe {
            let a = src.row(row_at(&from, i / from[0])).add((i % from[0] * src.nb[0]) as usize);
            let b = dst.row(row_at(&to, i / to[0])).add((i % to[0] * dst.nb[0]) as usize);
            visit(a, b);
        }
    }
}

/// Between float types.
unsafe fn convert(env: &Env<'_>, src: TensorRef, dst: TensorMut) {
    let packed = src.ne == dst.ne && src.packed_rows() && dst.packed_rows();
    if packed && src.dtype == DType::F32 && dst.dtype == DType::F16 {
        let isa = env.isa;
        each_row(env, &dst.ne, Cost(2), |_, at| {
            // SAFETY: the row exists in both.
            unsafe { element::f32_to_f16_row(isa, src.row(at).cast(), dst.row(at).cast(), dst.ne[0] as usize) };
        });
        return;
    }
    with_element!(src.dtype, S => with_element!(dst.dtype, D =>
        // SAFETY: the types are those of the tensors.
        unsafe { convert_typed::<S, D>(env, src, dst) },
        else ()), else ());
}

unsafe fn convert_typed<S: Element, D: Element>(env: &Env<'_>, src: TensorRef, dst: TensorMut) {
    // SAFETY: the walks visit elements of these types.
    let one = |a: *const u8, b: *mut u8| unsafe {
        b.cast::<D>().write_unaligned(D::from_f32(a.cast::<S>().read_unaligned().to_f32()));
    };
    if src.ne != dst.ne {
        // SAFETY: as many elements on both sides.
        unsafe { walk(src, src.ne, dst, dst.ne, one) };
        return;
    }
    each_row(env, &dst.ne, Cost(4), |_, at| {
        // SAFETY: the row exists in both.
        let (a, b) = unsafe { (src.row(at), dst.row(at)) };
        for i in 0..dst.ne[0] {
            // SAFETY: i is below the extent.
            unsafe { one(a.add((i * src.nb[0]) as usize), b.add((i * dst.nb[0]) as usize)) };
        }
    });
}

/// Into or out of blocks, row by row through floats. `false` if there is no such conversion.
unsafe fn convert_rows(env: &mut Env<'_>, src: TensorRef, dst: TensorMut) -> bool {
    let (Some(read), Some(write)) = (row_reader(src.dtype), row_writer(dst.dtype)) else { return false };
    let n = dst.ne[0] as usize;
    let floats = Shared(env.scratch.per_slot.bytes(env.team.threads() * n * 4).cast::<f32>());
    let row_bytes = |dtype: DType| dtype.row_size(dst.ne[0]).map_or(0, |b| b.get() as usize);
    let (from, to) = (row_bytes(src.dtype), row_bytes(dst.dtype));
    each_row(env, &dst.ne, Cost(8), |slot, at| {
        // SAFETY: the row exists in both and is packed; each slot has its own floats.
        unsafe {
            let floats = std::slice::from_raw_parts_mut(floats.get().add(slot * n), n);
            read(std::slice::from_raw_parts(src.row(at), from), floats);
            write(floats, std::slice::from_raw_parts_mut(dst.row(at), to));
        }
    });
    true
}
