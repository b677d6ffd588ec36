//! The search for the best placement: known cases with their numbers, and brute force on everything small.

#[path = "support/random.rs"]
mod random;

use loadmaster::plan::fit::core::{
    Arena, Goal, Item, Problem, Solution, Span, SpanClass, Stage, WhyEmpty, solve, why_empty,
};
use loadmaster::plan::fit::pipeline::{ExpertCosts, best_depth, makespan, pipelined};
use random::Random;
use std::ops::Range;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn no_arena(_: &Span) -> u64 {
    0
}

/// Items of so many bytes that take as many seconds as they have bytes, on every device.
fn items(bytes: impl IntoIterator<Item = u64>, devices: usize) -> Vec<Item> {
    let item = |bytes: u64| Item { bytes, seconds: vec![bytes as f64; devices], ..Item::default() };
    bytes.into_iter().map(item).collect()
}

fn own_pools(n: usize) -> Vec<Stage> {
    (0..n).map(|pool| Stage { pools: vec![pool] }).collect()
}

fn plain(items: Vec<Item>, pools: Vec<u64>, goal: Goal) -> Problem<'static> {
    let n = pools.len();
    let pools = pools.into_iter().map(Some).collect();
    Problem {
        items,
        stages: own_pools(n),
        pools,
        host: Vec::new(),
        cut: vec![vec![0.0; n]; n],
        experts_may_leave: true,
        arena: &no_arena,
        goal,
        must_use: Vec::new(),
    }
}

#[test]
fn unequal_layers_are_split_by_their_bytes() {
    let bytes: Vec<u64> = (0..80).map(|i| if i < 20 { 900 * MIB } else { 450 * MIB }).collect();
    let total: u64 = bytes.iter().sum();
    let problem = plain(items(bytes, 2), vec![24 * GIB; 2], Goal::Slowest);
    let best = solve(&problem).unwrap();
    let most = *best.used.iter().max().unwrap();
    assert!(most <= total / 2 + 450 * MIB, "{most} of {total}");
    assert_eq!(most, 22_500 * MIB);
}

#[test]
fn experts_fill_both_cards_where_splitting_by_count_overflows_one() {
    let layer = Item {
        bytes: 30 * MIB,
        experts: 933 * MIB,
        seconds: vec![1.0; 3],
        experts_here: vec![1.0; 3],
        experts_away: vec![10.0; 3],
        ..Item::default()
    };
    let mut problem = plain(vec![layer; 48], vec![1 << 50, 16_384 * MIB, 15_360 * MIB], Goal::Sum);
    // The host is the first device, but slow.
    problem.host = vec![0];
    problem.items.iter_mut().for_each(|i| i.seconds[0] = 100.0);
    let best = solve(&problem).unwrap();
    let resident = best.experts_here.iter().filter(|&&here| here).count();
    assert!(best.exact);
    assert!(resident >= 31, "{resident}");
    assert!(best.used[1] <= 16_384 * MIB && best.used[2] <= 15_360 * MIB, "{:?}", best.used);
    // The usual way: the first 27 layers' experts away, 24 layers on each card.
    let by_count = |layers: Range<u64>| layers.map(|l| if l < 27 { 30 } else { 963 }).sum::<u64>();
    assert!(by_count(24..48) > 15_360);
}

#[test]
fn pipelining_is_as_deep_as_it_pays() {
    let (depth, gain) = best_depth(&[1.0, 1.0], 1, 4);
    assert_eq!(depth, 1);
    assert!((gain - 1.0).abs() < 1e-12);
    let (depth, gain) = best_depth(&[1.0, 1.0], 8, 4);
    assert_eq!(depth, 2);
    assert!(gain >= 1.7, "{gain}");
    // What each copy of the mask would cost.
    assert_eq!(131_072u64 * 512 * 2, 128 * MIB);
}

#[test]
fn small_cards_may_stay_empty_and_the_reason_is_told() {
    let arena = |span: &Span| if span.is_empty() { 0 } else { 1_288_490_189 };
    let mut problem = plain(items(vec![429_496_730; 80], 4), vec![24 * GIB, 24 * GIB, 8 * GIB, 8 * GIB], Goal::Sum);
    problem.items.iter_mut().for_each(|i| i.seconds = vec![1.0, 1.0, 1.5, 1.5]);
    problem.cut = vec![vec![0.1; 4]; 4];
    problem.arena = &arena;
    let best = solve(&problem).expect("it fits with the small cards");
    assert!(!best.ranges[0].is_empty() && !best.ranges[1].is_empty());
    assert!(best.ranges[2].is_empty() && best.ranges[3].is_empty(), "{:?}", best.ranges);
    let why = why_empty(&problem, &best, 2);
    assert!(matches!(why, WhyEmpty::Slower(seconds) if seconds > 0.5), "{why:?}");
    // A card that not even the arena fits on.
    problem.pools[2] = Some(GIB);
    assert_eq!(why_empty(&problem, &best, 2), WhyEmpty::NoRoom);
}

#[test]
fn a_pool_in_a_pool_is_counted_once() {
    // Pools: all of the memory, the carve-out for the GPU, what the host may take, what may be pinned.
    let pools = vec![128 * GIB, 96 * GIB, 32 * GIB, 64 * GIB];
    let host = Stage { pools: vec![0, 2] };
    let gpu = Stage { pools: vec![0, 1] };
    let slow_host = |n: usize| {
        let mut all = items(vec![GIB; n], 2);
        all.iter_mut().for_each(|i| i.seconds[0] *= 10.0);
        all
    };
    let mut problem = plain(slow_host(72), pools.clone(), Goal::Sum);
    problem.stages = vec![host.clone(), gpu.clone()];
    problem.cut = vec![vec![0.0; 2]; 2];
    let first = solve(&problem).unwrap();
    assert_eq!(first.used, [72 * GIB, 72 * GIB, 0, 0]);
    let left = pools.iter().zip(&first.used).map(|(p, u)| Some(p - u)).collect();
    let second = Problem { items: slow_host(24), pools: left, ..problem.clone() };
    let second = solve(&second).expect("a second model is admitted");
    assert_eq!(second.used, [24 * GIB, 24 * GIB, 0, 0]);
    // No more than all of it, however the limits of its parts add up.
    assert!(solve(&Problem { items: slow_host(129), ..problem }).is_none());
}

#[test]
fn embedding_and_output_count_so_that_both_small_devices_are_used() {
    const MB: u64 = 1_000_000;
    let bytes = [155 * MB].into_iter().chain([12 * MB; 28]).chain([155 * MB]);
    let best = solve(&plain(items(bytes, 2), vec![1000 * MB; 2], Goal::Slowest)).unwrap();
    assert!(best.ranges.iter().all(|r| !r.is_empty()), "{:?}", best.ranges);
    assert_eq!(best.used, [323 * MB, 323 * MB]);
}

#[test]
fn uploading_experts_is_never_far_from_the_better_side() {
    let profile = |link: f64, device: (f64, f64)| ExpertCosts {
        count: 256,
        used: 8,
        bytes: 12e6,
        operations: 48e6,
        link,
        host: (60e9, 1e12),
        device,
    };
    for costs in [profile(25e9, (1008e9, 165e12)), profile(12e9, (360e9, 25e12))] {
        let from = costs.upload_from(4096);
        assert!(from.is_some_and(|n| n > 1), "{from:?}");
        for batch in 1..=4096 {
            let (host, device) = (costs.on_host(batch), costs.uploaded(batch));
            let taken = if from.is_some_and(|n| batch >= n) { device } else { host };
            assert!(taken <= host.min(device) * 1.02, "{batch}: {taken} of {host} and {device}");
        }
    }
}

/// The best of all cuts and all choices of experts.
fn brute_force(problem: &Problem<'_>) -> Option<f64> {
    let (n, devices) = (problem.items.len(), problem.stages.len());
    let mut best: Option<f64> = None;
    let mut cuts = vec![0usize; devices - 1];
    loop {
        if cuts.is_sorted() {
            for experts in 0..1u32 << n {
                if let Some(cost) = cost_of(problem, &cuts, experts) {
                    best = Some(best.map_or(cost, |b| b.min(cost)));
                }
            }
        }
        let Some(i) = cuts.iter().position(|&c| c < n) else { break };
        cuts[i] += 1;
        cuts[..i].fill(0);
    }
    best
}

fn cost_of(problem: &Problem<'_>, cuts: &[usize], experts: u32) -> Option<f64> {
    let n = problem.items.len();
    let starts: Vec<usize> = std::iter::once(0).chain(cuts.iter().copied()).collect();
    let ends: Vec<usize> = cuts.iter().copied().chain([n]).collect();
    let mut used = vec![0u64; problem.pools.len()];
    let (mut sum, mut slowest, mut before) = (0.0, 0.0f64, None::<usize>);
    let hosted = ends[0] > 0;
    for (device, (&start, &end)) in starts.iter().zip(&ends).enumerate() {
        let away = problem.items[start..end].iter().zip(start..).any(|(it, i)| it.experts > 0 && experts >> i & 1 == 0);
        let mut own = problem.arena.size(&Span { device, start, end, away, hosted });
        if start == end {
            problem.stages[device].pools.iter().for_each(|&p| used[p] += own);
            continue;
        }
        let mut stage = before.map_or(0.0, |b| problem.cut[b][device]);
        before = Some(device);
        for (i, item) in problem.items.iter().enumerate().take(end).skip(start) {
            let here = experts >> i & 1 == 1 || item.experts == 0;
            own += item.bytes + if here { item.experts } else { 0 };
            if !here {
                problem.host.iter().for_each(|&p| used[p] += item.experts);
            }
            stage += item.seconds[device] + if here { item.experts_here[device] } else { item.experts_away[device] };
        }
        problem.stages[device].pools.iter().for_each(|&p| used[p] += own);
        sum += stage;
        slowest = slowest.max(stage);
    }
    let fits = used.iter().zip(&problem.pools).all(|(u, p)| p.is_none_or(|p| *u <= p));
    fits.then_some(problem.goal.cost(sum, slowest))
}

fn random_problem<'a>(random: &mut Random, arena: &'a dyn Arena) -> Problem<'a> {
    let devices = 1 + random.below(3) as usize;
    let layers = 1 + random.below(6);
    let mut times = |most: u64| (0..devices).map(|_| random.below(most) as f64).collect::<Vec<_>>();
    let all: Vec<[Vec<f64>; 4]> = (0..layers).map(|_| [times(20), times(10), times(30), Vec::new()]).collect();
    let item = |[seconds, here, away, _]: [Vec<f64>; 4]| Item {
        bytes: 1 + random.below(10),
        experts: random.below(3) * random.below(8),
        seconds,
        experts_here: here,
        experts_away: away,
        ..Item::default()
    };
    let items = all.into_iter().map(item).collect();
    let shared = devices > 1 && random.below(3) == 0;
    let mut room = || {
        let room = 5 + random.below(45);
        (random.below(8) > 0).then_some(room)
    };
    let pools = (0..=devices).map(|_| room()).collect();
    let stages = (0..devices).map(|d| Stage { pools: if shared { vec![d, devices] } else { vec![d] } }).collect();
    let cut = (0..devices).map(|_| (0..devices).map(|_| random.below(6) as f64).collect()).collect();
    let goal = match random.below(3) {
        0 => Goal::Sum,
        1 => Goal::Slowest,
        _ => Goal::Pipeline { micro_batches: 1 + random.below(6) as u32, depth: 1 + random.below(4) as u32 },
    };
    Problem { experts_may_leave: true, items, stages, pools, host: vec![0], cut, arena, goal, must_use: Vec::new() }
}

/// Arenas that depend on the length of a range up to two, on whether it starts at an odd item, and on its end.
struct Classed;

impl Arena for Classed {
    fn size(&self, span: &Span) -> u64 {
        let len = (span.end - span.start).min(2);
        let odd = if len > 0 { span.start % 2 } else { 0 };
        (span.device * 3 + len * 4 + odd * 5 + span.end) as u64 % 9
    }

    fn class(&self, span: &Span) -> SpanClass {
        SpanClass([(span.end - span.start).min(2) as u64, span.start as u64 % 2, 0, 0, 0])
    }
}

fn beats_brute_force_nowhere(arena: &dyn Arena) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut solved = 0;
    for case in 0..4000 {
        let problem = random_problem(&mut random, arena);
        let found = solve(&problem);
        assert!(found.as_ref().is_none_or(|f| f.exact));
        let cost = found.as_ref().map(|f: &Solution| f.cost(problem.goal));
        assert_eq!(cost, brute_force(&problem), "case {case}: {found:?}\n{:?} {:?}", problem.items, problem.pools);
        solved += usize::from(found.is_some());
    }
    assert!(solved > 1000, "only {solved} of 4000 fit");
}

#[test]
fn no_cut_and_no_choice_of_experts_beats_the_search() {
    let arena = |s: &Span| {
        let mixed = s.device * 3 + s.start * 7 + s.end + if s.away { 4 } else { 0 } + if s.hosted { 2 } else { 0 };
        mixed as u64 % 9
    };
    beats_brute_force_nowhere(&arena);
}

#[test]
fn nor_where_ranges_of_a_class_have_equal_arenas() {
    beats_brute_force_nowhere(&Classed);
}

#[test]
fn a_pipeline_takes_what_its_stages_sum_and_their_slowest_say() {
    let mut random = Random(0x1234_5678_9abc_def1);
    for case in 0..2000 {
        let stages: Vec<f64> = (0..1 + random.below(5)).map(|_| random.below(20) as f64).collect();
        let (micro_batches, depth) = (random.below(9) as u32, 1 + random.below(5) as u32);
        let (sum, slowest) = (stages.iter().sum(), stages.iter().copied().fold(0.0, f64::max));
        let (direct, simulated) =
            (makespan(sum, slowest, micro_batches, depth), pipelined(&stages, micro_batches, depth));
        assert!(
            (direct - simulated).abs() < 1e-9,
            "{case}: {stages:?}, {micro_batches}, {depth}: {direct} {simulated}"
        );
    }
}
