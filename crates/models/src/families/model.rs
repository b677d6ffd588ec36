//! The value that a builder returns: a graph and what its tensors are.

use super::spec::{CachePart, Part};
use crate::gguf::WeightId;
use crate::hparams::LayerId;
use crate::kv::CacheKind;
use loadmaster_graph::{Graph, TensorId};

/// What the caller writes before a graph runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum InputKind {
    /// Token ids, I32 `[tokens]`.
    Tokens,
    /// Embeddings in place of tokens, F32 `[embedding, tokens]`. It stands in llama.cpp's graphs and takes memory there,
    /// but no operation reads it.
    Embeddings,
    /// Positions, I32 `[tokens]`.
    Positions,
    /// Cells that take the new keys, I64 `[tokens]`.
    KeyCells(CacheKind),
    /// Cells that take the new values: I64 `[tokens]`, or, where values are stored transposed, one per element,
    /// I64 `[tokens · width]`.
    ValueCells(CacheKind),
    /// Which query sees which cell: 0 or −∞, F16 (flash attention) or F32 `[cells, tokens, 1, streams]`.
    Mask(CacheKind),
    /// Tokens whose logits are wanted, I32 `[outputs]`.
    OutputRows,
    /// Rotation that spreads the outliers of keys before they are quantized, F32 `[n, n]`.
    KeyRotation(CacheKind),
    /// The same for values.
    ValueRotation(CacheKind),
}

/// An input of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Input {
    /// What it is.
    pub kind: InputKind,
    /// The leaf.
    pub tensor: TensorId,
}

/// A weight in a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightUse {
    /// The leaf.
    pub tensor: TensorId,
    /// The weight in the file.
    pub weight: WeightId,
    /// The part of the model that it belongs to.
    pub part: Part,
}

/// A cache tensor in a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheUse {
    /// The leaf: `[width, cells, streams]`.
    pub tensor: TensorId,
    /// Its layer.
    pub layer: LayerId,
    /// Keys or values.
    pub part: CachePart,
    /// Which of the caches.
    pub cache: CacheKind,
}

/// A graph of a model.
///
/// # What llama.cpp pins
///
/// `pinned` and `buffers` of the golden files follow from the placement of layers and are not part of this value:
///
/// - a weight is in the buffer of its part's device (the input's is the host), of usage `weights`;
/// - a cache tensor is in the buffer of its layer's device, or of the host where the cache is not offloaded, of usage
///   `any`;
/// - each of [`Self::norms`] is pinned to its layer's device if the batch has fewer than 32 tokens, or if all layers and
///   the output are on GPUs;
/// - each of [`Self::attention_outputs`] is pinned to the host if the cache is not offloaded (there are none with flash
///   attention).
#[derive(Clone, PartialEq, Debug)]
pub struct ModelGraph {
    /// The graph.
    pub graph: Graph,
    /// Its inputs.
    pub inputs: Vec<Input>,
    /// Its weights, in the order of the graph's leafs.
    pub weights: Vec<WeightUse>,
    /// Its cache tensors, in the order of the graph's leafs.
    pub caches: Vec<CacheUse>,
    /// Norms of layers, before their weight is applied.
    pub norms: Vec<(TensorId, LayerId)>,
    /// What attention without flash puts out, per layer.
    pub attention_outputs: Vec<(TensorId, LayerId)>,
    /// The logits: F32 `[vocabulary, outputs]`.
    pub logits: TensorId,
    /// Whether several parts use one weight. If not, the graph is the same for all [`Homes`](super::Homes).
    pub shares_weights: bool,
}
