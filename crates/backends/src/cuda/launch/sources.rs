//! The kernels' sources, carried in the program.

/// A file: its name as `#include` and [`super::types::Launch::source`] know it (sources without `.cu`), and its text.
pub(crate) type File = (&'static str, &'static str);

macro_rules! headers {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../kernels/", $name)))),*] };
}
macro_rules! sources {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../kernels/", $name, ".cu")))),*] };
}

/// What sources include.
pub(crate) const HEADERS: &[File] =
    headers!["lm_args.h", "lm_blocks.h", "lm_common.h", "lm_encode.h", "lm_mma.h", "lm_product.h", "lm_tile.h",];

/// The sources: each becomes one module.
pub(crate) const SOURCES: &[File] = sources![
    "activations",
    "attention",
    "copy",
    "elementwise",
    "mul_mat_id",
    "mul_mat_mma",
    "mul_mat_tile",
    "mul_mat_vec",
    "norm",
    "reduce",
    "rope",
    "rows",
];
