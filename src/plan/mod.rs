//! What a model takes on a machine, before anything is loaded.

pub mod llama_cpp;
