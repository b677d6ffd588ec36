//! A bounds-checked little-endian reader.

use super::error::GgufFault;
use loadmaster_graph::Bytes;

/// A position in the bytes of one file.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: at.min(bytes.len()) }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], GgufFault> {
        let left = self.left();
        let fits = usize::try_from(len).ok().filter(|&len| len <= left);
        let Some(len) = fits else {
            return Err(GgufFault::Truncated { needed: Bytes(len), available: Bytes(left as u64) });
        };
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufFault> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32, GgufFault> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, GgufFault> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count that must not exceed its limit.
    pub(super) fn count(&mut self, what: &'static str, limit: u64) -> Result<u64, GgufFault> {
        let found = self.u64()?;
        if found > limit { Err(GgufFault::Limit { what, found, limit }) } else { Ok(found) }
    }

    /// A length-prefixed string, as bytes.
    pub(super) fn string(&mut self, what: &'static str, limit: u64) -> Result<&'a [u8], GgufFault> {
        let len = self.count(what, limit)?;
        self.take(len)
    }
}

/// The text of `bytes`.
pub(super) fn utf8(bytes: &[u8]) -> Result<&str, GgufFault> {
    std::str::from_utf8(bytes).map_err(|e| GgufFault::Utf8 { valid_up_to: e.valid_up_to() })
}
