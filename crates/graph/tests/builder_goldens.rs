//! The builder makes the golden graphs: every tensor is inferred from its sources exactly as the reference recorded it,
//! and expanding the reference's results gives its nodes and leafs in its order.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::golden_paths;
use loadmaster_graph::builder::{FlashAttn, GluHalves, Precision, Rope, RopeMode, SoftMax, SortOrder};
use loadmaster_graph::{BuildError, Bytes, Flags, Graph, GraphBuilder, GraphFile, Op, OpKind, Tensor, TensorId};
use std::collections::BTreeMap;

/// The golden graphs, each structure once.
fn graphs() -> Vec<Graph> {
    let files = golden_paths().into_iter().map(|path| GraphFile::read_path(path).unwrap().graph);
    files.map(|graph| (graph.structural_hash(), graph)).collect::<BTreeMap<_, _>>().into_values().collect()
}

#[test]
fn every_tensor_is_inferred_from_its_sources() {
    let mut ops = BTreeMap::<&str, usize>::new();
    for graph in graphs() {
        let mut builder = GraphBuilder::new();
        for (id, recorded) in graph.tensors().iter() {
            let built = replay(&mut builder, recorded).unwrap_or_else(|e| panic!("{} {id}: {e}", graph.name()));
            assert_eq!(built, id);
            let inferred = builder.tensor(id).unwrap();
            assert_eq!(without_name(inferred), without_name(recorded), "{} {id}", graph.name());
            builder.set_name(id, recorded.name.clone()).unwrap();
            builder.add_flags(id, recorded.flags).unwrap();
            *ops.entry(recorded.op.name()).or_default() += 1;
        }
    }
    assert_eq!(ops.len(), 36, "{ops:?}");
}

#[test]
fn expanding_the_references_results_gives_its_order() {
    for graph in graphs() {
        let mut builder = GraphBuilder::new();
        for recorded in graph.tensors().values() {
            let id = replay(&mut builder, recorded).unwrap();
            // Names by position are the builder's business too.
            let by_position = recorded.name.strip_prefix("node_").is_some_and(|n| n.parse::<usize>().is_ok());
            builder.set_name(id, if by_position { "" } else { &*recorded.name }).unwrap();
            builder.add_flags(id, recorded.flags).unwrap();
        }
        let results = results(&graph);
        // Far fewer than nodes: the order of the others is the builder's.
        assert!(results.len() * 4 < graph.nodes().len(), "{}: {} results", graph.name(), results.len());
        for id in results {
            builder.expand(id).unwrap();
        }
        let (rebuilt, new_ids) = builder.finish_numbered(graph.name()).unwrap();
        assert!(rebuilt == graph, "{}", graph.name());
        assert!(new_ids.iter().all(|(old, new)| *new == Some(old)));
    }
}

fn without_name(tensor: &Tensor) -> Tensor {
    Tensor { name: "".into(), flags: Flags::NONE, ..tensor.clone() }
}

/// Builds a tensor from its operation, sources and parameters; of its shape, only what the operation's caller chooses.
fn replay(b: &mut GraphBuilder, t: &Tensor) -> Result<TensorId, BuildError> {
    let s: Vec<TensorId> = t.src.iter().map(|s| s.unwrap()).collect();
    let word = |i: usize| t.params.get(i).copied().unwrap_or(0);
    let float = |i: usize| f32::from_bits(word(i));
    match t.op {
        Op::None => b.leaf(t.name.clone(), t.dtype, &t.ne),
        Op::Add | Op::Sub | Op::Mul | Op::Div => b.binary(t.op, s[0], s[1]),
        Op::AddId => b.add_id(s[0], s[1], s[2]),
        Op::MulMat => {
            let id = b.mul_mat(s[0], s[1])?;
            b.set_precision(id, precision(word(0)))?;
            Ok(id)
        }
        Op::MulMatId => b.mul_mat_id(s[0], s[1], s[2]),
        Op::RmsNorm => b.rms_norm(s[0], float(0)),
        Op::Norm => b.norm(s[0], float(0)),
        Op::Scale if t.is_view() => b.scale_in_place(s[0], float(0)),
        Op::Scale => b.scale_bias(s[0], float(0), float(1)),
        Op::Clamp => b.clamp(s[0], float(0), float(1)),
        Op::SumRows => b.sum_rows(s[0]),
        Op::Repeat => b.repeat(s[0], t.ne),
        Op::Concat => b.concat(s[0], s[1], word(0) as usize),
        Op::Cont if b.tensor(s[0])?.ne == t.ne => b.cont(s[0]),
        Op::Cont => b.cont_as(s[0], t.ne),
        Op::Cpy => b.cpy(s[0], s[1]),
        Op::GetRows => b.get_rows(s[0], s[1]),
        Op::SetRows => b.set_rows(s[2], s[0], s[1]),
        Op::Argsort => b.argsort(s[0], [SortOrder::Ascending, SortOrder::Descending][word(0) as usize]),
        Op::View => view(b, t, s[0]),
        Op::Reshape => b.reshape(s[0], &t.ne),
        Op::Permute => b.permute(s[0], [word(0), word(1), word(2), word(3)].map(|axis| axis as usize)),
        Op::Transpose => b.transpose(s[0]),
        Op::SoftMax => b.soft_max(
            s[0],
            SoftMax { mask: s.get(1).copied(), sinks: s.get(2).copied(), scale: float(0), max_bias: float(1) },
        ),
        Op::Rope => b.rope(s[0], s[1], s.get(2).copied(), rope(t)),
        Op::FlashAttnExt => b.flash_attn(s[0], s[1], s[2], flash_attn(t)),
        Op::SwigluOai => b.swiglu_oai(s[0], s[1], float(2), float(3)),
        Op::SsmConv => b.ssm_conv(s[0], s[1]),
        Op::SsmScan => b.ssm_scan(s.try_into().unwrap(), word(0)),
        Op::GatedDeltaNet => b.gated_delta_net(s.try_into().unwrap(), word(0)),
        op if op.kind() == OpKind::Glu && s.len() == 1 => {
            b.glu(op, s[0], if word(1) == 0 { GluHalves::GateFirst } else { GluHalves::GateLast })
        }
        op if op.kind() == OpKind::Glu => b.glu_split(op, s[0], s[1]),
        op => b.unary(op, s[0]),
    }
}

fn precision(word: u32) -> Precision {
    [Precision::Undefined, Precision::F32].into_iter().find(|&p| p as u32 == word).unwrap()
}

fn rope(t: &Tensor) -> Rope {
    let word = |i: usize| t.params.get(i).copied().unwrap_or(0);
    let float = |i: usize| f32::from_bits(word(i));
    let modes = [RopeMode::Normal, RopeMode::Neox, RopeMode::Mrope, RopeMode::Vision, RopeMode::Imrope];
    Rope {
        n_dims: word(1),
        mode: modes.into_iter().find(|&mode| mode as u32 == word(2)).unwrap(),
        n_ctx_orig: word(4),
        freq_base: float(5),
        freq_scale: float(6),
        ext_factor: float(7),
        attn_factor: float(8),
        beta_fast: float(9),
        beta_slow: float(10),
        sections: [word(11), word(12), word(13), word(14)],
        first_dim: word(15),
    }
}

fn flash_attn(t: &Tensor) -> FlashAttn {
    let word = |i: usize| t.params.get(i).copied().unwrap_or(0);
    let float = |i: usize| f32::from_bits(word(i));
    FlashAttn {
        mask: t.src.get(3).copied().flatten(),
        sinks: t.src.get(4).copied().flatten(),
        scale: float(0),
        max_bias: float(1),
        logit_softcap: float(2),
        precision: precision(word(3)),
    }
}

/// The fewest extents and strides that give the recorded view: the others are inferred.
fn view(b: &mut GraphBuilder, t: &Tensor, a: TensorId) -> Result<TensorId, BuildError> {
    let word = |i: usize| u64::from(t.params.get(i).copied().unwrap_or(0));
    let offset = Bytes(word(0) | word(1) << 32);
    let strides = [t.nb[1], t.nb[2], t.nb[3]].map(Bytes);
    let dense = |i: usize| t.ne[i] == 1 && t.nb[i] == t.nb[i - 1] * t.ne[i - 1];
    let dims = (1..4).rev().take_while(|&i| dense(i)).last().unwrap_or(4);
    b.view(a, &t.ne[..dims], &strides[..dims - 1], offset)
}

/// Which tensors the reference expanded: runs of nodes and leafs that a depth-first visit of their last node gives.
fn results(graph: &Graph) -> Vec<TensorId> {
    let mut seen = Seen { visited: vec![false; graph.tensors().len()], nodes: 0, leafs: 0 };
    let mut results = Vec::new();
    while seen.nodes < graph.nodes().len() || seen.leafs < graph.leafs().len() {
        let longest = (0..120).rev().find_map(|ahead| {
            let result = *graph.nodes().as_slice().get(seen.nodes + ahead)?;
            Some((result, seen.after(graph, result)?))
        });
        // An input that nothing uses is expanded by itself.
        let unused_leaf = || {
            let leaf = graph.leafs().as_slice()[seen.leafs];
            (leaf, seen.after(graph, leaf).unwrap())
        };
        let (result, after) = longest.unwrap_or_else(unused_leaf);
        results.push(result);
        seen = after;
    }
    results
}

/// How far the recorded lists were reproduced.
#[derive(Clone)]
struct Seen {
    visited: Vec<bool>,
    nodes: usize,
    leafs: usize,
}

impl Seen {
    /// The state after expanding a result, if its visit gives exactly what was recorded next.
    fn after(&self, graph: &Graph, result: TensorId) -> Option<Self> {
        let mut after = self.clone();
        after.visit(graph, result).then_some(after)
    }

    fn visit(&mut self, graph: &Graph, id: TensorId) -> bool {
        if std::mem::replace(&mut self.visited[id.index()], true) {
            return true;
        }
        let tensor = graph.tensor(id);
        if !tensor.src.iter().flatten().all(|&source| self.visit(graph, source)) {
            return false;
        }
        let (list, next) = match tensor.op {
            Op::None => (graph.leafs().as_slice(), &mut self.leafs),
            _ => (graph.nodes().as_slice(), &mut self.nodes),
        };
        *next += 1;
        list.get(*next - 1) == Some(&id)
    }
}
