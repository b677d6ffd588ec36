//! A machine file as it is written: nothing checked but its shape.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) name: String,
    pub(super) fallback: Option<String>,
    #[serde(default)]
    pub(super) pool: Vec<RawPool>,
    #[serde(default)]
    pub(super) buffer_type: Vec<RawBufferType>,
    #[serde(default)]
    pub(super) device: Vec<RawDevice>,
    #[serde(default)]
    pub(super) link: Vec<RawLink>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPool {
    pub(super) name: String,
    pub(super) kind: RawPoolKind,
    pub(super) capacity: Option<String>,
    pub(super) within: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawPoolKind {
    Device,
    Host,
    Pinned,
    Unified,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawBufferType {
    pub(super) name: String,
    pub(super) pool: String,
    pub(super) alignment: Option<u64>,
    pub(super) max_size: Option<String>,
    #[serde(default)]
    pub(super) host: bool,
    pub(super) row_padding: Option<u64>,
    pub(super) usable_by: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDevice {
    pub(super) name: String,
    pub(super) kind: RawDeviceKind,
    pub(super) driver: Option<String>,
    pub(super) buffer_type: String,
    #[serde(default)]
    pub(super) pools: Vec<String>,
    pub(super) offload_min_batch: Option<u64>,
    #[serde(default)]
    pub(super) unsupported_ops: Vec<String>,
    pub(super) bandwidth: Option<String>,
    pub(super) flops: Option<f64>,
    pub(super) arch: Option<u32>,
    pub(super) multiprocessors: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawDeviceKind {
    Cpu,
    Gpu,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLink {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) path: RawPath,
    pub(super) bandwidth: String,
    #[serde(default)]
    pub(super) latency_ns: u64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawPath {
    Peer,
    Pinned,
    Pageable,
    Shared,
}
