//! Tensor graphs: ids and units, tensors, the graph with its verifier, a builder with shape inference, and graph files.
//!
//! Pure values: no devices, no placement, no policy. Names and shapes follow ggml: extents `ne` and byte strides `nb`
//! stand innermost first.

pub mod builder;
mod dot;
pub mod dtype;
pub mod error;
pub mod file;
pub mod fuzz;
pub mod graph;
pub mod hash;
pub mod id;
pub mod limits;
pub mod op;
pub mod tensor;
pub mod text;
pub mod units;
pub mod verify;

pub use builder::{BuildError, ColumnOrder, GraphBuilder};
pub use dtype::DType;
pub use error::{GraphError, ShapeFault, ViewFault};
pub use file::{FileError, GraphFile};
pub use graph::{Graph, Link, Topology};
pub use hash::{StructuralHash, StructuralHasher};
pub use id::{BufferId, BufferTypeId, CopyId, DeviceId, Id, IdVec, LeafId, NodeId, PoolId, SplitId, TensorId};
pub use op::{Op, OpKind};
pub use tensor::{Dims, Flags, OpParams, Sources, Tensor, View, contiguous_strides};
pub use text::TextError;
pub use units::{Align, Bytes, Step};
