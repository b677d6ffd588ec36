//! Device memory, pinned host memory, and what an address means.

use std::collections::BTreeMap;
use std::fmt;

use crate::code::{Code, Outcome};
use crate::mapping::Mapping;
use crate::race::Space;
use crate::report::Kind;
use crate::shadow::Shadow;
use crate::state::State;

/// Device addresses begin at multiples of this, as the driver promises.
const ALIGNMENT: u64 = 256;

/// Freed allocations that are remembered, for messages.
const REMEMBERED: usize = 4096;

/// Freed pinned memory that stays mapped and poisoned, so that a late reader sees poison.
const QUARANTINE: usize = 64;

/// Memory of a device: addresses that fault, bytes elsewhere.
#[derive(Debug)]
pub struct Allocation {
    /// `allocation #3`, counted over the process.
    pub name: String,
    pub device: u32,
    pub len: u64,
    /// The bytes.
    pub bytes: Mapping,
    /// Who touched them.
    pub shadow: Shadow,
}

/// Where pinned memory comes from.
#[derive(Debug)]
pub enum Origin {
    /// Mapped by the simulator.
    Ours(Mapping),
    /// The caller's, registered.
    Registered,
}

/// Pinned host memory.
#[derive(Debug)]
pub struct Pinned {
    pub name: String,
    /// Device whose context pinned it.
    pub device: u32,
    pub len: u64,
    pub origin: Origin,
    pub shadow: Shadow,
}

/// All memory that the driver knows of.
#[derive(Default, Debug)]
pub struct Memory {
    device: BTreeMap<u64, Allocation>,
    pinned: BTreeMap<u64, Pinned>,
    freed: BTreeMap<u64, (u64, String)>,
    quarantine: Vec<Mapping>,
    count: u64,
}

/// What an address range means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Inside an allocation of a device.
    Device { space: Space, device: u32 },
    /// Inside pinned memory.
    Pinned { space: Space },
    /// Host memory that the driver knows nothing of.
    Pageable,
}

/// Why an address range is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Astray(String);

impl Astray {
    /// Says what is wrong.
    pub fn new(text: String) -> Astray {
        Astray(text)
    }
}

impl fmt::Display for Astray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn last_at<V>(map: &BTreeMap<u64, V>, address: u64) -> Option<(u64, &V)> {
    map.range(..=address).next_back().map(|(base, value)| (*base, value))
}

impl Memory {
    fn named(&mut self, what: &str) -> String {
        self.count += 1;
        format!("{what} #{}", self.count)
    }

    /// The allocation that begins at `base`.
    pub fn allocation(&mut self, base: u64) -> Option<&mut Allocation> {
        self.device.get_mut(&base)
    }

    /// The device allocation that contains `address`, and where it begins.
    pub fn containing(&self, address: u64) -> Option<(u64, &Allocation)> {
        last_at(&self.device, address).filter(|(base, a)| address < base + a.len)
    }

    /// The shadow and the name of a space.
    pub fn shadow(&mut self, space: Space) -> Option<(&mut Shadow, &str)> {
        match space {
            Space::Device(base) => self.device.get_mut(&base).map(|a| (&mut a.shadow, a.name.as_str())),
            Space::Pinned(base) => self.pinned.get_mut(&base).map(|p| (&mut p.shadow, p.name.as_str())),
        }
    }

    /// Bytes of a space.
    pub fn len(&self, space: Space) -> u64 {
        match space {
            Space::Device(base) => self.device.get(&base).map_or(0, |a| a.len),
            Space::Pinned(base) => self.pinned.get(&base).map_or(0, |p| p.len),
        }
    }

    fn pinned_at(&self, address: u64, len: u64) -> Option<Place> {
        let (base, pinned) = last_at(&self.pinned, address)?;
        let inside = address + len <= base + pinned.len && address < base + pinned.len;
        inside.then_some(Place::Pinned { space: Space::Pinned(base) })
    }

    fn device_at(&self, address: u64, len: u64) -> Result<Option<Place>, Astray> {
        let Some((base, found)) = self.containing(address) else { return Ok(None) };
        let end = address.saturating_add(len);
        if end > base + found.len {
            let (name, total) = (&found.name, found.len);
            return Err(Astray(format!("bytes {}..{} of {name}, which has {total}", address - base, end - base)));
        }
        Ok(Some(Place::Device { space: Space::Device(base), device: found.device }))
    }

    fn astray(&self, address: u64, len: u64) -> Astray {
        match last_at(&self.freed, address).filter(|(base, (size, _))| address < base + size) {
            Some((base, (_, name))) => Astray(format!("{len} bytes at byte {} of freed {name}", address - base)),
            None => Astray(format!("{len} bytes at {address:#x}, which is in no allocation")),
        }
    }

    /// Where the bytes of a device or pinned address really are. The address must be one that [`State::resolve`]
    /// accepted; others are none.
    pub fn real(&self, address: u64) -> Option<*mut u8> {
        if let Some((base, found)) = self.containing(address) {
            return Some(found.bytes.start().wrapping_add((address - base) as usize));
        }
        self.pinned_at(address, 0).map(|_| address as *mut u8)
    }

    /// What is alive of a device, one line each.
    pub fn alive_on(&self, device: u32) -> Vec<String> {
        let allocations = self.device.values().filter(|a| a.device == device);
        let mut lines: Vec<String> = allocations.map(|a| format!("{} of {} bytes is alive", a.name, a.len)).collect();
        let pinned = self.pinned.values().filter(|p| p.device == device);
        lines.extend(pinned.map(|p| format!("{} of {} bytes is alive", p.name, p.len)));
        lines
    }

    /// Everything of a device goes.
    pub fn drop_device(&mut self, device: u32) {
        self.device.retain(|_, a| a.device != device);
        self.pinned.retain(|_, p| p.device != device);
    }

    fn bury(&mut self, base: u64, len: u64, name: String) {
        while self.freed.len() >= REMEMBERED {
            self.freed.pop_first();
        }
        self.freed.insert(base, (len, name));
    }
}

impl State {
    /// What `len` bytes at `address` mean for a copy. Device addresses outside every allocation are an error.
    pub(crate) fn resolve(&self, address: u64, len: u64) -> Result<Place, Astray> {
        if let Some(place) = self.memory.device_at(address, len)? {
            return Ok(place);
        }
        let inside = |d: &crate::state::Device| {
            (d.reservation.base()..d.reservation.base() + d.reservation.size()).contains(&address)
        };
        if self.devices.iter().any(inside) {
            return Err(self.memory.astray(address, len));
        }
        Ok(self.memory.pinned_at(address, len).unwrap_or(Place::Pageable))
    }

    pub(crate) fn mem_alloc(&mut self, bytes: usize) -> Outcome<u64> {
        let device = self.here()?;
        self.not_capturing("cuMemAlloc")?;
        if bytes == 0 {
            return Err(self.invalid(Code::INVALID_VALUE, "an allocation of 0 bytes"));
        }
        let len = bytes as u64;
        let slot = &self.devices[device as usize];
        let (base, used) = (slot.reservation.base() + slot.handed, slot.used);
        // A gap between allocations, so that running over an end never lands in the next.
        let span = (len + ALIGNMENT).next_multiple_of(ALIGNMENT);
        let memory = self.config.memory[device as usize];
        if len > memory || used + len > memory || slot.handed + span > slot.reservation.size() {
            return Err(Code::OUT_OF_MEMORY);
        }
        let bytes = Mapping::new(bytes).ok_or(Code::OUT_OF_MEMORY)?;
        let name = self.memory.named("allocation");
        self.memory.device.insert(base, Allocation { name, device, len, bytes, shadow: Shadow::default() });
        let slot = &mut self.devices[device as usize];
        slot.used += len;
        slot.handed += span;
        Ok(base)
    }

    pub(crate) fn mem_free(&mut self, address: u64) -> Outcome<()> {
        self.here()?;
        if address == 0 {
            return Ok(());
        }
        if !self.memory.device.contains_key(&address) {
            let astray = self.memory.astray(address, 0);
            return Err(self.invalid(Code::INVALID_VALUE, format_args!("cuMemFree of {astray}")));
        }
        self.free_races(Space::Device(address), "cuMemFree");
        let Some(gone) = self.memory.device.remove(&address) else { return Err(Code::INVALID_VALUE) };
        self.check_guards(&gone.name, &gone.bytes);
        let slot = &mut self.devices[gone.device as usize];
        slot.used -= gone.len;
        self.memory.bury(address, gone.len, gone.name);
        Ok(())
    }

    fn check_guards(&mut self, name: &str, bytes: &Mapping) {
        if !bytes.guards_intact() {
            self.report.add(Kind::Memory, format_args!("something wrote outside {name}"));
        }
    }

    pub(crate) fn host_alloc(&mut self, bytes: usize) -> Outcome<u64> {
        let device = self.here()?;
        self.not_capturing("cuMemHostAlloc")?;
        if bytes == 0 {
            return Err(self.invalid(Code::INVALID_VALUE, "a pinned allocation of 0 bytes"));
        }
        let mapping = Mapping::new(bytes).ok_or(Code::OUT_OF_MEMORY)?;
        let base = mapping.start() as u64;
        let name = self.memory.named("pinned memory");
        let origin = Origin::Ours(mapping);
        let pinned = Pinned { name, device, len: bytes as u64, origin, shadow: Shadow::default() };
        self.memory.pinned.insert(base, pinned);
        Ok(base)
    }

    pub(crate) fn host_free(&mut self, address: u64) -> Outcome<()> {
        self.here()?;
        let ours = self.memory.pinned.get(&address).is_some_and(|p| matches!(p.origin, Origin::Ours(_)));
        if !ours {
            let text = format_args!("cuMemFreeHost of {address:#x}, which is no pinned allocation");
            return Err(self.invalid(Code::INVALID_VALUE, text));
        }
        self.free_races(Space::Pinned(address), "cuMemFreeHost");
        let Some(gone) = self.memory.pinned.remove(&address) else { return Err(Code::INVALID_VALUE) };
        if let Origin::Ours(mut mapping) = gone.origin {
            self.check_guards(&gone.name, &mapping);
            mapping.poison();
            self.memory.quarantine.push(mapping);
            let over = self.memory.quarantine.len().saturating_sub(QUARANTINE);
            self.memory.quarantine.drain(..over);
        }
        Ok(())
    }

    pub(crate) fn host_register(&mut self, address: u64, bytes: usize) -> Outcome<()> {
        let device = self.here()?;
        let end = address.checked_add(bytes as u64);
        let (Some(end), true) = (end, address != 0 && bytes != 0) else {
            return Err(self.invalid(Code::INVALID_VALUE, "cuMemHostRegister of nothing"));
        };
        let taken = last_at(&self.memory.pinned, end - 1).is_some_and(|(base, p)| base + p.len > address);
        if taken {
            return Err(self.invalid(Code::HOST_MEMORY_ALREADY_REGISTERED, "cuMemHostRegister of pinned memory"));
        }
        let name = self.memory.named("registered memory");
        let pinned = Pinned { name, device, len: bytes as u64, origin: Origin::Registered, shadow: Shadow::default() };
        self.memory.pinned.insert(address, pinned);
        Ok(())
    }

    pub(crate) fn host_unregister(&mut self, address: u64) -> Outcome<()> {
        self.here()?;
        let registered = self.memory.pinned.get(&address).is_some_and(|p| matches!(p.origin, Origin::Registered));
        if !registered {
            return Err(self.invalid(Code::HOST_MEMORY_NOT_REGISTERED, "cuMemHostUnregister of other memory"));
        }
        self.free_races(Space::Pinned(address), "cuMemHostUnregister");
        self.memory.pinned.remove(&address);
        Ok(())
    }

    /// The device address of pinned memory, which is its own.
    pub(crate) fn host_pointer(&mut self, address: u64) -> Outcome<u64> {
        self.here()?;
        match self.memory.pinned_at(address, 0) {
            Some(_) => Ok(address),
            None => Err(self.invalid(Code::INVALID_VALUE, format_args!("{address:#x} is not pinned"))),
        }
    }
}
