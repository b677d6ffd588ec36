//! Tensors of the tests: bytes, layout, and their values in double precision.

use crate::formats;
use loadmaster_graph::{DType, Dims, contiguous_strides};

/// A tensor in host memory.
#[derive(Clone, Debug)]
pub struct Host {
    pub dtype: DType,
    pub ne: Dims,
    pub nb: Dims,
    /// Byte offset of the first element.
    pub offset: usize,
    pub bytes: Vec<u8>,
}

/// How a tensor lies in its memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Lay {
    /// Contiguous.
    Packed,
    /// Rows further apart than they are long, the first one not at the start.
    Padded,
    /// Dimensions 1 and 2 stored in the other order.
    Swapped,
    /// Dimensions 0 and 1 stored in the other order (plain types only).
    Transposed,
}

/// A small generator of reproducible numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// About normal: mean 0, variance 1.
    pub fn normal(&mut self) -> f64 {
        let sum: f64 = (0..12).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum();
        sum - 6.0
    }
}

/// Strides and total bytes of a layout.
fn strides(dtype: DType, ne: Dims, lay: Lay) -> (Dims, usize, usize) {
    let size = dtype.block_size().get();
    let row = dtype.row_size(ne[0]).unwrap().get();
    match lay {
        Lay::Packed => (contiguous_strides(dtype, &ne).unwrap(), 0, 0),
        Lay::Padded => {
            let nb1 = row + 3 * size;
            let nb2 = nb1 * ne[1] + 2 * size;
            ([size, nb1, nb2, nb2 * ne[2]], (2 * size) as usize, (nb2 * ne[2] * ne[3]) as usize)
        }
        Lay::Swapped => ([size, row * ne[2], row, row * ne[1] * ne[2]], 0, 0),
        Lay::Transposed => {
            assert_eq!(dtype.block_len(), 1);
            ([size * ne[1], size, size * ne[0] * ne[1], size * ne[0] * ne[1] * ne[2]], 0, 0)
        }
    }
}

impl Host {
    /// All bytes zero.
    pub fn zeros(dtype: DType, ne: Dims, lay: Lay) -> Self {
        let (nb, offset, padded) = strides(dtype, ne, lay);
        let row = dtype.row_size(ne[0]).unwrap().get();
        let plain = (row * ne[1] * ne[2] * ne[3]) as usize;
        Self { dtype, ne, nb, offset, bytes: vec![0; plain.max(padded + offset)] }
    }

    /// Values about normal; quantized blocks with random codes and moderate scales.
    pub fn random(dtype: DType, ne: Dims, lay: Lay, rng: &mut Random) -> Self {
        let mut this = Self::zeros(dtype, ne, lay);
        formats::fill(dtype, &mut this.bytes, rng);
        this
    }

    /// A float tensor from values in index order.
    pub fn floats(dtype: DType, ne: Dims, lay: Lay, mut value: impl FnMut([u64; 4]) -> f64) -> Self {
        let mut this = Self::zeros(dtype, ne, lay);
        for at in indices(ne) {
            let place = this.place(at);
            formats::put(dtype, &mut this.bytes[place..], value(at));
        }
        this
    }

    /// An integer tensor from values in index order.
    pub fn ints(dtype: DType, ne: Dims, lay: Lay, mut value: impl FnMut([u64; 4]) -> i64) -> Self {
        let mut this = Self::zeros(dtype, ne, lay);
        for at in indices(ne) {
            let place = this.place(at);
            let v = value(at);
            match dtype {
                DType::I32 => this.bytes[place..place + 4].copy_from_slice(&(v as i32).to_le_bytes()),
                DType::I64 => this.bytes[place..place + 8].copy_from_slice(&v.to_le_bytes()),
                _ => panic!("{dtype} is no integer type"),
            }
        }
        this
    }

    /// Byte position of the block that holds an element.
    pub fn place(&self, at: [u64; 4]) -> usize {
        let block = at[0] / self.dtype.block_len();
        let from_first = block * self.nb[0] + at[1] * self.nb[1] + at[2] * self.nb[2] + at[3] * self.nb[3];
        self.offset + from_first as usize
    }

    /// An element's value.
    pub fn at(&self, at: [u64; 4]) -> f64 {
        let place = self.place(at);
        formats::value(self.dtype, &self.bytes[place..], (at[0] % self.dtype.block_len()) as usize)
    }

    /// An element where indices beyond the extents repeat.
    pub fn wrapped(&self, at: [u64; 4]) -> f64 {
        self.at(std::array::from_fn(|i| at[i] % self.ne[i]))
    }

    /// All values in index order.
    pub fn values(&self) -> Vec<f64> {
        indices(self.ne).map(|at| self.at(at)).collect()
    }
}

/// All indices, innermost fastest.
pub fn indices(ne: Dims) -> impl Iterator<Item = [u64; 4]> {
    (0..ne.iter().product::<u64>())
        .map(move |i| [i % ne[0], i / ne[0] % ne[1], i / (ne[0] * ne[1]) % ne[2], i / (ne[0] * ne[1] * ne[2])])
}
