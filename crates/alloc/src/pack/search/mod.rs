//! The exact search: place or postpone.

mod cliques;
#[cfg(test)]
mod exhaustive;
mod instance;
mod memo;
mod orders;
mod rounds;
mod state;
mod tree;

pub(super) use instance::Instance;
pub(super) use rounds::Search;
pub(super) use tree::Outcome;
