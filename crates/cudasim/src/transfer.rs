//! Copies and fills, with the driver's rules on what waits for what.
//!
//! A copy to or from pageable memory takes the bytes at once, or returns only when they are there; between device and
//! pinned memory an asynchronous copy is asynchronous, and a synchronous one waits; copies within devices never wait,
//! whatever they are called.

use std::sync::Arc;

use crate::clock::Clock;
use crate::code::{Code, Outcome};
use crate::mapping::POISON;
use crate::memory::{Astray, Place};
use crate::queue::OpId;
use crate::race::Space;
use crate::shadow::{Actor, Mode};
use crate::sim::Wait;
use crate::state::State;
use crate::task::{Copy, Fill, Source, Task};

/// Whether a call is one of those that wait where the driver's rules let them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// `cuMemcpy…`
    Sync,
    /// `cuMemcpy…Async`
    Async,
}

/// What a function's name says about an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// `D`
    Device,
    /// `H`
    Host,
    /// Either.
    Any,
}

/// A copy as called.
#[derive(Clone, Copy, Debug)]
pub struct CopyCall {
    pub name: &'static str,
    pub to: (Side, u64),
    pub from: (Side, u64),
    pub bytes: usize,
    pub stream: u64,
    pub waits: Waits,
}

impl State {
    fn side(&mut self, name: &str, (side, address): (Side, u64), bytes: u64) -> Outcome<Place> {
        let place = match self.resolve(address, bytes) {
            Ok(place) => place,
            Err(astray) => return Err(self.stray(name, &astray)),
        };
        let fits = match side {
            Side::Any => true,
            Side::Device => !matches!(place, Place::Pageable),
            Side::Host => !matches!(place, Place::Device { .. }),
        };
        if fits && address != 0 {
            return Ok(place);
        }
        let text = format_args!("{name}: {address:#x} is no {} address", format!("{side:?}").to_lowercase());
        Err(self.invalid(Code::INVALID_VALUE, text))
    }

    fn stray(&mut self, name: &str, astray: &Astray) -> Code {
        self.invalid(Code::INVALID_VALUE, format_args!("{name}: {astray}"))
    }

    /// Checks and queues a copy; what the call waits for.
    pub(crate) fn plan_copy(&mut self, call: CopyCall) -> Outcome<Wait> {
        self.here()?;
        let stream = self.stream(call.stream)?;
        if call.bytes == 0 {
            return Ok(Wait::default());
        }
        let len = call.bytes as u64;
        let to = self.side(call.name, call.to, len)?;
        let from = self.side(call.name, call.from, len)?;
        let captured = self.known(stream)?.capture.is_some();
        if captured && call.waits == Waits::Sync {
            return Err(self.capture_forbids(stream, call.name));
        }
        if let (Place::Pinned { space }, false) = (to, captured) {
            self.spoil_target(space, call.to.1, len);
        }
        let source = match from {
            Place::Pageable if captured => Source::Pageable(call.from.1),
            Place::Pageable => Source::Staged(staged(call.from.1, call.bytes)),
            _ => Source::At(call.from.1),
        };
        let op = self.submit(stream, Task::Copy(Copy { to: call.to.1, from: source, len }))?;
        let waits = match (from, to, call.waits) {
            (_, Place::Pageable, _) => true,
            (Place::Pageable, _, _) | (_, _, Waits::Async) => false,
            (Place::Pinned { .. }, _, Waits::Sync) | (_, Place::Pinned { .. }, Waits::Sync) => true,
            (Place::Device { .. }, Place::Device { .. }, Waits::Sync) => false,
        };
        self.after(stream, op.filter(|_| waits))
    }

    /// Poisons pinned memory that a copy will write, if nothing that is queued may still read it.
    fn spoil_target(&mut self, space: Space, start: u64, len: u64) {
        let calls = self.queue.pending().any(|(_, op)| matches!(op.task, Task::Host(_)));
        let host = Actor { epoch: None, clock: self.host.clone(), label: Arc::from("") };
        let Some((shadow, _)) = self.memory.shadow(space) else { return };
        let in_use = !shadow.touch(start, start + len, Mode::Write, &host).is_empty();
        if !calls && !in_use {
            // SAFETY: `resolve` found the range inside live pinned memory, and nothing that is queued touches it.
            unsafe { std::ptr::write_bytes(start as *mut u8, POISON, len as usize) };
        }
    }

    /// A wait for `op`, the last of a stream; none waits for nothing.
    fn after(&self, stream: u64, op: Option<OpId>) -> Outcome<Wait> {
        let Some(op) = op else { return Ok(Wait::default()) };
        let stream = self.known(stream)?;
        let clock: Clock = stream.clock.clone();
        Ok(Wait { ops: vec![op], clock, device: Some(stream.device) })
    }

    /// Checks and queues a fill of `count` times `pattern`; what the call waits for.
    pub(crate) fn plan_fill(
        &mut self,
        name: &str,
        to: u64,
        pattern: &[u8],
        count: usize,
        at: (u64, Waits),
    ) -> Outcome<Wait> {
        self.here()?;
        let (stream, waits) = at;
        let stream = self.stream(stream)?;
        let Some(len) = count.checked_mul(pattern.len()) else {
            return Err(self.invalid(Code::INVALID_VALUE, format_args!("{name} of {count} elements")));
        };
        if len == 0 {
            return Ok(Wait::default());
        }
        if !to.is_multiple_of(pattern.len() as u64) {
            return Err(self.invalid(Code::INVALID_VALUE, format_args!("{name} at unaligned {to:#x}")));
        }
        let place = self.side(name, (Side::Device, to), len as u64)?;
        let fill = Fill { to, pattern: pattern.to_vec(), len: len as u64 };
        let op = self.submit(stream, Task::Fill(fill))?;
        let waits = waits == Waits::Sync && matches!(place, Place::Pinned { .. });
        self.after(stream, op.filter(|_| waits))
    }

    /// Checks that the contexts of a peer copy are those of its addresses.
    pub(crate) fn check_peers(&mut self, ends: [(u64, u64); 2], bytes: usize) -> Outcome<()> {
        for (address, context) in ends {
            let device = self.context(context)?;
            let place = self.side("cuMemcpyPeer", (Side::Device, address), bytes as u64)?;
            if !matches!(place, Place::Device { device: owner, .. } if owner == device) {
                let text = format_args!("cuMemcpyPeer: {address:#x} does not belong to cuda:{device}");
                return Err(self.invalid(Code::INVALID_VALUE, text));
            }
        }
        Ok(())
    }
}

fn staged(address: u64, bytes: usize) -> Vec<u8> {
    // SAFETY: the caller of the driver promises that many readable bytes at a host address.
    unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }.to_vec()
}
