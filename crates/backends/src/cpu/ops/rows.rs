//! GET_ROWS and SET_ROWS: rows picked or placed by an index tensor.

use super::each_row;
use crate::cpu::ctx::{Cost, Env, Shared};
use crate::cpu::element;
use crate::cpu::error::KernelError;
use crate::cpu::isa::Isa;
use crate::cpu::quant::{RowReader, RowWriter, can_quantize, row_reader, row_writer};
use crate::cpu::tensor::{NodeArgs, TensorRef};
use loadmaster_graph::DType;

/// Types that rows are read from and written to.
pub(crate) fn get_types_fit(rows: DType, ids: DType, dst: DType) -> bool {
    let copied = rows == dst && matches!(rows, DType::I32 | DType::F32);
    ids == DType::I32 && (copied || (dst == DType::F32 && row_reader(rows).is_some()))
}

/// Types that rows are placed from and into.
pub(crate) fn set_types_fit(rows: DType, ids: DType, dst: DType) -> bool {
    matches!(rows, DType::F32 | DType::F16) && matches!(ids, DType::I32 | DType::I64) && can_quantize(dst)
}

/// An index tensor.
#[derive(Clone, Copy)]
struct Ids(TensorRef);

impl Ids {
    /// # Safety
    /// The index must lie inside the extents.
    unsafe fn at(&self, i: u64, j: u64, k: u64) -> i64 {
        let t = &self.0;
        // SAFETY: inside the extents.
        unsafe {
            let at = t.base().add((i * t.nb[0] + j * t.nb[1] + k * t.nb[2]) as usize);
            if t.dtype == DType::I64 {
                at.cast::<i64>().read_unaligned()
            } else {
                at.cast::<i32>().read_unaligned().into()
            }
        }
    }

    /// Every index must name one of `rows` rows.
    fn check(&self, node: &NodeArgs<'_>, operand: u8, rows: u64) -> Result<(), KernelError> {
        let ne = self.0.ne;
        for k in 0..ne[2] {
            for j in 0..ne[1] {
                for i in 0..ne[0] {
                    // SAFETY: inside the extents.
                    let id = unsafe { self.at(i, j, k) };
                    if !u64::try_from(id).is_ok_and(|id| id < rows) {
                        return Err(node.bad_index(operand, id, rows));
                    }
                }
            }
        }
        Ok(())
    }
}

/// `dst[:, i, j, k] = src0[:, src1[i, j, k], j, k]`, as floats (I32 rows stay I32).
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn get_rows(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (src, ids, dst) = (node.src(0)?, node.src(1)?, node.dst);
    node.require(dst.ne == [src.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]], "the result must have a row per index")?;
    node.require(src.ne[2] == ids.ne[1] && src.ne[3] == ids.ne[2], "indices must have the source's outer extents")?;
    node.require(src.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    let ids = Ids(ids);
    ids.check(node, 1, src.ne[1])?;
    let copied = src.dtype == dst.dtype;
    let Some(read) = row_reader(if copied { DType::F32 } else { src.dtype }) else { return Err(node.unsupported()) };
    let bytes = src.dtype.row_size(src.ne[0]).map_or(0, |b| b.get() as usize);
    each_row(env, &dst.ne, Cost(4), |_, at| {
        // SAFETY: the index was checked; both rows exist and are packed; F32 results are aligned to 4.
        unsafe {
            let row = ids.at(at[0], at[1], at[2]) as u64;
            let (from, to) = (src.row([row, at[1], at[2]]), dst.row(at));
            if copied {
                std::ptr::copy_nonoverlapping(from, to, bytes);
            } else {
                let out = std::slice::from_raw_parts_mut(to.cast::<f32>(), dst.ne[0] as usize);
                read(std::slice::from_raw_parts(from, bytes), out);
            }
        }
    });
    Ok(())
}

/// `dst[:, src1[i, j, k], j, k] = src0[:, i, j, k]` (indices repeat over j and k), in the result's type. Of several
/// rows with the same index the last one stays.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn set_rows(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (src, ids, dst) = (node.src(0)?, node.src(1)?, node.dst);
    node.require(src.ne[0] == dst.ne[0] && src.ne[2..] == dst.ne[2..], "rows and outer extents must agree")?;
    node.require(ids.ne[0] == src.ne[1], "there must be an index for each row")?;
    let repeats = src.ne[2].is_multiple_of(ids.ne[1]) && src.ne[3].is_multiple_of(ids.ne[2]);
    node.require(repeats, "indices must repeat over rows")?;
    node.require(src.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    let ids = Ids(ids);
    ids.check(node, 1, dst.ne[1])?;
    // SAFETY: rows are packed, indices checked.
    if unsafe { place(env, src, ids, node) } { Ok(()) } else { Err(node.unsupported()) }
}

/// Tasks own ranges of result rows and read all indices, so no two of them write the same row.
unsafe fn place(env: &mut Env<'_>, src: TensorRef, ids: Ids, node: &NodeArgs<'_>) -> bool {
    let dst = node.dst;
    // SAFETY: `RowCopy` is given the sizes of these rows.
    let Some(copy) = RowCopy::new(env, src.dtype, dst.dtype, dst.ne[0]) else { return false };
    let copy = &copy;
    let work = Cost(4 * src.elements() / dst.ne[1].max(1) + 1);
    env.team.split(dst.ne[1] as usize, 1, work, |slot, owned| {
        for k in 0..src.ne[3] {
            for j in 0..src.ne[2] {
                for i in 0..src.ne[1] {
                    // SAFETY: all indices are inside the extents; the row is this task's.
                    unsafe {
                        let row = ids.at(i, j % ids.0.ne[1], k % ids.0.ne[2]) as u64;
                        if owned.contains(&(row as usize)) {
                            copy.row(slot, src.row([i, j, k]), dst.row([row, j, k]));
                        }
                    }
                }
            }
        }
    });
    true
}

/// Writes rows of one type as rows of another.
struct RowCopy {
    isa: Isa,
    from: DType,
    to: DType,
    n: usize,
    from_bytes: usize,
    to_bytes: usize,
    write: RowWriter,
    read: RowReader,
    floats: Shared<f32>,
}

impl RowCopy {
    fn new(env: &mut Env<'_>, from: DType, to: DType, n: u64) -> Option<Self> {
        let elements = n as usize;
        let floats = env.scratch.per_slot.bytes(env.team.threads() * elements * 4).cast::<f32>();
        Some(Self {
            isa: env.isa,
            from,
            to,
            n: elements,
            from_bytes: from.row_size(n)?.get() as usize,
            to_bytes: to.row_size(n)?.get() as usize,
            write: row_writer(to)?,
            read: row_reader(from)?,
            floats: Shared(floats),
        })
    }

    /// # Safety
    /// The rows must be of these types and `n` elements long, the slot one participant's own.
    unsafe fn row(&self, slot: usize, src: *const u8, dst: *mut u8) {
        // SAFETY: the caller vouches for the rows; F32 rows and scratch are aligned to 4.
        unsafe {
            if self.from == self.to {
                std::ptr::copy_nonoverlapping(src, dst, self.from_bytes);
            } else if (self.from, self.to) == (DType::F32, DType::F16) {
                element::f32_to_f16_row(self.isa, src.cast(), dst.cast(), self.n);
            } else {
                let out = std::slice::from_raw_parts_mut(dst, self.to_bytes);
                let floats = if self.from == DType::F32 {
                    std::slice::from_raw_parts(src.cast::<f32>(), self.n)
                } else {
                    let own = std::slice::from_raw_parts_mut(self.floats.get().add(slot * self.n), self.n);
                    (self.read)(std::slice::from_raw_parts(src, self.from_bytes), own);
                    &*own
                };
                (self.write)(floats, out);
            }
        }
    }
}
