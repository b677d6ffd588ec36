//! One rejection for every rule of the verifier, with the ids that the error must carry, and what must stay allowed.
#![allow(clippy::unwrap_used, clippy::panic)]

use loadmaster_graph::limits::{MAX_NAME_LEN, MAX_OP_PARAMS, MAX_SOURCES};
use loadmaster_graph::{
    Bytes, DType, Flags, Graph, GraphError, IdVec, LeafId, NodeId, Op, ShapeFault, Tensor, TensorId, View, ViewFault,
};

/// Two leafs (t0, t1), their sum (t2), and its negative (t3), with 4 × 2 floats each.
#[derive(Clone)]
struct Parts {
    tensors: Vec<Tensor>,
    nodes: Vec<usize>,
    leafs: Vec<usize>,
}

fn t(index: usize) -> TensorId {
    TensorId::new(index)
}

fn tensor(name: &str, op: Op, src: &[usize]) -> Tensor {
    let mut tensor = Tensor::leaf(name, DType::F32, [4, 2, 1, 1]).unwrap();
    tensor.op = op;
    tensor.src = src.iter().map(|&s| Some(t(s))).collect();
    tensor
}

fn parts() -> Parts {
    Parts {
        tensors: vec![
            tensor("a", Op::None, &[]),
            tensor("b", Op::None, &[]),
            tensor("sum", Op::Add, &[0, 1]),
            tensor("neg", Op::Neg, &[2]),
        ],
        nodes: vec![2, 3],
        leafs: vec![0, 1],
    }
}

impl Parts {
    fn with<R>(mut self, change: impl FnOnce(&mut Self) -> R) -> Self {
        change(&mut self);
        self
    }

    fn build(self) -> Result<Graph, GraphError> {
        let nodes = self.nodes.into_iter().map(t).collect();
        let leafs = self.leafs.into_iter().map(t).collect();
        Graph::new("test", IdVec::from_vec(self.tensors), nodes, leafs)
    }

    fn error(self) -> GraphError {
        self.build().expect_err("the rule does not bite")
    }

    /// Adds a view of `root` with the given layout; returns its index.
    fn view(&mut self, op: Op, root: usize, offset: u64, ne: [u64; 4], nb: [u64; 4]) -> usize {
        let mut view = tensor("view", op, &[root]);
        (view.ne, view.nb) = (ne, nb);
        view.dtype = self.tensors[root].dtype;
        view.view = Some(View { root: t(root), offset: Bytes(offset) });
        self.tensors.push(view);
        self.nodes.push(self.tensors.len() - 1);
        self.tensors.len() - 1
    }
}

fn name(name: &str) -> Box<str> {
    name.into()
}

#[test]
fn the_graph_that_the_other_tests_break_is_valid() {
    let graph = parts().build().unwrap();
    assert_eq!(graph.nodes().len(), 2);
    assert_eq!(graph.topology().sources(t(2)), [Some(t(0)), Some(t(1))]);
}

#[test]
fn v1_too_many_sources() {
    let error = parts().with(|p| p.tensors[3].src = (0..=MAX_SOURCES).map(|_| Some(t(2))).collect()).error();
    let expected = GraphError::TensorLimit {
        tensor: t(3),
        name: name("neg"),
        what: "sources",
        found: MAX_SOURCES + 1,
        limit: MAX_SOURCES,
    };
    assert_eq!(error, expected);
}

#[test]
fn v1_too_many_parameters() {
    let error = parts().with(|p| p.tensors[2].params = vec![1; MAX_OP_PARAMS + 1].into()).error();
    let expected = GraphError::TensorLimit {
        tensor: t(2),
        name: name("sum"),
        what: "words of parameters",
        found: MAX_OP_PARAMS + 1,
        limit: MAX_OP_PARAMS,
    };
    assert_eq!(error, expected);
}

#[test]
fn v1_too_long_a_name() {
    let error = parts().with(|p| p.tensors[1].name = "x".repeat(MAX_NAME_LEN + 1).into()).error();
    let expected = GraphError::TensorLimit {
        tensor: t(1),
        name: "x".repeat(64).into(),
        what: "bytes of name",
        found: MAX_NAME_LEN + 1,
        limit: MAX_NAME_LEN,
    };
    assert_eq!(error, expected);
}

#[test]
fn v2_a_dangling_node() {
    let error = parts().with(|p| p.nodes.push(9)).error();
    assert_eq!(error, GraphError::Dangling { place: NodeId::new(2).to_string(), id: t(9), count: 4 });
}

#[test]
fn v2_a_dangling_leaf() {
    let error = parts().with(|p| p.leafs.push(4)).error();
    assert_eq!(error, GraphError::Dangling { place: LeafId::new(2).to_string(), id: t(4), count: 4 });
}

#[test]
fn v2_a_dangling_source() {
    let error = parts().with(|p| p.tensors[2].src[1] = Some(t(7))).error();
    assert!(
        matches!(&error, GraphError::Dangling { place, id, count: 4 } if place.contains("t2 `sum`") && *id == t(7))
    );
}

#[test]
fn v2_a_dangling_root() {
    let error = parts().with(|p| p.tensors[3].view = Some(View { root: t(5), offset: Bytes::ZERO })).error();
    assert!(
        matches!(&error, GraphError::Dangling { place, id, count: 4 } if place.contains("t3 `neg`") && *id == t(5))
    );
}

#[test]
fn v3_a_cycle() {
    let error = parts().with(|p| p.tensors[2].src[1] = Some(t(3))).error();
    assert_eq!(error, GraphError::Cycle { tensor: t(2), name: name("sum"), source_id: t(3) });
}

#[test]
fn v3_a_tensor_that_is_its_own_source() {
    let error = parts().with(|p| p.tensors[3].src[0] = Some(t(3))).error();
    assert_eq!(error, GraphError::Cycle { tensor: t(3), name: name("neg"), source_id: t(3) });
}

#[test]
fn v3_a_root_that_stands_after_its_view() {
    let error = parts().with(|p| p.tensors[2].view = Some(View { root: t(3), offset: Bytes::ZERO })).error();
    assert_eq!(error, GraphError::Cycle { tensor: t(2), name: name("sum"), source_id: t(3) });
}

#[test]
fn v4_a_tensor_listed_twice() {
    let twice = |id: usize, name: &str| GraphError::ListedTwice { tensor: t(id), name: name.into() };
    assert_eq!(parts().with(|p| p.nodes.push(2)).error(), twice(2, "sum"));
    assert_eq!(parts().with(|p| p.leafs.push(1)).error(), twice(1, "b"));
    assert_eq!(parts().with(|p| p.nodes.insert(0, 0)).error(), twice(0, "a"));
}

#[test]
fn v5_a_leaf_with_an_operation() {
    let error = parts()
        .with(|p| {
            p.nodes.pop();
            p.leafs.push(3);
        })
        .error();
    let leaf = LeafId::new(2);
    assert_eq!(error, GraphError::LeafWithOp { leaf, tensor: t(3), name: name("neg"), op: Op::Neg });
}

#[test]
fn v6_a_node_before_its_source() {
    let error = parts().with(|p| p.nodes.swap(0, 1)).error();
    assert_eq!(error, GraphError::Order { node: NodeId::new(0), tensor: t(3), name: name("neg"), source_id: t(2) });
}

#[test]
fn v6_a_view_before_its_root() {
    let error = parts()
        .with(|p| {
            let view = p.view(Op::View, 3, 0, [4, 2, 1, 1], [4, 16, 32, 32]);
            p.tensors[view].src = [Some(t(2))].into_iter().collect();
            p.nodes.swap(1, 2);
        })
        .error();
    assert_eq!(error, GraphError::Order { node: NodeId::new(1), tensor: t(4), name: name("view"), source_id: t(3) });
}

#[test]
fn v6_a_node_that_reads_a_node_through_a_leaf_before_it_is_computed() {
    let through_leaf = parts().with(|p| {
        let shown = p.view(Op::None, 3, 0, [4, 2, 1, 1], [4, 16, 32, 32]);
        p.tensors[shown].src.clear();
        p.nodes.retain(|&n| n != shown);
        p.leafs.push(shown);
        p.tensors.push(tensor("late", Op::Neg, &[shown]));
        p.nodes.push(shown + 1);
    });
    through_leaf.clone().build().unwrap();
    let error = through_leaf.with(|p| p.nodes.swap(1, 2)).error();
    assert_eq!(error, GraphError::Order { node: NodeId::new(1), tensor: t(5), name: name("late"), source_id: t(3) });
}

#[test]
fn v7_a_source_that_is_never_computed() {
    let error = parts().with(|p| p.nodes.remove(0)).error();
    let expected = GraphError::NeverComputed { node: NodeId::new(0), tensor: t(3), name: name("neg"), source_id: t(2) };
    assert_eq!(error, expected);
}

fn shape(id: usize, why: ShapeFault) -> GraphError {
    GraphError::Shape { tensor: t(id), name: parts().tensors[id].name.clone(), why }
}

#[test]
fn v8_a_size_that_overflows() {
    let bytes = parts().with(|p| p.tensors[0].nb[1] = u64::MAX).error();
    assert_eq!(bytes, shape(0, ShapeFault::Overflow));
    let above_signed = parts().with(|p| p.tensors[0].nb[1] = 1 << 63).error();
    assert_eq!(above_signed, shape(0, ShapeFault::Overflow));
    let elements = parts().with(|p| (p.tensors[1].ne, p.tensors[1].nb) = ([1 << 32; 4], [0; 4])).error();
    assert_eq!(elements, shape(1, ShapeFault::Overflow));
    let beside_zero = parts().with(|p| p.tensors[1].ne = [0, 1 << 32, 1 << 32, 1 << 32]).error();
    assert_eq!(beside_zero, shape(1, ShapeFault::Overflow));
}

#[test]
fn v8_an_offset_that_overflows() {
    let error = parts().with(|p| p.view(Op::View, 0, u64::MAX, [0, 1, 1, 1], [4; 4])).error();
    assert_eq!(error, GraphError::Shape { tensor: t(4), name: name("view"), why: ShapeFault::Overflow });
}

#[test]
fn v9_a_partial_block() {
    let error = parts().with(|p| (p.tensors[0].dtype, p.tensors[0].ne) = (DType::Q4K, [300, 1, 1, 1])).error();
    assert_eq!(error, shape(0, ShapeFault::PartialBlock));
}

#[test]
fn v10_strides_that_alias() {
    let rows = parts().with(|p| p.tensors[0].nb[1] = 12).error();
    assert_eq!(rows, shape(0, ShapeFault::Alias));
    let elements = parts().with(|p| p.tensors[1].nb[0] = 2).error();
    assert_eq!(elements, shape(1, ShapeFault::Alias));
    let broadcast = parts().with(|p| p.tensors[2].nb[1] = 0).error();
    assert_eq!(broadcast, shape(2, ShapeFault::Alias));
    let blocks = parts()
        .with(|p| (p.tensors[0].dtype, p.tensors[0].ne, p.tensors[0].nb) = (DType::Q8_0, [64, 2, 1, 1], [34, 34, 1, 1]))
        .error();
    assert_eq!(blocks, shape(0, ShapeFault::Alias));
}

#[test]
fn v11_a_root_that_is_a_view() {
    let error = parts()
        .with(|p| {
            let first = p.view(Op::View, 2, 0, [4, 1, 1, 1], [4, 16, 16, 16]);
            p.view(Op::View, first, 0, [4, 1, 1, 1], [4, 16, 16, 16]);
        })
        .error();
    assert_eq!(error, GraphError::View { tensor: t(5), name: name("view"), why: ViewFault::RootIsView { root: t(4) } });
}

#[test]
fn v12_a_view_that_leaves_its_root() {
    let error = parts().with(|p| p.view(Op::View, 2, 20, [4, 1, 1, 1], [4, 16, 16, 16])).error();
    let why = ViewFault::LeavesRoot { root: t(2), end: 36, size: 32 };
    assert_eq!(error, GraphError::View { tensor: t(4), name: name("view"), why });
}

#[test]
fn v13_a_view_operation_without_root() {
    for op in [Op::View, Op::Reshape, Op::Permute, Op::Transpose] {
        let error = parts().with(|p| p.tensors[3].op = op).error();
        assert_eq!(error, GraphError::View { tensor: t(3), name: name("neg"), why: ViewFault::NoRoot { op } });
    }
}

#[test]
fn every_error_names_the_tensor_and_the_rule() {
    let check = |parts: Parts, tensor: &str, rule: &str| {
        let text = parts.error().to_string();
        assert!(text.contains(tensor) && text.ends_with(&format!("[{rule}]")), "{text}");
    };
    check(parts().with(|p| p.tensors[1].name = "x".repeat(2000).into()), "t1 `xxx", "V1");
    check(parts().with(|p| p.tensors[3].src[0] = Some(t(8))), "t3 `neg`", "V2");
    check(parts().with(|p| p.tensors[3].src[0] = Some(t(3))), "t3 `neg`", "V3");
    check(parts().with(|p| p.nodes.push(2)), "t2 `sum`", "V4");
    check(parts().with(|p| (p.nodes.pop(), p.leafs.push(3))), "t3 `neg`", "V5");
    check(parts().with(|p| p.nodes.swap(0, 1)), "t3 `neg`", "V6");
    check(parts().with(|p| p.nodes.remove(0)), "t3 `neg`", "V7");
    check(parts().with(|p| p.tensors[0].nb[1] = u64::MAX), "t0 `a`", "V8");
    check(parts().with(|p| (p.tensors[0].dtype, p.tensors[0].ne[0]) = (DType::Q8_0, 33)), "t0 `a`", "V9");
    check(parts().with(|p| p.tensors[0].nb[1] = 12), "t0 `a`", "V10");
    let nested = |p: &mut Parts| {
        let first = p.view(Op::View, 2, 0, [1; 4], [4; 4]);
        p.view(Op::View, first, 0, [1; 4], [4; 4])
    };
    check(parts().with(nested), "t5 `view`", "V11");
    check(parts().with(|p| p.view(Op::View, 2, 32, [1; 4], [4; 4])), "t4 `view`", "V12");
    check(parts().with(|p| p.tensors[3].op = Op::View), "t3 `neg`", "V13");
}

#[test]
fn a_tensor_that_is_neither_node_nor_leaf_is_allowed() {
    assert!(parts().with(|p| p.tensors.push(tensor("spare", Op::Relu, &[3]))).build().is_ok());
    assert!(parts().with(|p| p.leafs.pop()).build().is_ok());
}

#[test]
fn extents_of_zero_are_allowed() {
    let empty = |p: &mut Parts| (p.tensors[0].ne, p.tensors[0].nb) = ([4, 0, 1, 1], [4, 16, 0, 0]);
    assert!(parts().with(empty).build().is_ok());
    assert!(parts().with(|p| p.view(Op::View, 0, 32, [0, 1, 1, 1], [4, 0, 0, 0])).build().is_ok());
}

#[test]
fn views_whose_elements_overlap_are_allowed() {
    assert!(parts().with(|p| p.view(Op::View, 2, 0, [4, 3, 1, 1], [4, 8, 0, 0])).build().is_ok());
}

#[test]
fn permuted_strides_of_an_owner_are_allowed() {
    assert!(parts().with(|p| p.tensors[0].nb = [8, 4, 32, 32]).build().is_ok());
}

#[test]
fn nodes_and_leafs_of_unusual_kinds_are_allowed() {
    let parameter = |p: &mut Parts| {
        p.tensors[0].flags = Flags::PARAM;
        p.leafs.remove(0);
        p.nodes.insert(0, 0);
    };
    assert!(parts().with(parameter).build().is_ok());
    let leaf_view = |p: &mut Parts| {
        let view = p.view(Op::None, 0, 16, [4, 1, 1, 1], [4, 16, 16, 16]);
        p.tensors[view].src.clear();
        p.nodes.pop();
        p.leafs.push(view);
    };
    assert!(parts().with(leaf_view).build().is_ok());
}

#[test]
fn a_transposed_quantized_view_is_allowed() {
    let transposed = |p: &mut Parts| {
        (p.tensors[0].dtype, p.tensors[0].ne, p.tensors[0].nb) = (DType::Q4_0, [64, 4, 1, 1], [18, 36, 144, 144]);
        p.tensors[2].src = [Some(t(1)), Some(t(1))].into_iter().collect();
        p.view(Op::Transpose, 0, 0, [4, 64, 1, 1], [36, 18, 144, 144]);
    };
    assert!(parts().with(transposed).build().is_ok());
}

#[test]
fn a_cast_refers_to_itself() {
    let cast = |p: &mut Parts| {
        p.tensors[3].op = Op::Cpy;
        p.tensors[3].src.push(Some(t(3)));
    };
    assert!(parts().with(cast).build().is_ok());
    let cycle = GraphError::Cycle { tensor: t(3), name: name("neg"), source_id: t(3) };
    assert_eq!(parts().with(cast).with(|p| p.tensors[3].op = Op::Cont).error(), cycle);
    assert_eq!(parts().with(cast).with(|p| p.tensors[3].src.swap(0, 1)).error(), cycle);
    let into_a_view = |p: &mut Parts| p.tensors[3].view = Some(View { root: t(2), offset: Bytes::ZERO });
    assert_eq!(parts().with(cast).with(into_a_view).error(), cycle);
}
