//! Which products cuBLAS computes, and that together they are the whole result.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::launches;
use super::types::{Base, Factor, Launches, Layout, LibraryRule, Matrix, NodeView, Product, Target, Work};
use loadmaster_graph::file::GraphFile;
use loadmaster_graph::{DType, Graph, Op, TensorId, contiguous_strides};
use std::collections::BTreeSet;

const WORKSPACE: u64 = 1 << 20;

fn target(arch: u32, floats_from: u64, quantized_from: u64) -> Target {
    let library = LibraryRule { floats_from, quantized_from, workspace: WORKSPACE, slice: 4096 };
    Target { arch, multiprocessors: 108, library: Some(library) }
}

fn layout(dtype: DType, ne: [u64; 4]) -> Layout {
    Layout { dtype, ne, nb: contiguous_strides(dtype, &ne).unwrap() }
}

/// What a node of a graph file looks like to [`super::launches`].
pub(super) fn with_view<T>(graph: &Graph, id: TensorId, then: impl FnOnce(&NodeView<'_>) -> T) -> T {
    let layout = |t: TensorId| {
        let t = graph.tensor(t);
        Layout { dtype: t.dtype, ne: t.ne, nb: t.nb }
    };
    let src: Vec<Option<Layout>> = graph.tensor(id).src.iter().map(|s| s.map(layout)).collect();
    let tensor = graph.tensor(id);
    then(&NodeView { op: tensor.op, params: &tensor.params, src: &src, dst: layout(id) })
}

fn planned(w: Layout, x: Layout, target: &Target) -> Launches {
    let dst = layout(DType::F32, [w.ne[1], x.ne[1], x.ne[2], x.ne[3]]);
    let src = [Some(w), Some(x)];
    launches(&NodeView { op: Op::MulMat, params: &[], src: &src, dst }, target).unwrap()
}

fn products(launches: &Launches) -> Vec<Product> {
    let product = |work: &Work| match work {
        Work::Product(product) => Some(*product),
        Work::Kernel(_) => None,
    };
    launches.list.iter().filter_map(product).collect()
}

fn kernels(launches: &Launches) -> Vec<&'static str> {
    let kernel = |work: &Work| match work {
        Work::Kernel(launch) => Some(launch.kernel),
        Work::Product(_) => None,
    };
    launches.list.iter().filter_map(kernel).collect()
}

/// Byte offsets of all columns of a matrix, and the bytes of one.
fn columns(m: &Matrix, length: i32, columns: i32, count: i32, size: u64) -> (Vec<u64>, u64) {
    let at = |b: i32, c: i32| (i64::from(b) * m.stride + i64::from(c) * i64::from(m.leading)) as u64 * size;
    let starts = (0..count).flat_map(|b| (0..columns).map(move |c| m.place.offset + at(b, c)));
    (starts.collect(), length as u64 * size)
}

/// The products write each element of a result once; what they read in scratch memory is there, behind the workspace.
fn check_whole(launches: &Launches, dst: &Layout, place: &str) {
    let mut written = BTreeSet::new();
    for product in products(launches) {
        let Product { factor, rows, columns: n, depth, count, weights, x, dst } = product;
        assert_eq!(dst.place.base, Base::Dst, "{place}");
        let (starts, bytes) = columns(&dst, rows, n, count, 4);
        let elements = starts.iter().flat_map(|s| (*s..s + bytes).step_by(4));
        elements.for_each(|e| assert!(written.insert(e), "{place}: byte {e} is written twice"));
        let size = if factor == Factor::F32 { 4 } else { 2 };
        for (matrix, n) in [(weights, rows), (x, n)].iter().filter(|(m, _)| m.place.base == Base::Scratch) {
            let (starts, bytes) = columns(matrix, depth, *n, count, size);
            let end = starts.iter().max().unwrap() + bytes;
            assert!(matrix.place.offset >= WORKSPACE && end <= launches.scratch_bytes, "{place}: {product:?}");
        }
    }
    assert_eq!(written.len() as u64, dst.ne.iter().product::<u64>(), "{place}");
    assert_eq!(written.last().map(|e| e + 4), Some(4 + (0..4).map(|i| (dst.ne[i] - 1) * dst.nb[i]).sum::<u64>()));
}

#[test]
fn products_by_the_library_are_the_whole_result_of_every_small_product_of_the_golden_graphs() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/graphs");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let target = target(80, 1, 1);
    let (mut seen, mut shapes) = (0, BTreeSet::new());
    for path in paths {
        let graph = GraphFile::read_path(&path).unwrap().graph;
        for &id in graph.nodes().values().filter(|&&id| graph.tensor(id).op == Op::MulMat) {
            with_view(&graph, id, |view| {
                let src = |i: usize| view.src[i].map(|s| (s.dtype, s.ne, s.nb));
                if view.dst.ne.iter().product::<u64>() > 1 << 14 || !shapes.insert((src(0), src(1), view.dst.nb)) {
                    return;
                }
                let Ok(launches) = launches(view, &target) else { return };
                assert!(!products(&launches).is_empty(), "{} {id}: {launches:?}", path.display());
                check_whole(&launches, &view.dst, &format!("{} {id}", path.display()));
                seen += 1;
            });
        }
    }
    assert!(seen > 20, "{seen} products");
}

#[test]
fn heads_that_share_weights_and_slices_of_decoded_weights_are_the_whole_result() {
    for (weights, x) in [
        ([64, 10, 1, 1], [64, 5, 1, 1]),
        ([64, 10, 1, 1], [64, 5, 6, 1]),
        ([64, 10, 2, 1], [64, 5, 6, 1]),
        ([64, 10, 2, 2], [64, 5, 6, 4]),
        ([64, 10, 3, 1], [64, 5, 3, 2]),
        ([64, 1, 1, 1], [64, 1, 1, 7]),
    ] {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let launches = planned(layout(dtype, weights), layout(DType::F32, x), &target(80, 1, 1));
            assert!(!products(&launches).is_empty());
            check_whole(&launches, &layout(DType::F32, [weights[1], x[1], x[2], x[3]]), &format!("{weights:?} {x:?}"));
        }
    }
    // 4,096 bytes are 8 rows.
    let launches = planned(layout(DType::Q4K, [256, 21, 1, 1]), layout(DType::F32, [256, 5, 3, 1]), &target(80, 1, 1));
    assert_eq!(kernels(&launches), ["lm_convert", "lm_dequantize", "lm_dequantize", "lm_dequantize"]);
    assert_eq!(
        products(&launches).iter().map(|p| (p.rows, p.columns)).collect::<Vec<_>>(),
        [(8, 15), (8, 15), (5, 15)]
    );
    check_whole(&launches, &layout(DType::F32, [21, 5, 3, 1]), "slices");
}

#[test]
fn the_library_gets_what_the_rule_gives_it_and_nothing_else() {
    let by = |dtype, columns, arch| {
        let launches =
            planned(layout(dtype, [256, 8, 1, 1]), layout(DType::F32, [256, columns, 1, 1]), &target(arch, 32, 512));
        products(&launches).first().map(|p| p.factor)
    };
    for (dtype, factor, least) in
        [(DType::F32, Factor::F32, 70), (DType::F16, Factor::F16, 70), (DType::Bf16, Factor::Bf16, 80)]
    {
        assert_eq!([by(dtype, 31, 90), by(dtype, 32, least - 1), by(dtype, 32, least)], [None, None, Some(factor)]);
    }
    assert_eq!(
        [by(DType::Q6K, 511, 90), by(DType::Q6K, 512, 75), by(DType::Q6K, 512, 80)],
        [None, None, Some(Factor::Bf16)]
    );
    // What it takes no numbers for is left to our own kernels.
    let own = |w: Layout, x: Layout| assert_eq!(products(&planned(w, x, &target(80, 1, 1))), []);
    let overlapping = Layout { nb: [2, 4, 40, 40], ..layout(DType::F16, [8, 10, 1, 1]) };
    own(overlapping, layout(DType::F32, [8, 4, 1, 1]));
    own(layout(DType::F16, [8, 10, 2, 1]), layout(DType::F32, [8, 4, 80, 1]));
    own(layout(DType::Q8_0, [32, 10, 2, 1]), layout(DType::F32, [32, 4, 2, 1]));
}
