//! `loadmaster run`: loads a model, places it over the devices, and generates text.

mod args;
mod chat;
mod generate;
mod interrupt;
mod load;
mod logits;
mod report;

pub use args::{Args, Switch};

use crate::engine::{Engine, EngineError, Model, Prepared, Reserve, Settings, prepare};
use crate::plan::saved::SavedError;
use crate::telemetry;
use generate::{Job, Sink};
use interrupt::Interrupt;
use loadmaster_models::tokenizer::{Tokenizer, TokenizerError};
use loadmaster_sched::Machine;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Runs the command: 0 done, 1 the run failed or its plan is for something else, 2 what was asked for makes no sense or
/// cannot be read, 130 interrupted.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let running = telemetry::init(&args.telemetry, "warn")?;
    // What was told before a failure is worth having, too.
    let outcome = try_run(args).and_then(|status| running.finish().map(|()| status).map_err(Into::into));
    match outcome {
        Err(error) if is_failed_run(&error) => Ok(super::failed(&error)),
        other => other,
    }
}

fn is_failed_run(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<SavedError>();
    error.downcast_ref::<EngineError>().is_some_and(|e| !e.is_bad_input())
        || refused.is_some_and(|e| matches!(e, SavedError::OtherModel { .. } | SavedError::OtherMachine { .. }))
}

fn try_run(args: &Args) -> anyhow::Result<ExitCode> {
    let (start, interrupt) = (Instant::now(), Interrupt::listen());
    let model = Arc::new(match &args.model {
        Some(path) => Model::open(path)?,
        None => Model::embedded()?,
    });
    let plan = args.saved_plan()?;
    let machine = loadmaster_sched::exec::measured(args.machine(plan.as_ref())?).map_err(EngineError::from)?;
    let settings = args.settings(&model, &machine, plan.as_ref())?;
    let sampling = args.sampling()?;
    let tokenizer = tokenizer(&model, args)?;
    let job = Job::new(args, &model, tokenizer.as_ref(), &settings, sampling)?;
    let mut log = args.logits_out.as_deref().map(logits::LogitsLog::create).transpose()?;
    let prepared = prepare(&model, &machine, &settings)?;
    plan.map_or(Ok(()), |plan| plan.check_prepared(&machine, &prepared))?;
    prepared.check_capacity(&machine)?;
    let mut engine = open(args, model, &machine, settings, prepared)?;
    let loaded = start.elapsed();
    if !args.json {
        super::print(&report::placement(&engine))?;
    }
    let before = engine.device_stats();
    let mut sink = Sink::new(args.json, tokenizer.as_ref(), log.as_mut(), &interrupt);
    let generated = if args.chat {
        chat::converse(&mut engine, &job, args, &mut sink)?
    } else {
        generate::generate(&mut engine, &job, &mut sink)?
    };
    if let Some(log) = log {
        log.finish()?;
    }
    let moved = report::Moved::since(&before, &engine.device_stats());
    super::print(&match args.json {
        true => report::json(&engine, &generated, loaded, &moved)?,
        false => report::summary(&engine, &generated, loaded, &moved),
    })?;
    Ok(if interrupt.came() { ExitCode::from(interrupt::STATUS) } else { ExitCode::SUCCESS })
}

fn open(
    args: &Args,
    model: Arc<Model>,
    machine: &Machine,
    settings: Settings,
    prepared: Prepared,
) -> anyhow::Result<Engine> {
    let mut progress = load::ProgressLine::new(args.json);
    let devices = loadmaster_sched::exec::open(machine, args.threads()).map_err(EngineError::from)?;
    let mut show = |done, total| progress.show(done, total);
    let engine = Engine::load(model, machine, devices, settings, prepared, Reserve::Largest, &mut show);
    progress.clear();
    Ok(engine?)
}

/// The tokenizer; a model without vocabulary runs on `--tokens`.
fn tokenizer(model: &Model, args: &Args) -> anyhow::Result<Option<Tokenizer>> {
    match Tokenizer::from_gguf(&model.file) {
        Ok(tokenizer) => Ok(Some(tokenizer)),
        Err(_) if !args.tokens.is_empty() => Ok(None),
        Err(error @ TokenizerError::NoVocabulary { .. }) => {
            Err(anyhow::Error::new(error).context("give --tokens instead of a text"))
        }
        Err(error) => Err(error.into()),
    }
}
