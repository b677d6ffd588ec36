//! Speeds of devices: a table of common GPUs by name, and assumptions where nothing is known.

use loadmaster_graph::Bytes;

/// What a device can do in a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Speed {
    /// Bytes read from its memory.
    pub bandwidth: f64,
    /// Multiplications and additions in half precision, dense.
    pub operations: f64,
}

/// A GPU known by name.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KnownGpu {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its memory.
    pub memory: Bytes,
    /// Its speed.
    pub speed: Speed,
    /// Where the figures are from.
    pub source: &'static str,
}

/// A host whose speed is not known: two channels of DDR5-5600, eight cores.
pub const ASSUMED_HOST: Speed = Speed { bandwidth: 60e9, operations: 0.5e12 };
/// A GPU whose speed is not known.
pub const ASSUMED_GPU: Speed = Speed { bandwidth: 500e9, operations: 50e12 };
/// Bytes a second of a link that the machine does not tell: an assumption, four fifths of PCIe 4.0 with 16 lanes.
pub const ASSUMED_LINK: f64 = 25e9;
/// Seconds before the first byte arrives.
pub const ASSUMED_LATENCY: f64 = 10e-6;

const fn gpu(name: &'static str, gib: u64, gb_per_s: f64, tflops: f64, source: &'static str) -> KnownGpu {
    let speed = Speed { bandwidth: gb_per_s * 1e9, operations: tflops * 1e12 };
    KnownGpu { name, memory: Bytes::gib(gib), speed, source }
}

/// Memory in GiB, GB/s and dense FP16 tensor TFLOP/s (FP32 accumulation), rounded from the makers' documents that each
/// entry names. Peaks, not measurements: real kernels reach less.
pub const KNOWN_GPUS: &[KnownGpu] = &[
    gpu("rtx3060", 12, 360.0, 25.0, "NVIDIA product page RTX 3060"),
    gpu("rtx3090", 24, 936.0, 71.0, "NVIDIA Ampere GA102 white paper"),
    gpu("rtx4060ti", 16, 288.0, 44.0, "NVIDIA product page RTX 4060 Ti"),
    gpu("rtx4070", 12, 504.0, 58.0, "NVIDIA Ada white paper, product page RTX 4070"),
    gpu("rtx4080", 16, 717.0, 97.0, "NVIDIA Ada white paper"),
    gpu("rtx4090", 24, 1008.0, 165.0, "NVIDIA Ada white paper"),
    gpu("rtx5090", 32, 1792.0, 209.0, "NVIDIA Blackwell RTX white paper"),
    gpu("l4", 24, 300.0, 121.0, "NVIDIA L4 data sheet"),
    gpu("l40s", 48, 864.0, 362.0, "NVIDIA L40S data sheet"),
    gpu("a10", 24, 600.0, 125.0, "NVIDIA A10 data sheet"),
    gpu("a100-40", 40, 1555.0, 312.0, "NVIDIA A100 data sheet"),
    gpu("a100-80", 80, 2039.0, 312.0, "NVIDIA A100 data sheet"),
    gpu("h100", 80, 3350.0, 989.0, "NVIDIA H100 SXM data sheet"),
    gpu("h200", 141, 4800.0, 989.0, "NVIDIA H200 data sheet"),
    gpu("mi300x", 192, 5300.0, 1307.0, "AMD Instinct MI300X data sheet"),
    gpu("rx7900xtx", 24, 960.0, 123.0, "AMD RX 7900 XTX product page"),
];

/// The GPU of that name.
#[must_use]
pub fn known_gpu(name: &str) -> Option<&'static KnownGpu> {
    KNOWN_GPUS.iter().find(|g| g.name.eq_ignore_ascii_case(name))
}
