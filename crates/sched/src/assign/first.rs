//! Rule 1.2: what buffers, inputs and weights decide.

use super::OpOffload;
use super::cause::Cause;
use super::state::State;
use crate::device_set::{self, first_common};
use crate::error::SchedError;
use loadmaster_graph::{BufferId, DeviceId, Op, TensorId};

impl State<'_> {
    /// Leafs, then nodes; pinned tensors are left alone.
    pub(super) fn first_pass(&mut self, offload: OpOffload) -> Result<(), SchedError> {
        let graph = self.graph;
        for &leaf in graph.leafs().values() {
            self.place_by_residency(leaf, offload)?;
        }
        for &node in graph.nodes().values() {
            self.place_by_residency(node, offload)?;
            if !self.topology.link(node).op.is_view() {
                self.computed.push(node);
                self.open += usize::from(self.devices[node].is_none());
            }
        }
        Ok(())
    }

    #[inline]
    fn place_by_residency(&mut self, tensor: TensorId, offload: OpOffload) -> Result<(), SchedError> {
        if self.devices[tensor].is_some() {
            return Ok(());
        }
        let link = self.topology.link(tensor);
        if let Some(buffer) = self.storage(tensor) {
            let device = self.device_for(buffer, link.op).ok_or_else(|| self.cannot_move(tensor, buffer))?;
            self.set(tensor, device, Cause::InBuffer { buffer });
        } else if link.flags.is_input() {
            self.set(tensor, self.machine.fallback(), Cause::Input);
        } else if !matches!(link.op, Op::Rope | Op::FlashAttnExt) {
            self.place_with_weights(tensor, link.op, offload);
        }
        Ok(())
    }

    /// The first device that can use a buffer and supports an operation.
    #[inline]
    fn device_for(&self, buffer: BufferId, op: Op) -> Option<DeviceId> {
        let buffer_type = self.residency.buffers[buffer].buffer_type;
        first_common(self.machine.usable_mask(buffer_type), self.machine.support_mask(op))
    }

    /// Rule 1.2c. Only the first source in a weight buffer counts, even where no device fits it.
    #[inline]
    fn place_with_weights(&mut self, tensor: TensorId, op: Op, offload: OpOffload) {
        let Some((source, weights)) = self.weight_source(tensor) else { return };
        let Some(device) = self.device_for(self.storage(source).unwrap_or(weights), op) else { return };
        let uploads = offload == OpOffload::On
            && device == self.machine.fallback()
            && self.machine.buffer_types()[self.residency.buffers[weights].buffer_type].host;
        match self.taker(tensor, op, device).filter(|_| uploads) {
            Some(taker) => self.set(tensor, taker, Cause::Offload { source }),
            None => self.set(tensor, device, Cause::WeightSource { source }),
        }
    }

    /// The first device before `before` that supports the operation and finds it worth uploading the weights.
    fn taker(&self, tensor: TensorId, op: Op, before: DeviceId) -> Option<DeviceId> {
        device_set::bits(self.machine.support_mask(op))
            .take_while(|&d| d < before)
            .find(|&d| self.machine.device(d).wants_offload(self.graph.tensor(tensor)))
    }

    #[cold]
    fn cannot_move(&self, tensor: TensorId, buffer: BufferId) -> SchedError {
        let buffer_type = &self.machine.buffer_types()[self.residency.buffers[buffer].buffer_type];
        SchedError::CannotMove {
            tensor,
            name: self.graph.tensor(tensor).name.clone(),
            op: self.graph.tensor(tensor).op,
            buffer,
            buffer_type: buffer_type.name.clone(),
            usable_by: self.machine.names(buffer_type.usable_by.iter()),
        }
    }
}
