//! cuBLAS: handles and the checks of products.
//!
//! A handle belongs to the device that was current when it was made. Setting its stream gives it its own workspace back,
//! as the library documents; here that workspace does not exist, so a product for which none was set afterwards is
//! refused and reported: it would use memory that nobody counted. The workspace is written by every product, so whoever
//! shares it without order is reported as a race.

use crate::code::{Code, Outcome};
use crate::config::Offer;
use crate::memory::Place;
use crate::product::{BFLOAT, FLOAT, HALF, Matrices, Product};
use crate::report::Kind;
use crate::state::{Sort, State};
use crate::task::Task;

/// Statuses of the library: `cublasStatus_t`.
pub const NOT_INITIALIZED: Code = Code(1);
const ALLOC_FAILED: Code = Code(3);
const INVALID_VALUE: Code = Code(7);
const ARCH_MISMATCH: Code = Code(8);
pub const EXECUTION_FAILED: Code = Code(13);
pub const INTERNAL_ERROR: Code = Code(14);
const NOT_SUPPORTED: Code = Code(15);

/// Alignment of a workspace, and the bytes below which products may fail.
const ALIGNMENT: u64 = 256;
const LEAST_WORKSPACE: u64 = 16 << 10;

/// A handle.
#[derive(Debug)]
pub struct Blas {
    pub device: u32,
    stream: u64,
    /// Address and bytes, once set after the stream.
    workspace: Option<(u64, u64)>,
}

/// A product as called, by the library's names and numbers.
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    pub call: &'static str,
    pub handle: u64,
    pub operations: [i32; 2],
    pub m: i32,
    pub n: i32,
    pub k: i32,
    /// None: a null pointer.
    pub alpha: Option<f32>,
    pub beta: Option<f32>,
    /// A, B, C.
    pub operands: [Given; 3],
    pub count: i32,
    pub compute: i32,
}

/// A matrix as called.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    pub address: u64,
    pub data_type: i32,
    pub leading: i32,
    pub stride: i64,
}

/// ggml's number of one of the library's element types, and its size.
fn element(data_type: i32) -> Option<(i32, i64)> {
    match data_type {
        0 => Some((FLOAT, 4)),
        2 => Some((HALF, 2)),
        14 => Some((BFLOAT, 2)),
        _ => None,
    }
}

impl State {
    fn wrong(&mut self, status: Code, text: impl std::fmt::Display) -> Code {
        self.report.add(Kind::Invalid, format_args!("{text} (cuBLAS status {})", status.0));
        status
    }

    fn offered(&mut self) -> Outcome<()> {
        if self.config.cublas == Offer::Off {
            return Err(self.wrong(NOT_INITIALIZED, "a call of cuBLAS, which is not offered"));
        }
        Ok(())
    }

    fn handle(&mut self, handle: u64) -> Outcome<&mut Blas> {
        self.offered()?;
        if !self.blas.contains_key(&handle) {
            return Err(self.wrong(NOT_INITIALIZED, format_args!("{handle:#x} is no handle of cuBLAS")));
        }
        self.blas.get_mut(&handle).ok_or(NOT_INITIALIZED)
    }

    pub(crate) fn blas_create(&mut self) -> Outcome<u64> {
        self.offered()?;
        let device = self.here().map_err(|_| NOT_INITIALIZED)?;
        self.not_captured_on(device, "cublasCreate").map_err(|_| INTERNAL_ERROR)?;
        let handle = self.new_handle(Sort::Blas);
        self.blas.insert(handle, Blas { device, stream: 0, workspace: None });
        Ok(handle)
    }

    pub(crate) fn blas_destroy(&mut self, handle: u64) -> Outcome<()> {
        let device = self.handle(handle)?.device;
        self.not_captured_on(device, "cublasDestroy").map_err(|_| INTERNAL_ERROR)?;
        self.blas.remove(&handle);
        Ok(())
    }

    pub(crate) fn blas_set_stream(&mut self, handle: u64, stream: u64) -> Outcome<()> {
        let device = self.handle(handle)?.device;
        let stream = self.stream(stream).map_err(|_| INVALID_VALUE)?;
        let place = self.known(stream)?.device;
        if place != device {
            let text = format_args!("cublasSetStream: a stream of cuda:{place} for a handle of cuda:{device}");
            return Err(self.wrong(INVALID_VALUE, text));
        }
        let blas = self.handle(handle)?;
        (blas.stream, blas.workspace) = (stream, None);
        Ok(())
    }

    pub(crate) fn blas_set_workspace(&mut self, handle: u64, address: u64, bytes: u64) -> Outcome<()> {
        let device = self.handle(handle)?.device;
        let inside = match self.resolve(address, bytes) {
            Ok(Place::Device { device: owner, .. }) => owner == device,
            Ok(_) => false,
            Err(astray) => return Err(self.wrong(INVALID_VALUE, format_args!("cublasSetWorkspace: {astray}"))),
        };
        if !inside || !address.is_multiple_of(ALIGNMENT) {
            let text = format_args!("cublasSetWorkspace: {address:#x} is no aligned address of cuda:{device}");
            return Err(self.wrong(INVALID_VALUE, text));
        }
        self.handle(handle)?.workspace = Some((address, bytes));
        Ok(())
    }

    /// Checks a product and queues it.
    pub(crate) fn blas_gemm(&mut self, gemm: &Gemm) -> Outcome<()> {
        let blas = self.handle(gemm.handle)?;
        let (device, stream, workspace) = (blas.device, blas.stream, blas.workspace);
        let here = self.here().map_err(|_| NOT_INITIALIZED)?;
        if here != device {
            let text = format_args!("{}: a handle of cuda:{device} while cuda:{here} is current", gemm.call);
            return Err(self.wrong(EXECUTION_FAILED, text));
        }
        let Some(workspace) = workspace.filter(|(_, bytes)| *bytes >= LEAST_WORKSPACE) else {
            let text = format_args!("{}: no workspace of the caller's that is large enough", gemm.call);
            return Err(self.wrong(ALLOC_FAILED, text));
        };
        let product = self.product(gemm, workspace)?;
        if product.is_empty() {
            return Ok(());
        }
        self.check_places(&product, device)?;
        let stream = self.stream(stream).map_err(|_| EXECUTION_FAILED)?;
        self.submit(stream, Task::Product(Box::new(product))).map_err(|_| EXECUTION_FAILED)?;
        Ok(())
    }

    /// The numbers of a product make sense.
    fn product(&mut self, gemm: &Gemm, workspace: (u64, u64)) -> Outcome<Product> {
        const TRANSPOSED_BY_PLAIN: [i32; 2] = [1, 0];
        const COMPUTE_32F: i32 = 68;
        let &Gemm { call, m, n, k, count, operands: [a, b, c], .. } = gemm;
        let (Some(alpha), Some(beta)) = (gemm.alpha, gemm.beta) else {
            return Err(self.wrong(INVALID_VALUE, format_args!("{call}: a null factor")));
        };
        let wide = |given: &Given, rows: i32| given.leading >= rows.max(1) && given.stride >= 0;
        if [m, n, k, count].iter().any(|e| *e < 0) || !wide(&a, k) || !wide(&b, k) || !wide(&c, m) {
            return Err(self.wrong(INVALID_VALUE, format_args!("{call}: extents or leading dimensions: {gemm:?}")));
        }
        let types = (element(a.data_type), element(b.data_type), c.data_type);
        let ((Some(factor), Some(other), 0), TRANSPOSED_BY_PLAIN, COMPUTE_32F) = (types, gemm.operations, gemm.compute)
        else {
            return Err(self.wrong(NOT_SUPPORTED, format_args!("{call}: the stand-in has no such product: {gemm:?}")));
        };
        if factor != other {
            return Err(self.wrong(NOT_SUPPORTED, format_args!("{call}: two types of factors")));
        }
        let arch = self.config.arch;
        if factor.0 == BFLOAT && arch < 80 {
            return Err(self.wrong(ARCH_MISMATCH, format_args!("{call}: bfloats on sm_{arch}")));
        }
        let matrices = |given: Given, (ty, size): (i32, i64), length: i32, columns: i32| Matrices {
            address: given.address,
            ty,
            size,
            extents: [length, columns, count].map(i64::from),
            leading: given.leading.into(),
            stride: given.stride,
        };
        let operands = [matrices(a, factor, k, m), matrices(b, factor, k, n), matrices(c, (FLOAT, 4), m, n)];
        Ok(Product { call, operands, alpha, beta, workspace })
    }

    /// Operands are aligned, inside memory that the device reaches, and what is written is apart from everything else.
    fn check_places(&mut self, product: &Product, device: u32) -> Outcome<()> {
        let call = product.call;
        if product.operands.iter().any(|o| !o.address.is_multiple_of(o.size as u64)) {
            return Err(self.wrong(INVALID_VALUE, format_args!("{call}: a misaligned operand: {product:?}")));
        }
        // As one that only writes its result: what it adds to is no other operand.
        match self.product_accesses(&Product { beta: 0.0, ..product.clone() }, device) {
            Err(astray) => {
                self.report.add(Kind::Memory, format_args!("{call} is given {astray}"));
                Ok(())
            }
            Ok(accesses) if Product::overlaps(&accesses) => {
                Err(self.wrong(INVALID_VALUE, format_args!("{call} writes over what it reads: {product:?}")))
            }
            Ok(_) => Ok(()),
        }
    }
}
