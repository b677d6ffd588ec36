//! The tables of types and operations agree with themselves, and with ggml's numbers where those are stored in files.

#![allow(clippy::unwrap_used, clippy::panic)]

use loadmaster_graph::{Bytes, DType, Op, OpKind};
use std::collections::BTreeSet;

#[test]
fn names_and_numbers_of_types_lead_back_to_them() {
    for &dtype in DType::ALL {
        assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        assert_eq!(DType::from_number(dtype.number()), Some(dtype));
        assert_eq!(dtype.row_size(dtype.block_len() * 3), Some(Bytes(dtype.block_size().get() * 3)));
        assert_eq!(dtype.row_size(dtype.block_len() + 1).is_none(), dtype.is_quantized());
    }
    assert_eq!(DType::from_name("q9_9"), None);
    assert_eq!(DType::from_number(4), None);
    assert_eq!(DType::F64.row_size(u64::MAX), None);
}

#[test]
fn names_of_operations_are_distinct_and_lead_back_to_them() {
    let names: BTreeSet<_> = Op::ALL.iter().map(|op| op.name()).collect();
    assert_eq!(names.len(), Op::ALL.len());
    for &op in Op::ALL {
        assert_eq!(Op::from_name(op.name()), Some(op));
    }
    assert_eq!(Op::from_name("UNARY"), None);
}

#[test]
fn numbers_in_families_are_those_of_parameters() {
    let stored = [
        (Op::Abs, 0),
        (Op::Sigmoid, 7),
        (Op::Gelu, 8),
        (Op::Silu, 10),
        (Op::Softplus, 15),
        (Op::Trunc, 21),
        (Op::Reglu, 0),
        (Op::Geglu, 1),
        (Op::Swiglu, 2),
        (Op::SwigluOai, 3),
        (Op::SwigluClamp, 6),
    ];
    for (op, number) in stored {
        assert_eq!(op.number_in_family(), number, "{op}");
        assert_ne!(op.kind(), OpKind::Plain);
    }
}
