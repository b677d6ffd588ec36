//! What an operation does, what it touches, and doing it.

use std::ffi::c_void;
use std::ptr;

use crate::code::Code;
use crate::launch::Launch;
use crate::memory::{Astray, Place};
use crate::product::Product;
use crate::queue::Op;
use crate::race::Access;
use crate::report::Kind;
use crate::shadow::Mode;
use crate::state::State;

/// Where copied bytes come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A device address or pinned memory, read when the operation runs.
    At(u64),
    /// Pageable memory of a captured copy, read when the operation runs.
    Pageable(u64),
    /// Bytes of pageable memory, taken when the operation was queued.
    Staged(Vec<u8>),
}

/// A copy.
#[derive(Clone, Debug)]
pub struct Copy {
    pub to: u64,
    pub from: Source,
    pub len: u64,
}

/// A fill with a repeated pattern.
#[derive(Clone, Debug)]
pub struct Fill {
    pub to: u64,
    pub pattern: Vec<u8>,
    pub len: u64,
}

/// A function of the host.
#[derive(Clone, Copy, Debug)]
pub struct HostFunction {
    pub function: unsafe extern "C" fn(*mut c_void),
    pub data: u64,
}

/// What an operation does.
#[derive(Clone, Debug)]
pub enum Task {
    /// Nothing; marks a place in a stream, for an event.
    Mark {
        event: Option<u64>,
    },
    Copy(Copy),
    Fill(Fill),
    Kernel(Box<Launch>),
    Product(Box<Product>),
    Host(HostFunction),
}

impl Task {
    /// The call that queues it, for labels.
    pub fn name(&self) -> String {
        match self {
            Task::Mark { .. } => "mark".to_owned(),
            Task::Copy(copy) => format!("copy of {} bytes", copy.len),
            Task::Fill(fill) => format!("fill of {} bytes", fill.len),
            Task::Kernel(launch) => format!("kernel {}", launch.name),
            Task::Product(product) => product.call.to_owned(),
            Task::Host(_) => "host function".to_owned(),
        }
    }
}

impl State {
    /// What a task of `device` touches; why, if it touches what it must not.
    pub(crate) fn accesses(&self, task: &Task, device: u32) -> Result<Vec<Access>, Astray> {
        let mut found = Vec::new();
        match task {
            Task::Mark { .. } | Task::Host(_) => {}
            Task::Copy(copy) => {
                if let Source::At(from) = copy.from {
                    self.range(from, copy.len, Mode::Read, &mut found)?;
                }
                self.range(copy.to, copy.len, Mode::Write, &mut found)?;
            }
            Task::Fill(fill) => self.range(fill.to, fill.len, Mode::Write, &mut found)?,
            Task::Kernel(launch) => return self.kernel_accesses(launch, device),
            Task::Product(product) => return self.product_accesses(product, device),
        }
        Ok(found)
    }

    fn range(&self, start: u64, len: u64, mode: Mode, found: &mut Vec<Access>) -> Result<(), Astray> {
        let space = match self.resolve(start, len)? {
            Place::Device { space, .. } | Place::Pinned { space } => space,
            Place::Pageable => return Ok(()),
        };
        found.push(Access { space, start, end: start + len, mode });
        Ok(())
    }

    /// Runs an operation now.
    pub(crate) fn execute(&mut self, op: Op) {
        /// Nanoseconds that any operation takes, and bytes per nanosecond of a copy or a fill.
        const BASE: u64 = 2_000;
        const RATE: u64 = 10;
        if let Err(astray) = self.accesses(&op.task, op.device) {
            self.report.add(Kind::Memory, format_args!("{} touches {astray} when it runs", op.label));
            self.kill(op.device, Code::ILLEGAL_ADDRESS);
            return;
        }
        self.time += BASE;
        match op.task {
            Task::Mark { event } => self.reached(event),
            Task::Copy(copy) => {
                self.time += copy.len / RATE;
                self.copy(&copy);
            }
            Task::Fill(fill) => {
                self.time += fill.len / RATE;
                self.fill(&fill);
            }
            Task::Kernel(launch) => self.launch(&launch, op.device, &op.label),
            Task::Product(product) => self.multiply(&product),
            Task::Host(_) => {}
        }
    }

    /// The time of an event, if its mark has just run.
    fn reached(&mut self, event: Option<u64>) {
        let time = self.time;
        if let Some(event) = event.and_then(|e| self.events.get_mut(&e)) {
            event.time = time;
        }
    }

    fn real_or_pageable(&self, address: u64) -> *mut u8 {
        self.memory.real(address).unwrap_or(address as *mut u8)
    }

    fn copy(&mut self, copy: &Copy) {
        let to = self.real_or_pageable(copy.to);
        let from = match &copy.from {
            Source::At(from) | Source::Pageable(from) => self.real_or_pageable(*from).cast_const(),
            Source::Staged(bytes) => bytes.as_ptr(),
        };
        // SAFETY: `accesses` found both ranges inside live memory just now; pageable memory is the caller's promise, as
        // with the real driver. The ranges may overlap.
        unsafe { ptr::copy(from, to, copy.len as usize) };
        if self.corrupts(copy) {
            // SAFETY: `copy.len` bytes at `to` were just written; a path that corrupts is asked about copies of ≥ 1 byte.
            unsafe { *to.add(copy.len as usize / 2) ^= 0x10 };
        }
    }

    /// Whether a copy goes over a direct path that changes bytes: access between the two devices is on.
    fn corrupts(&self, copy: &Copy) -> bool {
        let Source::At(from) = copy.from else { return false };
        let (Ok(Place::Device { device: a, .. }), Ok(Place::Device { device: b, .. })) =
            (self.resolve(from, copy.len), self.resolve(copy.to, copy.len))
        else {
            return false;
        };
        let direct = self.devices[a as usize].peers.contains(&b) || self.devices[b as usize].peers.contains(&a);
        copy.len > 0 && direct && self.config.corrupt.contains(&(a, b))
    }

    fn fill(&mut self, fill: &Fill) {
        let to = self.real_or_pageable(fill.to);
        for at in (0..fill.len as usize).step_by(fill.pattern.len().max(1)) {
            // SAFETY: `accesses` found the range inside live memory just now; its length is a multiple of the pattern's.
            unsafe { ptr::copy_nonoverlapping(fill.pattern.as_ptr(), to.add(at), fill.pattern.len()) };
        }
    }
}
