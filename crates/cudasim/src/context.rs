//! Devices and their primary contexts; the context that is current for each thread.

use std::thread;

use crate::code::{Code, Outcome};
use crate::report::Kind;
use crate::sim::Wait;
use crate::state::{Sort, State};

/// Bits below which a context's handle holds its device.
const CONTEXT: u64 = (Sort::Context as u64) << 40;

/// The handle of a device's primary context.
fn handle_of(device: u32) -> u64 {
    CONTEXT | (u64::from(device) << 4)
}

impl State {
    pub(crate) fn init(&mut self, flags: u32) -> Outcome<()> {
        if flags != 0 {
            return Err(self.invalid(Code::INVALID_VALUE, "cuInit takes no flags"));
        }
        if self.devices.is_empty() {
            return Err(Code::NO_DEVICE);
        }
        self.initialised = true;
        Ok(())
    }

    pub(crate) fn retain(&mut self, ordinal: i32) -> Outcome<u64> {
        self.ready()?;
        let device = self.device(ordinal)?;
        self.alive(device)?;
        self.devices[device as usize].retained += 1;
        Ok(handle_of(device))
    }

    /// What a release waits for: the last one lets everything run that was queued.
    pub(crate) fn plan_release(&mut self, ordinal: i32) -> Outcome<Wait> {
        let device = self.device(ordinal)?;
        match self.devices[device as usize].retained {
            0 => Err(self.invalid(Code::INVALID_CONTEXT, format_args!("cuda:{device} released more than retained"))),
            1 => Ok(Wait { device: None, ..self.everything(device) }),
            _ => Ok(Wait::default()),
        }
    }

    pub(crate) fn release(&mut self, ordinal: i32) -> Outcome<()> {
        let device = self.device(ordinal)?;
        let slot = &mut self.devices[device as usize];
        slot.retained = slot.retained.saturating_sub(1);
        if slot.retained == 0 {
            self.tear_down(device);
        }
        Ok(())
    }

    /// Everything still alive on a device is a leak; then it goes. A dead device takes everything with it, unreported:
    /// nothing could be given back.
    fn tear_down(&mut self, device: u32) {
        let dead = self.devices[device as usize].dead.is_some();
        for line in self.alive_on(device) {
            if !dead {
                self.report.add(Kind::Leak, format_args!("{line}, when the context of cuda:{device} was released"));
            }
        }
        self.memory.drop_device(device);
        let null_stream = self.devices[device as usize].null_stream;
        self.streams.retain(|handle, s| s.device != device || *handle == null_stream);
        self.events.retain(|_, e| e.device != device);
        self.modules.retain(|_, m| m.device != device);
        self.functions.retain(|_, f| f.device != device);
        self.execs.retain(|_, e| e.device != device);
        self.captures.retain(|_, c| c.device != device);
        self.graphs.retain(|_, g| g.device != device);
        self.blas.retain(|_, b| b.device != device);
        let slot = &mut self.devices[device as usize];
        slot.dead = None;
        slot.used = 0;
        slot.peers.clear();
        // Access to a context ends with it.
        self.devices.iter_mut().for_each(|other| {
            other.peers.remove(&device);
        });
    }

    /// What is alive on a device, one line each.
    pub(crate) fn alive_on(&self, device: u32) -> Vec<String> {
        let mut lines = self.memory.alive_on(device);
        let null_stream = self.devices[device as usize].null_stream;
        let streams = self.streams.iter().filter(|(h, s)| s.device == device && **h != null_stream && !s.destroyed);
        lines.extend(streams.map(|(_, s)| format!("{} is alive", s.name)));
        let events = self.events.iter().filter(|(_, e)| e.device == device);
        lines.extend(events.map(|(_, e)| format!("{} is alive", e.name)));
        let modules = self.modules.iter().filter(|(_, m)| m.device == device);
        lines.extend(modules.map(|(_, m)| format!("module {} is alive", m.name)));
        let graphs = self.graphs.iter().filter(|(_, g)| g.device == device);
        lines.extend(graphs.map(|(h, _)| format!("graph {h:#x} is alive")));
        let execs = self.execs.iter().filter(|(_, e)| e.device == device);
        lines.extend(execs.map(|(h, _)| format!("instantiated graph {h:#x} is alive")));
        let blas = self.blas.iter().filter(|(_, b)| b.device == device);
        lines.extend(blas.map(|(h, _)| format!("cuBLAS handle {h:#x} is alive")));
        lines
    }

    /// What is alive on any device, contexts first.
    pub(crate) fn live(&self) -> String {
        let mut lines = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            if device.retained > 0 {
                lines.push(format!("context of cuda:{index}, retained {} times", device.retained));
            }
            lines.extend(self.alive_on(index as u32));
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Fails before `cuInit`.
    pub(crate) fn ready(&mut self) -> Outcome<()> {
        if self.initialised {
            return Ok(());
        }
        Err(self.invalid(Code::NOT_INITIALIZED, "a call before cuInit"))
    }

    /// The device whose context a handle means.
    pub(crate) fn context(&mut self, handle: u64) -> Outcome<u32> {
        let device = (handle.wrapping_sub(CONTEXT) >> 4) as usize;
        if handle < CONTEXT || device >= self.devices.len() || handle != handle_of(device as u32) {
            return Err(self.invalid(Code::INVALID_CONTEXT, format_args!("{handle:#x} is no context")));
        }
        if self.devices[device].retained == 0 {
            let text = format_args!("the context of cuda:{device} is not retained");
            return Err(self.invalid(Code::CONTEXT_IS_DESTROYED, text));
        }
        Ok(device as u32)
    }

    /// The current device of this thread, whether or not its context is alive.
    pub(crate) fn current_index(&self) -> Option<u32> {
        self.current.get(&thread::current().id())?.last().copied()
    }

    /// The device of this thread's current context.
    pub(crate) fn here(&mut self) -> Outcome<u32> {
        self.ready()?;
        let Some(device) = self.current_index() else {
            return Err(self.invalid(Code::INVALID_CONTEXT, "a call on a thread without a current context"));
        };
        self.context(handle_of(device))
    }

    pub(crate) fn set_current(&mut self, handle: u64) -> Outcome<()> {
        self.ready()?;
        let device = if handle == 0 { None } else { Some(self.context(handle)?) };
        let stack = self.current.entry(thread::current().id()).or_default();
        stack.pop();
        stack.extend(device);
        Ok(())
    }

    pub(crate) fn push_current(&mut self, handle: u64) -> Outcome<()> {
        self.ready()?;
        let device = self.context(handle)?;
        self.current.entry(thread::current().id()).or_default().push(device);
        Ok(())
    }

    pub(crate) fn pop_current(&mut self) -> Outcome<u64> {
        self.ready()?;
        match self.current.entry(thread::current().id()).or_default().pop() {
            Some(device) => Ok(handle_of(device)),
            None => Err(self.invalid(Code::INVALID_CONTEXT, "no context to pop")),
        }
    }

    /// Handle of the current context; 0 is none.
    pub(crate) fn get_current(&mut self) -> Outcome<u64> {
        self.ready()?;
        Ok(self.current_index().map_or(0, handle_of))
    }

    pub(crate) fn can_access_peer(&mut self, from: i32, to: i32) -> Outcome<i32> {
        let (from, to) = (self.device(from)?, self.device(to)?);
        Ok(i32::from(self.config.peer.contains(&(from, to))))
    }

    pub(crate) fn enable_peer(&mut self, handle: u64, flags: u32) -> Outcome<()> {
        let here = self.here()?;
        let peer = self.context(handle)?;
        if flags != 0 || peer == here {
            return Err(self.invalid(Code::INVALID_VALUE, "peer access takes no flags and another device"));
        }
        if !self.config.peer.contains(&(here, peer)) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        let fresh = self.devices[here as usize].peers.insert(peer);
        if fresh { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    }

    pub(crate) fn disable_peer(&mut self, handle: u64) -> Outcome<()> {
        let here = self.here()?;
        let peer = self.context(handle)?;
        if self.devices[here as usize].peers.remove(&peer) {
            return Ok(());
        }
        Err(self.invalid(Code::PEER_ACCESS_NOT_ENABLED, format_args!("cuda:{here} has no access to cuda:{peer}")))
    }

    /// Free and total bytes of the current device.
    pub(crate) fn mem_info(&mut self) -> Outcome<(u64, u64)> {
        let here = self.here()? as usize;
        let total = self.config.memory[here];
        Ok((total.saturating_sub(self.devices[here].used), total))
    }

    /// The value of a device attribute; 0 for those that mean nothing here.
    pub(crate) fn attribute(&mut self, attribute: i32, ordinal: i32) -> Outcome<i32> {
        let device = self.device(ordinal)?;
        let arch = self.config.arch as i32;
        let value = match attribute {
            1..=3 | 39 => 1024, // threads per block, block x and y, threads per multiprocessor
            4 => 64,            // block z
            5 => i32::MAX,      // grid x
            6 | 7 => 65_535,    // grid y and z
            8 => crate::module::SHARED_DEFAULT as i32,
            97 => crate::module::SHARED_MOST as i32,
            10 => 32,             // warp
            12 => 65_536,         // registers
            13 | 36 => 1_000_000, // clocks
            16 => self.config.multiprocessors as i32,
            19 | 31 | 41 => 1,       // maps host memory, concurrent kernels, unified addressing
            33 => device as i32 + 1, // PCI bus
            37 => 256,               // bus width
            38 => 4 << 20,           // L2
            40 => 2,                 // copy engines
            75 => arch / 10,         // compute capability
            76 => arch % 10,
            81 => 100 << 10, // shared memory of a multiprocessor
            i32::MIN..=0 => return Err(self.invalid(Code::INVALID_VALUE, "no such device attribute")),
            _ => 0,
        };
        Ok(value)
    }
}
