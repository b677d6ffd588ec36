//! What can be wrong with the description of a machine.

use loadmaster_graph::{BufferTypeId, Bytes, DeviceId, PoolId};

/// Why parts do not make a machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// No device at all.
    #[error("there is no device: at least the host processor is needed")]
    NoDevice,
    /// Two things of one kind have the same name.
    #[error("two {what}s are named `{name}`")]
    DuplicateName {
        /// What is named so.
        what: &'static str,
        /// The name.
        name: Box<str>,
    },
    /// A name is empty.
    #[error("{what} {index} has no name")]
    NoName {
        /// What has none.
        what: &'static str,
        /// Its index.
        index: usize,
    },
    /// Something refers to a device that does not exist.
    #[error("{place} refers to {device}, but there are only {count} devices")]
    UnknownDevice {
        /// What refers to it.
        place: String,
        /// The device.
        device: DeviceId,
        /// How many there are.
        count: usize,
    },
    /// Something refers to a pool that does not exist.
    #[error("{place} refers to {pool}, but there are only {count} pools")]
    UnknownPool {
        /// What refers to it.
        place: String,
        /// The pool.
        pool: PoolId,
        /// How many there are.
        count: usize,
    },
    /// A device refers to a buffer type that does not exist.
    #[error("device `{device}` refers to {buffer_type}, but there are only {count} buffer types")]
    UnknownBufferType {
        /// The device.
        device: Box<str>,
        /// The buffer type.
        buffer_type: BufferTypeId,
        /// How many there are.
        count: usize,
    },
    /// A device cannot use the memory it is to compute in.
    #[error("device `{device}` computes in buffer type `{buffer_type}`, which it cannot use in place")]
    CannotUseOwnType {
        /// The device.
        device: Box<str>,
        /// Its buffer type.
        buffer_type: Box<str>,
    },
    /// A device computes in a pool that is not among its pools.
    #[error("device `{device}` computes in pool `{pool}`, which is not among its pools")]
    ForeignPool {
        /// The device.
        device: Box<str>,
        /// The pool of its buffer type.
        pool: Box<str>,
    },
    /// The largest buffer could not hold one aligned byte, or is more than the pool has.
    #[error("buffer type `{buffer_type}`: the largest buffer, {max_size}, {why}")]
    MaxSize {
        /// The buffer type.
        buffer_type: Box<str>,
        /// Its largest buffer.
        max_size: Bytes,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A row padding that does not hold whole blocks of every quantized type.
    #[error(
        "buffer type `{buffer_type}`: a row padding of {padding} elements is no multiple of 256, the longest block"
    )]
    RowPadding {
        /// The buffer type.
        buffer_type: Box<str>,
        /// The padding.
        padding: u64,
    },
    /// The host cannot read a device's own memory in place.
    #[error("buffer type `{buffer_type}` is host memory, but pool `{pool}` is a device's own memory")]
    HostFlag {
        /// The buffer type.
        buffer_type: Box<str>,
        /// The pool.
        pool: Box<str>,
    },
    /// A pool within itself.
    #[error("pool `{pool}` is within itself")]
    PoolCycle {
        /// The pool.
        pool: Box<str>,
    },
    /// A pool without a byte.
    #[error("pool `{pool}` has a capacity of 0")]
    EmptyPool {
        /// The pool.
        pool: Box<str>,
    },
    /// A link from a device to itself.
    #[error("a link leads from `{device}` to itself")]
    LinkToItself {
        /// The device.
        device: Box<str>,
    },
    /// A link that moves nothing.
    #[error("the link from `{from}` to `{to}` has a bandwidth of 0")]
    NoBandwidth {
        /// Where it begins.
        from: Box<str>,
        /// Where it ends.
        to: Box<str>,
    },
    /// Two links with the same ends and path.
    #[error("two {path} links lead from `{from}` to `{to}`")]
    DuplicateLink {
        /// Where they begin.
        from: Box<str>,
        /// Where they end.
        to: Box<str>,
        /// How bytes travel.
        path: crate::machine::LinkPath,
    },
}

/// Why a short device description cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device `{spec}`: {why}")]
pub struct SpecError {
    /// The description as given.
    pub spec: String,
    /// What is wrong, and what is allowed.
    pub why: String,
}
