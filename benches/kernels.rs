//! Speed of the CPU kernels by weight type and number of threads.
//!
//! `decode`: one activation column, where the memory is the limit (GiB/s of weights). `prefill`: 128 columns, where the
//! arithmetic is (an element is one floating-point operation, so Gelem/s reads as GFLOP/s). `rows`: operations on rows
//! (an element is one number). Pick with `cargo bench --bench kernels -- prefill/q4_K`.

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use loadmaster_backends::cpu::owned::{OwnedTensor, compute_owned};
use loadmaster_backends::cpu::{ComputeCtx, Workers, quant};
use loadmaster_graph::{DType, Op};
use std::num::NonZeroUsize;
use std::time::Duration;

const K: u64 = 2048;
const ROWS: u64 = 8192;
const COLUMNS: u64 = 128;

const TYPES: [DType; 15] = [
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Iq4Nl,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::Iq4Xs,
];

/// Numbers between −1 and 1 that do not repeat soon.
fn values(n: u64) -> impl Iterator<Item = f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 23) as f32 - 1.0)
}

fn tensor(dtype: DType, ne: [u64; 4]) -> OwnedTensor {
    let row = dtype.row_size(ne[0]).expect("whole blocks").get() as usize;
    let mut bytes = vec![0; row * (ne[1] * ne[2] * ne[3]) as usize];
    let floats: Vec<f32> = values(ne[0] * 8).collect();
    for (i, out) in bytes.chunks_exact_mut(row).enumerate() {
        let start = i % 8 * ne[0] as usize;
        assert!(quant::quantize_row(dtype, &floats[start..start + ne[0] as usize], out));
    }
    OwnedTensor::from_bytes(dtype, ne, &bytes).expect("sizes agree")
}

fn contexts() -> [(usize, ComputeCtx); 2] {
    [1, 2].map(|threads| {
        let count = NonZeroUsize::new(threads).expect("not zero");
        (threads, ComputeCtx::new(Workers::new(count).expect("threads start")))
    })
}

fn group<'c>(c: &'c mut Criterion, name: &str) -> BenchmarkGroup<'c, WallTime> {
    let mut group = c.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1)).sample_size(20);
    group
}

fn products(c: &mut Criterion) {
    for (name, columns) in [("decode", 1), ("prefill", COLUMNS)] {
        let mut group = group(c, name);
        for dtype in TYPES {
            let w = tensor(dtype, [K, ROWS, 1, 1]);
            let x = tensor(DType::F32, [K, columns, 1, 1]);
            let mut out = OwnedTensor::zeros(DType::F32, [ROWS, columns, 1, 1]).expect("sizes agree");
            group.throughput(if columns == 1 {
                Throughput::Bytes(dtype.row_size(K).expect("whole blocks").get() * ROWS)
            } else {
                Throughput::Elements(2 * K * ROWS * columns)
            });
            for (threads, ctx) in contexts() {
                group.bench_function(format!("{dtype}/{threads}"), |b| {
                    b.iter(|| compute_owned(&ctx, Op::MulMat, &[], &[Some(&w), Some(&x)], &mut out).expect("computes"));
                });
            }
        }
        group.finish();
    }
}

fn attention(c: &mut Criterion) {
    let mut group = group(c, "attention");
    for (queries, keys) in [(1u64, 4096u64), (128, 512)] {
        let q = tensor(DType::F32, [128, queries, 32, 1]);
        let kv = tensor(DType::F16, [128, keys, 8, 1]);
        let mut out = OwnedTensor::zeros(DType::F32, [128, 32, queries, 1]).expect("sizes agree");
        group.throughput(Throughput::Elements(4 * 128 * queries * keys * 32));
        for (threads, ctx) in contexts() {
            group.bench_function(format!("{queries}x{keys}/{threads}"), |b| {
                let (src, scale) = ([Some(&q), Some(&kv), Some(&kv)], [0.088f32.to_bits()]);
                b.iter(|| compute_owned(&ctx, Op::FlashAttnExt, &scale, &src, &mut out).expect("computes"));
            });
        }
    }
    group.finish();
}

/// Operation, parameters, sources.
type Case<'a> = (Op, &'a [u32], &'a [Option<&'a OwnedTensor>]);

fn rows(c: &mut Criterion) {
    let mut group = group(c, "rows");
    let ne = [4096, 64, 1, 1];
    let x = tensor(DType::F32, ne);
    let mut out = OwnedTensor::zeros(DType::F32, ne).expect("sizes agree");
    let (eps, scale) = ([1e-5f32.to_bits()], [0.5f32.to_bits()]);
    let cases: [Case<'_>; 5] = [
        (Op::RmsNorm, &eps, &[Some(&x)]),
        (Op::SoftMax, &scale, &[Some(&x)]),
        (Op::Swiglu, &[], &[Some(&x), Some(&x)]),
        (Op::Add, &[], &[Some(&x), Some(&x)]),
        (Op::Gelu, &[], &[Some(&x)]),
    ];
    group.throughput(Throughput::Elements(ne[0] * ne[1]));
    for (threads, ctx) in contexts() {
        for (op, params, src) in cases {
            group.bench_function(format!("{op}/{threads}"), |b| {
                b.iter(|| compute_owned(&ctx, op, params, src, &mut out).expect("computes"));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, products, attention, rows);
criterion_main!(benches);
