//! Result codes of the driver API.

use std::ffi::CStr;
use std::fmt;

/// A result code of the CUDA driver API other than success.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Code(pub u32);

/// What a driver call answers.
pub type Outcome<T> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        // Some are only ever named by a configuration.
        #[allow(dead_code)]
        impl Code {
            $(#[doc = $text] pub const $name: Code = Code($value);)*
        }

        /// Code, name as C programs know it, description.
        const TABLE: &[(Code, &CStr, &CStr)] = &[
            $((Code($value), name_of(concat!("CUDA_ERROR_", stringify!($name), "\0")), name_of(concat!($text, "\0"))),)*
        ];
    };
}

const fn name_of(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

codes! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "driver not initialized";
    DEINITIALIZED = 4, "driver shutting down";
    NO_DEVICE = 100, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid device ordinal";
    INVALID_IMAGE = 200, "device kernel image is invalid";
    INVALID_CONTEXT = 201, "invalid device context";
    NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
    ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
    PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    INVALID_HANDLE = 400, "invalid resource handle";
    ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "the launch timed out and was terminated";
    PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    MISALIGNED_ADDRESS = 716, "misaligned address";
    LAUNCH_FAILED = 719, "unspecified launch failure";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    UNKNOWN = 999, "unknown error";
}

impl Code {
    fn entry(self) -> Option<&'static (Code, &'static CStr, &'static CStr)> {
        TABLE.iter().find(|(code, _, _)| *code == self)
    }

    /// Its name, if the simulator knows the code.
    pub fn name(self) -> Option<&'static CStr> {
        self.entry().map(|e| e.1)
    }

    /// What it means, if the simulator knows the code.
    pub fn text(self) -> Option<&'static CStr> {
        self.entry().map(|e| e.2)
    }

    /// The code of a name, with or without `CUDA_ERROR_`, or of a number. 0 is none.
    pub fn parse(text: &str) -> Option<Code> {
        if let Ok(number) = text.parse::<u32>() {
            return (number != 0).then_some(Code(number));
        }
        let short = text.strip_prefix("CUDA_ERROR_").unwrap_or(text);
        TABLE.iter().find(|(_, name, _)| name.to_bytes()["CUDA_ERROR_".len()..] == *short.as_bytes()).map(|e| e.0)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(&name.to_string_lossy()),
            None => write!(f, "CUDA error {}", self.0),
        }
    }
}
