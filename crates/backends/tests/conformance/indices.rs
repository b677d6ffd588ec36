//! Indices that name no row are the same error on every device, and the device goes on.

use crate::runner::devices;
use loadmaster_backends::{Call, CommandId, Compiled, Device, DeviceError, Fault, Operand, Program, Region};
use loadmaster_graph::{Bytes, DType, Op, TensorId, contiguous_strides};
use std::sync::Arc;

/// A node whose operand `ids` holds indices into 3 rows or experts.
struct Node {
    op: Op,
    /// Type and extents of the sources, then of the result.
    operands: Vec<(DType, [u64; 4])>,
    ids: usize,
}

fn nodes() -> Vec<Node> {
    let (f32, f16, q8, i32, i64) = (DType::F32, DType::F16, DType::Q8_0, DType::I32, DType::I64);
    let two = [2, 1, 1, 1];
    // As many tokens as are grouped by expert.
    let tokens = 12;
    let rows = |n| [32, n, 1, 1];
    let node = |op, ids, operands: Vec<(DType, [u64; 4])>| Node { op, operands, ids };
    vec![
        node(Op::GetRows, 1, vec![(f32, rows(3)), (i32, two), (f32, rows(2))]),
        node(Op::GetRows, 1, vec![(q8, rows(3)), (i32, two), (f32, rows(2))]),
        node(Op::SetRows, 1, vec![(f32, rows(2)), (i64, two), (f16, rows(3))]),
        node(Op::AddId, 2, vec![(f32, rows(2)), (f32, rows(3)), (i32, two), (f32, rows(2))]),
        node(Op::MulMatId, 2, vec![(f16, [32, 5, 3, 1]), (f32, rows(1)), (i32, two), (f32, [5, 2, 1, 1])]),
        node(Op::MulMatId, 2, vec![(q8, [32, 5, 3, 1]), (f32, rows(2)), (i32, two), (f32, [5, 2, 1, 1])]),
        node(
            Op::MulMatId,
            2,
            vec![(q8, [32, 5, 3, 1]), (f32, [32, 1, tokens, 1]), (i32, [2, tokens, 1, 1]), (f32, [5, 2, tokens, 1])],
        ),
    ]
}

/// A program of a harmless node and `node` behind it, and where its indices are.
fn compile(device: &dyn Device, node: &Node) -> (Arc<dyn Compiled>, Region) {
    let mut offsets = vec![0];
    for (dtype, ne) in &node.operands {
        let bytes = contiguous_strides(*dtype, ne).unwrap()[3] * ne[3];
        offsets.push((offsets.last().unwrap() + bytes).next_multiple_of(256));
    }
    let buffer = device.buffer_type().alloc_buffer(Bytes(*offsets.last().unwrap())).unwrap();
    let all = Region { buffer: Arc::clone(&buffer), offset: Bytes::ZERO, len: buffer.size() };
    device.upload(&all, &vec![0; buffer.size().get() as usize]).unwrap();
    let mut program = Program::new();
    let slot = program.slot(&buffer);
    let mut operands: Vec<Operand> = node
        .operands
        .iter()
        .zip(&offsets)
        .map(|(&(dtype, ne), &offset)| {
            let nb = contiguous_strides(dtype, &ne).unwrap();
            Operand { slot, offset: Bytes(offset), dtype, ne, nb }
        })
        .collect();
    let dst = operands.pop().unwrap();
    // As many as make a graph of the driver worth its while.
    for _ in 0..4 {
        program.push(TensorId::new(6), Op::Scale, vec![1.0f32.to_bits(), 0].into(), vec![Some(dst)], dst);
    }
    let mut sources: Vec<_> = operands.into_iter().map(Some).collect();
    if node.op == Op::SetRows {
        program = Program::new();
        program.slot(&buffer);
        sources.push(Some(dst));
    }
    program.push(TensorId::new(7), node.op, Vec::new().into(), sources, dst);
    let (dtype, ne) = node.operands[node.ids];
    let len = contiguous_strides(dtype, &ne).unwrap()[3] * ne[3];
    (device.compile(program).unwrap(), Region { buffer, offset: Bytes(offsets[node.ids]), len: Bytes(len) })
}

/// Runs with indices that end with the second of `ids`; all others are the first.
fn run(device: &dyn Device, node: &Node, times: usize, ids: [i64; 2]) -> Result<(), DeviceError> {
    let (program, region) = compile(device, node);
    let is_wide = node.operands[node.ids].0 == DType::I64;
    let count = region.len.get() as usize / if is_wide { 8 } else { 4 };
    let bytes = |id: i64| if is_wide { id.to_le_bytes().to_vec() } else { (id as i32).to_le_bytes().to_vec() };
    let stream = device.create_stream().unwrap();
    let all = CommandId::new(0)..CommandId::new(program.len());
    let try_run = |[others, last]: [i64; 2]| {
        let all_ids: Vec<u8> = (1..=count).flat_map(|i| bytes(if i < count { others } else { last })).collect();
        device.upload(&region, &all_ids).unwrap();
        (0..times).for_each(|_| drop(stream.execute(&program, all.clone())));
        stream.synchronize()
    };
    try_run([0, 2])?;
    let outcome = try_run(ids);
    // The stream is usable again, and what was wrong is forgotten.
    stream.recover().unwrap();
    try_run([1, 0]).unwrap();
    outcome
}

fn check(device: &dyn Device) {
    for node in nodes() {
        for bad in [-1, 3, i64::from(i32::MAX), i64::from(i32::MIN)] {
            let error = run(device, &node, 1, [1, bad]).unwrap_err();
            let place = format!("{} {}: {error}", device.name(), node.op);
            assert_eq!((&*error.device, error.call), (device.name(), Call::Execute), "{place}");
            assert_eq!(error.tensor, Some(TensorId::new(7)), "{place}");
            let Fault::Kernel { op, why } = &error.fault else { panic!("{place}") };
            assert_eq!(*op, node.op, "{place}");
            assert_eq!(*why, format!("{op}: index {bad} in src{} is not in 0..3", node.ids), "{place}");
        }
    }
}

#[test]
fn an_index_that_names_no_row_is_the_same_error_on_hosts_and_virtual_gpus() {
    devices().iter().for_each(|device| check(device.0.as_ref()));
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{check, nodes, run};
    use loadmaster_backends::Fault;
    use loadmaster_backends::cuda::simulator::Simulator;
    use loadmaster_backends::cuda::{CudaDevice, CudaOptions};

    #[test]
    fn an_index_that_names_no_row_is_the_same_error_on_cuda_devices() {
        if cfg!(feature = "gpu-tests") {
            return check(&CudaDevice::open(CudaOptions::new("cuda:0", 0)).unwrap());
        }
        for order in ["lazy", "adversarial"] {
            let simulator = match Simulator::open_with_kernels(&format!("order={order},audit=writes")) {
                Ok(simulator) => simulator,
                Err(why) => return println!("skipped: {why}"),
            };
            {
                let device = CudaDevice::open(CudaOptions::new("cuda:0", 0)).unwrap();
                check(&device);
                // Also where the program has become a graph of the driver.
                for node in nodes() {
                    let error = run(&device, &node, 6, [7, 0]).unwrap_err();
                    assert!(matches!(error.fault, Fault::Kernel { .. }), "{error}");
                }
            }
            assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
        }
    }
}
