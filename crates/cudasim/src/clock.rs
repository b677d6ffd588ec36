//! Vector clocks: which operations are ordered before which.

/// A chain of operations that run one after the other: a stream, a branch of a graph. All threads of the host together
/// have no lane but a clock: the simulator sees no ordering among them, and takes calls in the order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Lane(pub u32);

/// One operation of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    pub lane: Lane,
    pub tick: u64,
}

/// For each lane, the last operation known to be ordered before. Joins and comparisons are linear in the lanes.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Clock(Vec<u64>);

impl Clock {
    /// The last tick known of `lane`; 0 is none.
    pub fn at(&self, lane: Lane) -> u64 {
        self.0.get(lane.0 as usize).copied().unwrap_or(0)
    }

    /// Everything that `other` knows is ordered before too.
    pub fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Records operation `epoch` itself.
    pub fn set(&mut self, epoch: Epoch) {
        let at = epoch.lane.0 as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] = epoch.tick;
    }

    /// Whether `epoch` is ordered before the holder of this clock.
    pub fn covers(&self, epoch: Epoch) -> bool {
        self.at(epoch.lane) >= epoch.tick
    }

    /// Whether everything known here is known to `other`.
    pub fn within(&self, other: &Clock) -> bool {
        self.0.iter().enumerate().all(|(lane, tick)| *tick <= other.0.get(lane).copied().unwrap_or(0))
    }
}
