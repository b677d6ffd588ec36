//! Special tokens in texts: a text is cut at every occurrence, the longest tokens first.

use super::TokenId;
use super::vocab::{TokenKind, Vocab};
use aho_corasick::{AhoCorasick, MatchKind};

/// What is done with the text of control tokens inside a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Specials {
    /// It becomes the token: for prompts written by the program, such as chat templates.
    #[default]
    Recognised,
    /// It stays text: for text that users wrote. Tokens of the kind `user defined` are recognised all the same.
    AsText,
}

/// A piece of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fragment<'a> {
    Text(&'a str),
    Token(TokenId),
}

/// The special tokens of a vocabulary, longest first, and an automaton that finds which of them a text contains.
#[derive(Clone, Debug)]
pub(super) struct SpecialTokens {
    by_length: Vec<Special>,
    finder: Option<AhoCorasick>,
}

#[derive(Clone, Debug)]
struct Special {
    id: TokenId,
    text: Box<str>,
    kind: TokenKind,
    strip_after: bool,
}

impl SpecialTokens {
    /// `strips_after` says whether white space after the token belongs to it.
    pub(super) fn new(vocab: &Vocab, strips_after: impl Fn(&str) -> bool) -> Self {
        let special = |&id: &TokenId| {
            matches!(vocab.kinds[id], TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown)
                && !vocab.text(id).is_empty()
        };
        let mut by_length: Vec<Special> = vocab
            .ids()
            .filter(special)
            .map(|id| Special {
                id,
                text: vocab.text(id).into(),
                kind: vocab.kinds[id],
                strip_after: strips_after(vocab.text(id)),
            })
            .collect();
        by_length.sort_by_key(|s| std::cmp::Reverse(s.text.len()));
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(by_length.iter().map(|s| s.text.as_bytes()))
            .ok()
            .filter(|_| !by_length.is_empty());
        Self { by_length, finder }
    }

    /// Cuts `text` at the special tokens. O(text × distinct special tokens in it).
    pub(super) fn split<'a>(&self, text: &'a str, specials: Specials) -> Vec<Fragment<'a>> {
        let mut fragments = if text.is_empty() { Vec::new() } else { vec![Fragment::Text(text)] };
        for index in self.present(text) {
            let special = &self.by_length[index];
            let control = matches!(special.kind, TokenKind::Control | TokenKind::Unknown);
            if control && specials == Specials::AsText {
                continue;
            }
            fragments = fragments.into_iter().flat_map(|f| special.cut(f)).collect();
        }
        fragments
    }

    /// Indices of the tokens that occur in the text, in rising order: longest first.
    fn present(&self, text: &str) -> Vec<usize> {
        let Some(finder) = &self.finder else {
            return Vec::new();
        };
        let mut found: Vec<usize> = finder.find_overlapping_iter(text).map(|m| m.pattern().as_usize()).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl Special {
    fn cut<'a>(&self, fragment: Fragment<'a>) -> Vec<Fragment<'a>> {
        let Fragment::Text(mut rest) = fragment else {
            return vec![fragment];
        };
        let mut out = Vec::new();
        while let Some(at) = rest.find(&*self.text) {
            if at > 0 {
                out.push(Fragment::Text(&rest[..at]));
            }
            out.push(Fragment::Token(self.id));
            rest = &rest[at + self.text.len()..];
            if self.strip_after {
                rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\u{b}');
            }
        }
        if !rest.is_empty() {
            out.push(Fragment::Text(rest));
        }
        out
    }
}
