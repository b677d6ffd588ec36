//! Attention: soft maximum, rotary positions, and both in one.

use super::matrix::{Precision, can_multiply, is_multiple};
use super::{BuildError, Built, GraphBuilder, OperandFault, contiguous, params, sources};
use crate::dtype::DType;
use crate::id::TensorId;
use crate::op::Op;
use crate::tensor::Tensor;

/// Options of a soft maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoftMax {
    /// Added to the scaled elements: F16 or F32 `[ne0, ≥ ne1, ne2 or a divisor, ne3 or a divisor]`.
    pub mask: Option<TensorId>,
    /// One more logit for each head: F32 `[ne2]`.
    pub sinks: Option<TensorId>,
    /// Factor of the elements.
    pub scale: f32,
    /// Largest slope of the mask (ALiBi); 0 for none.
    pub max_bias: f32,
}

impl Default for SoftMax {
    fn default() -> Self {
        Self { mask: None, sinks: None, scale: 1.0, max_bias: 0.0 }
    }
}

/// Options of fused attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlashAttn {
    /// Added to the scaled scores: F16 `[kv, ≥ batch, heads or a divisor, sequences or a divisor]`.
    pub mask: Option<TensorId>,
    /// One more logit for each head: F32 `[heads]`.
    pub sinks: Option<TensorId>,
    /// Factor of the scores.
    pub scale: f32,
    /// Largest slope of the mask (ALiBi); 0 for none.
    pub max_bias: f32,
    /// Scores are bent below this; 0 for none.
    pub logit_softcap: f32,
    /// Demanded precision.
    pub precision: Precision,
}

impl Default for FlashAttn {
    fn default() -> Self {
        let precision = Precision::Undefined;
        Self { mask: None, sinks: None, scale: 1.0, max_bias: 0.0, logit_softcap: 0.0, precision }
    }
}

/// Which elements of a row are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[repr(u32)]
pub enum RopeMode {
    /// Neighbours.
    #[default]
    Normal = 0,
    /// Those half the rotated dimensions apart.
    Neox = 2,
    /// Several positions for a token, one for each section.
    Mrope = 8,
    /// [`Self::Mrope`] for images.
    Vision = 24,
    /// [`Self::Mrope`] with interleaved sections.
    Imrope = 40,
}

impl RopeMode {
    /// Whether each token has four positions.
    #[must_use]
    pub const fn has_sections(self) -> bool {
        self as u32 & Self::Mrope as u32 != 0
    }
}

/// Options of rotary positions; the default is ggml's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// How many elements of a row are rotated.
    pub n_dims: u32,
    /// Which are rotated together.
    pub mode: RopeMode,
    /// Context length of the training.
    pub n_ctx_orig: u32,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// Factor of the positions.
    pub freq_scale: f32,
    /// Share of extrapolation (YaRN).
    pub ext_factor: f32,
    /// Factor of the results.
    pub attn_factor: f32,
    /// Fast bound of the ramp (YaRN).
    pub beta_fast: f32,
    /// Slow bound of the ramp (YaRN).
    pub beta_slow: f32,
    /// Sections, for modes that have them.
    pub sections: [u32; 4],
    /// First rotated element of a row.
    pub first_dim: u32,
}

impl Default for Rope {
    fn default() -> Self {
        Self {
            n_dims: 0,
            mode: RopeMode::Normal,
            n_ctx_orig: 0,
            freq_base: 10_000.0,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 0.0,
            beta_slow: 0.0,
            sections: [0; 4],
            first_dim: 0,
        }
    }
}

impl Rope {
    /// The sixteen words that ggml stores.
    fn words(&self) -> [u32; 16] {
        let mut words = [0; 16];
        (words[1], words[2], words[4]) = (self.n_dims, self.mode as u32, self.n_ctx_orig);
        let floats =
            [self.freq_base, self.freq_scale, self.ext_factor, self.attn_factor, self.beta_fast, self.beta_slow];
        words[5..11].copy_from_slice(&floats.map(f32::to_bits));
        if self.mode.has_sections() {
            words[11..15].copy_from_slice(&self.sections);
        }
        words[15] = self.first_dim;
        words
    }
}

impl GraphBuilder {
    /// The soft maximum of each row of `scale · a + mask`. Result: like `a`.
    pub fn soft_max(&mut self, a: TensorId, options: SoftMax) -> Built {
        let op = Op::SoftMax;
        let tensor = self.operand(op, a)?;
        self.require(tensor.is_contiguous(), op, OperandFault::NotContiguous, &[a])?;
        if let (Some(id), Some(mask)) = (options.mask, self.optional(op, options.mask)?) {
            let types = matches!(mask.dtype, DType::F16 | DType::F32);
            self.require(types, op, OperandFault::WrongType, &[a, id])?;
            self.require(mask.is_contiguous(), op, OperandFault::NotContiguous, &[a, id])?;
            let outer = is_multiple(tensor.ne[2], mask.ne[2]) && is_multiple(tensor.ne[3], mask.ne[3]);
            let fits = mask.ne[0] == tensor.ne[0] && mask.ne[1] >= tensor.ne[1] && outer;
            self.require(fits, op, OperandFault::ExtentsDiffer, &[a, id])?;
        }
        self.check_bias(op, a, options.mask, options.max_bias)?;
        self.check_sinks(op, a, tensor, options.sinks)?;
        let mut result = self.like(op, a, &[Some(a), options.mask, options.sinks])?;
        result.params = params(&[options.scale.to_bits(), options.max_bias.to_bits()]);
        self.push(result)
    }

    /// Rotates rows by positions. `a`: `[n, heads, tokens]`, `positions`: I32 `[tokens]` (four times as many for modes with
    /// sections), `freq_factors`: F32, at least half as many as rotated elements. Result: like `a`.
    pub fn rope(&mut self, a: TensorId, positions: TensorId, freq_factors: Option<TensorId>, options: Rope) -> Built {
        let op = Op::Rope;
        let (tensor, pos) = (self.operand(op, a)?, self.operand(op, positions)?);
        let per_token = if options.mode.has_sections() { 4 } else { 1 };
        let fits = pos.is_vector() && tensor.ne[2].checked_mul(per_token) == Some(pos.ne[0]);
        self.require(fits, op, OperandFault::ExtentsDiffer, &[a, positions])?;
        self.require(pos.dtype == DType::I32, op, OperandFault::WrongType, &[a, positions])?;
        if let (Some(id), Some(factors)) = (freq_factors, self.optional(op, freq_factors)?) {
            self.require(factors.dtype == DType::F32, op, OperandFault::WrongType, &[a, id])?;
            let enough = factors.ne[0] >= u64::from(options.n_dims / 2);
            self.require(enough, op, OperandFault::ExtentsDiffer, &[a, id])?;
        }
        let mut result = self.like(op, a, &[Some(a), Some(positions), freq_factors])?;
        result.params = params(&options.words());
        self.push(result)
    }

    /// Attention in one operation. `q`: `[k, batch, heads, seqs]`, `k`: `[k, kv, kv_heads, seqs]`, `v`: `[v, kv, kv_heads, seqs]`
    /// (not transposed). Result: F32 `[v, heads, batch, seqs]`.
    pub fn flash_attn(&mut self, q: TensorId, k: TensorId, v: TensorId, options: FlashAttn) -> Built {
        let op = Op::FlashAttnExt;
        let all = [q, k, v];
        let (query, key, value) = (self.operand(op, q)?, self.operand(op, k)?, self.operand(op, v)?);
        let sequences = query.ne[3] == key.ne[3] && query.ne[3] == value.ne[3];
        self.require(can_multiply(key, query) && sequences, op, OperandFault::ExtentsDiffer, &all)?;
        if let (Some(id), Some(mask)) = (options.mask, self.optional(op, options.mask)?) {
            self.require(mask.dtype == DType::F16, op, OperandFault::WrongType, &[q, id])?;
            self.require(mask.is_contiguous(), op, OperandFault::NotContiguous, &[q, id])?;
            let outer = is_multiple(query.ne[2], mask.ne[2]) && is_multiple(query.ne[3], mask.ne[3]);
            self.require(outer, op, OperandFault::ExtentsDiffer, &[q, id])?;
        }
        self.check_bias(op, q, options.mask, options.max_bias)?;
        self.check_sinks(op, q, query, options.sinks)?;
        let mut result = contiguous(op, DType::F32, [value.ne[0], query.ne[2], query.ne[1], query.ne[3]])?;
        result.src = sources(&[Some(q), Some(k), Some(v), options.mask, options.sinks]);
        let floats = [options.scale, options.max_bias, options.logit_softcap].map(f32::to_bits);
        result.params = params(&[floats[0], floats[1], floats[2], options.precision as u32]);
        self.push(result)
    }

    fn check_bias(&self, op: Op, a: TensorId, mask: Option<TensorId>, max_bias: f32) -> Result<(), BuildError> {
        self.require(max_bias <= 0.0 || mask.is_some(), op, OperandFault::BiasWithoutMask, &[a])
    }

    /// One sink for each head; heads are dimension 2 of the operand.
    fn check_sinks(&self, op: Op, a: TensorId, heads: &Tensor, sinks: Option<TensorId>) -> Result<(), BuildError> {
        let (Some(id), Some(tensor)) = (sinks, self.optional(op, sinks)?) else { return Ok(()) };
        self.require(heads.ne[2] == tensor.ne[0], op, OperandFault::ExtentsDiffer, &[a, id])?;
        self.require(tensor.dtype == DType::F32, op, OperandFault::WrongType, &[a, id])
    }
}
