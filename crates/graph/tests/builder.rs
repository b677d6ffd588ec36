//! What the builder refuses, and what the golden graphs do not show: casts, operations in place, names, numbering.
#![allow(clippy::unwrap_used, clippy::panic)]

use loadmaster_graph::builder::{FlashAttn, GluHalves, OperandFault, Precision, Rope, RopeMode, SoftMax};
use loadmaster_graph::{
    BuildError, Bytes, DType, Flags, GraphBuilder, GraphError, Op, OpKind, ShapeFault, TensorId, ViewFault,
};

fn leaf(b: &mut GraphBuilder, dtype: DType, ne: &[u64]) -> TensorId {
    b.leaf("x", dtype, ne).unwrap()
}

fn f32(b: &mut GraphBuilder, ne: &[u64]) -> TensorId {
    leaf(b, DType::F32, ne)
}

fn i32(b: &mut GraphBuilder, ne: &[u64]) -> TensorId {
    leaf(b, DType::I32, ne)
}

#[track_caller]
fn refused(result: Result<TensorId, BuildError>, op: Op, fault: OperandFault) {
    match result {
        Err(BuildError::Operands { op: at, why, .. }) => assert_eq!((at, why), (op, fault)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn operands_that_do_not_go_together_are_refused() {
    use OperandFault as F;
    let b = &mut GraphBuilder::new();
    let x = f32(b, &[8, 4]);
    let row = f32(b, &[8]);
    let odd = f32(b, &[7, 4]);
    let half = leaf(b, DType::F16, &[8, 4]);
    let ids = i32(b, &[4]);
    let turned = b.transpose(x).unwrap();
    let weights = f32(b, &[8, 5, 3]);
    refused(b.add(x, odd), Op::Add, F::NotRepeatable);
    refused(b.mul(row, x), Op::Mul, F::NotRepeatable);
    refused(b.unary(Op::Silu, turned), Op::Silu, F::RowsNotContiguous);
    refused(b.glu(Op::Swiglu, odd, GluHalves::GateFirst), Op::Swiglu, F::OddExtent);
    refused(b.swiglu_split(x, row), Op::Swiglu, F::ExtentsDiffer);
    refused(b.geglu_split(x, half), Op::Geglu, F::TypesDiffer);
    refused(b.swiglu_oai(turned, turned, 1.0, 1.0), Op::SwigluOai, F::NotContiguous);
    refused(b.mul_mat(odd, x), Op::MulMat, F::ExtentsDiffer);
    refused(b.mul_mat(weights, x), Op::MulMat, F::ExtentsDiffer);
    let four = f32(b, &[4, 3]);
    refused(b.mul_mat(turned, four), Op::MulMat, F::Transposed);
    let experts_of = f32(b, &[8, 1, 2]);
    let (chosen, floats) = (i32(b, &[2, 2]), f32(b, &[2, 2]));
    refused(b.mul_mat_id(weights, experts_of, ids), Op::MulMatId, F::ExtentsDiffer);
    refused(b.mul_mat_id(weights, experts_of, floats), Op::MulMatId, F::WrongType);
    let deep = i32(b, &[2, 2, 2]);
    refused(b.mul_mat_id(weights, experts_of, deep), Op::MulMatId, F::TooManyDimensions);
    let sum = b.mul_mat_id(weights, experts_of, chosen).unwrap();
    refused(b.add_id(sum, row, chosen), Op::AddId, F::ExtentsDiffer);
    refused(b.scale(turned, 2.0), Op::Scale, F::NotContiguous);
    refused(b.fill(turned, 2.0), Op::Fill, F::NotContiguous);
    refused(b.repeat(x, [8, 5, 1, 1]), Op::Repeat, F::NotRepeatable);
    refused(b.concat(x, half, 1), Op::Concat, F::TypesDiffer);
    refused(b.concat(x, odd, 1), Op::Concat, F::ExtentsDiffer);
    refused(b.concat(x, x, 4), Op::Concat, F::BadAxes);
    refused(b.cont_as(x, [8, 5, 1, 1]), Op::Cont, F::ElementsDiffer);
    refused(b.reshape(x, &[8, 5]), Op::Reshape, F::ElementsDiffer);
    refused(b.reshape(turned, &[32]), Op::Reshape, F::NotContiguous);
    refused(b.permute(x, [0, 1, 1, 3]), Op::Permute, F::BadAxes);
    refused(b.permute(x, [0, 1, 2, 7]), Op::Permute, F::BadAxes);
    refused(b.get_rows(x, floats), Op::GetRows, F::ExtentsDiffer);
    refused(b.get_rows(x, row), Op::GetRows, F::WrongType);
    refused(b.set_rows(x, odd, ids), Op::SetRows, F::ExtentsDiffer);
    let whole_numbers = i32(b, &[8, 4]);
    refused(b.set_rows(x, whole_numbers, ids), Op::SetRows, F::WrongType);
    refused(b.cpy(x, odd), Op::Cpy, F::ElementsDiffer);
    refused(b.argsort_top_k(x, 9), Op::Argsort, F::TooFewElements);
    refused(b.top_k(x, 9), Op::TopK, F::TooFewElements);
}

#[test]
fn attention_refuses_what_does_not_fit() {
    use OperandFault as F;
    let b = &mut GraphBuilder::new();
    let scores = f32(b, &[16, 3, 4]);
    let (mask, short, whole) = (f32(b, &[16, 3]), f32(b, &[16, 2]), i32(b, &[16, 3]));
    let with = |mask| SoftMax { mask: Some(mask), ..SoftMax::default() };
    assert!(b.soft_max(scores, with(mask)).is_ok());
    refused(b.soft_max(scores, with(short)), Op::SoftMax, F::ExtentsDiffer);
    refused(b.soft_max(scores, with(whole)), Op::SoftMax, F::WrongType);
    let turned = b.transpose(scores).unwrap();
    refused(b.soft_max(turned, SoftMax::default()), Op::SoftMax, F::NotContiguous);
    let biased = SoftMax { max_bias: 8.0, ..SoftMax::default() };
    refused(b.soft_max(scores, biased), Op::SoftMax, F::BiasWithoutMask);
    let three = f32(b, &[3]);
    refused(b.soft_max(scores, SoftMax { sinks: Some(three), ..with(mask) }), Op::SoftMax, F::ExtentsDiffer);

    let heads = f32(b, &[8, 4, 3]);
    let (pos, four_pos, floats) = (i32(b, &[3]), i32(b, &[12]), f32(b, &[3]));
    let rope = Rope { n_dims: 8, ..Rope::default() };
    assert!(b.rope(heads, pos, None, rope).is_ok());
    refused(b.rope(heads, four_pos, None, rope), Op::Rope, F::ExtentsDiffer);
    refused(b.rope(heads, floats, None, rope), Op::Rope, F::WrongType);
    refused(b.rope(heads, pos, Some(three), rope), Op::Rope, F::ExtentsDiffer);
    refused(b.rope(heads, pos, Some(pos), rope), Op::Rope, F::WrongType);
    let sections = Rope { mode: RopeMode::Mrope, sections: [1, 2, 1, 0], ..rope };
    refused(b.rope(heads, pos, None, sections), Op::Rope, F::ExtentsDiffer);
    let rotated = b.rope(heads, four_pos, None, sections).unwrap();
    assert_eq!(b.tensor(rotated).unwrap().params[11..], [1, 2, 1]);

    let (q, k) = (f32(b, &[8, 3, 4]), leaf(b, DType::F16, &[8, 16, 2]));
    let half_mask = leaf(b, DType::F16, &[16, 3]);
    let attn = |mask| FlashAttn { mask: Some(mask), ..FlashAttn::default() };
    assert!(b.flash_attn(q, k, k, attn(half_mask)).is_ok());
    refused(b.flash_attn(q, k, k, attn(mask)), Op::FlashAttnExt, F::WrongType);
    refused(b.flash_attn(q, scores, k, attn(half_mask)), Op::FlashAttnExt, F::ExtentsDiffer);
    let sinks = FlashAttn { sinks: Some(three), ..attn(half_mask) };
    refused(b.flash_attn(q, k, k, sinks), Op::FlashAttnExt, F::ExtentsDiffer);
}

#[test]
fn sinks_without_a_mask_leave_a_hole() {
    let b = &mut GraphBuilder::new();
    let (q, k, sinks) = (f32(b, &[8, 3, 4]), leaf(b, DType::F16, &[8, 16, 2]), f32(b, &[4]));
    let out = b.flash_attn(q, k, k, FlashAttn { sinks: Some(sinks), ..FlashAttn::default() }).unwrap();
    assert_eq!(b.tensor(out).unwrap().src[..], [Some(q), Some(k), Some(k), None, Some(sinks)]);
    b.expand(out).unwrap();
    assert_eq!(b.leafs().as_slice(), [q, k, sinks]);
}

#[test]
fn recurrent_operations_refuse_what_does_not_fit() {
    use OperandFault as F;
    let b = &mut GraphBuilder::new();
    let (x, kernel, long) = (f32(b, &[6, 8]), f32(b, &[4, 8]), f32(b, &[8, 8]));
    let conv = b.ssm_conv(x, kernel).unwrap();
    assert_eq!(b.tensor(conv).unwrap().ne, [8, 3, 1, 1]);
    refused(b.ssm_conv(x, long), Op::SsmConv, F::ExtentsDiffer);
    refused(b.ssm_scan([x; 7], 1), Op::SsmScan, F::WrongType);
    refused(b.gated_delta_net([x; 6], 1), Op::GatedDeltaNet, F::ExtentsDiffer);
    let n = f32(b, &[1 << 30, 1 << 30]);
    refused(b.gated_delta_net([n; 6], u32::MAX), Op::GatedDeltaNet, F::ExtentsDiffer);
}

#[test]
fn shapes_out_of_range_are_refused() {
    let b = &mut GraphBuilder::new();
    let shape = |why, dtype, ne| Err(BuildError::Shape { op: Op::None, dtype, ne, why });
    assert_eq!(b.leaf("w", DType::Q4K, &[300]), shape(ShapeFault::PartialBlock, DType::Q4K, [300, 1, 1, 1]));
    let huge = [1 << 32, 1 << 32, 1, 1];
    assert_eq!(b.leaf("w", DType::F32, &huge[..2]), shape(ShapeFault::Overflow, DType::F32, huge));
    let five = b.leaf("w", DType::F32, &[1; 5]);
    assert_eq!(five, Err(BuildError::Dimensions { op: Op::None, what: "extents", found: 5, limit: 4 }));
    let x = f32(b, &[1 << 20, 1 << 20]);
    let product = b.mul_mat(x, x).and_then(|y| b.repeat(y, [1 << 20, 1 << 20, 1 << 20, 1 << 20]));
    assert!(matches!(product, Err(BuildError::Graph(GraphError::Shape { why: ShapeFault::Overflow, .. }))));
    assert_eq!(b.len(), 2, "only what was built is there");
}

#[test]
fn views_stay_inside_their_roots() {
    let b = &mut GraphBuilder::new();
    let x = f32(b, &[8, 4]);
    let rows = b.view(x, &[4, 2], &[Bytes(32)], Bytes(64)).unwrap();
    let part = b.view(rows, &[4], &[], Bytes(32)).unwrap();
    assert_eq!(b.tensor(part).unwrap().view.unwrap().offset, Bytes(96));
    assert_eq!(b.tensor(part).unwrap().view.unwrap().root, x);
    assert_eq!(b.tensor(part).unwrap().params[..], [32]);
    let beyond = b.view(rows, &[4], &[], Bytes(64));
    let ViewFault::LeavesRoot { root, end, size } = view_fault(beyond) else { panic!() };
    assert_eq!((root, end, size), (x, 144, 128));
    let far = b.view(rows, &[4], &[], Bytes(u64::MAX));
    assert!(matches!(far, Err(BuildError::Graph(GraphError::Shape { why: ShapeFault::Overflow, .. }))), "{far:?}");
    let strides = b.view(x, &[4, 2], &[], Bytes::ZERO);
    assert_eq!(strides, Err(BuildError::Dimensions { op: Op::View, what: "strides", found: 0, limit: 1 }));
}

fn view_fault(result: Result<TensorId, BuildError>) -> ViewFault {
    match result {
        Err(BuildError::Graph(GraphError::View { why, .. })) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn operations_of_other_families_are_refused() {
    let b = &mut GraphBuilder::new();
    let x = f32(b, &[8, 4]);
    for &op in Op::ALL {
        let family_error = |result| matches!(result, Err(BuildError::Family { op: at, .. }) if at == op);
        let plain = matches!(op, Op::Dup | Op::Sqr | Op::Sqrt | Op::Log | Op::Sin | Op::Cos);
        let unary = plain || op.kind() == OpKind::Unary && op != Op::Xielu;
        let binary = matches!(op, Op::Add | Op::Sub | Op::Mul | Op::Div);
        assert_eq!(family_error(b.unary(op, x)), !unary, "{op}");
        assert_eq!(family_error(b.unary_in_place(op, x)), !unary, "{op}");
        assert_eq!(family_error(b.binary(op, x, x)), !binary, "{op}");
        assert_eq!(family_error(b.binary_in_place(op, x, x)), !binary, "{op}");
        assert_eq!(family_error(b.glu(op, x, GluHalves::GateLast)), op.kind() != OpKind::Glu, "{op}");
        assert_eq!(family_error(b.glu_split(op, x, x)), op.kind() != OpKind::Glu, "{op}");
    }
}

#[test]
fn tensors_of_another_builder_are_refused() {
    let mut other = GraphBuilder::new();
    let mut far = f32(&mut other, &[1]);
    for _ in 0..3 {
        far = f32(&mut other, &[1]);
    }
    let b = &mut GraphBuilder::new();
    let x = f32(b, &[1]);
    let unknown = |op| BuildError::UnknownTensor { op, id: far, count: 1 };
    assert_eq!(b.add(x, far), Err(unknown(Op::Add)));
    assert_eq!(b.soft_max(x, SoftMax { mask: Some(far), ..SoftMax::default() }), Err(unknown(Op::SoftMax)));
    assert_eq!(b.view(far, &[1], &[], Bytes::ZERO), Err(unknown(Op::View)));
    assert_eq!(b.expand(far), Err(unknown(Op::None)));
    assert_eq!(b.set_name(far, "n"), Err(unknown(Op::None)));
    assert_eq!(b.set_output(far), Err(unknown(Op::None)));
    assert_eq!(b.set_precision(far, Precision::F32), Err(unknown(Op::None)));
}

#[test]
fn precision_belongs_to_products_and_attention() {
    let b = &mut GraphBuilder::new();
    let x = f32(b, &[8, 4]);
    let product = b.mul_mat(x, x).unwrap();
    b.set_precision(product, Precision::F32).unwrap();
    assert_eq!(b.tensor(product).unwrap().params[..], [10]);
    b.set_precision(product, Precision::Undefined).unwrap();
    assert!(b.tensor(product).unwrap().params.is_empty());
    let fault = b.set_precision(x, Precision::F32);
    assert!(matches!(fault, Err(BuildError::Operands { why: OperandFault::NoSuchParameter, .. })));
}

#[test]
fn a_cast_is_its_own_second_source() {
    let mut b = GraphBuilder::new();
    let x = f32(&mut b, &[8, 4]);
    let cast = b.cast(x, DType::F16).unwrap();
    b.expand(cast).unwrap();
    assert_eq!(b.tensor(cast).unwrap().src[..], [Some(x), Some(cast)]);
    assert_eq!(&*b.tensor(cast).unwrap().name, "x (copy)");
    let (graph, new_ids) = b.finish_numbered("g").unwrap();
    assert_eq!(graph.tensor(new_ids[cast].unwrap()).src[1], new_ids[cast]);
}

#[test]
fn operations_in_place_are_views_of_their_first_operand() {
    let mut b = GraphBuilder::new();
    let x = f32(&mut b, &[8, 4]);
    let view = b.view(x, &[8, 2], &[Bytes(32)], Bytes(64)).unwrap();
    let results =
        [b.unary_in_place(Op::Relu, view), b.binary_in_place(Op::Add, view, view), b.scale_in_place(view, 0.5)];
    for result in results {
        let tensor = b.tensor(result.unwrap()).unwrap();
        assert_eq!((tensor.view.unwrap().root, tensor.view.unwrap().offset), (x, Bytes(64)));
        assert_eq!((&*tensor.name, tensor.nb), ("x (view) (view)", [4, 32, 64, 64]));
    }
}

#[test]
fn names_follow_the_reference() {
    let mut b = GraphBuilder::new();
    let x = f32(&mut b, &[8, 4]);
    let names = [
        (b.reshape(x, &[32]), "x (reshaped)"),
        (b.permute(x, [1, 0, 2, 3]), "x (permuted)"),
        (b.transpose(x), "x (transposed)"),
        (b.cont(x), "x (cont)"),
        (b.cpy(x, x), "x (copy of x)"),
    ];
    for (id, name) in names {
        assert_eq!(&*b.tensor(id.unwrap()).unwrap().name, name);
    }
    b.set_name(x, "é".repeat(40)).unwrap();
    let cut = b.transpose(x).unwrap();
    assert_eq!(&*b.tensor(cut).unwrap().name, "é".repeat(31));
    let sum = b.add(x, x).unwrap();
    let unnamed = b.leaf("", DType::F32, &[8, 4]).unwrap();
    let more = b.add(sum, unnamed).unwrap();
    b.expand(more).unwrap();
    let name = |id| &*b.tensor(id).unwrap().name;
    assert_eq!([name(sum), name(unnamed), name(more)], ["node_0", "leaf_1", "node_1"]);
    let long = b.set_name(x, "n".repeat(2000));
    assert!(matches!(long, Err(BuildError::Graph(GraphError::TensorLimit { .. }))));
}

#[test]
fn ids_stay_and_only_what_was_expanded_is_listed() {
    let mut b = GraphBuilder::new();
    let (x, unused) = (f32(&mut b, &[8, 4]), f32(&mut b, &[8, 4]));
    let y = b.add(x, x).unwrap();
    let spare = b.mul(y, unused).unwrap();
    b.set_input(x).unwrap();
    b.set_output(y).unwrap();
    b.expand(y).unwrap();
    b.expand(y).unwrap();
    let graph = b.clone().finish("g").unwrap();
    assert_eq!((graph.nodes().as_slice(), graph.leafs().as_slice()), ([y].as_slice(), [x].as_slice()));
    assert_eq!(graph.tensors().len(), 4);
    assert!(graph.tensor(x).flags.is_input() && graph.tensor(y).flags.is_output());
    let (small, new_ids) = b.finish_numbered("g").unwrap();
    assert_eq!(small.tensors().len(), 2);
    assert_eq!([new_ids[x], new_ids[unused], new_ids[spare]], [Some(TensorId::new(0)), None, None]);
}

#[test]
fn a_trainable_parameter_is_a_node() {
    let mut b = GraphBuilder::new();
    let x = f32(&mut b, &[8, 4]);
    b.add_flags(x, Flags::PARAM).unwrap();
    let y = b.add(x, x).unwrap();
    b.expand(y).unwrap();
    assert_eq!(b.nodes().as_slice(), [x, y]);
    assert!(b.finish("g").unwrap().leafs().is_empty());
}

#[test]
fn a_chain_of_a_hundred_thousand_operations_is_expanded() {
    let mut b = GraphBuilder::new();
    let mut x = f32(&mut b, &[1]);
    for _ in 0..100_000 {
        x = b.unary(Op::Neg, x).unwrap();
    }
    b.expand(x).unwrap();
    assert_eq!(b.finish("chain").unwrap().nodes().len(), 100_000);
}

#[test]
fn errors_say_what_the_operands_are() {
    let b = &mut GraphBuilder::new();
    let (w, x) = (f32(b, &[8, 5]), f32(b, &[7, 4]));
    let text = b.mul_mat(w, x).unwrap_err().to_string();
    assert_eq!(
        text,
        "MUL_MAT: the extents must agree; operands: t0 `x` f32 [8, 5, 1, 1] strides [4, 32, 160, 160], \
         t1 `x` f32 [7, 4, 1, 1] strides [4, 28, 112, 112]"
    );
}
