//! Who computes the matrix products of a device: the choice when it is opened, and the calls of cuBLAS.
//!
//! A device has one handle of the library. It is used by whoever has the device's scratch memory, for the stream that has
//! it: the library's workspace is a part of that memory, so that it is counted, and nothing is taken while products run.
//! What the library takes for itself when its handle is made, and for the code of its kernels, is the driver's, as
//! contexts and our own kernels are: no plan has it.
//!
//! Lock order: [`super::core::Core::scratch_user`], whose guard is the right to use the handle.

use super::context::Context;
use super::core::ScratchUser;
use super::cublas::{self, Cublas, Handle, NoCublas, Status};
use super::driver::Driver;
use super::handles::RawStream;
use super::launch::types::{Factor, LibraryRule, Product, Target};
use super::trial;
use crate::error::Fault;
use parking_lot::MutexGuard;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::from_ref;
use std::sync::Arc;

/// Who computes the products of a device with many columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Products {
    /// Our own kernels.
    Own,
    /// cuBLAS where it is present ([`super::CUBLAS_VARIABLE`]), our own kernels elsewhere.
    Library(ProductsFrom),
}

/// From how many columns (tokens of a batch) on cuBLAS computes a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProductsFrom {
    /// With weights of a float type.
    pub floats: u64,
    /// With quantized weights, which are decoded first.
    pub quantized: u64,
}

impl Default for ProductsFrom {
    fn default() -> Self {
        Self { floats: LibraryRule::FLOATS_FROM, quantized: LibraryRule::QUANTIZED_FROM }
    }
}

impl Default for Products {
    fn default() -> Self {
        Self::Library(ProductsFrom::default())
    }
}

/// Decoded weights at a time where the stand-in driver forces products to the library: several to a matrix.
const FORCED_SLICE: u64 = 4 << 10;

/// What was chosen for a device.
#[derive(Debug)]
pub(crate) struct Chosen {
    rule: LibraryRule,
    blas: Blas,
}

impl Chosen {
    /// Opens the library for a device. Errors: why our own kernels do everything.
    pub(crate) fn new(context: &Arc<Context>, target: &Target, products: Products) -> Result<Self, NoCublas> {
        let Products::Library(from) = products else { return Err(NoCublas::NotAsked) };
        let library = Cublas::get(context.driver())?;
        let (major, minor) = (target.arch / 10, target.arch % 10);
        let rule = rule(context.driver(), from, target.arch).ok_or(NoCublas::OldGpu { major, minor })?;
        let blas = Blas::new(context, library)?;
        trial::test(context, target.arch, &blas)?;
        Ok(Self { rule, blas })
    }

    /// Which products are the library's.
    pub(crate) fn rule(&self) -> LibraryRule {
        self.rule
    }

    /// Lets the library work in a stream and in the scratch memory that begins at `scratch`, which whoever shows the guard
    /// has for itself.
    pub(crate) fn enter(
        &self,
        _turn: &MutexGuard<'_, ScratchUser>,
        stream: &RawStream,
        scratch: u64,
    ) -> Result<Entered<'_>, Fault> {
        self.blas.enter(stream, scratch, self.rule.workspace)
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.blas.library.version;
        let LibraryRule { floats_from, quantized_from, .. } = self.rule;
        write!(f, "cuBLAS {major}.{minor} from {floats_from} columns on, {quantized_from} for quantized weights")
    }
}

/// The rule for a GPU, if the library is used for it. The stand-in driver may be told another number of columns.
fn rule(driver: &Driver, from: ProductsFrom, arch: u32) -> Option<LibraryRule> {
    let forced = cublas::offered(driver).filter(|columns| *columns > 0);
    let (floats_from, quantized_from) = (forced.unwrap_or(from.floats), forced.unwrap_or(from.quantized));
    let slice = |usual: u64| if forced.is_some() { FORCED_SLICE } else { usual };
    LibraryRule::usual(arch).map(|usual| LibraryRule {
        floats_from,
        quantized_from,
        slice: slice(usual.slice),
        ..usual
    })
}

/// The rule that a device on a GPU gets unless it is opened with other options: the library is asked whether it is there,
/// and nothing is made.
pub(crate) fn expected(driver: &'static Driver, arch: u32) -> Option<LibraryRule> {
    Cublas::get(driver).ok().and_then(|_| rule(driver, ProductsFrom::default(), arch))
}

/// A handle of the library in a context.
pub(crate) struct Blas {
    context: Arc<Context>,
    library: &'static Cublas,
    raw: Handle,
}

// SAFETY: a handle has no thread affinity; it is used under the lock whose guard `enter` asks for.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {:?}", self.library, self.context)
    }
}

impl Blas {
    fn new(context: &Arc<Context>, library: &'static Cublas) -> Result<Self, NoCublas> {
        let mut raw = std::ptr::null_mut();
        let alone = Context::nobody_notes();
        // SAFETY: the pointer is to a handle.
        let made = call(context, "cublasCreate", || unsafe { (library.create)(&raw mut raw) });
        drop(alone);
        made.map_err(|fault| NoCublas::NotStarted { why: fault.to_string() })?;
        Ok(Self { context: Arc::clone(context), library, raw })
    }

    /// Lets it work in a stream and in memory that is nobody else's: whoever has the handle to itself may.
    pub(crate) fn enter(&self, stream: &RawStream, scratch: u64, bytes: u64) -> Result<Entered<'_>, Fault> {
        let (library, raw) = (self.library, self.raw);
        // SAFETY: handle and stream live.
        call(&self.context, "cublasSetStream", || unsafe { (library.set_stream)(raw, stream.raw()) })?;
        let (workspace, bytes) = (scratch as *mut c_void, bytes as usize);
        // After the stream: setting that gives the handle its own workspace back.
        // SAFETY: the handle lives; the program whose products follow keeps the memory until no GPU runs anything.
        call(&self.context, "cublasSetWorkspace", || unsafe { (library.set_workspace)(raw, workspace, bytes) })?;
        Ok(Entered(self))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let alone = Context::nobody_notes();
        // SAFETY: the handle was made in this context, and is given back only here.
        let destroy = || unsafe { (self.library.destroy)(self.raw) };
        self.context.give_back("a handle of cuBLAS", |_| {
            if let Err(status) = Status::check(destroy()) {
                tracing::warn!(gpu = self.context.ordinal(), reason = status.words(), "cublasDestroy");
            }
            Ok(())
        });
        drop(alone);
    }
}

/// A product with addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyProduct {
    pub(crate) product: Product,
    pub(crate) weights: u64,
    pub(crate) x: u64,
    pub(crate) dst: u64,
}

/// The library, set to a stream and to its scratch memory.
pub(crate) struct Entered<'a>(&'a Blas);

impl Entered<'_> {
    /// Puts a product into the stream. Errors: the library's.
    pub(crate) fn multiply(&self, ready: &ReadyProduct) -> Result<(), Fault> {
        const PLAIN: c_int = 0;
        const TRANSPOSED: c_int = 1;
        const SUMS_IN_32_BITS: c_int = 68;
        const FLOATS: c_int = 0;
        const BEST: c_int = -1;
        let (Blas { context, library, raw }, p) = (self.0, &ready.product);
        let factor = match p.factor {
            Factor::F32 => FLOATS,
            Factor::F16 => 2,
            Factor::Bf16 => 14,
        };
        let (one, zero) = (1.0f32, 0.0f32);
        let (one, zero) = (from_ref(&one).cast::<c_void>(), from_ref(&zero).cast::<c_void>());
        let (w, x, dst) = (ready.weights as *const c_void, ready.x as *const c_void, ready.dst as *mut c_void);
        let (m, n, k, sums) = (p.rows, p.columns, p.depth, SUMS_IN_32_BITS);
        let [lw, lx, ld] = [p.weights, p.x, p.dst].map(|matrix| matrix.leading);
        let [sw, sx, sd] = [p.weights, p.x, p.dst].map(|matrix| matrix.stride);
        // The library counts rows innermost: weights are transposed there, the others are not.
        let (a, b) = (TRANSPOSED, PLAIN);
        if p.count == 1 {
            // SAFETY: the handle lives; the factors are read before the call returns. Every operand was checked to lie
            // inside its buffer, which the program keeps alive until no GPU runs anything; the executor's protocol orders
            // the product with all other uses of these bytes.
            return call(context, "cublasGemmEx", || unsafe {
                let gemm = library.gemm;
                gemm(*raw, a, b, m, n, k, one, w, factor, lw, x, factor, lx, zero, dst, FLOATS, ld, sums, BEST)
            });
        }
        let count = p.count;
        // SAFETY: as above.
        call(context, "cublasGemmStridedBatchedEx", || unsafe {
            let gemm = library.gemm_strided;
            let (w, x) = ((w, factor, lw, sw), (x, factor, lx, sx));
            gemm(
                *raw, a, b, m, n, k, one, w.0, w.1, w.2, w.3, x.0, x.1, x.2, x.3, zero, dst, FLOATS, ld, sd, count,
                sums, BEST,
            )
        })
    }
}

/// Calls the library with a context current. Errors: the library's, or how the context was lost.
fn call(context: &Context, name: &'static str, call: impl FnOnce() -> c_int) -> Result<(), Fault> {
    context.call(|_| Ok(()))?;
    let Err(status) = Status::check(call()) else { return Ok(()) };
    // What killed the context is the driver's to say.
    let (mut free, mut total) = (0, 0);
    // SAFETY: the pointers are to numbers.
    context.call(|driver| unsafe { driver.memory_info(&raw mut free, &raw mut total) })?;
    let reason = status.words().into();
    Err(Fault::Library { library: "cuBLAS", call: name, code: i64::from(status.0), reason })
}
