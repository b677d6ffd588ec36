//! `loadmaster serve`: the service.

use super::input::MachineArgs;
use crate::serve::requests::Requests;
use crate::serve::{Config, LoadSpec, ServiceState, serve};
use crate::telemetry::Telemetry;
use anyhow::Context;
use loadmaster_graph::Bytes;
use loadmaster_sched::{DeviceSpec, Driver, Machine};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Memory of each of the two virtual GPUs that serve if no devices are named.
const DEFAULT_SIM: Bytes = Bytes::mib(256);
/// What the embedded model is called.
const EMBEDDED_ID: &str = "alice";

/// Serve models over HTTP, with a page that shows where everything lies
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Models to load: ID=PATH below the directory of models, or a path alone; none: the small model in the program
    #[arg(value_name = "[ID=]MODEL")]
    pub models: Vec<String>,
    #[allow(missing_docs)]
    #[command(flatten)]
    pub devices: MachineArgs,
    /// A file of settings and limits, as in configs/serve/
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// The directory of models [default: models]
    #[arg(long, value_name = "DIR")]
    pub models_dir: Option<PathBuf>,
    /// Only who knows the token in this file may ask
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Sequences of a model that are decoded together [default: 8]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Tokens of context of each sequence, if the model's own is not shorter [default: 4096]
    #[arg(long, value_name = "N")]
    pub context: Option<u32>,
    /// Let idle models go so that another one fits
    #[arg(long)]
    pub evict: bool,
    /// Load no model at the start
    #[arg(long, conflicts_with = "models")]
    pub empty: bool,
    /// Threads of the kernels [default: all cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// What is told while it runs, and where.
    #[command(flatten)]
    pub telemetry: crate::telemetry::Options,
}

impl Args {
    fn config(&self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => Config::read_path(path)?,
            None => Config::default(),
        };
        if let Some(path) = &self.token_file {
            config.token = Some(crate::serve::config::read_token(path)?);
        }
        config.listen = self.listen.unwrap_or(config.listen);
        config.slots = self.slots.unwrap_or(config.slots);
        config.context = self.context.unwrap_or(config.context);
        config.evict |= self.evict;
        if let Some(dir) = &self.models_dir {
            config.models.clone_from(dir);
        }
        config.check()?;
        Ok(config)
    }

    /// The machine: what was asked for, else the CPU and two virtual GPUs.
    fn machine(&self) -> anyhow::Result<Machine> {
        if let Some(machine) = self.devices.machine()? {
            return Ok(machine);
        }
        let sim = DeviceSpec { memory: Some(DEFAULT_SIM), ..DeviceSpec::of(Driver::Sim) };
        Ok(Machine::from_specs(&[sim.clone(), sim])?)
    }

    fn specs(&self) -> Vec<LoadSpec> {
        if self.empty {
            return Vec::new();
        }
        if self.models.is_empty() {
            return vec![LoadSpec::embedded(EMBEDDED_ID)];
        }
        let spec = |text: &String| {
            let (id, path) = text.split_once('=').unwrap_or_else(|| (name_of(text), text));
            LoadSpec { id: id.to_owned(), path: path.to_owned(), ..LoadSpec::default() }
        };
        self.models.iter().map(spec).collect()
    }
}

/// A file's name without its extension.
fn name_of(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".gguf").unwrap_or(name)
}

/// Runs the command until the process is told to end: 0 it ended as told, 1 the service failed, 2 what was asked for
/// makes no sense.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let requests = Requests::default();
    let running = Telemetry::new(&args.telemetry, "info")?.with_queue_log(requests.log()).start()?;
    let status = serve_until_told(args, requests)?;
    running.finish()?;
    Ok(status)
}

fn serve_until_told(args: &Args, requests: Requests) -> anyhow::Result<ExitCode> {
    let (config, machine) = (args.config()?, loadmaster_sched::exec::measured(args.machine()?)?);
    let threads = args.threads.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
    let devices = loadmaster_sched::exec::open(&machine, threads)?;
    let listen = config.listen;
    let open = config.token.is_none();
    let state = ServiceState::with_requests(config, machine, devices, requests)?;
    for spec in args.specs() {
        let loaded = state.load(&spec);
        loaded.map_err(|e| anyhow::anyhow!("{}", e.message)).with_context(|| format!("model `{}`", spec.id))?;
    }
    if open && !listen.ip().is_loopback() {
        // Standard error may be gone.
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"warning: everybody who reaches this address may ask; give --token-file\n",
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(listen_and_serve(state, listen))?;
    Ok(ExitCode::SUCCESS)
}

async fn listen_and_serve(state: Arc<ServiceState>, listen: SocketAddr) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(listen).await.with_context(|| format!("cannot listen at {listen}"))?;
    let address = listener.local_addr()?;
    let models: Vec<String> = state.models().iter().map(|m| m.id.clone()).collect();
    let models = if models.is_empty() { "no model".to_owned() } else { models.join(", ") };
    super::print(&format!(
        "serving {models}\ndashboard: http://{address}/\nAPI: http://{address}/v1 (OpenAI), http://{address}/api/openapi.json\n"
    ))?;
    serve(state, listener, told_to_end()).await?;
    super::print("ended\n")?;
    Ok(())
}

/// Until the process is told to end.
async fn told_to_end() {
    let interrupted = async {
        // A system without signals ends the process in other ways.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        () = interrupted => {}
        () = terminated => {}
    }
}
