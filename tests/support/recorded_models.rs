//! Tiny models whose logits are recorded, one of each family.

use loadmaster::engine::Model;
use std::path::Path;
use std::sync::Arc;

/// Their names.
pub const MODELS: [&str; 7] = [
    "tiny-llama-Q8_0",
    "tiny-gemma3-Q8_0",
    "tiny-mixtral-Q8_0",
    "tiny-phi3-Q4_1",
    "tiny-qwen2-Q4_0",
    "tiny-qwen3-Q5_K_M",
    "tiny-qwen3moe-Q4_K_M",
];

/// One of them.
pub fn recorded(name: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/goldens/models/{name}.gguf"));
    Arc::new(Model::open(&path).unwrap())
}
