//! Batches, and how they are cut into micro-batches.

use super::{MAX_SEQUENCES, Pos, SequenceId, SequenceSet};
use crate::tokenizer::TokenId;
use loadmaster_graph::ColumnOrder;
use std::collections::BTreeMap;

/// A token to be computed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BatchToken {
    /// The token.
    pub token: TokenId,
    /// Its position, the same in each of its sequences.
    pub pos: Pos,
    /// The sequences that it belongs to.
    pub sequences: SequenceSet,
    /// Whether its logits are wanted.
    pub wants_logits: bool,
}

/// A piece of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PromptPiece {
    /// Tokens of the prompt before this piece.
    pub before: u32,
    /// Tokens of the whole prompt.
    pub all: u32,
}

/// Tokens to be computed together.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Batch {
    tokens: Vec<BatchToken>,
    piece: Option<PromptPiece>,
}

/// How sequences share the cells of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// All sequences share one stream of cells.
    #[default]
    Unified,
    /// Each sequence has a stream of its own. A token belongs to one sequence.
    PerSequence,
}

/// A token of a micro-batch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MicroToken {
    /// The token.
    pub token: BatchToken,
    /// Where it stands in the batch.
    pub batch_index: usize,
}

/// What one run of a graph takes.
///
/// With [`Sharing::PerSequence`] the tokens stand sequence by sequence, the same number of each.
#[derive(Clone, PartialEq, Debug)]
pub struct MicroBatch {
    pub(super) tokens: Vec<MicroToken>,
    /// With streams of their own: the sequences, consecutive and rising. Else empty.
    pub(super) sequences: Vec<SequenceId>,
    /// How products with the tokens' columns are summed.
    columns: ColumnOrder,
}

/// Why a batch cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// There are no tokens.
    #[error("the batch is empty")]
    Empty,
    /// A micro-batch of no tokens was asked for.
    #[error("a micro-batch must have room for at least one token")]
    ZeroMicroBatch,
    /// A token belongs to no sequence.
    #[error("token {index} of the batch belongs to no sequence")]
    NoSequence {
        /// Its place in the batch.
        index: usize,
    },
    /// A token belongs to several sequences that have streams of their own.
    #[error(
        "token {index} of the batch belongs to several sequences, which have cells of their own: share the cache instead"
    )]
    Coupled {
        /// Its place in the batch.
        index: usize,
    },
    /// A sequence that the cache does not have.
    #[error("{sequence} does not exist: the cache has {limit} sequences")]
    NoSuchSequence {
        /// The sequence.
        sequence: SequenceId,
        /// Number of sequences.
        limit: u32,
    },
    /// Positions of a sequence that do not follow each other.
    #[error("token {index} of the batch has {found} in {sequence}, but {expected} comes next")]
    Position {
        /// Its place in the batch.
        index: usize,
        /// The sequence.
        sequence: SequenceId,
        /// Its position.
        found: Pos,
        /// The position that comes next.
        expected: Pos,
    },
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a token.
    pub fn push(&mut self, token: BatchToken) {
        self.tokens.push(token);
    }

    /// Says that the tokens of each sequence are a piece of a prompt. llama.cpp adds up products with several tokens in
    /// another order than with one, and results follow it: those of a prompt do not depend on how it is cut, but differ
    /// in the last bits from those of the same tokens one by one.
    ///
    /// A batch of which nothing is said is summed as single tokens are: its results depend on no cut and no neighbour
    /// either, and need fewer different graphs, but are not llama.cpp's bit for bit where it would take several tokens.
    pub fn set_piece(&mut self, piece: PromptPiece) {
        self.piece = Some(piece);
    }

    /// Tokens of one sequence from `first` on, a whole prompt if there are several; logits are wanted for the last one.
    #[must_use]
    pub fn of_sequence(sequence: SequenceId, first: Pos, tokens: &[TokenId]) -> Self {
        let last = tokens.len().wrapping_sub(1);
        let token = |(i, &token): (usize, &TokenId)| BatchToken {
            token,
            pos: Pos(first.0.saturating_add(i as u32)),
            sequences: SequenceSet::from_iter([sequence]),
            wants_logits: i == last,
        };
        let piece = PromptPiece { before: 0, all: tokens.len() as u32 };
        let piece = Some(piece).filter(|p| p.all > 1);
        Self { tokens: tokens.iter().enumerate().map(token).collect(), piece }
    }

    /// The tokens.
    #[must_use]
    pub fn tokens(&self) -> &[BatchToken] {
        &self.tokens
    }

    /// Checks that every sequence goes on where it ended: `next` gives the position that comes next in a sequence
    /// (`None`: any may). Positions within the batch must follow each other.
    pub(super) fn check(&self, sequences: u32, next: impl Fn(SequenceId) -> Option<Pos>) -> Result<(), BatchError> {
        if self.tokens.is_empty() {
            return Err(BatchError::Empty);
        }
        let mut expected: BTreeMap<SequenceId, Pos> = BTreeMap::new();
        for (index, token) in self.tokens.iter().enumerate() {
            if token.sequences.is_empty() {
                return Err(BatchError::NoSequence { index });
            }
            for sequence in token.sequences.iter() {
                let limit = sequences.min(MAX_SEQUENCES);
                if sequence.index() >= limit as usize {
                    return Err(BatchError::NoSuchSequence { sequence, limit });
                }
                let wanted = expected.get(&sequence).copied().or_else(|| next(sequence));
                if let Some(expected) = wanted.filter(|&p| p != token.pos) {
                    return Err(BatchError::Position { index, sequence, found: token.pos, expected });
                }
                expected.insert(sequence, token.pos.next());
            }
        }
        Ok(())
    }

    /// Cuts the batch into micro-batches of at most `limit` tokens, as llama.cpp does: in order where the cache is
    /// shared, else the same number of tokens from each of a run of consecutive sequences. Tokens that are summed in
    /// different orders are never together, but for a single prompt's last ones, which the order tells apart.
    pub fn split(&self, limit: u32, sharing: Sharing) -> Result<Vec<MicroBatch>, BatchError> {
        let limit = limit as usize;
        if limit == 0 {
            return Err(BatchError::ZeroMicroBatch);
        }
        let mut out = Vec::new();
        for (tokens, orders) in self.parts() {
            out.extend(cut(&tokens, &orders, limit, sharing)?);
        }
        Ok(out)
    }

    /// Tokens with their orders, in parts that may be cut anywhere.
    fn parts(&self) -> Vec<(Vec<MicroToken>, Vec<TokenOrder>)> {
        let indexed = self.tokens.iter().enumerate().map(|(batch_index, &token)| MicroToken { token, batch_index });
        let Some(piece) = self.piece else {
            let orders = vec![TokenOrder::default(); self.tokens.len()];
            return vec![(indexed.collect(), orders)];
        };
        let mut places: BTreeMap<Option<SequenceId>, u32> = BTreeMap::new();
        let mut order = |token: &BatchToken| {
            let place = places.entry(token.sequences.iter().next()).or_insert(piece.before);
            let at = *place;
            *place = at.saturating_add(1);
            TokenOrder::of(at, piece.all)
        };
        let all: Vec<(MicroToken, TokenOrder)> = indexed.map(|t| (t, order(&t.token))).collect();
        let single = places.len() < 2;
        // Every sequence has its orders one after the other, the first sequence the earliest: so have the parts.
        let key = |order: &TokenOrder| (order.columns, !single && order.is_tail);
        let mut parts: Vec<Vec<(MicroToken, TokenOrder)>> = Vec::new();
        for token in all {
            match parts.iter_mut().find(|part| key(&part[0].1) == key(&token.1)) {
                Some(part) => part.push(token),
                None => parts.push(vec![token]),
            }
        }
        parts.into_iter().map(|part| part.into_iter().unzip()).collect()
    }
}

/// How products with a token's column are summed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct TokenOrder {
    columns: ColumnOrder,
    /// Whether the token is left over when columns are taken four at a time.
    is_tail: bool,
}

impl TokenOrder {
    /// Of token `place` of a prompt of `all` tokens: llama.cpp takes 512 at a time.
    fn of(place: u32, all: u32) -> Self {
        const AT_ONCE: u32 = 512;
        let first = place / AT_ONCE * AT_ONCE;
        let columns = all.saturating_sub(first).min(AT_ONCE);
        let order = ColumnOrder::of_all(columns);
        Self { columns: ColumnOrder { tail: 0, ..order }, is_tail: place - first >= columns - u32::from(order.tail) }
    }

    /// The order of a micro-batch: the first token's, with the tail that it has: at most three tokens of each sequence.
    fn of_micro_batch(orders: &[Self]) -> ColumnOrder {
        let tail = orders.iter().rev().take_while(|o| o.is_tail).count();
        let columns = orders.first().copied().unwrap_or_default().columns;
        ColumnOrder { tail: tail.try_into().unwrap_or(u16::MAX), ..columns }
    }
}

fn cut(
    tokens: &[MicroToken],
    orders: &[TokenOrder],
    limit: usize,
    sharing: Sharing,
) -> Result<Vec<MicroBatch>, BatchError> {
    match sharing {
        Sharing::Unified => {
            let pieces = tokens.chunks(limit).zip(orders.chunks(limit));
            let micro = |(tokens, orders): (&[MicroToken], &[TokenOrder])| MicroBatch {
                tokens: tokens.to_vec(),
                sequences: Vec::new(),
                columns: TokenOrder::of_micro_batch(orders),
            };
            Ok(pieces.map(micro).collect())
        }
        Sharing::PerSequence => {
            let mut waiting: BTreeMap<SequenceId, Vec<(MicroToken, TokenOrder)>> = BTreeMap::new();
            for (&token, &order) in tokens.iter().zip(orders) {
                let index = token.batch_index;
                let sequence = token.token.sequences.only().ok_or(BatchError::Coupled { index })?;
                waiting.entry(sequence).or_default().push((token, order));
            }
            Ok(split_equal(waiting, limit))
        }
    }
}

/// Takes equal numbers of tokens from runs of consecutive sequences until nothing waits.
fn split_equal(mut waiting: BTreeMap<SequenceId, Vec<(MicroToken, TokenOrder)>>, limit: usize) -> Vec<MicroBatch> {
    let mut out = Vec::new();
    while let Some((&first, _)) = waiting.first_key_value() {
        let consecutive = waiting.keys().zip(first.index()..).take_while(|(id, i)| id.index() == *i);
        let run: Vec<SequenceId> = consecutive.map(|(id, _)| *id).take(limit).collect();
        let shortest = run.iter().map(|id| waiting[id].len()).min().unwrap_or(0);
        let each = shortest.min((limit / run.len()).max(1));
        let mut taken = Vec::with_capacity(each * run.len());
        for id in &run {
            if let Some(queue) = waiting.get_mut(id) {
                taken.extend(queue.drain(..each));
            }
        }
        waiting.retain(|_, queue| !queue.is_empty());
        let (tokens, orders): (Vec<MicroToken>, Vec<TokenOrder>) = taken.into_iter().unzip();
        out.push(MicroBatch { tokens, sequences: run, columns: TokenOrder::of_micro_batch(&orders) });
    }
    out
}

impl MicroBatch {
    /// The tokens, in the order in which the graph takes them.
    #[must_use]
    pub fn tokens(&self) -> &[MicroToken] {
        &self.tokens
    }

    /// How products with the tokens' columns are summed.
    #[must_use]
    pub fn columns(&self) -> ColumnOrder {
        self.columns
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens (never so for a batch that was split).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Places, in this micro-batch, of the tokens whose logits are wanted.
    pub fn outputs(&self) -> impl Iterator<Item = usize> + '_ {
        self.tokens.iter().enumerate().filter(|(_, t)| t.token.wants_logits).map(|(i, _)| i)
    }

    /// The tokens of each stream, with one of its sequences: all tokens where the cache is shared.
    pub(super) fn groups(&self) -> Vec<(Option<SequenceId>, &[MicroToken])> {
        if self.sequences.is_empty() {
            return vec![(None, &self.tokens)];
        }
        let each = self.tokens.len() / self.sequences.len();
        self.sequences.iter().map(|&s| Some(s)).zip(self.tokens.chunks(each.max(1))).collect()
    }
}
