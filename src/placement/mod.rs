//! Where a model's layers, weights and KV cache go: the rules of llama.cpp, which our own placements start from.

pub mod layers;
pub mod overrides;
pub mod residency;
pub mod weights;

pub use layers::{GpuLayers, LayerDevices};
pub use overrides::{Override, OverrideError};
pub use residency::{CacheHome, ModelHomes, Pins};
pub use weights::{Repack, WeightHome, home_on, weight_home};
