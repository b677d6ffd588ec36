//! A GPU as a device.

use super::context::{Context, missing};
use super::copy::reach_both;
use super::core::Core;
use super::driver::Driver;
use super::event::CudaEvent;
use super::launch;
use super::launch::types::Target;
use super::memory::{CudaBuffer, CudaMemory, PinnedMemory};
use super::probe::{self, GpuInfo};
use super::products::{Chosen, Products};
use super::program::{CudaProgram, Supply};
use super::stream::CudaStream;
use super::transfer::Transfer;
use super::watch::Pages;
use super::workspace::with_view;
use crate::device::{Device, DeviceKind, MemoryInfo, OpShape, PeerAccess};
use crate::error::{Call, DeviceError, Fault, Unsupported};
use crate::host::HostBuffer;
use crate::program::{Compiled, Program};
use crate::stats::{DeviceStats, Route};
use crate::stream::{Event, Region, Stream};
use loadmaster_alloc::{Buffer, BufferType, InPlaceTable};
use loadmaster_graph::{Align, Bytes};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;

/// Which GPU, and how it is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaOptions {
    /// Its name here, unique among the devices of a process. Several devices may be on one GPU.
    pub name: Box<str>,
    /// The driver's number of the GPU.
    pub ordinal: u32,
    /// Most bytes that its buffers take together; `None`: what the GPU has.
    pub limit: Option<Bytes>,
    /// Alignment of tensors.
    pub align: Align,
    /// Its largest buffer.
    pub max_buffer: Option<Bytes>,
    /// Quantized rows are padded to a multiple of this many elements (0: not).
    pub row_padding: u64,
    /// Who computes its matrix products.
    pub products: Products,
}

impl CudaOptions {
    /// A whole GPU with llama.cpp's alignment and padding.
    #[must_use]
    pub fn new(name: impl Into<Box<str>>, ordinal: u32) -> Self {
        // 128 is a power of two.
        let align = Align::new(128).unwrap_or(Align::ONE);
        Self {
            name: name.into(),
            ordinal,
            limit: None,
            align,
            max_buffer: None,
            row_padding: 512,
            products: Products::default(),
        }
    }
}

/// A GPU, or a part of its memory.
///
/// Locks: `scratch`, `transfer` and `words` are leaves, but `transfer` is held while the host waits for its copies.
#[derive(Debug)]
pub struct CudaDevice {
    core: Arc<Core>,
    info: GpuInfo,
    memory: Arc<CudaMemory>,
    staging: Arc<PinnedMemory>,
    /// The largest scratch memory that a program asked for which brought none ([`crate::Workspace::OfDevice`]): programs
    /// of a device run one after another.
    scratch: Mutex<Option<Arc<CudaBuffer>>>,
    transfer: Mutex<Option<Transfer>>,
    words: Pages,
}

impl CudaDevice {
    /// Opens a GPU. Errors: there is no driver, or it refuses.
    pub fn open(options: CudaOptions) -> Result<Self, DeviceError> {
        let failed = |fault| DeviceError { device: options.name.clone(), call: Call::Create, tensor: None, fault };
        let driver = Driver::get().map_err(|why| failed(missing(&why)))?;
        let info = probe::describe(driver, options.ordinal).map_err(failed)?;
        let context = Context::open(driver, options.ordinal).map_err(failed)?;
        let target = info.target();
        let products = Chosen::new(&context, &target, options.products);
        if let Some(why) = products.as_ref().err().filter(|why| why.is_failure()) {
            tracing::warn!(device = %options.name, %why, "cuBLAS cannot be used");
        }
        let core = Arc::new(Core {
            name: options.name.clone(),
            context,
            counters: Default::default(),
            target: Target { library: products.as_ref().ok().map(Chosen::rule), ..target },
            products,
            limit: options.limit,
            scratch_user: Mutex::default(),
        });
        let memory = Arc::new(CudaMemory {
            core: Arc::clone(&core),
            align: options.align,
            max_size: options.max_buffer,
            row_padding: options.row_padding,
        });
        let name = format!("{} pinned", core.name).into();
        let staging = Arc::new(PinnedMemory { core: Arc::clone(&core), name });
        Ok(Self {
            core,
            info,
            memory,
            staging,
            scratch: Mutex::default(),
            transfer: Mutex::default(),
            words: Pages::default(),
        })
    }

    /// The GPU.
    #[must_use]
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// Who computes its matrix products with many columns, and if not cuBLAS, why.
    #[must_use]
    pub fn products(&self) -> String {
        match &self.core.products {
            Ok(chosen) => chosen.to_string(),
            Err(why) => format!("own kernels (cuBLAS: {why})"),
        }
    }

    fn take_scratch(&self, bytes: Bytes) -> Result<Arc<CudaBuffer>, Fault> {
        let mut scratch = self.scratch.lock();
        if let Some(found) = scratch.as_ref().filter(|s| s.size() >= bytes) {
            return Ok(Arc::clone(found));
        }
        let taken = Arc::new(CudaBuffer::new(&self.core, bytes).map_err(Fault::OutOfMemory)?);
        *scratch = Some(Arc::clone(&taken));
        Ok(taken)
    }

    /// Copies between the host and a region of the device's memory, or of host memory.
    fn transfer(
        &self,
        call: Call,
        region: &Region,
        len: usize,
        route: Route,
        host: impl FnOnce(&HostBuffer) -> Result<(), Fault>,
        gpu: impl FnOnce(&mut Transfer, u64) -> Result<(), Fault>,
    ) -> Result<(), DeviceError> {
        let copy = || {
            self.core.context.alive()?;
            let len = Bytes(len as u64);
            if region.len != len {
                return Err(Fault::LengthMismatch { from: len, to: region.len });
            }
            if let Some(buffer) = region.buffer.as_any().downcast_ref::<HostBuffer>() {
                return host(buffer).map(|()| Route::Local);
            }
            let own = region.buffer.as_any().downcast_ref::<CudaBuffer>();
            let own = own.filter(|b| Arc::ptr_eq(b.core(), &self.core));
            let own = own.ok_or_else(|| Fault::WrongMemory { buffer_type: format!("{:?}", region.buffer) })?;
            let address = own.address(region.offset, region.len)?;
            let mut slot = self.transfer.lock();
            let transfer = match slot.take() {
                Some(made) => slot.insert(made),
                None => slot.insert(Transfer::new(&self.core)?),
            };
            gpu(transfer, address).map(|()| route)
        };
        let route = copy().map_err(|fault| self.core.error(call, None, fault))?;
        self.core.counters.copied(route, Bytes(len as u64));
        Ok(())
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.core.name
    }
    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }
    fn description(&self) -> String {
        self.info.to_string()
    }
    fn memory(&self) -> MemoryInfo {
        let total = self.core.limit.map_or(self.info.total, |limit| limit.min(self.info.total));
        MemoryInfo { total: Some(total), free: self.core.free() }
    }
    fn buffer_type(&self) -> Arc<dyn BufferType> {
        Arc::clone(&self.memory) as Arc<dyn BufferType>
    }
    fn staging_type(&self) -> Option<Arc<dyn BufferType>> {
        Some(Arc::clone(&self.staging) as Arc<dyn BufferType>)
    }
    fn can_use(&self, buffer: &dyn Buffer) -> bool {
        buffer.as_any().downcast_ref::<CudaBuffer>().is_some_and(|b| Arc::ptr_eq(b.core(), &self.core))
    }
    fn supports(&self, op: &OpShape<'_>) -> Result<(), Unsupported> {
        with_view(op, |node| launch::launches(node, &self.core.target)).map(|_| ())
    }
    fn gpu(&self) -> Option<Target> {
        Some(self.core.target)
    }
    fn in_place(&self) -> InPlaceTable {
        launch::in_place()
    }
    fn peer(&self, other: &dyn Device) -> PeerAccess {
        let Some(other) = other.as_any().downcast_ref::<Self>() else {
            return PeerAccess::None { why: format!("{} is no CUDA device", other.name()) };
        };
        match reach_both(&self.core, &other.core) {
            Ok(()) => PeerAccess::Direct,
            Err(why) => PeerAccess::None { why },
        }
    }
    fn create_stream(&self) -> Result<Arc<dyn Stream>, DeviceError> {
        let made = CudaStream::new(&self.core).map_err(|fault| self.core.error(Call::Create, None, fault))?;
        Ok(Arc::new(made))
    }
    fn create_event(&self) -> Result<Arc<dyn Event>, DeviceError> {
        let made = CudaEvent::new(&self.core).map_err(|fault| self.core.error(Call::Create, None, fault))?;
        Ok(Arc::new(made))
    }
    fn compile(&self, program: Program) -> Result<Arc<dyn Compiled>, DeviceError> {
        self.core.alive(Call::Compile)?;
        let supply =
            Supply { scratch: &|bytes| self.take_scratch(bytes), word: &|| self.words.take(self.staging.as_ref()) };
        Ok(Arc::new(CudaProgram::new(&self.core, program, &supply)?))
    }
    fn upload(&self, to: &Region, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the range was checked to lie in a buffer of this device; the caller of this method sees to it that
        // nothing uses it meanwhile.
        let gpu = |transfer: &mut Transfer, address| unsafe { transfer.upload(address, bytes) };
        let host = |host: &HostBuffer| host.write(to.offset, bytes);
        self.transfer(Call::Upload, to, bytes.len(), Route::ToDevice, host, gpu)
    }
    fn download(&self, from: &Region, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if let Some(host) = from.buffer.as_any().downcast_ref::<HostBuffer>() {
            let len = bytes.len();
            let read = |_: &HostBuffer| host.read(from.offset, bytes);
            return self.transfer(Call::Download, from, len, Route::Local, read, |_, _| Ok(()));
        }
        let len = bytes.len();
        // SAFETY: as for `upload`.
        let gpu = |transfer: &mut Transfer, address| unsafe { transfer.download(address, bytes) };
        self.transfer(Call::Download, from, len, Route::ToHost, |_| Ok(()), gpu)
    }
    fn stats(&self) -> DeviceStats {
        self.core.counters.snapshot()
    }
    fn health(&self) -> Result<(), DeviceError> {
        self.core.alive(Call::Synchronize)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
