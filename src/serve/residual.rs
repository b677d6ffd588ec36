//! What is left of a machine: without lost devices, and with the bytes that are free.

use loadmaster_graph::{Bytes, DeviceId, IdVec, PoolId};
use loadmaster_sched::machine::MachineError;
use loadmaster_sched::{DeviceKind, DeviceSet, Machine, MachineParts};

/// A GPU with less than this is left out: no graph could compute there.
const LEAST: Bytes = Bytes(64 << 10);

/// A part of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Residual {
    /// The part.
    pub machine: Machine,
    /// By device of the part: the device of the whole.
    pub origin: IdVec<DeviceId, DeviceId>,
}

impl Residual {
    /// The devices for which `alive` holds and that have memory left, with `free` bytes by pool of `whole`.
    ///
    /// Errors: nothing is left that could compute.
    pub fn of(
        whole: &Machine,
        free: &IdVec<PoolId, Option<Bytes>>,
        alive: impl Fn(DeviceId) -> bool,
    ) -> Result<Self, MachineError> {
        let has_room = |id| free[whole.compute_type(id).pool].is_none_or(|free| free >= LEAST);
        let stays = |id: DeviceId| alive(id) && (whole.device(id).kind == DeviceKind::Cpu || has_room(id));
        let origin: Vec<DeviceId> = whole.devices().ids().filter(|&id| stays(id)).collect();
        let place = |id: DeviceId| origin.iter().position(|&o| o == id).map(DeviceId::new);
        let mut parts = MachineParts { fallback: place(whole.fallback()), ..whole.parts().clone() };
        parts.devices = origin.iter().map(|&id| whole.device(id).clone()).collect();
        for (pool, left) in parts.pools.values_mut().zip(free.values()) {
            // A pool must hold something; nothing fits into one byte.
            pool.capacity = left.map(|bytes| bytes.max(Bytes(1)));
        }
        for kind in parts.buffer_types.values_mut() {
            kind.usable_by = DeviceSet::from_iter(kind.usable_by.iter().filter_map(place));
            let capacity = parts.pools[kind.pool].capacity;
            kind.max_size = kind.max_size.filter(|&max| capacity.is_none_or(|c| max <= c));
        }
        parts.links = parts
            .links
            .iter()
            .filter_map(|l| Some(loadmaster_sched::machine::Link { from: place(l.from)?, to: place(l.to)?, ..*l }))
            .collect();
        Ok(Self { machine: Machine::new(parts)?, origin: IdVec::from_vec(origin) })
    }

    /// Something by device of the part, by device of the whole; devices that are left out have nothing.
    #[must_use]
    pub fn lift<T: Clone + Default>(&self, whole: &Machine, of: &IdVec<DeviceId, T>) -> IdVec<DeviceId, T> {
        let mut all = IdVec::filled(T::default(), whole.devices().len());
        for (id, value) in of.iter() {
            all[self.origin[id]] = value.clone();
        }
        all
    }
}
