//! Why a tokenizer cannot be built or used.

use super::TokenId;
use crate::gguf::GgufError;

/// Why a tokenizer cannot be built or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A metadata value is missing or unfit.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file has no vocabulary.
    #[error("the file has no vocabulary (tokenizer.ggml.model is `{model}`): give token ids instead of text")]
    NoVocabulary {
        /// What the file names as its tokenizer.
        model: String,
    },
    /// A tokenizer model that is not supported.
    #[error("tokenizer.ggml.model `{model}` is not supported (`llama` and `gpt2` are): give token ids instead of text")]
    UnknownModel {
        /// What the file names as its tokenizer.
        model: String,
    },
    /// A pre-tokenizer whose rules are not known. Guessing would silently give wrong ids.
    #[error("tokenizer.ggml.pre `{name}` is not supported; known ones are {known}", known = super::pre::known_names())]
    UnknownPreTokenizer {
        /// Its name.
        name: String,
    },
    /// A parallel array with another length than the vocabulary.
    #[error("`{key}` has {found} elements, but the vocabulary has {expected}")]
    Length {
        /// The array.
        key: &'static str,
        /// Tokens of the vocabulary.
        expected: u64,
        /// Elements of the array.
        found: u64,
    },
    /// More tokens than a vocabulary may have.
    #[error("a vocabulary of {found} tokens exceeds the limit of {limit}")]
    TooManyTokens {
        /// Tokens of the file.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A special token outside the vocabulary.
    #[error("`{key}` is {id}, but the vocabulary has {tokens} tokens")]
    SpecialOutOfRange {
        /// The key.
        key: &'static str,
        /// The id.
        id: u64,
        /// Tokens of the vocabulary.
        tokens: u64,
    },
    /// A token is to be added to every text, but the file does not say which.
    #[error("`{wanted_by}` asks for a token that `{key}` does not give")]
    SpecialMissing {
        /// The key that asks.
        wanted_by: &'static str,
        /// The key that is missing.
        key: &'static str,
    },
    /// A merge that is no pair of tokens, or whose result is none.
    #[error("merge {rank} `{merge}` is not a pair of tokens whose concatenation is a token")]
    Merge {
        /// Its rank.
        rank: usize,
        /// Its text.
        merge: String,
    },
    /// A byte that no token stands for.
    #[error("the vocabulary has no token for the byte {byte:#04x}, which the text needs")]
    NoByteToken {
        /// The byte.
        byte: u8,
    },
    /// The tokenizer library refused the vocabulary or the text.
    #[error("{0}")]
    Library(String),
    /// A token outside the vocabulary.
    #[error("token {id} is outside the vocabulary of {tokens} tokens")]
    NoSuchToken {
        /// The token.
        id: TokenId,
        /// Tokens of the vocabulary.
        tokens: usize,
    },
}
