//! How deep to pipeline, and when to upload weights instead of computing where they are.

/// Speed-up below which a deeper pipeline is not worth its memory.
const WORTH: f64 = 1.02;

/// Seconds for so many micro-batches through the stages, of which at most `depth` are under way: stage by stage, each
/// after the one before it in its batch and after the same stage of the batch before.
#[must_use]
pub fn pipelined(stages: &[f64], micro_batches: u32, depth: u32) -> f64 {
    let mut free = vec![0.0f64; stages.len()];
    let mut ends: Vec<f64> = Vec::new();
    for batch in 0..micro_batches as usize {
        let waits_for = batch.checked_sub(depth.max(1) as usize).map_or(0.0, |b| ends[b]);
        let end = stages.iter().zip(&mut free).fold(waits_for, |ready, (seconds, free)| {
            *free = ready.max(*free) + seconds;
            *free
        });
        ends.push(end);
    }
    ends.last().copied().unwrap_or(0.0)
}

/// The same from the sum of the stages and the slowest of them alone, which is all that it depends on: of the paths from
/// the first start to the last end, the longest passes all stages once for every `depth` micro-batches that it waits for,
/// and the slowest stage once for each of the others. O(1).
#[must_use]
pub fn makespan(sum: f64, slowest: f64, micro_batches: u32, depth: u32) -> f64 {
    let Some(others) = micro_batches.checked_sub(1) else { return 0.0 };
    let waits = others / depth.max(1);
    let rest = others - waits * depth.max(1);
    let flowing = sum + f64::from(others) * slowest;
    let waiting = f64::from(waits + 1) * sum + f64::from(rest) * slowest;
    flowing.max(waiting)
}

/// The smallest depth that is as good as any, and its speed-up over depth 1.
#[must_use]
pub fn best_depth(stages: &[f64], micro_batches: u32, most: u32) -> (u32, f64) {
    let plain = pipelined(stages, micro_batches, 1);
    let depths = 1..=most.max(1);
    let fastest = depths.clone().map(|d| pipelined(stages, micro_batches, d)).fold(plain, f64::min);
    let depth = depths.into_iter().find(|&d| pipelined(stages, micro_batches, d) <= fastest * WORTH).unwrap_or(1);
    let seconds = pipelined(stages, micro_batches, depth);
    (depth, if seconds > 0.0 { plain / seconds } else { 1.0 })
}

/// What computing with experts costs on either side of a link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExpertCosts {
    /// Experts of a layer.
    pub count: u32,
    /// Experts that a token uses.
    pub used: u32,
    /// Bytes of one expert.
    pub bytes: f64,
    /// Multiplications and additions of one token with one expert.
    pub operations: f64,
    /// Bytes a second over the link.
    pub link: f64,
    /// Bytes and operations a second on the host.
    pub host: (f64, f64),
    /// Bytes and operations a second on the device.
    pub device: (f64, f64),
}

impl ExpertCosts {
    /// Experts that a batch is expected to touch.
    #[must_use]
    pub fn touched(&self, batch: u32) -> f64 {
        let missed = (1.0 - f64::from(self.used) / f64::from(self.count)).powf(f64::from(batch));
        f64::from(self.count) * (1.0 - missed)
    }

    /// Seconds on the host.
    #[must_use]
    pub fn on_host(&self, batch: u32) -> f64 {
        self.compute(batch, self.host)
    }

    /// Seconds with the touched experts uploaded first.
    #[must_use]
    pub fn uploaded(&self, batch: u32) -> f64 {
        self.touched(batch) * self.bytes / self.link + self.compute(batch, self.device)
    }

    fn compute(&self, batch: u32, (bandwidth, operations): (f64, f64)) -> f64 {
        let work = f64::from(batch) * f64::from(self.used) * self.operations;
        (self.touched(batch) * self.bytes / bandwidth).max(work / operations)
    }

    /// The smallest batch up to `most` from which uploading costs least in the worst case; `None`: never.
    #[must_use]
    pub fn upload_from(&self, most: u32) -> Option<u32> {
        let loss = |cost: f64, best: f64| cost / best;
        let ratio = |b: u32| {
            let (host, device) = (self.on_host(b), self.uploaded(b));
            (loss(host, host.min(device)), loss(device, host.min(device)))
        };
        let ratios: Vec<(f64, f64)> = (1..=most).map(ratio).collect();
        // Worst loss below a threshold if it computes there, and from it on if it uploads there.
        let mut from = vec![1.0f64; ratios.len() + 1];
        for i in (0..ratios.len()).rev() {
            from[i] = from[i + 1].max(ratios[i].1);
        }
        let (mut below, mut best) = (1.0f64, (f64::INFINITY, 0));
        for (i, &after) in from.iter().enumerate() {
            let worst = below.max(after);
            if worst < best.0 {
                best = (worst, i);
            }
            below = ratios.get(i).map_or(below, |r| below.max(r.0));
        }
        (best.1 < ratios.len()).then_some(best.1 as u32 + 1)
    }
}
