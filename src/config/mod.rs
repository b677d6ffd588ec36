//! Machine files: TOML, read at the border with named limits (`RawConfig` → `Config`).
//!
//! ```toml
//! name = "one GPU and its host"
//! fallback = "CPU"                 # optional: the last device
//!
//! [[pool]]                         # memory
//! name = "vram0"
//! kind = "device"                  # device, host, pinned or unified
//! capacity = "24GiB"               # optional: not known, and never an obstacle
//! within = "unified"               # optional: a pool that it is a part of, in which its bytes count too
//!
//! [[buffer_type]]                  # a kind of memory with its rules
//! name = "SIM0"
//! pool = "vram0"
//! alignment = 128                  # optional: 128, or 32 where `host`
//! max_size = "256MiB"              # optional: the largest single buffer; none: no limit
//! host = false                     # optional: whether the host reads it in place
//! row_padding = 512                # optional: quantized rows are padded to this many elements; 0: they are not
//! usable_by = ["SIM0"]             # devices that can use it in place
//!
//! [[device]]                       # highest priority first
//! name = "SIM0"
//! kind = "gpu"                     # cpu or gpu
//! driver = "sim"                   # host, sim or cuda:N; optional for a cpu
//! buffer_type = "SIM0"             # what it computes in
//! pools = ["pinned"]               # optional: further memory that it reaches, such as pinned host memory
//! offload_min_batch = 32           # optional: 32 for a gpu; 0: it never takes operations whose weights are on the host
//! unsupported_ops = ["SSM_SCAN"]   # optional: operations that it cannot compute, by ggml's names
//! bandwidth = "800GiB"             # optional: what it reads from its memory a second, as measured
//! arch = 89                        # optional: compute capability times ten of the GPU whose kernels are planned for
//! multiprocessors = 128            # optional, with `arch`; a CUDA device says both itself when something runs
//! flops = 80e12                    # optional: multiplications and additions a second in matrix products, as measured
//!
//! [[link]]                         # optional: ways for bytes from one device to another
//! from = "CPU"
//! to = "SIM0"
//! path = "pinned"                  # peer, pinned, pageable or shared
//! bandwidth = "25GiB"              # a second
//! latency_ns = 10000               # optional: 0
//! ```

mod error;
mod raw;
mod resolve;
mod write;

pub use error::ConfigError;

use crate::files::{ReadError, read_text};
use loadmaster_graph::{Bytes, DeviceId, IdVec};
use loadmaster_sched::Machine;
use std::path::Path;

/// Longest machine file in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;
/// Most devices of a machine file.
pub const MAX_DEVICES: usize = 4096;
/// Most pools of a machine file.
pub const MAX_POOLS: usize = 8192;
/// Most buffer types of a machine file.
pub const MAX_BUFFER_TYPES: usize = 8192;
/// Most links of a machine file.
pub const MAX_LINKS: usize = 1 << 14;
/// Longest name in bytes.
pub const MAX_NAME_LEN: usize = 256;

/// Most operations a second that a device may claim.
pub const MAX_FLOPS: f64 = 1e18;

/// A machine from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What the file calls it.
    pub name: String,
    /// The machine.
    pub machine: Machine,
    /// What the file says of the speed of each device.
    pub speeds: IdVec<DeviceId, FileSpeed>,
}

/// What a machine file says of the speed of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FileSpeed {
    /// Bytes a second that it reads from its memory.
    pub bandwidth: Option<Bytes>,
    /// Multiplications and additions a second in matrix products.
    pub flops: Option<f64>,
}

impl Config {
    /// Reads a machine file. Errors: those of the file system, and those of [`Config::parse`], with the path.
    pub fn read_path(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let text = read_text(path, MAX_FILE_BYTES).map_err(|error| match error {
            ReadError::Io(source) => ConfigError::Io { path: path.to_owned(), source },
            ReadError::TooLong { found, limit } => {
                ConfigError::Limit { what: "bytes of the file", found, limit }.at(path)
            }
        })?;
        Self::parse(&text).map_err(|e| e.at(path))
    }

    /// Reads the text of a machine file. Errors: what TOML or the schema refuses (with line and column), a limit, a
    /// name that nothing has, or a contradiction.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        if text.len() as u64 > MAX_FILE_BYTES {
            let found = text.len() as u64;
            return Err(ConfigError::Limit { what: "bytes of the file", found, limit: MAX_FILE_BYTES });
        }
        let raw: raw::RawConfig = toml::from_str(text).map_err(|e| ConfigError::Syntax { why: e.to_string() })?;
        resolve::resolve(raw)
    }

    /// The text of a machine file that [`Config::parse`] reads back as this.
    #[must_use]
    pub fn to_toml(&self) -> String {
        write::render(self)
    }
}
