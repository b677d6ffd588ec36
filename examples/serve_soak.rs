//! The service for a minute: `cargo run --release --example serve_soak [SECONDS] [LOADS]`.
//!
//! 32 clients on loopback; every answer must equal the one that a single client got for the same seed, and memory must
//! stay flat. Then models are loaded, unloaded and asked for beyond capacity, 1,000 times: after each the ledger must
//! equal what the devices count, to the byte.

use loadmaster::serve::{Config, End, LoadSpec, ServiceState, serve};
use loadmaster_backends::DeviceKind;
use loadmaster_graph::Bytes;
use loadmaster_sched::{DeviceSpec, Machine};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: usize = 32;
const QUESTIONS: usize = 24;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let seconds = args.next().transpose()?.unwrap_or(60);
    let loads = args.next().transpose()?.unwrap_or(1000);
    clients(Duration::from_secs(seconds))?;
    come_and_go(loads)
}

fn service(devices: &[&str]) -> anyhow::Result<Arc<ServiceState>> {
    let specs = devices.iter().map(|d| d.parse()).collect::<Result<Vec<DeviceSpec>, _>>()?;
    let machine = Machine::from_specs(&specs)?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let devices = loadmaster_sched::exec::open(&machine, threads)?;
    Ok(ServiceState::new(Config { slots: 8, context: 128, ..Config::default() }, machine, devices)?)
}

fn question(i: usize) -> String {
    const BEGINNINGS: [&str; 6] =
        ["Alice was", "The Queen of Hearts", "Down, down, down.", "The Hatter", "`Who are YOU?' said the", "A"];
    let (beginning, seed, tokens) = (BEGINNINGS[i % BEGINNINGS.len()], i, 4 + i * 5 % 37);
    format!(r#"{{"prompt":"{beginning}","seed":{seed},"max_tokens":{tokens},"temperature":0.8,"logprobs":0}}"#)
}

/// The answer's choices: what must be equal.
fn ask(address: SocketAddr, body: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let length = body.len();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| anyhow::anyhow!("no answer"))?;
    anyhow::ensure!(head.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(serde_json::from_str::<serde_json::Value>(body)?["choices"].to_string())
}

/// Bytes of this process, where the system tells.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn clients(time: Duration) -> anyhow::Result<()> {
    let state = service(&["sim:256MiB", "sim:256MiB"])?;
    state.load(&LoadSpec::embedded("alice")).map_err(|e| anyhow::anyhow!(e.message))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = runtime.spawn(serve(Arc::clone(&state), listener, async {
        // Stopped, or given up by whoever could.
        let _ = stopped.await;
    }));
    let questions: Vec<String> = (0..QUESTIONS).map(question).collect();
    let alone = questions.iter().map(|q| ask(address, q)).collect::<anyhow::Result<Vec<_>>>()?;
    let (start, answered) = (Instant::now(), AtomicU64::new(0));
    let held = |from: &ServiceState| from.core.devices.values().map(|d| d.stats().live_bytes.get()).sum::<u64>();
    let mut early = None;
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let client = |c: usize| {
            let (questions, alone, answered) = (&questions, &alone, &answered);
            move || -> anyhow::Result<()> {
                for i in (c..).step_by(7) {
                    if start.elapsed() > time {
                        break;
                    }
                    let at = i % QUESTIONS;
                    anyhow::ensure!(
                        ask(address, &questions[at])? == alone[at],
                        "client {c} got another answer to {at}"
                    );
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        };
        let threads: Vec<_> = (0..CLIENTS).map(|c| scope.spawn(client(c))).collect();
        while start.elapsed() < time / 4 {
            std::thread::sleep(Duration::from_millis(20));
        }
        early = Some((resident(), held(&state)));
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked"))))
    })?;
    let (before, devices) = early.unwrap_or_default();
    let (after, devices_after) = (resident(), held(&state));
    let (answers, tokens) = (answered.load(Ordering::Relaxed), state.core.stats.tokens());
    println!(
        "{answers} answers to {CLIENTS} clients in {} s, all equal to the single client's; {tokens} tokens",
        time.as_secs()
    );
    println!(
        "process: {} after a quarter, {} at the end; devices: {} and {}",
        Bytes(before),
        Bytes(after),
        Bytes(devices),
        Bytes(devices_after)
    );
    anyhow::ensure!(devices == devices_after, "the devices' memory grew");
    anyhow::ensure!(after < before + (32 << 20), "the process grew");
    drop(stop);
    runtime.block_on(served)??;
    Ok(())
}

fn come_and_go(loads: u64) -> anyhow::Result<()> {
    let state = service(&["sim:9MiB", "sim:7MiB", "cpu:2MiB"])?;
    let (mut loaded, mut refused) = (0u64, 0u64);
    for round in 0..loads {
        let mut spec = LoadSpec::embedded(format!("m{}", round % 5));
        spec.settings.parallel = Some(1 + (round % 4) as u32);
        spec.settings.ubatch = Some(32);
        spec.evict = Some(round % 11 == 0);
        if round % 3 == 2 {
            // It may be gone already.
            let _ = state.unload(&format!("m{}", round % 7 % 5), End::Drained);
        } else if state.load(&spec).is_ok() {
            loaded += 1;
        } else {
            refused += 1;
        }
        check(&state)?;
    }
    state.end(End::Now);
    check(&state)?;
    println!("{loads} times: {loaded} loaded, {refused} refused, the ledger equal to the devices each time");
    Ok(())
}

fn check(state: &ServiceState) -> anyhow::Result<()> {
    let ledger = state.core.ledger.lock().clone();
    for (id, device) in state.core.devices.iter().filter(|(_, d)| d.kind() != DeviceKind::Cpu) {
        let entered: Bytes = ledger.holdings().values().map(|h| h.needs[id].total()).sum();
        let memory = device.memory();
        let held = memory.total.unwrap_or_default().saturating_sub(memory.free.unwrap_or_default());
        anyhow::ensure!(held == entered, "{}: the ledger says {entered}, the device {held}", device.name());
    }
    Ok(())
}
