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
}

/// A host whose speed is not known: two channels of DDR5-5600, eight cores.
pub const ASSUMED_HOST: Speed = Speed { bandwidth: 60e9, operations: 0.5e12 };
/// A GPU whose speed is not known.
pub const ASSUMED_GPU: Speed = Speed { bandwidth: 500e9, operations: 50e12 };
/// Bytes a second of a link that the machine does not tell: an assumption, four fifths of PCIe 4.0 with 16 lanes.
pub const ASSUMED_LINK: f64 = 25e9;
/// Seconds before the first byte arrives.
pub const ASSUMED_LATENCY: f64 = 10e-6;

const fn gpu(name: &'static str, gib: u64, gb_per_s: f64, tflops: f64) -> KnownGpu {
    let speed = Speed { bandwidth: gb_per_s * 1e9, operations: tflops * 1e12 };
    KnownGpu { name, memory: Bytes::gib(gib), speed }
}

/// Memory in GiB, GB/s and dense FP16 TFLOP/s: rough peaks that were neither measured nor checked against the makers'
/// documents. Predictions from them order placements; they are not to be quoted.
pub const KNOWN_GPUS: &[KnownGpu] = &[
    gpu("rtx3060", 12, 360.0, 25.0),
    gpu("rtx3090", 24, 936.0, 71.0),
    gpu("rtx4060ti", 16, 288.0, 44.0),
    gpu("rtx4070", 12, 504.0, 58.0),
    gpu("rtx4080", 16, 717.0, 97.0),
    gpu("rtx4090", 24, 1008.0, 165.0),
    gpu("rtx5090", 32, 1792.0, 209.0),
    gpu("l4", 24, 300.0, 121.0),
    gpu("l40s", 48, 864.0, 362.0),
    gpu("a10", 24, 600.0, 125.0),
    gpu("a100-40", 40, 1555.0, 312.0),
    gpu("a100-80", 80, 2039.0, 312.0),
    gpu("h100", 80, 3350.0, 989.0),
    gpu("h200", 141, 4800.0, 989.0),
    gpu("mi300x", 192, 5300.0, 1307.0),
    gpu("rx7900xtx", 24, 960.0, 123.0),
];

/// The GPU of that name.
#[must_use]
pub fn known_gpu(name: &str) -> Option<&'static KnownGpu> {
    KNOWN_GPUS.iter().find(|g| g.name.eq_ignore_ascii_case(name))
}
