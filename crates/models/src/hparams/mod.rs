//! Hyper-parameters of the supported architectures, from a file's metadata.
//!
//! Names and defaults are llama.cpp's. What the graphs need is here and checked; what the file says beyond that is not
//! read.

mod read;
mod rope;

pub use rope::{Rope, RopeKind, RopeScaling};

use crate::gguf::{Gguf, GgufError, GgufFault};
use loadmaster_graph::define_id;
use read::Keys;

/// Most layers of a model.
pub const MAX_LAYERS: u32 = 512;
/// Most experts of a layer.
pub const MAX_EXPERTS: u32 = 512;
/// Widest embedding, head or feed-forward layer.
pub const MAX_EMBEDDING: u32 = 1 << 20;
/// Most heads of a layer.
pub const MAX_HEADS: u32 = 1 << 12;
/// Longest context.
pub const MAX_CONTEXT: u32 = 1 << 28;

define_id! {
    /// A transformer layer, counted from the input.
    pub LayerId, "layer";
}

/// A model architecture whose graphs can be built.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Architecture {
    /// Llama 1 to 3, SmolLM, Mistral; with experts, Mixtral.
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Gemma3,
    Phi3,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Qwen3Moe, Self::Gemma3, Self::Phi3];

    /// The value of `general.architecture`, which is the prefix of the architecture's keys too.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
            Self::Gemma3 => "gemma3",
            Self::Phi3 => "phi3",
        }
    }
}

impl std::fmt::Display for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// One layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layer {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Width of the feed-forward layer; 0 where every layer's is made of experts.
    pub feed_forward: u32,
    /// Whether attention sees a sliding window only.
    pub sliding: bool,
}

/// A mixture of experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Experts {
    /// Experts of a layer.
    pub count: u32,
    /// Experts that a token uses.
    pub used: u32,
    /// Width of an expert.
    pub feed_forward: u32,
}

/// The hyper-parameters of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct HParams {
    /// The architecture.
    pub arch: Architecture,
    /// Tokens of the vocabulary: rows of the token embedding.
    pub vocab: u32,
    /// Context length that the model was trained for.
    pub trained_context: u32,
    /// Width of the embedding.
    pub embedding: u32,
    /// Layers from the input to the output.
    pub layers: Vec<Layer>,
    /// Elements of a query or key head.
    pub key_length: u32,
    /// Elements of a value head.
    pub value_length: u32,
    /// Epsilon of the RMS norms.
    pub norm_epsilon: f32,
    /// Factor on the products of queries and keys.
    pub attention_scale: f32,
    /// Tokens that a sliding window reaches back, itself included.
    pub window: Option<u32>,
    /// Experts, for mixtures.
    pub experts: Option<Experts>,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Logits are squeezed into ± this, by tanh.
    pub logit_softcap: Option<f32>,
}

impl HParams {
    /// Reads the hyper-parameters of a file.
    ///
    /// Errors name the key: missing, of another type, above its limit, or contradicting another. An architecture that is
    /// not supported is an error too.
    pub fn from_gguf(file: &Gguf) -> Result<Self, GgufError> {
        let arch = architecture(file)?;
        let keys = Keys::new(file, arch.name());
        let count = keys.required_positive("block_count", MAX_LAYERS)?;
        let embedding = keys.required_positive("embedding_length", MAX_EMBEDDING)?;
        let trained_context = keys.required_positive("context_length", MAX_CONTEXT)?;
        let experts = experts(&keys, arch, count)?;
        let window = window(&keys, arch)?;
        let layers = layers(&keys, arch, count, window)?;
        // The file's head count of the first layer stands for all where lengths are derived from it.
        let derived = embedding / layers[0].heads;
        let key_length = keys.number("attention.key_length", MAX_EMBEDDING)?.unwrap_or(derived);
        let value_length = keys.number("attention.value_length", MAX_EMBEDDING)?.unwrap_or(derived);
        let rope = Rope::read(&keys, arch, key_length, trained_context)?;
        check_lengths(&keys, arch, key_length, value_length, &rope)?;
        Ok(Self {
            arch,
            vocab: vocab(file)?,
            trained_context,
            embedding,
            key_length,
            value_length,
            norm_epsilon: keys.required_float("attention.layer_norm_rms_epsilon")?,
            attention_scale: attention_scale(arch, count, embedding, layers[0].heads, key_length),
            window,
            experts,
            rope,
            logit_softcap: softcap(&keys, arch)?,
            layers,
        })
    }

    /// Whether layer `id` sees a sliding window only.
    #[must_use]
    pub fn is_sliding(&self, id: LayerId) -> bool {
        self.layers.get(id.index()).is_some_and(|l| l.sliding)
    }

    /// Elements of a token's keys in a layer, all heads together.
    #[must_use]
    pub fn keys_width(&self, layer: &Layer) -> u64 {
        u64::from(self.key_length) * u64::from(layer.kv_heads)
    }

    /// Elements of a token's values in a layer, all heads together.
    #[must_use]
    pub fn values_width(&self, layer: &Layer) -> u64 {
        u64::from(self.value_length) * u64::from(layer.kv_heads)
    }

    /// The widest [`Self::values_width`] of all layers.
    #[must_use]
    pub fn max_values_width(&self) -> u64 {
        self.layers.iter().map(|l| self.values_width(l)).max().unwrap_or(0)
    }
}

fn architecture(file: &Gguf) -> Result<Architecture, GgufError> {
    const KEY: &str = "general.architecture";
    let value = file.value(KEY).ok_or_else(|| file.key_error(KEY, GgufFault::Missing))?;
    let wrong = || file.key_error(KEY, GgufFault::WrongType { expected: "a string", found: value.to_string() });
    let name = value.as_str().ok_or_else(wrong)?;
    Architecture::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| {
        let known = Architecture::ALL.map(Architecture::name).join(", ");
        let reason = format!("the architecture `{name}` is not supported; {known} are");
        file.key_error(KEY, GgufFault::BadValue { reason })
    })
}

fn vocab(file: &Gguf) -> Result<u32, GgufError> {
    const NAME: &str = "token_embd.weight";
    let id = file.find(NAME).ok_or_else(|| file.tensor_error(NAME, GgufFault::Missing))?;
    let rows = file.tensor(id).ne[1];
    u32::try_from(rows).ok().filter(|&rows| rows > 0 && u64::from(rows) <= crate::tokenizer::MAX_TOKENS).ok_or_else(
        || {
            let reason = format!("{rows} rows cannot be the number of tokens of a vocabulary");
            file.tensor_error(NAME, GgufFault::BadValue { reason })
        },
    )
}

fn experts(keys: &Keys<'_>, arch: Architecture, layers: u32) -> Result<Option<Experts>, GgufError> {
    let count = keys.number("expert_count", MAX_EXPERTS)?.unwrap_or(0);
    let used = keys.per_layer("expert_used_count", layers, MAX_EXPERTS)?.unwrap_or_else(|| vec![0; layers as usize]);
    let used_by_all = used[0];
    if used.iter().any(|&u| u != used_by_all) {
        return Err(
            keys.bad("expert_used_count", "layers that use different numbers of experts are not supported".into())
        );
    }
    if count == 0 {
        if arch == Architecture::Qwen3Moe {
            return Err(keys.bad("expert_count", "a mixture of experts needs some".into()));
        }
        if used_by_all > 0 {
            return Err(keys.bad("expert_used_count", format!("{used_by_all} of 0 experts")));
        }
        return Ok(None);
    }
    if !matches!(arch, Architecture::Llama | Architecture::Qwen3Moe) {
        return Err(keys.bad("expert_count", format!("experts are not supported in {arch}")));
    }
    if used_by_all == 0 || used_by_all > count {
        return Err(keys.bad("expert_used_count", format!("{used_by_all} of {count} experts")));
    }
    Ok(Some(Experts { count, used: used_by_all, feed_forward: expert_width(keys, arch, used_by_all)? }))
}

/// Mixtral's experts have the width of the model's feed-forward layer; Qwen's have their own, or share the model's.
fn expert_width(keys: &Keys<'_>, arch: Architecture, used: u32) -> Result<u32, GgufError> {
    if arch == Architecture::Qwen3Moe {
        match keys.number("expert_feed_forward_length", MAX_EMBEDDING)? {
            Some(width) if width > 0 => return Ok(width),
            _ => return Ok(keys.required_positive("feed_forward_length", MAX_EMBEDDING)? / used),
        }
    }
    keys.required_positive("feed_forward_length", MAX_EMBEDDING)
}

fn layers(keys: &Keys<'_>, arch: Architecture, count: u32, window: Option<u32>) -> Result<Vec<Layer>, GgufError> {
    const HEADS: &str = "attention.head_count";
    let heads = keys.per_layer(HEADS, count, MAX_HEADS)?.ok_or_else(|| keys.missing(HEADS))?;
    let kv_heads = keys.per_layer("attention.head_count_kv", count, MAX_HEADS)?.unwrap_or_else(|| heads.clone());
    let widths =
        keys.per_layer("feed_forward_length", count, MAX_EMBEDDING)?.unwrap_or_else(|| vec![0; count as usize]);
    let sliding = sliding_layers(keys, arch, count, window)?;
    let mut layers = Vec::with_capacity(count as usize);
    for i in 0..count as usize {
        let (heads, kv_heads) = (heads[i], kv_heads[i]);
        if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 {
            let reason = format!("{heads} query heads cannot share {kv_heads} key heads in layer {i}");
            return Err(keys.bad(HEADS, reason));
        }
        layers.push(Layer { heads, kv_heads, feed_forward: widths[i], sliding: sliding[i] });
    }
    Ok(layers)
}

fn window(keys: &Keys<'_>, arch: Architecture) -> Result<Option<u32>, GgufError> {
    // Phi 3's files do not say which layers have the window; like llama.cpp, none has.
    if arch != Architecture::Gemma3 {
        return Ok(None);
    }
    Ok(keys.number("attention.sliding_window", MAX_CONTEXT)?.filter(|&n| n > 0))
}

/// Gemma 3: an array of flags, or every n-th layer is full (n = 6 where the file does not say).
fn sliding_layers(
    keys: &Keys<'_>,
    arch: Architecture,
    count: u32,
    window: Option<u32>,
) -> Result<Vec<bool>, GgufError> {
    const KEY: &str = "attention.sliding_window_pattern";
    if window.is_none() || arch != Architecture::Gemma3 {
        return Ok(vec![false; count as usize]);
    }
    if let Some(flags) = keys.flags(KEY, count)? {
        return Ok(flags);
    }
    let period = keys.number(KEY, MAX_LAYERS)?.unwrap_or(6);
    Ok((0..count).map(|i| period == 0 || i % period < period - 1).collect())
}

fn check_lengths(keys: &Keys<'_>, arch: Architecture, key: u32, value: u32, rope: &Rope) -> Result<(), GgufError> {
    if key == 0 || key != value {
        let reason = format!("keys have {key} elements a head and values {value}; both must be equal");
        return Err(keys.bad("attention.value_length", reason));
    }
    let partial = matches!(arch, Architecture::Phi3 | Architecture::Gemma3);
    if rope.dims != key && !partial {
        let reason = format!("{} of {key} elements of a head are rotated; {arch} rotates all", rope.dims);
        return Err(keys.bad("rope.dimension_count", reason));
    }
    for (name, full) in [("attention.key_length_swa", key), ("attention.value_length_swa", value)] {
        if keys.number(name, MAX_EMBEDDING)?.is_some_and(|n| n != full) {
            return Err(keys.bad(name, format!("layers with heads of other lengths than {full} are not supported")));
        }
    }
    Ok(())
}

fn attention_scale(arch: Architecture, layers: u32, embedding: u32, heads: u32, key_length: u32) -> f32 {
    // The 27B model of Gemma 3 (62 layers) is scaled by its embedding, not by its head.
    let length = match arch {
        Architecture::Gemma3 if layers == 62 => embedding / heads,
        _ => key_length,
    };
    1.0 / (length as f32).sqrt()
}

fn softcap(keys: &Keys<'_>, arch: Architecture) -> Result<Option<f32>, GgufError> {
    if arch != Architecture::Gemma3 {
        return Ok(None);
    }
    Ok(keys.float("final_logit_softcapping")?.filter(|&cap| cap != 0.0))
}
