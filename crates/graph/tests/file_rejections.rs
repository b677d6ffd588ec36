//! Files that are rejected: one for every limit and every kind of error, with the place that the error must name.
#![allow(clippy::unwrap_used, clippy::panic)]

use flate2::Compression;
use flate2::write::GzEncoder;
use loadmaster_graph::limits::{MAX_FILE_BYTES, MAX_NESTING, ReadLimits};
use loadmaster_graph::{FileError, GraphError, GraphFile};
use serde_json::{Value, json};
use std::io::Write;

/// A complete file: one leaf, one node on it, two devices.
fn valid() -> Value {
    json!({
        "format": "loadmaster-graph",
        "version": 1,
        "name": "small",
        "devices": [device("SIM0", "gpu", false), device("CPU", "cpu", true)],
        "n_copies": 1,
        "op_offload": false,
        "buffers": [{"id": 0, "buffer_type": "CPU", "usage": "weights", "host": true, "usable_by": [1]}],
        "pinned": {"1": 0},
        "nodes": [1],
        "leafs": [0],
        "tensors": [
            {"id": 0, "name": "w", "type": "f32", "op": "NONE", "ne": [4, 1, 1, 1], "nb": [4, 16, 16, 16],
             "flags": ["input"], "buffer": 0, "nbytes": 16, "alloc_sizes": [32, 16]},
            {"id": 1, "name": "y", "type": "f32", "op": "RMS_NORM", "ne": [4, 1, 1, 1], "nb": [4, 16, 16, 16],
             "src": [0], "op_params": [925_353_388], "nbytes": 16},
        ],
        "expected": {
            "node_devices": [1], "leaf_devices": [1],
            "splits": [{"device": 1, "start": 0, "end": 1, "inputs": [0]}],
            "alloc_graph": {
                "nodes": [{"keep": 0}, {"copy_of": 0, "device": 1, "copy": 0}, 1], "node_buffer_ids": [1, 1, 1],
                "leafs": [0], "leaf_buffer_ids": [1], "changed_src": {"1": [null]},
            },
            "buffer_sizes": [0, 64], "leaf_offsets": [null], "node_offsets": [null, null, [1, 0, 0, 32]],
        },
    })
}

fn device(name: &str, kind: &str, host: bool) -> Value {
    let buffer_type = json!({"name": name, "alignment": 32, "max_size": null, "host": host});
    json!({"name": name, "type": kind, "buffer_type": buffer_type})
}

/// The error after setting the value at a JSON pointer (its parent must exist).
fn error(pointer: &str, value: Value) -> FileError {
    error_within(&ReadLimits::default(), pointer, value)
}

fn error_within(limits: &ReadLimits, pointer: &str, value: Value) -> FileError {
    let mut file = valid();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = file.pointer_mut(parent).unwrap();
    match parent {
        Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
        parent => parent[key] = value,
    }
    match GraphFile::from_bytes_within(file.to_string().as_bytes(), limits) {
        Ok(_) => panic!("{pointer} is accepted"),
        Err(error) => error,
    }
}

#[track_caller]
fn assert_limit(error: &FileError, place: &str, limit: usize) {
    let FileError::Limit { place: found, limit: at, .. } = error else { panic!("{error}") };
    assert_eq!((found.as_str(), *at), (place, limit), "{error}");
}

#[track_caller]
fn assert_says(error: &FileError, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "`{text}` does not contain `{word}`");
    }
}

#[test]
fn the_file_that_the_other_tests_break_is_valid() {
    let file = GraphFile::from_bytes(valid().to_string().as_bytes()).unwrap();
    assert_eq!(GraphFile::from_bytes(&file.to_gzip().unwrap()).unwrap(), file);
}

#[test]
fn unknown_keys_are_skipped_and_optional_ones_may_be_missing() {
    let mut file = valid();
    file["remark"] = json!({"by": ["someone"]});
    file["tensors"][0]["colour"] = json!("red");
    let file_keys = file.as_object_mut().unwrap();
    file_keys.remove("expected");
    file_keys.remove("pinned");
    let read = GraphFile::from_bytes(file.to_string().as_bytes()).unwrap();
    assert!(read.expected.is_none() && read.pinned.is_empty());
}

#[test]
fn a_file_longer_than_the_limit() {
    let text = valid().to_string();
    let limits = ReadLimits { file_bytes: text.len() - 1, ..ReadLimits::default() };
    assert_limit(&GraphFile::from_bytes_within(text.as_bytes(), &limits).unwrap_err(), "file", text.len() - 1);
    let exact = ReadLimits { file_bytes: text.len(), ..ReadLimits::default() };
    assert!(GraphFile::from_bytes_within(text.as_bytes(), &exact).is_ok());
}

#[test]
fn a_gzip_bomb() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    let spaces = vec![b' '; 1 << 20];
    for _ in 0..=MAX_FILE_BYTES >> 20 {
        gzip.write_all(&spaces).unwrap();
    }
    let bomb = gzip.finish().unwrap();
    assert!(bomb.len() < MAX_FILE_BYTES / 50);
    assert_limit(&GraphFile::from_bytes(&bomb).unwrap_err(), "file after decompression", MAX_FILE_BYTES);
}

#[test]
fn nesting_deeper_than_the_limit() {
    for open in ["[", "{\"a\":"] {
        let deep = format!("{{\"remark\":{}", open.repeat(1_000_000));
        let error = GraphFile::from_bytes(deep.as_bytes()).unwrap_err();
        assert_limit(&error, "nesting of objects and arrays", MAX_NESTING);
    }
    let mut brackets_in_a_name = valid();
    brackets_in_a_name["name"] = json!("[".repeat(100) + "\\\"" + &"{".repeat(100));
    assert!(GraphFile::from_bytes(brackets_in_a_name.to_string().as_bytes()).is_ok());
}

#[test]
fn counts_above_their_limits() {
    let limits = ReadLimits {
        tensors: 2,
        sources: 2,
        op_params: 2,
        name_len: 8,
        devices: 2,
        buffers: 1,
        copies: 4,
        list_len: 3,
        ..ReadLimits::default()
    };
    assert!(GraphFile::from_bytes_within(valid().to_string().as_bytes(), &limits).is_ok());
    let check = |pointer: &str, value: Value, place: &str, limit: usize| {
        assert_limit(&error_within(&limits, pointer, value), place, limit);
    };
    let tensor = valid()["tensors"][0].clone();
    check("/tensors", json!([tensor, tensor, tensor]), "tensors", 2);
    check("/tensors/1/src", json!([0, 0, 0]), "tensor 1 key `src`", 2);
    check("/tensors/1/op_params", json!([1, 2, 3]), "tensor 1 key `op_params`", 2);
    check("/tensors/1/name", json!("far too long"), "tensor 1 key `name`", 8);
    check("/tensors/0/flags", json!(["input", "input", "input", "input", "input"]), "tensor 0 key `flags`", 4);
    check("/tensors/0/alloc_sizes", json!([16, 16, 16]), "tensor 0 key `alloc_sizes`", 2);
    check("/name", json!("far too long"), "name", 8);
    let device = device("D", "gpu", false);
    check("/devices", json!([device, device, device]), "devices", 2);
    check("/devices/0/name", json!("far too long"), "device 0 key `name`", 8);
    check("/devices/1/buffer_type/name", json!("far too long"), "device 1 key `buffer_type.name`", 8);
    let buffer = valid()["buffers"][0].clone();
    check("/buffers", json!([buffer, buffer]), "buffers", 1);
    check("/buffers/0/buffer_type", json!("far too long"), "buffer 0 key `buffer_type`", 8);
    check("/buffers/0/usable_by", json!([0, 1, 0]), "buffer 0 key `usable_by`", 2);
    check("/n_copies", json!(5), "n_copies", 4);
    check("/nodes", json!([1, 1, 1, 1]), "nodes", 3);
    check("/leafs", json!([0, 0, 0, 0]), "leafs", 3);
    let split = valid()["expected"]["splits"][0].clone();
    check("/expected/splits", json!([split, split, split, split]), "expected.splits", 3);
    check("/expected/splits/0/inputs", json!([0, 0, 0, 0]), "expected.splits[0]", 3);
    check("/expected/node_devices", json!([0, 0, 0, 0]), "expected.node_devices", 3);
    check("/expected/leaf_devices", json!([0, 0, 0, 0]), "expected.leaf_devices", 3);
    check("/expected/alloc_graph/nodes", json!([0, 0, 0, 0]), "expected.alloc_graph.nodes", 3);
    check("/expected/alloc_graph/leafs", json!([0, 0, 0, 0]), "expected.alloc_graph.leafs", 3);
    check("/expected/alloc_graph/changed_src/1", json!([0, 0, 0]), "expected.alloc_graph.changed_src[1]", 2);
}

#[test]
fn text_that_is_no_json_names_line_and_column() {
    assert_says(&GraphFile::from_bytes(b"").unwrap_err(), &["file", "line 1"]);
    assert_says(&GraphFile::from_bytes(b"{\"format\":}").unwrap_err(), &["line 1 column 11"]);
    let text = valid().to_string();
    assert_says(&GraphFile::from_bytes(&text.as_bytes()[..text.len() / 2]).unwrap_err(), &["line 1 column"]);
    assert_says(&GraphFile::from_bytes(b"{\"name\":\"\xff\"}").unwrap_err(), &["line 1 column"]);
}

#[test]
fn values_of_the_wrong_kind_name_their_place() {
    assert_says(&error("/tensors/1/ne", json!([4, -1, 1, 1])), &["tensors[1].ne[1]", "-1"]);
    assert_says(&error("/tensors/1/ne", json!([4, 1, 1])), &["tensors[1].ne", "length"]);
    assert_says(&error("/tensors/0/nb", json!(["x", 1, 1, 1])), &["tensors[0].nb[0]"]);
    assert_says(&error("/tensors/1/src", json!([1.5])), &["tensors[1].src"]);
    assert_says(&error("/tensors/1/op_params", json!([4_294_967_296_u64])), &["tensors[1].op_params[0]"]);
    assert_says(
        &error("/expected/alloc_graph/nodes", json!([{"keep": 0, "copy": 1}])),
        &["alloc_graph.nodes[0]", "either"],
    );
    assert_says(&error("/expected/alloc_graph/nodes", json!([{"held": 0}])), &["alloc_graph.nodes[0]", "held"]);
    assert_says(&error("/pinned", json!({"x": 0})), &["pinned"]);
    assert_says(&error("/devices/0/buffer_type", json!(null)), &["devices[0].buffer_type"]);
}

#[test]
fn missing_keys_are_named() {
    for key in ["format", "devices", "n_copies", "op_offload", "buffers", "nodes", "leafs", "tensors", "name"] {
        let mut file = valid();
        file.as_object_mut().unwrap().remove(key);
        assert_says(&GraphFile::from_bytes(file.to_string().as_bytes()).unwrap_err(), &["missing field", key]);
    }
    let mut file = valid();
    file["tensors"][1].as_object_mut().unwrap().remove("op");
    let error = GraphFile::from_bytes(file.to_string().as_bytes()).unwrap_err();
    assert_says(&error, &["tensors[1]", "missing field `op`"]);
}

#[test]
fn other_formats_and_versions() {
    assert!(matches!(error("/format", json!("gguf")), FileError::Format { found, .. } if found == "gguf"));
    assert!(matches!(error("/version", json!(2)), FileError::Version { found: 2, supported: 1 }));
    let newer = br#"{"format":"loadmaster-graph","version":7,"tensors":"elsewhere"}"#;
    assert!(matches!(GraphFile::from_bytes(newer).unwrap_err(), FileError::Version { found: 7, .. }));
}

#[test]
fn unknown_names() {
    let check = |pointer: &str, place: &str, what: &str| {
        let error = error(pointer, json!("NONSENSE"));
        let FileError::UnknownName { place: at, what: kind, name } = &error else { panic!("{error}") };
        assert_eq!((at.as_str(), *kind, name.as_str()), (place, what, "NONSENSE"));
    };
    check("/tensors/1/op", "tensor 1 key `op`", "operation");
    check("/tensors/0/type", "tensor 0 key `type`", "type");
    check("/tensors/0/flags/0", "tensor 0 key `flags`", "flag");
    check("/devices/0/type", "device 0 key `type`", "device type");
    check("/buffers/0/usage", "buffer 0 key `usage`", "usage");
}

#[test]
fn references_to_nothing() {
    let check = |pointer: &str, value: Value, place: &str, index: u64, count: usize| {
        let error = error(pointer, value);
        let FileError::Reference { place: at, index: found, count: of } = &error else { panic!("{error}") };
        assert_eq!((at.as_str(), *found, *of), (place, index, count));
    };
    check("/nodes", json!([2]), "nodes (a tensor)", 2, 2);
    check("/leafs", json!([u32::MAX]), "leafs (a tensor)", u64::from(u32::MAX), 2);
    check("/tensors/1/src", json!([null, 3]), "tensor 1 key `src`", 3, 2);
    check("/tensors/1/view_src", json!(u32::MAX), "tensor 1 key `view_src`", u64::from(u32::MAX), 2);
    check("/tensors/0/buffer", json!(1), "tensor 0 key `buffer`", 1, 1);
    check("/buffers/0/usable_by", json!([2]), "buffer 0 key `usable_by` (a device)", 2, 2);
    check("/pinned", json!({"5": 0}), "pinned (a tensor)", 5, 2);
    check("/pinned", json!({"1": 2}), "pinned (a device)", 2, 2);
    check("/expected/node_devices", json!([4]), "expected.node_devices (a device)", 4, 2);
    check("/expected/splits/0/end", json!(2), "expected.splits[0]", 2, 1);
    check("/expected/splits/0/end", json!(u32::MAX), "expected.splits[0]", u64::from(u32::MAX), u32::MAX as usize);
    check("/expected/alloc_graph/nodes/0/keep", json!(2), "expected.alloc_graph.nodes (a tensor)", 2, 2);
    check(
        "/expected/alloc_graph/changed_src",
        json!({"9": []}),
        "expected.alloc_graph.changed_src[9] (a tensor)",
        9,
        2,
    );
    check("/expected/node_offsets/2/0", json!(2), "expected.node_offsets (a device)", 2, 2);
}

#[test]
fn values_that_contradict_each_other() {
    let check = |pointer: &str, value: Value, place: &str| {
        let error = error(pointer, value);
        let FileError::Value { place: at, .. } = &error else { panic!("{error}") };
        assert_eq!(at, place);
    };
    check("/tensors/1/id", json!(0), "tensor 1 key `id`");
    check("/buffers/0/id", json!(1), "buffer 0 key `id`");
    check("/tensors/1/view_offs", json!(0), "tensor 1 key `view_offs`");
    check("/devices/0/buffer_type/alignment", json!(48), "device 0 key `alignment`");
    check("/devices/0/buffer_type/alignment", json!(0), "device 0 key `alignment`");
    check("/tensors/0/alloc_sizes", json!([15, 16]), "tensor 0 key `alloc_sizes`");
    check("/n_copies", json!(0), "n_copies");
    check("/expected/splits/0", json!({"device": 0, "start": 1, "end": 0, "inputs": []}), "expected.splits[0]");
    let no_devices = GraphFile { devices: [].into_iter().collect(), ..read_valid() };
    assert!(matches!(no_devices.to_json(), Err(FileError::Value { .. } | FileError::Reference { .. })));
}

fn read_valid() -> GraphFile {
    GraphFile::from_bytes(valid().to_string().as_bytes()).unwrap()
}

#[test]
fn lists_of_the_wrong_length() {
    let check = |pointer: &str, value: Value, place: &str, found: usize, expected: usize| {
        let error = error(pointer, value);
        let FileError::Length { place: at, found: is, expected: should } = &error else { panic!("{error}") };
        assert_eq!((at.as_str(), *is, *should), (place, found, expected));
    };
    check("/tensors/0/alloc_sizes", json!([16]), "tensor 0 key `alloc_sizes`", 1, 2);
    check("/expected/node_devices", json!([0, 0]), "expected.node_devices", 2, 1);
    check("/expected/leaf_devices", json!([]), "expected.leaf_devices", 0, 1);
    check("/expected/alloc_graph/node_buffer_ids", json!([0]), "expected.alloc_graph.node_buffer_ids", 1, 3);
    check("/expected/alloc_graph/leaf_buffer_ids", json!([]), "expected.alloc_graph.leaf_buffer_ids", 0, 1);
    check("/expected/buffer_sizes", json!([0]), "expected.buffer_sizes", 1, 2);
    check("/expected/node_offsets", json!([null]), "expected.node_offsets", 1, 3);
    check("/expected/leaf_offsets", json!([]), "expected.leaf_offsets", 0, 1);
}

#[test]
fn a_value_whose_lists_do_not_fit_the_graph_is_not_written() {
    let mut file = read_valid();
    file.external = [true].into_iter().collect();
    assert!(matches!(file.to_json(), Err(FileError::Length { found: 1, expected: 2, .. })));
}

#[test]
fn a_size_that_is_not_what_the_shape_gives() {
    let error = error("/tensors/1/nbytes", json!(17));
    assert_says(&error, &["t1 `y`", "nbytes", "17", "16"]);
    assert!(matches!(error, FileError::SizeMismatch { .. }));
}

#[test]
fn a_graph_that_the_verifier_rejects() {
    let cycle = error("/tensors/1/src", json!([1]));
    assert!(matches!(cycle, FileError::Graph(GraphError::Cycle { .. })), "{cycle}");
    assert_says(&cycle, &["t1 `y`"]);
}

#[test]
fn damaged_gzip_and_missing_files() {
    let gzip = read_valid().to_gzip().unwrap();
    let cut = GraphFile::from_bytes(&gzip[..gzip.len() - 9]).unwrap_err();
    assert!(matches!(cut, FileError::Gzip { .. }), "{cut}");
    let mut flipped = gzip.clone();
    let last = flipped.len() - 5;
    flipped[last] ^= 1;
    assert!(matches!(GraphFile::from_bytes(&flipped).unwrap_err(), FileError::Gzip { .. }));
    let missing = GraphFile::read_path("no/such/file.json").unwrap_err();
    assert_says(&missing, &["no/such/file.json"]);
}
