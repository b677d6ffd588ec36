//! Fake devices for ggml: they answer every question that planning asks and own no memory.
//!
//! Buffers get addresses from a counter; nothing ever reads or writes them.

// ggml keeps pointers to devices, backends and types, so each needs an address of its own.
#![allow(clippy::vec_box)]

use crate::ffi;
use crate::file::{DeviceKind, GraphFile, Usage};
use anyhow::{Context, ensure};
use std::collections::{HashMap, HashSet};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows of quantized tensors are padded to a multiple of this on GPUs (CUDA's rule).
const ROW_PADDING: u64 = 512;
/// Smallest batch for which a GPU takes an op whose weights are in host memory.
const OFFLOAD_BATCH: i64 = 32;

/// Kept tensors by node.
type Wishes = HashMap<*mut ffi::ggml_tensor, Vec<*mut ffi::ggml_tensor>>;

/// The devices, buffer types and existing buffers of one graph file.
pub struct World {
    pub devices: Vec<Box<ffi::device>>,
    pub backends: Vec<Box<ffi::backend>>,
    /// The compute buffer type of each device; devices with equally named types share one.
    pub device_types: Vec<*mut ffi::buffer_type>,
    /// The existing buffers, by their index in the file.
    pub buffers: Vec<*mut ffi::buffer>,
    /// Tensors that back ends keep, by the node that they are kept for.
    wishes: Box<Wishes>,
    types: Vec<Box<ffi::buffer_type>>,
    type_contexts: Vec<Box<TypeContext>>,
    _device_contexts: Vec<Box<DeviceContext>>,
}

struct TypeContext {
    name: CString,
    alignment: usize,
    max_size: usize,
    host: bool,
    padded_rows: bool,
    /// Bit i: device i reads it in place.
    usable_by: u64,
}

struct DeviceContext {
    name: CString,
    kind: DeviceKind,
    bit: u64,
    buffer_type: *mut ffi::buffer_type,
    unsupported: HashSet<OpNumber>,
}

impl World {
    /// Builds the devices of a file. `buffer_sizes` gives the size of each existing buffer.
    pub fn new(file: &GraphFile, buffer_sizes: &[u64]) -> anyhow::Result<Self> {
        ensure!(file.devices.len() <= ffi::MAX_BACKENDS, "ggml has at most {} devices", ffi::MAX_BACKENDS);
        let mut world = Self {
            devices: Vec::new(),
            backends: Vec::new(),
            device_types: Vec::new(),
            buffers: Vec::new(),
            wishes: Box::default(),
            types: Vec::new(),
            type_contexts: Vec::new(),
            _device_contexts: Vec::new(),
        };
        world.add_device_types(file)?;
        world.add_devices(file)?;
        world.add_buffers(file, buffer_sizes)?;
        Ok(world)
    }

    fn add_device_types(&mut self, file: &GraphFile) -> anyhow::Result<()> {
        let cpus = file.devices.iter().enumerate().filter(|(_, d)| d.kind == DeviceKind::Cpu);
        let cpu_bits = cpus.fold(0, |bits, (i, _)| bits | 1u64 << i);
        for (i, device) in file.devices.iter().enumerate() {
            let t = &device.buffer_type;
            if let Some(shared) = self.find_type(&t.name) {
                self.type_contexts[shared].usable_by |= 1 << i;
                let shared = &mut *self.types[shared];
                self.device_types.push(shared);
                continue;
            }
            let context = TypeContext {
                name: CString::new(t.name.as_str())?,
                alignment: t.alignment as usize,
                max_size: t.max_size.map_or(usize::MAX, |m| m as usize),
                host: t.host,
                padded_rows: device.kind == DeviceKind::Gpu && !t.host,
                usable_by: 1 << i | if t.host { cpu_bits } else { 0 },
            };
            let pointer = self.add_type(context);
            self.device_types.push(pointer);
        }
        Ok(())
    }

    fn add_devices(&mut self, file: &GraphFile) -> anyhow::Result<()> {
        for (i, device) in file.devices.iter().enumerate() {
            let mut context = Box::new(DeviceContext {
                name: CString::new(device.name.as_str())?,
                kind: device.kind,
                bit: 1 << i,
                buffer_type: self.device_types[i],
                unsupported: device.unsupported.iter().map(|op| op_number(op)).collect::<anyhow::Result<_>>()?,
            });
            let mut d = Box::new(ffi::device { iface: DEVICE, reg: null_mut(), context: (&raw mut *context).cast() });
            self.backends.push(Box::new(ffi::backend {
                guid: null_mut(),
                iface: ffi::backend_i {
                    get_name: Some(backend_name),
                    others: [None; 14],
                    graph_optimize: (!file.keep_until.is_empty()).then_some(graph_optimize as _),
                },
                device: &mut *d,
                context: null_mut(),
            }));
            self.devices.push(d);
            self._device_contexts.push(context);
        }
        Ok(())
    }

    fn add_buffers(&mut self, file: &GraphFile, sizes: &[u64]) -> anyhow::Result<()> {
        for (b, &size) in file.buffers.iter().zip(sizes) {
            let usable_by = b.usable_by.iter().fold(0, |bits, &d| bits | 1u64 << d);
            let index = match self.find_type(&b.buffer_type) {
                Some(index) => index,
                None => {
                    self.add_type(TypeContext {
                        name: CString::new(b.buffer_type.as_str())?,
                        alignment: 32,
                        max_size: usize::MAX,
                        host: b.host,
                        padded_rows: false,
                        usable_by,
                    });
                    self.types.len() - 1
                }
            };
            let context = &self.type_contexts[index];
            ensure!(
                context.usable_by == usable_by && context.host == b.host,
                "buffer {}: usable_by {:?} contradicts its buffer type {}",
                b.id,
                b.usable_by,
                b.buffer_type
            );
            let buffer = new_buffer(&mut *self.types[index], size as usize);
            // SAFETY: `new_buffer` returns a live buffer.
            unsafe {
                (*buffer).usage = match b.usage {
                    Usage::Any => 0,
                    Usage::Weights => 1,
                    Usage::Compute => 2,
                }
            };
            self.buffers.push(buffer);
        }
        Ok(())
    }

    fn find_type(&self, name: &str) -> Option<usize> {
        self.type_contexts.iter().position(|c| c.name.as_bytes() == name.as_bytes())
    }

    fn add_type(&mut self, context: TypeContext) -> *mut ffi::buffer_type {
        let mut context = Box::new(context);
        let mut t =
            Box::new(ffi::buffer_type { iface: BUFFER_TYPE, device: null_mut(), context: (&raw mut *context).cast() });
        let pointer = &raw mut *t;
        self.types.push(t);
        self.type_contexts.push(context);
        pointer
    }

    /// Lets every back end keep tensors until nodes have run: pairs of tensors.
    pub fn keep(&mut self, pairs: impl Iterator<Item = (*mut ffi::ggml_tensor, *mut ffi::ggml_tensor)>) {
        for (tensor, until) in pairs {
            self.wishes.entry(until).or_default().push(tensor);
        }
        let wishes = &raw mut *self.wishes;
        self.backends.iter_mut().for_each(|b| b.context = wishes.cast());
    }

    /// The backends as ggml takes them.
    pub fn backend_pointers(&mut self) -> Vec<*mut ffi::backend> {
        self.backends.iter_mut().map(|b| &raw mut **b).collect()
    }

    /// The index of a backend.
    pub fn device_of(&self, backend: *mut ffi::backend) -> Option<usize> {
        self.backends.iter().position(|b| std::ptr::eq(&**b, backend))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for &buffer in &self.buffers {
            // SAFETY: every buffer was made by `ggml_backend_buffer_init` and is freed once.
            unsafe { ffi::ggml_backend_buffer_free(buffer) };
        }
    }
}

/// What a tensor takes on a device with padded rows, by the rule of FORMAT.md.
pub fn padded_size(tensor: &ffi::ggml_tensor) -> usize {
    // SAFETY: plain queries of a tensor's type and extents.
    unsafe {
        let dtype = tensor.type_ as c_int;
        let rest = tensor.ne[0] as u64 % ROW_PADDING;
        let padding = if ffi::ggml_is_quantized(dtype) && rest != 0 {
            ffi::ggml_row_size(dtype, (ROW_PADDING - rest) as i64)
        } else {
            0
        };
        ffi::ggml_nbytes(tensor) + padding
    }
}

const BUFFER_TYPE: ffi::buffer_type_i = ffi::buffer_type_i {
    get_name: Some(type_name),
    alloc_buffer: Some(alloc_buffer),
    alloc_buffer_n: None,
    get_alignment: Some(type_alignment),
    get_max_size: Some(type_max_size),
    get_alloc_size: Some(type_alloc_size),
    get_alloc_size_n: None,
    is_host: Some(type_is_host),
};

const BUFFER: ffi::buffer_i = ffi::buffer_i {
    free_buffer: None,
    get_base: Some(buffer_base),
    init_tensor: None,
    memset_tensor: None,
    set_tensor: None,
    get_tensor: None,
    set_tensor_2d: None,
    get_tensor_2d: None,
    cpy_tensor: None,
    clear: None,
    reset: None,
};

const DEVICE: ffi::device_i = ffi::device_i {
    get_name: Some(device_name),
    get_description: Some(device_name),
    get_memory: None,
    get_type: Some(device_type),
    get_props: None,
    init_backend: None,
    get_buffer_type: Some(device_buffer_type),
    get_host_buffer_type: None,
    buffer_from_host_ptr: None,
    supports_op: Some(supports_op),
    supports_buft: Some(supports_buft),
    offload_op: Some(offload_op),
    event_new: None,
    event_free: None,
    event_synchronize: None,
};

// SAFETY of all callbacks: ggml passes back the pointers that `World` made, whose contexts live as long as the world.

unsafe fn type_context<'a>(t: *mut ffi::buffer_type) -> &'a TypeContext {
    unsafe { &*(*t).context.cast::<TypeContext>() }
}

unsafe fn device_context<'a>(d: *mut ffi::device) -> &'a DeviceContext {
    unsafe { &*(*d).context.cast::<DeviceContext>() }
}

unsafe extern "C" fn type_name(t: *mut ffi::buffer_type) -> *const c_char {
    unsafe { type_context(t) }.name.as_ptr()
}

unsafe extern "C" fn alloc_buffer(t: *mut ffi::buffer_type, size: usize) -> *mut ffi::buffer {
    new_buffer(t, size)
}

unsafe extern "C" fn type_alignment(t: *mut ffi::buffer_type) -> usize {
    unsafe { type_context(t) }.alignment
}

unsafe extern "C" fn type_max_size(t: *mut ffi::buffer_type) -> usize {
    unsafe { type_context(t) }.max_size
}

unsafe extern "C" fn type_alloc_size(t: *mut ffi::buffer_type, tensor: *const ffi::ggml_tensor) -> usize {
    unsafe {
        if type_context(t).padded_rows {
            return padded_size(&*tensor);
        }
        ffi::ggml_nbytes(tensor)
    }
}

unsafe extern "C" fn type_is_host(t: *mut ffi::buffer_type) -> bool {
    unsafe { type_context(t) }.host
}

unsafe extern "C" fn buffer_base(b: *mut ffi::buffer) -> *mut c_void {
    unsafe { (*b).context }
}

unsafe extern "C" fn backend_name(b: *mut ffi::backend) -> *const c_char {
    unsafe { device_name((*b).device) }
}

unsafe extern "C" fn graph_optimize(b: *mut ffi::backend, graph: *mut ffi::cgraph, params: *mut ffi::optimize_params) {
    let (wishes, graph, params) = unsafe { (&*(*b).context.cast::<Wishes>(), &*graph, &*params) };
    let nodes = unsafe { std::slice::from_raw_parts(graph.nodes, graph.n_nodes as usize) };
    for until in nodes {
        for &tensor in wishes.get(until).into_iter().flatten() {
            unsafe { (params.add_alloc_dep)(params.user_data, tensor, *until) };
        }
    }
}

unsafe extern "C" fn device_name(d: *mut ffi::device) -> *const c_char {
    unsafe { device_context(d) }.name.as_ptr()
}

unsafe extern "C" fn device_type(d: *mut ffi::device) -> c_int {
    match unsafe { device_context(d) }.kind {
        DeviceKind::Cpu => 0,
        DeviceKind::Gpu => 1,
    }
}

unsafe extern "C" fn device_buffer_type(d: *mut ffi::device) -> *mut ffi::buffer_type {
    unsafe { device_context(d) }.buffer_type
}

unsafe extern "C" fn supports_op(d: *mut ffi::device, op: *const ffi::ggml_tensor) -> bool {
    use llama_cpp_sys_2 as sys;
    let (device, op) = unsafe { (device_context(d), &*op) };
    if device.unsupported.is_empty() {
        return true;
    }
    let family = matches!(op.op, sys::GGML_OP_UNARY | sys::GGML_OP_GLU);
    !device.unsupported.contains(&OpNumber(op.op, family.then_some(op.op_params[0] as u32)))
}

unsafe extern "C" fn supports_buft(d: *mut ffi::device, t: *mut ffi::buffer_type) -> bool {
    unsafe { type_context(t).usable_by & device_context(d).bit != 0 }
}

unsafe extern "C" fn offload_op(d: *mut ffi::device, op: *const ffi::ggml_tensor) -> bool {
    use llama_cpp_sys_2 as sys;
    let (device, op) = unsafe { (device_context(d), &*op) };
    let batch = match op.op {
        sys::GGML_OP_GET_ROWS => 0,
        sys::GGML_OP_MUL_MAT => op.ne[1],
        sys::GGML_OP_MUL_MAT_ID | sys::GGML_OP_ROPE => op.ne[2],
        _ => op.ne[1] * op.ne[2] * op.ne[3],
    };
    device.kind == DeviceKind::Gpu && batch >= OFFLOAD_BATCH
}

/// A buffer whose address range nobody else has.
fn new_buffer(t: *mut ffi::buffer_type, size: usize) -> *mut ffi::buffer {
    static NEXT: AtomicUsize = AtomicUsize::new(1 << 40);
    let base = NEXT.fetch_add((size + (2 << 20)) & !((1 << 20) - 1), Ordering::Relaxed);
    // SAFETY: the buffer type outlives the buffer; the base is an address only.
    unsafe { ffi::ggml_backend_buffer_init(t, BUFFER, base as *mut c_void, size) }
}

/// ggml's number of an operation, and its number in the unary or GLU family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpNumber(pub u32, pub Option<u32>);

/// The number of the op that ggml (or the file) calls `name`.
pub fn op_number(name: &str) -> anyhow::Result<OpNumber> {
    use llama_cpp_sys_2 as sys;
    let of = |count: u32, name_of: unsafe extern "C" fn(c_int) -> *const c_char| {
        // SAFETY: ggml's name tables are static strings, and the numbers are below the count.
        (0..count).find(|&i| unsafe { std::ffi::CStr::from_ptr(name_of(i as c_int)) }.to_bytes() == name.as_bytes())
    };
    let unary = || of(sys::GGML_UNARY_OP_COUNT, ffi::ggml_unary_op_name);
    let glu = || of(sys::GGML_GLU_OP_COUNT, ffi::ggml_glu_op_name);
    (of(sys::GGML_OP_COUNT, ffi::ggml_op_name).map(|op| OpNumber(op, None)))
        .or_else(|| unary().map(|i| OpNumber(sys::GGML_OP_UNARY, Some(i))))
        .or_else(|| glu().map(|i| OpNumber(sys::GGML_OP_GLU, Some(i))))
        .with_context(|| format!("ggml has no op {name}"))
}

/// The number of the element type that ggml calls `name`.
pub fn type_number(name: &str) -> anyhow::Result<u32> {
    use llama_cpp_sys_2 as sys;
    (0..sys::GGML_TYPE_COUNT)
        .find(|&i| {
            // SAFETY: the name table has static strings, null for removed types.
            let text = unsafe { ffi::ggml_type_name(i as c_int) };
            !text.is_null() && unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes() == name.as_bytes()
        })
        .with_context(|| format!("ggml has no type {name}"))
}
