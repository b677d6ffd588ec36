//! Which device each layer goes to.

use loadmaster_graph::{Bytes, DeviceId};

/// How many layers go to GPUs, counted from the last; the output counts as a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuLayers {
    /// Every layer and the output.
    All,
    /// At most this many.
    Count(u32),
}

/// The device of the input, of each layer, and of the output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerDevices {
    /// Device of the token embedding.
    pub input: DeviceId,
    /// Device of each layer.
    pub layers: Vec<DeviceId>,
    /// Device of the output norm and the output projection.
    pub output: DeviceId,
}

impl LayerDevices {
    /// llama.cpp's rule: of `layers` + 1 (the output is the last), the last `gpu_layers` go to GPUs; the i-th of those
    /// to the first GPU whose cumulative share exceeds i / (number of offloaded layers). All in 32-bit floats, because
    /// the cuts depend on their rounding. `gpus` with their shares stand in priority order; `host` takes the rest and
    /// the token embedding.
    #[must_use]
    pub fn by_share(layers: u32, gpu_layers: GpuLayers, gpus: &[(DeviceId, f32)], host: DeviceId) -> Self {
        let all = layers.saturating_add(1);
        let wanted = match gpu_layers {
            GpuLayers::All => all,
            GpuLayers::Count(n) => n.min(all),
        };
        let offloaded = if gpus.is_empty() { 0 } else { wanted };
        let first = all - wanted;
        let cumulative = cumulative_shares(gpus);
        let device = |layer: u32| {
            let Some(position) = layer.checked_sub(first).filter(|&p| p < offloaded) else { return host };
            let at = position as f32 / offloaded as f32;
            let gpu = cumulative.iter().position(|&share| share > at).unwrap_or(gpus.len() - 1);
            gpus[gpu].0
        };
        Self { input: host, layers: (0..layers).map(device).collect(), output: device(layers) }
    }

    /// The shares that llama.cpp takes where none are given: the free memory of each GPU.
    #[must_use]
    pub fn shares_of_memory(free: &[Bytes]) -> Vec<f32> {
        free.iter().map(|b| b.get() as f32).collect()
    }

    /// Whether the output and all layers are on GPUs, which pipelining needs.
    #[must_use]
    pub fn all_off(&self, host: DeviceId) -> bool {
        self.output != host && self.layers.iter().all(|&d| d != host)
    }
}

fn cumulative_shares(gpus: &[(DeviceId, f32)]) -> Vec<f32> {
    let mut sum = 0.0f32;
    let mut sums: Vec<f32> = gpus
        .iter()
        .map(|&(_, share)| {
            sum += share;
            sum
        })
        .collect();
    sums.iter_mut().for_each(|s| *s /= sum);
    sums
}
