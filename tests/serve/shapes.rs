//! Shapes of batches: each is planned once, whichever come between; and with gaps between sequences: each sequence gets its own logits.

use loadmaster::engine::{Engine, Model, Settings};
use loadmaster_models::kv::{Batch, BatchToken, Pos, SequenceId, SequenceSet};
use loadmaster_models::tokenizer::TokenId;
use loadmaster_sched::{DeviceSpec, Machine};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

const SEQUENCES: usize = 7;

fn engine() -> Engine {
    let model = Arc::new(Model::embedded().unwrap());
    let sim: DeviceSpec = "sim:64MiB".parse().unwrap();
    let machine = Machine::from_specs(&[sim.clone(), sim]).unwrap();
    let settings = Settings {
        context: 64 * SEQUENCES as u32,
        sequences: SEQUENCES as u32,
        micro_batch: 16,
        ..Settings::new(&model.params)
    };
    Engine::open(model, &machine, settings, NonZeroUsize::MIN, &mut |_, _| ()).unwrap()
}

fn step(engine: &mut Engine, sequences: &[usize]) -> BTreeMap<usize, Vec<f32>> {
    let mut batch = Batch::new();
    for &s in sequences {
        let (id, token) = (SequenceId::new(s), TokenId::new(40 + s));
        let (pos, sequences) = (engine.state().next(id), SequenceSet::from_iter([id]));
        batch.push(BatchToken { token, pos, sequences, wants_logits: true });
    }
    let mut logits = BTreeMap::new();
    engine.decode(&batch, |index, row| drop(logits.insert(sequences[index], row.to_vec()))).unwrap();
    for &s in sequences {
        let id = SequenceId::new(s);
        let last = engine.state().next(id).0 - 1;
        engine.state_mut().remove(id, &(Pos(last)..Pos(u32::MAX))).unwrap();
    }
    logits
}

#[test]
fn every_set_of_sequences_gets_the_logits_of_each_alone() {
    let mut engine = engine();
    for s in 0..SEQUENCES {
        let prompt: Vec<TokenId> = (0..3 + s).map(|i| TokenId::new(20 + 7 * s + i)).collect();
        engine.decode(&Batch::of_sequence(SequenceId::new(s), Pos(0), &prompt), |_, _| ()).unwrap();
    }
    let alone: Vec<Vec<f32>> = (0..SEQUENCES).map(|s| step(&mut engine, &[s]).remove(&s).unwrap()).collect();
    // In an order that goes from shape to shape: 28 shapes of runs.
    for bits in (1u32..1 << SEQUENCES).map(|n| n.wrapping_mul(37) % (1 << SEQUENCES)).filter(|&b| b > 0) {
        let set: Vec<usize> = (0..SEQUENCES).filter(|s| bits >> s & 1 == 1).collect();
        for (s, logits) in step(&mut engine, &set) {
            assert!(logits == alone[s], "sequence {s} of {set:?}");
        }
    }
}

/// Pieces of prompts in every slot, and steps of every run of neighbouring slots: what eight slots meet while clients come
/// and go. The second time, all of it is known.
#[test]
fn eight_busy_slots_plan_each_shape_once() {
    let model = Arc::new(Model::embedded().unwrap());
    let sim: DeviceSpec = "sim:64MiB".parse().unwrap();
    let machine = Machine::from_specs(&[sim.clone(), sim]).unwrap();
    let slots = 8;
    let settings = Settings { context: 256 * 8, sequences: 8, micro_batch: 64, ..Settings::new(&model.params) };
    let mut engine = Engine::open(model, &machine, settings, NonZeroUsize::MIN, &mut |_, _| ()).unwrap();
    let mut made = Vec::new();
    for _ in 0..2 {
        for slot in (0..slots).map(SequenceId::new) {
            for size in [64, 32, 16, 8, 4, 2] {
                let first = engine.state().next(slot);
                let piece = vec![TokenId::new(30); size];
                engine.decode(&Batch::of_sequence(slot, first, &piece), |_, _| ()).unwrap();
            }
        }
        for first in 0..slots {
            for end in first + 1..=slots {
                step(&mut engine, &(first..end).collect::<Vec<_>>());
            }
        }
        for slot in (0..slots).map(SequenceId::new) {
            engine.state_mut().remove(slot, &(Pos(0)..Pos(u32::MAX))).unwrap();
        }
        made.push(engine.session_stats().bound);
    }
    assert!(made[0] > 80, "{made:?}: fewer shapes than expected");
    assert_eq!(made[0], made[1]);
}

/// A short sequence sees more cells beside a long one than alone; what it does not hold is masked.
#[test]
fn a_short_sequence_gets_its_own_logits_beside_a_long_one() {
    let model = Arc::new(Model::embedded().unwrap());
    let sim: DeviceSpec = "sim:64MiB".parse().unwrap();
    let machine = Machine::from_specs(&[sim.clone(), sim]).unwrap();
    let settings = Settings { context: 2048, sequences: 2, micro_batch: 64, ..Settings::new(&model.params) };
    let mut engine = Engine::open(model, &machine, settings, NonZeroUsize::MIN, &mut |_, _| ()).unwrap();
    let prompt = |n: usize| (0..n).map(|i| TokenId::new(20 + i * 7 % 200)).collect::<Vec<_>>();
    engine.decode(&Batch::of_sequence(SequenceId::new(1), Pos(0), &prompt(5)), |_, _| ()).unwrap();
    let alone = step(&mut engine, &[1]).remove(&1).unwrap();
    engine.decode(&Batch::of_sequence(SequenceId::new(0), Pos(0), &prompt(700)), |_, _| ()).unwrap();
    assert!(step(&mut engine, &[1]).remove(&1).unwrap() == alone, "alone, after the other came");
    assert!(step(&mut engine, &[0, 1]).remove(&1).unwrap() == alone, "together");
}
