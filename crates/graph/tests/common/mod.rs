//! Golden files for tests.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::io::Read;
use std::path::PathBuf;

/// The golden graph files, sorted.
pub fn golden_paths() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/graphs");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".json.gz"))
        .collect();
    paths.sort();
    paths
}

/// The text of a golden file.
pub fn text(gzip: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(gzip).read_to_string(&mut text).unwrap();
    text
}
