//! Writes GGUF files: for tests, and to cut headers off for planning.

use super::limits::DEFAULT_ALIGNMENT;
use super::value::ValueType;
use loadmaster_graph::DType;

/// A metadata value to write.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum MetaValue {
    U16(u16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Strings(Vec<String>),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    /// A value in its encoded form, well formed or not.
    Raw(u32, Vec<u8>),
}

/// Collects metadata and tensors and writes them as GGUF version 3.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    pairs: Vec<(String, MetaValue)>,
    tensors: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    type_number: u32,
    ne: Vec<u64>,
    size: u64,
    /// Empty for an entry without data.
    data: Vec<u8>,
}

impl Writer {
    /// An empty file.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata pair.
    #[must_use]
    pub fn with(mut self, key: &str, value: MetaValue) -> Self {
        self.pairs.push((key.into(), value));
        self
    }

    /// Adds a tensor with its data.
    #[must_use]
    pub fn with_tensor(self, name: &str, dtype: DType, ne: &[u64], data: Vec<u8>) -> Self {
        self.with_raw_tensor(name, dtype.number(), ne, data)
    }

    /// Adds a tensor of any type number; its data may have any size.
    #[must_use]
    pub fn with_raw_tensor(mut self, name: &str, type_number: u32, ne: &[u64], data: Vec<u8>) -> Self {
        let size = data.len() as u64;
        self.tensors.push(Entry { name: name.into(), type_number, ne: ne.to_vec(), size, data });
        self
    }

    /// Adds a tensor to the table, with room for its data but without the data: for headers.
    #[must_use]
    pub fn with_tensor_entry(mut self, name: &str, dtype: DType, ne: &[u64]) -> Self {
        let rows = ne.iter().skip(1).fold(1, |n: u64, &e| n.saturating_mul(e));
        let row = dtype.row_size(ne.first().copied().unwrap_or(1)).map_or(0, |s| s.get());
        let size = row.saturating_mul(rows);
        let (name, type_number, ne) = (name.into(), dtype.number(), ne.to_vec());
        self.tensors.push(Entry { name, type_number, ne, size, data: Vec::new() });
        self
    }

    /// Header and data.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        for entry in &self.tensors {
            pad(&mut out);
            out.extend_from_slice(&entry.data);
        }
        pad(&mut out);
        out
    }

    /// The header alone, up to where the data would begin.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            string(&mut out, key);
            write_value(&mut out, value);
        }
        let mut offset = 0u64;
        for entry in &self.tensors {
            string(&mut out, &entry.name);
            out.extend((entry.ne.len() as u32).to_le_bytes());
            entry.ne.iter().for_each(|e| out.extend(e.to_le_bytes()));
            out.extend(entry.type_number.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = offset.saturating_add(entry.size.next_multiple_of(DEFAULT_ALIGNMENT));
        }
        pad(&mut out);
        out
    }
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn write_value(out: &mut Vec<u8>, value: &MetaValue) {
    let tag = |out: &mut Vec<u8>, ty: ValueType| out.extend((ty as u32).to_le_bytes());
    let array = |out: &mut Vec<u8>, ty: ValueType, len: usize| {
        tag(out, ValueType::Array);
        tag(out, ty);
        out.extend((len as u64).to_le_bytes());
    };
    match value {
        MetaValue::U16(v) => {
            tag(out, ValueType::U16);
            out.extend(v.to_le_bytes());
        }
        MetaValue::U32(v) => {
            tag(out, ValueType::U32);
            out.extend(v.to_le_bytes());
        }
        MetaValue::I32(v) => {
            tag(out, ValueType::I32);
            out.extend(v.to_le_bytes());
        }
        MetaValue::F32(v) => {
            tag(out, ValueType::F32);
            out.extend(v.to_le_bytes());
        }
        MetaValue::Bool(v) => {
            tag(out, ValueType::Bool);
            out.push((*v).into());
        }
        MetaValue::String(v) => {
            tag(out, ValueType::String);
            string(out, v);
        }
        MetaValue::Strings(v) => {
            array(out, ValueType::String, v.len());
            v.iter().for_each(|s| string(out, s));
        }
        MetaValue::U32s(v) => {
            array(out, ValueType::U32, v.len());
            v.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        MetaValue::I32s(v) => {
            array(out, ValueType::I32, v.len());
            v.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        MetaValue::F32s(v) => {
            array(out, ValueType::F32, v.len());
            v.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        MetaValue::Bools(v) => {
            array(out, ValueType::Bool, v.len());
            v.iter().for_each(|&v| out.push(v.into()));
        }
        MetaValue::Raw(number, bytes) => {
            out.extend(number.to_le_bytes());
            out.extend_from_slice(bytes);
        }
    }
}
