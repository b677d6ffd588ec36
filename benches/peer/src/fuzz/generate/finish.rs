//! What is settled when all tensors are there: pins, order, kept tensors, sizes.

use super::ops::VIEWS;
use super::{Generator, Reach, set_alloc_sizes};
use crate::file::{GraphFile, Tensor};

impl Generator {
    pub(super) fn finish(mut self) -> GraphFile {
        self.use_plain_leafs();
        for id in self.file.nodes.iter().chain(&self.file.leafs) {
            // A view that is pinned away from its root may be copied before the root is computed, by ggml as well.
            if self.k.far == Reach::Sound && self.file.tensors[*id as usize].view_src.is_some() {
                continue;
            }
            let device = self.r.below(self.file.devices.len());
            // ggml moves a pinned node to a higher device with the same buffer type (rule 1.1 says it stays).
            let name = &self.file.devices[device].buffer_type.name;
            let shared = self.file.devices[..device].iter().any(|d| d.buffer_type.name == *name);
            if self.r.percent(self.k.pins) && (!shared || self.k.far == Reach::Everything) {
                self.file.pinned.insert(*id, device as u32);
            }
        }
        if self.k.shuffled {
            self.shuffle();
        }
        if self.k.keep {
            self.keep();
        }
        set_alloc_sizes(&mut self.file);
        self.file
    }

    /// Wishes of back ends: earlier tensors that are needed longer.
    pub(super) fn keep(&mut self) {
        for (i, &until) in self.file.nodes.iter().enumerate() {
            if !self.r.one_in(6) {
                continue;
            }
            let mut kept = Vec::new();
            for _ in 0..*self.r.pick(&[1, 1, 2, 12]) {
                let back = self.r.below((i + 1).min(12));
                let node = self.file.nodes[i - back];
                let src = self.file.tensors[node as usize].src.iter().flatten().copied().collect::<Vec<_>>();
                kept.push(if src.is_empty() || self.r.one_in(2) { node } else { *self.r.pick(&src) });
            }
            kept.sort_unstable();
            kept.dedup();
            self.file.keep_until.extend(kept.into_iter().map(|t| (t, until)));
        }
    }

    /// Gives leafs without buffer that no operation reads to the caller: ggml finds no device for them and aborts.
    pub(super) fn use_plain_leafs(&mut self) {
        let mut read = vec![false; self.file.tensors.len()];
        let computes = |t: &&Tensor| !VIEWS.contains(&t.op.as_str()) && t.op != "NONE";
        for t in self.file.tensors.iter().filter(computes) {
            t.src.iter().flatten().for_each(|&s| read[s as usize] = true);
        }
        for t in &mut self.file.tensors {
            let plain = t.op == "NONE" && t.buffer.is_none() && t.view_src.is_none();
            if plain && !read[t.id as usize] && !t.flags.iter().any(|f| f == "input") {
                t.flags.push("input".to_owned());
            }
        }
    }

    /// Another order of the nodes that respects sources and roots, and of the leafs.
    pub(super) fn shuffle(&mut self) {
        let mut waiting = std::mem::take(&mut self.file.nodes);
        let mut done = vec![true; self.file.tensors.len()];
        waiting.iter().for_each(|&n| done[n as usize] = false);
        while !waiting.is_empty() {
            let window = waiting.len().min(6);
            let ready = |&i: &usize| {
                let t = &self.file.tensors[waiting[i] as usize];
                let shown = t.src.iter().flatten().filter_map(|&s| self.file.tensors[s as usize].view_src);
                let needed = t.src.iter().flatten().chain(&t.view_src).copied().chain(shown);
                needed.filter(|&s| s != t.id).all(|s| done[s as usize])
            };
            let ready = (0..window).filter(ready).collect::<Vec<_>>();
            let next = waiting.remove(*self.r.pick(&ready));
            done[next as usize] = true;
            self.file.nodes.push(next);
        }
        for i in (1..self.file.leafs.len()).rev() {
            let j = self.r.below(i + 1);
            self.file.leafs.swap(i, j);
        }
    }
}
