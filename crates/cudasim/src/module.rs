//! Modules and their functions.

use crate::code::{Code, Outcome};
use crate::registry::{HostKernel, kernels};
use crate::state::{Sort, State};
use crate::task::Task;

/// What an image of the simulator begins with; the name of a kernel source follows.
pub const IMAGE: &[u8] = b"loadmaster-cudasim:";

/// Bytes of shared memory that a block may have unless its function is allowed more.
pub const SHARED_DEFAULT: u32 = 48 << 10;

/// Bytes of shared memory that a function can be allowed.
pub const SHARED_MOST: u32 = 99 << 10;

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    pub name: String,
    pub device: u32,
}

/// A function of a module.
pub struct Function {
    pub module: u64,
    pub device: u32,
    pub kernel: &'static HostKernel,
    /// Bytes of dynamic shared memory that a launch may ask for.
    pub shared: u32,
}

/// Attributes of functions, by their number in the driver's header.
mod attribute {
    pub const MAX_THREADS: i32 = 0;
    pub const REGISTERS: i32 = 4;
    pub const MAX_DYNAMIC_SHARED: i32 = 8;
    pub const COUNT: i32 = 16;
}

impl State {
    /// Loads the module that `image` names.
    pub(crate) fn module_load(&mut self, image: &[u8]) -> Outcome<u64> {
        let device = self.here()?;
        let Some(name) = image.strip_prefix(IMAGE) else {
            let text = "a module image of something else than the simulator";
            return Err(self.invalid(Code::NO_BINARY_FOR_GPU, text));
        };
        let name = String::from_utf8_lossy(name).into_owned();
        if !kernels().iter().any(|k| k.source() == name) {
            let why = if kernels().is_empty() { "the simulator was built without kernels" } else { "no such source" };
            return Err(self.invalid(Code::NO_BINARY_FOR_GPU, format_args!("module {name}: {why}")));
        }
        let handle = self.new_handle(Sort::Module);
        self.modules.insert(handle, Module { name, device });
        Ok(handle)
    }

    pub(crate) fn module_unload(&mut self, handle: u64) -> Outcome<()> {
        self.ready()?;
        let Some(module) = self.modules.remove(&handle) else {
            return Err(self.bad_handle(Sort::Module, handle));
        };
        let uses = |task: &Task| matches!(task, Task::Kernel(launch) if launch.module == handle);
        let waiting = self.queue.pending().find(|(_, op)| uses(&op.task)).map(|(_, op)| op.label.clone());
        if let Some(label) = waiting {
            self.invalid(Code::INVALID_HANDLE, format_args!("module {} unloaded before {label} ran", module.name));
        }
        self.functions.retain(|_, f| f.module != handle);
        Ok(())
    }

    pub(crate) fn function(&mut self, module: u64, name: &str) -> Outcome<u64> {
        self.ready()?;
        let Some(found) = self.modules.get(&module) else {
            return Err(self.bad_handle(Sort::Module, module));
        };
        let device = found.device;
        self.alive(device)?;
        let kernel = kernels().iter().find(|k| k.source() == found.name && k.name() == name);
        let kernel = kernel.ok_or(Code::NOT_FOUND)?;
        let handle = self.new_handle(Sort::Function);
        self.functions.insert(handle, Function { module, device, kernel, shared: SHARED_DEFAULT });
        Ok(handle)
    }

    fn known_function(&mut self, handle: u64) -> Outcome<&mut Function> {
        if !self.functions.contains_key(&handle) {
            return Err(self.bad_handle(Sort::Function, handle));
        }
        self.functions.get_mut(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn set_function_attribute(&mut self, handle: u64, attribute: i32, value: i32) -> Outcome<()> {
        self.ready()?;
        let function = self.known_function(handle)?;
        if attribute != attribute::MAX_DYNAMIC_SHARED {
            return Ok(());
        }
        match u32::try_from(value) {
            Ok(bytes) if bytes <= SHARED_MOST => function.shared = bytes.max(SHARED_DEFAULT),
            _ => {
                let text = format_args!("{value} bytes of shared memory for a function");
                return Err(self.invalid(Code::INVALID_VALUE, text));
            }
        }
        Ok(())
    }

    pub(crate) fn function_attribute(&mut self, handle: u64, attribute: i32) -> Outcome<i32> {
        self.ready()?;
        let function = self.known_function(handle)?;
        if !(0..attribute::COUNT).contains(&attribute) {
            return Err(self.invalid(Code::INVALID_VALUE, "no such function attribute"));
        }
        Ok(match attribute {
            attribute::MAX_THREADS => 1024,
            attribute::REGISTERS => 32,
            attribute::MAX_DYNAMIC_SHARED => function.shared as i32,
            _ => 0,
        })
    }
}
