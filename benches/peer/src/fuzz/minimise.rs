//! Makes a differing case small: parts are taken away as long as the difference stays.

use super::Verdict;
use crate::file::GraphFile;
use std::collections::BTreeMap;

type Judge<'a> = dyn FnMut(&GraphFile) -> anyhow::Result<Option<Verdict>> + 'a;

/// The smallest case found, with its verdict. `judge` says whether a case still differs.
pub fn minimise(
    case: GraphFile,
    mut judge: impl FnMut(&GraphFile) -> anyhow::Result<Option<Verdict>>,
) -> anyhow::Result<(GraphFile, Verdict)> {
    let Some(verdict) = judge(&case)? else { anyhow::bail!("the difference does not occur again") };
    let mut m = Minimiser { case, verdict, judge: &mut judge };
    loop {
        let before = m.case.clone();
        m.cut_tail()?;
        m.drop_tensors()?;
        m.simplify_tensors()?;
        m.simplify_rest()?;
        if m.case == before {
            return Ok((m.case, m.verdict));
        }
    }
}

struct Minimiser<'a> {
    case: GraphFile,
    verdict: Verdict,
    judge: &'a mut Judge<'a>,
}

impl Minimiser<'_> {
    /// Takes a smaller case if it still differs.
    fn try_case(&mut self, case: GraphFile) -> anyhow::Result<bool> {
        if case == self.case {
            return Ok(false);
        }
        let Some(verdict) = (self.judge)(&case)? else { return Ok(false) };
        (self.case, self.verdict) = (case, verdict);
        Ok(true)
    }

    /// Drops tensors from the end, half of them, a quarter, …
    fn cut_tail(&mut self) -> anyhow::Result<()> {
        let mut step = self.case.tensors.len() / 2;
        while step > 0 {
            let keep = self.case.tensors.len().saturating_sub(step);
            let mut case = self.case.clone();
            remove(&mut case, &|id| id as usize >= keep);
            if keep == 0 || !self.try_case(case)? {
                step /= 2;
            }
        }
        Ok(())
    }

    /// Drops one tensor at a time; its users read its first source instead, or nothing.
    fn drop_tensors(&mut self) -> anyhow::Result<()> {
        for id in (0..self.case.tensors.len() as u32).rev() {
            for substitute in [None, self.case.tensors[id as usize].src.iter().flatten().next().copied()] {
                let mut case = self.case.clone();
                for t in &mut case.tensors {
                    t.src.iter_mut().filter(|s| **s == Some(id)).for_each(|s| *s = substitute);
                }
                remove(&mut case, &|t| t == id);
                if self.try_case(case)? {
                    break;
                }
            }
        }
        Ok(())
    }

    fn simplify_tensors(&mut self) -> anyhow::Result<()> {
        for id in 0..self.case.tensors.len() {
            for source in (0..self.case.tensors[id].src.len()).rev() {
                let mut case = self.case.clone();
                case.tensors[id].src.remove(source);
                self.try_case(case)?;
            }
            for flag in (0..self.case.tensors[id].flags.len()).rev() {
                let mut case = self.case.clone();
                case.tensors[id].flags.remove(flag);
                self.try_case(case)?;
            }
            let mut case = self.case.clone();
            case.tensors[id].external = false;
            self.try_case(case)?;
            let mut case = self.case.clone();
            case.tensors[id].buffer = None;
            self.try_case(case)?;
            let mut case = self.case.clone();
            case.pinned.remove(&(id as u32));
            self.try_case(case)?;
        }
        Ok(())
    }

    fn simplify_rest(&mut self) -> anyhow::Result<()> {
        let mut case = self.case.clone();
        case.n_copies = 1;
        self.try_case(case)?;
        let mut case = self.case.clone();
        case.op_offload = false;
        self.try_case(case)?;
        let mut case = self.case.clone();
        case.nodes.sort_unstable();
        self.try_case(case)?;
        let mut case = self.case.clone();
        case.leafs.sort_unstable();
        self.try_case(case)?;
        for i in 0..self.case.devices.len() {
            let mut case = self.case.clone();
            case.devices[i].unsupported.clear();
            if !self.try_case(case)? {
                for op in (0..self.case.devices[i].unsupported.len()).rev() {
                    let mut case = self.case.clone();
                    case.devices[i].unsupported.remove(op);
                    self.try_case(case)?;
                }
            }
            let mut case = self.case.clone();
            case.devices[i].buffer_type.max_size = None;
            self.try_case(case)?;
        }
        for wish in (0..self.case.keep_until.len()).rev() {
            let mut case = self.case.clone();
            case.keep_until.remove(wish);
            self.try_case(case)?;
        }
        for buffer in (0..self.case.buffers.len() as u32).rev() {
            let mut case = self.case.clone();
            remove_buffer(&mut case, buffer);
            self.try_case(case)?;
        }
        for device in (0..self.case.devices.len().saturating_sub(1) as u32).rev() {
            let mut case = self.case.clone();
            remove_device(&mut case, device);
            self.try_case(case)?;
        }
        Ok(())
    }
}

/// Takes tensors out and numbers the others anew. Views of what goes go too.
fn remove(case: &mut GraphFile, gone: &dyn Fn(u32) -> bool) {
    let is_gone = |t: &crate::file::Tensor| gone(t.id) || t.view_src.is_some_and(gone);
    let mut number = BTreeMap::new();
    for t in case.tensors.iter().filter(|t| !is_gone(t)) {
        number.insert(t.id, number.len() as u32);
    }
    case.tensors.retain(|t| number.contains_key(&t.id));
    for t in &mut case.tensors {
        t.id = number[&t.id];
        t.view_src = t.view_src.map(|root| number[&root]);
        for s in &mut t.src {
            *s = s.and_then(|s| number.get(&s).copied());
        }
    }
    let renumber = |list: &mut Vec<u32>| *list = list.iter().filter_map(|id| number.get(id).copied()).collect();
    renumber(&mut case.nodes);
    renumber(&mut case.leafs);
    case.pinned = case.pinned.iter().filter_map(|(t, &d)| Some((*number.get(t)?, d))).collect();
    let wish = |(t, until): &(u32, u32)| Some((*number.get(t)?, *number.get(until)?));
    case.keep_until = case.keep_until.iter().filter_map(wish).collect();
}

/// Takes a buffer out if no tensor is in it.
fn remove_buffer(case: &mut GraphFile, buffer: u32) {
    if case.tensors.iter().any(|t| t.buffer == Some(buffer)) {
        return;
    }
    case.buffers.remove(buffer as usize);
    for (i, b) in case.buffers.iter_mut().enumerate() {
        b.id = i as u32;
    }
    for b in case.tensors.iter_mut().filter_map(|t| t.buffer.as_mut()) {
        *b -= u32::from(*b > buffer);
    }
}

/// Takes a device out, with the buffers that only it can use; tensors there lose their buffer.
fn remove_device(case: &mut GraphFile, device: u32) {
    case.devices.remove(device as usize);
    let moved = |d: u32| (d != device).then(|| d - u32::from(d > device));
    for b in &mut case.buffers {
        b.usable_by = b.usable_by.iter().filter_map(|&d| moved(d)).collect();
    }
    for id in (0..case.buffers.len() as u32).rev() {
        if !case.buffers[id as usize].usable_by.is_empty() {
            continue;
        }
        case.tensors.iter_mut().filter(|t| t.buffer == Some(id)).for_each(|t| t.buffer = None);
        remove_buffer(case, id);
    }
    case.pinned = case.pinned.iter().filter_map(|(&t, &d)| Some((t, moved(d)?))).collect();
    super::generate::set_alloc_sizes(case);
}
