//! The steps of a run: what is done, in which queue, and which bytes it touches (see `protocol.md`).

use super::place::{Memory, MemoryId, Place};
use super::ranges::Span;
use super::scratch::{ScratchNeeds, ScratchUse};
use loadmaster_graph::{Bytes, CopyId, DeviceId, IdVec, NodeId, SplitId, TensorId, define_id};
use std::fmt;
use std::ops::Range;

define_id! {
    /// A queue of a schedule; 0 is the host.
    pub QueueId, "q";
    /// A step of a schedule; ids are program order.
    pub StepId, "step";
    /// A piece of a staged copy.
    pub PieceId, "piece";
}

/// Something that does one thing after another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Queue {
    /// The thread that issues.
    Host,
    /// A device's stream for nodes, and for copies that nothing could overlap with.
    Compute(DeviceId),
    /// A device's stream for copies to it, next to what it computes.
    Receive(DeviceId),
    /// A device's stream for copies from it, next to what it computes.
    Send(DeviceId),
}

impl Queue {
    /// The device whose stream it is.
    #[must_use]
    pub const fn device(self) -> Option<DeviceId> {
        match self {
            Self::Host => None,
            Self::Compute(device) | Self::Receive(device) | Self::Send(device) => Some(device),
        }
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Compute(device) => write!(f, "{device}"),
            Self::Receive(device) => write!(f, "{device} receive"),
            Self::Send(device) => write!(f, "{device} send"),
        }
    }
}

/// Which part of a copy a step makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hop {
    /// All of it.
    Direct,
    /// A piece, from the source to a staging slot.
    Out(PieceId),
    /// A piece, from a staging slot to the target.
    In(PieceId),
}

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// The caller writes a leaf.
    Write {
        /// The leaf.
        leaf: TensorId,
    },
    /// A split input, or a piece of it, is copied.
    Copy {
        /// The copy.
        copy: CopyId,
        /// Which part.
        hop: Hop,
    },
    /// Nodes are computed: those from the first to before the second in the plan's order.
    Compute {
        /// First position in [`Schedule::order`].
        first: u32,
        /// Past the last position.
        end: u32,
    },
    /// The host reads which experts a batch uses.
    Ids {
        /// The copy of the experts' weights.
        copy: CopyId,
    },
    /// Those experts are copied.
    Experts {
        /// The copy of the experts' weights.
        copy: CopyId,
    },
    /// An output is copied to the host.
    Fetch {
        /// The output.
        output: TensorId,
    },
}

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The queue that it is in.
    pub queue: QueueId,
    /// The split that it belongs to; `None` for inputs and outputs.
    pub split: Option<SplitId>,
    /// What it does.
    pub action: Action,
}

/// Whether bytes are read or written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// Read, before the step itself writes them.
    Read,
    /// Written (and perhaps read).
    Write,
}

/// Bytes that a step touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The memory.
    pub memory: MemoryId,
    /// The bytes, half-open.
    pub span: Span,
    /// How.
    pub mode: Mode,
}

/// What a copy, an ids or an experts step moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Where the bytes are.
    pub from: Place,
    /// Where they go.
    pub to: Place,
}

/// The slots between two devices without a direct path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Staging {
    /// Where copies come from.
    pub from: DeviceId,
    /// Where they go.
    pub to: DeviceId,
    /// Bytes of all slots.
    pub size: Bytes,
}

/// The experts of a weight tensor that are copied as batches use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertCopy {
    /// The copy.
    pub copy: CopyId,
    /// The weights: extents `[…, …, experts]`.
    pub weights: TensorId,
    /// The ids that name experts.
    pub ids: TensorId,
    /// The device that reads the ids, in whose memory they are unless the host can read them.
    pub device: DeviceId,
}

/// What differs between turns: the places of a turn's copies.
#[derive(Clone, Debug, Default)]
pub(super) struct TurnPlaces {
    pub(super) moves: Vec<Option<Move>>,
    pub(super) ranges: Vec<Range<u32>>,
    pub(super) accesses: Vec<Access>,
}

/// The steps of a run, in program order, with their bytes turn by turn.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(super) queues: IdVec<QueueId, Queue>,
    pub(super) memories: IdVec<MemoryId, Memory>,
    pub(super) steps: IdVec<StepId, Step>,
    pub(super) turns: Vec<TurnPlaces>,
    pub(super) order: Vec<NodeId>,
    pub(super) staging: Vec<Staging>,
    pub(super) outputs: Vec<(TensorId, Place)>,
    pub(super) output_slot: Bytes,
    pub(super) scratch: ScratchNeeds,
    pub(super) scratch_of_outputs: Option<ScratchUse>,
    pub(super) experts: Vec<ExpertCopy>,
}

impl Schedule {
    /// The queues; the first is the host.
    #[must_use]
    pub fn queues(&self) -> &IdVec<QueueId, Queue> {
        &self.queues
    }
    /// The memories that steps touch.
    #[must_use]
    pub fn memories(&self) -> &IdVec<MemoryId, Memory> {
        &self.memories
    }
    /// The steps in program order.
    #[must_use]
    pub fn steps(&self) -> &IdVec<StepId, Step> {
        &self.steps
    }
    /// Number of turns: pipeline copies of every input.
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.turns.len() as u32
    }
    /// The bytes that a step touches in runs of a turn. Bytes that no step ever writes are left out.
    #[must_use]
    pub fn accesses(&self, step: StepId, turn: u32) -> &[Access] {
        let places = &self.turns[turn as usize % self.turns.len()];
        let range = &places.ranges[step.index()];
        &places.accesses[range.start as usize..range.end as usize]
    }
    /// What a step moves in runs of a turn.
    #[must_use]
    pub fn moved(&self, step: StepId, turn: u32) -> Option<Move> {
        self.turns[turn as usize % self.turns.len()].moves[step.index()]
    }
    /// Nodes in the order in which they are computed.
    #[must_use]
    pub fn order(&self) -> &[NodeId] {
        &self.order
    }
    /// Staging buffers, by the number in [`Memory::Staging`].
    #[must_use]
    pub fn staging(&self) -> &[Staging] {
        &self.staging
    }
    /// Fetched outputs with their place in the first turn's slot.
    #[must_use]
    pub fn outputs(&self) -> &[(TensorId, Place)] {
        &self.outputs
    }
    /// Bytes of one turn's slot for fetched outputs.
    #[must_use]
    pub fn output_slot(&self) -> Bytes {
        self.output_slot
    }
    /// The host memory that it needs beside arenas and resident buffers.
    #[must_use]
    pub fn scratch(&self) -> &ScratchNeeds {
        &self.scratch
    }
    /// Experts that are copied as batches use them.
    #[must_use]
    pub fn experts(&self) -> &[ExpertCopy] {
        &self.experts
    }
}
