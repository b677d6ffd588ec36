//! The gap that is told of a chosen placement never excludes the best one: small random models on small random machines,
//! against every placement there is, each planned as it would run.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "support/random_models.rs"]
mod random_models;

use loadmaster::commands::input::PolicyArg;
use loadmaster::engine::Model;
use loadmaster::plan::Choices;
use loadmaster::plan::fit::speeds::Speed;
use loadmaster::plan::fit::{FitError, Judged, Purpose, Request};
use loadmaster_graph::{Bytes, DeviceId};
use loadmaster_sched::Machine;
use loadmaster_sched::machine::{Link, LinkPath};
use random_models::{Family, Random, Shape};
use std::ops::Range;

/// Those of `LOADMASTER_SEEDS`, such as `0..3000`, for a longer search or to see one again.
fn seeds() -> Range<u64> {
    let given = std::env::var("LOADMASTER_SEEDS").ok();
    let range = given.as_deref().and_then(|text| text.split_once("..")).map(|(a, b)| (a.parse(), b.parse()));
    if let Some((Ok(first), Ok(end))) = range { first..end } else { 0..84 }
}

fn random_choices(random: &mut Random, model: &Model) -> Choices {
    let parallel = 1 + random.below(2);
    let flash_attn = random.one_in(2);
    let quantized = flash_attn && model.params.key_length.is_multiple_of(32);
    Choices {
        ctx: parallel * 256 * (1 + random.below(4)),
        batch: random.pick(&[32, 64, 128]),
        ubatch: random.pick(&[1, 8, 31, 32, 64, 128]),
        parallel,
        flash_attn,
        kv_type: random.pick(if quantized { &["f16", "f32", "q8_0"] } else { &["f16", "f32"][..] }).to_owned(),
        copies: 1 + random.below(3),
        n_gpu_layers: None,
        tensor_split: None,
        override_tensor: Vec::new(),
        kv_offload: !random.one_in(4),
    }
}

/// Virtual GPUs and a host of these sizes, some with links of their own, and some whose buffers may be half as long.
fn random_machine(random: &mut Random, sizes: &[u64]) -> Machine {
    let (host, gpus) = sizes.split_last().unwrap();
    let gpu = |&bytes: &u64| match random.below(6) {
        0 => format!("sim:{bytes},chunk={}", bytes / 2),
        _ => format!("sim:{bytes}"),
    };
    let specs: Vec<String> = gpus.iter().map(gpu).chain([format!("cpu:{host}")]).collect();
    let specs: Vec<_> = specs.iter().map(|s| s.parse().unwrap()).collect();
    let mut parts = Machine::from_specs(&specs).unwrap().parts().clone();
    let n = sizes.len();
    for (from, to) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        if random.one_in(2) {
            let [from, to] = [from, to].map(DeviceId::new);
            let bandwidth = Bytes(1 << (25 + random.below(12)));
            let latency_ns = u64::from(random.below(100_000));
            parts.links.push(Link { from, to, path: LinkPath::Pinned, bandwidth, latency_ns });
        }
    }
    Machine::new(parts).unwrap()
}

fn random_speed(random: &mut Random) -> Speed {
    let mut power =
        |least: i32, range: u32| 10f64.powf(f64::from(least) + f64::from(random.below(range * 100)) / 100.0);
    Speed { bandwidth: power(9, 4), operations: power(10, 4) }
}

/// Every way to cut `items` into `devices` ranges.
fn all_ranges(from: usize, items: usize, devices: usize) -> Vec<Vec<Range<usize>>> {
    if devices == 1 {
        return vec![vec![from..items]];
    }
    let rest = |end| all_ranges(end, items, devices - 1).into_iter().map(move |rest| (end, rest));
    (from..=items).flat_map(rest).map(|(end, rest)| std::iter::once(from..end).chain(rest).collect()).collect()
}

/// Every placement whose tensors have buffers that are long enough, with the KV cache where it was chosen or on the host;
/// for memory it stays where it was chosen.
fn all_placements(request: &Request<'_>, base: &Choices, purpose: Purpose) -> Vec<Judged> {
    let items = request.model.params.layers.len() + 1;
    let caches = if base.kv_offload && purpose != Purpose::Memory { vec![true, false] } else { vec![base.kv_offload] };
    let mut all = Vec::new();
    for kv_offload in caches {
        let base = Choices { kv_offload, ..base.clone() };
        for ranges in all_ranges(0, items, request.machine.devices().len()) {
            let may_leave = request.model.params.experts.is_some();
            let free: Vec<usize> = (ranges[0].end..items - 1).filter(|_| may_leave).collect();
            for set in 0..1u32 << free.len() {
                let mut here = vec![true; items];
                free.iter().enumerate().for_each(|(bit, &i)| here[i] = set >> bit & 1 == 0);
                match request.judge(&base, purpose, &ranges, &here) {
                    Ok(judged) => all.push(judged),
                    Err(error) => assert!(error.never_fits().is_some(), "{error}"),
                }
            }
        }
    }
    all
}

#[test]
fn the_gap_of_a_chosen_placement_never_excludes_the_best_one() {
    let placer = PolicyArg::Best.placer();
    let (mut fitted, mut best_found, mut widest) = (0, 0, 0.0f64);
    for seed in seeds() {
        let mut random = Random::new(seed ^ 0x51ed_270b);
        let mut shape = Shape::random(&mut random, Family::ALL[seed as usize % Family::ALL.len()]);
        shape.layers = 1 + shape.layers % 3;
        let model = shape.model(&mut random);
        let base = random_choices(&mut random, &model);
        let gpus = 1 + random.below(2) as usize;
        let purpose = random.pick(&[Purpose::Decode, Purpose::Prefill, Purpose::Memory]);
        let speeds: Vec<Speed> = (0..=gpus).map(|_| random_speed(&mut random)).collect();
        let roomy = random_machine(&mut random, &vec![1 << 30; gpus + 1]);
        let on = |machine| Request { model: &model, machine, speeds: &speeds, placer: &placer, reserve: Bytes::ZERO };
        let all = all_placements(&on(&roomy), &base, purpose);
        // Room around what some placement takes, so that limits bind. What the host holds for copies on their way depends
        // on all cuts: it has room for them here.
        let some = &all[random.below(all.len() as u32) as usize];
        let used = some.prepared.pools(&roomy);
        let mut sizes: Vec<u64> =
            used.values().map(|b| (b.get() * u64::from(94 + random.below(40)) / 100).max(16384)).collect();
        sizes[gpus] += 1 << 20;
        let tight = random_machine(&mut random, &sizes);
        let request = on(&tight);
        let judged = all_placements(&request, &base, purpose);
        let costs = judged.iter().filter(|j| j.short == Bytes::ZERO).map(|j| j.cost);
        let best = costs.fold(f64::INFINITY, f64::min);
        let case = format!("seed {seed}: {shape:?}, {purpose:?}, {base:?}, {sizes:?}, {speeds:?}");
        match request.fit(&base, purpose) {
            Ok(found) => {
                assert_eq!(request.short(&found.prepared), Bytes::ZERO, "{case}");
                let gap = found.gap.unwrap();
                let bound = found.cost * (1.0 - gap);
                let near = 1.0 + 1e-9;
                assert!(bound <= best * near, "{case}: bound {bound}, best {best}, found {}", found.cost);
                fitted += 1;
                best_found += u32::from(found.cost <= best * near);
                widest = widest.max(gap);
            }
            Err(FitError::NoneFits { .. }) => assert_eq!(best, f64::INFINITY, "{case}"),
            Err(error) => panic!("{case}: {error}"),
        }
    }
    println!("{fitted} fit, {best_found} of them at the best cost; widest gap {widest:.3}");
    assert!(fitted > 0 && best_found > 0);
}
