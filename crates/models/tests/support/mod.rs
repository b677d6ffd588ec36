//! What the tests of this package share.
#![allow(dead_code)]

use loadmaster_models::SharedBytes;
use loadmaster_models::gguf::Gguf;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The golden data.
pub fn goldens() -> PathBuf {
    root().join("tests/goldens")
}

/// Reads a file.
pub fn read(path: &Path) -> std::io::Result<SharedBytes> {
    Ok(Arc::new(std::fs::read(path)?))
}

/// The path of a golden model, or of the one that is part of the program.
pub fn golden_path(name: &str) -> PathBuf {
    let embedded = root().join("assets").join(name);
    if embedded.exists() { embedded } else { goldens().join("models").join(name) }
}

/// Opens a golden model.
pub fn golden_model(name: &str) -> Gguf {
    Gguf::open(&golden_path(name), read).expect("a golden model opens")
}

/// Opens a real model that `scripts/fetch-model` puts into models/; `None`, with the reason printed, if it is not there.
pub fn fetched_model(script_name: &str, file: &str) -> Option<Gguf> {
    let path = root().join("models").join(file);
    if !path.exists() {
        eprintln!("skipped: models/{file} is not there; `scripts/fetch-model {script_name}` puts it there");
        return None;
    }
    Some(Gguf::open(&path, read).expect("a real model opens"))
}

/// A JSON file of the goldens.
pub fn golden_json(path: &str) -> serde_json::Value {
    let bytes = std::fs::read(goldens().join(path)).expect("golden data is there");
    serde_json::from_slice(&bytes).expect("golden data is JSON")
}
