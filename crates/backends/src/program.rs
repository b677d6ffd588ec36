//! What a device computes: a list of commands with resolved operands, compiled once and run many times.

use crate::error::Fault;
use crate::stream::CommandId;
use loadmaster_alloc::{Buffer, InPlaceTable};
use loadmaster_graph::tensor::{DIMS, Dims, OpParams};
use loadmaster_graph::{Bytes, DType, Op, Tensor, TensorId, define_id};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

define_id! {
    /// A buffer of a program's buffer list.
    pub SlotId, "slot";
}

/// Where an operand's bytes are and how they are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    /// Its buffer.
    pub slot: SlotId,
    /// First byte in the buffer.
    pub offset: Bytes,
    /// Element type.
    pub dtype: DType,
    /// Extents, innermost first.
    pub ne: Dims,
    /// Byte strides, innermost first.
    pub nb: Dims,
}

impl Operand {
    /// The operand with the layout of `tensor` at `offset` of a buffer.
    #[must_use]
    pub fn of(tensor: &Tensor, slot: SlotId, offset: Bytes) -> Self {
        Self { slot, offset, dtype: tensor.dtype, ne: tensor.ne, nb: tensor.nb }
    }

    /// Bytes from the first to past the last element; `None` on overflow.
    #[must_use]
    pub fn span(&self) -> Option<Bytes> {
        if self.ne.contains(&0) {
            return Some(Bytes::ZERO);
        }
        let row = self.dtype.block_size().get().checked_mul(self.ne[0].div_ceil(self.dtype.block_len()))?;
        let plain = self.dtype.block_len() == 1;
        let first = if plain { self.dtype.block_size().get() } else { row };
        let outer = usize::from(!plain);
        (outer..DIMS).try_fold(first, |sum, i| sum.checked_add((self.ne[i] - 1).checked_mul(self.nb[i])?)).map(Bytes)
    }

    /// Whether it has a byte in common with another operand, as far as their first and last bytes say.
    fn meets(&self, other: &Self) -> bool {
        let end = |o: &Self| o.offset.saturating_add(o.span().unwrap_or(Bytes::MAX));
        self.slot == other.slot && self.offset < end(other) && other.offset < end(self)
    }

    /// Whether it fills its span without gaps.
    fn is_packed(&self) -> bool {
        let blocks = self.elements() / self.dtype.block_len();
        self.dtype.block_size().checked_mul(blocks) == self.span()
    }

    /// What its offset and strides must be multiples of: the element size; where elements come in blocks, the power of two that
    /// divides all blocks, at most the word that kernels read them by (views may begin anywhere else, so this is less than the
    /// alignment of the buffer type).
    pub(crate) fn element_align(&self) -> u64 {
        let size = self.dtype.block_size().get();
        if self.dtype.block_len() == 1 { size } else { 1 << size.trailing_zeros().min(2) }
    }

    /// Number of elements; saturates.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.ne.iter().fold(1, |n, &e| n.saturating_mul(e))
    }
}

/// One command: computes one node.
#[derive(Clone, PartialEq, Debug)]
pub struct Command {
    /// The tensor that it computes, for errors.
    pub tensor: TensorId,
    /// The operation.
    pub op: Op,
    /// Its parameters.
    pub params: OpParams,
    /// Where the result goes.
    pub dst: Operand,
    first_source: u32,
    source_count: u32,
}

/// Where kernels keep what they need beside operands.
#[derive(Clone, Debug, Default)]
pub enum Workspace {
    /// In memory that the device takes when a program needs more than it has, and keeps: for those who plan no memory.
    #[default]
    OfDevice,
    /// In this buffer of the device, and nowhere else. Programs of a device use it one after another.
    Given(Arc<dyn Buffer>),
    /// There is none, and none may be needed.
    None,
}

/// A list of commands over a list of buffers. Computed in order.
#[derive(Clone, Debug, Default)]
pub struct Program {
    workspace: Workspace,
    buffers: Vec<Arc<dyn Buffer>>,
    commands: Vec<Command>,
    sources: Vec<Option<Operand>>,
}

impl Program {
    /// An empty program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The slot of a buffer; adds it if it is new. O(buffers).
    pub fn slot(&mut self, buffer: &Arc<dyn Buffer>) -> SlotId {
        let found = self.buffers.iter().position(|b| Arc::ptr_eq(b, buffer));
        SlotId::new(found.unwrap_or_else(|| {
            self.buffers.push(Arc::clone(buffer));
            self.buffers.len() - 1
        }))
    }

    /// Where kernels keep what they need beside operands.
    pub fn set_workspace(&mut self, workspace: Workspace) {
        self.workspace = workspace;
    }
    /// The same, to be read.
    #[must_use]
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Appends a command. Sources may have holes.
    pub fn push(
        &mut self,
        tensor: TensorId,
        op: Op,
        params: OpParams,
        sources: impl IntoIterator<Item = Option<Operand>>,
        dst: Operand,
    ) -> CommandId {
        let first_source = self.sources.len() as u32;
        self.sources.extend(sources);
        let source_count = self.sources.len() as u32 - first_source;
        self.commands.push(Command { tensor, op, params, dst, first_source, source_count });
        CommandId::new(self.commands.len() - 1)
    }

    /// The buffers, by slot.
    #[must_use]
    pub fn buffers(&self) -> &[Arc<dyn Buffer>] {
        &self.buffers
    }
    /// The commands in order.
    #[must_use]
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }
    /// The sources of a command of this program, holes included.
    #[must_use]
    pub fn sources(&self, command: &Command) -> &[Option<Operand>] {
        let first = command.first_source as usize;
        &self.sources[first..first + command.source_count as usize]
    }

    /// Checks that every operand lies inside its buffer, at an offset and with strides that its element type allows, and
    /// that no result lies over a source but as `in_place` allows (or over its own target, for copies into one). Errors:
    /// the tensor of the first command that breaks a rule, and how. O(operands).
    ///
    /// Layouts with gaps may interleave: whether they share elements is not looked into.
    pub fn check(&self, in_place: &InPlaceTable) -> Result<(), (TensorId, Fault)> {
        for command in &self.commands {
            let named = |fault| (command.tensor, fault);
            let operands = self.sources(command).iter().flatten().chain(std::iter::once(&command.dst));
            operands.clone().try_for_each(|o| self.check_operand(o)).map_err(named)?;
            if computes(command.op) {
                self.check_overlap(command, in_place).map_err(named)?;
            }
        }
        Ok(())
    }

    fn check_operand(&self, operand: &Operand) -> Result<(), Fault> {
        let size = self.buffers.get(operand.slot.index()).map_or(Bytes::ZERO, |b| b.size());
        let len = operand.span().unwrap_or(Bytes::MAX);
        if operand.offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Fault::OutOfRange { offset: operand.offset, len, size });
        }
        let align = operand.element_align();
        let strides = operand.ne.iter().zip(operand.nb).filter(|(n, _)| **n > 1).map(|(_, nb)| nb);
        let misaligned = std::iter::once(operand.offset.get()).chain(strides).find(|at| !at.is_multiple_of(align));
        match misaligned {
            Some(at) => Err(Fault::Misaligned { offset: Bytes(at), align }),
            None => Ok(()),
        }
    }

    fn check_overlap(&self, command: &Command, in_place: &InPlaceTable) -> Result<(), Fault> {
        let dst = &command.dst;
        for (position, source) in self.sources(command).iter().enumerate() {
            let Some(source) = source.filter(|s| s.meets(dst)) else { continue };
            let allowed = source == *dst
                && (in_place.operands(command.op).contains(position) || target(command.op) == Some(position));
            if !allowed && source.is_packed() && dst.is_packed() {
                return Err(Fault::Overlap { op: command.op, operand: position });
            }
        }
        Ok(())
    }
}

/// Whether a command does anything: views and nothing do not.
pub(crate) fn computes(op: Op) -> bool {
    op != Op::None && !op.is_view()
}

/// The operand that an operation writes into: it stands exactly where the result stands.
const fn target(op: Op) -> Option<usize> {
    match op {
        Op::Cpy => Some(1),
        Op::SetRows => Some(2),
        _ => None,
    }
}

/// A program that a device has checked and prepared. It keeps its buffers alive.
pub trait Compiled: fmt::Debug + Send + Sync {
    /// Number of commands.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The concrete type, for the device that compiled it.
    fn as_any(&self) -> &dyn Any;
}
