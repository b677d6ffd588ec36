//! What computes a node: the kernels alone, or a device with its memory, streams and copies.

use crate::tensor::Host;
use loadmaster_backends::cpu::owned::{OwnedTensor, compute_owned};
use loadmaster_backends::cpu::{ComputeCtx, Isa, Workers};
use loadmaster_backends::{CommandId, CpuDevice, CpuOptions, Device, Operand, Program, Region, SimDevice, SimOptions};
use loadmaster_graph::{Bytes, Op, TensorId};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Computes a node on tensors given by the host and leaves the result in `dst`.
pub trait Runner {
    fn name(&self) -> String;
    fn run(&self, op: Op, params: &[u32], src: &[Option<Host>], dst: &mut Host) -> Result<(), String>;
}

/// The kernels, called directly.
pub struct Direct(pub ComputeCtx, pub String);

pub fn direct(isa: Isa, threads: usize) -> Direct {
    let workers = Workers::new(NonZeroUsize::new(threads).unwrap()).unwrap();
    Direct(ComputeCtx::with_isa(workers, isa).unwrap(), format!("{isa:?} x{threads}"))
}

fn owned(t: &Host) -> OwnedTensor {
    let len = t.bytes.len() as u64;
    let bytes = OwnedTensor::from_bytes(loadmaster_graph::DType::I8, [len, 1, 1, 1], &t.bytes).unwrap();
    bytes.reinterpret(t.dtype, Bytes(t.offset as u64), t.ne, t.nb).unwrap()
}

impl Runner for Direct {
    fn name(&self) -> String {
        self.1.clone()
    }
    fn run(&self, op: Op, params: &[u32], src: &[Option<Host>], dst: &mut Host) -> Result<(), String> {
        let src: Vec<Option<OwnedTensor>> = src.iter().map(|s| s.as_ref().map(owned)).collect();
        let src: Vec<Option<&OwnedTensor>> = src.iter().map(Option::as_ref).collect();
        let mut out = owned(dst);
        compute_owned(&self.0, op, params, &src, &mut out).map_err(|e| e.to_string())?;
        let len = dst.bytes.len();
        dst.bytes.copy_from_slice(&out.memory()[..len]);
        Ok(())
    }
}

/// A device: all tensors in one buffer of its memory.
pub struct OnDevice(pub Arc<dyn Device>);

pub fn devices() -> Vec<OnDevice> {
    let kernels = || Arc::new(ComputeCtx::new(Workers::new(NonZeroUsize::new(2).unwrap()).unwrap()));
    vec![
        OnDevice(Arc::new(CpuDevice::new(CpuOptions::default(), kernels()).unwrap())),
        OnDevice(Arc::new(SimDevice::new(SimOptions::new("sim0", Bytes::mib(64)), kernels()).unwrap())),
    ]
}

impl Runner for OnDevice {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }
    fn run(&self, op: Op, params: &[u32], src: &[Option<Host>], dst: &mut Host) -> Result<(), String> {
        let mut end = 0u64;
        let mut take = |t: &Host| {
            let start = end.next_multiple_of(256);
            end = start + t.bytes.len() as u64;
            start
        };
        let starts: Vec<Option<u64>> = src.iter().map(|s| s.as_ref().map(&mut take)).collect();
        let dst_start = take(dst);
        let buffer = self.0.buffer_type().alloc_buffer(Bytes(end.max(1))).map_err(|e| e.to_string())?;
        let region =
            |start: u64, len: usize| Region { buffer: buffer.clone(), offset: Bytes(start), len: Bytes(len as u64) };
        let mut program = Program::new();
        let slot = program.slot(&buffer);
        let operand = |t: &Host, start: u64| Operand {
            slot,
            offset: Bytes(start + t.offset as u64),
            dtype: t.dtype,
            ne: t.ne,
            nb: t.nb,
        };
        for (t, start) in src.iter().zip(&starts).filter_map(|(t, s)| t.as_ref().zip(*s)) {
            self.0.upload(&region(start, t.bytes.len()), &t.bytes).map_err(|e| e.to_string())?;
        }
        self.0.upload(&region(dst_start, dst.bytes.len()), &dst.bytes).map_err(|e| e.to_string())?;
        let sources: Vec<_> =
            src.iter().zip(&starts).map(|(t, s)| t.as_ref().zip(*s).map(|(t, s)| operand(t, s))).collect();
        program.push(TensorId::new(0), op, params.into(), sources, operand(dst, dst_start));
        let compiled = self.0.compile(program).map_err(|e| e.to_string())?;
        let stream = self.0.create_stream().map_err(|e| e.to_string())?;
        stream.execute(&compiled, CommandId::new(0)..CommandId::new(1)).map_err(|e| e.to_string())?;
        stream.synchronize().map_err(|e| e.to_string())?;
        self.0.download(&region(dst_start, dst.bytes.len()), &mut dst.bytes).map_err(|e| e.to_string())
    }
}
