//! Products whose results are known, by which cuBLAS is tested on a GPU before it is trusted.
//!
//! Small whole numbers, so that every type and every order of summation gives the same; each type by each call.

use super::context::Context;
use super::cublas::NoCublas;
use super::handles::{DeviceMemory, RawStream};
use super::launch::types::{Base, Factor, Matrix, Place, Product};
use super::products::{Blas, ReadyProduct};
use crate::error::Fault;
use half::{bf16, f16};
use std::sync::Arc;

/// Extents of the products. None is a multiple of another, so that no exchange of two goes unseen.
const ROWS: usize = 24;
const COLUMNS: usize = 40;
const DEPTH: usize = 56;
/// Matrices at most.
const MOST: usize = 2;
/// Bytes of the workspace, more than the library asks for; then weights, activations, results at multiples of this.
const WORKSPACE: usize = 64 << 10;
const SPAN: usize = 32 << 10;

const _: () = assert!(MOST * DEPTH * COLUMNS * 4 <= SPAN && MOST * ROWS * COLUMNS * 4 <= SPAN);

/// Element `i` of column `j` of matrix `b`: from -4 to 4.
fn value(b: usize, j: usize, i: usize, seed: usize) -> f32 {
    ((i * 3 + j * 7 + b * 5 + i * j + seed) % 9) as f32 - 4.0
}

fn columns(factor: Factor, count: usize, columns: usize, seed: usize) -> Vec<u8> {
    let values = (0..count).flat_map(|b| (0..columns).flat_map(move |j| (0..DEPTH).map(move |i| value(b, j, i, seed))));
    match factor {
        Factor::F32 => values.flat_map(f32::to_ne_bytes).collect(),
        Factor::F16 => values.flat_map(|v| f16::from_f32(v).to_ne_bytes()).collect(),
        Factor::Bf16 => values.flat_map(|v| bf16::from_f32(v).to_ne_bytes()).collect(),
    }
}

fn expected(count: usize) -> Vec<f32> {
    let element = |b, c, r| (0..DEPTH).map(|i| value(b, r, i, 0) * value(b, c, i, 1)).sum::<f32>();
    (0..count).flat_map(|b| (0..COLUMNS).flat_map(move |c| (0..ROWS).map(move |r| element(b, c, r)))).collect()
}

/// Tests a handle on its GPU, in memory that is given back. Errors: it fails, or what it computes is wrong.
pub(crate) fn test(context: &Arc<Context>, arch: u32, blas: &Blas) -> Result<(), NoCublas> {
    let not_started = |fault: Fault| NoCublas::NotStarted { why: fault.to_string() };
    let memory = DeviceMemory::new(context, (WORKSPACE + 3 * SPAN) as u64);
    let memory = memory.map_err(|code| not_started(context.fault(code)))?;
    let stream = RawStream::new(context).map_err(not_started)?;
    let factors = [Factor::F32, Factor::F16, Factor::Bf16];
    for factor in factors.into_iter().filter(|f| *f != Factor::Bf16 || arch >= 80) {
        for count in [1, MOST] {
            let found = multiply(context, blas, &stream, &memory, factor, count).map_err(not_started)?;
            let wrong = expected(count).iter().zip(&found).position(|(expected, found)| expected != found);
            if let Some(at) = wrong {
                let (expected, found) = (expected(count)[at], found[at]);
                let why = format!("element {at} of {count} products of {factor:?} is {found}, not {expected}");
                return Err(NoCublas::Wrong { why });
            }
        }
    }
    Ok(())
}

fn multiply(
    context: &Arc<Context>,
    blas: &Blas,
    stream: &RawStream,
    memory: &DeviceMemory,
    factor: Factor,
    count: usize,
) -> Result<Vec<f32>, Fault> {
    let first = memory.address();
    let at = |part: usize| first + (WORKSPACE + part * SPAN) as u64;
    for (to, bytes) in [(at(0), columns(factor, count, ROWS, 0)), (at(1), columns(factor, count, COLUMNS, 1))] {
        // SAFETY: the bytes fit their part of the memory, and have been read when the call returns: they are pageable.
        context.call(|d| unsafe { d.copy_to_device(to, bytes.as_ptr().cast(), bytes.len(), stream.raw()) })?;
    }
    let ready = ReadyProduct { product: product(factor, count), weights: at(0), x: at(1), dst: at(2) };
    blas.enter(stream, first, WORKSPACE as u64)?.multiply(&ready)?;
    let mut found = vec![0.0f32; count * ROWS * COLUMNS];
    let (to, bytes) = (found.as_mut_ptr().cast(), size_of_val(found.as_slice()));
    // SAFETY: as many bytes are there and here, and have been written when the call returns: they are pageable.
    let copied = context.call(|d| unsafe { d.copy_to_host(to, at(2), bytes, stream.raw()) });
    // Nothing may still write to what is given back.
    stream.synchronize().and(copied)?;
    Ok(found)
}

fn product(factor: Factor, count: usize) -> Product {
    let matrix = |length: usize, columns: usize| Matrix {
        place: Place { base: Base::Absent, offset: 0 },
        leading: length as i32,
        stride: (length * columns) as i64,
    };
    Product {
        factor,
        rows: ROWS as i32,
        columns: COLUMNS as i32,
        depth: DEPTH as i32,
        count: count as i32,
        weights: matrix(DEPTH, ROWS),
        x: matrix(DEPTH, COLUMNS),
        dst: matrix(ROWS, COLUMNS),
    }
}
