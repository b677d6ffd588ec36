//! Test: ranges that the search takes for alike are alike in what it goes by, whatever was learned.
#![allow(clippy::unwrap_used)]

use super::arenas::{Arenas, Learned};
use super::core::{Arena, Span, SpanClass};
use super::costs::Costs;
use crate::commands::input::PolicyArg;
use crate::engine::Model;
use crate::plan::Choices;
use crate::plan::fit::Request;
use crate::plan::fit::speeds::{ASSUMED_GPU, ASSUMED_HOST};
use loadmaster_graph::Bytes;
use loadmaster_sched::Machine;
use std::collections::BTreeMap;
use std::path::Path;

/// Devices of the row, the host among them.
const DEVICES: u64 = 3;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn span(&mut self, items: usize) -> Span {
        let device = self.below(DEVICES) as usize;
        let start = if device == 0 { 0 } else { self.below(items as u64 + 1) as usize };
        // Short ranges are told apart most.
        let longest = if self.below(2) == 0 { 4 } else { items as u64 };
        let end = (start + self.below(longest + 1) as usize).min(items);
        Span { device, start, end, away: self.below(2) == 0, hosted: self.below(2) == 0 }
    }
}

/// What a real model costs.
fn costs(name: &str) -> Costs {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/goldens/models/headers/{name}.gguf"));
    let (model, placer) = (Model::open(&path).unwrap(), PolicyArg::Best.placer());
    let specs = ["sim:24GiB", "sim:24GiB", "cpu:64GiB"].map(|s| s.parse().unwrap());
    let machine = Machine::from_specs(&specs).unwrap();
    let speeds = [ASSUMED_GPU, ASSUMED_GPU, ASSUMED_HOST];
    let (reserve, machine) = (Bytes::ZERO, &machine);
    let request = Request { model: &model, machine, speeds: &speeds, placer: &placer, reserve };
    let choices = Choices { flash_attn: true, ..Choices::of_context(4096) };
    Costs::new(&request, &choices).unwrap()
}

/// Of ranges that end with one item, those of one class have equal arenas, and again with any items more. How many
/// shared a class with another.
fn alike(arenas: &Arenas, items: usize, like: &Span) -> usize {
    let mut classes: BTreeMap<(SpanClass, bool), usize> = BTreeMap::new();
    let mut shared = 0;
    let starts = if like.device == 0 { 0..=0 } else { 0..=like.end };
    for start in starts {
        let class = arenas.class(&Span { start, ..like.clone() });
        let first = *classes.entry((class, start == like.end)).or_insert(start);
        shared += usize::from(first != start);
        for (end, more_away) in (like.end..=items).flat_map(|end| [(end, false), (end, true)]) {
            let away = like.away || more_away && end > like.end;
            let size = |start| arenas.size(&Span { start, end, away, ..like.clone() });
            assert_eq!(size(start), size(first), "{start} and {first}..{end}, {away}, of {like:?}");
        }
    }
    shared
}

#[test]
fn ranges_of_one_class_have_equal_arenas_whatever_is_added_to_them() {
    let mut shared = 0;
    for (name, seed) in [("llama3-8b", 1), ("qwen3-30b-a3b", 2), ("mixtral-8x7b", 3), ("llama3-70b", 4)] {
        let real = costs(name);
        for case in 0..24u64 {
            let mut random = Random((seed << 32 | case).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let mut costs = real.clone();
            if case % 2 == 1 {
                let kinds = 1 + random.below(4);
                for part in &mut costs.parts {
                    (part.floor, part.bytes, part.experts) =
                        (random.below(kinds), random.below(kinds), random.below(kinds));
                }
            }
            let (mut arenas, items) = (Arenas::new(&costs), costs.parts.len());
            for _ in 0..random.below(40) {
                let span = random.span(items);
                let bytes = 100 + random.below(3);
                arenas.learn(&span, Learned { bytes, is_whole: random.below(3) > 0 });
            }
            shared += (0..6).map(|_| alike(&arenas, items, &random.span(items))).sum::<usize>();
        }
    }
    assert!(shared > 1000, "{shared} ranges share their class");
}
