//! Fuzz targets: hostile model files. `cargo test` runs them for a moment, a fuzzer for as long as one likes.

use crate::SharedBytes;
use crate::chat::ChatTemplate;
use crate::families::{self, Attention, BatchShape, CacheRequest, GraphSpec, Homes, KvLayout, SlidingCells};
use crate::gguf::{Gguf, WeightId};
use crate::hparams::HParams;
use crate::kv::Sharing;
use crate::random::Random;
use crate::tokenizer::{Ends, Specials, Tokenizer};
use loadmaster_graph::{Bytes, DType};
use std::sync::Arc;

/// How far a file got.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reached {
    /// It was refused.
    Nothing,
    /// Its table was read.
    File,
    /// Its hyper-parameters were read.
    HyperParameters,
    /// A graph was built.
    Graph,
}

/// Reads `bytes` as a model and touches everything that a reader may touch: metadata, data, tokenizer, chat template,
/// hyper-parameters, graphs. Must neither panic nor take more memory than a small multiple of the input.
pub fn load_everything(bytes: &[u8]) -> Reached {
    let shared: SharedBytes = Arc::new(bytes.to_vec());
    let Ok(model) = Gguf::from_bytes(shared) else {
        return Reached::Nothing;
    };
    read_table(&model);
    if let Ok(tokenizer) = Tokenizer::from_gguf(&model) {
        use_tokenizer(&model, &tokenizer);
    }
    let Ok(params) = HParams::from_gguf(&model) else {
        return Reached::File;
    };
    let built = [Attention::Plain, Attention::Flash].map(|attention| build_graph(&model, &params, attention));
    if built.contains(&true) { Reached::Graph } else { Reached::HyperParameters }
}

fn read_table(model: &Gguf) {
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
            assert_eq!(Some(data.len() as u64), info.size.map(Bytes::get));
        }
    }
}

fn use_tokenizer(model: &Gguf, tokenizer: &Tokenizer) {
    for specials in [Specials::Recognised, Specials::AsText] {
        if let Ok(tokens) = tokenizer.encode("Hi, <s> 12 naïve 🙂\n", specials, Ends::AsModelAsks) {
            assert!(tokenizer.decode(&tokens).is_ok(), "tokens of a text are in the vocabulary");
        }
    }
    if let Ok(template) = ChatTemplate::from_gguf(model, tokenizer) {
        let _ = template.render(&[], crate::chat::Next::Assistant);
    }
}

fn build_graph(model: &Gguf, params: &HParams, attention: Attention) -> bool {
    let request = CacheRequest {
        context: 256,
        sequences: 1,
        sharing: Sharing::Unified,
        micro_batch: 8,
        sliding: SlidingCells::Window,
        key_type: DType::F16,
        value_type: DType::F16,
    };
    let Ok(layout) = KvLayout::new(params, &request) else {
        return false;
    };
    let spec = GraphSpec { shape: BatchShape::largest(&layout, 8), layout, attention, homes: Homes::single(params) };
    families::build(model, params, &spec).is_ok()
}

/// A seeded mutation of `bytes`: some bits flipped, a number overwritten by an extreme one, a piece cut out or repeated,
/// the end cut off. Equal seeds give equal results.
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

/// A seeded mutation that keeps the length: what is left of the structure is worth reading.
#[must_use]
pub fn mutate_in_place(bytes: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut out = bytes.to_vec();
    for _ in 0..1 + random.below(3) {
        if out.is_empty() {
            return out;
        }
        let at = random.below(out.len() as u64) as usize;
        match random.below(3) {
            0 => out[at] ^= 1 << random.below(8),
            1 => out[at] = extreme(&mut random) as u8,
            _ => overwrite(&mut out, at, extreme(&mut random)),
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
