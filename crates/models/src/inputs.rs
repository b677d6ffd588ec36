//! The bytes of a graph's inputs for a micro-batch.

use crate::families::{Attention, InputKind};
use crate::hparams::HParams;
use crate::kv::{CacheKind, KvState, MicroBatch, MicroToken, Pos, Slot, Slots, outside_window};
use crate::tokenizer::TokenId;
use loadmaster_graph::{Bytes, DType, Tensor};

/// Why an input cannot be filled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// A token that the model does not have.
    #[error("{token} is outside the model's vocabulary of {vocab} tokens")]
    Token {
        /// The token.
        token: TokenId,
        /// Tokens of the vocabulary.
        vocab: u32,
    },
    /// The graph was made for another shape of batch.
    #[error(
        "input {kind:?} takes {expected} of {dtype}, but the micro-batch gives {found}: the graph is one for another shape"
    )]
    Shape {
        /// The input.
        kind: InputKind,
        /// Its type in the graph.
        dtype: DType,
        /// Bytes that it takes.
        expected: Bytes,
        /// Bytes that the micro-batch gives.
        found: Bytes,
    },
    /// An input of a type that it never has.
    #[error("input {kind:?} cannot be {dtype}")]
    Type {
        /// The input.
        kind: InputKind,
        /// Its type in the graph.
        dtype: DType,
    },
}

/// Whether an input needs bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// The bytes are there.
    Written,
    /// Nothing reads the input: any bytes will do.
    NotRead,
}

/// Fills inputs for a micro-batch that was put into the caches ([`KvState::apply`]).
#[derive(Debug)]
pub struct InputFiller<'a> {
    params: &'a HParams,
    attention: Attention,
    state: &'a KvState,
    batch: &'a MicroBatch,
    slots: &'a Slots,
    /// Position of the current sequence in each cell; `u32::MAX` where it has none.
    positions: Vec<u32>,
}

const F16_ZERO: u16 = 0;
const F16_NEG_INFINITY: u16 = 0xfc00;

impl<'a> InputFiller<'a> {
    /// A filler for one micro-batch.
    #[must_use]
    pub fn new(
        params: &'a HParams,
        attention: Attention,
        state: &'a KvState,
        batch: &'a MicroBatch,
        slots: &'a Slots,
    ) -> Self {
        Self { params, attention, state, batch, slots, positions: Vec::new() }
    }

    /// Replaces `out` by the bytes of an input. `tensor` is the input's leaf in the graph.
    ///
    /// O(bytes); masks: cells × tokens.
    pub fn fill(&mut self, kind: InputKind, tensor: &Tensor, out: &mut Vec<u8>) -> Result<Filled, InputError> {
        out.clear();
        match kind {
            InputKind::Embeddings => return Ok(Filled::NotRead),
            InputKind::Tokens => self.tokens(out)?,
            InputKind::Positions => self.batch.tokens().iter().for_each(|t| push_i32(out, t.token.pos.0)),
            InputKind::KeyCells(cache) => self.rows(cache, out),
            InputKind::ValueCells(cache) => match self.attention {
                Attention::Flash => self.rows(cache, out),
                Attention::Plain => self.elements(cache, out),
            },
            InputKind::Mask(cache) => self.mask(kind, cache, tensor, out)?,
            InputKind::OutputRows => self.output_rows(out),
            InputKind::KeyRotation(_) | InputKind::ValueRotation(_) => hadamard(tensor.ne[0], out),
        }
        let (expected, found) = (tensor.nbytes(), Bytes(out.len() as u64));
        if expected != found {
            return Err(InputError::Shape { kind, dtype: tensor.dtype, expected, found });
        }
        Ok(Filled::Written)
    }

    fn tokens(&self, out: &mut Vec<u8>) -> Result<(), InputError> {
        for micro in self.batch.tokens() {
            let token = micro.token.token;
            if token.index() >= self.params.vocab as usize {
                return Err(InputError::Token { token, vocab: self.params.vocab });
            }
            push_i32(out, token.index() as u32);
        }
        Ok(())
    }

    /// Where no logits are wanted, the graph computes those of the last token.
    fn output_rows(&self, out: &mut Vec<u8>) {
        self.batch.outputs().for_each(|i| push_i32(out, i as u32));
        if out.is_empty() {
            push_i32(out, self.batch.len().saturating_sub(1) as u32);
        }
    }

    fn slot(&self, cache: CacheKind) -> &'a Slot {
        match (cache, &self.slots.sliding) {
            (CacheKind::Sliding, Some(sliding)) => sliding,
            _ => &self.slots.full,
        }
    }

    /// The row of each token, counted over all streams.
    fn rows(&self, cache: CacheKind, out: &mut Vec<u8>) {
        for (stream, cells) in &self.slot(cache).streams {
            let first = stream.index() as u64 * u64::from(self.state.cache(cache).cells(*stream).len());
            cells.iter().for_each(|cell| push_i64(out, first + cell.index() as u64));
        }
    }

    /// The place of each element of each token, where values are stored transposed.
    fn elements(&self, cache: CacheKind, out: &mut Vec<u8>) {
        let width = self.params.max_values_width();
        for (stream, slots) in &self.slot(cache).streams {
            let cells = u64::from(self.state.cache(cache).cells(*stream).len());
            let first = stream.index() as u64 * cells * width;
            for cell in slots {
                (0..width).for_each(|element| push_i64(out, first + element * cells + cell.index() as u64));
            }
        }
    }

    fn mask(
        &mut self,
        kind: InputKind,
        cache: CacheKind,
        tensor: &Tensor,
        out: &mut Vec<u8>,
    ) -> Result<(), InputError> {
        let cells = tensor.ne[0] as u32;
        match tensor.dtype {
            DType::F16 => self.mask_rows(cache, cells, out, |visible| {
                (if visible { F16_ZERO } else { F16_NEG_INFINITY }).to_le_bytes()
            }),
            DType::F32 => self
                .mask_rows(cache, cells, out, |visible| (if visible { 0.0 } else { f32::NEG_INFINITY }).to_le_bytes()),
            dtype => return Err(InputError::Type { kind, dtype }),
        }
        Ok(())
    }

    /// A query sees the cells of its sequence up to its own position, and within the window.
    fn mask_rows<const N: usize>(
        &mut self,
        cache: CacheKind,
        cells: u32,
        out: &mut Vec<u8>,
        value: impl Fn(bool) -> [u8; N],
    ) {
        let state = self.state.cache(cache);
        let window = state.window().unwrap_or(u32::MAX);
        let mut current = None;
        for MicroToken { token, .. } in self.batch.tokens() {
            // A token of several sequences sees what the first of them sees.
            let Some(sequence) = token.sequences.iter().next() else { continue };
            if current != Some(sequence) {
                current = Some(sequence);
                let held = state.cells(state.stream_of(sequence));
                self.positions.clear();
                self.positions.extend(held.positions_of(sequence, cells).map(|p| p.map_or(u32::MAX, |p| p.0)));
            }
            let query = token.pos;
            let visible = |&key: &u32| key <= query.0 && !outside_window(window, Pos(key), query);
            let start = out.len();
            out.resize(start + self.positions.len() * N, 0);
            for (bytes, key) in out[start..].chunks_exact_mut(N).zip(&self.positions) {
                bytes.copy_from_slice(&value(visible(key)));
            }
        }
    }
}

fn push_i32(out: &mut Vec<u8>, value: u32) {
    // Positions, tokens and rows are capped far below 2^31.
    out.extend_from_slice(&(value as i32).to_le_bytes());
}

fn push_i64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&(value as i64).to_le_bytes());
}

/// The normalised Hadamard matrix of size `n` (a power of two) in Sylvester's order: ±1/√n, negative where the bits that
/// row and column share are odd in number.
fn hadamard(n: u64, out: &mut Vec<u8>) {
    let value = 1.0 / (n as f32).sqrt();
    for row in 0..n {
        for column in 0..n {
            let odd = (row & column).count_ones() % 2 == 1;
            out.extend_from_slice(&(if odd { -value } else { value }).to_le_bytes());
        }
    }
}
