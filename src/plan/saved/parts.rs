//! What a plan says of models, devices, pools, links, graphs and layers.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What tells models apart.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ModelIdentity {
    /// The architecture.
    pub architecture: String,
    /// Tensors.
    pub tensors: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Hash of names, types and extents of the tensors.
    pub hash: String,
}

/// What tells devices apart.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MachineDevice {
    /// Its name.
    pub name: String,
    /// What drives it.
    pub driver: String,
    /// Its memory.
    pub memory: Option<u64>,
    /// The GPU whose kernels were counted; none: nobody said which.
    #[serde(default)]
    pub gpu: Option<GpuPlan>,
}

/// What tells GPUs apart, as far as the memory of kernels depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GpuPlan {
    /// Compute capability times ten.
    pub arch: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Whether products of many columns were planned for cuBLAS.
    pub cublas: bool,
}

/// What a device holds, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DevicePlan {
    /// Its name.
    pub name: String,
    /// Weights.
    pub weights: u64,
    /// KV cache.
    pub kv: u64,
    /// Compute arena.
    pub compute: u64,
    /// What no arena for these graphs can be below.
    pub compute_bound: u64,
    /// What kernels need beside operands, in the device's own memory.
    #[serde(default)]
    pub workspace: u64,
    /// Host memory for outputs and copies on their way: a GPU's is pinned, and not in its total.
    #[serde(default)]
    pub staging: u64,
    /// What its pool has left; none: not known. Negative: that much is missing.
    pub free: Option<i64>,
    /// The sum in the device's own memory: weights, KV, compute and workspace.
    pub total: u64,
    /// What the compute arena holds when most is alive.
    #[serde(default)]
    pub peak: PeakPlan,
}

/// What is alive in an arena when most is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PeakPlan {
    /// The node that runs then.
    pub node: String,
    /// Tokens of its graph.
    pub tokens: u32,
    /// Bytes of all that is alive.
    pub bytes: u64,
    /// Tensors, largest first.
    pub alive: Vec<AlivePlan>,
}

/// A tensor in an arena.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AlivePlan {
    /// Its name.
    pub tensor: String,
    /// Bytes, rounded up to the alignment.
    pub bytes: u64,
}

/// What goes from one device to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkPlan {
    /// Where the bytes are.
    pub from: String,
    /// Where they go.
    pub to: String,
    /// Copies for one token of each sequence.
    pub transfers: usize,
    /// Bytes of these for each token.
    pub bytes_per_token: u64,
    /// Copies for a full micro-batch.
    pub prefill_transfers: usize,
    /// Bytes of these, for the whole micro-batch.
    pub prefill_bytes: u64,
}

/// What a pool holds, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolPlan {
    /// Its name.
    pub name: String,
    /// What it has; none: not known.
    pub capacity: Option<u64>,
    /// What is kept free.
    pub reserved: u64,
    /// What is taken.
    pub used: u64,
    /// What is missing.
    pub short: u64,
}

/// A graph.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GraphPlan {
    /// Tokens.
    pub tokens: u32,
    /// Splits.
    pub splits: usize,
    /// Copies from device to device.
    pub transfers: usize,
    /// Bytes of these.
    pub bytes: u64,
}

/// A layer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LayerPlan {
    /// Its number, or `output`.
    pub layer: String,
    /// Its device.
    pub device: String,
    /// Bytes of its weights on other devices, such as experts on the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub elsewhere: BTreeMap<String, u64>,
}

/// Whose rules placed tensors in their arenas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// ggml's.
    Ggml,
    /// Ours.
    #[default]
    Best,
}

/// Predicted speed, in tokens a second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Predicted {
    /// One token after another.
    pub decode: f64,
    /// Prompts.
    pub prefill: f64,
    /// By how much the best placement could be better at most; none: nothing was chosen.
    pub gap: Option<f64>,
}
