//! Every golden graph file is read, and what is written is what was read.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{golden_paths, text};
use loadmaster_graph::file::AllocEntry;
use loadmaster_graph::{GraphFile, TensorId};

#[test]
fn every_golden_file_is_read_and_written_back_equal() {
    let paths = golden_paths();
    assert_eq!(paths.len(), 154);
    for path in paths {
        let bytes = std::fs::read(&path).unwrap();
        let file = GraphFile::from_bytes(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let json = file.to_json().unwrap();
        assert_eq!(GraphFile::from_bytes(json.as_bytes()).unwrap(), file, "{}", path.display());
        for (ours, theirs) in json.lines().zip(text(&bytes).lines()) {
            assert_eq!(ours, theirs, "{}", path.display());
        }
        assert_eq!(json.len(), text(&bytes).len(), "{}", path.display());
    }
}

#[test]
fn gzip_and_files_on_disk_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let file = GraphFile::read_path(&golden_paths()[0]).unwrap();
    for name in ["graph.json", "graph.json.gz"] {
        let path = folder.path().join(name);
        file.write_path(&path).unwrap();
        assert_eq!(GraphFile::read_path(&path).unwrap(), file);
    }
    let plain = std::fs::metadata(folder.path().join("graph.json")).unwrap().len();
    let packed = std::fs::metadata(folder.path().join("graph.json.gz")).unwrap().len();
    assert!(packed * 3 < plain);
}

#[test]
fn a_pipelined_file_says_what_the_reference_chose() {
    let path = golden_paths().into_iter().find(|p| p.ends_with("smollm2.2g.000.json.gz")).unwrap();
    let file = GraphFile::read_path(path).unwrap();
    assert_eq!(file.n_copies, 4);
    assert_eq!(file.devices.len(), 3);
    let expected = file.expected.unwrap();
    assert_eq!(expected.splits.len(), 3);
    let last = expected.splits.values().last().unwrap();
    assert_eq!(last.end.index(), file.graph.nodes().len());
    assert_eq!(last.inputs[0], TensorId::new(916));
    assert_eq!(expected.alloc_graph.nodes[1], AllocEntry::Keep(TensorId::new(340)));
    assert!(expected.buffer_sizes.is_none());
}
