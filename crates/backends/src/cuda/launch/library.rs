//! Which matrix products cuBLAS computes, and how they are put to it.
//!
//! The rule, in one place. Of a node MUL_MAT, where the library is used at all:
//!
//! - Weights of a float type go there from [`LibraryRule::floats_from`] columns on; bfloats from sm_80 on, others from
//!   sm_70 on. Activations are rounded to the weights' type, as our own kernels do it, so results differ in the order of
//!   summation only.
//! - Quantized weights go there from [`LibraryRule::quantized_from`] columns on, from sm_80 on: they are decoded to
//!   bfloats, a slice of rows at a time, which costs a pass over memory that only many columns repay. Bfloats and not
//!   halves, because activations may be larger than halves hold; what their rounding costs is a tenth of what our own
//!   kernels' rounding of activations to 8 bits does.
//! - Where extents, strides or the number of calls do not fit, our own kernels compute it.
//!
//! Sums are in 32 bits. Scratch memory: the library's workspace, activations that had to be rounded or packed, a slice of
//! decoded weights.

use super::build::{Build, scratch, source};
use super::copies;
use super::node::Node;
use super::types::{Factor, Launches, Layout, LibraryRule, Matrix, Place, Product, Target, Work};
use crate::error::Unsupported;
use loadmaster_graph::{DType, contiguous_strides};
use smallvec::SmallVec;

/// First architectures whose matrix units take halves, and bfloats.
const HALVES: u32 = 70;
const BFLOATS: u32 = 80;
/// A node that takes more calls than this is left to our own kernels.
const MOST_CALLS: u64 = 32;
/// Most matrices of one call.
const MOST_MATRICES: u64 = 65_535;
/// Alignment of what lies in scratch memory.
const ALIGN: u64 = 256;

/// The work of a product that the library computes; none: our own kernels do.
pub(super) fn product(w: &Layout, x: &Layout, dst: &Layout, target: &Target) -> Option<Launches> {
    let rule = target.library.as_ref()?;
    let factor = factor(w.dtype, dst.ne[1], rule, target.arch)?;
    if dst.dtype != DType::F32 || w.ne[0] == 0 {
        return None;
    }
    let mut plan = Plan { list: SmallVec::new(), scratch_bytes: rule.workspace, slice: rule.slice };
    let x = plan.activations(x, factor)?;
    let (x, dst) = merged(w, x, Located { layout: *dst, place: super::build::DST });
    let calls = Calls { factor, x, dst };
    if w.dtype == dtype(factor) {
        calls.add(&mut plan.list, &Located { layout: *w, place: source(0) }, 0)?;
    } else {
        plan.decoded(w, &calls)?;
    }
    Some(Launches { list: plan.list, scratch_bytes: plan.scratch_bytes })
}

/// Scratch memory that no product like this one exceeds which has fewer columns of fewer sequences. One sequence may have
/// the columns of all, and come here where a share of them each does not; else no smaller product needs more, and nothing is
/// said here.
pub(super) fn most_scratch(node: &Node<'_>, target: &Target) -> Result<u64, Unsupported> {
    let (w, x) = (node.src(0)?, node.src(1)?);
    let columns = x.ne[1].saturating_mul(x.ne[3]);
    let Some(rule) = target.library.filter(|_| x.ne[3] > 1) else { return Ok(0) };
    let Some(factor) = factor(w.dtype, columns, &rule, target.arch) else { return Ok(0) };
    let mut plan = Plan { list: SmallVec::new(), scratch_bytes: rule.workspace, slice: rule.slice };
    let packed = plan.fresh(dtype(factor), x.ne);
    let decoded = if w.dtype == dtype(factor) {
        packed
    } else {
        plan.fresh(dtype(factor), [w.ne[0], slice(&w, factor, rule.slice), 1, 1])
    };
    Ok(if packed.and(decoded).is_some() { plan.scratch_bytes } else { 0 })
}

/// Rows of quantized weights that are decoded at once.
fn slice(w: &Layout, factor: Factor, bytes: u64) -> u64 {
    let row = w.ne[0].saturating_mul(dtype(factor).block_size().get());
    (bytes / row.max(1)).clamp(1, w.ne[1].max(1))
}

/// The type in which weights and activations meet; none: not here.
fn factor(weights: DType, columns: u64, rule: &LibraryRule, arch: u32) -> Option<Factor> {
    let (factor, from, least) = match weights {
        DType::F32 => (Factor::F32, rule.floats_from, HALVES),
        DType::F16 => (Factor::F16, rule.floats_from, HALVES),
        DType::Bf16 => (Factor::Bf16, rule.floats_from, BFLOATS),
        _ => (Factor::Bf16, rule.quantized_from, BFLOATS),
    };
    (columns >= from && arch >= least).then_some(factor)
}

const fn dtype(factor: Factor) -> DType {
    match factor {
        Factor::F32 => DType::F32,
        Factor::F16 => DType::F16,
        Factor::Bf16 => DType::Bf16,
    }
}

/// A tensor that is somewhere.
#[derive(Clone, Copy)]
struct Located {
    layout: Layout,
    place: Place,
}

impl Located {
    /// The same from an element of the outer dimensions on.
    fn at(&self, at: [u64; 3]) -> Self {
        let bytes = (1..4).map(|i| self.layout.nb[i] * at[i - 1]).sum::<u64>();
        Self { place: Place { offset: self.place.offset + bytes, ..self.place }, ..*self }
    }

    /// As the library takes it, matrices `stride` bytes apart. None: rows overlap, or strides are no whole elements.
    fn matrix(&self, stride: u64) -> Option<Matrix> {
        let layout = &self.layout;
        let size = layout.unit();
        let leading = if layout.ne[1] == 1 { layout.ne[0] } else { layout.nb[1] / size };
        let whole = layout.nb[1].is_multiple_of(size) || layout.ne[1] == 1;
        if !whole || !stride.is_multiple_of(size) || leading < layout.ne[0] {
            return None;
        }
        let (leading, stride) = (i32::try_from(leading).ok()?, i64::try_from(stride / size).ok()?);
        Some(Matrix { place: self.place, leading, stride })
    }
}

/// What is planned so far.
struct Plan {
    list: SmallVec<[Work; 2]>,
    scratch_bytes: u64,
    slice: u64,
}

impl Plan {
    /// A tensor without gaps in fresh scratch memory.
    fn fresh(&mut self, dtype: DType, ne: [u64; 4]) -> Option<Located> {
        let layout = Layout { dtype, ne, nb: contiguous_strides(dtype, &ne)? };
        let start = self.scratch_bytes.next_multiple_of(ALIGN);
        self.scratch_bytes = start.checked_add(layout.elements().checked_mul(layout.unit())?)?;
        Some(Located { layout, place: scratch(start) })
    }

    /// Activations as the library takes them: as they are, or rounded and packed.
    fn activations(&mut self, x: &Layout, factor: Factor) -> Option<Located> {
        let own = Located { layout: *x, place: source(1) };
        let fits = x.packed_rows() && (2..4).all(|i| own.matrix(x.nb[i]).is_some());
        if x.dtype == dtype(factor) && fits {
            return Some(own);
        }
        let packed = self.fresh(dtype(factor), x.ne)?;
        let convert = Build::new("copy", "lm_convert", &packed.layout).dst_at(packed.place);
        self.list.push(convert.source_at(0, x, source(1)).each(x.elements()).done());
        Some(packed)
    }

    /// Quantized weights, decoded and multiplied slice by slice.
    fn decoded(&mut self, w: &Layout, calls: &Calls) -> Option<()> {
        if w.ne[2] != 1 || w.ne[3] != 1 {
            return None;
        }
        let wide = dtype(calls.factor);
        let rows = slice(w, calls.factor, self.slice);
        let space = self.fresh(wide, [w.ne[0], rows, 1, 1])?;
        for first in (0..w.ne[1]).step_by(usize::try_from(rows).ok()?) {
            let ne = [w.ne[0], rows.min(w.ne[1] - first), 1, 1];
            let from = Located { layout: Layout { ne, ..*w }, place: source(0) }.at([first, 0, 0]);
            let to = Located { layout: Layout { ne, ..space.layout }, place: space.place };
            let decode = copies::decode(&from.layout, &to.layout).dst_at(to.place);
            self.list.push(decode.source_at(0, &from.layout, from.place).done());
            calls.add(&mut self.list, &to, first)?;
        }
        Some(())
    }
}

/// Matrices that meet the same weights, as one with more columns, where columns lie evenly.
fn merged(w: &Layout, x: Located, dst: Located) -> (Located, Located) {
    let (mut x, mut dst) = (x, dst);
    for dim in 2..4 {
        let even = |l: &Layout| l.ne[dim] == 1 || l.nb[dim] == l.nb[1] * l.ne[1];
        if w.ne[dim] != 1 || !even(&x.layout) || !even(&dst.layout) {
            break;
        }
        for layout in [&mut x.layout, &mut dst.layout] {
            layout.ne[1] *= layout.ne[dim];
            layout.ne[dim] = 1;
        }
    }
    (x, dst)
}

/// What the calls of a product have in common.
struct Calls {
    factor: Factor,
    x: Located,
    dst: Located,
}

impl Calls {
    /// Adds the calls for weights whose first row is row `first` of all. None: they do not fit the library.
    fn add(&self, list: &mut SmallVec<[Work; 2]>, w: &Located, first: u64) -> Option<()> {
        let (weights, x, dst) = (&w.layout, &self.x.layout, &self.dst.layout);
        let (outer, shared) = (x.ne[3] / weights.ne[3], x.ne[2] / weights.ne[2]);
        // Either all matrices meet one of weights, or each call takes every `shared`th.
        let (turns, step) = if weights.ne[2] == 1 { (1, 1) } else { (shared, shared) };
        let count = x.ne[2] / turns;
        if x.ne[3].checked_mul(turns)? > MOST_CALLS || count > MOST_MATRICES {
            return None;
        }
        let stride = |nb: u64, extent: u64| if extent == 1 { 0 } else { nb };
        for (k, turn) in (0..x.ne[3]).flat_map(|k| (0..turns).map(move |turn| (k, turn))) {
            let dst_at = self.dst.at([0, turn, k]);
            let place = Place { offset: dst_at.place.offset + first * dst.unit(), ..dst_at.place };
            // A slice's rows are a part of the result's.
            let part = Layout { ne: [weights.ne[1], dst.ne[1], 1, 1], ..*dst };
            list.push(Work::Product(Product {
                factor: self.factor,
                rows: i32::try_from(weights.ne[1]).ok()?,
                columns: i32::try_from(x.ne[1]).ok()?,
                depth: i32::try_from(x.ne[0]).ok()?,
                count: i32::try_from(count).ok()?,
                weights: w.at([0, 0, k / outer]).matrix(stride(weights.nb[2], weights.ne[2]))?,
                x: self.x.at([0, turn, k]).matrix(stride(x.nb[2] * step, count))?,
                dst: Located { layout: part, place }.matrix(stride(dst.nb[2] * step, count))?,
            }));
        }
        Some(())
    }
}
