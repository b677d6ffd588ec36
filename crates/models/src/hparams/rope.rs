//! Rotary position embedding: variant, frequencies, scaling.

use super::Architecture;
use super::read::Keys;
use crate::gguf::GgufError;

/// Which elements of a head are rotated together (ggml's rope types).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RopeKind {
    /// Neighbours: 0 with 1, 2 with 3, … (`LLAMA_ROPE_TYPE_NORM`).
    Norm,
    /// Halves: i with i + n/2 (`LLAMA_ROPE_TYPE_NEOX`).
    Neox,
}

impl RopeKind {
    /// ggml's number, as it stands in the parameters of a ROPE operation.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Norm => 0,
            Self::Neox => 2,
        }
    }
}

/// How positions beyond the trained context are treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All positions are divided by a factor.
    Linear,
    /// YaRN: by frequency.
    Yarn,
    /// LongRoPE: factors per frequency, one set for short and one for long contexts.
    LongRope,
}

/// Everything that a ROPE operation needs but the tensors.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rope {
    /// Which elements are rotated together.
    pub kind: RopeKind,
    /// Elements of a head that are rotated.
    pub dims: u32,
    /// Scaling.
    pub scaling: RopeScaling,
    /// Context length before scaling.
    pub original_context: u32,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// Factor on positions (1 / scaling factor).
    pub freq_scale: f32,
    /// Base of the frequencies in layers with a sliding window.
    pub freq_base_swa: f32,
    /// YaRN's mix of interpolation and extrapolation.
    pub ext_factor: f32,
    /// Factor on the magnitude.
    pub attn_factor: f32,
    /// YaRN's upper number of rotations.
    pub beta_fast: f32,
    /// YaRN's lower number of rotations.
    pub beta_slow: f32,
}

const LIMIT_CONTEXT: u32 = super::MAX_CONTEXT;

impl Rope {
    pub(super) fn read(keys: &Keys<'_>, arch: Architecture, head: u32, trained: u32) -> Result<Self, GgufError> {
        let dims = keys.number("rope.dimension_count", super::MAX_EMBEDDING)?.unwrap_or(head);
        if dims == 0 || dims % 2 != 0 || dims > head {
            return Err(keys.bad("rope.dimension_count", format!("{dims} is not an even number up to {head}")));
        }
        let scaling = scaling(keys)?;
        let factor = match keys.float("rope.scaling.factor")? {
            Some(factor) => factor,
            None => keys.float("rope.scale_linear")?.unwrap_or(0.0),
        };
        let freq_scale = if factor == 0.0 || scaling == RopeScaling::None { 1.0 } else { 1.0 / factor };
        let ext_factor = if scaling == RopeScaling::Yarn { 1.0 } else { 0.0 };
        let trained_factor = keys.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
        Ok(Self {
            kind: match arch {
                Architecture::Llama => RopeKind::Norm,
                _ => RopeKind::Neox,
            },
            dims,
            scaling,
            original_context: keys
                .number("rope.scaling.original_context_length", LIMIT_CONTEXT)?
                .filter(|&n| n > 0)
                .unwrap_or(trained),
            freq_base: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
            freq_scale,
            freq_base_swa: keys.float("rope.freq_base_swa")?.unwrap_or(10_000.0),
            ext_factor,
            attn_factor: yarn_magnitude(scaling, freq_scale) * trained_factor,
            beta_fast: 32.0,
            beta_slow: 1.0,
        })
    }

    /// Base of the frequencies of a layer.
    #[must_use]
    pub fn base(&self, sliding: bool) -> f32 {
        if sliding { self.freq_base_swa } else { self.freq_base }
    }

    /// Factor on positions of a layer: layers with a sliding window are not scaled.
    #[must_use]
    pub fn scale(&self, sliding: bool) -> f32 {
        if sliding { 1.0 } else { self.freq_scale }
    }
}

/// The factor that goes to the kernel so that the magnitude comes out as YaRN wants: the kernel multiplies by
/// `1 + 0.1 ln(1 / scale)` itself.
fn yarn_magnitude(scaling: RopeScaling, freq_scale: f32) -> f32 {
    if scaling != RopeScaling::Yarn {
        return 1.0;
    }
    let factor = 1.0 / freq_scale;
    let wanted = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
    wanted * (1.0 / (1.0 + 0.1 * factor.ln()))
}

fn scaling(keys: &Keys<'_>) -> Result<RopeScaling, GgufError> {
    const KEY: &str = "rope.scaling.type";
    Ok(match keys.string(KEY)?.unwrap_or("linear") {
        "none" => RopeScaling::None,
        "linear" => RopeScaling::Linear,
        "yarn" => RopeScaling::Yarn,
        "longrope" => RopeScaling::LongRope,
        other => return Err(keys.bad(KEY, format!("`{other}` is not none, linear, yarn or longrope"))),
    })
}
