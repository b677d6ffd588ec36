//! Result codes of the driver.

use std::ffi::c_int;

/// A result code other than success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code(pub(crate) c_int);

impl Code {
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_READY: Self = Self(600);
    pub(crate) const PEER_ALREADY_ENABLED: Self = Self(704);

    /// Success, or the code.
    pub(crate) const fn check(code: c_int) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Self(code)) }
    }

    /// Whether the context can do nothing any more, so that every later call fails: bad addresses, broken kernels,
    /// uncorrectable memory, a card that fell off its bus.
    pub(crate) const fn is_sticky(self) -> bool {
        let failed_in_a_kernel = matches!(self.0, 700 | 702 | 709 | 710 | 714..=719);
        let broken_hardware = matches!(self.0, 46 | 214 | 220 | 226 | 227 | 721);
        let shutting_down = self.0 == 4;
        failed_in_a_kernel || broken_hardware || shutting_down
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_runs_out_kills_no_context_and_a_bad_address_does() {
        assert!(!Code::OUT_OF_MEMORY.is_sticky() && !Code::NOT_READY.is_sticky() && !Code(999).is_sticky());
        assert!(Code(700).is_sticky() && Code(719).is_sticky() && Code(214).is_sticky());
    }
}
