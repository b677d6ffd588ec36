//! The chosen placement of real models against every placement there is, each planned as it would run.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "support/random.rs"]
mod random;

use loadmaster::commands::input::PolicyArg;
use loadmaster::engine::Model;
use loadmaster::plan::Choices;
use loadmaster::plan::fit::costs::Costs;
use loadmaster::plan::fit::speeds::{ASSUMED_GPU, ASSUMED_HOST, Speed};
use loadmaster::plan::fit::{FitError, Judged, Purpose, Request};
use loadmaster_graph::Bytes;
use loadmaster_sched::Machine;
use random::Random;
use std::ops::Range;
use std::path::Path;

fn model(name: &str) -> Model {
    Model::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/goldens/models/{name}.gguf"))).unwrap()
}

fn machine(gpus: &[u64], host: Option<u64>) -> Machine {
    let gpus = gpus.iter().map(|bytes| format!("sim:{bytes}").parse().unwrap());
    let host = host.map(|bytes| format!("cpu:{bytes}").parse().unwrap());
    let specs: Vec<_> = gpus.chain(host).collect();
    Machine::from_specs(&specs).unwrap()
}

fn choices() -> Choices {
    Choices { batch: 128, ubatch: 32, ..Choices::of_context(256) }
}

/// Every way to cut `items` into `devices` ranges.
fn all_ranges(items: usize, devices: usize) -> Vec<Vec<Range<usize>>> {
    fn extend(from: usize, items: usize, left: usize) -> Vec<Vec<Range<usize>>> {
        if left == 1 {
            return vec![vec![from..items]];
        }
        let ends = from..=items;
        let rests = ends.flat_map(|end| extend(end, items, left - 1).into_iter().map(move |rest| (end, rest)));
        rests.map(|(end, rest)| std::iter::once(from..end).chain(rest).collect()).collect()
    }
    extend(0, items, devices)
}

/// Every placement of a model on a machine of this many devices: judged once, because bytes and times do not depend on
/// how much memory there is.
fn all_placements(request: &Request<'_>, purpose: Purpose, base: &Choices) -> Vec<(Judged, bool)> {
    let items = request.model.params.layers.len() + 1;
    let devices = request.machine.devices().len();
    let has_experts = request.model.params.experts.is_some();
    let mut all = Vec::new();
    for kv_offload in [true, false] {
        let base = Choices { kv_offload, ..base.clone() };
        for ranges in all_ranges(items, devices) {
            // Experts of layers on GPUs may be away; the output has none.
            let free: Vec<usize> = (ranges[0].end..items - 1).filter(|_| has_experts).collect();
            for set in 0..1u32 << free.len() {
                let mut here = vec![true; items];
                free.iter().enumerate().for_each(|(bit, &i)| here[i] = set >> bit & 1 == 0);
                let judged = request.judge(&base, purpose, &ranges, &here).unwrap();
                let layers: Vec<_> =
                    judged.prepared.layers.layers.iter().chain([&judged.prepared.layers.output]).collect();
                let row = row(request.machine);
                let wanted: Vec<_> = ranges.iter().zip(&row).flat_map(|(r, d)| r.clone().map(move |_| d)).collect();
                assert_eq!(layers, wanted, "{ranges:?} by {:?}", judged.choices);
                all.push((judged, kv_offload));
            }
        }
    }
    all
}

/// Devices in the order of ranges: the host first.
fn row(machine: &Machine) -> Vec<loadmaster_graph::DeviceId> {
    let host = machine.fallback();
    std::iter::once(host).chain(machine.devices().ids().filter(|&d| d != host)).collect()
}

/// Bytes by device.
fn totals(machine: &Machine, judged: &Judged) -> Vec<u64> {
    machine.devices().ids().map(|d| judged.prepared.devices[d].total().get()).collect()
}

fn check(name: &str, gpus: usize, rounds: usize, seed: u64) {
    let (model, placer) = (model(name), PolicyArg::Best.placer());
    let roomy = machine(&vec![1 << 30; gpus], Some(1 << 30));
    let slower = Speed { bandwidth: ASSUMED_GPU.bandwidth / 2.0, operations: ASSUMED_GPU.operations / 2.0 };
    let speeds: Vec<Speed> = [ASSUMED_GPU, slower][..gpus].iter().copied().chain([ASSUMED_HOST]).collect();
    let mut random = Random(seed);
    fn on<'a>(base: &Request<'a>, machine: &'a Machine) -> Request<'a> {
        Request { machine, ..base.clone() }
    }
    let on_roomy = Request { model: &model, machine: &roomy, speeds: &speeds, placer: &placer, reserve: Bytes::ZERO };
    for purpose in [Purpose::Decode, Purpose::Prefill, Purpose::Memory] {
        let all = all_placements(&on_roomy, purpose, &choices());
        floors_hold(&on_roomy, &all);
        let mut fitted = 0;
        for round in 0..rounds {
            // Room around what some placement takes, so that limits bind.
            let (some, _) = &all[random.below(all.len() as u64) as usize];
            let size = |bytes: u64| (bytes * (96 + random.below(30)) / 100).max(4096);
            let mut sizes: Vec<u64> = totals(&roomy, some).into_iter().map(size).collect();
            // What the host holds for copies on their way depends on all cuts: it has room for them here.
            sizes[gpus] += 1 << 20;
            let tight = machine(&sizes[..gpus], Some(sizes[gpus]));
            let fits = |j: &Judged| {
                let used = j.prepared.pools(&tight);
                tight.pools().values().zip(used.values()).all(|(p, used)| p.capacity.is_none_or(|c| *used <= c))
            };
            let may = |kv: bool| kv || purpose != Purpose::Memory;
            // Shares of memory, which are what memory is judged by, depend on the sizes.
            let costs = all.iter().filter(|(j, kv)| fits(j) && may(*kv)).map(|(j, _)| j);
            let best = costs.map(|j| cost_on(&on(&on_roomy, &tight), purpose, j)).fold(f64::INFINITY, f64::min);
            let case = format!("{name}, {gpus} GPUs, {purpose:?}, round {round}, {sizes:?}");
            match on(&on_roomy, &tight).fit(&choices(), purpose) {
                Ok(found) => {
                    fitted += 1;
                    assert!((found.cost - best).abs() <= best * 1e-9, "{case}: {} is not {best}", found.cost);
                    let bound = found.gap.map(|gap| found.cost * (1.0 - gap));
                    assert!(bound.is_some_and(|b| b <= best * (1.0 + 1e-9)), "{case}: bound {bound:?}, best {best}");
                }
                Err(FitError::NoneFits { .. }) => assert_eq!(best, f64::INFINITY, "{case}"),
                Err(error) => panic!("{case}: {error}"),
            }
        }
        assert!(fitted * 4 >= rounds, "only {fitted} of {rounds} fit");
    }
}

fn cost_on(request: &Request<'_>, purpose: Purpose, judged: &Judged) -> f64 {
    if purpose != Purpose::Memory {
        return judged.cost;
    }
    let items = request.model.params.layers.len() + 1;
    let devices: Vec<_> = judged.prepared.layers.layers.iter().chain([&judged.prepared.layers.output]).collect();
    let mut start = 0;
    let ranges: Vec<Range<usize>> = row(request.machine)
        .into_iter()
        .map(|d| {
            let from = start;
            start += devices[from..].iter().take_while(|&&&at| at == d).count();
            from..start
        })
        .collect();
    let pattern = judged.choices.override_tensor.first().and_then(|o| regex::Regex::new(o.rsplit_once('=')?.0).ok());
    let here = |i: usize| pattern.as_ref().is_none_or(|p| !p.is_match(&format!("blk.{i}.ffn_up_exps.weight")));
    let here: Vec<bool> = (0..items).map(here).collect();
    request.judge(&judged.choices, purpose, &ranges, &here).unwrap().cost
}

/// No arena is below what the search takes for the least that it can be.
fn floors_hold(request: &Request<'_>, all: &[(Judged, bool)]) {
    for (judged, kv_offload) in all {
        let plain = Choices { kv_offload: *kv_offload, ..choices() };
        let costs = Costs::new(request, &plain).unwrap();
        let layers = judged.prepared.layers.layers.iter().chain([&judged.prepared.layers.output]);
        for (part, &device) in costs.parts.iter().zip(layers).filter(|(_, d)| **d != request.machine.fallback()) {
            let arena = judged.prepared.devices[device].compute.get();
            assert!(part.floor <= arena, "{} of {arena} on {device}", part.floor);
            assert!(part.floor > 0);
        }
    }
}

#[test]
fn no_placement_of_a_dense_model_on_two_gpus_and_the_host_beats_the_chosen_one() {
    check("tiny-llama-Q4_K_M", 2, 12, 0x9e37_79b9_7f4a_7c15);
}

#[test]
fn no_placement_with_experts_here_or_there_beats_the_chosen_one() {
    check("tiny-qwen3moe-Q4_K_M", 1, 12, 0x2545_f491_4f6c_dd1d);
}

#[test]
fn no_placement_of_layers_that_differ_beats_the_chosen_one() {
    check("tiny-gemma3-Q8_0", 2, 6, 0x0123_4567_89ab_cdef);
}
