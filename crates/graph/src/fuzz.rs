//! Fuzz targets as library code: `cargo test` runs them for a moment, a fuzzer for as long as it likes.
//!
//! A target takes any bytes. It returns, or panics: a panic is a fault of this crate.

use crate::builder::{BuildError, FlashAttn, GluHalves, GraphBuilder, Rope, SoftMax, SortOrder};
use crate::dtype::DType;
use crate::file::GraphFile;
use crate::graph::Graph;
use crate::id::TensorId;
use crate::limits::ReadLimits;
use crate::op::{Op, OpKind};
use crate::units::Bytes;

/// Reads any bytes as a graph file. A file that is accepted survives writing and reading, as JSON and as text.
pub fn fuzz_graph_file(bytes: &[u8]) {
    let small = ReadLimits { file_bytes: 8 << 20, ..ReadLimits::default() };
    let Ok(file) = GraphFile::from_bytes_within(bytes, &small) else { return };
    let written = file.to_json().map(|json| GraphFile::from_bytes(json.as_bytes()));
    assert!(matches!(&written, Ok(Ok(again)) if *again == file), "a file changes when it is written: {written:?}");
    check_graph(&file.graph);
}

/// Reads any bytes as the text form of a graph. What is accepted survives printing and parsing.
pub fn fuzz_text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(graph) = Graph::from_text(text) {
        check_graph(&graph);
    }
}

/// Builds a graph from any bytes, read as instructions. Refused instructions leave the builder as it was, and what was
/// built is a valid graph (always returned; the type spares the target an unreachable panic).
pub fn fuzz_builder(bytes: &[u8]) -> Option<Graph> {
    let mut builder = GraphBuilder::new();
    let mut input = Instructions { bytes };
    while let Some(code) = input.byte() {
        let before = builder.len();
        match instruction(&mut builder, code, &mut input) {
            Ok(_) => assert!(builder.len() > before),
            Err(_) => assert_eq!(builder.len(), before, "a refusal changed the builder"),
        }
        if code & 0x80 != 0 && !builder.is_empty() {
            // The last tensor exists.
            let expanded = builder.expand(TensorId::new(builder.len() - 1));
            assert!(expanded.is_ok());
        }
    }
    let numbered = builder.clone().finish_numbered("numbered");
    assert!(numbered.is_ok(), "{:?}", numbered.err());
    let graph = builder.finish("built");
    assert!(graph.is_ok(), "{:?}", graph.err());
    let graph = graph.ok()?;
    check_graph(&graph);
    Some(graph)
}

fn check_graph(graph: &Graph) {
    let text = graph.to_text();
    let parsed = Graph::from_text(&text);
    assert!(matches!(&parsed, Ok(again) if again == graph), "a graph changes in its text form: {:?}", parsed.err());
    assert!(graph.to_dot().ends_with("}\n"));
}

/// Bytes that are read as numbers; zeros after their end.
struct Instructions<'a> {
    bytes: &'a [u8],
}

impl Instructions<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(first)
    }

    fn small(&mut self, below: usize) -> usize {
        usize::from(self.byte().unwrap_or(0)) % below.max(1)
    }

    /// Mostly an extent or stride that others have too, now and then a huge number.
    fn number(&mut self) -> u64 {
        const COMMON: [u64; 12] = [1, 1, 1, 1, 2, 2, 3, 4, 8, 32, 256, 0];
        match self.byte().unwrap_or(0) {
            huge @ 250.. => u64::MAX >> ((255 - huge) * 12),
            small => COMMON[usize::from(small) % COMMON.len()],
        }
    }

    /// Mostly an operation of the family, now and then any.
    fn op(&mut self, family: &[Op]) -> Op {
        let any = self.small(16) == 0;
        let ops = if any { Op::ALL } else { family };
        ops[self.small(ops.len())]
    }

    fn op_of_kind(&mut self, kind: OpKind) -> Op {
        let family: Vec<_> = Op::ALL.iter().copied().filter(|op| op.kind() == kind).collect();
        self.op(&family)
    }

    fn numbers(&mut self) -> [u64; 4] {
        std::array::from_fn(|_| self.number())
    }

    /// Some tensor of the builder, now and then one that it does not have.
    fn tensor(&mut self, builder: &GraphBuilder) -> TensorId {
        TensorId::new(self.small(builder.len() + 1))
    }

    fn float(&mut self) -> f32 {
        f32::from(self.byte().unwrap_or(0)) - 8.0
    }
}

const BINARY: [Op; 4] = [Op::Add, Op::Sub, Op::Mul, Op::Div];

fn instruction(b: &mut GraphBuilder, code: u8, input: &mut Instructions<'_>) -> Result<TensorId, BuildError> {
    let [x, y, z] = std::array::from_fn(|_| input.tensor(b));
    match code % 32 {
        0..4 => {
            let dtype = DType::ALL[input.small(DType::ALL.len())];
            let count = input.small(6);
            b.leaf("leaf", dtype, &[input.numbers(), input.numbers()].concat()[..count])
        }
        4 => b.binary(input.op(&BINARY), x, y),
        5 => b.binary_in_place(input.op(&BINARY), x, y),
        6 => b.unary(input.op_of_kind(OpKind::Unary), x),
        7 => b.unary_in_place(input.op_of_kind(OpKind::Unary), x),
        8 => b.glu(input.op_of_kind(OpKind::Glu), x, GluHalves::GateLast),
        9 => b.glu_split(input.op_of_kind(OpKind::Glu), x, y),
        10 => b.scale_bias(x, input.float(), input.float()),
        11 => b.scale_in_place(x, input.float()),
        12 => b.repeat(x, input.numbers()),
        13 => b.concat(x, y, input.small(5)),
        14 => b.cont_as(x, input.numbers()),
        15 => b.mul_mat(x, y),
        16 => b.mul_mat_id(x, y, z),
        17 => b.add_id(x, y, z),
        18 => view(b, x, input),
        19 => b.reshape(x, &input.numbers()),
        20 => b.permute(x, std::array::from_fn(|_| input.small(5))),
        21 => b.transpose(x),
        22 => b.get_rows(x, y),
        23 => b.set_rows(x, y, z),
        24 => b.cpy(x, y),
        25 => b.cast(x, DType::ALL[input.small(DType::ALL.len())]),
        26 => b.argsort(x, SortOrder::Descending),
        27 => b.argsort_top_k(x, input.number()),
        28 => b.soft_max(x, SoftMax { mask: Some(y), max_bias: input.float(), ..SoftMax::default() }),
        29 => b.rope(x, y, Some(z), Rope { n_dims: input.number() as u32, ..Rope::default() }),
        30 => b.flash_attn(x, y, z, FlashAttn { sinks: Some(input.tensor(b)), ..FlashAttn::default() }),
        _ => recurrent(b, [x, y, z], input),
    }
}

fn view(b: &mut GraphBuilder, x: TensorId, input: &mut Instructions<'_>) -> Result<TensorId, BuildError> {
    let (ne, nb) = (input.numbers(), input.numbers().map(Bytes));
    let (extents, strides) = (input.small(5), input.small(5));
    b.view(x, &ne[..extents], &nb[..strides], Bytes(input.number()))
}

fn recurrent(
    b: &mut GraphBuilder,
    [x, y, z]: [TensorId; 3],
    input: &mut Instructions<'_>,
) -> Result<TensorId, BuildError> {
    match input.small(3) {
        0 => b.ssm_conv(x, y),
        1 => b.ssm_scan([x, y, z, y, z, z, x], input.number() as u32),
        _ => b.gated_delta_net([x, y, x, y, z, z], input.number() as u32),
    }
}
