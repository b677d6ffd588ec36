//! Products by cuBLAS: what they touch, and computing them.

use std::ffi::c_void;

use crate::config::Offer;
use crate::memory::Astray;
use crate::race::Access;
use crate::registry::Tensor;
use crate::shadow::Mode;
use crate::state::State;

/// ggml's numbers of the types that products are made of.
pub const FLOAT: i32 = 0;
pub const HALF: i32 = 1;
pub const BFLOAT: i32 = 30;
const BYTE: i32 = 24;

/// Bytes of a workspace after a product: NaN in every float format.
const SCRIBBLE: u8 = 0xff;

/// Matrices of one operand, one after another.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    pub address: u64,
    /// ggml's number of the element type.
    pub ty: i32,
    /// Bytes of an element.
    pub size: i64,
    /// Elements of a column, columns, matrices.
    pub extents: [i64; 3],
    /// Elements from column to column.
    pub leading: i64,
    /// Elements from matrix to matrix.
    pub stride: i64,
}

impl Matrices {
    fn tensor(&self) -> Tensor {
        let [length, columns, count] = self.extents;
        let (column, matrix) = (self.leading.saturating_mul(self.size), self.stride.saturating_mul(self.size));
        Tensor {
            data: self.address as *mut c_void,
            ne: [length, columns, count, 1],
            nb: [self.size, column, matrix, 0],
            ty: self.ty,
            pad: 0,
        }
    }

    /// Address of a column.
    fn column(&self, matrix: i64, column: i64) -> u64 {
        self.address + ((matrix * self.stride + column * self.leading) * self.size) as u64
    }
}

/// `C = alpha * transposed A * B + beta * C`, for each of a number of matrices.
#[derive(Clone, Debug)]
pub struct Product {
    pub call: &'static str,
    /// A and B with columns of equal length, C with a column for each of B's.
    pub operands: [Matrices; 3],
    pub alpha: f32,
    pub beta: f32,
    /// Address and bytes.
    pub workspace: (u64, u64),
}

impl Product {
    /// Whether there is nothing to be written.
    pub fn is_empty(&self) -> bool {
        self.operands[2].extents.contains(&0)
    }

    /// Whether one of the ranges that are written meets another range.
    pub fn overlaps(accesses: &[Access]) -> bool {
        let meets = |a: &Access, b: &Access| a.space == b.space && a.start < b.end && b.start < a.end;
        let writes = accesses.iter().enumerate().filter(|(_, a)| a.mode == Mode::Write);
        writes.into_iter().any(|(i, write)| accesses.iter().enumerate().any(|(j, other)| i != j && meets(write, other)))
    }
}

impl State {
    /// What a product touches on `device`.
    pub(crate) fn product_accesses(&self, product: &Product, device: u32) -> Result<Vec<Access>, Astray> {
        let mut found = Vec::new();
        let [a, b, c] = &product.operands;
        let read = [Mode::Read];
        let written: &[Mode] = if product.beta == 0.0 { &[Mode::Write] } else { &[Mode::Read, Mode::Write] };
        for (place, (operand, modes)) in [(a, &read[..]), (b, &read), (c, written)].into_iter().enumerate() {
            self.operand_accesses(device, place, &operand.tensor(), modes, &mut found)?;
        }
        let (address, bytes) = product.workspace;
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let workspace = Matrices { address, ty: BYTE, size: 1, extents: [bytes, 1, 1], leading: bytes, stride: 0 };
        self.operand_accesses(device, 3, &workspace.tensor(), &[Mode::Write], &mut found)?;
        Ok(found)
    }

    /// Computes a product whose accesses were just checked.
    pub(crate) fn multiply(&mut self, product: &Product) {
        let [a, b, c] = &product.operands;
        let [_, columns, count] = c.extents;
        for matrix in 0..count {
            let rows: Vec<Vec<f32>> = (0..a.extents[1]).map(|row| self.column(a, matrix, row)).collect();
            for column in 0..columns {
                let x = self.column(b, matrix, column);
                let Some(to) = self.memory.real(c.column(matrix, column)).map(<*mut u8>::cast::<f32>) else { continue };
                for (row, weights) in rows.iter().enumerate() {
                    // SAFETY: `accesses` found every column of the result inside live memory just now, its addresses are
                    // multiples of an element's size.
                    unsafe {
                        let to = to.add(row);
                        let before = if product.beta == 0.0 { 0.0 } else { product.beta * to.read() };
                        to.write(product.alpha * dot(weights, &x) + before);
                    }
                }
            }
        }
        if let Some(first) = self.memory.real(c.address).filter(|_| self.config.cublas == Offer::Wrong) {
            // SAFETY: as above.
            unsafe { *first.cast::<f32>() += 1.0 };
        }
        let (workspace, bytes) = product.workspace;
        if let Some(at) = self.memory.real(workspace) {
            // SAFETY: as above.
            unsafe { at.write_bytes(SCRIBBLE, bytes as usize) };
        }
    }

    /// A column as single precision floats.
    fn column(&self, matrices: &Matrices, matrix: i64, column: i64) -> Vec<f32> {
        let len = matrices.extents[0] as usize;
        let Some(at) = self.memory.real(matrices.column(matrix, column)).filter(|_| len > 0) else { return Vec::new() };
        // SAFETY: `accesses` found the column inside live memory just now; addresses are multiples of an element's size.
        unsafe {
            match matrices.ty {
                FLOAT => std::slice::from_raw_parts(at.cast::<f32>(), len).to_vec(),
                HALF => std::slice::from_raw_parts(at.cast::<u16>(), len).iter().map(|h| half(*h)).collect(),
                _ => std::slice::from_raw_parts(at.cast::<u16>(), len).iter().map(|b| bfloat(*b)).collect(),
            }
        }
    }
}

/// A sum in an order of its own: the library promises none.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0f32; LANES];
    let (a, b) = (a.chunks(LANES), b.chunks(LANES));
    for (a, b) in a.zip(b).rev() {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

fn bfloat(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn half(bits: u16) -> f32 {
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff));
    // Moving exponent and fraction into place leaves the value 2^112 times too small, subnormals included.
    let value = f32::from_bits(rest << 13) * f32::from_bits(0x7780_0000);
    let special = if rest >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(sign | value.to_bits() | special)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_and_bfloats_have_their_values() {
        let halves =
            [(0, 0.0), (0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (1, 2f32.powi(-24)), (0x3555, 0.33325195)];
        assert!(halves.iter().all(|&(bits, value)| half(bits) == value));
        assert!(half(0x7c00) == f32::INFINITY && half(0xfc00) == f32::NEG_INFINITY && half(0x7e00).is_nan());
        assert!(bfloat(0x3f80) == 1.0 && bfloat(0xc020) == -2.5 && bfloat(0xffff).is_nan());
    }

    #[test]
    fn sums_take_every_product_once() {
        for len in [0, 1, 7, 8, 9, 100] {
            let numbers: Vec<f32> = (0..len).map(|i| i as f32).collect();
            assert_eq!(dot(&numbers, &numbers), (0..len).map(|i| (i * i) as f32).sum::<f32>());
        }
    }
}
