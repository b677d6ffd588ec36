//! The structural hash sees everything that a plan depends on, and nothing else.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::golden_paths;
use loadmaster_graph::{
    Bytes, DType, DeviceId, Flags, Graph, GraphFile, IdVec, Op, StructuralHash, StructuralHasher, Tensor, TensorId,
    View,
};
use std::collections::BTreeMap;

/// Tensors, nodes, leafs.
type Parts = (Vec<Tensor>, Vec<usize>, Vec<usize>);

fn parts() -> Parts {
    let leaf = |name: &str| Tensor::leaf(name, DType::F32, [4, 2, 1, 1]).unwrap();
    let mut sum = leaf("sum");
    (sum.op, sum.src) = (Op::Add, [Some(TensorId::new(0)), Some(TensorId::new(1))].into_iter().collect());
    let mut scaled = leaf("scaled");
    (scaled.op, scaled.src) = (Op::Scale, [Some(TensorId::new(2))].into_iter().collect());
    scaled.params = [2, 3, 4].into_iter().collect();
    let mut view = Tensor::leaf("view", DType::F32, [4, 1, 1, 1]).unwrap();
    (view.op, view.src) = (Op::View, [Some(TensorId::new(3))].into_iter().collect());
    view.view = Some(View { root: TensorId::new(3), offset: Bytes::ZERO });
    (vec![leaf("a"), leaf("b"), sum, scaled, view], vec![2, 3, 4], vec![0, 1])
}

fn hash((tensors, nodes, leafs): Parts) -> StructuralHash {
    let ids = |ids: Vec<usize>| ids.into_iter().map(TensorId::new).collect::<Vec<_>>();
    let (nodes, leafs) = (IdVec::from_vec(ids(nodes)), IdVec::from_vec(ids(leafs)));
    Graph::new("g", IdVec::from_vec(tensors), nodes, leafs).unwrap().structural_hash()
}

fn changed(change: impl FnOnce(&mut Parts)) -> StructuralHash {
    let mut parts = parts();
    change(&mut parts);
    hash(parts)
}

#[test]
fn names_do_not_count() {
    assert_eq!(changed(|p| p.0[2].name = "other".into()), hash(parts()));
}

#[test]
fn everything_else_counts() {
    let hashes = [
        hash(parts()),
        changed(|p| p.0[2].op = Op::Sub),
        changed(|p| p.0[3].params[0] = 5),
        changed(|p| p.0[3].params = [2, 3].into_iter().collect()),
        changed(|p| p.0[3].params = [2, 3, 4, 0].into_iter().collect()),
        changed(|p| p.0[2].src.swap(0, 1)),
        changed(|p| p.0[2].src[1] = None),
        changed(|p| p.0[2].src.push(None)),
        changed(|p| p.0[1].dtype = DType::I32),
        changed(|p| p.0[1].ne = [4, 1, 1, 1]),
        changed(|p| p.0[1].nb = [4, 32, 64, 64]),
        changed(|p| p.0[0].flags = Flags::INPUT),
        changed(|p| p.0[0].flags = Flags::OUTPUT),
        changed(|p| p.0[4].view = Some(View { root: TensorId::new(3), offset: Bytes(16) })),
        changed(|p| p.0[4].view = Some(View { root: TensorId::new(2), offset: Bytes::ZERO })),
        changed(|p| p.2.swap(0, 1)),
        changed(|p| p.2.truncate(1)),
        changed(|p| p.1.truncate(2)),
    ];
    let distinct: std::collections::BTreeSet<_> = hashes.iter().collect();
    assert_eq!(distinct.len(), hashes.len());
}

#[test]
fn the_value_is_the_same_on_every_platform() {
    assert_eq!(hash(parts()).to_string(), "008f6982bb514386dd660081f1eb138c");
}

#[test]
fn golden_graphs_are_equal_exactly_where_their_structure_is() {
    let mut seen: BTreeMap<StructuralHash, String> = BTreeMap::new();
    let mut repeated = 0;
    for path in golden_paths() {
        let graph = GraphFile::read_path(path).unwrap().graph;
        let structure = without_names(&graph);
        if let Some(same) = seen.insert(graph.structural_hash(), structure.clone()) {
            assert!(same == structure, "{} collides", graph.name());
            repeated += 1;
        }
    }
    let structures: std::collections::BTreeSet<_> = seen.values().collect();
    assert_eq!(structures.len(), seen.len());
    // Graphs of one model for different machines.
    assert!(repeated > 20, "{repeated}");
}

fn without_names(graph: &Graph) -> String {
    let unnamed = graph.tensors().values().map(|t| Tensor { name: "".into(), ..t.clone() });
    format!("{:?} {:?} {:?}", unnamed.collect::<Vec<_>>(), graph.nodes(), graph.leafs())
}

#[test]
fn placements_and_copies_can_be_mixed_in() {
    let base = hash(parts());
    let with = |devices: &[usize], copy: u64| {
        let mut hasher = base.extend();
        hasher.ids(&devices.iter().map(|&d| DeviceId::new(d)).collect::<Vec<_>>());
        hasher.word(copy);
        hasher.finish()
    };
    let keys = [base, with(&[0, 1], 0), with(&[1, 0], 0), with(&[0, 1], 1), with(&[0], 1), with(&[], 0)];
    let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
    assert_eq!(with(&[0, 1], 1), with(&[0, 1], 1));
}

#[test]
fn holes_and_lengths_of_lists_are_seen() {
    let list = |ids: &[Option<usize>]| {
        let mut hasher = StructuralHasher::new();
        hasher.optional_ids(&ids.iter().map(|id| id.map(TensorId::new)).collect::<Vec<_>>());
        hasher.finish()
    };
    let lists = [list(&[]), list(&[None]), list(&[None, None]), list(&[Some(0)]), list(&[Some(0), None])];
    let distinct: std::collections::BTreeSet<_> = lists.iter().collect();
    assert_eq!(distinct.len(), lists.len());
}

#[test]
fn words_beyond_one_buffer_are_all_seen() {
    let of = |changed: usize| {
        let mut hasher = StructuralHasher::new();
        (0..2000).for_each(|i| hasher.word(u64::from(i == changed)));
        hasher.finish()
    };
    let hashes: std::collections::BTreeSet<_> = (0..2000).map(of).collect();
    assert_eq!(hashes.len(), 2000);
}
