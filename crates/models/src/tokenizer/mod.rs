//! Tokenizers from a model file's metadata: SentencePiece-style BPE (`llama`) and byte-level BPE (`gpt2`).
//!
//! The ids equal llama.cpp's. What is unknown is an error that names it: a guessed pre-tokenizer would give ids that
//! are almost right, and a model that is quietly worse.

mod bpe;
mod error;
mod pre;
mod special;
mod spm;
mod stream;
mod vocab;

pub use error::TokenizerError;
pub use special::Specials;
pub use stream::Utf8Stream;
pub use vocab::{MAX_TOKENS, TokenKind};

use crate::gguf::{Gguf, GgufFault};
use special::{Fragment, SpecialTokens};
use vocab::Vocab;

loadmaster_graph::define_id! {
    /// A token of a vocabulary.
    pub TokenId, "tok";
}

/// Whether the tokens that the file asks for at both ends of a text are added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ends {
    /// BOS and EOS as the file's metadata asks.
    #[default]
    AsModelAsks,
    /// Nothing is added: for a piece of a longer text.
    Bare,
}

/// A tokenizer: text to tokens and back.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    specials: SpecialTokens,
    roles: Roles,
    ends_generation: Vec<TokenId>,
}

#[derive(Clone, Debug)]
enum Model {
    Spm { model: spm::SpmModel, space_prefix: bool },
    Bpe(Box<bpe::BpeModel>),
}

/// Tokens with a role.
#[derive(Clone, Copy, Debug, Default)]
struct Roles {
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    eot: Option<TokenId>,
    eom: Option<TokenId>,
    add_bos: bool,
    add_eos: bool,
}

const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// Texts of tokens that end a generation, whatever the metadata says of their kind.
const END_TEXTS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

impl Tokenizer {
    /// Builds the tokenizer that the file describes. O(vocabulary + merges).
    ///
    /// Errors: no vocabulary, an unknown model or pre-tokenizer, arrays that do not fit, ids out of range.
    pub fn from_gguf(model: &Gguf) -> Result<Self, TokenizerError> {
        let name = string(model, "tokenizer.ggml.model")?;
        match name {
            "llama" => Self::spm(model),
            "gpt2" => Self::byte_level(model),
            "no_vocab" | "none" => Err(TokenizerError::NoVocabulary { model: name.into() }),
            _ => Err(TokenizerError::UnknownModel { model: name.into() }),
        }
    }

    fn spm(file: &Gguf) -> Result<Self, TokenizerError> {
        let vocab = Vocab::read(file)?;
        let in_range = |index: usize| (index < vocab.len()).then(|| TokenId::new(index));
        let defaults = Roles { bos: in_range(1), eos: in_range(2), add_bos: true, ..Roles::default() };
        let space_prefix = boolean(file, "tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let model = Model::Spm { model: spm::SpmModel::read(file, &vocab)?, space_prefix };
        Self::finish(file, vocab, model, defaults)
    }

    fn byte_level(file: &Gguf) -> Result<Self, TokenizerError> {
        let name = string(file, "tokenizer.ggml.pre")?;
        let pre = pre::find(name).ok_or_else(|| TokenizerError::UnknownPreTokenizer { name: name.into() })?;
        let vocab = Vocab::read(file)?;
        let defaults = Roles { add_bos: pre.bos == pre::BosDefault::Added, ..Roles::default() };
        let model = Model::Bpe(Box::new(bpe::BpeModel::read(file, &vocab, pre)?));
        Self::finish(file, vocab, model, defaults)
    }

    fn finish(file: &Gguf, mut vocab: Vocab, model: Model, defaults: Roles) -> Result<Self, TokenizerError> {
        let roles = read_roles(file, &vocab, defaults)?;
        let mut ends_generation: Vec<TokenId> = END_TEXTS.iter().filter_map(|text| vocab.find(text)).collect();
        for &id in &ends_generation {
            vocab.kinds[id] = TokenKind::Control;
        }
        ends_generation.extend([roles.eos, roles.eot, roles.eom].into_iter().flatten());
        ends_generation.sort_unstable();
        ends_generation.dedup();
        // Phi 3's files do not say that white space after its special tokens belongs to them.
        let phi3 = file.value("general.name").and_then(|v| v.as_str()).is_some_and(|name| {
            let name = name.to_lowercase();
            name.contains("phi-3") || name.contains("phi3")
        });
        let specials = SpecialTokens::new(&vocab, |text| phi3 && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>"));
        Ok(Self { vocab, model, specials, roles, ends_generation })
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.vocab.len()
    }

    /// Whether the vocabulary is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token that begins a text.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.roles.bos
    }

    /// The token that ends a text.
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.roles.eos
    }

    /// Whether generation stops at this token.
    #[must_use]
    pub fn ends_generation(&self, id: TokenId) -> bool {
        self.ends_generation.binary_search(&id).is_ok()
    }

    /// The token's text as the file has it (spaces escaped, bytes encoded); `None` outside the vocabulary.
    #[must_use]
    pub fn raw_text(&self, id: TokenId) -> Option<&str> {
        (id.index() < self.len()).then(|| self.vocab.text(id))
    }

    /// The token's kind; `None` outside the vocabulary.
    #[must_use]
    pub fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.vocab.kinds.get(id).copied()
    }

    /// The token of that raw text.
    #[must_use]
    pub fn find(&self, raw_text: &str) -> Option<TokenId> {
        self.vocab.find(raw_text)
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str, specials: Specials, ends: Ends) -> Result<Vec<TokenId>, TokenizerError> {
        let mut out = Vec::new();
        if ends == Ends::AsModelAsks && self.roles.add_bos {
            out.extend(self.roles.bos);
        }
        let mut after_special = true;
        for fragment in self.specials.split(text, specials) {
            match fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(text) => self.encode_text(text, after_special, &mut out)?,
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
        if ends == Ends::AsModelAsks && self.roles.add_eos {
            out.extend(self.roles.eos);
        }
        Ok(out)
    }

    fn encode_text(&self, text: &str, after_special: bool, out: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(text, out),
            Model::Spm { model, space_prefix } => {
                let prefix = if *space_prefix && after_special { spm::SPACE } else { "" };
                model.encode(&self.vocab, &format!("{prefix}{}", text.replace(' ', spm::SPACE)), out)
            }
        }
    }

    /// The bytes that a token stands for. Control tokens give their own text.
    pub fn piece(&self, id: TokenId) -> Result<Vec<u8>, TokenizerError> {
        let text = self.raw_text(id).ok_or(TokenizerError::NoSuchToken { id, tokens: self.len() })?;
        Ok(match self.vocab.kinds[id] {
            TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => text.into(),
            TokenKind::Byte => byte_token(text).map_or_else(|| text.into(), |byte| vec![byte]),
            TokenKind::Unused => Vec::new(),
            TokenKind::Normal => match self.model {
                Model::Bpe(_) => bpe::decode(text),
                Model::Spm { .. } => text.replace(spm::SPACE, " ").into_bytes(),
            },
        })
    }

    /// The text of tokens; control tokens are left out, and so is the space that the tokenizer puts before a text.
    /// Bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, tokens: &[TokenId]) -> Result<String, TokenizerError> {
        let mut bytes = Vec::new();
        for &id in tokens {
            let piece = self.piece(id)?;
            if !matches!(self.vocab.kinds[id], TokenKind::Control | TokenKind::Unknown) {
                bytes.extend(piece);
            }
        }
        let prefixed = matches!(self.model, Model::Spm { space_prefix: true, .. });
        let start = usize::from(prefixed && bytes.first() == Some(&b' '));
        Ok(String::from_utf8_lossy(&bytes[start..]).into_owned())
    }
}

/// The byte of a token `<0xNN>`.
fn byte_token(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

fn read_roles(file: &Gguf, vocab: &Vocab, defaults: Roles) -> Result<Roles, TokenizerError> {
    let role = |key, default: Option<TokenId>| Ok::<_, TokenizerError>(vocab.role(file, key)?.or(default));
    let by_text = |texts: &[&str]| texts.iter().find_map(|text| vocab.find(text));
    let roles = Roles {
        bos: role(BOS, defaults.bos)?,
        eos: role(EOS, defaults.eos)?,
        eot: role("tokenizer.ggml.eot_token_id", by_text(&["<|eot_id|>", "<|im_end|>", "<end_of_turn>"]))?,
        eom: role("tokenizer.ggml.eom_token_id", by_text(&["<|eom_id|>"]))?,
        add_bos: boolean(file, ADD_BOS)?.unwrap_or(defaults.add_bos),
        add_eos: boolean(file, ADD_EOS)?.unwrap_or(defaults.add_eos),
    };
    if roles.add_bos && roles.bos.is_none() {
        return Err(TokenizerError::SpecialMissing { wanted_by: ADD_BOS, key: BOS });
    }
    if roles.add_eos && roles.eos.is_none() {
        return Err(TokenizerError::SpecialMissing { wanted_by: ADD_EOS, key: EOS });
    }
    Ok(roles)
}

fn string<'a>(file: &'a Gguf, key: &str) -> Result<&'a str, TokenizerError> {
    let value = file.value(key).ok_or_else(|| file.key_error(key, GgufFault::Missing))?;
    let wrong = || file.key_error(key, GgufFault::WrongType { expected: "a string", found: value.to_string() });
    Ok(value.as_str().ok_or_else(wrong)?)
}

fn boolean(file: &Gguf, key: &str) -> Result<Option<bool>, TokenizerError> {
    let Some(value) = file.value(key) else {
        return Ok(None);
    };
    let wrong = || file.key_error(key, GgufFault::WrongType { expected: "a boolean", found: value.to_string() });
    Ok(Some(value.as_bool().ok_or_else(wrong)?))
}
