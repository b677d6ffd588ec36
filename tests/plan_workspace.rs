//! What kernels need beside operands is in the plan, to the byte: on simulated GPUs, with exactly the memory that the plan
//! says, of random models and of recorded ones. A byte less is refused before anything is bound, and leaves nothing taken.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "support/random_models.rs"]
mod random_models;
#[path = "support/recorded_models.rs"]
mod recorded_models;

use loadmaster::commands::input::PolicyArg;
use loadmaster::engine::{Engine, EngineError, Model, Prepared, Reserve, Settings, prepare};
use loadmaster::plan::Choices;
use loadmaster::plan::saved::SavedPlan;
use loadmaster_backends::cuda::simulator::Simulator;
use loadmaster_graph::{Bytes, DeviceId};
use loadmaster_models::kv::{Batch, BatchToken, SequenceId, SequenceSet};
use loadmaster_models::tokenizer::TokenId;
use loadmaster_sched::exec::{ExecError, ScratchUse, SessionNeeds, described, open};
use loadmaster_sched::{DeviceKind, Machine};
use random_models::{Family, Random, Shape};
use recorded_models::{MODELS, recorded};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// A simulated machine; none, with the reason printed, where there is no simulator or real GPUs are tested.
fn simulated(config: &str) -> Option<Simulator> {
    if cfg!(feature = "gpu-tests") {
        println!("skipped: this run is for real GPUs");
        return None;
    }
    Simulator::open_with_kernels(config).map_err(|why| println!("skipped: {why}")).ok()
}

fn choices(random: &mut Random, model: &Model, gpus: usize) -> Choices {
    let layers = model.params.layers.len() as u32;
    let parallel = 1 + random.below(3);
    let quantized = model.params.key_length.is_multiple_of(32) && random.one_in(3);
    Choices {
        // Long enough for keys to be split.
        ctx: parallel * 512 * (1 + random.below(3)),
        batch: 48,
        ubatch: random.pick(&[1, 7, 16, 33, 48]),
        parallel,
        flash_attn: quantized || !random.one_in(4),
        kv_type: if quantized { "q8_0" } else { "f16" }.to_owned(),
        copies: 1 + random.below(2),
        n_gpu_layers: Some(random.below(layers + 2)).filter(|_| random.one_in(3)),
        // Shares of memory would change with the memory.
        tensor_split: Some(vec![2.0, 1.0, 3.0][..gpus].to_vec()),
        override_tensor: if random.one_in(4) { vec![r"ffn_.*=CPU".to_owned()] } else { Vec::new() },
        kv_offload: !random.one_in(5),
    }
}

/// One to three devices on one or two GPUs, each with a limit of its own.
fn machine(random: &mut Random, gpus: u32) -> Machine {
    let devices = 1 + random.below(3);
    let specs = (0..devices).map(|_| format!("cuda:{}:512MiB", random.below(gpus)).parse().unwrap());
    described(Machine::from_specs(&specs.collect::<Vec<_>>()).unwrap()).unwrap()
}

/// The machine with as much memory on each GPU as the model takes there, or a byte less on one of them.
fn exactly(machine: &Machine, prepared: &Prepared, less_on: Option<DeviceId>) -> Machine {
    let mut parts = machine.parts().clone();
    for (id, need) in prepared.devices.iter().filter(|(id, _)| machine.device(*id).kind == DeviceKind::Gpu) {
        let less = u64::from(less_on == Some(id));
        let pool = machine.compute_type(id).pool;
        // A pool without memory is none.
        parts.pools[pool].capacity = Some(Bytes((need.total().get() - less).max(1)));
    }
    Machine::new(parts).unwrap()
}

struct Case<'a> {
    model: &'a Arc<Model>,
    settings: Settings,
    choices: Choices,
    prepared: Prepared,
    told: String,
}

impl<'a> Case<'a> {
    fn new(model: &'a Arc<Model>, machine: &Machine, choices: Choices, told: &str) -> Self {
        let settings = choices.settings(&model.params, machine, PolicyArg::Best.placer()).unwrap();
        let prepared = prepare(model, machine, &settings).unwrap_or_else(|e| panic!("{told}: {e}"));
        Self { model, settings, prepared, told: format!("{told} {choices:?}"), choices }
    }

    fn load(&self, machine: &Machine) -> Result<Engine, EngineError> {
        let (model, settings) = (Arc::clone(self.model), self.settings.clone());
        let devices = open(machine, NonZeroUsize::MIN).unwrap();
        let prepared = self.prepared.clone();
        Engine::load(model, machine, devices, settings, prepared, Reserve::Largest, &mut |_, _| {})
    }

    /// Loads and runs with exactly the memory that the plan says, and compares what devices and the driver count.
    fn check(&self, machine: &Machine, simulator: &Simulator, random: &mut Random) {
        let (told, machine) = (&self.told, exactly(machine, &self.prepared, None));
        let plan = SavedPlan::new(self.model, &machine, &self.choices, &self.prepared, Bytes::ZERO);
        assert!(plan.fits, "{told}");
        let mut engine = self.load(&machine).unwrap_or_else(|e| panic!("{told}: {e}"));
        let loaded = engine.device_stats();
        for ((id, stats), planned) in loaded.iter().zip(&plan.devices) {
            let in_file = if machine.device(id).kind == DeviceKind::Cpu { planned.weights } else { 0 };
            assert_eq!(planned.total, planned.weights + planned.kv + planned.compute + planned.workspace);
            assert_eq!(stats.live_bytes.get(), planned.total + planned.staging - in_file, "{told}: {planned:?}");
        }
        let on_gpus = plan.devices.iter().zip(machine.devices().values()).filter(|(_, d)| d.kind == DeviceKind::Gpu);
        let all: u64 = on_gpus.map(|(planned, _)| planned.total).sum();
        assert_eq!(device_bytes(simulator), all, "{told}");
        run(&mut engine, random, told);
        for (id, stats) in engine.device_stats().iter() {
            let before = (loaded[id].live_bytes, loaded[id].allocations);
            assert_eq!((stats.live_bytes, stats.allocations), before, "{id} of {told}");
        }
        assert_eq!(device_bytes(simulator), all, "{told}");
        drop(engine);
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{told}");
    }
}

/// Bytes of all GPUs that the driver has given and not got back.
fn device_bytes(simulator: &Simulator) -> u64 {
    let live = simulator.live();
    let memory = live.lines().filter(|l| l.starts_with("allocation"));
    memory.map(|l| l.split(" of ").nth(1).and_then(|l| l.split(' ').next()).unwrap().parse::<u64>().unwrap()).sum()
}

/// Prompts of several lengths to some sequences, then single tokens.
fn run(engine: &mut Engine, random: &mut Random, told: &str) {
    let (sequences, batch) = (engine.settings().sequences, engine.settings().batch);
    let vocab = engine.model().params.vocab;
    for step in 0..3 {
        let chosen = 1 + random.below(sequences);
        let length = if step == 2 { 1 } else { 1 + random.below(batch / chosen) };
        let mut given = Batch::new();
        for sequence in (0..chosen).map(|s| SequenceId::new(s as usize)) {
            let mut pos = engine.state().next(sequence);
            for i in 0..length {
                let token = TokenId::new(random.below(vocab) as usize);
                let sequences = SequenceSet::from_iter([sequence]);
                given.push(BatchToken { token, pos, sequences, wants_logits: i + 1 == length });
                pos = pos.next();
            }
        }
        engine.decode(&given, |_, _| {}).unwrap_or_else(|e| panic!("step {step} of {told}: {e}"));
    }
}

/// Plans and runs on a machine without any driver; what the plan says.
fn on_virtual(model: &Arc<Model>, spec: &str, choices: &Choices) -> SavedPlan {
    let machine = Machine::from_specs(&[spec.parse().unwrap()]).unwrap();
    let case = Case::new(model, &machine, choices.clone(), spec);
    let exact = exactly(&machine, &case.prepared, None);
    let engine = case.load(&exact).unwrap_or_else(|e| panic!("{spec}: {e}"));
    let plan = SavedPlan::new(model, &exact, choices, &case.prepared, Bytes::ZERO);
    let counted = engine.device_stats()[DeviceId::new(0)].live_bytes.get();
    assert_eq!(counted, plan.devices[0].total + plan.devices[0].staging, "{spec}");
    plan
}

#[test]
fn a_virtual_gpu_that_is_described_as_a_card_takes_what_kernels_need_there_and_another_takes_none() {
    let model = recorded("tiny-llama-Q8_0");
    let mut random = Random::new(3);
    let choices = Choices { n_gpu_layers: None, kv_offload: true, ..choices(&mut random, &model, 1) };
    let choices = Choices { override_tensor: Vec::new(), flash_attn: true, ..choices };
    let plain = on_virtual(&model, "sim:64MiB", &choices);
    let old = on_virtual(&model, "sim:64MiB,arch=60,multiprocessors=20", &choices);
    let card = on_virtual(&model, "sim:64MiB,arch=89,multiprocessors=128", &choices);
    let [plain, old, card] = [plain, old, card].map(|plan| plan.devices[0].clone());
    assert_eq!(plain.workspace, 0);
    assert!(0 < old.workspace && old.workspace <= card.workspace, "{} {}", old.workspace, card.workspace);
    assert_eq!((plain.weights, plain.kv, plain.compute), (card.weights, card.kv, card.compute));
    assert_eq!(card.total - plain.total, card.workspace);
}

#[test]
fn the_command_counts_workspaces_of_cards_by_name_and_assumes_a_gpu_that_nobody_describes() {
    let plan = |arguments: &[&str]| -> serde_json::Value {
        let mut command = assert_cmd::Command::cargo_bin("loadmaster").unwrap();
        command.env("LOADMASTER_CUDA_DRIVER", "/nonexistent/libcuda.so");
        let common = ["plan", "--no-longest", "--format", "json", "--flash-attn", "on"];
        let output = command.args(common).args(arguments).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    };
    let number = |plan: &serde_json::Value, key: &str| plan["devices"][0][key].as_u64().unwrap();
    let card = plan(&["--device", "rtx4090"]);
    assert_eq!(card["machine"][0]["gpu"]["multiprocessors"], 128);
    assert!(number(&card, "workspace") > 0);
    let parts = ["weights", "kv", "compute", "workspace"].map(|key| number(&card, key));
    assert_eq!(number(&card, "total"), parts.iter().sum::<u64>());
    assert_eq!(number(&card, "free"), (24 << 30) - number(&card, "total"));
    let described = plan(&["--device", "cuda:0:24GiB,arch=89,multiprocessors=128"]);
    assert_eq!(number(&described, "workspace"), number(&card, "workspace"));
    let assumed = plan(&["--device", "cuda:0:24GiB"]);
    assert!(assumed["machine"][0]["gpu"].is_null());
    assert!(number(&assumed, "workspace") >= number(&card, "workspace"));
    assert_eq!(number(&plan(&["--device", "sim:24GiB"]), "workspace"), 0);
}

#[test]
fn recorded_models_take_on_gpus_what_the_plan_says_with_what_kernels_need_and_no_byte_more() {
    let mut random = Random::new(7);
    let mut workspaces = 0;
    for (seed, name) in MODELS.into_iter().enumerate() {
        let config = format!("devices=2,seed={seed},multiprocessors={}", [1, 4, 16, 132][seed % 4]);
        let Some(simulator) = simulated(&config) else { return };
        let model = recorded(name);
        let machine = machine(&mut random, 2);
        let case = Case::new(&model, &machine, choices(&mut random, &model, machine.devices().len() - 1), name);
        workspaces += case.prepared.devices.values().filter(|need| need.workspace > Bytes::ZERO).count();
        case.check(&machine, &simulator, &mut random);
    }
    assert!(workspaces > 5, "{workspaces} devices with kernels that need anything");
}

#[test]
fn random_models_take_on_gpus_what_the_plan_says_with_what_kernels_need_and_no_byte_more() {
    for seed in 0..28 {
        let mut random = Random::new(seed);
        let config = format!(
            "devices=2,seed={seed},multiprocessors={},cublas={}",
            random.pick(&[1, 4, 30, 132]),
            random.pick(&["off", "rule", "16"])
        );
        let Some(simulator) = simulated(&config) else { return };
        let shape = Shape::random(&mut random, Family::ALL[seed as usize % Family::ALL.len()]);
        let model = shape.model(&mut random);
        let machine = machine(&mut random, 2);
        let choices = choices(&mut random, &model, machine.devices().len() - 1);
        let case = Case::new(&model, &machine, choices, &format!("seed {seed}: {shape:?}"));
        case.check(&machine, &simulator, &mut random);
    }
}

#[test]
fn a_byte_less_than_kernels_need_is_refused_with_device_pool_and_bytes_and_nothing_stays_taken() {
    let Some(simulator) = simulated("devices=1") else { return };
    let model = recorded("tiny-llama-Q8_0");
    let specs = ["cuda:0:512MiB".parse().unwrap(), "cuda:0:256MiB".parse().unwrap()];
    let machine = described(Machine::from_specs(&specs).unwrap()).unwrap();
    let mut random = Random::new(1);
    let chosen = Choices {
        n_gpu_layers: None,
        override_tensor: Vec::new(),
        kv_offload: true,
        copies: 1,
        ..choices(&mut random, &model, 2)
    };
    let case = Case::new(&model, &machine, chosen, "one GPU as two devices");
    for id in [0, 1].map(DeviceId::new) {
        let need = &case.prepared.devices[id];
        assert!(need.workspace > Bytes::ZERO && need.compute > Bytes::ZERO, "{need:?}");
        let short = exactly(&machine, &case.prepared, Some(id));
        let name = &short.device(id).name;
        let told = case.prepared.check_capacity(&short).unwrap_err();
        let EngineError::OverCapacity { device, needed, available, workspace, .. } = told else { panic!("{told}") };
        assert_eq!((&device, needed, workspace), (name, need.total(), need.workspace));
        assert_eq!(available, Bytes(need.total().get() - 1));
        // The same without asking first: what is taken last is refused.
        let error = case.load(&short).unwrap_err();
        assert!(error.to_string().contains(&**name), "{error}");
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{error}");
        assert!(case.load(&exactly(&machine, &case.prepared, None)).is_ok());
    }
}

#[test]
fn a_workspace_that_is_refused_names_device_pool_and_bytes_and_leaves_the_session_as_it_was() {
    let Some(simulator) = simulated("devices=1") else { return };
    let model = recorded("tiny-llama-Q8_0");
    let machine = described(Machine::from_specs(&["cuda:0:512MiB".parse().unwrap()]).unwrap()).unwrap();
    let mut random = Random::new(2);
    let case = Case::new(&model, &machine, choices(&mut random, &model, 1), "refused");
    let gpu = DeviceId::new(0);
    let devices = open(&exactly(&machine, &case.prepared, None), NonZeroUsize::MIN).unwrap();
    let runtime = loadmaster_sched::exec::Runtime::new(machine.clone(), devices).unwrap();
    let options = loadmaster_sched::exec::SessionOptions::new(&runtime);
    let mut session = loadmaster_sched::exec::Session::new(Arc::clone(&runtime), options);
    let before = device_bytes(&simulator);
    let room = case.prepared.devices[gpu].total();
    let held = runtime.device(gpu).buffer_type().alloc_buffer(Bytes(room.get() - 100)).unwrap();
    let needed = case.prepared.session.scratch.workspace_of(gpu);
    let needs = SessionNeeds { scratch: case.prepared.session.scratch.clone(), ..SessionNeeds::default() };
    assert!(needs.scratch.iter().any(|(use_, _)| use_ == ScratchUse::Workspace { of: gpu }));
    match session.reserve(&needs).unwrap_err() {
        ExecError::Workspace { device, pool, needed: told, available, .. } => {
            assert_eq!((&*device, &*pool, told, available), ("CUDA0", "CUDA0", needed, Some(Bytes(100))));
        }
        other => panic!("{other}"),
    }
    assert_eq!(device_bytes(&simulator), before + room.get() - 100);
    drop(held);
    session.reserve(&needs).unwrap();
    assert_eq!(device_bytes(&simulator), before + needed.get());
    drop((session, runtime));
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
}
