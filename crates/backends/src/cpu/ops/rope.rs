//! ROPE: rotary position embedding, adjacent pairs (mode 0) or halves (mode 2), with frequency factors and YaRN.

use super::each_row;
use crate::cpu::ctx::{Cost, Env, Shared};
use crate::cpu::element::{Element, F16};
use crate::cpu::error::KernelError;
use crate::cpu::isa::multiversion;
use crate::cpu::tensor::{NodeArgs, TensorRef};
use loadmaster_graph::DType;

/// The types a rotation takes.
pub(crate) fn types_fit(x: DType, pos: DType, factors: Option<DType>, dst: DType) -> bool {
    matches!(x, DType::F32 | DType::F16) && dst == x && pos == DType::I32 && factors.is_none_or(|f| f == DType::F32)
}

/// Whether a mode (word 2) has a kernel: adjacent pairs or halves.
pub(crate) fn mode_fits(mode: u32) -> bool {
    mode == 0 || mode == 2
}

#[derive(Clone, Copy, PartialEq)]
struct Rope {
    dims: usize,
    offset: usize,
    neox: bool,
    freq_scale: f32,
    ext_factor: f32,
    attn_factor: f32,
    theta_scale: f32,
    /// Pairs below the first keep their frequency, pairs above the second are interpolated (YaRN).
    corr: [f32; 2],
}

impl Rope {
    fn read(node: &NodeArgs<'_>) -> Result<Self, KernelError> {
        let width = node.dst.ne[0];
        let (dims, mode, offset) = (node.int(1), node.int(2), node.int(15));
        if dims <= 0 || dims % 2 != 0 || dims as u64 > width {
            return Err(node.bad_word(1, "the number of rotated channels must be even and fit the row"));
        }
        if !mode_fits(node.word(2)) {
            return Err(node.bad_word(2, "only the modes 0 (adjacent pairs) and 2 (halves) have a CPU kernel"));
        }
        if offset < 0 || offset % 2 != 0 || (offset + dims) as u64 > width {
            return Err(node.bad_word(15, "the rotated channels must lie inside the row"));
        }
        let base = node.float(5);
        let corr_dim = |rotations: f32| {
            let n = node.int(4) as f32 / (rotations * 2.0 * std::f32::consts::PI);
            dims as f32 * n.ln() / (2.0 * base.ln())
        };
        Ok(Self {
            dims: dims as usize,
            offset: offset as usize,
            neox: mode == 2,
            freq_scale: node.float(6),
            ext_factor: node.float(7),
            attn_factor: node.float(8),
            theta_scale: base.powf(-2.0 / dims as f32),
            corr: [corr_dim(node.float(9)).floor().max(0.0), corr_dim(node.float(10)).ceil().min((dims - 1) as f32)],
        })
    }

    /// Cosine and sine of every pair at a position.
    ///
    /// The angle is multiplied up from pair to pair, as the reference does: its rounding shows at large positions.
    fn angles(&self, position: i32, factors: &[f32], cos: &mut [f32], sin: &mut [f32]) {
        let mut theta = position as f32;
        for (pair, (c, s)) in cos.iter_mut().zip(sin).enumerate() {
            let (angle, magnitude) = self.yarn(theta / factors.get(pair).copied().unwrap_or(1.0), pair);
            *c = angle.cos() * magnitude;
            *s = angle.sin() * magnitude;
            theta *= self.theta_scale;
        }
    }

    /// YaRN (Peng et al. 2023): interpolated below, extrapolated above, a ramp between; magnitude corrected.
    fn yarn(&self, extrapolated: f32, pair: usize) -> (f32, f32) {
        let interpolated = self.freq_scale * extrapolated;
        if self.ext_factor == 0.0 {
            return (interpolated, self.attn_factor);
        }
        let [low, high] = self.corr;
        let ramp = 1.0 - ((pair as f32 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let mix = ramp * self.ext_factor;
        let angle = interpolated * (1.0 - mix) + extrapolated * mix;
        (angle, self.attn_factor * (1.0 + 0.1 * (1.0 / self.freq_scale).ln()))
    }
}

/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn rope(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (x, pos, factors, dst) = (node.src(0)?, node.src(1)?, node.optional(2), node.dst);
    let rope = Rope::read(node)?;
    node.require(x.ne == dst.ne, "source and result must have the same extents")?;
    node.require(x.packed_rows() && dst.packed_rows() && pos.packed_rows(), "rows must be packed")?;
    node.require(pos.ne[0] >= dst.ne[2], "there must be a position for each index of dimension 2")?;
    let pairs = rope.dims / 2;
    if let Some(f) = factors {
        node.require(f.packed_rows() && f.ne[0] >= pairs as u64, "there must be a factor for each pair")?;
    }
    // SAFETY: factors and positions are long enough.
    let table = unsafe { fill_table(env, &rope, pos, factors, dst.ne[2] as usize) };
    let isa = env.isa;
    each_row(env, &dst.ne, Cost(3), |_, at| {
        // SAFETY: the row exists in both; the table has an entry for each index of dimension 2.
        unsafe {
            let angles = table.get().add(at[1] as usize * rope.dims);
            let (from, to) = (x.row(at), dst.row(at));
            match (dst.dtype, rope.neox) {
                (DType::F16, true) => halves_f16(isa, from, to, rope.offset, pairs, angles),
                (DType::F16, false) => adjacent_f16(isa, from, to, rope.offset, pairs, angles),
                (_, true) => halves_f32(isa, from, to, rope.offset, pairs, angles),
                (_, false) => adjacent_f32(isa, from, to, rope.offset, pairs, angles),
            }
            copy_rest(from, to, &rope, dst.ne[0] as usize, dst.dtype.block_size().get() as usize);
        }
    });
    Ok(())
}

/// Cosines and sines of the last rotation. All layers of a model usually rotate by the same angles.
#[derive(Default)]
pub(crate) struct Table {
    rope: Option<Rope>,
    positions: Vec<i32>,
    factors: Vec<f32>,
    /// For each position: cosines of all pairs, then sines.
    angles: Vec<f32>,
}

/// The table for these positions and factors, made anew only if they changed.
///
/// # Safety
/// Positions and factors must be long enough.
unsafe fn fill_table(
    env: &mut Env<'_>,
    rope: &Rope,
    pos: TensorRef,
    factors: Option<TensorRef>,
    positions: usize,
) -> Shared<f32> {
    let pairs = rope.dims / 2;
    let table = &mut env.scratch.rope;
    // SAFETY: as above.
    let position = |i: usize| unsafe { pos.base().cast::<i32>().add(i).read_unaligned() };
    // SAFETY: as above.
    let factor = |i: usize| factors.map(|f| unsafe { f.base().cast::<f32>().add(i).read_unaligned() });
    let same = table.rope == Some(*rope)
        && table.positions.len() == positions
        && table.positions.iter().enumerate().all(|(i, &p)| p == position(i))
        && table.factors.len() == factors.map_or(0, |_| pairs)
        && table.factors.iter().enumerate().all(|(i, &f)| Some(f) == factor(i));
    if same {
        return Shared(table.angles.as_mut_ptr());
    }
    table.rope = Some(*rope);
    table.positions.clear();
    table.positions.extend((0..positions).map(position));
    table.factors.clear();
    table.factors.extend((0..pairs).filter_map(factor));
    table.angles.resize(positions * rope.dims, 0.0);
    let angles = Shared(table.angles.as_mut_ptr());
    let table = &*table;
    env.team.split(positions, 1, Cost(pairs as u64 * 20), |_, range| {
        for i in range {
            // SAFETY: each position has a row of its own.
            let row = unsafe { std::slice::from_raw_parts_mut(angles.get().add(i * rope.dims), rope.dims) };
            let (cos, sin) = row.split_at_mut(pairs);
            rope.angles(table.positions[i], &table.factors, cos, sin);
        }
    });
    angles
}

/// Channels that are not rotated.
unsafe fn copy_rest(from: *const u8, to: *mut u8, rope: &Rope, width: usize, size: usize) {
    if std::ptr::eq(from, to) {
        return;
    }
    let end = rope.offset + rope.dims;
    // SAFETY: both parts lie inside the row; source and result are apart.
    unsafe {
        std::ptr::copy(from, to, rope.offset * size);
        std::ptr::copy(from.add(end * size), to.add(end * size), (width - end) * size);
    }
}

multiversion! {
    unsafe fn halves_f32(x: *const u8, y: *mut u8, offset: usize, pairs: usize, angles: *const f32) = halves::<f32>;
}
multiversion! {
    unsafe fn halves_f16(x: *const u8, y: *mut u8, offset: usize, pairs: usize, angles: *const f32) = halves::<F16>;
}
multiversion! {
    unsafe fn adjacent_f32(x: *const u8, y: *mut u8, offset: usize, pairs: usize, angles: *const f32) = adjacent::<f32>;
}
multiversion! {
    unsafe fn adjacent_f16(x: *const u8, y: *mut u8, offset: usize, pairs: usize, angles: *const f32) = adjacent::<F16>;
}

/// The first product is fused with the sum, the second rounded, as compilers make of the reference's source.
#[inline(always)]
fn rotate<T: Element>([a, b]: [T; 2], cos: f32, sin: f32) -> [T; 2] {
    let (a, b) = (a.to_f32(), b.to_f32());
    [T::from_f32(a.mul_add(cos, -(b * sin))), T::from_f32(a.mul_add(sin, b * cos))]
}

/// Pair i is (i, i + pairs).
#[inline(always)]
unsafe fn halves<T: Element>(x: *const u8, y: *mut u8, offset: usize, pairs: usize, angles: *const f32) {
    // SAFETY: offset + 2 · pairs channels lie inside the row; a pair is read before it is written. In place, the source
    // is read through the result's pointer: compilers then see that no pair overlaps another.
    unsafe {
        let (x, y) = (x.cast::<T>().add(offset), y.cast::<T>().add(offset));
        let pair = |from: *const T, i: usize| [from.add(i).read_unaligned(), from.add(i + pairs).read_unaligned()];
        let put = |i: usize, from: *const T| {
            let [a, b] = rotate(pair(from, i), *angles.add(i), *angles.add(i + pairs));
            y.add(i).write_unaligned(a);
            y.add(i + pairs).write_unaligned(b);
        };
        if std::ptr::eq(x, y) {
            (0..pairs).for_each(|i| put(i, y));
        } else {
            (0..pairs).for_each(|i| put(i, x));
        }
    }
}

/// Pair i is (2 i, 2 i + 1).
#[inline(always)]
unsafe fn adjacent<T: Element>(x: *const u8, y: *mut u8, offset: usize, pairs: usize, angles: *const f32) {
    // SAFETY: as above.
    unsafe {
        let (x, y) = (x.cast::<T>().add(offset).cast::<[T; 2]>(), y.cast::<T>().add(offset).cast::<[T; 2]>());
        let put = |i: usize, from: *const [T; 2]| {
            y.add(i).write_unaligned(rotate(from.add(i).read_unaligned(), *angles.add(i), *angles.add(i + pairs)));
        };
        if std::ptr::eq(x, y) {
            (0..pairs).for_each(|i| put(i, y));
        } else {
            (0..pairs).for_each(|i| put(i, x));
        }
    }
}
