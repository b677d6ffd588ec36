//! Speeds of devices: measured ones from machine files, peaks of common GPUs by name, and assumptions where nothing is
//! known.

use loadmaster_backends::cuda::GpuTarget;
use loadmaster_graph::Bytes;

/// What a device can do in a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Speed {
    /// Bytes read from its memory.
    pub bandwidth: f64,
    /// Multiplications and additions in half precision, dense.
    pub operations: f64,
}

/// Where a speed comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SpeedSource {
    /// Nothing is known: [`ASSUMED_GPU`] or [`ASSUMED_HOST`].
    Assumed,
    /// The maker's peak figures, less [`READ_EFFICIENCY`] and [`COMPUTE_EFFICIENCY`].
    DataSheet,
    /// A machine file, which is to hold what was measured.
    File,
}

impl SpeedSource {
    /// For people, and for JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Assumed => "assumed",
            Self::DataSheet => "data sheet",
            Self::File => "machine file",
        }
    }
}

/// A GPU known by name: peak figures, as its maker states them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KnownGpu {
    /// Its name on the command line.
    pub name: &'static str,
    /// What the memory of kernels depends on; `None`: this program has no kernels for it, and counts none.
    pub target: Option<GpuTarget>,
    /// Its memory, in the binary units that it is built of, less what error correction takes where it is on as delivered;
    /// drivers keep some more for themselves.
    pub memory: Bytes,
    /// Bytes a second of its memory, and dense half-precision products (summed in single precision where the maker tells
    /// the two apart), at their peaks.
    pub peak: Speed,
    /// The title of the document that states them.
    pub source: &'static str,
}

impl KnownGpu {
    /// What is expected of it: the peaks, less the usual losses.
    #[must_use]
    pub fn expected(&self) -> Speed {
        Speed {
            bandwidth: self.peak.bandwidth * READ_EFFICIENCY,
            operations: self.peak.operations * COMPUTE_EFFICIENCY,
        }
    }
}

/// Share of the peak bandwidth at which weights are read for one token: an assumption; good kernels reach 0.7 to 0.9.
pub const READ_EFFICIENCY: f64 = 0.8;
/// Share of the peak arithmetic of large matrix products: an assumption; good kernels reach 0.5 to 0.8, and those that
/// decode quantized weights less.
pub const COMPUTE_EFFICIENCY: f64 = 0.5;

/// A host whose speed is not known: two channels of DDR5-5600, eight cores.
pub const ASSUMED_HOST: Speed = Speed { bandwidth: 60e9, operations: 0.5e12 };
/// A GPU whose speed is not known.
pub const ASSUMED_GPU: Speed = Speed { bandwidth: 500e9, operations: 50e12 };
/// Bytes a second of a link that the machine does not tell: an assumption, four fifths of PCIe 4.0 with 16 lanes.
pub const ASSUMED_LINK: f64 = 25e9;
/// Seconds before the first byte arrives.
pub const ASSUMED_LATENCY: f64 = 10e-6;

const AMPERE: &str = "NVIDIA Ampere GA102 GPU Architecture (whitepaper)";
const ADA: &str = "NVIDIA Ada GPU Architecture (whitepaper)";

const fn gpu(
    name: &'static str,
    target: Option<GpuTarget>,
    gib: u64,
    gb_per_s: f64,
    tflops: f64,
    source: &'static str,
) -> KnownGpu {
    let peak = Speed { bandwidth: gb_per_s * 1e9, operations: tflops * 1e12 };
    KnownGpu { name, target, memory: Bytes::gib(gib), peak, source }
}

/// A card that the CUDA kernels run on, with cuBLAS: its architecture and multiprocessors.
const fn cuda(
    name: &'static str,
    (arch, multiprocessors): (u32, u32),
    gib: u64,
    gb_per_s: f64,
    tflops: f64,
    source: &'static str,
) -> KnownGpu {
    gpu(name, Some(GpuTarget::described(arch, multiprocessors)), gib, gb_per_s, tflops, source)
}

/// A card whose error correction, on as delivered, takes a sixteenth of its memory.
const fn corrected(card: KnownGpu) -> KnownGpu {
    KnownGpu { memory: Bytes(card.memory.0 / 16 * 15), ..card }
}

/// Architecture and multiprocessors, memory in GiB, GB/s and dense FP16 TFLOP/s (half of what is stated with sparsity). Peaks: nothing here was measured,
/// and predictions from them order placements rather than promise speeds. The H200's 141 GB are 140 GiB and a little.
pub const KNOWN_GPUS: &[KnownGpu] = &[
    cuda(
        "rtx3060",
        (86, 28),
        12,
        360.0,
        25.5,
        "GeForce RTX 3060 specifications (twice its 12.74 TFLOP/s in single precision)",
    ),
    cuda("rtx3090", (86, 82), 24, 936.0, 71.0, AMPERE),
    cuda(
        "rtx4060ti",
        (89, 34),
        16,
        288.0,
        44.0,
        "GeForce RTX 4060 Ti specifications (16 GB; twice its 22 TFLOP/s in single precision)",
    ),
    cuda(
        "rtx4070",
        (89, 46),
        12,
        504.0,
        58.3,
        "GeForce RTX 4070 specifications (twice its 29.15 TFLOP/s in single precision)",
    ),
    cuda("rtx4080", (89, 76), 16, 716.8, 97.5, ADA),
    cuda("rtx4090", (89, 128), 24, 1008.0, 165.2, ADA),
    cuda("rtx5090", (120, 170), 32, 1792.0, 209.5, "NVIDIA RTX Blackwell GPU Architecture (whitepaper)"),
    corrected(cuda("a10", (86, 72), 24, 600.0, 125.0, "NVIDIA A10 Tensor Core GPU datasheet")),
    cuda("a30", (80, 56), 24, 933.0, 165.0, "NVIDIA A30 Tensor Core GPU datasheet"),
    corrected(cuda("a40", (86, 84), 48, 696.0, 149.7, "NVIDIA A40 datasheet")),
    cuda("a100-40", (80, 108), 40, 1555.0, 312.0, "NVIDIA A100 Tensor Core GPU datasheet"),
    cuda("a100-80", (80, 108), 80, 2039.0, 312.0, "NVIDIA A100 Tensor Core GPU datasheet (80GB SXM)"),
    cuda("v100", (70, 80), 32, 900.0, 125.0, "NVIDIA V100 Tensor Core GPU datasheet (SXM2)"),
    corrected(cuda("l4", (89, 58), 24, 300.0, 121.0, "NVIDIA L4 Tensor Core GPU datasheet")),
    corrected(cuda("l40s", (89, 142), 48, 864.0, 362.0, "NVIDIA L40S GPU datasheet")),
    cuda("h100-pcie", (90, 114), 80, 2000.0, 756.0, "NVIDIA H100 Tensor Core GPU datasheet (PCIe)"),
    cuda("h100-sxm", (90, 132), 80, 3350.0, 989.0, "NVIDIA H100 Tensor Core GPU datasheet (SXM)"),
    cuda("h200", (90, 132), 140, 4800.0, 989.0, "NVIDIA H200 Tensor Core GPU datasheet (SXM)"),
    gpu("mi300x", None, 192, 5300.0, 1307.0, "AMD Instinct MI300X accelerator data sheet"),
    gpu("rx7900xtx", None, 24, 960.0, 122.8, "AMD Radeon RX 7900 XTX specifications"),
];

/// The GPU of that name; `h100` is the SXM one.
#[must_use]
pub fn known_gpu(name: &str) -> Option<&'static KnownGpu> {
    let name = if name.eq_ignore_ascii_case("h100") { "h100-sxm" } else { name };
    KNOWN_GPUS.iter().find(|g| g.name.eq_ignore_ascii_case(name))
}

/// The names, for messages.
#[must_use]
pub fn known_names() -> String {
    KNOWN_GPUS.iter().map(|g| g.name).collect::<Vec<_>>().join(", ")
}
