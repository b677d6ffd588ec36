//! Random nodes.

use super::ops::{RARE, TYPES, USUAL, VIEWS};
use super::{Generator, Reach, family_number, in_place};
use crate::file::{Tensor, Usage};

impl Generator {
    pub(super) fn node(&mut self) {
        let Some(first) = self.source() else { return };
        // With view operations alone, ggml's only split gets the device of whatever it split before.
        let alone = self.k.far == Reach::Sound && self.file.nodes.is_empty();
        let view_op = self.r.percent(self.k.views) && !alone;
        let op = match () {
            () if view_op => *self.r.pick(VIEWS),
            () if self.k.no_op_nodes && self.r.one_in(12) => "NONE",
            () if self.r.percent(self.k.rare_ops) => *self.r.pick(RARE),
            () => *self.r.pick(USUAL),
        };
        // ggml does not count a view without operation, and then frees its root too early.
        let may_view = op != "NONE" || self.k.far == Reach::Everything;
        let mut node = if view_op || (may_view && self.r.percent(self.k.view_results)) {
            let mut view = self.view_of(first, if view_op { op } else { "RESULT" });
            view.op = op.to_owned();
            view
        } else if self.r.percent(self.k.same_layout) {
            let (t, ne) = self.layout_of(first);
            self.tensor(op, t, ne)
        } else {
            let (t, ne) = self.layout();
            self.tensor(op, t, ne)
        };
        node.src = self.sources(first, view_op);
        if op == "CPY" && node.view_src.is_none() && self.r.one_in(3) {
            // A cast, whose second source is the result itself.
            node.src = vec![Some(first), Some(node.id)];
        }
        node.op_params = family_number(op).into_iter().collect();
        self.mark(&mut node);
        let id = self.push(node, true);
        self.file.nodes.push(id);
    }

    /// The layout of a tensor if that is a contiguous one.
    pub(super) fn layout_of(&mut self, id: u32) -> (usize, [u64; 4]) {
        let tensor = &self.file.tensors[id as usize];
        let t = TYPES.iter().position(|(name, ..)| *name == tensor.dtype).expect("a type of the table");
        let ne = tensor.ne;
        if ne[0].is_multiple_of(TYPES[t].1) { (t, ne) } else { self.layout() }
    }

    pub(super) fn sources(&mut self, first: u32, view_op: bool) -> Vec<Option<u32>> {
        let mut src = vec![Some(first)];
        let more = if view_op { 0 } else { *self.r.pick(&[0, 0, 1, 1, 1, 1, 2, 3, 9]) };
        for _ in 0..more {
            let source = if self.r.one_in(15) { Some(first) } else { self.source() };
            src.push(source);
        }
        if self.r.one_in(2) {
            let last = src.len() - 1;
            src.swap(0, last);
        }
        if view_op && !self.r.one_in(20) {
            return src;
        }
        for s in &mut src {
            if self.r.percent(self.k.holes) {
                *s = None;
            }
        }
        // An operand list does not end in a hole.
        while src.last() == Some(&None) {
            src.pop();
        }
        src
    }

    pub(super) fn mark(&mut self, node: &mut Tensor) {
        if self.r.percent(self.k.outputs) {
            node.flags.push("output".to_owned());
        }
        // ggml counts uses while it places input nodes, so an in-place operation may take what is still read.
        let sound = node.view_src.is_some() || self.k.far == Reach::Everything || !in_place(&node.op);
        if self.r.percent(self.k.input_nodes) && sound {
            node.flags.push("input".to_owned());
        }
        if self.k.resident_nodes && node.view_src.is_none() && self.r.one_in(8) {
            let usage = *self.r.pick(&[Usage::Any, Usage::Any, Usage::Weights]);
            node.buffer = self.buffer(usage);
            node.external = node.buffer.is_none() && self.r.one_in(2);
        }
    }
}
