//! Sizes as people write them.

use loadmaster_graph::Bytes;

/// Prefixes of units and the powers of two that they stand for: of memory, so 1024 each.
const PREFIXES: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];

/// What is wrong with a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeFault {
    /// There is no number in front.
    #[error("it does not begin with a number")]
    NoNumber,
    /// Such as `1.` or `1.2.3`.
    #[error("its number is none")]
    Number,
    /// What follows the number is no unit.
    #[error("its unit is none")]
    Unit,
    /// More than 64 bits.
    #[error("it does not fit into 64 bits")]
    TooLarge,
    /// More decimals than can be read.
    #[error("it has too many decimals")]
    Decimals,
    /// A part of a byte would be left.
    #[error("it is no whole number of bytes")]
    Fraction,
}

/// Why a size cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no size: {why}; write a number and K, M, G or T (binary, so 24G is 24GiB), or bytes alone")]
pub struct SizeError {
    /// The text as given.
    pub text: String,
    /// What is wrong with it.
    pub why: SizeFault,
}

/// Reads `24GiB`, `24G`, `1.5gb`, `512 MiB` or `4096` (bytes). Units are binary however they are written, as memory is
/// counted: `24GB` is 24 GiB. Exact: a fraction must come to whole bytes.
pub fn parse_size(text: &str) -> Result<Bytes, SizeError> {
    read(text.trim()).map_err(|why| SizeError { text: text.to_owned(), why })
}

fn read(text: &str) -> Result<Bytes, SizeFault> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() {
        return Err(SizeFault::NoNumber);
    }
    if number.ends_with('.') || fraction.contains('.') {
        return Err(SizeFault::Number);
    }
    let shift = shift(unit.trim_start()).ok_or(SizeFault::Unit)?;
    let whole: u64 = whole.parse().map_err(|_| SizeFault::TooLarge)?;
    let whole = whole.checked_mul(1 << shift).ok_or(SizeFault::TooLarge)?;
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        return Ok(Bytes(whole));
    }
    let scale = u32::try_from(fraction.len()).ok().and_then(|n| 10u128.checked_pow(n));
    let parts = fraction.parse::<u128>().ok().and_then(|f| f.checked_mul(1 << shift));
    let (Some(scale), Some(parts)) = (scale, parts) else { return Err(SizeFault::Decimals) };
    if parts % scale != 0 {
        return Err(SizeFault::Fraction);
    }
    u64::try_from(parts / scale).ok().and_then(|p| p.checked_add(whole)).map(Bytes).ok_or(SizeFault::TooLarge)
}

/// The power of two that a unit stands for.
fn shift(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_lowercase();
    let mut letters = unit.chars();
    let first = letters.next();
    let found = PREFIXES.iter().find(|(prefix, _)| Some(*prefix) == first);
    match (found, letters.as_str()) {
        (Some((_, shift)), "" | "b" | "ib") => Some(*shift),
        (None, "") if matches!(first, None | Some('b')) => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_exactly_and_units_in_any_way_of_writing() {
        for (text, bytes) in [
            ("24GiB", 24 << 30),
            ("24G", 24 << 30),
            ("24g", 24 << 30),
            ("24GB", 24 << 30),
            ("24gib", 24 << 30),
            (" 24 Gb ", 24 << 30),
            ("1.5GiB", 3 << 29),
            ("512 MiB", 512 << 20),
            ("512M", 512 << 20),
            ("24k", 24 << 10),
            ("24KB", 24 << 10),
            ("4096", 4096),
            ("0", 0),
            ("7B", 7),
            ("7b", 7),
            ("0.5KiB", 512),
            ("2.50KiB", 2560),
            ("1TiB", 1 << 40),
            ("2t", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        for (text, why) in [
            ("", SizeFault::NoNumber),
            ("GiB", SizeFault::NoNumber),
            ("-1GiB", SizeFault::NoNumber),
            (".5GiB", SizeFault::NoNumber),
            ("1.", SizeFault::Number),
            ("1.GiB", SizeFault::Number),
            ("1.2.3GiB", SizeFault::Number),
            ("24x", SizeFault::Unit),
            ("24GiBs", SizeFault::Unit),
            ("24Gi", SizeFault::Unit),
            ("24iB", SizeFault::Unit),
            ("24PiB", SizeFault::Unit),
            ("1e3", SizeFault::Unit),
            ("1 2", SizeFault::Unit),
            ("24é", SizeFault::Unit),
            ("0.3B", SizeFault::Fraction),
            ("99999999999TiB", SizeFault::TooLarge),
            ("99999999999999999999999", SizeFault::TooLarge),
            ("0.1234567890123456789012345678901234567890GiB", SizeFault::Decimals),
        ] {
            let error = parse_size(text).unwrap_err();
            assert_eq!(error.why, why, "{text}");
            assert!(error.to_string().contains("24GiB"), "{text}: {error}");
        }
    }
}
