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

/// Random numbers from a seed (SplitMix64): equal on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
