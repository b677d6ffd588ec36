//! Typed metadata values, borrowed from the file.

use super::cursor::{Cursor, utf8};
use super::error::GgufFault;
use super::limits;
use std::fmt;

/// Type of a metadata value, under the format's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type of that number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Bytes of a value; `None` for strings and arrays.
    #[must_use]
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// A name for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

/// A metadata value.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// Its type.
    #[must_use]
    pub const fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// A whole number of any width that is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            _ => self.as_i64().and_then(|v| v.try_into().ok()),
        }
    }

    /// A whole number of any width.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::I8(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::I64(v) => Some(v),
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// A floating-point number, as F32.
    #[must_use]
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Self::F32(v) => Some(v),
            Self::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    /// A boolean.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(v) = *self { Some(v) } else { None }
    }

    /// A string.
    #[must_use]
    pub fn as_str(&self) -> Option<&'a str> {
        if let Self::String(v) = *self { Some(v) } else { None }
    }

    /// An array.
    #[must_use]
    pub fn as_array(&self) -> Option<Array<'a>> {
        if let Self::Array(v) = *self { Some(v) } else { None }
    }

    /// Reads a value that is known to be well formed up to `nesting` further levels of arrays.
    pub(super) fn read(cursor: &mut Cursor<'a>, ty: ValueType, nesting: u32) -> Result<Self, GgufFault> {
        Ok(match ty {
            ValueType::U8 => Self::U8(u8::from_le_bytes(cursor.array()?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(cursor.array()?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(cursor.array()?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(cursor.array()?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(cursor.array()?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(cursor.array()?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(cursor.array()?)),
            ValueType::U64 => Self::U64(u64::from_le_bytes(cursor.array()?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(cursor.array()?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(cursor.array()?)),
            ValueType::Bool => match cursor.array::<1>()?[0] {
                0 => Self::Bool(false),
                1 => Self::Bool(true),
                value => return Err(GgufFault::Bool { value }),
            },
            ValueType::String => Self::String(utf8(cursor.string("string length", limits::MAX_STRING_LEN)?)?),
            ValueType::Array => Self::Array(Array::read(cursor, nesting)?),
        })
    }
}

impl fmt::Display for Value<'_> {
    /// One line; long strings and arrays are cut.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => write!(f, "{v}"),
            Self::I8(v) => write!(f, "{v}"),
            Self::U16(v) => write!(f, "{v}"),
            Self::I16(v) => write!(f, "{v}"),
            Self::U32(v) => write!(f, "{v}"),
            Self::I32(v) => write!(f, "{v}"),
            Self::U64(v) => write!(f, "{v}"),
            Self::I64(v) => write!(f, "{v}"),
            Self::F32(v) => write!(f, "{v}"),
            Self::F64(v) => write!(f, "{v}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::String(v) if v.chars().count() > 60 => {
                write!(f, "{:?}…", v.chars().take(60).collect::<String>())
            }
            Self::String(v) => write!(f, "{v:?}"),
            Self::Array(a) => write!(f, "array of {} {}", a.len(), a.element_type().name()),
        }
    }
}

/// An array of one type. Its elements stay in the file until they are asked for.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    ty: ValueType,
    len: u64,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    fn read(cursor: &mut Cursor<'a>, nesting: u32) -> Result<Self, GgufFault> {
        let number = cursor.u32()?;
        let ty = ValueType::from_number(number).ok_or(GgufFault::ValueType { number })?;
        let len = cursor.count("array length", limits::MAX_ARRAY_LEN)?;
        let mut ahead = *cursor;
        skip_elements(&mut ahead, ty, len, nesting)?;
        let bytes = cursor.take((ahead.position() - cursor.position()) as u64)?;
        Ok(Self { ty, len, bytes })
    }

    /// The array whose type, length and elements are `bytes`, which were walked when the file was opened.
    pub(super) fn walked(bytes: &'a [u8]) -> Result<Self, GgufFault> {
        let mut cursor = Cursor::new(bytes, 0);
        let number = cursor.u32()?;
        let ty = ValueType::from_number(number).ok_or(GgufFault::ValueType { number })?;
        let len = cursor.u64()?;
        Ok(Self { ty, len, bytes: &bytes[cursor.position()..] })
    }

    /// Type of the elements.
    #[must_use]
    pub const fn element_type(&self) -> ValueType {
        self.ty
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, in order. An element may fail on text that is not UTF-8 or a boolean that is neither 0 nor 1.
    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, GgufFault>> + use<'a> {
        let mut cursor = Cursor::new(self.bytes, 0);
        let ty = self.ty;
        (0..self.len).map(move |_| Value::read(&mut cursor, ty, limits::MAX_NESTING))
    }

    /// The raw bytes of each string, in order; `None` if the elements are not strings.
    #[must_use]
    pub fn strings(&self) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
        if self.ty != ValueType::String {
            return None;
        }
        let mut cursor = Cursor::new(self.bytes, 0);
        // The lengths were checked when the array was read: no element is lost to the `ok()`.
        Some((0..self.len).map_while(move |_| cursor.string("string length", limits::MAX_STRING_LEN).ok()))
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.ty.name(), self.len)
    }
}

/// Steps over the elements of an array. Recursion is bounded by [`limits::MAX_NESTING`].
fn skip_elements(cursor: &mut Cursor<'_>, ty: ValueType, len: u64, nesting: u32) -> Result<(), GgufFault> {
    if let Some(size) = ty.size() {
        // No overflow: lengths are capped far below 2^61.
        return cursor.take(len * size as u64).map(drop);
    }
    if ty == ValueType::String {
        for _ in 0..len {
            cursor.string("string length", limits::MAX_STRING_LEN)?;
        }
        return Ok(());
    }
    let Some(nesting) = nesting.checked_sub(1) else {
        let limit = limits::MAX_NESTING.into();
        return Err(GgufFault::Limit { what: "array nesting", found: limit + 1, limit });
    };
    for _ in 0..len {
        let number = cursor.u32()?;
        let ty = ValueType::from_number(number).ok_or(GgufFault::ValueType { number })?;
        let len = cursor.count("array length", limits::MAX_ARRAY_LEN)?;
        skip_elements(cursor, ty, len, nesting)?;
    }
    Ok(())
}
