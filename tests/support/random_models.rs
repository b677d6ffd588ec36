//! Small models of every family with random extents and random weights, and the machines to run them on.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use loadmaster::engine::Model;
use loadmaster_backends::mmap;
use loadmaster_graph::DType;

use loadmaster_models::gguf::{Gguf, MetaValue, Writer};
use std::sync::Arc;

/// A generator of test cases: xorshift.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| {
            random.word();
        });
        random
    }
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: u32) -> u32 {
        ((self.word() >> 16) % u64::from(n)) as u32
    }
    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }
    fn unit(&mut self) -> f32 {
        self.below(2001) as f32 / 1000.0 - 1.0
    }
}

/// A family as its files have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    Llama,
    Mixtral,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Gemma3,
    Phi3,
}

impl Family {
    pub const ALL: [Self; 7] =
        [Self::Llama, Self::Mixtral, Self::Qwen2, Self::Qwen3, Self::Qwen3Moe, Self::Gemma3, Self::Phi3];

    fn arch(self) -> &'static str {
        match self {
            Self::Llama | Self::Mixtral => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
            Self::Gemma3 => "gemma3",
            Self::Phi3 => "phi3",
        }
    }
    fn has_experts(self) -> bool {
        matches!(self, Self::Mixtral | Self::Qwen3Moe)
    }
}

/// A model's extents.
#[derive(Clone, PartialEq, Debug)]
pub struct Shape {
    pub family: Family,
    pub layers: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head: u32,
    pub embedding: u32,
    pub feed_forward: u32,
    pub vocab: u32,
    pub experts: u32,
    pub used: u32,
    pub weights: DType,
    pub tied: bool,
}

impl Shape {
    pub fn random(random: &mut Random, family: Family) -> Self {
        let kv_heads = random.pick(&[1, 2, 4]);
        let weights = random.pick(&[DType::F32, DType::F16, DType::Q8_0, DType::Q4_0]);
        let experts = if family.has_experts() { random.pick(&[4, 6, 8]) } else { 0 };
        Self {
            family,
            layers: 1 + random.below(5),
            heads: kv_heads * (1 + random.below(2)),
            kv_heads,
            head: if weights.is_quantized() { 32 } else { random.pick(&[16, 32]) },
            embedding: 32 * (1 + random.below(4)),
            feed_forward: 32 * (2 + random.below(4)),
            vocab: 40 + random.below(200),
            experts,
            used: if experts > 0 { 1 + random.below(3) } else { 0 },
            weights,
            tied: random.one_in(3),
        }
    }

    /// The model, its file mapped from a temporary directory.
    pub fn model(&self, random: &mut Random) -> Arc<Model> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.gguf");
        std::fs::write(&path, self.write(random, Phi3Weights::Fused).bytes()).unwrap();
        self.open(&path)
    }

    /// Two models of equal weights: queries, keys and values in one tensor, and in one each.
    pub fn fused_and_split(&self, random: &Random) -> [Arc<Model>; 2] {
        let directory = tempfile::tempdir().unwrap();
        [Phi3Weights::Fused, Phi3Weights::Split].map(|weights| {
            let path = directory.path().join(format!("{weights:?}.gguf"));
            std::fs::write(&path, self.write(&mut random.clone(), weights).bytes()).unwrap();
            self.open(&path)
        })
    }

    fn open(&self, path: &std::path::Path) -> Arc<Model> {
        // The map outlives the file's name.
        let file = Gguf::from_bytes(mmap(path).unwrap()).unwrap();
        Arc::new(Model::of(format!("{self:?}"), file).unwrap_or_else(|e| panic!("{self:?}: {e}")))
    }

    fn write(&self, random: &mut Random, qkv: Phi3Weights) -> Writer {
        let arch = self.family.arch();
        let key = |k: &str| format!("{arch}.{k}");
        let number = MetaValue::U32;
        let mut w = Writer::new()
            .with("general.architecture", MetaValue::String(arch.into()))
            .with(&key("block_count"), number(self.layers))
            .with(&key("context_length"), number(4096))
            .with(&key("embedding_length"), number(self.embedding))
            .with(&key("feed_forward_length"), number(self.feed_forward))
            .with(&key("attention.head_count"), number(self.heads))
            .with(&key("attention.head_count_kv"), number(self.kv_heads))
            .with(&key("attention.key_length"), number(self.head))
            .with(&key("attention.value_length"), number(self.head))
            .with(&key("rope.dimension_count"), number(self.head))
            .with(&key("attention.layer_norm_rms_epsilon"), MetaValue::F32(1e-5));
        if self.experts > 0 {
            w = w.with(&key("expert_count"), number(self.experts)).with(&key("expert_used_count"), number(self.used));
            w = w.with(&key("expert_feed_forward_length"), number(self.feed_forward));
        }
        if self.family == Family::Gemma3 {
            w = w.with(&key("attention.sliding_window"), number(64));
            w = w.with(&key("attention.sliding_window_pattern"), number(2));
        }
        let mut tensors = Tensors { w, random };
        self.tensors(&mut tensors, qkv);
        tensors.w
    }

    fn tensors(&self, t: &mut Tensors<'_>, qkv: Phi3Weights) {
        let (width, inner, vocab) = (self.embedding, self.feed_forward, self.vocab);
        let (q, kv) = (self.heads * self.head, self.kv_heads * self.head);
        t.matrix("token_embd.weight", self.weights, &[width, vocab]);
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            t.norm(&name("attn_norm"), width);
            let parts = [("attn_q", q), ("attn_k", kv), ("attn_v", kv)];
            match (self.family, qkv) {
                (Family::Phi3, Phi3Weights::Fused) => {
                    let rows: Vec<u8> = parts.iter().flat_map(|(_, n)| t.data(self.weights, &[width, *n])).collect();
                    t.put(&name("attn_qkv"), self.weights, &[width, q + 2 * kv], rows);
                }
                _ => parts.iter().for_each(|(part, n)| t.matrix(&name(part), self.weights, &[width, *n])),
            }
            if self.family == Family::Qwen2 {
                for (part, n) in parts {
                    t.norm(&format!("blk.{layer}.{part}.bias"), n);
                }
            }
            if matches!(self.family, Family::Qwen3 | Family::Qwen3Moe | Family::Gemma3) {
                t.norm(&name("attn_q_norm"), self.head);
                t.norm(&name("attn_k_norm"), self.head);
            }
            t.matrix(&name("attn_output"), self.weights, &[q, width]);
            t.norm(&name("ffn_norm"), width);
            if self.family == Family::Gemma3 {
                t.norm(&name("post_attention_norm"), width);
                t.norm(&name("post_ffw_norm"), width);
            }
            match self.family {
                Family::Phi3 => t.matrix(&name("ffn_up"), self.weights, &[width, 2 * inner]),
                _ if self.experts > 0 => {
                    t.matrix(&name("ffn_gate_inp"), DType::F32, &[width, self.experts]);
                    t.matrix(&name("ffn_gate_exps"), self.weights, &[width, inner, self.experts]);
                    t.matrix(&name("ffn_up_exps"), self.weights, &[width, inner, self.experts]);
                    t.matrix(&name("ffn_down_exps"), self.weights, &[inner, width, self.experts]);
                    continue;
                }
                _ => {
                    t.matrix(&name("ffn_gate"), self.weights, &[width, inner]);
                    t.matrix(&name("ffn_up"), self.weights, &[width, inner]);
                }
            }
            t.matrix(&name("ffn_down"), self.weights, &[inner, width]);
        }
        t.norm("output_norm.weight", width);
        if !self.tied {
            t.matrix("output.weight", self.weights, &[width, vocab]);
        }
    }
}

/// How Phi 3's projections are stored.
#[derive(Clone, Copy, Debug)]
enum Phi3Weights {
    Fused,
    Split,
}

struct Tensors<'a> {
    w: Writer,
    random: &'a mut Random,
}

impl Tensors<'_> {
    fn put(&mut self, name: &str, dtype: DType, ne: &[u32], data: Vec<u8>) {
        let ne: Vec<u64> = ne.iter().map(|&n| n.into()).collect();
        self.w = std::mem::take(&mut self.w).with_tensor(name, dtype, &ne, data);
    }
    fn matrix(&mut self, name: &str, dtype: DType, ne: &[u32]) {
        let data = self.data(dtype, ne);
        self.put(name, dtype, ne, data);
    }
    fn norm(&mut self, name: &str, n: u32) {
        let data = (0..n).flat_map(|_| (1.0 + 0.2 * self.random.unit()).to_le_bytes()).collect();
        self.put(name, DType::F32, &[n], data);
    }
    /// Weights of about the size that keeps sums near 1.
    fn data(&mut self, dtype: DType, ne: &[u32]) -> Vec<u8> {
        let (elements, scale) = (ne.iter().product::<u32>(), 1.0 / (ne[0] as f32).sqrt());
        let half = |x: f32| half_bits(x).to_le_bytes();
        match dtype {
            DType::F32 => (0..elements).flat_map(|_| (scale * self.random.unit()).to_le_bytes()).collect(),
            DType::F16 => (0..elements).flat_map(|_| half(scale * self.random.unit())).collect(),
            DType::Q8_0 => self.blocks(elements / 32, half(scale / 127.0), 32),
            DType::Q4_0 => self.blocks(elements / 32, half(scale / 8.0), 16),
            other => panic!("no random weights of type {other}"),
        }
    }
    fn blocks(&mut self, blocks: u32, scale: [u8; 2], quants: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(blocks as usize * (2 + quants));
        for _ in 0..blocks {
            out.extend(scale);
            out.extend((0..quants).map(|_| self.random.word().to_le_bytes()[3]));
        }
        out
    }
}

/// The half-precision number below a small positive or negative one.
fn half_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let (sign, exponent) = ((bits >> 16 & 0x8000) as u16, (bits >> 23 & 0xff) as i32 - 112);
    if exponent <= 0 { sign } else { sign | (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16 }
}
