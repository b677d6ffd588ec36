//! What pools have left, or lack.

use loadmaster_graph::{Bytes, IdVec, PoolId};
use loadmaster_sched::Machine;

/// A pool's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// What it has; `None`: not known, and never an obstacle.
    pub capacity: Option<Bytes>,
    /// What is kept free.
    pub reserved: Bytes,
    /// What is taken.
    pub used: Bytes,
}

impl Room {
    /// Bytes that it lacks.
    #[must_use]
    pub fn missing(&self) -> Bytes {
        let wanted = self.used.saturating_add(self.reserved);
        self.capacity.map_or(Bytes::ZERO, |capacity| wanted.saturating_sub(capacity))
    }

    /// Bytes that it has left, below 0 for those that it lacks; `None`: not known.
    #[must_use]
    pub fn left(&self) -> Option<i64> {
        let signed = |bytes: Bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX);
        let capacity = signed(self.capacity?);
        Some(capacity.saturating_sub(signed(self.reserved)).saturating_sub(signed(self.used)))
    }
}

/// The pools of a machine, so much of each taken, and `reserved` bytes kept free in every one.
#[must_use]
pub fn rooms(machine: &Machine, used: &IdVec<PoolId, Bytes>, reserved: Bytes) -> IdVec<PoolId, Room> {
    let room = |(capacity, &used): (Option<Bytes>, &Bytes)| Room { capacity, reserved, used };
    machine.pools().values().map(|pool| pool.capacity).zip(used.values()).map(room).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_what_is_left_below_nothing() {
        let room = |capacity, reserved, used| Room {
            capacity: Some(Bytes(capacity)),
            reserved: Bytes(reserved),
            used: Bytes(used),
        };
        for (room, missing, left) in [
            (room(10, 0, 10), 0, 0),
            (room(10, 1, 10), 1, -1),
            (room(10, 2, 5), 0, 3),
            (room(u64::MAX, u64::MAX, u64::MAX), 0, -i64::MAX),
            (room(0, u64::MAX, u64::MAX), u64::MAX, i64::MIN),
        ] {
            assert_eq!((room.missing(), room.left()), (Bytes(missing), Some(left)), "{room:?}");
        }
        let unknown = Room { capacity: None, reserved: Bytes(1), used: Bytes::MAX };
        assert_eq!((unknown.missing(), unknown.left()), (Bytes::ZERO, None));
    }
}
