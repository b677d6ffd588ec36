//! Running batches.

use super::error::EngineError;
use super::session::Engine;
use loadmaster_graph::{Tensor, TensorId};
use loadmaster_models::families::{BatchShape, InputKind};
use loadmaster_models::inputs::{Filled, InputFiller};
use loadmaster_models::kv::{Batch, MicroBatch, Slots};
use loadmaster_sched::exec::{Executable, Run};
use std::collections::VecDeque;
use std::sync::Arc;

/// A micro-batch that was issued and whose logits are still to be read.
struct Issued {
    /// Places in the batch of the tokens whose logits are wanted.
    wanted: Vec<usize>,
    at: usize,
    run: Run,
}

impl Engine {
    /// Computes a batch, and gives the logits of each token that wants them to `seen`, with the token's place in the
    /// batch. On an error the caches are as before.
    ///
    /// Errors: no room in the cache, tokens that the model does not have, a device that fails.
    pub fn decode(&mut self, batch: &Batch, mut seen: impl FnMut(usize, &[f32])) -> Result<(), EngineError> {
        let tokens = batch.tokens().len();
        let _span = tracing::debug_span!(target: "loadmaster::engine", "token", tokens).entered();
        let parts = self.state.prepare(batch, self.settings().largest_micro_batch())?;
        let outcome = self.decode_parts(&parts, &mut seen);
        if outcome.is_err() {
            self.forget(batch);
        }
        outcome
    }

    fn decode_parts(
        &mut self,
        parts: &[(MicroBatch, Slots)],
        seen: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        let turns = self.settings().copies.get() as usize;
        let mut open: VecDeque<Issued> = VecDeque::new();
        let cells = self.cells_of_all(parts);
        for (micro, slots) in parts {
            self.state.apply(micro, slots);
            let mut shape = BatchShape::of(micro, slots, &self.state);
            if let Some((full, sliding)) = cells {
                (shape.cells, shape.sliding_cells) = (full, sliding);
            }
            // Another graph, or a slot that comes round again: what was issued is read first. (Planning may let plans go.)
            while open.len() >= turns || open.front().is_some_and(|o| self.known(o.at).shape != shape) {
                self.read_first(&mut open, seen)?;
            }
            let at = self.plan(shape)?;
            let run = self.issue(at, micro, slots)?;
            let wanted = micro.outputs().map(|i| micro.tokens()[i].batch_index).collect();
            open.push_back(Issued { wanted, at, run });
        }
        while !open.is_empty() {
            self.read_first(&mut open, seen)?;
        }
        Ok(())
    }

    /// With pipelining, all micro-batches of a batch see as many cells as the last, so that one graph serves them and
    /// their runs overlap. The cells beyond are masked.
    fn cells_of_all(&self, parts: &[(MicroBatch, Slots)]) -> Option<(u32, u32)> {
        if self.settings().copies.get() == 1 || parts.len() < 2 {
            return None;
        }
        let mut ahead = self.state.clone();
        let (mut full, mut sliding) = (0, 0);
        for (micro, slots) in parts {
            ahead.apply(micro, slots);
            let shape = BatchShape::of(micro, slots, &ahead);
            (full, sliding) = (full.max(shape.cells), sliding.max(shape.sliding_cells));
        }
        Some((full, sliding))
    }

    fn issue(&mut self, at: usize, micro: &MicroBatch, slots: &Slots) -> Result<Run, EngineError> {
        let (graph, inputs) = (Arc::clone(&self.known(at).graph), Arc::clone(&self.known(at).inputs));
        let mut bytes = std::mem::take(&mut self.scratch);
        let outcome = self.write_inputs(at, (micro, slots), &inputs, graph.graph.tensors().as_slice(), &mut bytes);
        self.scratch = bytes;
        outcome?;
        Ok(self.executable(at)?.run_async()?)
    }

    fn write_inputs(
        &mut self,
        at: usize,
        (micro, slots): (&MicroBatch, &Slots),
        inputs: &[(InputKind, TensorId)],
        tensors: &[Tensor],
        bytes: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        for &(kind, id) in inputs {
            let tensor = &tensors[id.index()];
            let (model, attention) = (Arc::clone(self.model()), self.settings().attention);
            let mut filler = InputFiller::new(&model.params, attention, &self.state, micro, slots);
            if filler.fill(kind, tensor, bytes)? == Filled::NotRead {
                bytes.clear();
                bytes.resize(tensor.nbytes().get() as usize, 0);
            }
            self.executable(at)?.write(id, bytes)?;
        }
        Ok(())
    }

    /// Reads the logits of the micro-batch that was issued first.
    fn read_first(
        &mut self,
        open: &mut VecDeque<Issued>,
        seen: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        let Some(Issued { wanted, at, run }) = open.pop_front() else { return Ok(()) };
        let logits = self.known(at).graph.logits;
        let size = self.known(at).graph.graph.tensor(logits).nbytes().get() as usize;
        let vocab = self.model().params.vocab as usize;
        let fetched = self.settings().copies.get() > 1;
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        bytes.resize(size, 0);
        let outcome = self.executable(at).and_then(|e| read(e, run, logits, fetched, &mut bytes));
        if outcome.is_ok() {
            let floats: Vec<f32> =
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            wanted.iter().zip(floats.chunks(vocab.max(1))).for_each(|(&index, row)| seen(index, row));
        }
        self.scratch = bytes;
        outcome
    }

    /// Takes the tokens of a batch out of the caches again.
    fn forget(&mut self, batch: &Batch) {
        for token in batch.tokens() {
            for sequence in token.sequences.iter() {
                // The sequences exist: the batch was checked.
                let _ = self.state.remove(sequence, &(token.pos..token.pos.next()));
            }
        }
    }
}

fn read(exec: &mut Executable, run: Run, logits: TensorId, fetched: bool, bytes: &mut [u8]) -> Result<(), EngineError> {
    if fetched {
        exec.read_fetched(run, logits, bytes)?
    } else {
        exec.read(logits, bytes)?
    }
    Ok(())
}
