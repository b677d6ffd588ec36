//! Activations in the form that a weight format multiplies with.
//!
//! A record holds one row of activations: floats (rounded to the weights' precision first), or 8-bit codes with their
//! scales. Parts of a record start at multiples of 64 and are padded with zeros to whole vectors.

use crate::cpu::ctx::{Cost, Env, Shared};
use crate::cpu::element::{load, round_half};
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::quant::{absolute_maximum, bf16_to_f32, f16_to_f32, f32_to_bf16, q8_0_block, round_to_even};
use crate::cpu::tensor::{RowAt, TensorMut, TensorRef, row_at};
use loadmaster_graph::DType;

/// How activations are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// As they are.
    F32,
    /// To halves.
    F16,
    /// To bfloats.
    Bf16,
    /// To 8 bits in blocks of 32.
    Q8x32,
    /// To 8 bits in blocks of 256.
    Q8x256,
}

impl Form {
    /// The form for a weight type; `None`: no products with it.
    pub(crate) fn of_weights(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::Bf16 => Self::Bf16,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 | DType::Iq4Nl => Self::Q8x32,
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K | DType::Iq4Xs => Self::Q8x256,
            _ => return None,
        })
    }

    /// Bytes of a record of `k` elements; a multiple of 64.
    pub(crate) fn record_bytes(self, k: usize) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => (k * 4).next_multiple_of(64),
            Self::Q8x32 => Q8x32::layout(k).end,
            Self::Q8x256 => Q8x256::layout(k).end,
        }
    }

    /// Writes a record.
    ///
    /// # Safety
    /// `x` must be valid for `k` reads, `record` for [`Self::record_bytes`] writes.
    pub(crate) unsafe fn write(self, isa: Isa, x: *const f32, k: usize, record: *mut u8) {
        // SAFETY: the same contract.
        unsafe {
            match self {
                Self::F32 => write_f32(x, k, record.cast()),
                Self::F16 => write_f16(isa, x, k, record.cast()),
                Self::Bf16 => write_bf16(isa, x, k, record.cast()),
                Self::Q8x32 => write_q8x32(isa, x, k, record),
                Self::Q8x256 => write_q8x256(isa, x, k, record),
            }
        }
    }
}

/// The parts of a record in blocks of 32.
#[derive(Clone, Copy)]
pub(crate) struct Q8x32 {
    /// Codes in element order.
    pub(crate) codes: *const i8,
    /// Scale of each block, rounded to half.
    pub(crate) d: *const f32,
    /// Scale times sum of codes of each block, rounded to half.
    pub(crate) s: *const f32,
}

/// Offsets of a record's parts after the codes.
pub(crate) struct Offsets<const N: usize> {
    at: [usize; N],
    end: usize,
}

/// Lays out `counts` four-byte parts behind `codes` bytes.
fn offsets<const N: usize>(codes: usize, bytes: [usize; N]) -> Offsets<N> {
    let mut end = codes.next_multiple_of(64);
    let at = bytes.map(|n| {
        let start = end;
        end += n.next_multiple_of(64);
        start
    });
    Offsets { at, end }
}

impl Q8x32 {
    pub(crate) fn layout(k: usize) -> Offsets<2> {
        offsets(k, [k / 32 * 4; 2])
    }
    /// # Safety
    /// `record` must be one of `k` elements.
    pub(crate) unsafe fn view(record: *const u8, k: usize) -> Self {
        let [d, s] = Self::layout(k).at;
        // SAFETY: the parts lie inside the record.
        unsafe { Self { codes: record.cast(), d: record.add(d).cast(), s: record.add(s).cast() } }
    }
}

/// The parts of a record in blocks of 256.
#[derive(Clone, Copy)]
pub(crate) struct Q8x256 {
    /// Codes in element order.
    pub(crate) codes: *const i8,
    /// Scale of each block.
    pub(crate) d: *const f32,
    /// Sum of the codes of each 16.
    pub(crate) sums: *const i16,
}

impl Q8x256 {
    pub(crate) fn layout(k: usize) -> Offsets<2> {
        offsets(k, [k / 256 * 4, k / 16 * 2])
    }
    /// # Safety
    /// `record` must be one of `k` elements.
    pub(crate) unsafe fn view(record: *const u8, k: usize) -> Self {
        let [d, sums] = Self::layout(k).at;
        // SAFETY: the parts lie inside the record.
        unsafe { Self { codes: record.cast(), d: record.add(d).cast(), sums: record.add(sums).cast() } }
    }
}

/// Where the records of a tensor's rows are.
#[derive(Clone, Copy)]
pub(crate) struct Records {
    data: *const u8,
    strides: [usize; 3],
}

// SAFETY: a plain address of records that are only read.
unsafe impl Send for Records {}
// SAFETY: as above.
unsafe impl Sync for Records {}

impl Records {
    /// # Safety
    /// `at` must lie inside the extents.
    pub(crate) unsafe fn at(&self, at: RowAt) -> *const u8 {
        let offset: usize = (0..3).map(|i| at[i] as usize * self.strides[i]).sum();
        // SAFETY: inside the records.
        unsafe { self.data.add(offset) }
    }
}

/// What the records in scratch were made of. Products of one layer often share their activations.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    form: Form,
    x: TensorRef,
}

impl Source {
    fn same(&self, other: &Self) -> bool {
        let (a, b) = (&self.x, &other.x);
        self.form == other.form && (a.dtype, a.ne, a.nb, a.data) == (b.dtype, b.ne, b.nb, b.data)
    }
    /// Whether writing `dst` may change it.
    pub(crate) fn touched_by(&self, dst: &TensorMut) -> bool {
        let (from, to) = (self.x.data as usize, dst.data as usize);
        from < to.saturating_add(dst.as_ref().span()) && to < from.saturating_add(self.x.span())
    }
}

/// Records of all rows of `x`: the rows themselves where nothing has to change, else written into scratch.
///
/// # Safety
/// `x` must be valid for its layout.
pub(crate) unsafe fn prepare(env: &mut Env<'_>, form: Form, x: &TensorRef) -> Records {
    if form == Form::F32 && x.dtype == DType::F32 && x.packed_rows() {
        return Records { data: x.data, strides: [x.nb[1] as usize, x.nb[2] as usize, x.nb[3] as usize] };
    }
    let k = x.ne[0] as usize;
    let bytes = form.record_bytes(k);
    let rows = x.rows() as usize;
    let plane = bytes * x.ne[1] as usize;
    let strides = [bytes, plane, plane * x.ne[2] as usize];
    let source = Source { form, x: *x };
    if env.prepared.is_some_and(|p| p.same(&source)) {
        return Records { data: env.scratch.activations.bytes(bytes * rows), strides };
    }
    env.prepared = Some(source);
    let records = Shared(env.scratch.activations.bytes(bytes * rows));
    let floats = Shared(env.scratch.per_slot.bytes(env.team.threads() * k * 4).cast::<f32>());
    let direct = x.dtype == DType::F32 && x.packed_rows();
    let (isa, x) = (env.isa, *x);
    env.team.split(rows, 1, Cost(k as u64 + 10), |slot, range| {
        for row in range {
            // SAFETY: the row exists; each slot has its own floats; records do not overlap.
            unsafe {
                let from = x.row(row_at(&x.ne, row as u64));
                let own = floats.get().add(slot * k);
                if !direct {
                    gather(&x, from, own);
                }
                let values = if direct { from.cast::<f32>() } else { own.cast_const() };
                form.write(isa, values, k, records.get().add(row * bytes));
            }
        }
    });
    Records { data: records.get(), strides }
}

/// A strided row, or one of another float type, as floats.
unsafe fn gather(x: &TensorRef, row: *const u8, out: *mut f32) {
    for i in 0..x.ne[0] {
        // SAFETY: the element exists; types were checked to be floats.
        unsafe { out.add(i as usize).write(load(x.dtype, row.add((i * x.nb[0]) as usize)).unwrap_or(f32::NAN)) };
    }
}

unsafe fn write_f32(x: *const f32, k: usize, out: *mut f32) {
    // SAFETY: as `Form::write`.
    unsafe { std::ptr::copy_nonoverlapping(x, out, k) };
}

multiversion! {
    unsafe fn write_f16(x: *const f32, k: usize, out: *mut f32) = write_f16_body;
}
#[inline(always)]
unsafe fn write_f16_body(x: *const f32, k: usize, out: *mut f32) {
    for i in 0..k {
        // SAFETY: i < k.
        unsafe { out.add(i).write(f16_to_f32(round_half(x.add(i).read_unaligned()))) };
    }
}

multiversion! {
    unsafe fn write_bf16(x: *const f32, k: usize, out: *mut f32) = write_bf16_body;
}
#[inline(always)]
unsafe fn write_bf16_body(x: *const f32, k: usize, out: *mut f32) {
    for i in 0..k {
        // SAFETY: i < k.
        unsafe { out.add(i).write(bf16_to_f32(f32_to_bf16(x.add(i).read_unaligned()))) };
    }
}

/// The parts of a record in blocks of 32, to write.
pub(crate) struct Q8x32Mut {
    pub(crate) codes: *mut i8,
    pub(crate) d: *mut f32,
    pub(crate) s: *mut f32,
}

/// The parts of a record in blocks of 256, to write.
pub(crate) struct Q8x256Mut {
    pub(crate) codes: *mut i8,
    pub(crate) d: *mut f32,
    pub(crate) sums: *mut i16,
}

unsafe fn write_q8x32(isa: Isa, x: *const f32, k: usize, record: *mut u8) {
    let layout = Q8x32::layout(k);
    let blocks = k / 32;
    // SAFETY: the parts lie inside the record.
    unsafe {
        clear_padding(record, k, layout.at[0]);
        let [d, s] = layout.at.map(|at| record.add(at));
        for part in [d, s] {
            clear_padding(part, blocks * 4, (blocks * 4).next_multiple_of(64));
        }
        let to = Q8x32Mut { codes: record.cast(), d: d.cast(), s: s.cast() };
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::avx512::quantize::write_q8x32(x, blocks, &to),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::quantize::write_q8x32(x, blocks, &to),
            _ => write_q8x32_portable(x, blocks, &to),
        }
    }
}

/// Zeros from `used` to `end`.
#[inline(always)]
unsafe fn clear_padding(part: *mut u8, used: usize, end: usize) {
    // SAFETY: the caller vouches for the part.
    unsafe { part.add(used).write_bytes(0, end - used) };
}

unsafe fn write_q8x32_portable(x: *const f32, blocks: usize, to: &Q8x32Mut) {
    for b in 0..blocks {
        // SAFETY: block b lies inside the row and the record.
        unsafe {
            let q = q8_0_block(&x.add(b * 32).cast::<[f32; 32]>().read_unaligned());
            let total: i32 = q.codes.iter().map(|&c| i32::from(c)).sum();
            to.codes.add(b * 32).cast::<[i8; 32]>().write_unaligned(q.codes);
            to.d.add(b).write(f16_to_f32(round_half(q.d)));
            to.s.add(b).write(f16_to_f32(round_half(q.d * total as f32)));
        }
    }
}

unsafe fn write_q8x256(isa: Isa, x: *const f32, k: usize, record: *mut u8) {
    let [d, sums] = Q8x256::layout(k).at;
    // SAFETY: the parts lie inside the record.
    unsafe {
        let to = Q8x256Mut { codes: record.cast(), d: record.add(d).cast(), sums: record.add(sums).cast() };
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::avx512::quantize::write_q8x256(x, k / 256, &to),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::quantize::write_q8x256(x, k / 256, &to),
            _ => write_q8x256_portable(x, k / 256, &to),
        }
    }
}

unsafe fn write_q8x256_portable(x: *const f32, blocks: usize, to: &Q8x256Mut) {
    for b in 0..blocks {
        // SAFETY: block b lies inside the row and the record.
        unsafe {
            let values = x.add(b * 256).cast::<[f32; 256]>().read_unaligned();
            let amax = absolute_maximum(&values);
            let factor = if amax == 0.0 { 0.0 } else { 127.0 / amax };
            to.d.add(b).write(if amax == 0.0 { 0.0 } else { 1.0 / factor });
            for (g, group) in values.as_chunks::<16>().0.iter().enumerate() {
                let codes = group.map(|v| round_to_even(v * factor) as i8);
                let total: i16 = codes.iter().map(|&c| i16::from(c)).sum();
                to.codes.add(b * 256 + g * 16).cast::<[i8; 16]>().write_unaligned(codes);
                to.sums.add(b * 16 + g).write(total);
            }
        }
    }
}
