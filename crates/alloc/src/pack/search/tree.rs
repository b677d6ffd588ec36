//! The search tree for one capacity: which item to branch on, independent goals, and the way back.

use super::instance::Instance;
use super::memo::{Memo, Signature};
use super::orders::Order;
use super::state::{Conflict, Mark, State};

/// How a search ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Outcome {
    /// Offsets by item.
    Found(Vec<u64>),
    /// No packing exists.
    Exhausted,
    /// The node limit was reached, or the caller asked to stop.
    Limit,
}

/// Where to branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Focus {
    /// The lowest item.
    Lowest,
    /// The lowest item at the clique with the highest bound, of equals the one with the most conflicts so far.
    Tightest,
}

/// Items that must all be placed, independent of the other goals.
#[derive(Clone, Copy, Debug)]
struct Goal {
    /// Range of [`Tree::arena`].
    start: u32,
    end: u32,
    /// The choice to reconsider if this goal fails; `None`: there is no packing.
    parent: Option<u32>,
    /// The goal to reach after this one.
    next: Option<u32>,
    signature: u128,
}

/// A placement whose alternative (postponing the item) is still open.
#[derive(Clone, Copy, Debug)]
struct Choice {
    item: u32,
    goal: Goal,
    mark: Mark,
    arena: usize,
    goals: usize,
}

pub(in super::super) struct Tree<'a> {
    instance: &'a Instance,
    state: State<'a>,
    memo: Memo,
    arena: Vec<u32>,
    goals: Vec<Goal>,
    choices: Vec<Choice>,
    parts: Vec<(u64, u32, u32)>,
}

/// How often `stop` is asked.
const NODES_BETWEEN_STOPS: u64 = 4096;

impl<'a> Tree<'a> {
    pub fn new(instance: &'a Instance) -> Self {
        Self {
            instance,
            state: State::new(instance),
            memo: Memo::new(),
            arena: Vec::new(),
            goals: Vec::new(),
            choices: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Searches below `capacity` for at most `limit` nodes; of equally low items the first in `order` comes first. Returns the
    /// nodes too.
    pub fn search(
        &mut self,
        capacity: u64,
        focus: Focus,
        order: &Order,
        limit: u64,
        stop: &mut dyn FnMut() -> bool,
    ) -> (Outcome, u64) {
        self.memo.clear();
        self.arena.clear();
        self.goals.clear();
        self.choices.clear();
        if self.state.reset(capacity).is_err() {
            return (Outcome::Exhausted, 1);
        }
        let root = Goal { start: 0, end: self.instance.items.len() as u32, parent: None, next: None, signature: 0 };
        self.arena.extend(0..root.end);
        let Some(mut goal) = self.split(root) else { return (Outcome::Found(Vec::new()), 1) };
        let mut nodes = 0;
        loop {
            if nodes >= limit || (nodes % NODES_BETWEEN_STOPS == NODES_BETWEEN_STOPS - 1 && stop()) {
                return (Outcome::Limit, nodes);
            }
            nodes += 1;
            let step = match self.select(goal, focus, order) {
                Some(item) => self.place(goal, item, order),
                None => Err(self.fail(goal)),
            };
            let failed = match step {
                Ok(Some(next)) if self.memo.contains(next.signature) => next.parent,
                Ok(Some(next)) => {
                    goal = next;
                    continue;
                }
                Ok(None) => return (Outcome::Found(self.state.offsets()), nodes),
                Err(parent) => parent,
            };
            match self.reconsider(failed, order) {
                Some(next) => goal = next,
                None => return (Outcome::Exhausted, nodes),
            }
        }
    }

    /// Records that a goal fails; the choice to reconsider.
    fn fail(&mut self, goal: Goal) -> Option<u32> {
        self.memo.insert(goal.signature);
        goal.parent
    }

    /// Goes back to a choice, or further, until postponing is possible. `None`: nothing is left to try.
    fn reconsider(&mut self, mut failed: Option<u32>, order: &Order) -> Option<Goal> {
        loop {
            let choice = self.choices[failed? as usize];
            self.state.rewind(choice.mark);
            self.arena.truncate(choice.arena);
            self.goals.truncate(choice.goals);
            self.choices.truncate(failed? as usize);
            match self.state.postpone(choice.item, order) {
                Ok(()) => return Some(choice.goal),
                Err(Conflict) => failed = self.fail(choice.goal),
            }
        }
    }

    /// Places an item. Ok: the next goal, `None` if all are reached. Err: the choice to reconsider.
    fn place(&mut self, goal: Goal, item: u32, order: &Order) -> Result<Option<Goal>, Option<u32>> {
        let mut parent = goal.parent;
        if self.state.has_alternative(item) {
            parent = Some(self.choices.len() as u32);
            self.choices.push(Choice {
                item,
                goal,
                mark: self.state.mark(),
                arena: self.arena.len(),
                goals: self.goals.len(),
            });
        }
        match self.state.place(item, &self.arena[goal.start as usize..goal.end as usize], order) {
            Ok(()) => Ok(self.split(Goal { parent, ..goal })),
            Err(Conflict) => Err(parent),
        }
    }

    /// The item to branch on: it does not wait, and no item it meets is lower. `None`: the goal cannot be reached.
    fn select(&mut self, goal: Goal, focus: Focus, order: &Order) -> Option<u32> {
        let state = &self.state;
        let key = |state: &State, i: u32| (state.low(i), order.rank[i as usize]);
        let items = &self.arena[goal.start as usize..goal.end as usize];
        let mut item = match focus {
            Focus::Lowest => items.iter().copied().filter(|&i| !state.is_waiting(i)).min_by_key(|&i| key(state, i))?,
            Focus::Tightest => {
                let members = state.cliques.open_members(self.tightest(items)?);
                members.iter().copied().min_by_key(|&i| key(state, i))?
            }
        };
        loop {
            // The twins that come before an item are as low; what it waits for is lower.
            while let Some(twin) = order.twin_below(item)
                && !self.state.is_placed(twin)
            {
                item = twin;
            }
            if self.state.is_waiting(item) {
                self.state.wait_on(item, order).ok()?;
            }
            let low = self.state.low(item);
            let lower = self.state.open_neighbours(item).filter(|&y| self.state.low(y) < low);
            match lower.min_by_key(|&i| key(&self.state, i)) {
                Some(lower) => item = lower,
                None => return Some(item),
            }
        }
    }

    fn tightest(&self, items: &[u32]) -> Option<u32> {
        let mut best: Option<((u64, u64), u32)> = None;
        let mut reach = 0;
        for &i in items {
            let item = &self.instance.items[i as usize];
            for clique in item.first.max(reach)..item.last {
                let key = (self.state.cliques.level(clique), self.state.cliques.conflicts(clique));
                if best.is_none_or(|(b, _)| key > b) {
                    best = Some((key, clique));
                }
            }
            reach = reach.max(item.last);
        }
        best.map(|(_, clique)| clique)
    }

    /// Splits what is left of a goal where nothing crosses. The tightest part is the next goal.
    fn split(&mut self, goal: Goal) -> Option<Goal> {
        self.parts.clear();
        let mut part = self.arena.len() as u32;
        let (mut reach, mut level) = (0, 0);
        for k in goal.start..goal.end {
            let i = self.arena[k as usize];
            if self.state.is_placed(i) {
                continue;
            }
            let item = &self.instance.items[i as usize];
            let here = self.arena.len() as u32;
            if item.first >= reach && here > part {
                self.parts.push((level, part, here));
                (part, level) = (here, 0);
            }
            for clique in item.first.max(reach)..item.last {
                level = level.max(self.state.cliques.level(clique));
            }
            reach = reach.max(item.last);
            self.arena.push(i);
        }
        let here = self.arena.len() as u32;
        if here > part {
            self.parts.push((level, part, here));
        }
        self.parts.sort_unstable();
        let mut next = goal.next;
        for k in 0..self.parts.len() {
            let (_, start, end) = self.parts[k];
            let mut signature = Signature::new();
            for &i in &self.arena[start as usize..end as usize] {
                signature.add(i, self.state.signature(i));
            }
            self.goals.push(Goal { start, end, parent: goal.parent, next, signature: signature.get() });
            next = Some(self.goals.len() as u32 - 1);
        }
        next.map(|n| self.goals[n as usize])
    }
}
