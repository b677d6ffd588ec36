//! SentencePiece-style BPE (`tokenizer.ggml.model` = `llama`).
//!
//! Neighbouring symbols are merged while their concatenation is a token: the one with the highest score first, the
//! leftmost on a tie. A rank table of pairs cannot express this (a pair may contain a symbol that is no token, and
//! equal scores tie by place), so this is done here rather than in the tokenizer library.

use super::TokenId;
use super::error::TokenizerError;
use super::vocab::{Vocab, array, check_length};
use crate::gguf::{Gguf, GgufFault};
use loadmaster_graph::IdVec;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Escaped space of the vocabulary.
pub(super) const SPACE: &str = "\u{2581}";

/// Scores and byte tokens.
#[derive(Clone, Debug)]
pub(super) struct SpmModel {
    scores: IdVec<TokenId, f32>,
    bytes: Box<[Option<TokenId>; 256]>,
}

/// A span of the text; merged-away symbols are empty.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// A possible merge of two neighbours.
struct Bigram {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl PartialEq for Bigram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Bigram {}
impl PartialOrd for Bigram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Bigram {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl SpmModel {
    pub(super) fn read(model: &Gguf, vocab: &Vocab) -> Result<Self, TokenizerError> {
        const KEY: &str = "tokenizer.ggml.scores";
        let scores = match array(model, KEY)? {
            None => IdVec::filled(0.0, vocab.len()),
            Some(scores) => {
                check_length(KEY, vocab.len() as u64, scores.len())?;
                let score = |value: Result<crate::gguf::Value<'_>, GgufFault>| {
                    let value = value.map_err(|fault| model.key_error(KEY, fault))?;
                    value.as_f32().or_else(|| value.as_i64().map(|v| v as f32)).ok_or_else(|| {
                        model.key_error(KEY, GgufFault::WrongType { expected: "numbers", found: value.to_string() })
                    })
                };
                scores.iter().map(score).collect::<Result<Vec<_>, _>>().map(IdVec::from_vec)?
            }
        };
        let byte_token = |byte: usize| {
            let hex = vocab.find(&format!("<0x{byte:02X}>"));
            let plain = || {
                u8::try_from(byte)
                    .ok()
                    .filter(u8::is_ascii)
                    .and_then(|b| vocab.find(char::from(b).encode_utf8(&mut [0; 4])))
            };
            hex.or_else(plain)
        };
        Ok(Self { scores, bytes: Box::new(std::array::from_fn(byte_token)) })
    }

    /// Appends the tokens of `text`, whose spaces are escaped already. O(n log n) for n characters.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        let mut symbols = split_chars(text);
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.offer(vocab, text, &symbols, right - 1, right, &mut queue);
        }
        while let Some(bigram) = queue.pop() {
            let (left, right) = (symbols[bigram.left], symbols[bigram.right]);
            let stale = left.len == 0 || right.len == 0 || left.len + right.len != bigram.len;
            if stale {
                continue;
            }
            symbols[bigram.left].len = bigram.len;
            symbols[bigram.left].next = right.next;
            symbols[bigram.right].len = 0;
            if let Some(next) = right.next {
                symbols[next].prev = Some(bigram.left);
                self.offer(vocab, text, &symbols, bigram.left, next, &mut queue);
            }
            if let Some(prev) = left.prev {
                self.offer(vocab, text, &symbols, prev, bigram.left, &mut queue);
            }
        }
        for symbol in symbols.iter().filter(|s| s.len > 0) {
            self.emit(vocab, &text[symbol.start..symbol.start + symbol.len], out)?;
        }
        Ok(())
    }

    fn offer(
        &self,
        vocab: &Vocab,
        text: &str,
        symbols: &[Symbol],
        left: usize,
        right: usize,
        queue: &mut BinaryHeap<Bigram>,
    ) {
        let start = symbols[left].start;
        let len = symbols[left].len + symbols[right].len;
        if let Some(token) = vocab.find(&text[start..start + len]) {
            queue.push(Bigram { score: self.scores[token], left, right, len });
        }
    }

    fn emit(&self, vocab: &Vocab, piece: &str, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        if let Some(token) = vocab.find(piece) {
            out.push(token);
            return Ok(());
        }
        for byte in piece.bytes() {
            out.push(self.bytes[usize::from(byte)].ok_or(TokenizerError::NoByteToken { byte })?);
        }
        Ok(())
    }
}

fn split_chars(text: &str) -> Vec<Symbol> {
    let count = text.chars().count();
    text.char_indices()
        .enumerate()
        .map(|(i, (start, c))| Symbol {
            start,
            len: c.len_utf8(),
            prev: i.checked_sub(1),
            next: Some(i + 1).filter(|&next| next < count),
        })
        .collect()
}
