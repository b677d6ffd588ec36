//! Changes, by kinds, each from mild to strong.

use super::Placing;
use crate::plan::Choices;
use crate::plan::fit::Request;
use crate::plan::longest::CONTEXT_BLOCK;

/// Smallest micro-batch that is tried.
const SMALLEST_MICRO_BATCH: u32 = 16;

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Inputs are there once.
    NoPipelining,
    /// So many tokens at most in one run of a graph.
    MicroBatch(u32),
    /// Attention is one operation.
    FlashAttention,
    /// The cache is of this type, which needs attention as one operation.
    CacheType(&'static str),
    /// Experts are on the host, by this placement by name.
    Experts(String),
    /// So many layers are on GPUs.
    GpuLayers(u32),
    /// The cache is on the host.
    CacheOnHost,
    /// So many tokens of context.
    Context(u32),
}

impl Step {
    pub(super) fn apply(&self, now: Choices) -> Choices {
        match self {
            Self::NoPipelining => Choices { copies: 1, ..now },
            Self::MicroBatch(n) => Choices { ubatch: *n, ..now },
            Self::FlashAttention => Choices { flash_attn: true, ..now },
            Self::CacheType(name) => Choices { kv_type: (*name).to_owned(), flash_attn: true, ..now },
            Self::Experts(text) => {
                let all = std::iter::once(text.clone()).chain(now.override_tensor.iter().cloned());
                Choices { override_tensor: all.collect(), ..now }
            }
            Self::GpuLayers(n) => Choices { n_gpu_layers: Some(*n), ..now },
            Self::CacheOnHost => Choices { kv_offload: false, ..now },
            Self::Context(n) => Choices { ctx: *n, ..now },
        }
    }

    /// Whether stronger steps of its kind need more memory of the host.
    pub(super) fn fills_host(&self) -> bool {
        matches!(self, Self::GpuLayers(_))
    }

    /// For people, with the options that say so.
    pub(super) fn what(&self, host: &str) -> String {
        match self {
            Self::NoPipelining => "no pipelining (--copies 1)".to_owned(),
            Self::MicroBatch(n) => format!("a smaller micro-batch (--ubatch {n})"),
            Self::FlashAttention => "attention as one operation (--flash-attn on)".to_owned(),
            Self::CacheType(name) => format!("a quantized KV cache (--kv-type {name} --flash-attn on)"),
            Self::Experts(text) => format!("experts on {host} (--override-tensor '{text}')"),
            Self::GpuLayers(n) => format!("fewer layers on GPUs (--n-gpu-layers {n})"),
            Self::CacheOnHost => "the KV cache on the host (--no-kv-offload)".to_owned(),
            Self::Context(n) => format!("a shorter context (--ctx {n})"),
        }
    }
}

/// Changes by kind, each from mild to strong. Where the search says where things go, it weighs those of placement itself.
pub(super) fn ladders(request: &Request<'_>, now: &Choices, placing: Placing) -> Vec<Vec<Step>> {
    let halves =
        |n: u32, least: u32| std::iter::successors(Some(n / 2), |n| Some(n / 2)).take_while(move |&n| n >= least);
    let once = |wanted: bool, step: Step| if wanted { vec![step] } else { Vec::new() };
    let is_asked = placing == Placing::Asked;
    let all_layers = request.model.params.layers.len() as u32 + 1;
    let offloaded = now.n_gpu_layers.map_or(all_layers, |n| n.min(all_layers));
    let host = &request.machine.device(request.machine.fallback()).name;
    let has_experts = request.model.params.experts.is_some();
    let mut kinds = vec![
        once(now.copies > 1, Step::NoPipelining),
        halves(now.ubatch.min(now.batch).min(now.ctx), SMALLEST_MICRO_BATCH).map(Step::MicroBatch).collect(),
        once(!now.flash_attn, Step::FlashAttention),
        smaller_types(&now.kv_type).iter().map(|name| Step::CacheType(name)).collect(),
        once(is_asked && has_experts, Step::Experts(format!(r"_exps\.={host}"))),
        (0..offloaded).rev().filter(|_| is_asked).map(Step::GpuLayers).collect(),
        once(is_asked && now.kv_offload, Step::CacheOnHost),
        halves(now.ctx, CONTEXT_BLOCK).map(Step::Context).collect(),
    ];
    kinds.retain(|kind| !kind.is_empty());
    kinds
}

/// Types of a cache that take less.
fn smaller_types(now: &str) -> &'static [&'static str] {
    match now.to_lowercase().as_str() {
        "f32" | "f16" | "bf16" => &["q8_0", "q4_0"],
        "q8_0" => &["q4_0"],
        _ => &[],
    }
}
