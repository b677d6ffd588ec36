//! Graphs as text: one line for each tensor, made to be read, compared and pasted into tests.
//!
//! ```text
//! graph "tiny"
//! t0 leaf0 "w" q8_0 [64, 32]
//! t1 leaf1 "x" f32 [64, 3] flags [input]
//! t2 n0 "y" f32 [32, 3] = MUL_MAT(t0, t1) params [10]
//! t3 n1 "y (view)" f32 [32] = VIEW(t2) params [128] view t2+128
//! t4 n2 "sum" f32 [32, 3] = ADD(t2, t3)
//! ```
//!
//! A tensor has its id, its place among the nodes or leafs (`-` for neither), name, type and extents (innermost first,
//! outer ones left out). Where they are not what a contiguous tensor without operation has, there follow strides,
//! operation with sources (`_` for a hole), parameter words, view root and offset, flags. What is printed and parsed is
//! equal.

mod parse;

pub use parse::TextError;

use crate::graph::Graph;
use crate::id::{IdVec, TensorId};
use crate::op::Op;
use crate::tensor::{Dims, Flags, Tensor, View, contiguous_strides};
use std::fmt::{self, Display, Write};

impl Graph {
    /// The graph as text. Deterministic. O(tensors + sources).
    #[must_use]
    pub fn to_text(&self) -> String {
        let places = places(self);
        let mut out = String::with_capacity(self.tensors().len() * 80);
        let lines = self.tensors().iter().try_for_each(|(id, tensor)| write_tensor(&mut out, id, &places[id], tensor));
        // Writing to a string does not fail.
        debug_assert!(lines.is_ok());
        format!("graph {}\n{out}", Quoted(self.name()))
    }
}

/// Where each tensor is listed.
fn places(graph: &Graph) -> IdVec<TensorId, String> {
    let mut places = IdVec::filled("-".to_owned(), graph.tensors().len());
    for (leaf, &id) in graph.leafs().iter() {
        places[id] = leaf.to_string();
    }
    for (node, &id) in graph.nodes().iter() {
        places[id] = node.to_string();
    }
    places
}

fn write_tensor(out: &mut String, id: TensorId, place: &str, tensor: &Tensor) -> fmt::Result {
    write!(out, "{id} {place} {} {} {}", Quoted(&tensor.name), tensor.dtype, List(shown_extents(&tensor.ne)))?;
    if contiguous_strides(tensor.dtype, &tensor.ne) != Some(tensor.nb) {
        write!(out, " strides {}", List(&tensor.nb))?;
    }
    if tensor.op != Op::None || !tensor.src.is_empty() {
        write!(out, " = {}(", tensor.op)?;
        for (i, source) in tensor.src.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            match source {
                Some(source) => write!(out, "{comma}{source}")?,
                None => write!(out, "{comma}_")?,
            }
        }
        out.write_char(')')?;
    }
    if !tensor.params.is_empty() {
        write!(out, " params {}", List(&tensor.params))?;
    }
    if let Some(View { root, offset }) = tensor.view {
        write!(out, " view {root}+{}", offset.get())?;
    }
    let flags: Vec<_> = Flags::NAMED.into_iter().filter(|&(f, _)| tensor.flags.contains(f)).map(|(_, n)| n).collect();
    if !flags.is_empty() {
        write!(out, " flags {}", List(&flags))?;
    }
    out.write_char('\n')
}

/// Extents without trailing ones, but at least one.
pub(crate) fn shown_extents(ne: &Dims) -> &[u64] {
    let len = ne.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
    &ne[..len]
}

/// `[a, b, c]`.
pub(crate) struct List<'a, T>(pub(crate) &'a [T]);

impl<T: Display> Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('[')?;
        for (i, item) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{item}")?;
        }
        f.write_char(']')
    }
}

/// A name between quotation marks; those, backslashes and control characters as `\u{hexadecimal}`.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "{}", c.escape_unicode())?,
                // Line separators too: a reader that splits lines must not split a name.
                c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => write!(f, "{}", c.escape_unicode())?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
