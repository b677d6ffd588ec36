//! A graph file as ggml tensors and a `ggml_cgraph`, restorable after ggml has rewritten it.

use crate::ffi;
use crate::file::{DeviceKind, GraphFile, Tensor};
use crate::world::{self, World};
use anyhow::{Context, ensure};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::size_of;
use std::ptr::null_mut;

/// ggml puts an object header of this size before each tensor of a context; the hash sets see such addresses.
const OBJECT_SIZE: usize = 32;

/// The rebuilt graph.
pub struct Rebuilt {
    /// The tensors. Reached through raw pointers only, because ggml writes to them behind our back.
    arena: *mut u128,
    pristine: Vec<u128>,
    count: usize,
    nodes: Vec<*mut ffi::ggml_tensor>,
    leafs: Vec<*mut ffi::ggml_tensor>,
    pub graph: ffi::cgraph,
}

/// The stride of tensors in the arena.
const STRIDE: usize = size_of::<ffi::ggml_tensor>() + OBJECT_SIZE;

/// Sizes of the existing buffers: every tensor in them, one after the other.
pub fn buffer_sizes(file: &GraphFile) -> Vec<u64> {
    let mut sizes = vec![4096; file.buffers.len()];
    for t in file.tensors.iter().filter(|t| t.view_src.is_none()) {
        if let Some(b) = t.buffer {
            sizes[b as usize] += t.nbytes.next_multiple_of(256) + 256;
        }
    }
    sizes
}

impl Rebuilt {
    /// Rebuilds every tensor of the file. Errors: a name that ggml does not know, a size that it computes otherwise.
    pub fn new(file: &GraphFile, world: &World) -> anyhow::Result<Self> {
        // SAFETY: a constant of the library.
        let overhead = unsafe { ffi::ggml_tensor_overhead() };
        ensure!(overhead == STRIDE, "ggml's tensors take {overhead} bytes, expected {STRIDE}: another version?");
        let words = (file.tensors.len() * STRIDE / 16).max(1);
        let mut this = Self {
            arena: Box::into_raw(vec![0u128; words].into_boxed_slice()).cast(),
            pristine: vec![0; words],
            count: file.tensors.len(),
            nodes: Vec::new(),
            leafs: Vec::new(),
            graph: empty_graph(),
        };
        let mut names = Names::default();
        let mut next = world.buffers.iter().map(|&b| unsafe { (*b).context as usize }).collect::<Vec<_>>();
        for (i, t) in file.tensors.iter().enumerate() {
            let tensor = this.build(t, &mut names).with_context(|| format!("tensor {i} `{}`", t.name))?;
            let tensor = this.place(tensor, t, world, &mut next);
            check_sizes(&tensor, t, file).with_context(|| format!("tensor {i} `{}`", t.name))?;
            // SAFETY: the slot is inside the arena and aligned to 16 bytes.
            unsafe { this.tensor(i as u32).write(tensor) };
        }
        this.nodes = file.nodes.iter().map(|&i| this.tensor(i)).collect();
        this.leafs = file.leafs.iter().map(|&i| this.tensor(i)).collect();
        this.graph.size = this.nodes.len().max(this.leafs.len()) as i32;
        this.graph.n_nodes = this.nodes.len() as i32;
        this.graph.n_leafs = this.leafs.len() as i32;
        this.graph.nodes = this.nodes.as_mut_ptr();
        this.graph.leafs = this.leafs.as_mut_ptr();
        // SAFETY: both are `words` long.
        unsafe { this.pristine.as_mut_ptr().copy_from_nonoverlapping(this.arena, words) };
        Ok(this)
    }

    fn build(&mut self, t: &Tensor, names: &mut Names) -> anyhow::Result<ffi::ggml_tensor> {
        // SAFETY: a tensor of zeros is valid.
        let mut tensor: ffi::ggml_tensor = unsafe { std::mem::zeroed() };
        tensor.type_ = names.dtype(&t.dtype)?;
        tensor.op = names.op(&t.op)?;
        tensor.ne = t.ne.map(|n| n as i64);
        tensor.nb = t.nb.map(|n| n as usize);
        ensure!(t.src.len() <= ffi::MAX_SRC, "ggml has at most {} sources", ffi::MAX_SRC);
        for (slot, src) in tensor.src.iter_mut().zip(&t.src) {
            *slot = src.map_or(null_mut(), |s| self.tensor(s));
        }
        for (slot, &word) in tensor.op_params.iter_mut().zip(&t.op_params) {
            *slot = word as i32;
        }
        for flag in &t.flags {
            tensor.flags |= match flag.as_str() {
                "input" => 1,
                "output" => 2,
                "param" => 4,
                "loss" => 8,
                other => anyhow::bail!("unknown flag {other}"),
            };
        }
        for (slot, byte) in tensor.name.iter_mut().take(63).zip(t.name.bytes()) {
            *slot = byte as _;
        }
        if let Some(root) = t.view_src {
            tensor.view_src = self.tensor(root);
            tensor.view_offs = t.view_offs.unwrap_or(0) as usize;
        }
        Ok(tensor)
    }

    /// Gives a tensor that is in a buffer, or has memory of its own, an address.
    fn place(&self, mut tensor: ffi::ggml_tensor, t: &Tensor, world: &World, next: &mut [usize]) -> ffi::ggml_tensor {
        if let Some(b) = t.buffer {
            tensor.buffer = world.buffers[b as usize].cast();
        }
        if let Some(root) = t.view_src {
            // SAFETY: roots stand before their views, so this slot is written.
            let data = unsafe { (*self.tensor(root)).data };
            if !data.is_null() {
                tensor.data = data.wrapping_byte_add(tensor.view_offs);
            }
            return tensor;
        }
        match t.buffer {
            Some(b) => {
                let place = &mut next[b as usize];
                tensor.data = *place as *mut c_void;
                *place += (t.nbytes.next_multiple_of(256) + 256) as usize;
            }
            None if t.external => tensor.data = 0x1000 as *mut c_void,
            None => {}
        }
        tensor
    }

    /// The address of a tensor.
    pub fn tensor(&self, id: u32) -> *mut ffi::ggml_tensor {
        self.arena.cast::<u8>().wrapping_add(id as usize * STRIDE).cast()
    }

    /// The tensor at an address, if it is one of the file's.
    pub fn id_of(&self, tensor: *const ffi::ggml_tensor) -> Option<u32> {
        let offset = (tensor as usize).checked_sub(self.arena as usize)?;
        (offset % STRIDE == 0 && offset / STRIDE < self.count).then_some((offset / STRIDE) as u32)
    }

    /// Undoes everything that ggml wrote into the tensors.
    pub fn restore(&mut self) {
        // SAFETY: both are equally long, and nobody reads the arena meanwhile.
        unsafe { self.arena.copy_from_nonoverlapping(self.pristine.as_ptr(), self.pristine.len()) };
    }
}

impl Drop for Rebuilt {
    fn drop(&mut self) {
        let slice = std::ptr::slice_from_raw_parts_mut(self.arena, self.pristine.len());
        // SAFETY: made by `Box::into_raw` with this length.
        drop(unsafe { Box::from_raw(slice) });
    }
}

/// A graph without nodes.
pub fn empty_graph() -> ffi::cgraph {
    ffi::cgraph {
        size: 0,
        n_nodes: 0,
        n_leafs: 0,
        nodes: null_mut(),
        grads: null_mut(),
        grad_accs: null_mut(),
        leafs: null_mut(),
        use_counts: null_mut(),
        visited_hash_set: ffi::hash_set { size: 0, used: null_mut(), keys: null_mut() },
        order: 0,
        uid: 0,
    }
}

/// The file's sizes must be those that ggml and the padding rule give.
fn check_sizes(tensor: &ffi::ggml_tensor, t: &Tensor, file: &GraphFile) -> anyhow::Result<()> {
    // SAFETY: a query of type, extents and strides.
    let nbytes = unsafe { ffi::ggml_nbytes(tensor) } as u64;
    ensure!(nbytes == t.nbytes, "nbytes is {nbytes}, the file says {}", t.nbytes);
    for (i, device) in file.devices.iter().enumerate() {
        let padded = device.kind == DeviceKind::Gpu && !device.buffer_type.host;
        let size = if padded { world::padded_size(tensor) as u64 } else { nbytes };
        let said = t.alloc_sizes.as_ref().map_or(t.nbytes, |s| s[i]);
        ensure!(size == said, "alloc size on device {i} is {size}, the file says {said}");
    }
    Ok(())
}

/// Names looked up once.
#[derive(Default)]
struct Names {
    ops: HashMap<String, u32>,
    dtypes: HashMap<String, u32>,
}

impl Names {
    fn op(&mut self, name: &str) -> anyhow::Result<u32> {
        look_up(&mut self.ops, name, |name| Ok(world::op_number(name)?.0))
    }
    fn dtype(&mut self, name: &str) -> anyhow::Result<u32> {
        look_up(&mut self.dtypes, name, world::type_number)
    }
}

fn look_up(known: &mut HashMap<String, u32>, name: &str, find: fn(&str) -> anyhow::Result<u32>) -> anyhow::Result<u32> {
    if let Some(&number) = known.get(name) {
        return Ok(number);
    }
    let number = find(name)?;
    known.insert(name.to_owned(), number);
    Ok(number)
}
