//! Where a model is to go: as it was asked for if that fits, else as the search over placements finds.

use super::error::ApiError;
use super::residual::Residual;
use crate::commands::input::PolicyArg;
use crate::engine::{EngineError, Model, Prepared, Settings, rooms};
use crate::plan::advice;
use crate::plan::fit::speeds::{ASSUMED_GPU, ASSUMED_HOST};
use crate::plan::fit::{FitError, Purpose, Request};
use crate::plan::{Choices, ChoicesError};
use loadmaster_alloc::Placer;
use loadmaster_graph::Bytes;
use loadmaster_sched::{DeviceKind, Machine};
use serde_json::{Value, json};

/// A model's place.
#[derive(Clone, Debug)]
pub(super) struct Placing {
    pub(super) residual: Residual,
    pub(super) settings: Settings,
    pub(super) prepared: Prepared,
}

/// Whether the search may look for another place than the one that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Elsewhere {
    /// It may: nobody said where anything goes.
    Allowed,
    /// It may not.
    Forbidden,
}

/// A question: where could this go?
#[derive(Clone, Debug)]
pub(super) struct Question<'a> {
    pub(super) model: &'a Model,
    pub(super) choices: &'a Choices,
    pub(super) elsewhere: Elsewhere,
}

impl Question<'_> {
    /// Its place on a part of the machine; `None` if it does not fit there. Errors: a model or choices that cannot be
    /// prepared on any machine.
    pub(super) fn place(&self, residual: Residual) -> Result<Option<Placing>, ApiError> {
        let placer = PolicyArg::Best.placer();
        let speeds: Vec<_> = residual
            .machine
            .devices()
            .values()
            .map(|d| if d.kind == DeviceKind::Gpu { ASSUMED_GPU } else { ASSUMED_HOST })
            .collect();
        let request = request(self.model, &residual.machine, &speeds, &placer);
        let prepared = request.prepare(self.choices).map_err(|e| refused(&e))?;
        let found = if request.short(&prepared) == Bytes::ZERO {
            Some((self.choices.clone(), prepared))
        } else if self.elsewhere == Elsewhere::Allowed {
            match request.fit(self.choices, Purpose::Decode) {
                Ok(fitted) => Some((fitted.choices, fitted.prepared)),
                Err(FitError::NoneFits { .. }) => None,
                Err(error) => return Err(refused(&error)),
            }
        } else {
            None
        };
        let Some((choices, prepared)) = found else { return Ok(None) };
        let settings = choices.settings(&self.model.params, &residual.machine, placer);
        let settings = settings.map_err(|e| choice_refused(&e))?;
        Ok(Some(Placing { residual, settings, prepared }))
    }

    /// Its place on a part of the machine, as it was asked for or else anywhere.
    pub(super) fn place_anywhere(&self, residual: Residual) -> Result<Option<Placing>, ApiError> {
        if let Ok(Some(placing)) = self.place(residual.clone()) {
            return Ok(Some(placing));
        }
        let choices =
            Choices { n_gpu_layers: None, tensor_split: None, override_tensor: Vec::new(), ..self.choices.clone() };
        Question { model: self.model, choices: &choices, elsewhere: Elsewhere::Allowed }.place(residual)
    }

    /// Why it does not fit on a part of the machine: 503 with the device, what is missing there, and what would help.
    pub(super) fn too_small(&self, whole: &Machine, residual: &Residual) -> ApiError {
        let placer = PolicyArg::Best.placer();
        let speeds: Vec<_> = residual.machine.devices().values().map(|_| ASSUMED_GPU).collect();
        let request = request(self.model, &residual.machine, &speeds, &placer);
        let Ok(prepared) = request.prepare(self.choices) else {
            return ApiError::unavailable("over_capacity", "the model cannot be placed on what is left of the machine");
        };
        let rooms = rooms(&residual.machine, &prepared.pools(&residual.machine), Bytes::ZERO);
        let limited = rooms.iter().filter_map(|(id, room)| Some((id, room.missing(), room.used, room.capacity?)));
        let Some((pool, deficit, needed, free)) = limited.max_by_key(|&(_, short, ..)| short) else {
            return ApiError::unavailable("over_capacity", "no device has room for the model");
        };
        let device = residual.machine.devices().iter().find(|(d, _)| residual.machine.compute_type(*d).pool == pool);
        let device = device.map_or_else(|| whole.pools()[pool].name.clone(), |(_, d)| d.name.clone());
        let relaxations: Vec<Value> = advice::relaxations(&request, self.choices, advice::Placing::Asked)
            .unwrap_or_default()
            .into_iter()
            .map(|r| json!({ "what": r.what, "choices": r.choices }))
            .collect();
        let message = format!("{device} has {free} free, but {needed} are needed: {deficit} are missing");
        ApiError::unavailable("over_capacity", message)
            .with("device", &*device)
            .with("needed", needed.get())
            .with("free", free.get())
            .with("deficit", deficit.get())
            .with("relaxations", relaxations)
    }
}

fn request<'a>(
    model: &'a Model,
    machine: &'a Machine,
    speeds: &'a [crate::plan::fit::speeds::Speed],
    placer: &'a Placer,
) -> Request<'a> {
    Request { model, machine, speeds, placer, reserve: Bytes::ZERO }
}

/// What the planner refuses is the client's choice, or a file that it named.
pub(super) fn refused(error: &FitError) -> ApiError {
    match error {
        FitError::Choices(error) => choice_refused(error),
        FitError::Engine(error) => engine_refused(error),
        other => ApiError::field("settings", other.to_string()),
    }
}

pub(super) fn choice_refused(error: &ChoicesError) -> ApiError {
    ApiError::field("settings", error.to_string())
}

/// An error of opening or preparing a model.
pub(super) fn engine_refused(error: &EngineError) -> ApiError {
    let field = match error {
        EngineError::Open(_) | EngineError::File(_) => "path",
        _ => "settings",
    };
    ApiError::field(field, error.to_string())
}
