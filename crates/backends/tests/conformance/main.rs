//! One suite for every device: each operation and type against a scalar reference in double precision, with odd shapes,
//! views that are not contiguous, broadcasting and empty extents, each within a stated tolerance.
//!
//! A device joins by implementing [`runner::Runner`].

#![allow(clippy::unwrap_used, clippy::panic)]

mod attention;
mod bits;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_bounds;
#[cfg(feature = "cuda")]
mod cuda_images;
#[cfg(feature = "cuda")]
mod cuda_library;
#[cfg(feature = "cuda")]
mod cuda_shared;
mod element_wise;
mod errors;
mod formats;
mod indices;
mod moves;
#[cfg(feature = "cuda")]
mod on_host;
mod products;
mod reference;
mod rows;
mod runner;
mod tensor;

use loadmaster_backends::cpu::Isa;
use loadmaster_graph::{DType, Op};
use reference::Node;
use runner::Runner;
use tensor::{Host, Lay};

/// How far a result may be from the reference.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tolerance {
    /// Not at all.
    Exact,
    /// |a − b| ≤ abs + rel · |b|, element by element.
    Each { abs: f64, rel: f64 },
    /// Σ (a − b)² ≤ bound · Σ b².
    Nmse(f64),
    /// Σ (a − b)² ≤ bound · Σ t², over all terms t that were added up to the elements (products may cancel).
    Terms(f64),
}

/// Single precision, a few roundings.
pub(crate) const ROUNDING: Tolerance = Tolerance::Each { abs: 1e-6, rel: 1e-6 };
/// Results stored in half precision.
pub(crate) const HALF: Tolerance = Tolerance::Each { abs: 1e-3, rel: 1e-3 };
/// Results stored as bfloats.
pub(crate) const BFLOAT: Tolerance = Tolerance::Each { abs: 8e-3, rel: 8e-3 };

/// A node with its operands and the result's layout.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) op: Op,
    pub(crate) params: Vec<u32>,
    pub(crate) src: Vec<Option<Host>>,
    pub(crate) dst: Host,
    pub(crate) tolerance: Tolerance,
}

impl Case {
    /// A case whose result is a fresh tensor.
    pub(crate) fn new(
        op: Op,
        params: &[u32],
        src: Vec<Option<Host>>,
        dst: (DType, [u64; 4], Lay),
        tolerance: Tolerance,
    ) -> Self {
        Self::onto(op, params, src, Host::zeros(dst.0, dst.1, dst.2), tolerance)
    }

    /// A case whose result's bytes matter.
    pub(crate) fn onto(op: Op, params: &[u32], src: Vec<Option<Host>>, dst: Host, tolerance: Tolerance) -> Self {
        let shapes: Vec<String> = src
            .iter()
            .map(|s| s.as_ref().map_or("-".into(), |s| format!("{}{:?}/{:?}", s.dtype, s.ne, s.nb)))
            .collect();
        let name = format!("{op} {params:x?} ({}) -> {}{:?}/{:?}", shapes.join(", "), dst.dtype, dst.ne, dst.nb);
        Self { name, op, params: params.to_vec(), src, dst, tolerance }
    }

    /// Computes the case on each runner and compares.
    pub(crate) fn check<R: Runner + ?Sized>(&self, runners: &[Box<R>]) {
        let node = Node { op: self.op, params: &self.params, src: &self.src };
        let expected = node.expected(&self.dst);
        let norm = match self.tolerance {
            Tolerance::Terms(_) => node.squared_terms(&self.dst),
            _ => expected.iter().map(|b| b * b).sum(),
        };
        for runner in runners {
            let mut dst = self.dst.clone();
            let place = format!("{} on {}", self.name, runner.name());
            runner.run(self.op, &self.params, &self.src, &mut dst).unwrap_or_else(|e| panic!("{place}: {e}"));
            compare(&place, &dst.values(), &expected, norm, self.tolerance);
            self.check_gaps(&place, &dst);
        }
    }

    /// Bytes between the rows of a padded result must be as they were.
    fn check_gaps(&self, place: &str, dst: &Host) {
        let mut written = vec![false; dst.bytes.len()];
        let size = dst.dtype.block_size().get() as usize;
        for at in tensor::indices(dst.ne) {
            let start = dst.place(at);
            written[start..start + size].fill(true);
        }
        for (i, (new, old)) in dst.bytes.iter().zip(&self.dst.bytes).enumerate() {
            assert!(written[i] || new == old, "{place}: byte {i} outside the result was written");
        }
    }
}

fn compare(place: &str, found: &[f64], expected: &[f64], norm: f64, tolerance: Tolerance) {
    assert_eq!(found.len(), expected.len(), "{place}");
    let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan());
    match tolerance {
        Tolerance::Nmse(bound) | Tolerance::Terms(bound) => {
            let error: f64 = found.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
            assert!(error <= bound * norm, "{place}: relative squared error {:e} above {bound:e}", error / norm);
        }
        Tolerance::Exact => {
            for (i, (&a, &b)) in found.iter().zip(expected).enumerate() {
                assert!(same(a, b), "{place}: element {i} is {a}, expected {b}");
            }
        }
        Tolerance::Each { abs, rel } => {
            for (i, (&a, &b)) in found.iter().zip(expected).enumerate() {
                let near = same(a, b) || (a - b).abs() <= abs + rel * b.abs();
                assert!(near, "{place}: element {i} is {a:e}, expected {b:e} within {tolerance:?}");
            }
        }
    }
}

/// A case builder: pushes all cases of a topic.
pub(crate) type Cases = fn() -> Vec<Case>;

/// Every topic.
pub(crate) const TOPICS: [Cases; 6] =
    [element_wise::cases, rows::cases, moves::cases, products::cases, products::by_id, attention::cases];

#[test]
fn every_operation_agrees_with_its_reference_on_every_instruction_set_and_device() {
    let isas = Isa::available().into_iter().map(|isa| Box::new(runner::direct(isa, 3)) as Box<dyn Runner>);
    let devices = runner::devices().into_iter().map(|device| Box::new(device) as Box<dyn Runner>);
    let runners: Vec<_> = isas.chain(devices).collect();
    for topic in TOPICS {
        topic().iter().for_each(|case| case.check(&runners));
    }
}

#[cfg(feature = "cuda")]
#[test]
fn cuda_kernels_compiled_for_the_host_agree_with_the_reference_and_each_is_launched() {
    let (Some(new), Some(old)) = (on_host::runner(90), on_host::runner(70)) else { return };
    let (new, old) = ([Box::new(new)], [Box::new(old)]);
    for topic in TOPICS {
        topic().iter().for_each(|case| case.check(&new));
    }
    products::cases().iter().chain(&products::by_id()).for_each(|case| case.check(&old));
    let (mut launched, all) = new[0].coverage();
    launched.extend(old[0].coverage().0);
    let idle: Vec<_> = all.symmetric_difference(&launched).collect();
    assert!(idle.is_empty(), "no case launches {idle:?}");
}
