//! A loaded model's placement as it is shown: layers with their causes, and the arenas of its two largest graphs.
//!
//! Pure: planned as the engine plans, without a device.

use super::residual::Residual;
use crate::engine::{EngineError, Model, Placed, Prepared, Settings};
use crate::placement::{GpuLayers, LayerDevices};
use loadmaster_alloc::{Arenas, Lifetime, Origin, lifetimes, report};
use loadmaster_graph::{Bytes, DeviceId};
use loadmaster_models::families::BatchShape;
use loadmaster_sched::{LowerOptions, Machine, Plan, PlanOptions, SchedError, Sizes, arena_of, compute_types, plan};

/// Which graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphKind {
    /// A full micro-batch of a prompt.
    Prompt,
    /// One token of each sequence.
    Decode,
}

impl GraphKind {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Decode => "decode",
        }
    }

    /// The graph of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Prompt, Self::Decode].into_iter().find(|k| k.name() == name)
    }
}

/// A layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerRow {
    /// Its number, or `output`.
    pub layer: String,
    /// Its device.
    pub device: Box<str>,
    /// Why it is there.
    pub cause: String,
    /// Where it was in the plan before, if elsewhere.
    pub changed: Option<String>,
}

/// A tensor in an arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorBox {
    /// Its name.
    pub name: String,
    /// Its operation.
    pub op: &'static str,
    /// Chunk of the arena.
    pub chunk: usize,
    /// First byte in the chunk.
    pub offset: Bytes,
    /// Bytes.
    pub bytes: Bytes,
    /// First step at which the bytes are its own.
    pub first: u32,
    /// Past the last such step.
    pub last: u32,
    /// Why it is on this device.
    pub cause: String,
}

/// The arena of a device for one graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArenaPicture {
    /// The device.
    pub device: Box<str>,
    /// The kind of memory.
    pub buffer: String,
    /// The graph.
    pub graph: GraphKind,
    /// Bytes that the plan of this graph needs.
    pub size: Bytes,
    /// What no plan of it can beat.
    pub bound: Bytes,
    /// Steps.
    pub steps: u32,
    /// The step at which most is alive.
    pub peak_step: u32,
    /// What lies there.
    pub tensors: Vec<TensorBox>,
}

/// All of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Picture {
    /// Layers, the output as the last.
    pub layers: Vec<LayerRow>,
    /// Arenas in which something lies.
    pub arenas: Vec<ArenaPicture>,
}

impl Picture {
    /// Of a model as it was prepared. Errors: as those of preparing.
    pub fn of(model: &Model, place: &Residual, settings: &Settings, prepared: &Prepared) -> Result<Self, EngineError> {
        let placed = Placed::new(model, &place.machine, settings)?;
        let layers = layers(&prepared.layers, &place.machine, settings);
        let mut arenas = Vec::new();
        let shapes =
            [(GraphKind::Prompt, settings.largest_micro_batch()), (GraphKind::Decode, settings.decode_tokens())];
        for (kind, tokens) in shapes {
            arenas.extend(pictures(&placed, kind, BatchShape::largest(&placed.layout, tokens))?);
        }
        Ok(Self { layers, arenas })
    }

    /// The same, with what changed since `before`.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        for row in &mut self.layers {
            let old = before.layers.iter().find(|b| b.layer == row.layer);
            row.changed = old.filter(|b| b.device != row.device).map(|b| format!("was on {}", b.device));
        }
        self
    }
}

fn layers(of: &LayerDevices, machine: &Machine, settings: &Settings) -> Vec<LayerRow> {
    let cause = |device: DeviceId| {
        let shares = match &settings.tensor_split {
            Some(split) => {
                let parts: Vec<String> = split.iter().map(ToString::to_string).collect();
                format!("GPUs share the layers as {}", parts.join(":"))
            }
            None => "GPUs share the layers by free memory".to_owned(),
        };
        match (device == machine.fallback(), settings.gpu_layers) {
            (false, GpuLayers::All) => format!("all layers go to GPUs; {shares}"),
            (false, GpuLayers::Count(n)) => format!("the last {n} layers go to GPUs; {shares}"),
            (true, GpuLayers::Count(n)) => format!("only the last {n} layers go to GPUs"),
            (true, GpuLayers::All) => "there is no GPU with room".to_owned(),
        }
    };
    let row = |layer: String, device: DeviceId| {
        let (device, cause) = (machine.device(device).name.clone(), cause(device));
        LayerRow { layer, device, cause, changed: None }
    };
    let numbered = of.layers.iter().enumerate().map(|(i, &d)| row(i.to_string(), d));
    numbered.chain([row("output".to_owned(), of.output)]).collect()
}

fn pictures(placed: &Placed<'_>, kind: GraphKind, shape: BatchShape) -> Result<Vec<ArenaPicture>, EngineError> {
    let (machine, settings) = (placed.machine, placed.settings);
    let model = placed.graph(shape)?;
    let residency = placed.residency(&model, shape.tokens);
    let lower = LowerOptions { n_copies: settings.copies, ..LowerOptions::default() };
    let options = PlanOptions { assign: settings.assign, lower, placer: settings.placer.clone() };
    let arenas = Arenas::new(compute_types(machine, &Sizes::ByRule));
    let plan = plan(&model.graph, machine, &residency, arenas, &options)?;
    let explained = report(&plan.lowered.graph, &plan.arenas, plan.ids(), &plan.memory).map_err(SchedError::from)?;
    let lives = lifetimes(&plan.lowered.graph, &plan.arenas, plan.ids(), &plan.memory).map_err(SchedError::from)?;
    let mut all = Vec::new();
    for (id, device) in machine.devices().iter() {
        let Some(arena) = explained.arena(arena_of(id)).filter(|a| a.size > Bytes::ZERO) else { continue };
        let here = lives.iter().filter(|l| plan.arenas.home(l.place.arena) == arena.arena);
        all.push(ArenaPicture {
            device: device.name.clone(),
            buffer: arena.buffer_type.clone(),
            graph: kind,
            size: arena.size,
            bound: arena.lower_bound,
            steps: arena.profile.len() as u32,
            peak_step: arena.peak_step.get(),
            tensors: here.map(|life| tensor_box(&plan, machine, life)).collect(),
        });
    }
    Ok(all)
}

fn tensor_box(plan: &Plan<'_>, machine: &Machine, life: &Lifetime) -> TensorBox {
    let graph = &plan.lowered.graph;
    let item = graph.item(life.item);
    let tensor = item.origin.tensor();
    let name = &graph.graph().tensor(tensor).name;
    let (name, cause) = match item.origin {
        Origin::Copy { device, .. } => {
            let to = &machine.device(device).name;
            let copy = plan.splits.copies().values().find(|c| c.tensor == tensor && c.to == device);
            let why = copy.map_or("it is read there".to_owned(), |c| format!("it {}", c.cause));
            (format!("copy of {name} for {to}"), why)
        }
        Origin::Tensor(_) | Origin::Keep(_) => (name.to_string(), plan.assignment.cause(tensor).to_string()),
    };
    TensorBox {
        name,
        op: item.op.name(),
        chunk: life.place.chunk.index(),
        offset: life.place.offset,
        bytes: life.place.size,
        first: life.steps.start.get(),
        last: life.steps.end.get(),
        cause,
    }
}
