//! Streams, events, memory, faults and simulated time of `cpu` and `sim`, with kernels of two lines.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail tests")]

use loadmaster_alloc::{Buffer, InPlaceTable};
use loadmaster_backends::cpu::{KernelError, NodeArgs};
use loadmaster_backends::sim::POISON;
use loadmaster_backends::{
    Arithmetic, Call, CommandId, Compiled, CopyCommand, CpuDevice, CpuOptions, Device, DeviceError, Event, Fault,
    HostBuffer, Kernels, LinkModel, OpShape, Operand, PeerAccess, Peers, Program, Region, SimClock, SimDevice,
    SimOptions, SimTime, Staging, TimeModel, Unsupported,
};
use loadmaster_graph::{Bytes, DType, Op, Tensor, TensorId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// SQR: x². SCALE: x + 1. SQRT: an error. LOG: a panic.
#[derive(Debug)]
struct Tiny;

impl Kernels for Tiny {
    fn supports(&self, op: &OpShape<'_>) -> Result<(), Unsupported> {
        if op.op() == Op::Sqr { Ok(()) } else { Err(Unsupported { why: "only squares".into() }) }
    }
    fn in_place(&self) -> InPlaceTable {
        InPlaceTable::ggml()
    }
    unsafe fn run<'a>(&self, next: &mut dyn FnMut() -> Option<NodeArgs<'a>>) -> Result<(), KernelError> {
        while let Some(node) = next() {
            let Some(src) = node.src[0] else { panic!("no source") };
            match node.op {
                Op::Sqrt => {
                    return Err(KernelError::Shape { op: node.op, rule: "never", dst: node.dst.ne, src: vec![] });
                }
                Op::Log => panic!("as told"),
                _ => {}
            }
            for i in 0..src.ne[0] as usize {
                // SAFETY: both are contiguous rows of F32 with the same length.
                unsafe {
                    let x = src.data.cast::<f32>().add(i).read_unaligned();
                    let y = if node.op == Op::Sqr { x * x } else { x + 1.0 };
                    node.dst.data.cast::<f32>().add(i).write_unaligned(y);
                }
            }
        }
        Ok(())
    }
}

fn sim(name: &str) -> SimDevice {
    sim_with(SimOptions::new(name, Bytes::mib(1)))
}

fn sim_with(options: SimOptions) -> SimDevice {
    SimDevice::new(options, Arc::new(Tiny)).unwrap()
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuOptions::default(), Arc::new(Tiny)).unwrap()
}

fn row(n: u64) -> Tensor {
    Tensor::leaf("x", DType::F32, [n, 1, 1, 1]).unwrap()
}

fn region(buffer: &Arc<dyn Buffer>, offset: u64, len: u64) -> Region {
    Region { buffer: Arc::clone(buffer), offset: Bytes(offset), len: Bytes(len) }
}

fn all(buffer: &Arc<dyn Buffer>) -> Region {
    region(buffer, 0, buffer.size().get())
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn floats(device: &dyn Device, from: &Region) -> Vec<f32> {
    let mut bytes = vec![0; from.len.get() as usize];
    device.download(from, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// One command per op, each over the first `n` floats of `buffer`, in place.
fn program(device: &dyn Device, buffer: &Arc<dyn Buffer>, n: u64, ops: &[Op]) -> Arc<dyn Compiled> {
    let mut program = Program::new();
    let slot = program.slot(buffer);
    let operand = Operand::of(&row(n), slot, Bytes::ZERO);
    for (i, &op) in ops.iter().enumerate() {
        program.push(TensorId::new(i), op, Default::default(), [Some(operand)], operand);
    }
    device.compile(program).unwrap()
}

fn whole(program: &Arc<dyn Compiled>) -> Range<CommandId> {
    CommandId::new(0)..CommandId::new(program.len())
}

fn copy(from: Region, to: Region) -> CopyCommand {
    CopyCommand { from, to, tensor: Some(TensorId::new(7)) }
}

/// Both kinds of device behind the same questions.
fn devices() -> Vec<Arc<dyn Device>> {
    vec![Arc::new(cpu()), Arc::new(sim("sim0"))]
}

#[test]
fn commands_of_a_stream_run_in_order() {
    for device in devices() {
        let buffer = device.buffer_type().alloc_buffer(Bytes(8)).unwrap();
        device.upload(&all(&buffer), &bytes_of(&[1.0, 2.0])).unwrap();
        let program = program(device.as_ref(), &buffer, 2, &[Op::Scale, Op::Sqr, Op::Scale]);
        let stream = device.create_stream().unwrap();
        stream.execute(&program, whole(&program)).unwrap();
        stream.execute(&program, CommandId::new(1)..CommandId::new(2)).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(floats(device.as_ref(), &all(&buffer)), [25.0, 100.0]);
        assert_eq!(device.stats().kernels, 4);
    }
}

#[test]
fn a_range_outside_a_program_is_refused() {
    let device = sim("sim0");
    let buffer = device.buffer_type().alloc_buffer(Bytes(4)).unwrap();
    let program = program(&device, &buffer, 1, &[Op::Sqr]);
    let stream = device.create_stream().unwrap();
    let error = stream.execute(&program, CommandId::new(0)..CommandId::new(2)).unwrap_err();
    assert!(matches!(error.fault, Fault::OutOfRange { .. }), "{error}");
    let other = sim("sim1").create_stream().unwrap();
    let error = other.execute(&program, whole(&program)).unwrap_err();
    assert!(matches!(error.fault, Fault::Foreign { .. }), "{error}");
}

#[test]
fn a_wait_holds_a_stream_until_the_event_of_another_is_reached() {
    let (a, b) = (sim("sim0"), sim("sim1"));
    let x = a.buffer_type().alloc_buffer(Bytes(4)).unwrap();
    let y = b.buffer_type().alloc_buffer(Bytes(4)).unwrap();
    a.upload(&all(&x), &bytes_of(&[3.0])).unwrap();
    let (run_a, run_b) = (program(&a, &x, 1, &[Op::Sqr]), program(&b, &y, 1, &[Op::Scale]));
    let (stream_a, stream_b) = (a.create_stream().unwrap(), b.create_stream().unwrap());
    let (computed, copied) = (b.create_event().unwrap(), a.create_event().unwrap());

    a.faults().stall();
    stream_a.execute(&run_a, whole(&run_a)).unwrap();
    stream_a.copy(&copy(all(&x), all(&y))).unwrap();
    stream_a.record(&copied).unwrap();
    stream_b.wait(&copied).unwrap();
    stream_b.execute(&run_b, whole(&run_b)).unwrap();
    stream_b.record(&copied).unwrap_err();
    stream_b.record(&computed).unwrap();
    assert!(!computed.query().unwrap() && !copied.query().unwrap());
    a.faults().release();
    computed.synchronize().unwrap();
    assert_eq!(floats(&b, &all(&y)), [10.0]);
    assert_eq!(a.stats().peer.copies, 1);
    assert_eq!(b.stats().waits, 1);
}

#[test]
fn a_wait_means_the_record_that_was_latest_when_it_was_put_in() {
    let (a, b) = (sim("sim0"), sim("sim1"));
    let (stream_a, stream_b) = (a.create_stream().unwrap(), b.create_stream().unwrap());
    let (event, done) = (a.create_event().unwrap(), b.create_event().unwrap());
    stream_b.wait(&event).unwrap();
    stream_b.synchronize().unwrap();
    stream_a.record(&event).unwrap();
    stream_a.synchronize().unwrap();
    stream_b.wait(&event).unwrap();
    a.faults().stall();
    stream_a.record(&event).unwrap();
    stream_b.record(&done).unwrap();
    done.synchronize().unwrap();
    assert!(!event.query().unwrap());
    a.faults().release();
    event.synchronize().unwrap();
}

#[test]
fn the_memory_of_a_virtual_gpu_is_poison_until_it_is_written() {
    let device = sim("sim0");
    let buffer = device.buffer_type().alloc_buffer(Bytes(8)).unwrap();
    let mut bytes = [0; 8];
    device.download(&all(&buffer), &mut bytes).unwrap();
    assert_eq!(bytes, [POISON; 8]);
    assert!(f32::from_le_bytes([POISON; 4]).is_nan());
}

#[test]
fn memory_is_limited_and_counted() {
    let mut options = SimOptions::new("sim0", Bytes(1000));
    options.max_buffer = Some(Bytes(800));
    let device = sim_with(options);
    let memory = device.buffer_type();
    let first = memory.alloc_buffer(Bytes(600)).unwrap();
    let refused = memory.alloc_buffer(Bytes(401)).unwrap_err();
    assert_eq!(refused.available, Some(Bytes(400)));
    assert_eq!(memory.alloc_buffer(Bytes(801)).unwrap_err().reason, "larger than the largest buffer");
    let second = memory.alloc_buffer(Bytes(400)).unwrap();
    assert_eq!(device.memory().free, Some(Bytes::ZERO));
    drop((first, second));
    let stats = device.stats();
    assert_eq!((stats.live_buffers, stats.live_bytes), (0, Bytes::ZERO));
    assert_eq!((stats.peak_bytes, stats.allocations), (Bytes(1000), 2));
    assert_eq!(device.memory().free, Some(Bytes(1000)));
}

#[test]
fn programs_with_operands_outside_their_buffers_or_in_foreign_memory_are_refused() {
    let (a, b, host) = (sim("sim0"), sim("sim1"), cpu());
    let small = a.buffer_type().alloc_buffer(Bytes(8)).unwrap();
    let compile = |device: &dyn Device, buffer: &Arc<dyn Buffer>, n, offset| {
        let mut program = Program::new();
        let slot = program.slot(buffer);
        let operand = Operand::of(&row(n), slot, Bytes(offset));
        program.push(TensorId::new(5), Op::Sqr, Default::default(), [Some(operand)], operand);
        device.compile(program).map(|_| ())
    };
    assert_eq!(compile(&a, &small, 2, 0), Ok(()));
    let error = compile(&a, &small, 2, 4).unwrap_err();
    assert_eq!(error.to_string(), "sim0: compile of t5: bytes 4..12 of a buffer of 8 B");
    let error = compile(&a, &small, 1, 2).unwrap_err();
    assert!(matches!(error.fault, Fault::Misaligned { align: 4, .. }), "{error}");
    for device in [&b as &dyn Device, &host] {
        let error = compile(device, &small, 2, 0).unwrap_err();
        assert!(matches!(error.fault, Fault::WrongMemory { .. }), "{error}");
    }
    // Bytes in the middle of a vector, at an address that is a multiple of four.
    let (bytes, first) = aligned_bytes();
    let shared = |start: usize| -> Arc<dyn Buffer> {
        Arc::new(HostBuffer::shared(Arc::new(Part(bytes.clone(), start..start + 8))))
    };
    let error = compile(&host, &shared(first), 2, 0).unwrap_err();
    assert!(matches!(error.fault, Fault::ReadOnly { .. }), "{error}");
    let error = compile(&host, &shared(first + 1), 2, 0).unwrap_err();
    assert!(matches!(error.fault, Fault::Misaligned { align: 4, .. }), "{error}");
}

/// Some bytes of shared bytes.
struct Part(Arc<Vec<u8>>, Range<usize>);

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

fn aligned_bytes() -> (Arc<Vec<u8>>, usize) {
    let bytes = Arc::new(vec![0; 16]);
    let first = bytes.as_ptr().align_offset(4);
    (bytes, first)
}

#[test]
fn a_result_over_a_source_is_refused_unless_the_kernels_allow_it_exactly_there() {
    let device = sim("sim0");
    let buffer = device.buffer_type().alloc_buffer(Bytes(64)).unwrap();
    let compile = |op, sources: &[u64], at: u64| {
        let mut program = Program::new();
        let slot = program.slot(&buffer);
        let operand = |offset: u64| Operand::of(&row(4), slot, Bytes(offset));
        let sources: Vec<_> = sources.iter().map(|&s| Some(operand(s))).collect();
        program.push(TensorId::new(0), op, Default::default(), sources, operand(at));
        device.compile(program).map(|_| ()).map_err(|e| e.fault)
    };
    assert_eq!(compile(Op::Sqr, &[0], 0), Ok(()));
    assert_eq!(compile(Op::Sqr, &[0], 16), Ok(()));
    assert_eq!(compile(Op::Sqr, &[0], 8), Err(Fault::Overlap { op: Op::Sqr, operand: 0 }));
    assert_eq!(compile(Op::MulMat, &[16, 0], 0), Err(Fault::Overlap { op: Op::MulMat, operand: 1 }));
    assert_eq!(compile(Op::Cpy, &[16, 0], 0), Ok(()));
    assert_eq!(compile(Op::Cpy, &[0, 0], 0), Err(Fault::Overlap { op: Op::Cpy, operand: 0 }));
    assert_eq!(compile(Op::SetRows, &[16, 32, 0], 0), Ok(()));
}

#[test]
fn copies_that_do_not_fit_or_cannot_reach_are_refused_at_once() {
    let mut alone = SimOptions::new("sim1", Bytes::mib(1));
    alone.peers = Peers::None;
    let (a, b, host) = (sim("sim0"), sim_with(alone), cpu());
    let [x, y, z] = [&a as &dyn Device, &b, &host].map(|d| d.buffer_type().alloc_buffer(Bytes(8)).unwrap());
    assert_eq!(a.peer(&b), PeerAccess::Direct);
    assert!(matches!(b.peer(&a), PeerAccess::None { .. }));
    let (of_a, of_b, of_cpu) = (a.create_stream().unwrap(), b.create_stream().unwrap(), host.create_stream().unwrap());
    let error = of_a.copy(&copy(all(&x), region(&z, 0, 4))).unwrap_err();
    assert!(matches!(error.fault, Fault::LengthMismatch { .. }), "{error}");
    assert_eq!(error.tensor, Some(TensorId::new(7)));
    let error = of_a.copy(&copy(all(&x), region(&z, 1, 8))).unwrap_err();
    assert!(matches!(error.fault, Fault::OutOfRange { .. }), "{error}");
    for error in [
        of_b.copy(&copy(all(&y), all(&x))).unwrap_err(),
        of_cpu.copy(&copy(all(&z), all(&x))).unwrap_err(),
        of_b.copy(&copy(all(&x), all(&z))).unwrap_err(),
    ] {
        assert!(matches!(error.fault, Fault::WrongMemory { .. }), "{error}");
    }
    assert!(a.upload(&region(&y, 0, 4), &[0; 4]).is_err());
    assert!(a.download(&region(&x, 6, 4), &mut [0; 4]).is_err());
}

#[test]
fn host_memory_of_any_origin_is_copied_from_and_computed_on_in_place() {
    let (device, host) = (sim("sim0"), cpu());
    let pinned = device.staging_type().unwrap().alloc_buffer(Bytes(4)).unwrap();
    let own = host.buffer_type().alloc_buffer(Bytes(4)).unwrap();
    let mapped: Arc<dyn Buffer> = Arc::new(HostBuffer::shared(Arc::new(bytes_of(&[2.0]))));
    let far = device.buffer_type().alloc_buffer(Bytes(4)).unwrap();
    assert!([&pinned, &own, &mapped].iter().all(|b| host.can_use(b.as_ref()) && !device.can_use(b.as_ref())));
    assert!(device.can_use(far.as_ref()) && !host.can_use(far.as_ref()));
    let stream = device.create_stream().unwrap();
    stream.copy(&copy(all(&mapped), all(&far))).unwrap();
    stream.copy(&copy(all(&far), all(&pinned))).unwrap();
    stream.synchronize().unwrap();
    let on_pinned = program(&host, &pinned, 1, &[Op::Sqr]);
    let of_cpu = host.create_stream().unwrap();
    of_cpu.execute(&on_pinned, whole(&on_pinned)).unwrap();
    of_cpu.copy(&copy(all(&pinned), all(&own))).unwrap();
    of_cpu.synchronize().unwrap();
    assert_eq!(floats(&host, &all(&own)), [4.0]);
    let mut bytes = [0; 4];
    own.as_any().downcast_ref::<HostBuffer>().unwrap().read(Bytes::ZERO, &mut bytes).unwrap();
    assert_eq!(bytes, 4.0_f32.to_le_bytes());
    let stats = device.stats();
    assert_eq!((stats.to_device.copies, stats.to_host.copies, stats.to_host.bytes), (1, 1, Bytes(4)));
    assert!(mapped.as_any().downcast_ref::<HostBuffer>().unwrap().write(Bytes::ZERO, &[0]).is_err());
}

#[test]
fn a_kernel_that_fails_or_panics_stops_its_stream_until_it_recovers() {
    for device in devices() {
        let buffer = device.buffer_type().alloc_buffer(Bytes(4)).unwrap();
        device.upload(&all(&buffer), &bytes_of(&[1.0])).unwrap();
        let stream = device.create_stream().unwrap();
        for (bad, words) in [(Op::Sqrt, "SQRT failed: "), (Op::Log, "LOG failed: it panicked: as told")] {
            let program = program(device.as_ref(), &buffer, 1, &[Op::Scale, bad, Op::Scale]);
            let event = device.create_event().unwrap();
            stream.execute(&program, whole(&program)).unwrap();
            stream.record(&event).unwrap();
            let error = stream.synchronize().unwrap_err();
            assert_eq!((error.call, error.tensor), (Call::Execute, Some(TensorId::new(1))));
            assert!(error.fault.to_string().starts_with(words), "{error}");
            let through = event.synchronize().unwrap_err();
            assert_eq!(through.root(), &error);
            stream.recover().unwrap();
            stream.record(&event).unwrap();
            event.synchronize().unwrap();
        }
        assert_eq!(floats(device.as_ref(), &all(&buffer)), [3.0]);
    }
}

#[test]
fn a_failure_reaches_whoever_waits_and_what_follows_there_is_skipped() {
    let (a, b) = (sim("sim0"), sim("sim1"));
    let x = a.buffer_type().alloc_buffer(Bytes(4)).unwrap();
    let y = b.buffer_type().alloc_buffer(Bytes(4)).unwrap();
    b.upload(&all(&y), &bytes_of(&[5.0])).unwrap();
    let (bad, good) = (program(&a, &x, 1, &[Op::Sqrt]), program(&b, &y, 1, &[Op::Scale]));
    let (of_a, of_b) = (a.create_stream().unwrap(), b.create_stream().unwrap());
    let event = a.create_event().unwrap();
    of_a.execute(&bad, whole(&bad)).unwrap();
    of_a.record(&event).unwrap();
    of_b.wait(&event).unwrap();
    of_b.execute(&good, whole(&good)).unwrap();
    let error = of_b.synchronize().unwrap_err();
    assert_eq!(error.root().device.as_ref(), "sim0");
    assert_eq!(floats(&b, &all(&y)), [5.0]);
    of_b.recover().unwrap();
    of_b.execute(&good, whole(&good)).unwrap();
    of_b.synchronize().unwrap();
    assert_eq!(floats(&b, &all(&y)), [6.0]);
}

#[test]
fn each_fault_happens_once_at_its_time() {
    let device = sim("sim0");
    let memory = device.buffer_type();
    device.faults().allocations.arm(2);
    let buffer = memory.alloc_buffer(Bytes(4)).unwrap();
    assert!(memory.alloc_buffer(Bytes(4)).is_err());
    assert!(memory.alloc_buffer(Bytes(4)).is_ok());
    device.faults().creations.arm(1);
    assert!(device.create_event().is_err());
    let stream = device.create_stream().unwrap();
    let program = program(&device, &buffer, 1, &[Op::Scale, Op::Scale]);
    device.upload(&all(&buffer), &bytes_of(&[0.0])).unwrap();
    device.faults().kernels.arm(2);
    stream.execute(&program, whole(&program)).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.tensor, Some(TensorId::new(1)));
    stream.recover().unwrap();
    device.faults().copies.arm(1);
    assert!(device.download(&all(&buffer), &mut [0; 4]).is_err());
    assert_eq!(floats(&device, &all(&buffer)), [1.0]);
}

#[test]
fn a_broken_peer_path_delivers_other_bytes_without_a_word() {
    let (a, b) = (sim("sim0"), sim("sim1"));
    let x = a.buffer_type().alloc_buffer(Bytes(4)).unwrap();
    let y = b.buffer_type().alloc_buffer(Bytes(4)).unwrap();
    a.upload(&all(&x), &[1, 2, 3, 4]).unwrap();
    a.faults().corrupt_peer_copies();
    let stream = a.create_stream().unwrap();
    let mut bytes = [0; 4];
    for (heal, same) in [(false, false), (true, true)] {
        if heal {
            a.faults().heal_peer_copies();
        }
        stream.copy(&copy(all(&x), all(&y))).unwrap();
        stream.synchronize().unwrap();
        b.download(&all(&y), &mut bytes).unwrap();
        assert_eq!(bytes == [1, 2, 3, 4], same);
    }
}

#[test]
fn a_device_that_dies_answers_everything_and_leaves_nobody_waiting() {
    let (a, b) = (sim("sim0"), sim("sim1"));
    let x = a.buffer_type().alloc_buffer(Bytes(4)).unwrap();
    let program = program(&a, &x, 1, &[Op::Scale, Op::Scale]);
    let (of_a, of_b) = (a.create_stream().unwrap(), b.create_stream().unwrap());
    let event = a.create_event().unwrap();
    a.faults().stall();
    of_a.execute(&program, whole(&program)).unwrap();
    of_a.record(&event).unwrap();
    of_b.wait(&event).unwrap();
    a.faults().die();
    assert!(of_b.synchronize().unwrap_err().root().is_lost());
    of_b.recover().unwrap();
    let lost: [DeviceError; 5] = [
        of_a.synchronize().unwrap_err(),
        of_a.recover().unwrap_err(),
        a.create_event().unwrap_err(),
        a.health().unwrap_err(),
        a.download(&all(&x), &mut [0; 4]).unwrap_err(),
    ];
    assert!(lost.iter().all(DeviceError::is_lost), "{lost:?}");
    assert!(a.buffer_type().alloc_buffer(Bytes(4)).is_err());
    drop((x, program));
    assert_eq!(a.stats().live_buffers, 0);
}

#[test]
fn a_stalled_stream_that_is_dropped_ends_and_fails_its_events() {
    let device = sim("sim0");
    let stream = device.create_stream().unwrap();
    let event: Arc<dyn Event> = device.create_event().unwrap();
    device.faults().stall();
    stream.record(&event).unwrap();
    drop(stream);
    assert!(matches!(event.synchronize().unwrap_err().root().fault, Fault::Closed));
}

#[test]
fn a_stream_that_waits_for_a_stalled_one_can_be_dropped_first() {
    let (a, b) = (sim("sim0"), sim("sim1"));
    let (of_a, of_b) = (a.create_stream().unwrap(), b.create_stream().unwrap());
    let (event, behind) = (a.create_event().unwrap(), b.create_event().unwrap());
    a.faults().stall();
    of_a.record(&event).unwrap();
    of_b.wait(&event).unwrap();
    of_b.record(&behind).unwrap();
    drop(of_b);
    assert!(matches!(behind.synchronize().unwrap_err().root().fault, Fault::Closed));
    a.faults().release();
    event.synchronize().unwrap();
}

#[test]
fn host_calls_run_in_their_turn_and_their_panics_are_errors() {
    let device = cpu();
    let stream = device.create_stream().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    for i in 0..3 {
        let sender = sender.clone();
        stream.call(Box::new(move || sender.send(i).unwrap())).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
    stream.call(Box::new(|| panic!("as told"))).unwrap();
    assert!(stream.synchronize().unwrap_err().to_string().contains("as told"));
}

/// Two GPUs of 1 GFLOP/s with a link of 1 GB/s and 1 µs.
fn timed() -> (Arc<SimClock>, [SimDevice; 2]) {
    let us = SimTime::from_seconds(1e-6);
    let clock = SimClock::new(BTreeMap::new(), LinkModel { bandwidth: 1e9, latency: us });
    let devices = ["sim0", "sim1"].map(|name| {
        let mut options = SimOptions::new(name, Bytes::gib(100));
        options.arithmetic = Arithmetic::TimeOnly;
        options.time = Some((Arc::clone(&clock), TimeModel { flops: 1e9, bandwidth: 1e12, launch: us }));
        sim_with(options)
    });
    (clock, devices)
}

#[test]
fn simulated_time_follows_from_streams_events_and_links() {
    let (clock, [a, b]) = timed();
    let x = a.buffer_type().alloc_buffer(Bytes::gib(40)).unwrap();
    let y = b.buffer_type().alloc_buffer(Bytes::gib(40)).unwrap();
    let (run_a, run_b) = (program(&a, &x, 9000, &[Op::Sqr]), program(&b, &y, 9000, &[Op::Sqr]));
    let (of_a, of_b) = (a.create_stream().unwrap(), b.create_stream().unwrap());
    let (sent, done) = (a.create_event().unwrap(), b.create_event().unwrap());
    let microseconds = |t: SimTime| t.0 / 1_000_000;
    // 9 + 1 µs of arithmetic, 4 + 1 µs of copying, 10 µs on the other device; next to it 10 µs that nobody waits for.
    of_a.execute(&run_a, whole(&run_a)).unwrap();
    of_a.copy(&copy(region(&x, 0, 4000), region(&y, 0, 4000))).unwrap();
    of_a.record(&sent).unwrap();
    of_a.execute(&run_a, whole(&run_a)).unwrap();
    of_b.wait(&sent).unwrap();
    of_b.execute(&run_b, whole(&run_b)).unwrap();
    of_b.record(&done).unwrap();
    assert_eq!(microseconds(clock.latest()), 25);
    assert_eq!(microseconds(clock.host()), 0);
    sent.synchronize().unwrap();
    assert_eq!(microseconds(clock.host()), 15);
    done.synchronize().unwrap();
    assert_eq!(microseconds(clock.host()), 25);
    clock.host_works(SimTime::from_seconds(5e-6));
    of_b.execute(&run_b, whole(&run_b)).unwrap();
    of_b.synchronize().unwrap();
    assert_eq!(microseconds(clock.host()), 40);
    a.upload(&region(&x, 0, 2000), &[0; 2000]).unwrap();
    assert_eq!(microseconds(clock.host()), 43);
}

#[test]
fn a_device_without_pinned_memory_says_so() {
    let mut options = SimOptions::new("sim0", Bytes::mib(1));
    options.staging = Staging::Pageable;
    assert!(sim_with(options).staging_type().is_none());
    assert!(sim("sim1").staging_type().is_some_and(|t| t.is_host()));
}

#[test]
fn quantized_rows_are_padded_as_the_device_needs() {
    let device = sim("sim0");
    let size = |n| {
        let tensor = Tensor::leaf("w", DType::Q8_0, [n, 3, 1, 1]).unwrap();
        device.buffer_type().alloc_size(TensorId::new(0), &tensor)
    };
    assert_eq!(size(512), Bytes(3 * 16 * 34));
    assert_eq!(size(576), Bytes(3 * 18 * 34 + 14 * 34));
}
