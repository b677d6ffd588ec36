//! Who meets whom.

use super::prepared::Live;

/// For every buffer the ones it meets.
pub(super) struct Neighbours {
    starts: Vec<u32>,
    list: Vec<u32>,
}

impl Neighbours {
    /// All pairs that meet. O(n log n + pairs).
    pub fn of(live: &[Live]) -> Self {
        let mut by_birth: Vec<u32> = (0..live.len() as u32).collect();
        by_birth.sort_unstable_by_key(|&i| live[i as usize].first);
        let mut alive: Vec<u32> = Vec::new();
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        let mut starts = vec![0u32; live.len() + 1];
        for &i in &by_birth {
            let birth = live[i as usize].first;
            alive.retain(|&a| live[a as usize].last > birth);
            for &a in &alive {
                pairs.push((i, a));
                starts[a as usize] += 1;
            }
            starts[i as usize] += alive.len() as u32;
            alive.push(i);
        }
        Self::from_pairs(starts, &pairs)
    }

    /// How many pairs meet. O(n + steps).
    pub fn count(live: &[Live]) -> u64 {
        let steps = live.iter().map(|b| b.last).max().unwrap_or(0) as usize;
        let (mut births, mut deaths) = (vec![0u64; steps + 1], vec![0u64; steps + 1]);
        for b in live {
            births[b.first as usize] += 1;
            deaths[b.last as usize] += 1;
        }
        let (mut alive, mut pairs) = (0, 0);
        for (born, died) in births.into_iter().zip(deaths) {
            alive -= died;
            pairs += born * alive + born * born.saturating_sub(1) / 2;
            alive += born;
        }
        pairs
    }

    /// `starts` holds the count of each.
    fn from_pairs(mut starts: Vec<u32>, pairs: &[(u32, u32)]) -> Self {
        let mut sum = 0;
        for s in &mut starts {
            sum += *s;
            *s = sum;
        }
        let mut list = vec![0u32; sum as usize];
        for &(a, b) in pairs {
            starts[a as usize] -= 1;
            list[starts[a as usize] as usize] = b;
            starts[b as usize] -= 1;
            list[starts[b as usize] as usize] = a;
        }
        Self { starts, list }
    }

    #[inline]
    pub fn of_buffer(&self, buffer: u32) -> &[u32] {
        let i = buffer as usize;
        &self.list[self.starts[i] as usize..self.starts[i + 1] as usize]
    }
}
