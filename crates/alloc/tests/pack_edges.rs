//! Packing at the edges: empty, huge, fixed, aligned, chunked; and one packing for every fault the checker knows.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use loadmaster_alloc::pack::{
    ChunkId, Effort, FitOutcome, Method, PackBuffer, PackBufferId, PackError, PackFault, PackProblem, Packing, Place,
    check, lower_bound, pack, pack_into,
};
use loadmaster_graph::{Align, Bytes, Step};

const SEARCH: Effort = Effort::Optimal { node_budget: 100_000 };

fn buffer(size: u64, first: u32, last: u32) -> PackBuffer {
    PackBuffer::new(Bytes(size), Align::ONE, Step(first)..Step(last))
}

fn aligned(size: u64, align: u64, first: u32, last: u32) -> PackBuffer {
    PackBuffer { align: Align::new(align).unwrap(), ..buffer(size, first, last) }
}

fn fixed(size: u64, offset: u64, first: u32, last: u32) -> PackBuffer {
    PackBuffer { offset: Some(Bytes(offset)), ..buffer(size, first, last) }
}

fn problem(buffers: Vec<PackBuffer>) -> PackProblem {
    PackProblem { buffers, max_chunk: None }
}

fn chunked(limit: u64, buffers: Vec<PackBuffer>) -> PackProblem {
    PackProblem { buffers, max_chunk: Some(Bytes(limit)) }
}

fn id(index: usize) -> PackBufferId {
    PackBufferId::new(index)
}

fn place(chunk: usize, offset: u64) -> Place {
    Place { chunk: ChunkId::new(chunk), offset: Bytes(offset) }
}

/// Packs, checks, and returns the offsets.
fn packed(problem: &PackProblem) -> Packing {
    let packing = pack(problem, SEARCH).unwrap();
    check(problem, &packing).unwrap_or_else(|fault| panic!("{fault}: {packing:?}"));
    packing
}

fn offsets(packing: &Packing) -> Vec<u64> {
    packing.places.iter().map(|p| p.offset.get()).collect()
}

#[test]
fn nothing_needs_nothing() {
    let packing = packed(&problem(vec![]));
    assert_eq!((packing.peak, packing.proved, packing.method), (Bytes(0), true, Method::Trivial));
}

#[test]
fn buffers_without_bytes_or_steps_are_dropped_and_lie_at_zero() {
    let packing = packed(&problem(vec![buffer(0, 0, 9), buffer(7, 3, 3), buffer(5, 0, 9), buffer(0, 4, 4)]));
    assert_eq!(offsets(&packing), [0, 0, 0, 0]);
    assert_eq!(packing.peak, Bytes(5));
}

#[test]
fn a_fixed_buffer_without_bytes_stays_where_it_is_and_raises_nothing() {
    let packing = packed(&problem(vec![fixed(0, 1000, 0, 9), fixed(3, 50, 2, 2), buffer(5, 0, 9)]));
    assert_eq!(offsets(&packing), [1000, 50, 0]);
    assert_eq!(packing.peak, Bytes(5));
}

#[test]
fn equal_buffers_share_or_stack() {
    let same = vec![buffer(4, 0, 2), buffer(4, 0, 2), buffer(4, 2, 4), buffer(4, 2, 4)];
    assert_eq!(packed(&problem(same)).peak, Bytes(8));
}

#[test]
fn a_lifetime_that_ends_as_another_begins_shares_its_bytes() {
    assert_eq!(packed(&problem(vec![buffer(9, 0, 5), buffer(9, 5, 6)])).peak, Bytes(9));
}

#[test]
fn buffers_near_the_end_of_the_address_space_are_packed_where_they_can_be() {
    let huge = u64::MAX - 10;
    let packing = packed(&problem(vec![buffer(huge, 0, 1), buffer(huge, 1, 2), buffer(10, 0, 2)]));
    assert_eq!(packing.peak, Bytes(u64::MAX));
    assert!(packing.proved);
}

#[test]
fn a_load_beyond_64_bits_is_an_error_that_names_the_step() {
    let buffers = vec![buffer(u64::MAX, 0, 4), buffer(1, 2, 3)];
    let error = PackError::LoadOverflow { step: Step(2), buffer: id(1) };
    assert_eq!(pack(&problem(buffers.clone()), SEARCH).unwrap_err(), error);
    assert_eq!(lower_bound(&problem(buffers)).unwrap_err(), error);
}

#[test]
fn offsets_that_alignment_pushes_beyond_64_bits_are_an_error() {
    let buffers = vec![aligned(u64::MAX / 2 + 2, 1, 0, 2), aligned(16, 1 << 63, 0, 2), aligned(16, 1 << 63, 0, 2)];
    assert!(matches!(pack(&problem(buffers), SEARCH), Err(PackError::OffsetOverflow { .. })));
}

#[test]
fn deaths_that_sum_beyond_64_bits_are_no_overflow() {
    let huge = u64::MAX / 2 + 1;
    let buffers = vec![buffer(huge, 0, 1), buffer(huge, 1, 2), buffer(huge, 2, 3), buffer(1, 0, 3)];
    assert_eq!(lower_bound(&problem(buffers)).unwrap(), Bytes(huge + 1));
}

#[test]
fn reversed_lifetimes_are_refused() {
    let error = PackError::ReversedLifetime { buffer: id(1), start: Step(5), end: Step(4) };
    assert_eq!(pack(&problem(vec![buffer(1, 0, 1), buffer(1, 5, 4)]), SEARCH).unwrap_err(), error);
}

#[test]
fn fixed_offsets_must_suit_their_alignment_the_address_space_and_the_chunk() {
    let mut odd = fixed(8, 12, 0, 1);
    odd.align = Align::new(8).unwrap();
    let error = PackError::FixedMisaligned { buffer: id(0), offset: Bytes(12), align: odd.align };
    assert_eq!(pack(&problem(vec![odd]), SEARCH).unwrap_err(), error);
    let error = PackError::FixedOverflow { buffer: id(0), size: Bytes(2) };
    assert_eq!(pack(&problem(vec![fixed(2, u64::MAX - 1, 0, 1)]), SEARCH).unwrap_err(), error);
    let error = PackError::FixedPastChunk { buffer: id(0), end: Bytes(12), limit: Bytes(10) };
    assert_eq!(pack(&chunked(10, vec![fixed(8, 4, 0, 1)]), SEARCH).unwrap_err(), error);
}

#[test]
fn fixed_buffers_that_meet_are_refused_with_both_names() {
    let error = PackError::FixedConflict { first: id(2), second: id(0), step: Step(3) };
    let buffers = vec![fixed(4, 6, 3, 9), fixed(4, 10, 3, 9), fixed(8, 0, 1, 4)];
    assert_eq!(pack(&problem(buffers), SEARCH).unwrap_err(), error);
    assert_eq!(error.buffers(), [id(2), id(0)]);
    packed(&problem(vec![fixed(4, 6, 3, 9), fixed(8, 0, 1, 3)]));
}

#[test]
fn free_buffers_go_around_fixed_ones() {
    let packing = packed(&problem(vec![fixed(4, 4, 0, 4), buffer(4, 0, 4), buffer(4, 2, 6), fixed(2, 30, 9, 10)]));
    assert_eq!(packing.peak, Bytes(32));
    let packing = packed(&problem(vec![fixed(4, 3, 0, 4), buffer(4, 0, 2), buffer(3, 1, 4)]));
    assert_eq!(packing.peak, Bytes(11));
    assert!(packing.proved, "the search is exhausted");
}

#[test]
fn alignments_that_differ_are_kept_and_the_least_peak_is_proved() {
    let packing = packed(&problem(vec![aligned(3, 1, 0, 2), aligned(8, 8, 0, 2), aligned(4, 4, 0, 2)]));
    assert_eq!(packing.peak, Bytes(15));
    assert!(packing.proved);
}

#[test]
fn the_bound_knows_that_all_but_the_topmost_buffer_fill_their_alignment() {
    let buffers = vec![aligned(100, 128, 0, 2), aligned(100, 128, 1, 3), aligned(50, 128, 0, 3)];
    assert_eq!(lower_bound(&problem(buffers.clone())).unwrap(), Bytes(128 + 128 + 50));
    assert!(packed(&problem(buffers)).proved);
}

#[test]
fn no_buffer_lies_in_two_chunks() {
    let packing = packed(&chunked(10, vec![buffer(6, 0, 2), buffer(6, 0, 2), buffer(4, 0, 2), buffer(4, 0, 2)]));
    assert_eq!(packing.peak, Bytes(20));
    assert!(packing.proved);
}

#[test]
fn a_buffer_larger_than_the_limit_gets_a_chunk_as_long_as_itself() {
    let packing = packed(&chunked(10, vec![buffer(25, 0, 2), buffer(10, 0, 2), buffer(5, 2, 3), buffer(20, 2, 3)]));
    assert_eq!(packing.peak, Bytes(35));
    let fixed_and_huge = packed(&chunked(10, vec![fixed(25, 0, 0, 2), buffer(10, 0, 2)]));
    assert_eq!(fixed_and_huge.peak, Bytes(35));
}

#[test]
fn a_capacity_is_met_ruled_out_or_left_open() {
    // A frame of four around a hole: 12 bytes alive at most, yet 12 do not do.
    let frame = vec![fixed(2, 5, 1, 2), buffer(5, 0, 2), buffer(5, 1, 3), buffer(5, 0, 1), buffer(5, 2, 3)];
    let p = problem(frame);
    let least = packed(&p);
    assert!(least.proved);
    let below = Bytes(least.peak.get() - 1);
    assert!(matches!(pack_into(&p, least.peak, SEARCH), Ok(FitOutcome::Fits(f)) if f.peak == least.peak));
    assert!(matches!(pack_into(&p, below, SEARCH), Ok(FitOutcome::Infeasible { at_least }) if at_least > below));
    let nothing = Effort::Optimal { node_budget: 0 };
    let bound = lower_bound(&p).unwrap();
    match pack_into(&p, bound, nothing).unwrap() {
        FitOutcome::Fits(f) => assert_eq!(f.peak, bound),
        FitOutcome::Unknown { best } => assert!(best.peak > bound),
        other => panic!("{other:?}"),
    }
}

#[test]
fn equal_input_gives_an_equal_packing() {
    let buffers: Vec<PackBuffer> =
        (0..40u32).map(|i| buffer(u64::from(1 + i * 7 % 13), i * 5 % 11, i * 5 % 11 + 1 + i % 7)).collect();
    let p = problem(buffers);
    assert_eq!(pack(&p, SEARCH), pack(&p, SEARCH));
    assert_eq!(pack(&p, Effort::Default), pack(&p, Effort::Default));
}

/// Two buffers that meet at step 1 and one that lives later, placed by hand.
fn sample() -> (PackProblem, Packing) {
    let p = problem(vec![buffer(4, 0, 2), aligned(4, 2, 1, 3), fixed(4, 0, 3, 4)]);
    let places = vec![place(0, 0), place(0, 4), place(0, 0)];
    let packing = Packing { places, peak: Bytes(8), lower_bound: Bytes(8), proved: true, method: Method::FirstFit };
    assert_eq!(check(&p, &packing), Ok(()));
    (p, packing)
}

fn fault_after(change: impl FnOnce(&mut PackProblem, &mut Packing)) -> PackFault {
    let (mut p, mut packing) = sample();
    change(&mut p, &mut packing);
    check(&p, &packing).unwrap_err()
}

#[test]
fn the_checker_counts_places() {
    let fault = fault_after(|_, packing| packing.places.truncate(2));
    assert_eq!(fault, PackFault::Count { places: 2, buffers: 3 });
}

#[test]
fn the_checker_finds_overlaps_on_both_sides() {
    let chunk = ChunkId::new(0);
    for offset in [0, 2] {
        let fault = fault_after(|_, packing| packing.places[1].offset = Bytes(offset));
        assert_eq!(fault, PackFault::Peak { stated: Bytes(8), found: Bytes(4 + offset) });
        let fault = fault_after(|_, packing| {
            packing.places[1].offset = Bytes(offset);
            packing.peak = Bytes(4 + offset);
        });
        assert_eq!(fault, PackFault::Overlap { first: id(0), second: id(1), chunk, step: Step(1) });
    }
    let fault = fault_after(|_, packing| {
        packing.places = vec![place(0, 2), place(0, 0), place(0, 0)];
        packing.peak = Bytes(6);
    });
    assert_eq!(fault, PackFault::Overlap { first: id(0), second: id(1), chunk, step: Step(1) });
}

#[test]
fn the_checker_finds_misaligned_moved_and_overflowing_buffers() {
    let align = Align::new(2).unwrap();
    let fault = fault_after(|_, packing| packing.places[1].offset = Bytes(5));
    assert_eq!(fault, PackFault::Misaligned { buffer: id(1), offset: Bytes(5), align });
    let fault = fault_after(|_, packing| packing.places[2].offset = Bytes(4));
    let chunk = ChunkId::new(0);
    assert_eq!(fault, PackFault::Moved { buffer: id(2), fixed: Bytes(0), chunk, offset: Bytes(4) });
    let fault = fault_after(|_, packing| packing.places[0].offset = Bytes(u64::MAX - 2));
    assert_eq!(fault, PackFault::Overflow { buffer: id(0) });
}

#[test]
fn the_checker_knows_how_long_chunks_may_be() {
    let chunk = ChunkId::new(1);
    let fault = fault_after(|_, packing| packing.places[1] = place(1, 0));
    assert_eq!(fault, PackFault::NeedlessChunk { buffer: id(1), chunk });
    let fault = fault_after(|p, _| p.max_chunk = Some(Bytes(7)));
    let chunk = ChunkId::new(0);
    assert_eq!(fault, PackFault::PastChunk { buffer: id(1), chunk, end: Bytes(8), limit: Bytes(7) });
}

#[test]
fn the_checker_recomputes_peak_bound_and_proof() {
    let fault = fault_after(|_, packing| packing.peak = Bytes(9));
    assert_eq!(fault, PackFault::Peak { stated: Bytes(9), found: Bytes(8) });
    let fault = fault_after(|_, packing| packing.lower_bound = Bytes(7));
    assert_eq!(fault, PackFault::BoundTooLow { stated: Bytes(7), load: Bytes(8), step: Step(1) });
    let contradiction = |bound, proved| PackFault::BoundContradicts { peak: Bytes(8), bound: Bytes(bound), proved };
    assert_eq!(fault_after(|_, packing| packing.lower_bound = Bytes(9)), contradiction(9, true));
    assert_eq!(fault_after(|_, packing| packing.proved = false), contradiction(8, false));
}
