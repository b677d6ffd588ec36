//! Experts in host memory, uploaded as batches use them.

use super::error::ExecError;
use super::failure::Labels;
use super::issue::Interrupt;
use super::runtime::Runtime;
use super::schedule::ExpertCopy;
use loadmaster_backends::{CopyCommand, DeviceError, HostBuffer, Region, Stream};
use loadmaster_graph::tensor::Dims;
use loadmaster_graph::{Bytes, DeviceId, Graph, TensorId};
use std::sync::Arc;

/// Bytes that are uploaded past a run of experts, if there are more: kernels for quantized rows read to the end of a
/// padded row and multiply what is there by zero, which must not be what nobody wrote.
const PADDING: u64 = 512;

/// The experts of one tensor, and which of them the current batch uses. Its buffers are made once.
#[derive(Debug)]
pub(super) struct Experts {
    weights: TensorId,
    ids: TensorId,
    device: DeviceId,
    /// Bytes from one expert to the next, and their number.
    stride: u64,
    count: u64,
    ids_ne: Dims,
    ids_nb: Dims,
    bytes: Vec<u8>,
    used: Vec<bool>,
}

impl Experts {
    pub(super) fn new(graph: &Graph, experts: &ExpertCopy) -> Self {
        let (weights, ids) = (graph.tensor(experts.weights), graph.tensor(experts.ids));
        Self {
            weights: experts.weights,
            ids: experts.ids,
            device: experts.device,
            stride: weights.nb[2],
            count: weights.ne[2],
            ids_ne: ids.ne,
            ids_nb: ids.nb,
            bytes: vec![0; ids.nbytes().get() as usize],
            used: vec![false; weights.ne[2] as usize],
        }
    }

    /// Reads the ids.
    pub(super) fn read(&mut self, runtime: &Runtime, from: &Region) -> Result<(), Interrupt> {
        let reader = match from.buffer.as_any().is::<HostBuffer>() {
            true => runtime.machine().fallback(),
            false => self.device,
        };
        let outcome = runtime.device(reader).download(from, &mut self.bytes);
        outcome.map_err(|mut error| {
            error.tensor = Some(self.ids);
            Interrupt::Failed(reader, error)
        })
    }

    /// Notes which experts the ids name. Errors: an id that names none.
    pub(super) fn find_used(&mut self, labels: &Labels) -> Result<(), ExecError> {
        self.used.fill(false);
        let [n, rows, planes, cubes] = self.ids_ne;
        for i in 0..n * rows * planes * cubes {
            let at = [i % n, i / n % rows, i / (n * rows) % planes, i / (n * rows * planes)];
            let offset: u64 = at.iter().zip(&self.ids_nb).map(|(i, nb)| i * nb).sum();
            let word = self.bytes.get(offset as usize..offset as usize + 4).and_then(|b| b.try_into().ok());
            let id = i64::from(word.map_or(-1, i32::from_le_bytes));
            let slot = usize::try_from(id).ok().and_then(|id| self.used.get_mut(id));
            *slot.ok_or_else(|| ExecError::ExpertId {
                ids: labels.named(self.ids),
                id,
                weights: labels.named(self.weights),
                experts: self.count,
            })? = true;
        }
        Ok(())
    }

    /// Copies the used experts, neighbours together.
    pub(super) fn copy(&self, stream: &Arc<dyn Stream>, whole: &CopyCommand) -> Result<(), DeviceError> {
        let mut first = 0;
        while first < self.used.len() {
            if !self.used[first] {
                first += 1;
                continue;
            }
            let run = self.used[first..].iter().take_while(|&&used| used).count();
            let start = first as u64 * self.stride;
            let len = (run as u64 * self.stride + PADDING).min(whole.from.len.get().saturating_sub(start));
            let part = |region: &Region| region.part(Bytes(start), Bytes(len));
            if let (Some(from), Some(to)) = (part(&whole.from), part(&whole.to)) {
                stream.copy(&CopyCommand { from, to, tensor: whole.tensor })?;
            }
            first += run;
        }
        Ok(())
    }
}
