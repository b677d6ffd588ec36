//! Sizes as people write them.

use loadmaster_graph::Bytes;

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// Why a size cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no size: {why}; write a number and B, KiB, MiB, GiB or TiB, such as 24GiB")]
pub struct SizeError {
    /// The text as given.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Reads `24GiB`, `1.5GiB`, `512 MiB` or `4096` (bytes). Exact: a fraction must come to whole bytes.
pub fn parse_size(text: &str) -> Result<Bytes, SizeError> {
    let fault = |why| SizeError { text: text.to_owned(), why };
    let trimmed = text.trim();
    let (number, shift) = UNITS
        .iter()
        .find_map(|&(unit, shift)| trimmed.strip_suffix(unit).map(|n| (n.trim_end(), shift)))
        .unwrap_or((trimmed, 0));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || number.ends_with('.') {
        return Err(fault("it does not begin with a number"));
    }
    let overflow = "it does not fit into 64 bits";
    let whole: u64 = whole.parse().map_err(|_| fault(overflow))?;
    let whole = whole.checked_mul(1 << shift).ok_or(fault(overflow))?;
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        return Ok(Bytes(whole));
    }
    let scale = u32::try_from(fraction.len()).ok().and_then(|n| 10u128.checked_pow(n));
    let parts = fraction.parse::<u128>().ok().and_then(|f| f.checked_mul(1 << shift));
    let (Some(scale), Some(parts)) = (scale, parts) else {
        return Err(fault("it has too many decimals"));
    };
    if parts % scale != 0 {
        return Err(fault("it is no whole number of bytes"));
    }
    u64::try_from(parts / scale).ok().and_then(|p| p.checked_add(whole)).map(Bytes).ok_or(fault(overflow))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_exactly() {
        for (text, bytes) in [
            ("24GiB", 24 << 30),
            ("1.5GiB", 3 << 29),
            ("512 MiB", 512 << 20),
            ("4096", 4096),
            ("7B", 7),
            ("0.5KiB", 512),
            ("2.50KiB", 2560),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "begin with a number"),
            ("GiB", "begin with a number"),
            ("-1GiB", "begin with a number"),
            ("24GB", "begin with a number"),
            ("1.", "begin with a number"),
            ("1e3", "begin with a number"),
            ("0.3B", "whole number of bytes"),
            ("99999999999TiB", "64 bits"),
            ("99999999999999999999999", "64 bits"),
            ("0.1234567890123456789012345678901234567890GiB", "decimals"),
        ] {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("24GiB"), "{text}: {error}");
        }
    }
}
