//! What a model takes on a machine, before anything is loaded; where it fits best; and why.

pub mod advice;
pub mod choices;
pub mod fit;
pub mod llama_cpp;
pub mod longest;
pub mod saved;

pub use choices::{Choices, ChoicesError};
