//! MUL_MAT and MUL_MAT_ID.

use super::build::{Build, byte_rows, scratch, tensor};
use super::library;
use super::node::Node;
use super::types::{Launches, Layout, Target, Work};
use crate::error::Unsupported;
use loadmaster_graph::DType;

/// Threads of a block; each warp takes a row of weights.
const THREADS: u32 = 128;
const WARPS: u64 = THREADS as u64 / 32;
/// Columns that share the weights they meet.
const COLUMNS: u64 = 8;
/// Up to this many columns, weights are read for [`COLUMNS`] at a time.
const FEW_COLUMNS: u64 = 16;
/// Rows and columns of a tile, and the threads that compute it (lm_tile.h).
const TILE: u64 = 64;
const TILE_THREADS: u32 = 256;
/// The first architecture whose matrix units take what mul_mat_mma.cu gives them.
const MATRIX_UNITS: u32 = 80;
/// Most blocks along the second and third dimension of a grid.
pub(super) const MOST_BLOCKS: u64 = 65_535;

const NO_PRODUCT: &str = "there is no product with this weight type";

/// Kernels of a weight type.
struct Kernels {
    one: &'static str,
    few: &'static str,
    many: &'static str,
    /// On matrix units, which take no 32-bit floats.
    by_units: Option<&'static str>,
    by_id: &'static str,
    /// The same for many tokens, grouped by expert.
    by_id_many: &'static str,
    by_id_units: Option<&'static str>,
}

/// How activations are rounded for a weight type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rounding {
    /// To floats, by the product itself.
    Float,
    /// To 8 bits in blocks of 32.
    Narrow,
    /// To 8 bits in blocks of 256.
    Wide,
}

macro_rules! kernels {
    ($name:literal, $by_units:expr, $by_id_units:expr) => {
        Kernels {
            one: concat!("lm_mul_mat_vec1_", $name),
            few: concat!("lm_mul_mat_vec8_", $name),
            many: concat!("lm_mul_mat_tile_", $name),
            by_units: $by_units,
            by_id: concat!("lm_mul_mat_id_", $name),
            by_id_many: concat!("lm_mul_mat_tile_id_", $name),
            by_id_units: $by_id_units,
        }
    };
    ($($dtype:ident $name:literal,)*) => {
        fn kernels(weights: DType) -> Option<Kernels> {
            Some(match weights {
                DType::F32 => kernels!("f32", None, None),
                $(DType::$dtype => kernels!(
                    $name,
                    Some(concat!("lm_mul_mat_mma_", $name)),
                    Some(concat!("lm_mul_mat_mma_id_", $name))
                ),)*
                _ => return None,
            })
        }
    };
}
kernels! {
    F16 "f16", Bf16 "bf16", Q4_0 "q4_0", Q4_1 "q4_1", Q5_0 "q5_0", Q5_1 "q5_1", Q8_0 "q8_0",
    Iq4Nl "iq4_nl", Q2K "q2_K", Q3K "q3_K", Q4K "q4_K", Q5K "q5_K", Q6K "q6_K", Iq4Xs "iq4_xs",
}

/// Source and name of every kernel that a weight type can be given.
#[cfg(all(test, feature = "cuda"))]
pub(super) fn named(weights: DType) -> Vec<(&'static str, &'static str)> {
    let of = |k: Kernels| {
        let by_units = k.by_units.map(|kernel| ("mul_mat_mma", kernel));
        let [vec, tile, id] = ["mul_mat_vec", "mul_mat_tile", "mul_mat_id"];
        let by_id_units = k.by_id_units.map(|kernel| ("mul_mat_mma_id", kernel));
        let own = [(vec, k.one), (vec, k.few), (tile, k.many), (id, k.by_id), ("mul_mat_tile_id", k.by_id_many)];
        own.into_iter().chain(by_units).chain(by_id_units)
    };
    kernels(weights).into_iter().flat_map(of).collect()
}

/// The rounding for a weight type.
pub(super) const fn rounding(weights: DType) -> Rounding {
    match weights.block_len() {
        1 => Rounding::Float,
        32 => Rounding::Narrow,
        _ => Rounding::Wide,
    }
}

/// Records of the rows of `x` in scratch memory, and the launch that writes them.
pub(super) fn records(x: &Layout, rounding: Rounding) -> (Layout, Work) {
    let k = x.ne[0];
    let bytes = (k + k / 32 * 12).next_multiple_of(16);
    let records = byte_rows(bytes, [x.ne[1], x.ne[2], x.ne[3]]);
    let wide = rounding == Rounding::Wide;
    let warps = x.elements() / if wide { 256 } else { 32 };
    let build = Build::new("activations", "lm_activations", &records).dst_at(scratch(0)).source_at(
        0,
        x,
        super::build::source(1),
    );
    (records, build.ints([wide.into()]).each(warps * 32).done())
}

/// The product's second source: the activations, or records of them made first.
fn with_activations(build: Build, x: &Layout, weights: DType) -> Launches {
    let rounding = rounding(weights);
    if rounding == Rounding::Float {
        return build.source(1, x).into();
    }
    let (records, prepare) = records(x, rounding);
    let product = build.source_at(1, &records, scratch(0)).done();
    Launches { list: [prepare, product].into_iter().collect(), scratch_bytes: records.elements() }
}

fn check(node: &Node<'_>, w: &Layout, x: &Layout, dst: &Layout) -> Result<(), Unsupported> {
    node.require(w.ne[0] == x.ne[0], "rows of both sources must be equally long")?;
    node.require(dst.ne[0] == w.ne[1], "the result must have an element for each weight row")?;
    node.require(w.packed_rows() && dst.packed_rows(), "rows of weights and result must be packed")
}

fn grid(node: &Node<'_>, x: u64, y: u64, z: u64) -> Result<[u32; 3], Unsupported> {
    let fits = x <= i32::MAX as u64 && y <= MOST_BLOCKS && z <= MOST_BLOCKS;
    node.require(fits, "there are more columns or matrices than a grid has blocks")?;
    Ok([x as u32, y as u32, z as u32])
}

/// MUL_MAT.
pub(super) fn mul_mat(node: &Node<'_>, target: &Target) -> Result<Launches, Unsupported> {
    let (w, x, dst) = (node.src(0)?, node.src(1)?, node.dst());
    check(node, &w, &x, &dst)?;
    node.require(dst.ne[1..] == x.ne[1..], "the result must have a column for each row of the second source")?;
    let repeats = |n: u64, of: u64| of != 0 && n.is_multiple_of(of);
    node.require(repeats(x.ne[2], w.ne[2]) && repeats(x.ne[3], w.ne[3]), "the first source must repeat")?;
    let kernels = node.require_some(kernels(w.dtype), NO_PRODUCT)?;
    if let Some(launches) = library::product(&w, &x, &dst, target) {
        return Ok(launches);
    }
    let by_units = kernels.by_units.filter(|_| target.arch >= MATRIX_UNITS);
    let (source, kernel, rows, columns, threads) = match (dst.ne[1], by_units) {
        (1, _) => ("mul_mat_vec", kernels.one, WARPS, 1, THREADS),
        (2..=FEW_COLUMNS, _) => ("mul_mat_vec", kernels.few, WARPS, COLUMNS, THREADS),
        (_, Some(kernel)) => ("mul_mat_mma", kernel, TILE, TILE, TILE_THREADS),
        (_, None) => ("mul_mat_tile", kernels.many, TILE, TILE, TILE_THREADS),
    };
    let grid = grid(node, dst.ne[0].div_ceil(rows), dst.ne[1].div_ceil(columns), dst.ne[2] * dst.ne[3])?;
    let build = Build::new(source, kernel, &dst).source(0, &w).grid(grid, threads);
    Ok(with_activations(build, &x, w.dtype))
}

/// Up to this many tokens, each product with an expert is one by itself.
const FEW_TOKENS: u64 = 8;

/// MUL_MAT_ID for many tokens: the pairs of a token and an index are grouped by expert, and go through tiles whose columns
/// are one expert's. Scratch memory: records of the activations, then the groups (`LmGroups` of lm_tile.h). `None`: few
/// tokens or no expert. Errors: more tiles than a grid has blocks.
fn by_expert(
    node: &Node<'_>,
    w: &Layout,
    x: &Layout,
    ids: &Layout,
    dst: &Layout,
    kernels: &Kernels,
    target: &Target,
) -> Result<Option<Launches>, Unsupported> {
    let (experts, pairs) = (w.ne[2], ids.elements());
    // A tile for every full one, and one for the rest of each expert.
    let tiles = pairs / TILE + experts.min(pairs);
    if dst.ne[2] <= FEW_TOKENS || experts == 0 {
        return Ok(None);
    }
    let places = grid(node, dst.ne[0].div_ceil(TILE), tiles, 1)?;
    let [blocks, ..] = grid(node, experts, 1, 1)?;
    let (source, kernel) = match kernels.by_id_units.filter(|_| target.arch >= MATRIX_UNITS) {
        Some(kernel) => ("mul_mat_mma_id", kernel),
        None => ("mul_mat_tile_id", kernels.by_id_many),
    };
    let product = Build::new(source, kernel, dst).source(0, w).grid(places, TILE_THREADS);
    let mut launches = with_activations(product, x, w.dtype);
    let at = scratch(launches.scratch_bytes.next_multiple_of(256));
    let words = 2 * (experts + 1) + pairs;
    let groups = Layout { dtype: DType::I32, ne: [words, 1, 1, 1], nb: [4, 4 * words, 4 * words, 4 * words] };
    let group = |kernel| Build::new("experts", kernel, &groups).dst_at(at).longs([experts]);
    let sort =
        group("lm_group_experts").source_at(0, ids, super::build::source(2)).source_at(1, dst, super::build::DST);
    let sort = sort.watched().grid([blocks, 1, 1], 256).done();
    let count = group("lm_group_tiles").grid([1; 3], 32).done();
    if let Some(Work::Kernel(product)) = launches.list.last_mut() {
        product.args.src[2] = tensor(&groups);
        product.src[2] = at;
    }
    launches.list.insert_many(0, [sort, count]);
    launches.scratch_bytes = at.offset + 4 * words;
    Ok(Some(launches))
}

/// MUL_MAT_ID.
pub(super) fn mul_mat_id(node: &Node<'_>, target: &Target) -> Result<Launches, Unsupported> {
    let (w, x, ids, dst) = (node.src(0)?, node.src(1)?, node.src(2)?, node.dst());
    check(node, &w, &x, &dst)?;
    node.require(w.ne[3] == 1 && x.ne[3] == 1 && dst.ne[3] == 1, "the fourth extent must be 1")?;
    node.require(dst.ne[1] == ids.ne[0] && dst.ne[2] == ids.ne[1], "there must be a result for each index")?;
    let repeats = x.ne[1] != 0 && ids.ne[0].is_multiple_of(x.ne[1]);
    node.require(repeats && x.ne[2] == ids.ne[1], "activations must repeat over the indices")?;
    let kernels = node.require_some(kernels(w.dtype), NO_PRODUCT)?;
    if let Some(grouped) = by_expert(node, &w, &x, &ids, &dst, &kernels, target)? {
        return Ok(grouped);
    }
    let grid = grid(node, dst.ne[0].div_ceil(WARPS), dst.ne[1], dst.ne[2])?;
    let build =
        Build::new("mul_mat_id", kernels.by_id, &dst).source(0, &w).source(2, &ids).watched().grid(grid, THREADS);
    Ok(with_activations(build, &x, w.dtype))
}
