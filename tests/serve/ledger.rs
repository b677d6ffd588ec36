//! The ledger against brute force.

use loadmaster::engine::DeviceNeed;
use loadmaster::serve::ledger::{Holding, Idle, Ledger};
use loadmaster_graph::{Bytes, DeviceId, IdVec, PoolId};
use loadmaster_sched::{DeviceSpec, Machine};

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

fn machine() -> Machine {
    let specs: Vec<DeviceSpec> = ["sim:1000", "sim:600"].iter().map(|s| s.parse().unwrap()).collect();
    Machine::from_specs(&specs).unwrap()
}

fn holding(machine: &Machine, random: &mut Random, most: u64) -> Holding {
    let need = |_: DeviceId| DeviceNeed { weights: Bytes(1 + random.below(most)), ..DeviceNeed::default() };
    Holding::new(machine, machine.devices().ids().map(need).collect())
}

fn fits(needed: &Holding, free: &IdVec<PoolId, Option<Bytes>>) -> bool {
    needed.pools.iter().all(|(pool, need)| free[pool].is_none_or(|f| *need <= f))
}

#[test]
fn who_must_go_is_what_trying_all_sets_finds() {
    let machine = machine();
    let mut random = Random(6);
    let (mut some, mut none, mut nobody) = (0, 0, 0);
    for round in 0..3000 {
        let mut ledger = Ledger::new(&machine);
        let count = random.below(8);
        for i in 0..count {
            let most = 5 * (1 + random.below(60));
            let held = holding(&machine, &mut random, most);
            let _ = ledger.enter(&format!("m{i}"), held);
        }
        let ids: Vec<String> = ledger.holdings().keys().filter(|_| random.below(5) > 0).cloned().collect();
        let idle: Vec<Idle> = ids.into_iter().map(|id| Idle { id, idle_ms: random.below(4) }).collect();
        let needed = holding(&machine, &mut random, 1100);
        let before = format!("{ledger:?}");
        let found = ledger.who_must_go(&idle, |free| fits(&needed, free));
        assert_eq!(before, format!("{ledger:?}"), "the query changed something");
        let key = |gone: &[&Idle]| {
            let bytes: u64 = gone.iter().map(|i| ledger.holdings()[&i.id].total().get()).sum();
            let idle: u64 = gone.iter().map(|i| i.idle_ms).sum();
            (bytes, std::cmp::Reverse(idle))
        };
        let sets = (0u32..1 << idle.len()).map(|bits| {
            idle.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, m)| m).collect::<Vec<&Idle>>()
        });
        let enough = |gone: &Vec<&Idle>| {
            let gone: Vec<String> = gone.iter().map(|i| i.id.clone()).collect();
            fits(&needed, &ledger.free_without(&gone))
        };
        let best = sets.filter(enough).map(|gone| key(&gone)).min();
        let got = found.as_ref().map(|gone| {
            let gone: Vec<&Idle> = idle.iter().filter(|i| gone.contains(&i.id)).collect();
            assert!(enough(&gone), "round {round}: {gone:?} are not enough");
            key(&gone)
        });
        assert_eq!(got.map(|k| k.0), best.map(|k| k.0), "round {round}: bytes");
        assert_eq!(got, best, "round {round}: idle time");
        match found {
            None => none += 1,
            Some(gone) if gone.is_empty() => nobody += 1,
            Some(_) => some += 1,
        }
    }
    assert!(some > 300 && none > 300 && nobody > 300, "{some} {none} {nobody}");
}

#[test]
fn no_sequence_of_entries_holds_more_than_a_pool_has() {
    let machine = machine();
    let mut random = Random(66);
    let mut ledger = Ledger::new(&machine);
    let mut refused = 0;
    for _ in 0..5000 {
        let id = format!("m{}", random.below(9));
        if random.below(3) == 0 {
            ledger.strike(&id);
            assert!(!ledger.holdings().contains_key(&id));
            continue;
        }
        let held = holding(&machine, &mut random, 400);
        let before = ledger.holdings().get(&id).cloned();
        if ledger.enter(&id, held.clone()) {
            assert_eq!(ledger.holdings()[&id], held);
        } else {
            refused += 1;
            assert_eq!(ledger.holdings().get(&id).cloned(), before, "a refused entry changed the ledger");
        }
        for (pool, _) in machine.pools().iter() {
            let sum: Bytes = ledger.holdings().values().map(|h| h.pools[pool]).sum();
            assert_eq!(ledger.used(pool), sum);
            assert!(ledger.capacity(pool).is_none_or(|c| sum <= c));
        }
    }
    assert!(refused > 500, "{refused}");
}
