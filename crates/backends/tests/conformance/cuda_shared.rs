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

/// How often a function of the driver was called.
fn calls(simulator: &Simulator, function: &str) -> u64 {
    simulator.calls().into_iter().find(|(name, _)| name == function).map_or(0, |(_, times)| times)
}

/// A program that takes a row by an index, which stands in a buffer of its own.
fn row_by_index(device: &CudaDevice, buffer: &Arc<dyn Buffer>) -> Arc<dyn Compiled> {
    let mut program = Program::new();
    let slot = program.slot(buffer);
    let operand = |offset, dtype, ne: [u64; 2]| Operand {
        slot,
        offset: Bytes(offset),
        dtype,
        ne: [ne[0], ne[1], 1, 1],
        nb: [4, 4 * ne[0], 4 * ne[0] * ne[1], 4 * ne[0] * ne[1]],
    };
    let rows = operand(0, DType::F32, [8, 3]);
    let (index, result) = (operand(256, DType::I32, [1, 1]), operand(512, DType::F32, [8, 1]));
    program.push(TensorId::new(0), Op::GetRows, Vec::new().into(), vec![Some(rows), Some(index)], result);
    device.compile(program).unwrap()
}

#[test]
fn a_stream_that_is_waited_for_holds_on_to_nothing_of_the_programs_that_are_gone() {
    let Some(simulator) = simulated("seed=3") else { return };
    {
        let device = gpu(0);
        let buffer = device.buffer_type().alloc_buffer(Bytes(1024)).unwrap();
        device.upload(&all(&buffer), &[0; 1024]).unwrap();
        let streams = [device.create_stream().unwrap(), device.create_stream().unwrap()];
        let run = || {
            let program = row_by_index(&device, &buffer);
            for stream in &streams {
                stream.execute(&program, CommandId::new(0)..CommandId::new(1)).unwrap();
                stream.synchronize().unwrap();
            }
        };
        run();
        // Pages of words are the driver's, and count nowhere else.
        let live = simulator.live().lines().count();
        (0..2000).for_each(|_| run());
        // The last program but one may keep the page before the newest.
        let after = simulator.live();
        assert!(after.lines().count() <= live + 1, "{live} things, and then:\n{after}");
        // A program that is gone before it is waited for is still heard.
        let bad = Region { buffer: Arc::clone(&buffer), offset: Bytes(256), len: Bytes(4) };
        device.upload(&bad, &7i32.to_le_bytes()).unwrap();
        let (stream, program) = (&streams[0], row_by_index(&device, &buffer));
        stream.execute(&program, CommandId::new(0)..CommandId::new(1)).unwrap();
        drop(program);
        let error = stream.synchronize().unwrap_err().to_string();
        assert!(error.contains('7') && error.contains('3'), "{error}");
        stream.recover().unwrap();
        stream.synchronize().unwrap();
    }
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
}

#[test]
fn an_upload_fills_one_pinned_piece_while_the_gpu_reads_the_other() {
    let Some(simulator) = simulated("seed=5") else { return };
    {
        let device = gpu(0);
        let bytes: Vec<u8> = (0..(5 << 20) + 7usize).map(|i| (i * 31 % 251) as u8).collect();
        let buffer = device.buffer_type().alloc_buffer(Bytes(bytes.len() as u64)).unwrap();
        let counted = ["cuMemHostAlloc", "cuMemcpyHtoDAsync", "cuEventSynchronize", "cuStreamSynchronize"];
        let now = || counted.map(|name| calls(&simulator, name));
        let before = now();
        device.upload(&all(&buffer), &bytes).unwrap();
        let after = now();
        let made: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        // Two pieces; six copies, of which each but the first two waits for the one before the last alone; one wait at the end.
        assert_eq!(made, [2, 6, 4, 1], "{counted:?}");
        let mut found = vec![0; bytes.len()];
        device.download(&all(&buffer), &mut found).unwrap();
        assert!(found == bytes);
    }
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
}

#[test]
fn a_buffer_is_one_allocation_of_the_driver_and_has_room_within_a_limit_as_soon_as_another_is_gone() {
    let Some(simulator) = simulated("memory=64KiB") else { return };
    {
        let limit = Some(Bytes(48 << 10));
        let device = CudaDevice::open(CudaOptions { limit, ..CudaOptions::new("part", 0) }).unwrap();
        let kind = device.buffer_type();
        let before = ["cuMemAlloc", "cuMemFree"].map(|name| calls(&simulator, name));
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    let mut taken = 0;
                    while taken < 200 {
                        match kind.alloc_buffer(Bytes(48 << 10)) {
                            Ok(_) => taken += 1,
                            Err(why) => assert_eq!(&*why.reason, "more than the device's limit leaves"),
                        }
                    }
                });
            }
        });
        let after = ["cuMemAlloc", "cuMemFree"].map(|name| calls(&simulator, name));
        assert_eq!([after[0] - before[0], after[1] - before[1]], [400, 400]);
    }
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
}
