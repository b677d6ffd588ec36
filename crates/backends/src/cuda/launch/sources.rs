//! The kernels' sources, carried in the program.

use std::fmt;

/// A file: its name as `#include` and [`super::types::Launch::source`] know it (sources without `.cu`), and its text.
pub(crate) type File = (&'static str, &'static str);

/// What becomes one module: a source, or of a source whose kernels are made for one type each those of one type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Part {
    /// The source.
    pub(crate) source: &'static str,
    /// The type, as kernels' names end with it.
    kind: Option<&'static str>,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        self.kind.map_or(Ok(()), |kind| write!(f, "-{kind}"))
    }
}

/// The type of a line that makes kernels for one: `LM_NAME(type, body, functions)`.
fn kind_of(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix("LM_")?.split_once('(')?;
    let is_name = name.bytes().all(|b| b.is_ascii_uppercase());
    let (kind, _) = rest.strip_suffix(')')?.split_once(',')?;
    is_name.then_some(kind)
}

fn whole(source: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(name, _)| *name == source).map(|(_, text)| *text)
}

/// The part of a source that has a kernel.
pub(crate) fn part(source: &'static str, kernel: &str) -> Part {
    let kinds = whole(source).unwrap_or_default().lines().filter_map(kind_of);
    let ends = |kind: &&str| kernel.strip_suffix(*kind).is_some_and(|rest| rest.ends_with('_'));
    Part { source, kind: kinds.filter(ends).max_by_key(|kind| kind.len()) }
}

/// The text of a part. `None`: the program has no such source.
pub(crate) fn text(part: Part) -> Option<String> {
    let lines = whole(part.source)?.lines();
    let stays = |line: &&str| kind_of(line).is_none_or(|kind| part.kind.is_none_or(|of| of == kind));
    Some(lines.filter(stays).flat_map(|line| [line, "\n"]).collect())
}

macro_rules! headers {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../kernels/", $name)))),*] };
}
macro_rules! sources {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../kernels/", $name, ".cu")))),*] };
}

/// What sources include.
pub(crate) const HEADERS: &[File] = headers![
    "lm_args.h",
    "lm_blocks.h",
    "lm_common.h",
    "lm_encode.h",
    "lm_mma.h",
    "lm_mma_body.h",
    "lm_product.h",
    "lm_tile.h",
    "lm_tile_body.h",
];

/// The sources.
pub(crate) const SOURCES: &[File] = sources![
    "activations",
    "attention",
    "copy",
    "elementwise",
    "experts",
    "mul_mat_id",
    "mul_mat_mma",
    "mul_mat_mma_id",
    "mul_mat_tile",
    "mul_mat_tile_id",
    "mul_mat_vec",
    "norm",
    "reduce",
    "rope",
    "rows",
];
