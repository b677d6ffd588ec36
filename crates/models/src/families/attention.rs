//! Queries, keys and values; the cache; attention.

use super::context::{Context, LayerRef, VALUE_ROTATION};
use super::error::FamilyError;
use super::model::InputKind;
use super::spec::{Attention, CachePart};
use crate::hparams::RopeKind;
use crate::kv::CacheKind;
use loadmaster_graph::builder::{FlashAttn, Precision, Rope, RopeMode, SoftMax};
use loadmaster_graph::{DType, TensorId};

/// Queries, keys and values of a layer: `[head, heads, tokens]`.
#[derive(Clone, Copy)]
pub(super) struct Qkv {
    pub(super) q: TensorId,
    pub(super) k: TensorId,
    pub(super) v: TensorId,
}

impl Context<'_> {
    /// Projects to queries, keys and values: with one weight for all or one each.
    pub(super) fn qkv(&mut self, cur: TensorId, layer: LayerRef) -> Result<Qkv, FamilyError> {
        let out = if self.has(&super::context::layer_name(layer, "attn_qkv.weight")) {
            self.fused_qkv(cur, layer)?
        } else {
            Qkv {
                q: self.projection(cur, layer, "attn_q", "Qcur", layer.heads)?,
                k: self.projection(cur, layer, "attn_k", "Kcur", layer.kv_heads)?,
                v: self.projection(cur, layer, "attn_v", "Vcur", layer.kv_heads)?,
            }
        };
        self.name(out.q, "Qcur", layer)?;
        self.name(out.k, "Kcur", layer)?;
        self.name(out.v, "Vcur", layer)?;
        Ok(out)
    }

    fn projection(
        &mut self,
        cur: TensorId,
        layer: LayerRef,
        weight: &str,
        name: &str,
        heads: u64,
    ) -> Result<TensorId, FamilyError> {
        let width = self.head() * heads;
        let w = self.layer_weight(layer, &format!("{weight}.weight"), &[self.embedding(), width])?;
        let scale = self.layer_optional(layer, &format!("{weight}.scale"), &[1])?;
        let mut out = self.linear(w, cur, scale)?;
        self.name(out, name, layer)?;
        if let Some(bias) = self.layer_optional(layer, &format!("{weight}.bias"), &[width])? {
            out = self.b.add(out, bias)?;
            self.name(out, name, layer)?;
        }
        Ok(self.b.reshape(out, &[self.head(), heads, self.tokens(), 1])?)
    }

    fn fused_qkv(&mut self, cur: TensorId, layer: LayerRef) -> Result<Qkv, FamilyError> {
        let (head, tokens) = (self.head(), self.tokens());
        let (q_width, k_width) = (head * layer.heads, head * layer.kv_heads);
        let width = q_width + 2 * k_width;
        let w = self.layer_weight(layer, "attn_qkv.weight", &[self.embedding(), width])?;
        let scale = self.layer_optional(layer, "attn_qkv.scale", &[1])?;
        let mut qkv = self.linear(w, cur, scale)?;
        self.name(qkv, "wqkv", layer)?;
        if let Some(bias) = self.layer_optional(layer, "attn_qkv.bias", &[width])? {
            qkv = self.b.add(qkv, bias)?;
            self.name(qkv, "wqkv_b", layer)?;
        }
        let [element, row, ..] = self.b.tensor(qkv)?.nb;
        let mut part =
            |heads: u64, before: u64| self.view(qkv, &[head, heads, tokens], &[element * head, row], element * before);
        Ok(Qkv {
            q: part(layer.heads, 0)?,
            k: part(layer.kv_heads, q_width)?,
            v: part(layer.kv_heads, q_width + k_width)?,
        })
    }

    /// Rotates queries or keys by their positions.
    pub(super) fn rope(
        &mut self,
        cur: TensorId,
        factors: Option<TensorId>,
        layer: LayerRef,
    ) -> Result<TensorId, FamilyError> {
        let rope = &self.params.rope;
        let sliding = layer.cache == CacheKind::Sliding;
        let options = Rope {
            n_dims: rope.dims,
            mode: match rope.kind {
                RopeKind::Norm => RopeMode::Normal,
                RopeKind::Neox => RopeMode::Neox,
            },
            n_ctx_orig: rope.original_context,
            freq_base: rope.base(sliding),
            freq_scale: rope.scale(sliding),
            ext_factor: rope.ext_factor,
            attn_factor: rope.attn_factor,
            beta_fast: rope.beta_fast,
            beta_slow: rope.beta_slow,
            ..Rope::default()
        };
        let positions = self.input(InputKind::Positions)?;
        Ok(self.b.rope(cur, positions, factors, options)?)
    }

    /// Stores keys and values, attends, projects back.
    pub(super) fn attend(&mut self, qkv: Qkv, scale: f32, layer: LayerRef) -> Result<TensorId, FamilyError> {
        let qkv = self.rotate(qkv, layer)?;
        // The order is llama.cpp's: it differs between models with and without a window.
        let order = if self.params.window.is_some() { [qkv.q, qkv.k, qkv.v] } else { [qkv.q, qkv.v, qkv.k] };
        for id in order {
            self.b.expand(id)?;
        }
        let keys = self.store_keys(qkv.k, layer)?;
        let values = self.store_values(qkv.v, layer)?;
        let k = self.load_keys(keys, layer)?;
        let v = self.load_values(values, layer)?;
        let cur = self.heads(qkv.q, k, v, scale, layer)?;
        self.name(cur, "kqv_out", layer)?;
        let cur = self.rotate_back(cur, layer)?;
        self.attention_output(cur, layer)
    }

    fn attention_output(&mut self, cur: TensorId, layer: LayerRef) -> Result<TensorId, FamilyError> {
        let width = self.head() * layer.heads;
        let w = self.layer_weight(layer, "attn_output.weight", &[width, self.embedding()])?;
        let scale = self.layer_optional(layer, "attn_output.scale", &[1])?;
        self.linear(w, cur, scale)
    }

    /// Copies the new keys into their cells; returns the cache.
    fn store_keys(&mut self, k: TensorId, layer: LayerRef) -> Result<TensorId, FamilyError> {
        let width = self.head() * layer.kv_heads;
        let cache = self.cache(layer, CachePart::Keys, width)?;
        let cells = self.input(InputKind::KeyCells(layer.cache))?;
        let stored = self.store_rows(k, cache, cells, width, layer)?;
        self.b.expand(stored)?;
        Ok(cache)
    }

    fn store_values(&mut self, v: TensorId, layer: LayerRef) -> Result<TensorId, FamilyError> {
        let width = self.head() * layer.kv_heads;
        let cells = self.input(InputKind::ValueCells(layer.cache))?;
        let (cache, stored) = match self.attention {
            Attention::Flash => {
                let cache = self.cache(layer, CachePart::Values, width)?;
                (cache, self.store_rows(v, cache, cells, width, layer)?)
            }
            Attention::Plain => {
                self.same_width(width)?;
                let cache = self.cache(layer, CachePart::Values, width)?;
                (cache, self.store_elements(v, cache, cells, width)?)
            }
        };
        self.b.expand(stored)?;
        Ok(cache)
    }

    /// Places of transposed values are computed once for all layers, so all must have the same width.
    fn same_width(&self, width: u64) -> Result<(), FamilyError> {
        let widest = self.params.max_values_width();
        if width == widest {
            return Ok(());
        }
        let expected = format!("{widest} as in other layers; flash attention does without that");
        Err(FamilyError::Shape { what: "the width of a layer's values", found: width, expected })
    }

    /// A token is a row of the cache.
    fn store_rows(
        &mut self,
        cur: TensorId,
        cache: TensorId,
        cells: TensorId,
        width: u64,
        layer: LayerRef,
    ) -> Result<TensorId, FamilyError> {
        let token = self.b.tensor(cur)?.nb[2];
        let tokens = self.tokens();
        let rows = self.view(cur, &[width, tokens], &[token], 0)?;
        // Cells are numbered over all streams.
        let streams = u64::from(self.layout.streams);
        let target =
            if streams > 1 { self.b.reshape(cache, &[width, self.cells(layer.cache) * streams, 1, 1])? } else { cache };
        Ok(self.b.set_rows(target, rows, cells)?)
    }

    /// Values stored transposed: every element goes to a place of its own.
    fn store_elements(
        &mut self,
        cur: TensorId,
        cache: TensorId,
        places: TensorId,
        width: u64,
    ) -> Result<TensorId, FamilyError> {
        let tokens = self.tokens();
        let t = self.b.tensor(cur)?;
        let contiguous = t.nb[0].checked_mul(width) == Some(t.nb[2]);
        let rows = if contiguous {
            self.b.reshape(cur, &[width, tokens, 1, 1])?
        } else {
            self.b.cont_as(cur, [width, tokens, 1, 1])?
        };
        let places_there = self.b.tensor(cache)?.elements();
        let target = self.b.reshape(cache, &[1, places_there])?;
        let elements = self.b.tensor(rows)?.elements();
        let rows = self.b.reshape(rows, &[1, elements])?;
        Ok(self.b.set_rows(target, rows, places)?)
    }

    /// The keys that the batch sees: `[head, heads, cells, streams]`.
    fn load_keys(&mut self, cache: TensorId, layer: LayerRef) -> Result<TensorId, FamilyError> {
        self.load_rows(cache, layer)
    }

    /// The values that the batch sees: as the keys, or `[cells, heads, head, streams]` where stored transposed.
    fn load_values(&mut self, cache: TensorId, layer: LayerRef) -> Result<TensorId, FamilyError> {
        if self.attention == Attention::Flash {
            return self.load_rows(cache, layer);
        }
        let t = self.b.tensor(cache)?;
        let (element, width) = (t.nb[0], t.ne[0]);
        let cells = self.cells(layer.cache);
        let ne = [self.visible(layer.cache), layer.kv_heads, self.head(), self.shape.streams.into()];
        let strides = [element * cells * self.head(), element * cells, element * cells * width];
        self.view(cache, &ne, &strides, strides[2] * u64::from(self.shape.first_stream))
    }

    fn load_rows(&mut self, cache: TensorId, layer: LayerRef) -> Result<TensorId, FamilyError> {
        let t = self.b.tensor(cache)?;
        // Heads are whole blocks: checked with the layout.
        let (nb, head) = (t.nb, t.dtype.row_size(self.head()).unwrap_or_default().get());
        let ne = [self.head(), layer.kv_heads, self.visible(layer.cache), self.shape.streams.into()];
        self.view(cache, &ne, &[head, nb[1], nb[2]], nb[2] * u64::from(self.shape.first_stream))
    }

    /// Attention of all heads: `[head · heads, tokens]`.
    fn heads(
        &mut self,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        scale: f32,
        layer: LayerRef,
    ) -> Result<TensorId, FamilyError> {
        let q = self.by_stream(q)?;
        let q = self.b.permute(q, [0, 2, 1, 3])?;
        let k = self.b.permute(k, [0, 2, 1, 3])?;
        let v = self.b.permute(v, [0, 2, 1, 3])?;
        let mask = self.input(InputKind::Mask(layer.cache))?;
        let cur = match self.attention {
            Attention::Flash => self.flash(q, k, v, mask, scale)?,
            Attention::Plain => self.plain(q, k, v, mask, scale, layer)?,
        };
        self.b.expand(cur)?;
        Ok(cur)
    }

    /// Queries `[head, heads, tokens]` as `[head, heads, tokens of a stream, streams]`.
    fn by_stream(&mut self, q: TensorId) -> Result<TensorId, FamilyError> {
        let streams = u64::from(self.shape.streams);
        let t = self.b.tensor(q)?;
        let each = t.ne[2] / streams;
        let (ne, strides) = ([t.ne[0], t.ne[1], each, streams], [t.nb[1], t.nb[2], t.nb[2] * each]);
        self.view(q, &ne, &strides, 0)
    }

    fn flash(
        &mut self,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        mask: TensorId,
        scale: f32,
    ) -> Result<TensorId, FamilyError> {
        let k = self.at_most_f16(k)?;
        let v = self.at_most_f16(v)?;
        let options = FlashAttn { mask: Some(mask), scale, precision: Precision::F32, ..FlashAttn::default() };
        let cur = self.b.flash_attn(q, k, v, options)?;
        let ne = self.b.tensor(cur)?.ne;
        Ok(self.b.reshape(cur, &[ne[0] * ne[1], ne[2] * ne[3], 1, 1])?)
    }

    fn at_most_f16(&mut self, id: TensorId) -> Result<TensorId, FamilyError> {
        Ok(if self.b.tensor(id)?.dtype == DType::F32 { self.b.cast(id, DType::F16)? } else { id })
    }

    fn plain(
        &mut self,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        mask: TensorId,
        scale: f32,
        layer: LayerRef,
    ) -> Result<TensorId, FamilyError> {
        let kq = self.b.mul_mat(k, q)?;
        self.name(kq, "kq", layer)?;
        self.b.set_precision(kq, Precision::F32)?;
        let kq = self.b.soft_max(kq, SoftMax { mask: Some(mask), scale, ..SoftMax::default() })?;
        self.name(kq, "kq_soft_max", layer)?;
        let kqv = self.b.mul_mat(v, kq)?;
        self.name(kqv, "kqv", layer)?;
        let cur = self.b.permute(kqv, [0, 2, 1, 3])?;
        let ne = self.b.tensor(cur)?.ne;
        let cur = self.b.cont_as(cur, [ne[0] * ne[1], ne[2] * ne[3], 1, 1])?;
        self.attention_outputs.push((cur, layer.id));
        Ok(cur)
    }

    /// Before a quantized cache, keys and queries (and values) are rotated so that no element stands out; products of
    /// keys and queries stay what they are.
    fn rotate(&mut self, qkv: Qkv, layer: LayerRef) -> Result<Qkv, FamilyError> {
        let Qkv { mut q, mut k, mut v } = qkv;
        let whole = self.head().is_multiple_of(64);
        if self.layout.key_type.is_quantized() && whole {
            let rotation = self.input(InputKind::KeyRotation(layer.cache))?;
            q = self.rotated(q, rotation)?;
            k = self.rotated(k, rotation)?;
        }
        if self.rotates_values() {
            let rotation = self.input(InputKind::ValueRotation(layer.cache))?;
            v = self.rotated(v, rotation)?;
        }
        Ok(Qkv { q, k, v })
    }

    fn rotate_back(&mut self, cur: TensorId, layer: LayerRef) -> Result<TensorId, FamilyError> {
        if !self.rotates_values() {
            return Ok(cur);
        }
        let rotation = self.input(InputKind::ValueRotation(layer.cache))?;
        self.rotated(cur, rotation)
    }

    fn rotates_values(&self) -> bool {
        self.layout.value_type.is_quantized() && self.head().is_multiple_of(VALUE_ROTATION)
    }

    fn rotated(&mut self, cur: TensorId, rotation: TensorId) -> Result<TensorId, FamilyError> {
        let t = self.b.tensor(cur)?;
        let (ne, contiguous, n) = (t.ne, t.is_contiguous(), self.b.tensor(rotation)?.ne[0]);
        let flat = [n, t.elements() / n, 1, 1];
        let cur = if contiguous { self.b.reshape(cur, &flat)? } else { self.b.cont_as(cur, flat)? };
        let cur = self.b.mul_mat(rotation, cur)?;
        self.b.set_hadamard(cur)?;
        Ok(self.b.reshape(cur, &ne)?)
    }
}
