//! Which kind of memory each weight goes to.

use super::{LayerDevices, Override};
use loadmaster_graph::{DType, DeviceId, Dims};

/// Where a weight is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WeightHome {
    /// In the ordinary memory of a device.
    Device(DeviceId),
    /// In host memory that llama.cpp's CPU back end re-lays out for its products, and that nothing else reads.
    Repacked,
}

/// Whether the CPU back end re-lays out weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repack {
    /// As llama.cpp does on an x86 processor with AVX2 and AVX-512.
    Avx512,
    /// Never.
    Never,
}

impl Repack {
    /// Whether a weight of this type and shape is re-laid out when a matrix product reads it.
    #[must_use]
    pub fn takes(self, dtype: DType, ne: &Dims) -> bool {
        let rows_fit = ne[1].is_multiple_of(8);
        self == Self::Avx512
            && rows_fit
            && matches!(dtype, DType::Q4_0 | DType::Q4K | DType::Q2K | DType::Iq4Nl | DType::Mxfp4)
    }
}

/// The home of a weight: by the first override that matches its name, else with its layer (`blk.N.…`), with the output
/// (`output…`, `cls.…`), or with the input (everything else).
#[must_use]
pub fn weight_home(
    name: &str,
    dtype: DType,
    ne: &Dims,
    layers: &LayerDevices,
    overrides: &[Override],
    repack: Repack,
) -> WeightHome {
    let device = Override::find(overrides, name).unwrap_or_else(|| device_of(name, layers));
    home_on(device, name, dtype, ne, layers.input, repack)
}

/// The home of a weight whose device is known.
#[must_use]
pub fn home_on(device: DeviceId, name: &str, dtype: DType, ne: &Dims, host: DeviceId, repack: Repack) -> WeightHome {
    if device == host && is_matrix(name, ne) && repack.takes(dtype, ne) {
        WeightHome::Repacked
    } else {
        WeightHome::Device(device)
    }
}

fn device_of(name: &str, layers: &LayerDevices) -> DeviceId {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    match layer.and_then(|l| layers.layers.get(l)) {
        Some(&device) => device,
        None if name.starts_with("output") || name.starts_with("cls.") => layers.output,
        None => layers.input,
    }
}

/// Whether a matrix product reads it: the token embedding is read row by row instead.
fn is_matrix(name: &str, ne: &Dims) -> bool {
    ne[1] > 1 && !name.starts_with("token_embd") && !name.ends_with(".bias")
}
