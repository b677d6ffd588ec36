//! `loadmaster plan`: what a model takes on a machine, where it fits best, and what would help.

mod args;
mod llama_cpp;
mod machine;
mod never;
mod several;
mod text;

pub use args::Args;
pub use machine::Target;

use crate::engine::Model;
use crate::placement::Override;
use crate::plan::Choices;
use crate::plan::advice::{self, Placing, Relaxation};
use crate::plan::fit::core::WhyEmpty;
use crate::plan::fit::costs::{Costs, Upload};
use crate::plan::fit::{FitError, Fitted, Purpose, Request};
use crate::plan::longest::{self, CONTEXT_BLOCK};
use crate::plan::saved::SavedPlan;
use args::{Depth, EngineArg, Format};
use loadmaster_graph::{Bytes, DeviceId};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// What is told of a plan.
pub struct Told {
    /// The plan.
    pub plan: SavedPlan,
    /// Devices without layers in a chosen placement, and why.
    pub empty: Vec<(DeviceId, WhyEmpty)>,
    /// What a chosen placement was to be best for.
    pub purpose: Purpose,
    /// What would make it fit, if it does not.
    pub relaxations: Vec<Relaxation>,
    /// Placements by name that no weight has.
    pub idle: Vec<String>,
    /// Who computes with experts on the host, if some are there.
    pub upload: Option<Upload>,
    /// The longest context, unless it was not asked for: `None` inside if there is none.
    pub longest: Option<Option<u32>>,
    /// The longest that was tried.
    pub longest_tried: u32,
    /// What it was planned for, unless it is a saved plan.
    pub target: Option<Target>,
}

impl Told {
    /// A plan and nothing more.
    fn of(plan: SavedPlan) -> Self {
        let (empty, relaxations, idle, purpose) = (Vec::new(), Vec::new(), Vec::new(), Purpose::Decode);
        Self { plan, empty, purpose, relaxations, idle, upload: None, longest: None, longest_tried: 0, target: None }
    }
}

/// Runs the command: 0 it fits, 1 it does not, 2 what was asked for makes no sense or cannot be read.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = args.model.as_deref().filter(|p| is_plan(p)) {
        args.check_nothing_asked(path)?;
        let plan = SavedPlan::read(path)?;
        return tell(args, &Told::of(plan));
    }
    args.check()?;
    if !args.models.is_empty() {
        return several::run(args);
    }
    let model = match &args.model {
        Some(path) => Model::open(path)?,
        None => Model::embedded()?,
    };
    if args.engine == EngineArg::LlamaCpp {
        return llama_cpp::run(args, &model);
    }
    let target = Target::of(args)?;
    let placer = args.policy().placer();
    let (machine, speeds) = (&target.machine, target.speeds.as_slice());
    let request = Request { model: &model, machine, speeds, placer: &placer, reserve: args.reserve() };
    let told = match plan(args, &request) {
        Ok(told) => Told { target: Some(target.clone()), ..told },
        Err(error) => {
            return match never_fits(&error) {
                Some(never) => never::tell(args, &request, &args.choices(&model.params), never),
                None => Err(error),
            };
        }
    };
    if let Some(path) = &args.output {
        told.plan.write(path)?;
    }
    tell(args, &told)
}

/// What `--format json` prints of a model; on `machine`, if it is given, whatever devices the options name.
///
/// Errors: what was asked for makes no sense.
pub fn object(args: &Args, model: &Model, machine: Option<&loadmaster_sched::Machine>) -> anyhow::Result<Value> {
    args.check()?;
    let target = match machine {
        Some(machine) => Target::assumed(machine.clone()),
        None => Target::of(args)?,
    };
    let placer = args.policy().placer();
    let (machine, speeds) = (&target.machine, target.speeds.as_slice());
    let request = Request { model, machine, speeds, placer: &placer, reserve: args.reserve() };
    match plan(args, &request) {
        Ok(told) => json(&Told { target: Some(target.clone()), ..told }),
        Err(error) => match never_fits(&error) {
            Some(never) => never::object(args, &request, &args.choices(&model.params), never),
            None => Err(error),
        },
    }
}

/// The error, if it is that some tensor is longer than any buffer of its device.
fn never_fits(error: &anyhow::Error) -> Option<&FitError> {
    error.downcast_ref::<FitError>().filter(|e| e.never_fits().is_some())
}

fn is_plan(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"))
}

fn plan(args: &Args, request: &Request<'_>) -> anyhow::Result<Told> {
    let base = args.choices(&request.model.params);
    base.check()?;
    let chooses = args.chooses(request.machine);
    let chosen = if chooses { fit(args, request, &base)? } else { None };
    let (choices, prepared, gap, empty) = match chosen {
        Some(f) => (f.choices, f.prepared, f.gap, f.empty),
        None => {
            let f = as_asked(args, request, &base)?;
            (f.choices, f.prepared, f.gap, f.empty)
        }
    };
    let mut plan = SavedPlan::new(request.model, request.machine, &choices, &prepared, args.reserve());
    plan.policy = args.policy().into();
    let costs = Costs::new(request, &choices)?;
    let upload = costs.upload(request, &choices, &prepared);
    let mut predicted = costs.predict(request, &choices, &prepared);
    predicted.gap = gap;
    plan.predicted = Some(predicted);
    let placing = if chooses { Placing::Chosen(args.purpose()) } else { Placing::Asked };
    let relaxations = if plan.fits { Vec::new() } else { advice::relaxations(request, &choices, placing)? };
    let longest = (!args.no_longest).then(|| longest::longest_context(request, &choices, &prepared));
    let longest_tried = longest::longest_tried(request, &choices);
    let purpose = args.purpose();
    let idle = idle(request, &base);
    Ok(Told { empty, purpose, relaxations, idle, upload, longest, longest_tried, ..Told::of(plan) })
}

/// The placement that the options say, as deep a pipeline as they say.
fn as_asked(args: &Args, request: &Request<'_>, base: &Choices) -> Result<Fitted, FitError> {
    let prepared = request.prepare(base)?;
    let asked = Fitted { choices: base.clone(), prepared, cost: 0.0, gap: None, planned: 1, empty: Vec::new() };
    match args.copies {
        Some(Depth::Auto) => request.with_depth(&asked),
        Some(Depth::Exactly(_)) | None => Ok(asked),
    }
}

/// The chosen placement; `None` if none fits, which the plan of the given options then explains.
fn fit(args: &Args, request: &Request<'_>, base: &Choices) -> Result<Option<Fitted>, FitError> {
    let fitted = match args.copies {
        Some(Depth::Auto) => request.fit_with_depth(base, args.purpose()),
        Some(Depth::Exactly(_)) | None => request.fit(base, args.purpose()),
    };
    match fitted {
        Ok(fitted) => Ok(Some(fitted)),
        Err(FitError::NoneFits { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn tell(args: &Args, told: &Told) -> anyhow::Result<ExitCode> {
    let text = match args.format {
        Format::Text => crate::commands::harmless(&text::render(told)),
        Format::Json => serde_json::to_string_pretty(&json(told)?)? + "\n",
    };
    super::print(&text)?;
    Ok(if told.plan.fits { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn json(told: &Told) -> anyhow::Result<Value> {
    let mut object = serde_json::to_value(&told.plan)?;
    object["relaxations"] = relaxations_json(&told.relaxations);
    object["idle_overrides"] = json!(told.idle);
    object["expert_upload"] = told.upload.map_or(Value::Null, |u| {
        let device = &told.plan.devices[u.device.index()].name;
        json!({ "device": device, "from_tokens": u.now, "best_from_tokens": u.best, "up_to_tokens": u.most })
    });
    if let Some(target) = &told.target {
        object["speeds"] = target.json();
    }
    if let Some(longest) = told.longest {
        object["longest_context"] = json!({ "tokens": longest, "block": CONTEXT_BLOCK });
    }
    object["empty"] = told
        .empty
        .iter()
        .map(|(d, why)| {
            let device = &told.plan.devices[d.index()].name;
            match why {
                WhyEmpty::NoRoom => json!({ "device": device, "why": "no room" }),
                WhyEmpty::Slower(seconds) => json!({ "device": device, "why": "slower", "cost": seconds }),
            }
        })
        .collect();
    Ok(object)
}

fn relaxations_json(relaxations: &[Relaxation]) -> Value {
    relaxations.iter().map(|r| json!({ "what": r.what, "choices": r.choices, "predicted": r.predicted })).collect()
}

/// Placements by name that no weight of the model has.
fn idle(request: &Request<'_>, choices: &Choices) -> Vec<String> {
    let names = || request.model.file.tensors().iter().map(|t| &*t.name);
    let is_idle = |text: &&String| {
        Override::parse(text, request.machine)
            .is_ok_and(|o| names().all(|name| Override::find(std::slice::from_ref(&o), name).is_none()))
    };
    choices.override_tensor.iter().filter(is_idle).cloned().collect()
}

/// Bytes for people.
fn bytes(n: u64) -> String {
    Bytes(n).to_string()
}
