//! ggml's internal structs, as of llama-cpp-sys-2 0.1.161 (ggml-backend-impl.h, ggml-impl.h, and the private structs of
//! ggml-backend.cpp and ggml-alloc.c). Only valid for that version: Cargo.toml pins it.

#![allow(non_camel_case_types)]

pub use llama_cpp_sys_2::ggml_tensor;
use std::ffi::{c_char, c_int, c_void};

pub const MAX_SRC: usize = 10;
pub const MAX_BACKENDS: usize = 16;
pub const MAX_COPIES: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct buffer_type_i {
    pub get_name: Option<unsafe extern "C" fn(*mut buffer_type) -> *const c_char>,
    pub alloc_buffer: Option<unsafe extern "C" fn(*mut buffer_type, usize) -> *mut buffer>,
    pub alloc_buffer_n: Option<unsafe extern "C" fn()>,
    pub get_alignment: Option<unsafe extern "C" fn(*mut buffer_type) -> usize>,
    pub get_max_size: Option<unsafe extern "C" fn(*mut buffer_type) -> usize>,
    pub get_alloc_size: Option<unsafe extern "C" fn(*mut buffer_type, *const ggml_tensor) -> usize>,
    pub get_alloc_size_n: Option<unsafe extern "C" fn()>,
    pub is_host: Option<unsafe extern "C" fn(*mut buffer_type) -> bool>,
}

#[repr(C)]
pub struct buffer_type {
    pub iface: buffer_type_i,
    pub device: *mut device,
    pub context: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct buffer_i {
    pub free_buffer: Option<unsafe extern "C" fn(*mut buffer)>,
    pub get_base: Option<unsafe extern "C" fn(*mut buffer) -> *mut c_void>,
    pub init_tensor: Option<unsafe extern "C" fn(*mut buffer, *mut ggml_tensor) -> c_int>,
    pub memset_tensor: Option<unsafe extern "C" fn()>,
    pub set_tensor: Option<unsafe extern "C" fn()>,
    pub get_tensor: Option<unsafe extern "C" fn()>,
    pub set_tensor_2d: Option<unsafe extern "C" fn()>,
    pub get_tensor_2d: Option<unsafe extern "C" fn()>,
    pub cpy_tensor: Option<unsafe extern "C" fn()>,
    pub clear: Option<unsafe extern "C" fn(*mut buffer, u8)>,
    pub reset: Option<unsafe extern "C" fn(*mut buffer)>,
}

#[repr(C)]
pub struct buffer {
    pub iface: buffer_i,
    pub buft: *mut buffer_type,
    pub context: *mut c_void,
    pub size: usize,
    pub usage: c_int,
}

/// The backend's functions; none but these two is called while planning.
#[repr(C)]
pub struct backend_i {
    pub get_name: Option<unsafe extern "C" fn(*mut backend) -> *const c_char>,
    pub others: [Option<unsafe extern "C" fn()>; 14],
    pub graph_optimize: Option<unsafe extern "C" fn(*mut backend, *mut cgraph, *mut optimize_params)>,
}

#[repr(C)]
pub struct optimize_params {
    pub add_alloc_dep: unsafe extern "C" fn(*mut c_void, *mut ggml_tensor, *mut ggml_tensor),
    pub user_data: *mut c_void,
}

#[repr(C)]
pub struct backend {
    pub guid: *mut c_void,
    pub iface: backend_i,
    pub device: *mut device,
    pub context: *mut c_void,
}

#[repr(C)]
pub struct device_i {
    pub get_name: Option<unsafe extern "C" fn(*mut device) -> *const c_char>,
    pub get_description: Option<unsafe extern "C" fn(*mut device) -> *const c_char>,
    pub get_memory: Option<unsafe extern "C" fn(*mut device, *mut usize, *mut usize)>,
    pub get_type: Option<unsafe extern "C" fn(*mut device) -> c_int>,
    pub get_props: Option<unsafe extern "C" fn()>,
    pub init_backend: Option<unsafe extern "C" fn()>,
    pub get_buffer_type: Option<unsafe extern "C" fn(*mut device) -> *mut buffer_type>,
    pub get_host_buffer_type: Option<unsafe extern "C" fn()>,
    pub buffer_from_host_ptr: Option<unsafe extern "C" fn()>,
    pub supports_op: Option<unsafe extern "C" fn(*mut device, *const ggml_tensor) -> bool>,
    pub supports_buft: Option<unsafe extern "C" fn(*mut device, *mut buffer_type) -> bool>,
    pub offload_op: Option<unsafe extern "C" fn(*mut device, *const ggml_tensor) -> bool>,
    pub event_new: Option<unsafe extern "C" fn()>,
    pub event_free: Option<unsafe extern "C" fn()>,
    pub event_synchronize: Option<unsafe extern "C" fn()>,
}

#[repr(C)]
pub struct device {
    pub iface: device_i,
    pub reg: *mut c_void,
    pub context: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct hash_set {
    pub size: usize,
    pub used: *mut u32,
    pub keys: *mut *mut ggml_tensor,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct cgraph {
    pub size: c_int,
    pub n_nodes: c_int,
    pub n_leafs: c_int,
    pub nodes: *mut *mut ggml_tensor,
    pub grads: *mut *mut ggml_tensor,
    pub grad_accs: *mut *mut ggml_tensor,
    pub leafs: *mut *mut ggml_tensor,
    pub use_counts: *mut i32,
    pub visited_hash_set: hash_set,
    pub order: c_int,
    pub uid: u64,
}

#[repr(C)]
pub struct sched_split {
    pub backend_id: c_int,
    pub i_start: c_int,
    pub i_end: c_int,
    pub inputs: *mut *mut ggml_tensor,
    pub n_inputs: c_int,
    pub inputs_capacity: c_int,
    pub graph: cgraph,
}

/// The scheduler, up to the last field that the harness reads.
#[repr(C)]
pub struct sched {
    pub is_reset: bool,
    pub is_alloc: bool,
    pub n_backends: c_int,
    pub backends: [*mut backend; MAX_BACKENDS],
    pub bufts: [*mut buffer_type; MAX_BACKENDS],
    pub galloc: *mut gallocr,
    pub hash_set: hash_set,
    pub hv_tensor_backend_ids: *mut c_int,
    pub hv_tensor_copies: *mut *mut ggml_tensor,
    pub node_backend_ids: *mut c_int,
    pub leaf_backend_ids: *mut c_int,
    pub prev_node_backend_ids: *mut c_int,
    pub prev_leaf_backend_ids: *mut c_int,
    pub graph: cgraph,
    pub splits: *mut sched_split,
    pub n_splits: c_int,
    pub splits_capacity: c_int,
    pub n_copies: c_int,
    pub cur_copy: c_int,
    pub next_copy: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct buffer_address {
    pub chunk: c_int,
    pub offset: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tensor_alloc {
    pub buffer_id: c_int,
    pub addr: buffer_address,
    pub size_max: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct node_alloc {
    pub dst: tensor_alloc,
    pub src: [tensor_alloc; MAX_SRC],
}

#[repr(C)]
pub struct gallocr {
    pub bufts: *mut *mut buffer_type,
    pub buffers: *mut *mut c_void,
    pub buf_tallocs: *mut *mut c_void,
    pub n_buffers: c_int,
    pub hash_set: hash_set,
    pub hash_values: *mut c_void,
    pub node_allocs: *mut node_alloc,
    pub n_nodes: c_int,
    pub leaf_allocs: *mut tensor_alloc,
    pub n_leafs: c_int,
}

unsafe extern "C" {
    pub fn ggml_tensor_overhead() -> usize;
    pub fn ggml_nbytes(tensor: *const ggml_tensor) -> usize;
    pub fn ggml_row_size(dtype: c_int, ne: i64) -> usize;
    pub fn ggml_is_quantized(dtype: c_int) -> bool;
    pub fn ggml_type_name(dtype: c_int) -> *const c_char;
    pub fn ggml_op_name(op: c_int) -> *const c_char;
    pub fn ggml_unary_op_name(op: c_int) -> *const c_char;
    pub fn ggml_op_can_inplace(op: c_int) -> bool;
    pub fn ggml_glu_op_name(op: c_int) -> *const c_char;

    pub fn ggml_backend_buffer_init(
        buft: *mut buffer_type,
        iface: buffer_i,
        context: *mut c_void,
        size: usize,
    ) -> *mut buffer;
    pub fn ggml_backend_buft_alloc_buffer_n(
        buft: *mut buffer_type,
        tensors: *mut *mut ggml_tensor,
        n: c_int,
    ) -> *mut buffer;
    pub fn ggml_backend_buffer_free(buffer: *mut buffer);

    pub fn ggml_backend_sched_new(
        backends: *mut *mut backend,
        bufts: *mut *mut buffer_type,
        n_backends: c_int,
        graph_size: usize,
        parallel: bool,
        op_offload: bool,
    ) -> *mut sched;
    pub fn ggml_backend_sched_free(sched: *mut sched);
    pub fn ggml_backend_sched_reset(sched: *mut sched);
    pub fn ggml_backend_sched_split_graph(sched: *mut sched, graph: *mut cgraph);
    pub fn ggml_backend_sched_reserve(sched: *mut sched, graph: *mut cgraph) -> bool;
    pub fn ggml_backend_sched_synchronize(sched: *mut sched);
    pub fn ggml_backend_sched_alloc_graph(sched: *mut sched, graph: *mut cgraph) -> bool;
    pub fn ggml_backend_sched_set_tensor_backend(sched: *mut sched, node: *mut ggml_tensor, backend: *mut backend);
    pub fn ggml_backend_sched_get_tensor_backend(sched: *mut sched, node: *mut ggml_tensor) -> *mut backend;
    pub fn ggml_backend_sched_get_n_splits(sched: *mut sched) -> c_int;
    pub fn ggml_backend_sched_get_n_copies(sched: *mut sched) -> c_int;

    pub fn ggml_gallocr_new_n(bufts: *mut *mut buffer_type, n: c_int) -> *mut gallocr;
    pub fn ggml_gallocr_free(galloc: *mut gallocr);
    pub fn ggml_gallocr_reserve_n(
        galloc: *mut gallocr,
        graph: *mut cgraph,
        node_buffer_ids: *const c_int,
        leaf_buffer_ids: *const c_int,
    ) -> bool;
    pub fn ggml_gallocr_alloc_graph(galloc: *mut gallocr, graph: *mut cgraph) -> bool;
    pub fn ggml_gallocr_get_buffer_size(galloc: *mut gallocr, buffer_id: c_int) -> usize;
}
