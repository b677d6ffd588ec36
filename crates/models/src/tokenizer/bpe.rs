//! Byte-level BPE (`tokenizer.ggml.model` = `gpt2`): the `tokenizers` crate, set up from the file's metadata.

use super::TokenId;
use super::error::TokenizerError;
use super::pre::{PreTokenizer, WholeWords};
use super::vocab::{Vocab, array};
use crate::gguf::{Gguf, GgufFault};
use tokenizers::models::bpe::{self, BPE};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

/// The library's tokenizer; special tokens are taken out before it sees a text.
#[derive(Clone, Debug)]
pub(super) struct BpeModel {
    tokenizer: Tokenizer,
}

impl BpeModel {
    pub(super) fn read(model: &Gguf, vocab: &Vocab, pre: PreTokenizer) -> Result<Self, TokenizerError> {
        let texts: bpe::Vocab = vocab
            .ids()
            .filter(|&id| !vocab.text(id).is_empty())
            .map(|id| (vocab.text(id).into(), id.index() as u32))
            .collect();
        let bpe = BPE::builder()
            .vocab_and_merges(texts, read_merges(model, vocab)?)
            .ignore_merges(pre.whole_words == WholeWords::First)
            .build()
            .map_err(library)?;
        let mut steps = Vec::with_capacity(pre.patterns.len() + 1);
        for &pattern in pre.patterns {
            let pattern = SplitPattern::Regex(pattern.into());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(library)?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
        let mut tokenizer = Tokenizer::new(bpe);
        tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
        Ok(Self { tokenizer })
    }

    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        let encoding = self.tokenizer.encode_fast(text, false).map_err(library)?;
        out.extend(encoding.get_ids().iter().map(|&id| TokenId::new(id as usize)));
        Ok(())
    }
}

fn library(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Library(error.to_string())
}

/// The merges, each checked: the library takes it for granted that a merge's result is no longer than the longest token.
fn read_merges(model: &Gguf, vocab: &Vocab) -> Result<Vec<(String, String)>, TokenizerError> {
    const KEY: &str = "tokenizer.ggml.merges";
    let array = array(model, KEY)?.ok_or_else(|| model.key_error(KEY, GgufFault::Missing))?;
    let mut merges = Vec::new();
    let wrong = || {
        let found = format!("an array of {}", array.element_type().name());
        model.key_error(KEY, GgufFault::WrongType { expected: "an array of strings", found })
    };
    for (rank, bytes) in array.strings().ok_or_else(wrong)?.enumerate() {
        let merge = String::from_utf8_lossy(bytes);
        let pair = split_merge(&merge).filter(|(a, b)| {
            vocab.find(a).is_some() && vocab.find(b).is_some() && vocab.find(&format!("{a}{b}")).is_some()
        });
        let (a, b) = pair.ok_or_else(|| TokenizerError::Merge { rank, merge: merge.to_string() })?;
        merges.push((a.into(), b.into()));
    }
    Ok(merges)
}

/// The halves of a merge; a space at the very start belongs to the first.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let at = first + merge[first..].find(' ')?;
    Some((&merge[..at], &merge[at + 1..]))
}

/// The bytes that a token of byte-level BPE stands for. Characters outside the alphabet stand for themselves.
pub(super) fn decode(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    out
}

/// GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and up, in order.
fn byte_of(c: char) -> Option<u8> {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let code = u32::from(c);
    if let Ok(byte) = u8::try_from(code) {
        return printable(byte).then_some(byte);
    }
    let rank = code.checked_sub(256)? as usize;
    (0..=255u8).filter(|&b| !printable(b)).nth(rank)
}
