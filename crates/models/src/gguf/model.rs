//! A model: one file, or several that belong together.

use super::error::{GgufError, GgufFault, Place, Subject};
use super::header::{Entry, Header};
use super::limits;
use super::value::Value;
use crate::SharedBytes;
use loadmaster_graph::{Bytes, DType, Dims};
use std::collections::BTreeMap;

loadmaster_graph::define_id! {
    /// A tensor of a model file: index into the tensor table, over all files of a split model.
    pub WeightId, "w";
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: Box<str>,
    /// Extents, innermost first; unused ones are 1.
    pub ne: Dims,
    /// Number of dimensions that the file gives.
    pub dims: u32,
    /// The element type; `None` for a number that this version does not know. Such a tensor is listed, but its size
    /// and its data are an error.
    pub dtype: Option<DType>,
    /// The file's number of the type.
    pub type_number: u32,
    /// The file that it is in, from 0.
    pub shard: u16,
    /// Where its data begins in that file.
    pub start: Bytes,
    /// Size of its data; `None` where the type is unknown.
    pub size: Option<Bytes>,
}

/// A GGUF model: metadata and tensor table, and the bytes of its files.
///
/// Nothing is copied out of the files but names: strings, arrays and tensor data are borrowed from them.
#[derive(Clone)]
pub struct Gguf {
    shards: Vec<Shard>,
    tensors: Vec<TensorInfo>,
    by_name: BTreeMap<Box<str>, WeightId>,
}

#[derive(Clone)]
struct Shard {
    bytes: SharedBytes,
    header: Header,
    /// Whether the file ends where the data would begin.
    header_only: bool,
}

impl Shard {
    fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gguf({} files, {} tensors)", self.shards.len(), self.tensors.len())
    }
}

impl Gguf {
    /// Reads a model of one file. A split model's first file is refused: use [`Self::from_shards`].
    ///
    /// O(bytes of the header); tensor data is not touched. Errors: place and reason, see [`GgufFault`].
    pub fn from_bytes(bytes: SharedBytes) -> Result<Self, GgufError> {
        Self::from_shards(vec![bytes])
    }

    /// Reads a model from all of its files, in the order of their numbers. Metadata comes from the first.
    pub fn from_shards(files: Vec<SharedBytes>) -> Result<Self, GgufError> {
        let count = files.len() as u64;
        if count == 0 || count > limits::MAX_SHARDS {
            return Err(split_error(
                0,
                GgufFault::Limit { what: "number of files", found: count, limit: limits::MAX_SHARDS },
            ));
        }
        let mut shards = Vec::with_capacity(files.len());
        let mut tensors = Vec::new();
        for (number, bytes) in (0u16..).zip(files) {
            let shard = Shard::read(bytes, number)?;
            shard.check_number(number, count)?;
            shard.append_tensors(number, &mut tensors)?;
            shards.push(shard);
        }
        let by_name = index_tensors(&tensors)?;
        let model = Self { shards, tensors, by_name };
        model.check_tensor_count()?;
        Ok(model)
    }

    /// Number of files that make up the model whose first file is `bytes` (1 if it is not split).
    pub fn shard_count(bytes: &[u8]) -> Result<u64, GgufError> {
        let header = Header::read(bytes, 0)?;
        Ok(split_keys(&header, bytes).map_err(|e| at_key(0, "split.count", e))?.map_or(1, |(_, count)| count))
    }

    /// Version of the format.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.shards[0].header.version
    }

    /// Whether any file lacks its tensor data: such a model can be planned with, but not loaded.
    #[must_use]
    pub fn is_header_only(&self) -> bool {
        self.shards.iter().any(|s| s.header_only)
    }

    /// Alignment of the data section of the first file.
    #[must_use]
    pub fn alignment(&self) -> Bytes {
        Bytes(self.shards[0].header.alignment)
    }

    /// Bytes of all files together.
    #[must_use]
    pub fn file_size(&self) -> Bytes {
        self.shards.iter().map(|s| Bytes(s.bytes().len() as u64)).sum()
    }

    /// The bytes of one of the files, by its number ([`TensorInfo::shard`]). Panics if there is no such file.
    #[must_use]
    pub fn shard_bytes(&self, shard: u16) -> &SharedBytes {
        &self.shards[usize::from(shard)].bytes
    }

    /// The value of a metadata key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        // Values were read once when the file was opened: reading again does not fail.
        self.shards[0].header.value(self.shards[0].bytes(), key).ok().flatten()
    }

    /// All metadata pairs, in the order of the file.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let shard = &self.shards[0];
        shard.header.pairs.iter().filter_map(|p| Some((&*p.key, p.value(shard.bytes()).ok()?)))
    }

    /// All tensors, in the order of the files.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// One tensor.
    #[must_use]
    pub fn tensor(&self, id: WeightId) -> &TensorInfo {
        &self.tensors[id.index()]
    }

    /// The tensor of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<WeightId> {
        self.by_name.get(name).copied()
    }

    /// The data of a tensor, borrowed from the file. Errors: [`GgufFault::HeaderOnly`], [`GgufFault::TensorType`].
    pub fn data(&self, id: WeightId) -> Result<&[u8], GgufError> {
        let info = self.tensor(id);
        let fail = |fault| {
            let place =
                Place { shard: info.shard, offset: Some(info.start), subject: Subject::Tensor(info.name.clone()) };
            Err(GgufError { place, fault })
        };
        let Some(size) = info.size else {
            return fail(GgufFault::TensorType { number: info.type_number });
        };
        let shard = &self.shards[usize::from(info.shard)];
        if size == Bytes::ZERO {
            return Ok(&[]);
        }
        if shard.header_only {
            return fail(GgufFault::HeaderOnly);
        }
        // In range: checked against the file's size when the table was read.
        let start = info.start.get() as usize;
        Ok(&shard.bytes()[start..start + size.get() as usize])
    }

    /// An error about a key, for callers that find a value unfit.
    #[must_use]
    pub fn key_error(&self, key: &str, fault: GgufFault) -> GgufError {
        let header = &self.shards[0].header;
        let offset = header.by_key.get(key).map(|&i| Bytes(header.pairs[i as usize].bytes.start as u64));
        GgufError { place: Place { shard: 0, offset, subject: Subject::Key(key.into()) }, fault }
    }

    /// An error about a tensor, for callers that find it missing or unfit.
    #[must_use]
    pub fn tensor_error(&self, name: &str, fault: GgufFault) -> GgufError {
        let info = self.find(name).map(|id| self.tensor(id));
        let place = Place {
            shard: info.map_or(0, |i| i.shard),
            offset: info.map(|i| i.start),
            subject: Subject::Tensor(name.into()),
        };
        GgufError { place, fault }
    }

    fn check_tensor_count(&self) -> Result<(), GgufError> {
        let key = "split.tensors.count";
        let found = self.tensors.len() as u64;
        if found > limits::MAX_TENSORS {
            return Err(split_error(0, GgufFault::Limit { what: "tensor count", found, limit: limits::MAX_TENSORS }));
        }
        let Some(expected) = self.value(key).and_then(|v| v.as_u64()) else {
            return Ok(());
        };
        if self.shards.len() > 1 && expected != found {
            return Err(self.key_error(key, GgufFault::TensorCount { expected, found }));
        }
        Ok(())
    }
}

impl Shard {
    fn read(bytes: SharedBytes, number: u16) -> Result<Self, GgufError> {
        let header = Header::read((*bytes).as_ref(), number)?;
        let header_only = (*bytes).as_ref().len() as u64 <= header.data_start;
        Ok(Self { bytes, header, header_only })
    }

    /// A file of a split model must be the one that its place in the list says.
    fn check_number(&self, number: u16, count: u64) -> Result<(), GgufError> {
        let keys = split_keys(&self.header, self.bytes()).map_err(|e| at_key(number, "split.no", e))?;
        let (found, found_count) = keys.unwrap_or((0, 1));
        let expected = u64::from(number);
        if found != expected {
            return Err(split_error(
                number,
                GgufFault::ShardNumber { found, found_count, expected, expected_count: count },
            ));
        }
        if found_count != count {
            return Err(split_error(number, GgufFault::ShardCount { expected: found_count, found: count }));
        }
        Ok(())
    }

    fn append_tensors(&self, number: u16, tensors: &mut Vec<TensorInfo>) -> Result<(), GgufError> {
        let first = tensors.len();
        tensors.reserve(self.header.tensors.len());
        for entry in &self.header.tensors {
            let info = self.place(number, entry).map_err(|fault| {
                let subject = Subject::Tensor(entry.name.clone());
                GgufError { place: Place { shard: number, offset: Some(Bytes(entry.at as u64)), subject }, fault }
            })?;
            tensors.push(info);
        }
        check_overlaps(&tensors[first..])
    }

    /// Where a tensor's data is; checked against the file unless it is a header only.
    fn place(&self, shard: u16, entry: &Entry) -> Result<TensorInfo, GgufFault> {
        let alignment = self.header.alignment;
        if !entry.offset.is_multiple_of(alignment) {
            return Err(GgufFault::Misaligned { offset: entry.offset, alignment });
        }
        let dtype = entry.dtype();
        let size = dtype.map(|dtype| data_size(dtype, &entry.ne, entry.dims)).transpose()?;
        let file_size = self.bytes().len() as u64;
        let start = self.header.data_start.checked_add(entry.offset);
        let end = start.and_then(|s| s.checked_add(size.map_or(0, Bytes::get)));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(GgufFault::OutOfFile { end: u64::MAX, size: file_size });
        };
        if !self.header_only && end > file_size {
            return Err(GgufFault::OutOfFile { end, size: file_size });
        }
        Ok(TensorInfo {
            name: entry.name.clone(),
            ne: entry.ne,
            dims: entry.dims,
            dtype,
            type_number: entry.type_number,
            shard,
            start: Bytes(start),
            size,
        })
    }
}

fn data_size(dtype: DType, ne: &Dims, dims: u32) -> Result<Bytes, GgufFault> {
    let rows = ne[1..].iter().try_fold(1u64, |n, &e| n.checked_mul(e));
    let size = dtype.row_size(ne[0]).zip(rows).and_then(|(row, rows)| row.checked_mul(rows));
    // Signed 64-bit sizes, as in ggml: sums of two never overflow.
    size.filter(|s| i64::try_from(s.get()).is_ok())
        .ok_or_else(|| GgufFault::Extents { extents: ne[..dims as usize].to_vec(), dtype: dtype.name() })
}

fn check_overlaps(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut ranges: Vec<(Bytes, Bytes, usize)> = tensors
        .iter()
        .enumerate()
        .filter_map(|(i, t)| Some((t.start, t.start.checked_add(t.size?)?, i)))
        .filter(|(start, end, _)| start < end)
        .collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        let ((_, end, first), (start, _, second)) = (pair[0], pair[1]);
        if start < end {
            let (first, second) = (&tensors[first], &tensors[second]);
            let place =
                Place { shard: second.shard, offset: Some(start), subject: Subject::Tensor(second.name.clone()) };
            return Err(GgufError { place, fault: GgufFault::Overlap { other: first.name.clone() } });
        }
    }
    Ok(())
}

fn index_tensors(tensors: &[TensorInfo]) -> Result<BTreeMap<Box<str>, WeightId>, GgufError> {
    let mut by_name = BTreeMap::new();
    for (i, info) in tensors.iter().enumerate() {
        if by_name.insert(info.name.clone(), WeightId::new(i)).is_some() {
            let place = Place { shard: info.shard, offset: None, subject: Subject::Tensor(info.name.clone()) };
            return Err(GgufError { place, fault: GgufFault::Duplicate });
        }
    }
    Ok(by_name)
}

/// `split.no` and `split.count`, if the file belongs to a split model.
fn split_keys(header: &Header, bytes: &[u8]) -> Result<Option<(u64, u64)>, GgufFault> {
    let number = |key: &str| -> Result<Option<u64>, GgufFault> {
        let Some(value) = header.value(bytes, key)? else {
            return Ok(None);
        };
        let wrong = || GgufFault::WrongType { expected: "a whole number", found: value.to_string() };
        value.as_u64().ok_or_else(wrong).map(Some)
    };
    let Some(count) = number("split.count")? else {
        return Ok(None);
    };
    if count > limits::MAX_SHARDS {
        return Err(GgufFault::Limit { what: "number of files", found: count, limit: limits::MAX_SHARDS });
    }
    // A count of 0 or 1 means a model of one file.
    Ok((count > 1).then_some((number("split.no")?.unwrap_or(0), count)))
}

fn split_error(shard: u16, fault: GgufFault) -> GgufError {
    GgufError { place: Place { shard, offset: None, subject: Subject::Split }, fault }
}

fn at_key(shard: u16, key: &str, fault: GgufFault) -> GgufError {
    GgufError { place: Place { shard, offset: None, subject: Subject::Key(key.into()) }, fault }
}
