//! What a kernel is launched with: the mirror of `kernels/lm_args.h`, and where its operands are found.

use crate::program::Operand;
use loadmaster_graph::tensor::Dims;
use loadmaster_graph::{DType, Op};
use smallvec::SmallVec;

/// Sources that a kernel takes at most.
pub(crate) const MAX_SOURCES: usize = 6;
/// The source of a kernel that is the program's word for indices that name no row.
pub(crate) const WATCH_SOURCE: usize = 5;
/// The long number by which a kernel knows its node in that word.
#[cfg(feature = "cuda")]
pub(crate) const NODE_CODE: usize = 7;

/// `LmTensor` of `kernels/lm_args.h`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LmTensor {
    /// Address; zero: absent. It is filled in from the launch's [`Place`]s when a program is compiled.
    pub(crate) data: u64,
    /// Extents, innermost first.
    pub(crate) ne: [i64; 4],
    /// Strides in bytes.
    pub(crate) nb: [i64; 4],
    /// ggml's number of the element type.
    pub(crate) dtype: i32,
    /// Nothing.
    pub(crate) pad: i32,
}

/// `LmArgs` of `kernels/lm_args.h`: the one parameter of every kernel.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct LmArgs {
    /// The result.
    pub(crate) dst: LmTensor,
    /// The sources.
    pub(crate) src: [LmTensor; MAX_SOURCES],
    /// Numbers whose meaning stands at each kernel.
    pub(crate) f: [f32; 16],
    /// The same.
    pub(crate) i: [i32; 32],
    /// The same.
    pub(crate) l: [i64; 8],
}

const _: () = assert!(size_of::<LmTensor>() == 80 && size_of::<LmArgs>() == 816);

/// Layout of an operand, without its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// Element type.
    pub(crate) dtype: DType,
    /// Extents, innermost first.
    pub(crate) ne: Dims,
    /// Byte strides.
    pub(crate) nb: Dims,
}

impl From<&Operand> for Layout {
    fn from(operand: &Operand) -> Self {
        Self { dtype: operand.dtype, ne: operand.ne, nb: operand.nb }
    }
}

/// A node as it is launched. Offsets and addresses do not matter here: equal views, equal launches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeView<'a> {
    /// The operation.
    pub(crate) op: Op,
    /// Its raw parameter words; missing ones count as zero.
    pub(crate) params: &'a [u32],
    /// The sources, holes included.
    pub(crate) src: &'a [Option<Layout>],
    /// The result.
    pub(crate) dst: Layout,
}

/// The GPU that nodes are launched on: all that their launches depend on beside the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// Compute capability times ten: 80 is `sm_80`.
    pub arch: u32,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Which products cuBLAS computes; none: it is not used.
    pub library: Option<LibraryRule>,
}

impl Target {
    /// A GPU of which nothing is known: more multiprocessors than those that were sold as one by 2025, so that its kernels
    /// need no less memory than theirs.
    pub const ASSUMED: Self = Self::described(90, 192);

    /// A GPU with cuBLAS beside it, if it is one that the library is used for.
    #[must_use]
    pub const fn described(arch: u32, multiprocessors: u32) -> Self {
        Self { arch, multiprocessors, library: LibraryRule::usual(arch) }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let library = if self.library.is_some() { ", with cuBLAS" } else { "" };
        write!(f, "sm_{} with {} multiprocessors{library}", self.arch, self.multiprocessors)
    }
}

/// Which products cuBLAS computes, and the memory that it does so in. See `launch/library.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LibraryRule {
    /// Fewest columns with weights of a float type.
    pub floats_from: u64,
    /// Fewest columns with quantized weights.
    pub quantized_from: u64,
    /// Bytes of scratch memory, from its first on, that are the library's while it computes.
    pub workspace: u64,
    /// Most bytes of weights that are decoded at a time.
    pub slice: u64,
}

impl LibraryRule {
    /// First architecture that the library is used for.
    pub const LEAST_ARCH: u32 = 70;
    /// Columns from which on a gain is expected with weights of a float type: our own kernels compute tiles of 64 from 17 on.
    pub const FLOATS_FROM: u64 = 32;
    /// The same with quantized weights: to decode them takes about as long as a product with 256 columns does.
    pub const QUANTIZED_FROM: u64 = 512;
    /// Decoded weights at a time: much for matrix units, little beside a model.
    pub const SLICE: u64 = 64 << 20;

    /// The rule where nobody asks for another, with the workspace that NVIDIA recommends; `None`: the library is not used
    /// for such GPUs.
    #[must_use]
    pub const fn usual(arch: u32) -> Option<Self> {
        if arch < Self::LEAST_ARCH {
            return None;
        }
        let workspace = match arch {
            90..120 => 32 << 20,
            120.. => 12 << 20,
            _ => 4 << 20,
        };
        let (floats_from, quantized_from, slice) = (Self::FLOATS_FROM, Self::QUANTIZED_FROM, Self::SLICE);
        Some(Self { floats_from, quantized_from, workspace, slice })
    }
}

/// What an [`LmTensor`]'s address points into.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Base {
    /// Nothing: the address is null.
    #[default]
    Absent,
    /// The node's result.
    Dst,
    /// The node's source at this position.
    Source(u8),
    /// The word of the program in which kernels note an index that names no row.
    Watch,
    /// The launches' scratch memory, which is theirs alone while they run and holds anything before.
    Scratch,
}

/// Where an [`LmTensor`] is: `offset` bytes behind the first byte of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Place {
    /// Behind what.
    pub(crate) base: Base,
    /// How far. At least 16 bytes of alignment in scratch memory are the kernels' to keep; its base has 256.
    pub(crate) offset: u64,
}

/// One kernel with its parameter.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Launch {
    /// File name of the source without `.cu`.
    pub(crate) source: &'static str,
    /// Name of the kernel.
    pub(crate) kernel: &'static str,
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub(crate) shared_bytes: u32,
    /// The parameter; `data` of its tensors is zero until a program is compiled.
    pub(crate) args: LmArgs,
    /// Where `args.dst` is.
    pub(crate) dst: Place,
    /// Where `args.src` are.
    pub(crate) src: [Place; MAX_SOURCES],
}

/// Element type of both sources of a [`Product`]; it is summed up, and stored, as 32-bit floats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Factor {
    /// 32-bit floats.
    F32,
    /// Halves.
    F16,
    /// Bfloats.
    Bf16,
}

/// Matrices of a product, one after another: numbers of elements, innermost rows without gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Matrix {
    /// The first.
    pub(crate) place: Place,
    /// From row to row.
    pub(crate) leading: i32,
    /// From matrix to matrix.
    pub(crate) stride: i64,
}

/// Products that cuBLAS computes by one call: `dst[r, c] = sum over d of weights[d, r] * x[d, c]`, `count` times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Product {
    /// Type of weights and activations.
    pub(crate) factor: Factor,
    /// Rows of weights.
    pub(crate) rows: i32,
    /// Rows of activations, which are columns of the result.
    pub(crate) columns: i32,
    /// Elements of a row of either.
    pub(crate) depth: i32,
    /// Matrices.
    pub(crate) count: i32,
    /// Weights.
    pub(crate) weights: Matrix,
    /// Activations.
    pub(crate) x: Matrix,
    /// Result.
    pub(crate) dst: Matrix,
}

/// What is put into a stream for a node.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Work {
    /// A kernel of ours.
    Kernel(Box<Launch>),
    /// Products by cuBLAS.
    Product(Product),
}

/// The work of a node, run one after another in one stream. None: nothing is to be done.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Launches {
    /// In order.
    pub(crate) list: SmallVec<[Work; 2]>,
    /// Bytes of scratch memory that they need together.
    pub(crate) scratch_bytes: u64,
}

#[cfg(feature = "cuda")]
impl Launches {
    /// Those that are kernels of ours.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = &Launch> {
        self.list.iter().filter_map(|work| match work {
            Work::Kernel(launch) => Some(launch.as_ref()),
            Work::Product(_) => None,
        })
    }
}
