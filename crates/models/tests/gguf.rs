//! GGUF files: golden models, hand-made ones, hostile ones.

#![allow(clippy::unwrap_used, clippy::panic)]

use loadmaster_graph::{Bytes, DType};
use loadmaster_models::SharedBytes;
use loadmaster_models::gguf::{Gguf, GgufError, GgufFault, MetaValue, OpenError, Subject, Writer, limits};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/models")
}

fn read(path: &Path) -> std::io::Result<SharedBytes> {
    Ok(Arc::new(std::fs::read(path)?))
}

fn parse(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
    Gguf::from_bytes(Arc::new(bytes))
}

fn fault(bytes: Vec<u8>) -> GgufError {
    parse(bytes).expect_err("the file is refused")
}

fn small() -> Writer {
    Writer::new()
        .with("general.architecture", MetaValue::String("llama".into()))
        .with("llama.block_count", MetaValue::U32(2))
        .with_tensor("a", DType::F32, &[8, 2], vec![1; 64])
        .with_tensor("b", DType::Q8_0, &[32, 3], vec![2; 102])
}

/// The golden files below `dir` that end in `.gguf`.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("goldens are there")
        .map(|e| e.expect("readable").path())
        .filter(|p| p.extension().is_some_and(|e| e == "gguf"))
        .collect();
    out.sort();
    assert!(!out.is_empty());
    out
}

#[test]
fn every_golden_model_opens_and_every_tensor_has_its_data() {
    for path in files(&goldens()) {
        let model = Gguf::open(&path, read).expect("opens");
        assert!(!model.is_header_only());
        for info in model.tensors() {
            let id = model.find(&info.name).expect("found by name");
            let data = model.data(id).expect("data");
            assert_eq!(Some(Bytes(data.len() as u64)), info.size, "{}", info.name);
        }
    }
}

#[test]
fn a_header_alone_can_be_listed_but_not_loaded() {
    for path in files(&goldens().join("headers")) {
        let model = Gguf::open(&path, read).expect("opens");
        assert!(model.is_header_only());
        let id = model.find("token_embd.weight").expect("listed");
        assert!(model.tensor(id).size.expect("known type") > Bytes::mib(1));
        let error = model.data(id).expect_err("no data");
        assert_eq!(error.fault, GgufFault::HeaderOnly);
        assert_eq!(error.place.subject, Subject::Tensor("token_embd.weight".into()));
    }
}

#[test]
fn metadata_keeps_its_types_and_order() {
    let model =
        Gguf::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/alice-Q8_0.gguf"), read).expect("opens");
    let keys: Vec<&str> = model.metadata().map(|(k, _)| k).collect();
    assert_eq!(&keys[..3], ["general.architecture", "general.name", "general.description"]);
    assert_eq!(model.value("llama.block_count").and_then(|v| v.as_u64()), Some(6));
    assert_eq!(model.value("tokenizer.ggml.add_bos_token").and_then(|v| v.as_bool()), Some(true));
    let tokens = model.value("tokenizer.ggml.tokens").and_then(|v| v.as_array()).expect("an array");
    assert_eq!(tokens.len(), 512);
    assert_eq!(tokens.strings().expect("strings").next(), Some(&b"<|endoftext|>"[..]));
    assert_eq!(model.value("no.such.key"), None);
}

#[test]
fn what_the_writer_writes_the_reader_reads() {
    let bytes = small().with("x", MetaValue::F32s(vec![0.5, -1.0])).bytes();
    let model = parse(bytes).expect("reads");
    assert_eq!(model.version(), 3);
    let values: Vec<f32> = model
        .value("x")
        .and_then(|v| v.as_array())
        .expect("array")
        .iter()
        .map(|v| v.expect("fine").as_f32().expect("float"))
        .collect();
    assert_eq!(values, [0.5, -1.0]);
    let b = model.find("b").expect("b");
    assert_eq!(model.tensor(b).ne, [32, 3, 1, 1]);
    assert_eq!(model.data(b).expect("data"), &[2; 102]);
}

#[test]
fn version_two_is_read_and_others_are_refused_by_number() {
    let mut bytes = small().bytes();
    bytes[4] = 2;
    assert_eq!(parse(bytes.clone()).expect("reads").version(), 2);
    bytes[4] = 1;
    assert_eq!(fault(bytes.clone()).fault, GgufFault::Version { version: 1 });
    bytes[4] = 0;
    bytes[7] = 3;
    assert_eq!(fault(bytes).fault, GgufFault::BigEndian);
    assert!(matches!(fault(b"GGML....".to_vec()).fault, GgufFault::Magic { .. }));
    assert!(matches!(fault(Vec::new()).fault, GgufFault::Magic { .. }));
}

#[test]
fn every_truncation_is_an_error_or_the_bare_header() {
    let bytes = small().bytes();
    let header = small().header().len();
    for len in 0..bytes.len() {
        match parse(bytes[..len].to_vec()) {
            // Between the end of the table and the aligned start of the data, a file counts as a header, too.
            Ok(model) => assert!(model.is_header_only() && len <= header || len >= header + 64 + 102, "{len}"),
            Err(e) => assert!(matches!(
                e.fault,
                GgufFault::Truncated { .. } | GgufFault::Magic { .. } | GgufFault::OutOfFile { .. }
            )),
        }
    }
}

#[test]
fn faults_name_the_key_or_the_tensor() {
    let twice = small().with("llama.block_count", MetaValue::U32(3)).bytes();
    let error = fault(twice);
    assert_eq!((error.fault, error.place.subject), (GgufFault::Duplicate, Subject::Key("llama.block_count".into())));

    let error = fault(small().with_tensor("a", DType::F32, &[1], vec![0; 4]).bytes());
    assert_eq!((error.fault, error.place.subject), (GgufFault::Duplicate, Subject::Tensor("a".into())));

    let error = fault(small().with("k", MetaValue::Raw(13, vec![])).bytes());
    assert_eq!((error.fault, error.place.subject), (GgufFault::ValueType { number: 13 }, Subject::Key("k".into())));

    let error = fault(small().with("k", MetaValue::Raw(7, vec![2])).bytes());
    assert_eq!(error.fault, GgufFault::Bool { value: 2 });

    let error = fault(small().with("k", MetaValue::Raw(8, [&2u64.to_le_bytes()[..], &[b'x', 0xff]].concat())).bytes());
    assert_eq!(error.fault, GgufFault::Utf8 { valid_up_to: 1 });
}

#[test]
fn every_limit_is_enforced() {
    let limit_of = |bytes: Vec<u8>| match fault(bytes).fault {
        GgufFault::Limit { what, limit, .. } => (what, limit),
        other => unreachable!("a limit was expected, not: {other}"),
    };
    let with_u64 = |at: usize, value: u64| {
        let mut bytes = small().bytes();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    assert_eq!(limit_of(with_u64(8, limits::MAX_TENSORS + 1)), ("tensor count", limits::MAX_TENSORS));
    assert_eq!(limit_of(with_u64(16, limits::MAX_METADATA + 1)), ("metadata count", limits::MAX_METADATA));
    assert_eq!(limit_of(with_u64(24, limits::MAX_KEY_LEN + 1)), ("key length", limits::MAX_KEY_LEN));

    let array = |ty: u32, len: u64| [&ty.to_le_bytes()[..], &len.to_le_bytes()[..]].concat();
    let raw = |number: u32, bytes: Vec<u8>| small().with("k", MetaValue::Raw(number, bytes)).bytes();
    let long = (limits::MAX_STRING_LEN + 1).to_le_bytes().to_vec();
    assert_eq!(limit_of(raw(8, long)), ("string length", limits::MAX_STRING_LEN));
    assert_eq!(limit_of(raw(9, array(0, limits::MAX_ARRAY_LEN + 1))), ("array length", limits::MAX_ARRAY_LEN));
    let deep: Vec<u8> = (0..=limits::MAX_NESTING).flat_map(|_| array(9, 1)).chain(array(0, 0)).collect();
    assert_eq!(limit_of(raw(9, deep)), ("array nesting", limits::MAX_NESTING.into()));
    let fine: Vec<u8> = (0..limits::MAX_NESTING).flat_map(|_| array(9, 1)).chain(array(0, 0)).collect();
    assert!(parse(raw(9, fine)).is_ok());

    let long_name = "n".repeat(limits::MAX_TENSOR_NAME_LEN as usize + 1);
    let named = small().with_tensor(&long_name, DType::F32, &[1], vec![0; 4]).bytes();
    assert_eq!(limit_of(named), ("tensor name length", limits::MAX_TENSOR_NAME_LEN));
    let five = small().with_tensor("five", DType::F32, &[1; 5], vec![0; 4]).bytes();
    assert_eq!(limit_of(five), ("number of dimensions", limits::MAX_DIMS.into()));

    for value in [0, 24, 2 << 20] {
        let error = fault(small().with("general.alignment", MetaValue::U32(value)).bytes());
        assert!(matches!(error.fault, GgufFault::Alignment { value: v, .. } if v == u64::from(value)));
    }
    let claims = with_u64(8, limits::MAX_TENSORS);
    assert!(matches!(fault(claims).fault, GgufFault::Truncated { .. }));
}

#[test]
fn tensor_tables_that_lie_are_refused() {
    let huge = small().with_tensor("h", DType::F32, &[1 << 31, 1 << 31, 4], vec![]).bytes();
    assert!(matches!(fault(huge).fault, GgufFault::Extents { dtype: "f32", .. }));
    let partial = small().with_tensor("p", DType::Q4K, &[100], vec![]).bytes();
    assert!(matches!(fault(partial).fault, GgufFault::Extents { dtype: "q4_K", .. }));
    let outside = small().with_tensor("o", DType::F32, &[1000], vec![0; 8]).bytes();
    assert!(matches!(fault(outside).fault, GgufFault::OutOfFile { .. }));

    let mut bytes = small().bytes();
    let table = small().header().len();
    // The last offset of the table: the last 8 bytes before the padding; b lies at 64.
    let at = (0..table).rev().find(|&i| bytes[i..i + 8] == 64u64.to_le_bytes()).expect("the offset of b");
    bytes[at..at + 8].copy_from_slice(&32u64.to_le_bytes());
    assert_eq!(fault(bytes.clone()).fault, GgufFault::Overlap { other: "a".into() });
    bytes[at..at + 8].copy_from_slice(&33u64.to_le_bytes());
    assert_eq!(fault(bytes.clone()).fault, GgufFault::Misaligned { offset: 33, alignment: 32 });
    bytes[at..at + 8].copy_from_slice(&(u64::MAX - 31).to_le_bytes());
    assert!(matches!(fault(bytes).fault, GgufFault::OutOfFile { .. }));
}

#[test]
fn a_tensor_of_an_unknown_type_is_listed_but_not_read() {
    let model = parse(small().with_raw_tensor("odd", 99, &[7], vec![0; 5]).bytes()).expect("opens");
    let odd = model.find("odd").expect("listed");
    assert_eq!((model.tensor(odd).dtype, model.tensor(odd).size), (None, None));
    assert_eq!(model.data(odd).expect_err("no size").fault, GgufFault::TensorType { number: 99 });
    assert!(model.data(model.find("a").expect("a")).is_ok());
}

fn shard(number: u16, count: u16, tensors: i32) -> Writer {
    Writer::new()
        .with("split.no", MetaValue::U16(number))
        .with("split.count", MetaValue::U16(count))
        .with("split.tensors.count", MetaValue::I32(tensors))
        .with_tensor(&format!("t{number}"), DType::F32, &[4], vec![number as u8; 16])
}

#[test]
fn a_split_model_is_joined_from_any_of_its_files() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for number in 0..3 {
        let path = dir.path().join(format!("m-{:05}-of-00003.gguf", number + 1));
        std::fs::write(path, shard(number, 3, 3).bytes()).expect("written");
    }
    for named in ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"] {
        let model = Gguf::open(&dir.path().join(named), read).expect("opens");
        assert_eq!(model.tensors().len(), 3);
        for number in 0..3u8 {
            let id = model.find(&format!("t{number}")).expect("joined");
            assert_eq!(model.data(id).expect("data"), &[number; 16]);
        }
    }
    let lost = dir.path().join("renamed.gguf");
    std::fs::copy(dir.path().join("m-00001-of-00003.gguf"), &lost).expect("copied");
    assert!(matches!(Gguf::open(&lost, read), Err(OpenError::ShardName { count: 3, .. })));
    std::fs::remove_file(dir.path().join("m-00002-of-00003.gguf")).expect("removed");
    let error = Gguf::open(&dir.path().join("m-00001-of-00003.gguf"), read).expect_err("a file is missing");
    assert!(error.to_string().contains("m-00002-of-00003.gguf"), "{error}");
}

#[test]
fn files_of_a_split_model_that_do_not_belong_together_are_refused() {
    let join = |files: Vec<Writer>| {
        Gguf::from_shards(files.iter().map(|w| Arc::new(w.bytes()) as SharedBytes).collect()).map_err(|e| e.fault)
    };
    assert!(join(vec![shard(0, 2, 2), shard(1, 2, 2)]).is_ok());
    assert!(matches!(join(vec![shard(1, 2, 2), shard(0, 2, 2)]), Err(GgufFault::ShardNumber { found: 1, .. })));
    assert!(matches!(join(vec![shard(0, 2, 2)]), Err(GgufFault::ShardCount { expected: 2, found: 1 })));
    assert!(matches!(join(vec![shard(0, 3, 2), shard(1, 3, 2)]), Err(GgufFault::ShardCount { .. })));
    assert!(matches!(
        join(vec![shard(0, 2, 5), shard(1, 2, 5)]),
        Err(GgufFault::TensorCount { expected: 5, found: 2 })
    ));
    assert!(matches!(join(vec![]), Err(GgufFault::Limit { .. })));
    let twice = shard(1, 2, 3).with_tensor("t0", DType::F32, &[1], vec![0; 4]);
    assert!(matches!(join(vec![shard(0, 2, 3), twice]), Err(GgufFault::Duplicate)));
}
