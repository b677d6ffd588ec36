//! Random leafs and views.

use super::ops::TYPES;
use super::{Generator, Reach, nbytes};
use crate::file::{Tensor, Usage};

impl Generator {
    pub(super) fn shapes(&mut self) {
        for _ in 0..self.r.between(2, 6) {
            let shape = [
                self.r.between(1, 80) as u64,
                *self.r.pick(&[1, 2, 7, 31, 32, 40, 64]),
                *self.r.pick(&[1, 1, 1, 2, 33]),
                *self.r.pick(&[1, 1, 1, 2]),
            ];
            self.shapes.push(shape);
        }
    }

    /// A type and extents that fill whole blocks.
    pub(super) fn layout(&mut self) -> (usize, [u64; 4]) {
        let t = if self.k.quantized && self.r.one_in(4) { self.r.between(4, 5) } else { self.r.between(0, 3) };
        let t = if self.r.percent(60) && !self.k.quantized { 0 } else { t };
        let mut ne = *self.r.pick(&self.shapes);
        ne[0] = ne[0].next_multiple_of(TYPES[t].1);
        if self.k.empty && self.r.one_in(12) {
            ne[self.r.below(4)] = 0;
        }
        (t, ne)
    }

    pub(super) fn tensor(&mut self, op: &str, t: usize, ne: [u64; 4]) -> Tensor {
        let (dtype, block, size) = TYPES[t];
        let row = size * (ne[0] / block);
        let nb = [size, row, row * ne[1], row * ne[1] * ne[2]];
        let id = self.file.tensors.len() as u32;
        Tensor {
            id,
            name: format!("{}{id}", op.to_lowercase()),
            dtype: dtype.to_owned(),
            op: op.to_owned(),
            ne,
            nb,
            src: Vec::new(),
            view_src: None,
            view_offs: None,
            op_params: Vec::new(),
            flags: Vec::new(),
            buffer: None,
            external: false,
            nbytes: nbytes(dtype, &ne, &nb),
            alloc_sizes: None,
        }
    }

    pub(super) fn push(&mut self, tensor: Tensor, listed: bool) -> u32 {
        let id = tensor.id;
        self.file.tensors.push(tensor);
        self.pool.push(id);
        self.listed.push(listed);
        id
    }

    pub(super) fn buffer(&mut self, usage: Usage) -> Option<u32> {
        let of = self.file.buffers.iter().filter(|b| b.usage == usage).map(|b| b.id).collect::<Vec<_>>();
        if of.is_empty() { None } else { Some(*self.r.pick(&of)) }
    }

    pub(super) fn leaf(&mut self) -> u32 {
        let (t, ne) = self.layout();
        let mut leaf = self.tensor("NONE", t, ne);
        let kind = self.r.below(100);
        if kind < self.k.weights {
            leaf.buffer = self.buffer(Usage::Weights);
        } else if kind < self.k.weights + self.k.caches {
            let usage = if self.r.one_in(6) { Usage::Compute } else { Usage::Any };
            leaf.buffer = self.buffer(usage);
        } else if self.k.odd_leafs && self.r.one_in(3) {
            leaf.external = self.r.one_in(4);
        } else {
            leaf.flags.push("input".to_owned());
        }
        if self.k.odd_leafs && self.r.one_in(8) && leaf.flags.is_empty() {
            leaf.flags.push(self.r.pick(&["input", "output"]).to_string());
        }
        if self.r.percent(self.k.outputs) && !leaf.flags.iter().any(|f| f == "output") {
            leaf.flags.push("output".to_owned());
        }
        let listed = !(self.k.odd_leafs && self.r.one_in(10));
        let id = self.push(leaf, listed);
        if listed {
            self.file.leafs.push(id);
        }
        id
    }

    /// A leaf that is a view, as callers make them for parts of a cache.
    pub(super) fn leaf_view(&mut self) {
        let Some(base) = self.source() else { return };
        let root = self.file.tensors[base as usize].view_src.unwrap_or(base);
        let root = &self.file.tensors[root as usize];
        if self.k.far == Reach::Sound && root.buffer.is_none() && !root.external {
            // ggml releases the root with the first view of this kind, whoever else reads it.
            return;
        }
        let view = self.view_of(base, "NONE");
        let id = self.push(view, true);
        self.file.leafs.push(id);
    }

    pub(super) fn source(&mut self) -> Option<u32> {
        if self.pool.is_empty() {
            return None;
        }
        let near = self.pool.len().min(self.k.reach);
        let from = if self.r.percent(80) { near } else { self.pool.len() };
        Some(self.pool[self.pool.len() - 1 - self.r.below(from)])
    }

    /// A view of a tensor (or of its root), inside it.
    pub(super) fn view_of(&mut self, base: u32, op: &str) -> Tensor {
        let b = self.file.tensors[base as usize].clone();
        let t = TYPES.iter().position(|(name, ..)| *name == b.dtype).expect("a type of the table");
        let root = b.view_src.unwrap_or(base);
        // ggml never places a root that is neither listed nor a source.
        if self.k.far == Reach::Sound && !self.listed[root as usize] {
            self.listed[root as usize] = true;
            self.file.leafs.push(root);
        }
        let mut view = self.tensor(op, t, b.ne);
        view.nb = b.nb;
        view.view_src = Some(root);
        let mut offset = b.view_offs.unwrap_or(0);
        match op {
            "PERMUTE" | "TRANSPOSE" if TYPES[t].1 == 1 => {
                let (i, j) = if op == "TRANSPOSE" { (0, 1) } else { (self.r.below(4), self.r.below(4)) };
                view.ne.swap(i, j);
                view.nb.swap(i, j);
            }
            "VIEW" | "NONE" => {
                // Fewer rows, beginning later.
                let dim = self.r.between(1, 3);
                let keep = self.r.between(usize::from(b.ne[dim] > 0), b.ne[dim] as usize) as u64;
                let skip = self.r.between(0, (b.ne[dim] - keep) as usize) as u64;
                view.ne[dim] = keep;
                offset += skip * b.nb[dim];
            }
            _ => {}
        }
        view.view_offs = Some(offset);
        view.nbytes = nbytes(&view.dtype, &view.ne, &view.nb);
        self.give_buffer(&mut view);
        view
    }

    /// Marks a view of something in memory as such, in the ways that callers do.
    pub(super) fn give_buffer(&mut self, view: &mut Tensor) {
        let root = &self.file.tensors[view.view_src.expect("a view") as usize];
        let (buffer, in_memory) = (root.buffer, root.buffer.is_some() || root.external);
        if self.k.own_buffer_of_views && self.r.one_in(2) {
            view.buffer = buffer;
        } else if self.k.external && in_memory {
            view.external = true;
        }
    }
}
