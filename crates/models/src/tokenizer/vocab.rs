//! The vocabulary: token texts, their kinds, and the tokens with a role.

use super::TokenId;
use super::error::TokenizerError;
use crate::gguf::{Array, Gguf, GgufFault};
use loadmaster_graph::IdVec;
use std::collections::HashMap;

/// Most tokens of a vocabulary.
pub const MAX_TOKENS: u64 = 1 << 22;

/// What kind of token it is, under the format's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for text that has no token.
    Unknown,
    /// Steers the model; never part of ordinary text.
    Control,
    /// Taken whole wherever it stands in a text.
    UserDefined,
    /// Not used by the model.
    Unused,
    /// A single byte, written `<0xNN>`.
    Byte,
}

impl TokenKind {
    fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// Texts and kinds of all tokens.
#[derive(Clone, Debug)]
pub(super) struct Vocab {
    texts: String,
    ends: IdVec<TokenId, u32>,
    pub(super) kinds: IdVec<TokenId, TokenKind>,
    ids: HashMap<Box<str>, TokenId>,
}

impl Vocab {
    /// Reads `tokenizer.ggml.tokens` and `.token_type`.
    pub(super) fn read(model: &Gguf) -> Result<Self, TokenizerError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let array = array(model, TOKENS)?.ok_or_else(|| model.key_error(TOKENS, GgufFault::Missing))?;
        let wrong = || {
            let found = format!("an array of {}", array.element_type().name());
            model.key_error(TOKENS, GgufFault::WrongType { expected: "an array of strings", found })
        };
        if array.len() > MAX_TOKENS {
            return Err(TokenizerError::TooManyTokens { found: array.len(), limit: MAX_TOKENS });
        }
        let mut vocab = Self {
            texts: String::new(),
            ends: IdVec::new(),
            kinds: read_kinds(model, array.len())?,
            ids: HashMap::with_capacity(array.len() as usize),
        };
        for bytes in array.strings().ok_or_else(wrong)? {
            let text = std::str::from_utf8(bytes)
                .map_err(|e| model.key_error(TOKENS, GgufFault::Utf8 { valid_up_to: e.valid_up_to() }))?;
            vocab.push(text)?;
        }
        Ok(vocab)
    }

    fn push(&mut self, text: &str) -> Result<(), TokenizerError> {
        self.texts.push_str(text);
        let end = u32::try_from(self.texts.len())
            .map_err(|_| TokenizerError::Library("the vocabulary has more than 4 GiB of text".into()))?;
        let id = self.ends.push(end);
        // A text that occurs twice means its last token; an empty one means none.
        if !text.is_empty() {
            self.ids.insert(text.into(), id);
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn text(&self, id: TokenId) -> &str {
        let start = id.index().checked_sub(1).map_or(0, |before| self.ends.as_slice()[before] as usize);
        &self.texts[start..self.ends[id] as usize]
    }

    pub(super) fn find(&self, text: &str) -> Option<TokenId> {
        self.ids.get(text).copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = TokenId> + use<> {
        self.ends.ids()
    }

    /// The token of a role; an id outside the vocabulary is an error.
    pub(super) fn role(&self, model: &Gguf, key: &'static str) -> Result<Option<TokenId>, TokenizerError> {
        let Some(value) = model.value(key) else {
            return Ok(None);
        };
        let wrong = || model.key_error(key, GgufFault::WrongType { expected: "a token id", found: value.to_string() });
        let id = value.as_u64().ok_or_else(wrong)?;
        let tokens = self.len() as u64;
        if id >= tokens {
            return Err(TokenizerError::SpecialOutOfRange { key, id, tokens });
        }
        Ok(Some(TokenId::new(id as usize)))
    }
}

/// An array value; an error if the key holds something else.
pub(super) fn array<'a>(model: &'a Gguf, key: &str) -> Result<Option<Array<'a>>, TokenizerError> {
    let Some(value) = model.value(key) else {
        return Ok(None);
    };
    let wrong = || model.key_error(key, GgufFault::WrongType { expected: "an array", found: value.to_string() });
    Ok(Some(value.as_array().ok_or_else(wrong)?))
}

fn read_kinds(model: &Gguf, tokens: u64) -> Result<IdVec<TokenId, TokenKind>, TokenizerError> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let Some(array) = array(model, KEY)? else {
        return Ok(IdVec::filled(TokenKind::Normal, tokens as usize));
    };
    check_length(KEY, tokens, array.len())?;
    let kind = |value: Result<crate::gguf::Value<'_>, GgufFault>| {
        let value = value.map_err(|fault| model.key_error(KEY, fault))?;
        value.as_i64().and_then(TokenKind::from_number).ok_or_else(|| {
            model
                .key_error(KEY, GgufFault::WrongType { expected: "a token type from 1 to 6", found: value.to_string() })
        })
    };
    Ok(array.iter().map(kind).collect::<Result<Vec<_>, _>>().map(IdVec::from_vec)?)
}

pub(super) fn check_length(key: &'static str, expected: u64, found: u64) -> Result<(), TokenizerError> {
    if expected == found { Ok(()) } else { Err(TokenizerError::Length { key, expected, found }) }
}
