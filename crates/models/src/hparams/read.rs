//! Typed reading of metadata, with errors that name the key.

use crate::gguf::{Gguf, GgufError, GgufFault, Value};

/// Reads keys below an architecture's prefix.
pub(super) struct Keys<'a> {
    file: &'a Gguf,
    prefix: &'a str,
}

impl<'a> Keys<'a> {
    pub(super) fn new(file: &'a Gguf, prefix: &'a str) -> Self {
        Self { file, prefix }
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn get<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let key = self.full(key);
        let Some(value) = self.file.value(&key) else {
            return Ok(None);
        };
        let wrong = || self.file.key_error(&key, GgufFault::WrongType { expected, found: value.to_string() });
        read(&value).ok_or_else(wrong).map(Some)
    }

    /// An error that a required key is missing.
    pub(super) fn missing(&self, key: &str) -> GgufError {
        self.file.key_error(&self.full(key), GgufFault::Missing)
    }

    /// An error that a value makes no sense.
    pub(super) fn bad(&self, key: &str, reason: String) -> GgufError {
        self.file.key_error(&self.full(key), GgufFault::BadValue { reason })
    }

    /// A whole number between 0 and `limit`.
    pub(super) fn number(&self, key: &str, limit: u32) -> Result<Option<u32>, GgufError> {
        let value = self.get(key, "a whole number", Value::as_u64)?;
        value.map(|v| self.within(key, v, limit)).transpose()
    }

    pub(super) fn required_number(&self, key: &str, limit: u32) -> Result<u32, GgufError> {
        self.number(key, limit)?.ok_or_else(|| self.missing(key))
    }

    /// A whole number that is not 0.
    pub(super) fn required_positive(&self, key: &str, limit: u32) -> Result<u32, GgufError> {
        match self.required_number(key, limit)? {
            0 => Err(self.bad(key, "it must not be 0".into())),
            value => Ok(value),
        }
    }

    fn within(&self, key: &str, value: u64, limit: u32) -> Result<u32, GgufError> {
        u32::try_from(value)
            .ok()
            .filter(|&v| v <= limit)
            .ok_or_else(|| self.bad(key, format!("{value} exceeds the limit of {limit}")))
    }

    /// A finite floating-point number.
    pub(super) fn float(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.get(key, "a finite floating-point number", |v| v.as_f32().filter(|f| f.is_finite()))
    }

    pub(super) fn required_float(&self, key: &str) -> Result<f32, GgufError> {
        self.float(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.get(key, "a string", Value::as_str)
    }

    /// One number per layer: an array of that length, or one number for all.
    pub(super) fn per_layer(&self, key: &str, layers: u32, limit: u32) -> Result<Option<Vec<u32>>, GgufError> {
        let full = self.full(key);
        let Some(Value::Array(array)) = self.file.value(&full) else {
            return Ok(self.number(key, limit)?.map(|n| vec![n; layers as usize]));
        };
        if array.len() != u64::from(layers) {
            return Err(self.bad(key, format!("it has {} elements, but there are {layers} layers", array.len())));
        }
        let number = |value: Result<Value<'_>, GgufFault>| {
            let value = value.map_err(|fault| self.file.key_error(&full, fault))?;
            let wrong = || GgufFault::WrongType { expected: "whole numbers", found: value.to_string() };
            let number = value.as_u64().ok_or_else(|| self.file.key_error(&full, wrong()))?;
            self.within(key, number, limit)
        };
        array.iter().map(number).collect::<Result<_, _>>().map(Some)
    }

    /// One flag per layer from an array of numbers or booleans; `None` if the key holds no array.
    pub(super) fn flags(&self, key: &str, layers: u32) -> Result<Option<Vec<bool>>, GgufError> {
        let full = self.full(key);
        let Some(Value::Array(array)) = self.file.value(&full) else {
            return Ok(None);
        };
        if array.len() < u64::from(layers) {
            return Err(self.bad(key, format!("it has {} elements, but there are {layers} layers", array.len())));
        }
        let flag = |value: Result<Value<'_>, GgufFault>| {
            let value = value.map_err(|fault| self.file.key_error(&full, fault))?;
            let wrong = || GgufFault::WrongType { expected: "flags", found: value.to_string() };
            let flag = value.as_bool().or_else(|| value.as_i64().map(|n| n != 0));
            flag.ok_or_else(|| self.file.key_error(&full, wrong()))
        };
        array.iter().take(layers as usize).map(flag).collect::<Result<_, _>>().map(Some)
    }
}
