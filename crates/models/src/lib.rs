//! GGUF files, hyper-parameters, tokenizers, sampling, KV cache bookkeeping and the graphs of the llama family.
//!
//! Knows graphs, but no devices: where a tensor lives is decided elsewhere, from the layer that each tensor says it
//! belongs to.

pub mod chat;
pub mod families;
pub mod fuzz;
pub mod gguf;
pub mod hparams;
pub mod inputs;
pub mod kv;
mod random;
pub mod sampling;
pub mod tokenizer;

/// The bytes of a file: a memory map (`loadmaster_backends::mmap`), a vector, or bytes in the program itself.
pub type SharedBytes = std::sync::Arc<dyn AsRef<[u8]> + Send + Sync>;
