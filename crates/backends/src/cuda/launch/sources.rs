//! The kernels' sources, carried in the program.

/// A file: its name as `#include` and [`super::types::Launch::source`] know it (sources without `.cu`), and its text.
pub(crate) type File = (&'static str, &'static str);

/// What sources include.
pub(crate) const HEADERS: &[File] =
    &[("lm_args.h", include_str!("../kernels/lm_args.h")), ("lm_common.h", include_str!("../kernels/lm_common.h"))];

/// The sources: each becomes one module.
pub(crate) const SOURCES: &[File] = &[("elementwise", include_str!("../kernels/elementwise.cu"))];
