//! Nodes that must be refused, with an error that says why.

use crate::runner::{Runner, direct};
use crate::tensor::{Host, Lay};
use loadmaster_backends::cpu::{Isa, supports};
use loadmaster_graph::{DType, Op};

fn refused(op: Op, params: &[u32], src: &[Option<Host>], mut dst: Host) -> String {
    direct(Isa::Portable, 1).run(op, params, src, &mut dst).unwrap_err()
}

fn floats(ne: [u64; 4]) -> Option<Host> {
    Some(Host::zeros(DType::F32, ne, Lay::Packed))
}

fn ids(values: &[i64]) -> Option<Host> {
    Some(Host::ints(DType::I32, [values.len() as u64, 1, 1, 1], Lay::Packed, |[i, ..]| values[i as usize]))
}

#[test]
fn an_index_outside_the_rows_is_an_error_that_names_it() {
    let dst = || Host::zeros(DType::F32, [4, 2, 1, 1], Lay::Packed);
    for bad in [-1, 3, i64::from(i32::MAX)] {
        let error = refused(Op::GetRows, &[], &[floats([4, 3, 1, 1]), ids(&[0, bad])], dst());
        assert!(error.contains(&format!("index {bad}")) && error.contains("0..3"), "{error}");
        let error = refused(Op::SetRows, &[], &[floats([4, 2, 1, 1]), ids(&[0, bad])], {
            Host::zeros(DType::F32, [4, 3, 1, 1], Lay::Packed)
        });
        assert!(error.contains(&format!("index {bad}")), "{error}");
        let out = Host::zeros(DType::F32, [5, 2, 1, 1], Lay::Packed);
        let error = refused(Op::MulMatId, &[], &[floats([4, 5, 3, 1]), floats([4, 1, 1, 1]), ids(&[0, bad])], out);
        assert!(error.contains(&format!("index {bad}")) && error.contains("src2"), "{error}");
    }
}

#[test]
fn shapes_that_break_a_rule_are_errors() {
    let dst = || Host::zeros(DType::F32, [4, 2, 1, 1], Lay::Packed);
    for (op, src) in [
        (Op::Add, vec![floats([4, 2, 1, 1]), floats([3, 1, 1, 1])]),
        (Op::Add, vec![floats([4, 3, 1, 1]), floats([4, 2, 1, 1])]),
        (Op::Mul, vec![floats([4, 2, 1, 1]), floats([0, 1, 1, 1])]),
        (Op::MulMat, vec![floats([8, 4, 1, 1]), floats([7, 2, 1, 1])]),
        (Op::MulMat, vec![floats([8, 4, 3, 1]), floats([8, 2, 1, 1])]),
        (Op::RmsNorm, vec![floats([4, 3, 1, 1])]),
        (Op::Cont, vec![floats([4, 3, 1, 1])]),
        (Op::Repeat, vec![floats([3, 1, 1, 1])]),
        (Op::Concat, vec![floats([4, 1, 1, 1]), floats([4, 1, 1, 1])]),
        (Op::Swiglu, vec![floats([6, 2, 1, 1])]),
        (Op::SoftMax, vec![floats([4, 2, 1, 1]), floats([4, 1, 1, 1])]),
        (Op::Rope, vec![floats([4, 2, 1, 1]), ids(&[])]),
        (Op::Argmax, vec![floats([4, 2, 1, 1])]),
    ] {
        let mut dst = dst();
        if op == Op::Argmax {
            dst.dtype = DType::I32;
        }
        let error = refused(op, &[0, 4, 0, 0], &src, dst);
        assert!(error.starts_with(op.name()), "{error}");
    }
}

#[test]
fn parameters_out_of_range_are_errors() {
    let dst = || Host::zeros(DType::F32, [4, 2, 1, 1], Lay::Packed);
    for dims in [0, 3, 6, u32::MAX] {
        let error = refused(Op::Rope, &[0, dims], &[floats([4, 2, 1, 1]), ids(&[0])], dst());
        assert!(error.contains("word 1"), "{error}");
    }
    let error = refused(Op::Rope, &[0, 4, 8], &[floats([4, 2, 1, 1]), ids(&[0])], dst());
    assert!(error.contains("word 2"), "{error}");
    let error = refused(Op::Concat, &[4], &[floats([4, 1, 1, 1]), floats([4, 1, 1, 1])], dst());
    assert!(error.contains("word 0"), "{error}");
    let mut order = dst();
    order.dtype = DType::I32;
    let error = refused(Op::Argsort, &[2], &[floats([4, 2, 1, 1])], order);
    assert!(error.contains("word 0"), "{error}");
    let error = refused(Op::RmsNorm, &[f32::NAN.to_bits()], &[floats([4, 2, 1, 1])], dst());
    assert!(error.contains("word 0"), "{error}");
}

#[test]
fn types_without_a_kernel_are_refused_before_and_while_computing() {
    assert!(!supports(Op::MulMat, &[Some(DType::Iq2Xs), Some(DType::F32)], DType::F32));
    assert!(!supports(Op::MulMat, &[Some(DType::F32)], DType::F32));
    assert!(!supports(Op::SsmScan, &[Some(DType::F32)], DType::F32));
    let codes = Some(Host::zeros(DType::Iq2Xs, [256, 4, 1, 1], Lay::Packed));
    let error =
        refused(Op::MulMat, &[], &[codes, floats([256, 1, 1, 1])], Host::zeros(DType::F32, [4, 1, 1, 1], Lay::Packed));
    assert!(error.contains("iq2_xs"), "{error}");
}

#[test]
fn a_hole_where_a_source_must_be_is_an_error() {
    let dst = Host::zeros(DType::F32, [4, 2, 1, 1], Lay::Packed);
    let error = refused(Op::Add, &[], &[floats([4, 2, 1, 1]), None], dst);
    assert!(error.contains("ADD"), "{error}");
}
