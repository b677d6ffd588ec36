//! The fuzz targets, for about a second: damaged golden files, damaged texts, random instructions to the builder.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Random, golden_paths, text};
use loadmaster_graph::fuzz::{fuzz_builder, fuzz_graph_file, fuzz_text};
use loadmaster_graph::{GraphFile, Op};
use serde_json::{Value, json};

/// The smaller golden files, as text.
fn small_files() -> Vec<String> {
    let texts = golden_paths().into_iter().map(|path| text(&std::fs::read(path).unwrap()));
    let mut small: Vec<_> = texts.filter(|text| text.len() < 60_000).collect();
    small.truncate(16);
    assert_eq!(small.len(), 16);
    small
}

#[test]
fn golden_files_with_flipped_bits() {
    let files = small_files();
    let mut random = Random(1);
    for _ in 0..500 {
        let mut bytes = random.pick(&files).clone().into_bytes();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        fuzz_graph_file(&bytes);
    }
}

#[test]
fn golden_files_cut_short_or_doubled() {
    let files = small_files();
    let mut random = Random(2);
    for _ in 0..300 {
        let bytes = random.pick(&files).as_bytes();
        let (from, to) = (random.below(bytes.len()), random.below(bytes.len()));
        fuzz_graph_file(&bytes[..from]);
        // A piece left out, or repeated.
        fuzz_graph_file(&[&bytes[..from], &bytes[to..]].concat());
    }
}

#[test]
fn compressed_golden_files_with_flipped_bits() {
    let paths = golden_paths();
    let mut random = Random(3);
    for _ in 0..200 {
        let mut bytes = std::fs::read(random.pick(&paths)).unwrap();
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
        fuzz_graph_file(&bytes);
    }
}

#[test]
fn golden_files_with_other_values() {
    let files: Vec<Value> = small_files().iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    let mut random = Random(4);
    let mut accepted = 0;
    for _ in 0..700 {
        let mut file = random.pick(&files).clone();
        for _ in 0..=random.below(2) {
            change(&mut file, &mut random);
        }
        let bytes = file.to_string().into_bytes();
        accepted += usize::from(GraphFile::from_bytes(&bytes).is_ok());
        fuzz_graph_file(&bytes);
    }
    // Else the damage is too coarse to get past the parser.
    assert!((20..680).contains(&accepted), "{accepted}");
}

/// Changes one value somewhere: goes down a random path, and stops at a leaf or now and then before.
fn change(value: &mut Value, random: &mut Random) {
    let stop = random.below(20) == 0;
    match value {
        Value::Array(items) if stop && items.len() > 1 => match random.below(3) {
            0 => drop(items.pop()),
            1 => items.swap(0, random.below(2)),
            _ => items.push(items[0].clone()),
        },
        Value::Array(items) if !items.is_empty() => {
            let at = random.below(items.len());
            change(&mut items[at], random);
        }
        Value::Object(entries) if !entries.is_empty() => {
            let key = entries.keys().nth(random.below(entries.len())).unwrap().clone();
            if stop {
                entries.remove(&key);
            } else {
                change(&mut entries[&key], random);
            }
        }
        leaf => *leaf = other_value(leaf, random),
    }
}

fn other_value(old: &Value, random: &mut Random) -> Value {
    let near = old.as_u64().unwrap_or(0);
    let others = [
        json!(near.wrapping_add(1)),
        json!(near.wrapping_sub(1)),
        json!(near.wrapping_mul(2)),
        json!(0),
        json!(1),
        json!(-1),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(1_u64 << 62),
        json!(0.5),
        json!(null),
        json!(true),
        json!("f32"),
        json!("VIEW"),
        json!("q4_K"),
        json!([]),
        json!({"keep": 0}),
    ];
    random.pick(&others).clone()
}

#[test]
fn texts_with_flipped_bits_and_swapped_lines() {
    let files = small_files();
    let texts: Vec<_> =
        files.iter().map(|text| GraphFile::from_bytes(text.as_bytes()).unwrap().graph.to_text()).collect();
    let mut random = Random(5);
    for _ in 0..500 {
        let text = random.pick(&texts);
        let mut bytes = text.clone().into_bytes();
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(7);
        fuzz_text(&bytes);
        let mut lines: Vec<_> = text.lines().collect();
        let (one, other) = (random.below(lines.len()), random.below(lines.len()));
        lines.swap(one, other);
        fuzz_text(lines.join("\n").as_bytes());
    }
}

#[test]
fn random_instructions_to_the_builder() {
    let mut random = Random(6);
    let mut ops = std::collections::BTreeMap::<Op, usize>::new();
    for _ in 0..3000 {
        let bytes: Vec<u8> = (0..random.below(400)).map(|_| random.next() as u8).collect();
        let graph = fuzz_builder(&bytes).unwrap();
        for &id in graph.nodes().values() {
            *ops.entry(graph.tensor(id).op).or_default() += 1;
        }
    }
    // Else the instructions are refused too often to find anything.
    let common = ops.values().filter(|&&count| count >= 20).count();
    assert!(common >= 45, "{ops:?}");
}
