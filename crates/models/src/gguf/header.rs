//! Reads the header of one file: counts, metadata, tensor table.

use super::cursor::{Cursor, utf8};
use super::error::{GgufError, GgufFault, Place, Subject};
use super::limits;
use super::value::{Value, ValueType};
use loadmaster_graph::{Bytes, DType, Dims};
use std::collections::BTreeMap;
use std::ops::Range;

/// Where a metadata value stands in its file.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) key: Box<str>,
    pub(super) ty: ValueType,
    pub(super) bytes: Range<usize>,
}

/// An entry of the tensor table.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: Box<str>,
    pub(super) ne: Dims,
    pub(super) dims: u32,
    pub(super) type_number: u32,
    pub(super) offset: u64,
    /// Where the entry stands, for messages.
    pub(super) at: usize,
}

impl Entry {
    pub(super) fn dtype(&self) -> Option<DType> {
        DType::from_number(self.type_number)
    }
}

/// The header of one file.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) pairs: Vec<Pair>,
    pub(super) by_key: BTreeMap<Box<str>, u32>,
    pub(super) tensors: Vec<Entry>,
    pub(super) alignment: u64,
    /// Where the tensor data begins (or would begin).
    pub(super) data_start: u64,
}

/// Smallest encodings, so that a count cannot claim more entries than the file has bytes for.
const MIN_PAIR: u64 = 8 + 4 + 1;
const MIN_TENSOR: u64 = 8 + 4 + 4 + 8;

impl Header {
    /// Reads a header. O(bytes of the header).
    pub(super) fn read(bytes: &[u8], shard: u16) -> Result<Self, GgufError> {
        let mut reader = Reader { cursor: Cursor::new(bytes, 0), shard };
        let (version, tensor_count, pair_count) = reader.in_header(read_counts)?;
        let pairs = reader.pairs(pair_count)?;
        let by_key = index_pairs(&pairs, shard)?;
        let tensors = reader.tensors(tensor_count)?;
        let mut header = Self { version, pairs, by_key, tensors, alignment: 0, data_start: 0 };
        header.alignment = header.read_alignment(bytes, shard)?;
        // No overflow: positions are below the file's size, the alignment is capped.
        header.data_start = (reader.cursor.position() as u64).next_multiple_of(header.alignment);
        Ok(header)
    }

    /// The value of a key.
    pub(super) fn value<'a>(&self, bytes: &'a [u8], key: &str) -> Result<Option<Value<'a>>, GgufFault> {
        let Some(&index) = self.by_key.get(key) else {
            return Ok(None);
        };
        self.pairs[index as usize].value(bytes).map(Some)
    }

    fn read_alignment(&self, bytes: &[u8], shard: u16) -> Result<u64, GgufError> {
        const KEY: &str = "general.alignment";
        let checked = || -> Result<u64, GgufFault> {
            let Some(value) = self.value(bytes, KEY)? else {
                return Ok(limits::DEFAULT_ALIGNMENT);
            };
            let found = value.as_u64().ok_or_else(|| GgufFault::WrongType {
                expected: "a whole number",
                found: value.value_type().name().into(),
            })?;
            let limit = limits::MAX_ALIGNMENT.get();
            if !found.is_power_of_two() || found > limit {
                return Err(GgufFault::Alignment { value: found, limit });
            }
            Ok(found)
        };
        checked().map_err(|fault| GgufError {
            place: Place { shard, offset: None, subject: Subject::Key(KEY.into()) },
            fault,
        })
    }
}

impl Pair {
    pub(super) fn value<'a>(&self, file: &'a [u8]) -> Result<Value<'a>, GgufFault> {
        let bytes = &file[self.bytes.clone()];
        if self.ty == ValueType::Array {
            return super::value::Array::walked(bytes).map(Value::Array);
        }
        Value::read(&mut Cursor::new(bytes, 0), self.ty, limits::MAX_NESTING)
    }
}

fn read_counts(cursor: &mut Cursor<'_>) -> Result<(u32, u64, u64), GgufFault> {
    let magic = cursor.take(4.min(cursor.left() as u64))?;
    if magic != b"GGUF" {
        return Err(GgufFault::Magic { found: magic.to_vec() });
    }
    let version = cursor.u32()?;
    match version {
        2 | 3 => {}
        _ if version & 0xffff == 0 => return Err(GgufFault::BigEndian),
        _ => return Err(GgufFault::Version { version }),
    }
    let tensors = cursor.count("tensor count", limits::MAX_TENSORS)?;
    let pairs = cursor.count("metadata count", limits::MAX_METADATA)?;
    let needed = tensors * MIN_TENSOR + pairs * MIN_PAIR;
    let available = cursor.left() as u64;
    if needed > available {
        return Err(GgufFault::Truncated { needed: Bytes(needed), available: Bytes(available) });
    }
    Ok((version, tensors, pairs))
}

fn index_pairs(pairs: &[Pair], shard: u16) -> Result<BTreeMap<Box<str>, u32>, GgufError> {
    let mut by_key = BTreeMap::new();
    for (index, pair) in (0..).zip(pairs) {
        if by_key.insert(pair.key.clone(), index).is_some() {
            let place =
                Place { shard, offset: Some(Bytes(pair.bytes.start as u64)), subject: Subject::Key(pair.key.clone()) };
            return Err(GgufError { place, fault: GgufFault::Duplicate });
        }
    }
    Ok(by_key)
}

/// A cursor that knows where it is, for errors.
struct Reader<'a> {
    cursor: Cursor<'a>,
    shard: u16,
}

impl<'a> Reader<'a> {
    fn in_header<T>(&mut self, read: impl FnOnce(&mut Cursor<'a>) -> Result<T, GgufFault>) -> Result<T, GgufError> {
        let at = self.cursor.position();
        read(&mut self.cursor).map_err(|fault| self.error(at, Subject::Header, fault))
    }

    fn error(&self, at: usize, subject: Subject, fault: GgufFault) -> GgufError {
        GgufError { place: Place { shard: self.shard, offset: Some(Bytes(at as u64)), subject }, fault }
    }

    fn pairs(&mut self, count: u64) -> Result<Vec<Pair>, GgufError> {
        let mut pairs = Vec::with_capacity(count as usize);
        for number in 0..count {
            pairs.push(self.pair(number)?);
        }
        Ok(pairs)
    }

    fn pair(&mut self, number: u64) -> Result<Pair, GgufError> {
        let at = self.cursor.position();
        let key = self
            .cursor
            .string("key length", limits::MAX_KEY_LEN)
            .and_then(utf8)
            .map_err(|fault| self.error(at, Subject::PairNumber(number), fault))?;
        let start = self.cursor.position();
        let (ty, bytes) = self.value().map_err(|fault| self.error(start, Subject::Key(key.into()), fault))?;
        Ok(Pair { key: key.into(), ty, bytes })
    }

    fn value(&mut self) -> Result<(ValueType, Range<usize>), GgufFault> {
        let number = self.cursor.u32()?;
        let ty = ValueType::from_number(number).ok_or(GgufFault::ValueType { number })?;
        let start = self.cursor.position();
        Value::read(&mut self.cursor, ty, limits::MAX_NESTING)?;
        Ok((ty, start..self.cursor.position()))
    }

    fn tensors(&mut self, count: u64) -> Result<Vec<Entry>, GgufError> {
        let mut tensors = Vec::with_capacity(count as usize);
        for number in 0..count {
            tensors.push(self.tensor(number)?);
        }
        Ok(tensors)
    }

    fn tensor(&mut self, number: u64) -> Result<Entry, GgufError> {
        let at = self.cursor.position();
        let name = self
            .cursor
            .string("tensor name length", limits::MAX_TENSOR_NAME_LEN)
            .and_then(utf8)
            .map_err(|fault| self.error(at, Subject::TensorNumber(number), fault))?;
        let read = read_entry(&mut self.cursor);
        let (dims, ne, type_number, offset) =
            read.map_err(|fault| self.error(at, Subject::Tensor(name.into()), fault))?;
        Ok(Entry { name: name.into(), ne, dims, type_number, offset, at })
    }
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<(u32, Dims, u32, u64), GgufFault> {
    let dims = cursor.u32()?;
    if dims > limits::MAX_DIMS {
        let limit = limits::MAX_DIMS.into();
        return Err(GgufFault::Limit { what: "number of dimensions", found: dims.into(), limit });
    }
    let mut ne = [1; loadmaster_graph::tensor::DIMS];
    for extent in &mut ne[..dims as usize] {
        *extent = cursor.u64()?;
    }
    Ok((dims, ne, cursor.u32()?, cursor.u64()?))
}
