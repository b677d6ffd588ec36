//! A node's operands and words, with the rules that launches rest on: what a kernel does not look at is checked here.

use super::types::{Layout, NodeView};
use crate::cpu::{Types, supports};
use crate::error::Unsupported;
use loadmaster_graph::{DType, Dims, contiguous_strides};
use std::fmt;

impl Layout {
    /// Number of elements; saturates.
    pub(super) fn elements(&self) -> u64 {
        self.ne.iter().fold(1, |n, &e| n.saturating_mul(e))
    }
    /// Number of rows; saturates.
    pub(super) fn rows(&self) -> u64 {
        self.ne[1..].iter().fold(1, |n, &e| n.saturating_mul(e))
    }
    /// Bytes of an element or block.
    pub(super) fn unit(&self) -> u64 {
        self.dtype.block_size().get()
    }
    /// Elements (or blocks) of a row follow each other without gaps.
    pub(super) fn packed_rows(&self) -> bool {
        self.nb[0] == self.unit() || self.ne[0] <= self.dtype.block_len()
    }
    /// Rows follow each other without gaps too.
    pub(super) fn contiguous(&self) -> bool {
        let tight = contiguous_strides(self.dtype, &self.ne);
        let fits = |nb: Dims| (1..4).all(|i| self.ne[i] == 1 || self.nb[i] == nb[i]);
        self.packed_rows() && tight.is_some_and(fits)
    }
    /// The same elements in extents `ne`, if both are contiguous.
    pub(super) fn reshaped(&self, ne: Dims) -> Option<Self> {
        let nb = contiguous_strides(self.dtype, &ne).filter(|_| self.contiguous())?;
        Some(Self { ne, nb, ..*self })
    }
    /// The same bytes with extents and strides counted in blocks.
    pub(super) fn in_units(&self) -> Self {
        let [n, rest @ ..] = self.ne;
        let [a, b, c] = rest;
        Self { ne: [n / self.dtype.block_len(), a, b, c], ..*self }
    }
    /// Whether it is F32, without gaps.
    pub(super) fn plain(&self) -> bool {
        self.dtype == DType::F32 && self.contiguous()
    }
}

/// Reads a node; every question that can go wrong answers with the node's operation.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    view: &'a NodeView<'a>,
}

impl<'a> Node<'a> {
    /// Errors: no kernel for its types; extents or strides that no address reaches.
    pub(super) fn new(view: &'a NodeView<'a>) -> Result<Self, Unsupported> {
        let node = Self { view };
        let src: Vec<Option<DType>> = view.src.iter().map(|s| s.map(|s| s.dtype)).collect();
        if !supports(view.op, &src, view.dst.dtype) {
            let types = Types { src, dst: view.dst.dtype };
            return Err(Unsupported { why: format!("no CUDA kernel of {} for {types}", view.op) });
        }
        node.require(view.src.iter().flatten().all(reachable) && reachable(&view.dst), "extents are too large")?;
        Ok(node)
    }

    pub(super) const fn view(&self) -> &'a NodeView<'a> {
        self.view
    }
    pub(super) const fn dst(&self) -> Layout {
        self.view.dst
    }
    /// A source that must be there.
    pub(super) fn src(&self, i: usize) -> Result<Layout, Unsupported> {
        self.optional(i).ok_or_else(|| self.refuse(format_args!("source {i} is missing")))
    }
    /// A source that may be a hole.
    pub(super) fn optional(&self, i: usize) -> Option<Layout> {
        self.view.src.get(i).copied().flatten()
    }
    /// A parameter word; zero beyond the end.
    pub(super) fn word(&self, i: usize) -> u32 {
        self.view.params.get(i).copied().unwrap_or(0)
    }
    /// A parameter word as a signed number.
    pub(super) fn int(&self, i: usize) -> i32 {
        self.word(i) as i32
    }
    /// A parameter word as a float.
    pub(super) fn float(&self, i: usize) -> f32 {
        f32::from_bits(self.word(i))
    }
    /// Errors: the rule, where it does not hold.
    pub(super) fn require(&self, holds: bool, rule: &'static str) -> Result<(), Unsupported> {
        if holds { Ok(()) } else { Err(self.refuse(format_args!("{rule}"))) }
    }
    /// Errors: the rule, where nothing keeps it.
    pub(super) fn require_some<T>(&self, value: Option<T>, rule: &'static str) -> Result<T, Unsupported> {
        value.ok_or_else(|| self.refuse(format_args!("{rule}")))
    }
    /// Errors: the rule on a parameter word, where it does not hold.
    pub(super) fn require_word(&self, i: usize, holds: bool, rule: &'static str) -> Result<(), Unsupported> {
        if holds { Ok(()) } else { Err(self.refuse(format_args!("parameter word {i} is {:#x}: {rule}", self.word(i)))) }
    }

    fn refuse(&self, why: fmt::Arguments<'_>) -> Unsupported {
        let view = self.view;
        let src: Vec<Dims> = view.src.iter().flatten().map(|s| s.ne).collect();
        Unsupported { why: format!("{}: {why} (result {:?}, sources {src:?})", view.op, view.dst.ne) }
    }
}

/// Whether signed 64-bit arithmetic reaches every byte, with room to spare.
fn reachable(layout: &Layout) -> bool {
    let reach = layout.ne.iter().zip(&layout.nb).fold(0u64, |sum, (n, nb)| sum.saturating_add(n.saturating_mul(*nb)));
    let whole = layout.ne[0].is_multiple_of(layout.dtype.block_len());
    whole && layout.elements() < 1 << 48 && reach < 1 << 56
}

/// Whether `small` repeats a whole number of times in `large`, in every dimension.
pub(super) fn repeats_into(small: &Dims, large: &Dims) -> bool {
    small.iter().zip(large).all(|(&s, &l)| l.is_multiple_of(s))
}
