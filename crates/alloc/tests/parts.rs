//! The dynamic allocator, the linear one, and groups of tensors.
#![allow(clippy::unwrap_used, clippy::panic)] // A test fails by a panic, helpers included.

#[path = "support/device.rs"]
#[allow(dead_code)]
mod device;

use device::TestType;
use loadmaster_alloc::dynamic::{Address, DynError, MAX_CHUNKS};
use loadmaster_alloc::pack::ChunkId;
use loadmaster_alloc::{AllocError, BufferType, DynAllocator, TensorAllocator, alloc_tensors, alloc_tensors_size};
use loadmaster_graph::{Align, Bytes, DType, IdVec, Tensor, TensorId, View};
use std::sync::Arc;

fn align(n: u64) -> Align {
    Align::new(n).unwrap()
}

fn at(chunk: usize, offset: u64) -> Address {
    Address { chunk: ChunkId::new(chunk), offset: Bytes(offset) }
}

#[test]
fn what_is_handed_out_never_overlaps_and_comes_back_whole() {
    let mut state = 7u64;
    let mut random = move |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    // Blocks of size zero may come back into the middle of a free one, as in the reference: then blocks stay apart.
    for (smallest, max_size) in
        [(1, None), (1, Some(Bytes(1000))), (1, Some(Bytes(64))), (0, None), (0, Some(Bytes(300)))]
    {
        let mut allocator = DynAllocator::new(align(8), max_size);
        let mut held: Vec<(Address, u64)> = Vec::new();
        for _ in 0..4000 {
            if random(100) < 55 || held.is_empty() {
                let size = smallest + random(200);
                let place = allocator.alloc(Bytes(size)).unwrap();
                let padded = size.next_multiple_of(8);
                assert_eq!(place.offset.get() % 8, 0);
                let (start, end) = (place.offset.get(), place.offset.get() + padded);
                let clash = held.iter().any(|(other, size)| {
                    let from = other.offset.get();
                    place.chunk == other.chunk && *size > 0 && padded > 0 && start < from + size && from < end
                });
                assert!(!clash);
                held.push((place, padded));
            } else {
                let (place, size) = held.swap_remove(random(held.len() as u64) as usize);
                allocator.free(place, Bytes(size)).unwrap();
            }
        }
        let sizes: Vec<u64> = allocator.chunk_sizes().map(Bytes::get).collect();
        assert!(sizes.len() <= MAX_CHUNKS);
        for (place, size) in held.drain(..) {
            allocator.free(place, Bytes(size)).unwrap();
        }
        if smallest > 0 {
            assert_eq!(allocator.alloc(Bytes(sizes[0])).unwrap().offset, Bytes::ZERO);
        }
    }
}

#[test]
fn five_thousand_holes_are_kept_and_the_best_one_is_found() {
    let mut allocator = DynAllocator::new(align(16), None);
    let places: Vec<Address> = (0..10_001).map(|i| allocator.alloc(Bytes(16 + 16 * (i % 40))).unwrap()).collect();
    for (i, &place) in places.iter().enumerate().filter(|(i, _)| i % 2 == 1) {
        allocator.free(place, Bytes(16 + 16 * (i as u64 % 40))).unwrap();
    }
    // Holes are 32, 64, … 640 bytes long; of equal ones the last is taken.
    assert_eq!(allocator.alloc(Bytes(33)).unwrap(), places[9963]);
    assert_eq!(allocator.alloc(Bytes(640)).unwrap(), places[9999]);
    let end: u64 = (0..10_001).map(|i| 16 + 16 * (i % 40)).sum();
    assert_eq!(allocator.alloc(Bytes(641)).unwrap(), at(0, end));
}

#[test]
fn chunks_are_opened_up_to_sixteen_and_the_last_is_unbounded() {
    let mut allocator = DynAllocator::new(align(1), Some(Bytes(100)));
    for i in 0..MAX_CHUNKS {
        assert_eq!(allocator.alloc(Bytes(100)).unwrap(), at(i, 0));
    }
    assert_eq!(allocator.alloc(Bytes(1 << 40)).unwrap(), at(15, 100));
    assert!(matches!(allocator.alloc(Bytes(u64::MAX >> 1)), Err(DynError::OutOfChunks { .. })));
    assert!(matches!(allocator.alloc(Bytes(u64::MAX)), Err(DynError::Overflow { .. })));
    let mut large = DynAllocator::new(align(1), Some(Bytes(100)));
    assert_eq!(large.alloc(Bytes(500)).unwrap(), at(0, 0));
    assert_eq!(large.alloc(Bytes(1)).unwrap(), at(1, 0));
    assert_eq!(large.chunk_sizes().collect::<Vec<_>>(), [Bytes(500), Bytes(1)]);
}

#[test]
fn giving_back_what_is_not_held_is_refused_and_changes_nothing() {
    let mut allocator = DynAllocator::new(align(8), None);
    let place = allocator.alloc(Bytes(64)).unwrap();
    let refused = |result: Result<(), DynError>| assert!(matches!(result, Err(DynError::NotAllocated { .. })));
    refused(allocator.free(at(1, 0), Bytes(8)));
    refused(allocator.free(at(0, 64), Bytes(8)));
    refused(allocator.free(at(0, 0), Bytes(72)));
    refused(allocator.free(at(0, u64::MAX - 7), Bytes(8)));
    allocator.free(at(0, 32), Bytes(32)).unwrap();
    refused(allocator.free(place, Bytes(64)));
    allocator.free(place, Bytes(32)).unwrap();
    refused(allocator.free(place, Bytes(32)));
    assert_eq!(allocator.alloc(Bytes(64)).unwrap(), place);
}

fn tensor(name: &str, elements: u64) -> Tensor {
    Tensor::leaf(name, DType::F32, [elements, 1, 1, 1]).unwrap()
}

#[test]
fn the_linear_allocator_fills_its_buffer_and_then_names_what_does_not_fit() {
    let kind: Arc<dyn BufferType> = Arc::new(TestType::new("linear", 32));
    let buffer = kind.alloc_buffer(Bytes(100)).unwrap();
    let mut allocator = TensorAllocator::new(buffer, kind);
    let id = TensorId::new(3);
    assert_eq!(allocator.alloc(id, &tensor("a", 9)).unwrap(), Bytes(0));
    assert_eq!(allocator.alloc(id, &tensor("b", 1)).unwrap(), Bytes(64));
    let error = allocator.alloc(id, &tensor("c", 1)).unwrap_err();
    assert!(matches!(&error, AllocError::NoRoom { needed: Bytes(32), available: Bytes(4), .. }), "{error}");
    assert_eq!(error.to_string(), "no room for t3 `c`: it needs 32 B, 4 B are left");
    assert_eq!(allocator.alloc(id, &tensor("d", 0)).unwrap(), Bytes(96));
}

fn group() -> IdVec<TensorId, Tensor> {
    let mut tensors = IdVec::new();
    for elements in [10, 20, 30, 5, 0, 40] {
        tensors.push(tensor("weight", elements));
    }
    let mut view = tensor("view", 3);
    view.view = Some(View { root: TensorId::new(2), offset: Bytes(8) });
    tensors.push(view);
    tensors
}

#[test]
fn a_group_fills_as_few_buffers_as_the_largest_size_allows() {
    let kind = TestType { max_size: Some(Bytes(192)), ..TestType::new("weights", 32) };
    let counters = Arc::clone(&kind.counters);
    let kind: Arc<dyn BufferType> = Arc::new(kind);
    let tensors = group();
    let sizes = alloc_tensors_size(&tensors, |_| false, &kind).unwrap();
    assert_eq!(sizes.as_slice(), [Bytes(160), Bytes(160), Bytes(160)]);
    assert_eq!(counters.alive(), (0, 0));
    let made = alloc_tensors(&tensors, |_| false, &kind).unwrap();
    let places: Vec<_> = tensors.ids().map(|t| made.place(t).map(|p| (p.buffer.index(), p.offset.get()))).collect();
    let expected = [(0, 0), (0, 64), (1, 0), (1, 128), (1, 160), (2, 0), (1, 8)];
    assert_eq!(places, expected.map(Some));
    assert_eq!(made.buffers().len(), 3);
    let unbounded: Arc<dyn BufferType> = Arc::new(TestType::new("weights", 32));
    assert_eq!(alloc_tensors(&tensors, |_| false, &unbounded).unwrap().buffers().len(), 1);
}

#[test]
fn a_group_with_nothing_to_allocate_takes_no_buffer() {
    let kind = TestType::new("weights", 32);
    let counters = Arc::clone(&kind.counters);
    let kind: Arc<dyn BufferType> = Arc::new(kind);
    let tensors = group();
    let made = alloc_tensors(&tensors, |_| true, &kind).unwrap();
    assert!(made.buffers().is_empty());
    assert!(tensors.ids().all(|t| made.place(t).is_none()));
    assert_eq!(counters.alive(), (0, 0));
}

#[test]
fn a_refused_buffer_of_a_group_gives_the_others_back() {
    for k in 1..=3 {
        let kind = TestType { max_size: Some(Bytes(192)), ..TestType::new("weights", 32) };
        let counters = Arc::clone(&kind.counters);
        counters.refuse_in(k);
        let kind: Arc<dyn BufferType> = Arc::new(kind);
        let error = alloc_tensors(&group(), |_| false, &kind).unwrap_err();
        assert!(matches!(&error, AllocError::GroupOutOfMemory { buffer, .. } if buffer.index() + 1 == k as usize));
        assert_eq!(counters.alive(), (0, 0));
    }
    let small: Arc<dyn BufferType> = Arc::new(TestType { max_size: Some(Bytes(100)), ..TestType::new("small", 32) });
    let error = alloc_tensors(&group(), |_| false, &small).unwrap_err();
    assert!(matches!(&error, AllocError::NeverFits { needed: Bytes(128), largest: Bytes(100), .. }), "{error}");
}
