//! Failures on demand, and the count of calls that they need.

use std::collections::BTreeMap;

use crate::code::Code;

/// When a failure shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// The call itself returns the code.
    Now,
    /// The call succeeds; the operation that it queued fails when it runs, which kills the device.
    Late,
}

/// How long a failure lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lasting {
    /// One call.
    Once,
    /// The current device is dead from then on: every call that concerns it returns the code.
    Sticky,
}

/// One failure on demand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Function without version suffix; none is any function.
    function: Option<String>,
    /// Which call of it, from 1.
    nth: u64,
    /// What it returns.
    pub code: Code,
    /// When it shows.
    pub when: When,
    /// How long it lasts.
    pub lasting: Lasting,
}

/// A wait that is left out: the call returns success and orders nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skip {
    function: String,
    nth: u64,
}

impl Skip {
    /// Reads `NAME:N`, where `NAME` is a function that waits.
    pub fn parse(text: &str) -> Result<Skip, &'static str> {
        const WAITS: [&str; 4] = ["cuStreamWaitEvent", "cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize"];
        let (name, nth) = text.split_once(':').ok_or("says not which call is left out, such as cuStreamWaitEvent:3")?;
        let nth = nth.parse().ok().filter(|n| *n >= 1).ok_or("says not which call is left out, from 1")?;
        if !WAITS.contains(&name) {
            return Err("names no function that waits");
        }
        Ok(Skip { function: name.to_owned(), nth })
    }
}

/// What became of the wait that was left out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Skipped {
    /// None was.
    Nothing = 0,
    /// Everything that it would have ordered was ordered already.
    Redundant = 1,
    /// It would have ordered something.
    Missed = 2,
}

/// What a call meets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Met {
    /// Nothing: it does what it should.
    Nothing,
    /// A failure.
    Fault(Fault),
    /// It is left out.
    Skip,
}

/// A function's name without `_v2` and the like.
pub fn plain(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((plain, version)) if !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit()) => plain,
        _ => name,
    }
}

impl Fault {
    /// Reads `NAME:N`, and after it in any order a code, `sticky`, `late`. `NAME` is a driver function or `any`.
    pub fn parse(text: &str) -> Result<Fault, &'static str> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let nth = parts.next().and_then(|n| n.parse().ok()).filter(|n| *n >= 1);
        let nth = nth.ok_or("says not which call fails, such as cuMemAlloc:3")?;
        if name != "any" && !name.starts_with("cu") {
            return Err("names no driver function, nor any");
        }
        let function = (name != "any").then(|| plain(name).to_owned());
        let code = default_code(name);
        let mut fault = Fault { function, nth, code, when: When::Now, lasting: Lasting::Once };
        for word in parts {
            match word {
                "sticky" => fault.lasting = Lasting::Sticky,
                "late" => fault.when = When::Late,
                code => fault.code = Code::parse(code).ok_or("names no known code, sticky or late")?,
            }
        }
        Ok(fault)
    }
}

/// What a function is most likely to fail with.
fn default_code(name: &str) -> Code {
    match plain(name) {
        "cuMemAlloc" | "cuMemHostAlloc" | "cuMemHostRegister" => Code::OUT_OF_MEMORY,
        "cuLaunchKernel" | "cuGraphLaunch" => Code::LAUNCH_FAILED,
        name if name.starts_with("cublas") => crate::blas::INTERNAL_ERROR,
        _ => Code::UNKNOWN,
    }
}

/// Counts calls and says which of them fail.
#[derive(Default, Debug)]
pub struct Faults {
    list: Vec<Fault>,
    skips: Vec<Skip>,
    calls: BTreeMap<&'static str, u64>,
    total: u64,
}

impl Faults {
    /// Fails what `list` says and leaves out what `skips` says, counting from here.
    pub fn new(list: Vec<Fault>, skips: Vec<Skip>) -> Faults {
        Faults { list, skips, ..Faults::default() }
    }

    /// Counts a call; what it meets.
    pub fn count(&mut self, name: &'static str) -> Met {
        let plain = plain(name);
        let calls = self.calls.entry(plain).or_insert(0);
        *calls += 1;
        self.total += 1;
        let (calls, total) = (*calls, self.total);
        let meets = |f: &&Fault| match &f.function {
            Some(function) => function == plain && f.nth == calls,
            None => f.nth == total,
        };
        if let Some(fault) = self.list.iter().find(meets) {
            return Met::Fault(fault.clone());
        }
        let skipped = self.skips.iter().any(|skip| skip.function == plain && skip.nth == calls);
        if skipped { Met::Skip } else { Met::Nothing }
    }

    /// Calls so far of a function, or of all.
    pub fn calls(&self, name: Option<&str>) -> u64 {
        match name {
            Some(name) => self.calls.get(plain(name)).copied().unwrap_or(0),
            None => self.total,
        }
    }

    /// `name count` lines, sorted by name.
    pub fn listing(&self) -> String {
        self.calls.iter().map(|(name, calls)| format!("{name} {calls}\n")).collect()
    }
}
