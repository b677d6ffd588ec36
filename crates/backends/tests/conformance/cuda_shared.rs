//! What threads, streams and devices of simulated GPUs share: scratch memory, contexts, peers, memory that is let go.

use loadmaster_alloc::Buffer;
use loadmaster_backends::cuda::simulator::Simulator;
use loadmaster_backends::cuda::{CudaDevice, CudaOptions};
use loadmaster_backends::{CommandId, Compiled, CopyCommand, Device, Operand, PeerAccess, Program, Region};
use loadmaster_graph::{Bytes, DType, Op, TensorId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

/// A simulated machine; none, with the reason printed, where there is none or real GPUs are tested.
fn simulated(config: &str) -> Option<Simulator> {
    if cfg!(feature = "gpu-tests") {
        println!("skipped: this run is for real GPUs");
        return None;
    }
    Simulator::open_with_kernels(config).map_err(|why| println!("skipped: {why}")).ok()
}

fn gpu(ordinal: u32) -> CudaDevice {
    CudaDevice::open(CudaOptions::new(format!("cuda:{ordinal}"), ordinal)).unwrap()
}

fn all(buffer: &Arc<dyn Buffer>) -> Region {
    Region { buffer: Arc::clone(buffer), offset: Bytes::ZERO, len: buffer.size() }
}

/// `times` products of Q8_0 weights with a column, all of the same operands: each rounds the column in scratch memory.
fn products(device: &CudaDevice, times: usize) -> Arc<dyn Compiled> {
    const WEIGHTS: u64 = 34 * 8;
    let buffer = device.buffer_type().alloc_buffer(Bytes(1024)).unwrap();
    device.upload(&all(&buffer), &[0; 1024]).unwrap();
    let mut program = Program::new();
    let slot = program.slot(&buffer);
    let operand = |offset, dtype, ne: [u64; 2], row| Operand {
        slot,
        offset: Bytes(offset),
        dtype,
        ne: [ne[0], ne[1], 1, 1],
        nb: [if dtype == DType::F32 { 4 } else { 34 }, row, row * ne[1], row * ne[1]],
    };
    let weights = operand(0, DType::Q8_0, [32, 8], 34);
    let column = operand(WEIGHTS.next_multiple_of(256), DType::F32, [32, 1], 128);
    let result = operand(768, DType::F32, [8, 1], 32);
    for _ in 0..times {
        program.push(TensorId::new(0), Op::MulMat, Vec::new().into(), vec![Some(weights), Some(column)], result);
    }
    device.compile(program).unwrap()
}

/// Runs a program often enough for it to be noted as a graph.
fn run_noted(device: &CudaDevice, program: &Arc<dyn Compiled>) {
    let stream = device.create_stream().unwrap();
    for _ in 0..3 {
        stream.execute(program, CommandId::new(0)..CommandId::new(program.len())).unwrap();
    }
    stream.synchronize().unwrap();
}

#[test]
fn threads_that_launch_on_one_device_take_turns_with_its_scratch_memory() {
    let Some(simulator) = simulated("seed=1") else { return };
    {
        let device = gpu(0);
        let programs = [products(&device, 1), products(&device, 1)];
        let both = Barrier::new(2);
        std::thread::scope(|threads| {
            for program in &programs {
                threads.spawn(|| {
                    let stream = device.create_stream().unwrap();
                    for _ in 0..1000 {
                        both.wait();
                        stream.execute(program, CommandId::new(0)..CommandId::new(1)).unwrap();
                    }
                });
            }
        });
    }
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
}

#[test]
fn memory_that_one_thread_gives_back_spoils_no_graph_that_another_notes() {
    let Some(simulator) = simulated("seed=2") else { return };
    {
        let device = gpu(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                (0..4).for_each(|_| run_noted(&device, &products(&device, 2000)));
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                drop(device.buffer_type().alloc_buffer(Bytes(64)).unwrap());
            }
        });
    }
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
    let graphs = simulator.calls().into_iter().find(|(name, _)| name == "cuGraphLaunch");
    assert_eq!(graphs.map(|(_, times)| times), Some(4));
}

#[test]
fn pinned_memory_that_only_a_copy_on_the_host_still_holds_is_given_back() {
    let Some(simulator) = simulated("order=lazy") else { return };
    {
        let device = gpu(0);
        let stream = device.create_stream().unwrap();
        for _ in 0..2 {
            let pinned = || all(&device.staging_type().unwrap().alloc_buffer(Bytes(64)).unwrap());
            stream.copy(&CopyCommand { from: pinned(), to: pinned(), tensor: None }).unwrap();
        }
        stream.synchronize().unwrap();
    }
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
}

#[test]
fn a_gpu_that_was_closed_and_opened_again_is_reached_anew() {
    let Some(simulator) = simulated("devices=2") else { return };
    {
        let first = gpu(0);
        for _ in 0..2 {
            let second = gpu(1);
            assert_eq!(first.peer(&second), PeerAccess::Direct);
            assert_eq!(first.peer(&second), PeerAccess::Direct);
        }
    }
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
    let enabled = simulator.calls().into_iter().find(|(name, _)| name == "cuCtxEnablePeerAccess");
    assert_eq!(enabled.map(|(_, times)| times), Some(4), "each way of each pair of contexts once");
}
