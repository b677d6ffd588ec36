//! A fuzz target: hostile GGUF files. `cargo test` runs it for a moment, a fuzzer for as long as one likes.

use super::model::{Gguf, WeightId};
use crate::SharedBytes;
use crate::random::Random;
use std::sync::Arc;

/// Reads `bytes` as a model and touches everything that a reader may touch. Must neither panic nor take more memory
/// than a small multiple of the input. Returns whether the file was accepted.
pub fn read_everything(bytes: &[u8]) -> bool {
    let shared: SharedBytes = Arc::new(bytes.to_vec());
    let Ok(model) = Gguf::from_bytes(shared) else {
        return false;
    };
    for (key, value) in model.metadata() {
        assert!(model.value(key).is_some(), "a listed key is found");
        if let Some(array) = value.as_array() {
            let read = array.iter().take_while(Result::is_ok).count() as u64;
            assert!(read <= array.len(), "no more elements than announced");
        }
        let _ = value.to_string();
    }
    for (i, info) in model.tensors().iter().enumerate() {
        let id = WeightId::new(i);
        assert_eq!(model.find(&info.name), Some(id), "a listed tensor is found");
        if let Ok(data) = model.data(id) {
            assert_eq!(Some(data.len() as u64), info.size.map(loadmaster_graph::Bytes::get));
        }
    }
    true
}

/// A seeded mutation of `bytes`: some bytes flipped, a number overwritten by an extreme one, a piece cut out or
/// repeated, the end cut off. Equal seeds give equal results (splitmix64).
#[must_use]
pub fn mutate(bytes: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut out = bytes.to_vec();
    for _ in 0..1 + random.below(4) {
        if out.is_empty() {
            return out;
        }
        let at = random.below(out.len() as u64) as usize;
        match random.below(5) {
            0 => out[at] ^= 1 << random.below(8),
            1 => overwrite(&mut out, at, extreme(&mut random)),
            2 => drop(out.drain(at..(at + random.below(16) as usize).min(out.len()))),
            3 => {
                let piece = out[at..(at + 24).min(out.len())].to_vec();
                out.splice(at..at, piece);
            }
            _ => out.truncate(at),
        }
    }
    out
}

fn overwrite(out: &mut [u8], at: usize, value: u64) {
    let len = (out.len() - at).min(8);
    out[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
}

fn extreme(random: &mut Random) -> u64 {
    const CHOICES: [u64; 12] =
        [0, 1, 8, 9, 255, 1 << 16, 1 << 31, u32::MAX as u64, 1 << 40, u64::MAX >> 1, u64::MAX, u64::MAX - 7];
    CHOICES[random.below(CHOICES.len() as u64) as usize]
}
