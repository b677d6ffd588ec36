//! What a graph depends on beside the model: batch, cache, attention, and where weights are kept.

use super::error::FamilyError;
use crate::gguf::WeightId;
use crate::hparams::{HParams, LayerId, MAX_CONTEXT};
use crate::kv::{MAX_SEQUENCES, Sharing, Slots};
use loadmaster_graph::{ColumnOrder, DType};
use std::collections::BTreeMap;

/// Cells of a cache come in multiples of this.
const CELL_STEP: u32 = 256;
/// Most tokens of a micro-batch.
pub const MAX_MICRO_BATCH: u32 = 1 << 16;

/// How attention is computed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Attention {
    /// Products, soft-max and products again; the cache of values is stored transposed.
    #[default]
    Plain,
    /// One operation.
    Flash,
}

/// Keys or values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CachePart {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

impl std::fmt::Display for CachePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Keys => "keys",
            Self::Values => "values",
        })
    }
}

/// Extents and types of the caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvLayout {
    /// Cells of a stream, in layers that see everything.
    pub cells: u32,
    /// Cells of a stream, in layers with a sliding window.
    pub sliding_cells: u32,
    /// Streams: 1, or one per sequence.
    pub streams: u32,
    /// Type of the keys.
    pub key_type: DType,
    /// Type of the values.
    pub value_type: DType,
}

/// How many cells layers with a sliding window have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SlidingCells {
    /// As many as other layers: any part of a sequence can be removed and computed anew. What llama.cpp's library does
    /// by default.
    #[default]
    Full,
    /// The window of each sequence and one micro-batch: cells that left the window are used again.
    Window,
}

/// What the caches are to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheRequest {
    /// Tokens of all sequences together.
    pub context: u32,
    /// Sequences.
    pub sequences: u32,
    /// How they share cells.
    pub sharing: Sharing,
    /// Most tokens of a micro-batch.
    pub micro_batch: u32,
    /// Cells of layers with a sliding window.
    pub sliding: SlidingCells,
    /// Type of the keys.
    pub key_type: DType,
    /// Type of the values.
    pub value_type: DType,
}

impl KvLayout {
    /// The layout that llama.cpp gives a context: cells padded to 256.
    pub fn new(params: &HParams, request: &CacheRequest) -> Result<Self, FamilyError> {
        let sequences = in_range("the number of sequences", request.sequences, 1, MAX_SEQUENCES)?;
        let context = in_range("the context length", request.context, 1, MAX_CONTEXT)?;
        let micro_batch = in_range("the micro-batch", request.micro_batch, 1, MAX_MICRO_BATCH)?;
        let context = context.next_multiple_of(CELL_STEP);
        let (streams, cells, windows) = match request.sharing {
            Sharing::PerSequence if sequences > 1 => (sequences, (context / sequences).next_multiple_of(CELL_STEP), 1),
            _ => (1, context, sequences),
        };
        let sliding = match (request.sliding, params.window) {
            (SlidingCells::Window, Some(window)) => {
                window.saturating_mul(windows).saturating_add(micro_batch).min(cells)
            }
            _ => cells,
        };
        Ok(Self {
            cells,
            sliding_cells: sliding.next_multiple_of(CELL_STEP),
            streams,
            key_type: request.key_type,
            value_type: request.value_type,
        })
    }
}

fn in_range(what: &'static str, value: u32, least: u32, most: u32) -> Result<u32, FamilyError> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(FamilyError::Shape { what, found: value.into(), expected: format!("between {least} and {most}") })
}

/// What a micro-batch needs of a graph. Graphs of equal shapes are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BatchShape {
    /// Tokens.
    pub tokens: u32,
    /// Rows of logits: tokens whose logits are wanted, but at least 1, so that no tensor is empty.
    pub outputs: u32,
    /// First stream of the cache that the tokens belong to.
    pub first_stream: u32,
    /// Number of streams, each with the same number of tokens.
    pub streams: u32,
    /// Cells seen, in layers that see everything.
    pub cells: u32,
    /// Cells seen, in layers with a sliding window.
    pub sliding_cells: u32,
    /// The order in which products with the tokens' columns are summed.
    pub columns: ColumnOrder,
}

impl BatchShape {
    /// The largest shape that a context can meet: the one to reserve memory for. Logits are wanted for every token.
    /// Tokens are rounded up to the same number for each stream, as llama.cpp does.
    #[must_use]
    pub fn largest(layout: &KvLayout, tokens: u32) -> Self {
        let streams = layout.streams.min(tokens.max(1));
        let tokens = tokens.next_multiple_of(streams);
        Self {
            tokens,
            outputs: tokens,
            first_stream: 0,
            streams,
            cells: layout.cells,
            sliding_cells: layout.sliding_cells,
            columns: ColumnOrder::default(),
        }
    }

    /// The shape of a micro-batch that was put into the caches at `slots`.
    #[must_use]
    pub fn of(batch: &crate::kv::MicroBatch, slots: &Slots, state: &crate::kv::KvState) -> Self {
        use crate::kv::CacheKind;
        let streams = slots.full.stream_range();
        let full = state.cache(CacheKind::Full).visible(&slots.full);
        Self {
            tokens: batch.len() as u32,
            outputs: (batch.outputs().count() as u32).max(1),
            first_stream: streams.start,
            streams: streams.end - streams.start,
            cells: full,
            sliding_cells: slots.sliding.as_ref().map_or(full, |s| state.cache(CacheKind::Sliding).visible(s)),
            columns: batch.columns(),
        }
    }

    pub(super) fn check(&self, layout: &KvLayout) -> Result<(), FamilyError> {
        let tokens = in_range("the number of tokens", self.tokens, 1, MAX_MICRO_BATCH)?;
        in_range("the number of outputs", self.outputs, 1, tokens)?;
        in_range("the number of cells seen", self.cells, 1, layout.cells)?;
        in_range("the number of cells seen", self.sliding_cells, 1, layout.sliding_cells.max(layout.cells))?;
        in_range("the number of streams", self.streams, 1, layout.streams)?;
        in_range("the first stream", self.first_stream, 0, layout.streams - self.streams)?;
        if !tokens.is_multiple_of(self.streams) {
            let expected = format!("a multiple of the {} streams", self.streams);
            return Err(FamilyError::Shape { what: "the number of tokens", found: tokens.into(), expected });
        }
        Ok(())
    }
}

loadmaster_graph::define_id! {
    /// A memory that keeps weights, as far as graphs care: which of them is which only the placer knows.
    pub HomeId, "home";
}

/// Which memory keeps the weights of which part of the model.
///
/// A graph depends on this in one way: tensors that several layers use (rotary factors, a token embedding that is the
/// output too) exist once per home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Homes {
    /// Of the token embedding.
    pub input: HomeId,
    /// Of each layer.
    pub layers: Vec<HomeId>,
    /// Of the output.
    pub output: HomeId,
    /// Of rotary factors that are not with each layer.
    pub factors: BTreeMap<WeightId, HomeId>,
}

impl Homes {
    /// One home for everything.
    #[must_use]
    pub fn single(params: &HParams) -> Self {
        let home = HomeId::new(0);
        Self { input: home, layers: vec![home; params.layers.len()], output: home, factors: BTreeMap::new() }
    }
}

/// The part of a model that a tensor belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// The token embedding.
    Input,
    /// A layer.
    Layer(LayerId),
    /// Last norm and output.
    Output,
}
