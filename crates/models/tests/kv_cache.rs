//! Cells of the KV cache, and the inputs that follow from them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use loadmaster_graph::{DType, Tensor};
use loadmaster_models::families::{
    self, Attention, BatchShape, CacheRequest, GraphSpec, Homes, InputKind, KvLayout, SlidingCells,
};
use loadmaster_models::gguf::Gguf;
use loadmaster_models::hparams::HParams;
use loadmaster_models::inputs::{Filled, InputError, InputFiller};
use loadmaster_models::kv::{
    Batch, BatchError, BatchToken, CacheKind, CellId, KvError, KvState, MicroBatch, Pos, SequenceId, SequenceSet,
    Sharing, Slots, StreamCopy, StreamId, outside_window,
};
use loadmaster_models::tokenizer::TokenId;
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::golden_model;

const ALL: std::ops::Range<Pos> = Pos(0)..Pos(u32::MAX);

fn seq(index: usize) -> SequenceId {
    SequenceId::new(index)
}

fn tokens(count: usize) -> Vec<TokenId> {
    (0..count).map(|i| TokenId::new(i % 100)).collect()
}

fn layout(cells: u32, sliding_cells: u32, streams: u32) -> KvLayout {
    KvLayout { cells, sliding_cells, streams, key_type: DType::F16, value_type: DType::F16 }
}

/// Prepares and applies a batch; returns its parts.
fn feed(state: &mut KvState, batch: &Batch, micro_batch: u32) -> Result<Vec<(MicroBatch, Slots)>, KvError> {
    let parts = state.prepare(batch, micro_batch)?;
    for (part, slots) in &parts {
        state.apply(part, slots);
    }
    Ok(parts)
}

fn append(state: &mut KvState, sequence: SequenceId, count: usize) -> Result<Vec<(MicroBatch, Slots)>, KvError> {
    let batch = Batch::of_sequence(sequence, state.next(sequence), &tokens(count));
    feed(state, &batch, 512)
}

#[test]
fn cells_fill_up_in_order_and_graphs_see_them_in_steps_of_256() {
    let mut state = KvState::new(&layout(1024, 0, 1), 1, None);
    let parts = append(&mut state, seq(0), 250).expect("room");
    let cells = &parts[0].1.full.streams[0].1;
    assert!(cells.iter().enumerate().all(|(i, c)| c.index() == i));
    let cache = state.cache(CacheKind::Full);
    assert_eq!(cache.visible(&parts[0].1.full), 256);
    let parts = append(&mut state, seq(0), 10).expect("room");
    assert_eq!(state.cache(CacheKind::Full).visible(&parts[0].1.full), 512);
    assert_eq!(state.next(seq(0)), Pos(260));
}

#[test]
fn a_small_cache_is_seen_as_a_whole() {
    let mut state = KvState::new(&layout(100, 0, 1), 1, None);
    let parts = append(&mut state, seq(0), 3).expect("room");
    assert_eq!(state.cache(CacheKind::Full).visible(&parts[0].1.full), 100);
}

#[test]
fn a_batch_that_does_not_fit_changes_nothing() {
    let mut state = KvState::new(&layout(256, 0, 1), 2, None);
    append(&mut state, seq(0), 200).expect("room");
    let before = state.clone();
    let batch = Batch::of_sequence(seq(1), Pos(0), &tokens(57));
    // In micro-batches of 8, the last one fails.
    let error = state.prepare(&batch, 8).expect_err("57 of 56");
    let KvError::Full { needed: 1, used: 256, cells: 256, .. } = error else {
        unreachable!("{error}");
    };
    assert_eq!(state, before);
    state.remove(seq(0), &(Pos(100)..Pos(200))).expect("it exists");
    append(&mut state, seq(1), 57).expect("room after removal");
}

#[test]
fn positions_must_go_on_where_the_sequence_ended() {
    let mut state = KvState::new(&layout(256, 0, 1), 2, None);
    append(&mut state, seq(0), 5).expect("room");
    let skipping = Batch::of_sequence(seq(0), Pos(6), &tokens(1));
    let expected = BatchError::Position { index: 0, sequence: seq(0), found: Pos(6), expected: Pos(5) };
    assert_eq!(state.prepare(&skipping, 8).expect_err("a gap"), KvError::Batch(expected));
    let unknown = Batch::of_sequence(seq(2), Pos(0), &tokens(1));
    let expected = BatchError::NoSuchSequence { sequence: seq(2), limit: 2 };
    assert_eq!(state.prepare(&unknown, 8).expect_err("two sequences"), KvError::Batch(expected));
    assert_eq!(state.prepare(&Batch::new(), 8).expect_err("nothing"), KvError::Batch(BatchError::Empty));
    let one = Batch::of_sequence(seq(1), Pos(0), &tokens(1));
    assert_eq!(state.prepare(&one, 0).expect_err("no room"), KvError::Batch(BatchError::ZeroMicroBatch));
    let nobody =
        BatchToken { token: TokenId::new(0), pos: Pos(0), sequences: SequenceSet::default(), wants_logits: false };
    let mut batch = Batch::new();
    batch.push(nobody);
    assert_eq!(state.prepare(&batch, 8).expect_err("nobody's"), KvError::Batch(BatchError::NoSequence { index: 0 }));
}

#[test]
fn a_shared_prefix_is_kept_until_its_last_sequence_goes() {
    let mut state = KvState::new(&layout(256, 0, 1), 4, None);
    append(&mut state, seq(0), 10).expect("room");
    assert_eq!(state.copy(seq(0), seq(1), &(Pos(0)..Pos(6))).expect("exists"), None, "no bytes move");
    assert_eq!(state.next(seq(1)), Pos(6));
    state.remove(seq(0), &ALL).expect("exists");
    let cells = state.cache(CacheKind::Full).cells(StreamId::new(0));
    assert_eq!(cells.used(), 6);
    state.keep(seq(2)).expect("exists");
    assert!(state.cache(CacheKind::Full).cells(StreamId::new(0)).is_empty());
}

#[test]
fn sequences_with_streams_of_their_own_are_batched_side_by_side() {
    let mut state = KvState::new(&layout(256, 0, 4), 4, None);
    assert_eq!(state.sharing(), Sharing::PerSequence);
    let mut batch = Batch::new();
    for (sequence, count) in [(1, 3), (2, 5), (0, 3)] {
        for token in Batch::of_sequence(seq(sequence), Pos(0), &tokens(count)).tokens() {
            batch.push(*token);
        }
    }
    let parts = feed(&mut state, &batch, 9).expect("room");
    let shapes: Vec<(usize, std::ops::Range<u32>)> =
        parts.iter().map(|(b, s)| (b.len(), s.full.stream_range())).collect();
    // Three tokens of each of the three sequences, then the two that sequence 2 has left.
    assert_eq!(shapes, [(9, 0..3), (2, 2..3)]);
    let order: Vec<usize> = parts.iter().flat_map(|(b, _)| b.tokens().iter().map(|t| t.batch_index)).collect();
    assert_eq!(order, [8, 9, 10, 0, 1, 2, 3, 4, 5, 6, 7]);

    let copy = state.copy(seq(2), seq(3), &ALL).expect("exists");
    assert_eq!(copy, Some(StreamCopy { from: StreamId::new(2), to: StreamId::new(3) }));
    assert_eq!(state.next(seq(3)), Pos(5));
    let part = state.copy(seq(2), seq(0), &(Pos(0)..Pos(2)));
    assert_eq!(part, Err(KvError::PartialCopy { sequence: seq(2) }));

    let shared = BatchToken {
        token: TokenId::new(1),
        pos: Pos(5),
        sequences: [seq(2), seq(3)].into_iter().collect(),
        wants_logits: true,
    };
    let mut coupled = Batch::new();
    coupled.push(shared);
    assert_eq!(state.prepare(&coupled, 8), Err(KvError::Batch(BatchError::Coupled { index: 0 })));
}

#[test]
fn cells_that_left_the_window_are_used_again() {
    let mut state = KvState::new(&layout(1024, 64, 1), 1, Some(32));
    for _ in 0..40 {
        append(&mut state, seq(0), 16).expect("the window moves on");
    }
    assert_eq!(state.next(seq(0)), Pos(640));
    let sliding = state.cache(CacheKind::Sliding);
    let (first, last) = sliding.span(seq(0)).expect("in use");
    assert_eq!(last, Pos(639));
    assert!(first.0 <= 639 - 31, "the window is whole: {first}");
    assert_eq!(state.cache(CacheKind::Full).span(seq(0)), Some((Pos(0), Pos(639))));
}

/// What the test remembers of each sequence: its positions.
#[derive(Default, Clone, Debug)]
struct Model(BTreeMap<usize, Vec<u32>>);

#[derive(Debug, Clone)]
enum Step {
    Append { sequence: usize, count: usize },
    RemoveFrom { sequence: usize, keep: u32 },
    Copy { from: usize, to: usize },
    Keep { sequence: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let sequence = 0..4usize;
    prop_oneof![
        6 => (sequence.clone(), 1..40usize).prop_map(|(sequence, count)| Step::Append { sequence, count }),
        2 => (sequence.clone(), 0..60u32).prop_map(|(sequence, keep)| Step::RemoveFrom { sequence, keep }),
        1 => (sequence.clone(), sequence.clone()).prop_map(|(from, to)| Step::Copy { from, to }),
        1 => sequence.prop_map(|sequence| Step::Keep { sequence }),
    ]
}

/// Cells that a token sees, read off a mask.
fn visible(mask: &[u8], cells: usize, row: usize) -> Vec<CellId> {
    let f32_at = |i: usize| f32::from_le_bytes(mask[i * 4..i * 4 + 4].try_into().expect("four bytes"));
    (0..cells).filter(|&i| f32_at(row * cells + i) == 0.0).map(CellId::new).collect()
}

/// Every token of the micro-batch sees exactly the positions of its sequence that it should see.
fn check_masks(params: &HParams, state: &KvState, model: &Model, batch: &MicroBatch, slots: &Slots) {
    for kind in [CacheKind::Full, CacheKind::Sliding] {
        let cache = state.cache(kind);
        let slot = if kind == CacheKind::Full { &slots.full } else { slots.sliding.as_ref().unwrap_or(&slots.full) };
        let cells = u64::from(cache.visible(slot));
        let streams = slot.streams.len() as u64;
        let tensor =
            Tensor::leaf("m", DType::F32, [cells, batch.len() as u64 / streams, 1, streams]).expect("a tensor");
        let mut mask = Vec::new();
        let mut filler = InputFiller::new(params, Attention::Plain, state, batch, slots);
        assert_eq!(filler.fill(InputKind::Mask(kind), &tensor, &mut mask), Ok(Filled::Written));
        for (row, micro) in batch.tokens().iter().enumerate() {
            let token = micro.token;
            let sequence = token.sequences.iter().next().expect("a sequence");
            let held = cache.cells(cache.stream_of(sequence));
            let mut seen: Vec<u32> = visible(&mask, cells as usize, row)
                .into_iter()
                .map(|cell| held.position(cell).expect("an empty cell is not seen").0)
                .collect();
            seen.sort_unstable();
            let window = cache.window().unwrap_or(u32::MAX);
            let wanted = |&p: &u32| p <= token.pos.0 && !outside_window(window, Pos(p), token.pos);
            let expected: Vec<u32> = model.0[&sequence.index()].iter().copied().filter(wanted).collect();
            assert_eq!(seen, expected, "{kind:?} {sequence} {}", token.pos);
        }
    }
}

fn run(params: &HParams, mut state: KvState, steps: &[Step]) {
    let mut model = Model::default();
    for step in steps {
        match *step {
            Step::Append { sequence, count } => {
                let batch = Batch::of_sequence(seq(sequence), state.next(seq(sequence)), &tokens(count));
                let before = state.clone();
                match state.prepare(&batch, 16) {
                    Ok(parts) => {
                        for (part, slots) in &parts {
                            state.apply(part, slots);
                            let positions = model.0.entry(sequence).or_default();
                            positions.extend(part.tokens().iter().map(|t| t.token.pos.0));
                            check_masks(params, &state, &model, part, slots);
                        }
                    }
                    Err(KvError::Full { .. }) => assert_eq!(state, before),
                    Err(other) => unreachable!("{other}"),
                }
            }
            Step::RemoveFrom { sequence, keep } => {
                // With a window, old positions are gone: only what is still there can be kept.
                let oldest = state.cache(CacheKind::Sliding).span(seq(sequence)).map_or(0, |(first, _)| first.0);
                let keep = if oldest == 0 { keep } else { keep.max(oldest + 40) };
                state.remove(seq(sequence), &(Pos(keep)..Pos(u32::MAX))).expect("exists");
                model.0.entry(sequence).or_default().retain(|&p| p < keep);
            }
            Step::Copy { from, to } => {
                if from != to {
                    state.remove(seq(to), &ALL).expect("exists");
                    state.copy(seq(from), seq(to), &ALL).expect("all of it");
                    let copied = model.0.get(&from).cloned().unwrap_or_default();
                    model.0.insert(to, copied);
                }
            }
            Step::Keep { sequence } => {
                state.keep(seq(sequence)).expect("exists");
                model.0.retain(|&s, _| s == sequence);
            }
        }
        for (&sequence, positions) in &model.0 {
            let span = positions.first().zip(positions.last()).map(|(&a, &b)| (Pos(a), Pos(b)));
            assert_eq!(state.cache(CacheKind::Full).span(seq(sequence)), span);
        }
    }
}

fn llama() -> HParams {
    HParams::from_gguf(&golden_model("tiny-llama-F16.gguf")).expect("fine")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn every_query_sees_its_own_sequence_and_nothing_else(steps in prop::collection::vec(step(), 1..30)) {
        let params = llama();
        run(&params, KvState::new(&layout(160, 160, 1), 4, None), &steps);
        run(&params, KvState::new(&layout(96, 96, 4), 4, None), &steps);
    }

    #[test]
    fn a_window_never_loses_what_it_still_covers(counts in prop::collection::vec(1..40usize, 1..30)) {
        let params = llama();
        let steps: Vec<Step> = counts.into_iter().map(|count| Step::Append { sequence: 0, count }).collect();
        run(&params, KvState::new(&layout(1024, 48, 1), 1, Some(32)), &steps);
    }
}

/// Builds the graph of a micro-batch and fills every input of it.
fn fill_all(model: &Gguf, attention: Attention, request: &CacheRequest, batches: &[Batch]) -> usize {
    let params = HParams::from_gguf(model).expect("fine");
    let layout = KvLayout::new(&params, request).expect("a layout");
    let mut state = KvState::new(&layout, request.sequences, params.window);
    let mut filled = 0;
    for batch in batches {
        for (part, slots) in state.prepare(batch, request.micro_batch).expect("room") {
            state.apply(&part, &slots);
            let shape = BatchShape::of(&part, &slots, &state);
            let spec = GraphSpec { shape, layout, attention, homes: Homes::single(&params) };
            let built = families::build(model, &params, &spec).expect("builds");
            let mut filler = InputFiller::new(&params, attention, &state, &part, &slots);
            let mut bytes = Vec::new();
            for input in &built.inputs {
                filler.fill(input.kind, built.graph.tensor(input.tensor), &mut bytes).expect("fits");
                filled += 1;
            }
        }
    }
    filled
}

#[test]
fn the_inputs_of_every_graph_fit_it() {
    let mut two = Batch::of_sequence(seq(0), Pos(0), &tokens(6));
    for token in Batch::of_sequence(seq(1), Pos(0), &tokens(6)).tokens() {
        two.push(*token);
    }
    let more = Batch::of_sequence(seq(1), Pos(6), &tokens(1));
    for name in ["llama-F16", "mixtral-Q8_0", "gemma3-Q8_0", "phi3-Q4_1", "qwen3-Q5_K_M"] {
        let model = golden_model(&format!("tiny-{name}.gguf"));
        for sharing in [Sharing::Unified, Sharing::PerSequence] {
            for attention in [Attention::Plain, Attention::Flash] {
                for key_type in [DType::F16, DType::F32, DType::Q8_0] {
                    let value_type = if attention == Attention::Flash { key_type } else { DType::F16 };
                    let sliding = SlidingCells::Window;
                    let request = CacheRequest {
                        context: 600,
                        sequences: 2,
                        sharing,
                        micro_batch: 8,
                        sliding,
                        key_type,
                        value_type,
                    };
                    let filled = fill_all(&model, attention, &request, &[two.clone(), more.clone()]);
                    assert!(filled >= 3 * 7, "{name} {request:?}: {filled}");
                }
            }
        }
    }
}

#[test]
fn transposed_values_go_to_one_place_per_element() {
    let params = llama();
    let mut state = KvState::new(&layout(256, 256, 2), 2, None);
    let mut batch = Batch::of_sequence(seq(0), Pos(0), &tokens(1));
    batch.push(Batch::of_sequence(seq(1), Pos(0), &tokens(1)).tokens()[0]);
    let parts = feed(&mut state, &batch, 8).expect("room");
    let (part, slots) = &parts[0];
    let width = params.max_values_width();
    let tensor = Tensor::leaf("v", DType::I64, [2 * width, 1, 1, 1]).expect("a tensor");
    let mut bytes = Vec::new();
    let mut filler = InputFiller::new(&params, Attention::Plain, &state, part, slots);
    filler.fill(InputKind::ValueCells(CacheKind::Full), &tensor, &mut bytes).expect("fits");
    let places: Vec<i64> = bytes.chunks(8).map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes"))).collect();
    assert_eq!(&places[..3], [0, 256, 512], "element by element, a cell apart");
    assert_eq!(places[width as usize], 256 * width as i64, "the second stream begins after the first");

    let tensor = Tensor::leaf("k", DType::I64, [2, 1, 1, 1]).expect("a tensor");
    filler.fill(InputKind::KeyCells(CacheKind::Full), &tensor, &mut bytes).expect("fits");
    assert_eq!(bytes, [0i64.to_le_bytes(), 256i64.to_le_bytes()].concat());
}

#[test]
fn a_graph_for_another_shape_and_tokens_out_of_range_are_refused() {
    let params = llama();
    let mut state = KvState::new(&layout(256, 256, 1), 1, None);
    let parts = feed(&mut state, &Batch::of_sequence(seq(0), Pos(0), &tokens(3)), 8).expect("room");
    let mut filler = InputFiller::new(&params, Attention::Plain, &state, &parts[0].0, &parts[0].1);
    let mut bytes = Vec::new();
    let four = Tensor::leaf("t", DType::I32, [4, 1, 1, 1]).expect("a tensor");
    let error = filler.fill(InputKind::Tokens, &four, &mut bytes).expect_err("three tokens");
    assert!(matches!(error, InputError::Shape { kind: InputKind::Tokens, .. }), "{error}");
    let wrong = Tensor::leaf("m", DType::I32, [256, 3, 1, 1]).expect("a tensor");
    let error = filler.fill(InputKind::Mask(CacheKind::Full), &wrong, &mut bytes).expect_err("a mask of integers");
    assert!(matches!(error, InputError::Type { .. }), "{error}");

    let mut state = KvState::new(&layout(256, 256, 1), 1, None);
    let batch = Batch::of_sequence(seq(0), Pos(0), &[TokenId::new(128)]);
    let parts = feed(&mut state, &batch, 8).expect("room");
    let mut filler = InputFiller::new(&params, Attention::Plain, &state, &parts[0].0, &parts[0].1);
    let one = Tensor::leaf("t", DType::I32, [1, 1, 1, 1]).expect("a tensor");
    let error = filler.fill(InputKind::Tokens, &one, &mut bytes).expect_err("128 tokens");
    assert_eq!(error, InputError::Token { token: TokenId::new(128), vocab: 128 });
}

#[test]
fn masks_of_16_bits_hold_zero_and_minus_infinity() {
    let params = llama();
    let mut state = KvState::new(&layout(256, 256, 1), 1, None);
    let parts = feed(&mut state, &Batch::of_sequence(seq(0), Pos(0), &tokens(2)), 8).expect("room");
    let mut filler = InputFiller::new(&params, Attention::Flash, &state, &parts[0].0, &parts[0].1);
    let tensor = Tensor::leaf("m", DType::F16, [256, 2, 1, 1]).expect("a tensor");
    let mut bytes = Vec::new();
    filler.fill(InputKind::Mask(CacheKind::Full), &tensor, &mut bytes).expect("fits");
    let values: Vec<u16> = bytes.chunks(2).map(|b| u16::from_le_bytes(b.try_into().expect("two bytes"))).collect();
    assert_eq!([values[0], values[1], values[256], values[257], values[258]], [0, 0xfc00, 0, 0, 0xfc00]);
}

#[test]
fn the_rotation_before_a_quantized_cache_is_orthogonal() {
    let params = llama();
    let mut state = KvState::new(&layout(256, 256, 1), 1, None);
    let parts = feed(&mut state, &Batch::of_sequence(seq(0), Pos(0), &tokens(1)), 8).expect("room");
    let mut filler = InputFiller::new(&params, Attention::Flash, &state, &parts[0].0, &parts[0].1);
    let tensor = Tensor::leaf("r", DType::F32, [64, 64, 1, 1]).expect("a tensor");
    let mut bytes = Vec::new();
    filler.fill(InputKind::KeyRotation(CacheKind::Full), &tensor, &mut bytes).expect("fits");
    let at = |row: usize, column: usize| {
        let i = (row * 64 + column) * 4;
        f32::from_le_bytes(bytes[i..i + 4].try_into().expect("four bytes"))
    };
    for a in 0..64 {
        for b in 0..64 {
            let product: f32 = (0..64).map(|k| at(a, k) * at(b, k)).sum();
            assert!((product - if a == b { 1.0 } else { 0.0 }).abs() < 1e-6);
        }
    }
}

#[test]
fn layouts_are_padded_as_llama_cpp_pads_them() {
    let gemma = HParams::from_gguf(&golden_model("tiny-gemma3-Q8_0.gguf")).expect("fine");
    let request = |context, sequences, sharing, micro_batch| CacheRequest {
        context,
        sequences,
        sharing,
        micro_batch,
        sliding: SlidingCells::Window,
        key_type: DType::F16,
        value_type: DType::F16,
    };
    let cells = |r: CacheRequest| {
        let l = KvLayout::new(&gemma, &r).expect("a layout");
        (l.cells, l.sliding_cells, l.streams)
    };
    assert_eq!(cells(request(4000, 1, Sharing::Unified, 512)), (4096, 768, 1), "window 32 and 512, padded");
    assert_eq!(cells(request(4000, 8, Sharing::Unified, 512)), (4096, 768, 1), "eight windows and 512");
    assert_eq!(cells(request(4096, 3, Sharing::PerSequence, 512)), (1536, 768, 3), "a third each, padded");
    assert_eq!(cells(request(100, 1, Sharing::Unified, 512)), (256, 256, 1), "no larger than the full cache");
    let full = CacheRequest { sliding: SlidingCells::Full, ..request(4000, 1, Sharing::Unified, 512) };
    assert_eq!(cells(full), (4096, 4096, 1));
    assert!(KvLayout::new(&gemma, &request(0, 1, Sharing::Unified, 512)).is_err());
    assert!(KvLayout::new(&gemma, &request(256, 1000, Sharing::Unified, 512)).is_err());
}
