//! What the builders of all families share: weights, inputs, caches and names.

use super::error::FamilyError;
use super::model::{CacheUse, Input, InputKind, WeightUse};
use super::spec::{Attention, BatchShape, CachePart, Homes, KvLayout, Part};
use super::{GraphSpec, HomeId};
use crate::gguf::{Gguf, GgufFault, WeightId};
use crate::hparams::{HParams, Layer, LayerId};
use crate::kv::CacheKind;
use loadmaster_graph::{Bytes, DType, GraphBuilder, TensorId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// A graph being built.
pub(super) struct Context<'a> {
    pub(super) b: GraphBuilder,
    file: &'a Gguf,
    pub(super) params: &'a HParams,
    pub(super) shape: BatchShape,
    pub(super) layout: &'a KvLayout,
    pub(super) attention: Attention,
    homes: &'a Homes,
    pub(super) inputs: BTreeMap<InputKind, TensorId>,
    weights: BTreeMap<(WeightId, HomeId), WeightUse>,
    used: BTreeSet<WeightId>,
    shares_weights: bool,
    pub(super) caches: Vec<CacheUse>,
    pub(super) norms: Vec<(TensorId, LayerId)>,
    pub(super) attention_outputs: Vec<(TensorId, LayerId)>,
}

/// A layer being built.
#[derive(Clone, Copy)]
pub(super) struct LayerRef {
    pub(super) id: LayerId,
    pub(super) heads: u64,
    pub(super) kv_heads: u64,
    pub(super) feed_forward: u64,
    pub(super) cache: CacheKind,
}

impl LayerRef {
    pub(super) fn new(id: LayerId, layer: &Layer) -> Self {
        Self {
            id,
            heads: layer.heads.into(),
            kv_heads: layer.kv_heads.into(),
            feed_forward: layer.feed_forward.into(),
            cache: if layer.sliding { CacheKind::Sliding } else { CacheKind::Full },
        }
    }
}

impl<'a> Context<'a> {
    pub(super) fn new(file: &'a Gguf, params: &'a HParams, spec: &'a GraphSpec) -> Result<Self, FamilyError> {
        spec.shape.check(&spec.layout)?;
        check_types(params, spec)?;
        if spec.homes.layers.len() != params.layers.len() {
            return Err(FamilyError::Homes { expected: params.layers.len(), found: spec.homes.layers.len() });
        }
        let mut b = GraphBuilder::new();
        b.set_column_order(spec.shape.columns);
        Ok(Self {
            b,
            file,
            params,
            shape: spec.shape,
            layout: &spec.layout,
            attention: spec.attention,
            homes: &spec.homes,
            inputs: BTreeMap::new(),
            weights: BTreeMap::new(),
            used: BTreeSet::new(),
            shares_weights: false,
            caches: Vec::new(),
            norms: Vec::new(),
            attention_outputs: Vec::new(),
        })
    }

    pub(super) fn embedding(&self) -> u64 {
        self.params.embedding.into()
    }

    /// Elements of a head.
    pub(super) fn head(&self) -> u64 {
        self.params.key_length.into()
    }

    pub(super) fn tokens(&self) -> u64 {
        self.shape.tokens.into()
    }

    /// Names a tensor of a layer as llama.cpp does: `Qcur-7`.
    pub(super) fn name(&mut self, id: TensorId, name: &str, layer: LayerRef) -> Result<(), FamilyError> {
        Ok(self.b.set_name(id, format!("{name}-{}", layer.id.index()))?)
    }

    /// Part of a tensor: extents, and byte strides from the second dimension on.
    pub(super) fn view(
        &mut self,
        id: TensorId,
        ne: &[u64],
        strides: &[u64],
        offset: u64,
    ) -> Result<TensorId, FamilyError> {
        let strides: SmallVec<[Bytes; 3]> = strides.iter().copied().map(Bytes).collect();
        Ok(self.b.view(id, ne, &strides, Bytes(offset))?)
    }

    /// The input of a kind: made once, flagged, and put into the graph when something uses it.
    pub(super) fn input(&mut self, kind: InputKind) -> Result<TensorId, FamilyError> {
        if let Some(&id) = self.inputs.get(&kind) {
            return Ok(id);
        }
        let (name, dtype, ne) = self.input_tensor(kind);
        let id = self.b.leaf(name, dtype, &ne)?;
        self.b.set_input(id)?;
        self.inputs.insert(kind, id);
        Ok(id)
    }

    fn input_tensor(&self, kind: InputKind) -> (&'static str, DType, [u64; 4]) {
        let tokens = self.tokens();
        let streams = u64::from(self.shape.streams);
        match kind {
            InputKind::Tokens => ("inp_tokens", DType::I32, [tokens, 1, 1, 1]),
            InputKind::Embeddings => ("inp_embd", DType::F32, [self.embedding(), tokens, 1, 1]),
            InputKind::Positions => ("inp_pos", DType::I32, [tokens, 1, 1, 1]),
            InputKind::KeyCells(_) => ("attn_inp_k_idxs", DType::I64, [tokens, 1, 1, 1]),
            InputKind::ValueCells(_) => {
                let each = match self.attention {
                    Attention::Flash => 1,
                    Attention::Plain => self.params.max_values_width(),
                };
                ("attn_inp_v_idxs", DType::I64, [tokens * each, 1, 1, 1])
            }
            InputKind::Mask(cache) => {
                let dtype = match self.attention {
                    Attention::Flash => DType::F16,
                    Attention::Plain => DType::F32,
                };
                ("attn_inp_kq_mask", dtype, [self.visible(cache), tokens / streams, 1, streams])
            }
            InputKind::OutputRows => ("out_ids", DType::I32, [self.shape.outputs.into(), 1, 1, 1]),
            InputKind::KeyRotation(_) => {
                let n = key_rotation(self.head());
                ("attn_inp_k_rot", DType::F32, [n, n, 1, 1])
            }
            InputKind::ValueRotation(_) => ("attn_inp_v_rot", DType::F32, [VALUE_ROTATION, VALUE_ROTATION, 1, 1]),
        }
    }

    /// Cells that a graph sees in a cache.
    pub(super) fn visible(&self, cache: CacheKind) -> u64 {
        match cache {
            CacheKind::Full => self.shape.cells.into(),
            CacheKind::Sliding => self.shape.sliding_cells.into(),
        }
    }

    /// Cells of a stream of a cache.
    pub(super) fn cells(&self, cache: CacheKind) -> u64 {
        match cache {
            CacheKind::Full => self.layout.cells.into(),
            CacheKind::Sliding => self.layout.sliding_cells.into(),
        }
    }

    fn home(&self, part: Part) -> HomeId {
        match part {
            Part::Input => self.homes.input,
            Part::Layer(id) => self.homes.layers[id.index()],
            Part::Output => self.homes.output,
        }
    }

    /// A weight that must be there, of these extents.
    pub(super) fn weight(&mut self, name: &str, part: Part, ne: &[u64]) -> Result<TensorId, FamilyError> {
        let missing = || FamilyError::from(self.file.tensor_error(name, GgufFault::Missing));
        let id = self.file.find(name).ok_or_else(missing)?;
        self.leaf(id, part, self.home(part), ne)
    }

    /// A weight that may be there.
    pub(super) fn optional(&mut self, name: &str, part: Part, ne: &[u64]) -> Result<Option<TensorId>, FamilyError> {
        self.file.find(name).map(|id| self.leaf(id, part, self.home(part), ne)).transpose()
    }

    /// Rotary factors that may be there: one for each home that they have.
    pub(super) fn rotary_factors(
        &mut self,
        name: &str,
        layer: LayerRef,
        ne: &[u64],
    ) -> Result<Option<TensorId>, FamilyError> {
        let part = Part::Layer(layer.id);
        let Some(id) = self.file.find(name) else { return Ok(None) };
        let home = self.homes.factors.get(&id).copied().unwrap_or_else(|| self.home(part));
        self.leaf(id, part, home, ne).map(Some)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.file.find(name).is_some()
    }

    /// The leaf of a weight: one per home.
    fn leaf(&mut self, id: WeightId, part: Part, home: HomeId, ne: &[u64]) -> Result<TensorId, FamilyError> {
        if let Some(used) = self.weights.get(&(id, home)) {
            self.shares_weights |= used.part != part;
            return Ok(used.tensor);
        }
        let info = self.file.tensor(id);
        let Some(dtype) = info.dtype else {
            let fault = GgufFault::TensorType { number: info.type_number };
            return Err(self.file.tensor_error(&info.name, fault).into());
        };
        let wanted = std::array::from_fn(|i| ne.get(i).copied().unwrap_or(1));
        if info.ne != wanted {
            let reason = format!("its extents are {:?}, but {wanted:?} are needed", info.ne);
            return Err(self.file.tensor_error(&info.name, GgufFault::BadValue { reason }).into());
        }
        let tensor = self.b.leaf(info.name.clone(), dtype, &wanted)?;
        self.shares_weights |= !self.used.insert(id);
        self.weights.insert((id, home), WeightUse { tensor, weight: id, part });
        Ok(tensor)
    }

    /// A weight of a layer: `blk.7.attn_q.weight`.
    pub(super) fn layer_weight(&mut self, layer: LayerRef, name: &str, ne: &[u64]) -> Result<TensorId, FamilyError> {
        self.weight(&layer_name(layer, name), Part::Layer(layer.id), ne)
    }

    /// A weight of a layer that may be there.
    pub(super) fn layer_optional(
        &mut self,
        layer: LayerRef,
        name: &str,
        ne: &[u64],
    ) -> Result<Option<TensorId>, FamilyError> {
        self.optional(&layer_name(layer, name), Part::Layer(layer.id), ne)
    }

    /// A cache tensor of a layer: `[width, cells, streams]`.
    pub(super) fn cache(&mut self, layer: LayerRef, part: CachePart, width: u64) -> Result<TensorId, FamilyError> {
        let (letter, dtype) = match part {
            CachePart::Keys => ('k', self.layout.key_type),
            CachePart::Values => ('v', self.layout.value_type),
        };
        let name = format!("cache_{letter}_l{}", layer.id.index());
        let ne = [width, self.cells(layer.cache), self.layout.streams.into(), 1];
        let tensor = self.b.leaf(name, dtype, &ne)?;
        self.caches.push(CacheUse { tensor, layer: layer.id, part, cache: layer.cache });
        Ok(tensor)
    }

    pub(super) fn inputs(&self) -> Vec<Input> {
        self.inputs.iter().map(|(&kind, &tensor)| Input { kind, tensor }).collect()
    }

    /// Whether a weight was asked for by several parts.
    pub(super) fn shares_weights(&self) -> bool {
        self.shares_weights
    }

    pub(super) fn weights(&self) -> Vec<WeightUse> {
        self.weights.values().copied().collect()
    }
}

/// Types that a cache can have.
const CACHE_TYPES: [DType; 9] = [
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::Q8_0,
    DType::Q5_1,
    DType::Q5_0,
    DType::Q4_1,
    DType::Q4_0,
    DType::Iq4Nl,
];

/// Quantized caches need heads of whole blocks, and values that are not transposed.
fn check_types(params: &HParams, spec: &GraphSpec) -> Result<(), FamilyError> {
    let parts = [(CachePart::Keys, spec.layout.key_type), (CachePart::Values, spec.layout.value_type)];
    for (part, dtype) in parts {
        let refuse = |reason: String| Err(FamilyError::CacheType { part, dtype, reason });
        if !CACHE_TYPES.contains(&dtype) {
            return refuse(format!("it must be one of {}", CACHE_TYPES.map(DType::name).join(", ")));
        }
        if dtype.row_size(params.key_length.into()).is_none() {
            return refuse(format!("a head of {} elements is no whole number of its blocks", params.key_length));
        }
        if part == CachePart::Values && dtype.is_quantized() && spec.attention == Attention::Plain {
            return refuse(
                "without flash attention values are stored transposed, which quantized blocks cannot be".into(),
            );
        }
    }
    Ok(())
}

/// Size of the rotation of values: small ones do better (as llama.cpp chose).
pub(super) const VALUE_ROTATION: u64 = 64;

/// Size of the rotation of keys: the largest power of two from 64 on that divides a head.
pub(super) fn key_rotation(head: u64) -> u64 {
    let mut n = 64;
    while head > 0 && head.is_multiple_of(2 * n) {
        n *= 2;
    }
    n
}

pub(super) fn layer_name(layer: LayerRef, name: &str) -> String {
    format!("blk.{}.{name}", layer.id.index())
}
