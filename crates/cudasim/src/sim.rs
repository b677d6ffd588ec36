//! The one simulation of this process and the way into it.
//!
//! Every driver call takes the one lock, counts itself, meets its injected failure if there is one, does its work and
//! lets some queued operations run. Operations run on the calling thread under the lock; host functions run on a thread
//! of their own without it, since they may take locks that a caller holds. No other lock is taken under this one.

use std::fmt;
use std::sync::OnceLock;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::Clock;
use crate::code::{Code, Outcome};
use crate::config::{Config, Trace};
use crate::fault::{Fault, Lasting, Met, Skipped, When, plain};
use crate::queue::{Forced, OpId};
use crate::report::Kind;
use crate::state::State;

/// The variable that configures the simulation of a process.
pub const VARIABLE: &str = "LOADMASTER_CUDASIM";

/// What a call waits for before it returns, and what the host knows then.
#[derive(Default, Debug)]
pub struct Wait {
    /// Operations that must have run.
    pub ops: Vec<OpId>,
    /// What is ordered before the return.
    pub clock: Clock,
    /// Device whose death fails the call.
    pub device: Option<u32>,
}

/// The simulation and the condition on which calls wait for host functions.
pub struct Simulator {
    state: Mutex<State>,
    /// Signalled when a host function was queued or has returned.
    pub(crate) changed: Condvar,
}

/// The simulation of this process, configured by [`VARIABLE`] at the first use.
pub fn simulator() -> &'static Simulator {
    static SIMULATOR: OnceLock<Simulator> = OnceLock::new();
    SIMULATOR.get_or_init(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        Simulator { state: Mutex::new(State::from_text(&text)), changed: Condvar::new() }
    })
}

impl State {
    /// A machine as the text says; a text that says nothing clear gives a machine without devices, and a report.
    fn from_text(text: &str) -> State {
        match Config::parse(text) {
            Ok(config) => State::new(config),
            Err(e) => {
                let mut state = State::new(Config { memory: Vec::new(), ..Config::default() });
                state.report.add(Kind::Invalid, e);
                state
            }
        }
    }
}

/// Calls that give something back. They do so even when they are made to fail: the driver reports failures of earlier
/// work through them.
fn gives_back(name: &str) -> bool {
    let name = plain(name);
    ["Free", "Destroy", "Release", "Unload", "Unregister", "EndCapture"].iter().any(|verb| name.contains(verb))
}

/// Calls that a dead device does not concern.
fn concerns_no_device(name: &str) -> bool {
    const NAMES: [&str; 6] =
        ["cuInit", "cuDriverGetVersion", "cuCtxSetCurrent", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"];
    NAMES.contains(&plain(name)) || name.starts_with("cuDevice")
}

impl Simulator {
    /// The state.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Starts again as `text` says: all handles and pointers of before are void.
    pub fn configure(&self, text: &str) -> Result<(), crate::config::ConfigError> {
        let config = Config::parse(text)?;
        let mut state = self.lock();
        let age = state.age + 1;
        *state = State::new(config);
        state.age = age;
        Ok(())
    }

    /// A driver call that returns without waiting.
    pub fn call<T>(&self, name: &'static str, body: impl FnOnce(&mut State) -> Outcome<T>) -> Outcome<T> {
        self.call_after(name, |_| Ok(Wait::default()), body)
    }

    /// A driver call that queues or names operations, waits for them, and then does `body`.
    pub fn call_after<T>(
        &self,
        name: &'static str,
        plan: impl FnOnce(&mut State) -> Outcome<Wait>,
        body: impl FnOnce(&mut State) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut state = self.lock();
        if crate::host::inside() {
            return Err(state.invalid(Code::NOT_PERMITTED, format_args!("{name} inside a host function")));
        }
        let met = state.faults.count(name);
        state.tell(format_args!("call {name}"));
        state.skipping = met == Met::Skip;
        let failure = match met {
            Met::Fault(fault) => state.strike(fault),
            _ if concerns_no_device(name) => None,
            _ => state.current_device_death(),
        };
        if let Some(code) = failure.filter(|_| !gives_back(name)) {
            return Err(code);
        }
        if failure.is_some() && plain(name) == "cuStreamEndCapture" {
            // The capture ends, but there is no graph that its caller could give back.
            state.spoil_all();
        }
        let result = self.run(&mut state, plan, body);
        drop(state);
        failure.map_or(result, Err)
    }

    fn run<T>(
        &self,
        state: &mut MutexGuard<'_, State>,
        plan: impl FnOnce(&mut State) -> Outcome<Wait>,
        body: impl FnOnce(&mut State) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut wait = plan(state)?;
        // Waits of streams are left out where the call itself does its work.
        if wait.device.is_some() && state.skips(&wait.clock, &Clock::default()) {
            wait = Wait { device: wait.device, ..Wait::default() };
        }
        while let Forced::Blocked = state.force(&mut wait.ops) {
            self.changed.notify_all();
            // The lock is given up while a host function runs.
            self.changed.wait(state);
        }
        state.host_learns(&wait.clock);
        if let Some(device) = wait.device {
            state.alive(device)?;
        }
        let result = body(state);
        state.late = None;
        state.progress();
        result
    }
}

impl State {
    /// Applies a failure; the code that the call returns now, if it fails now.
    fn strike(&mut self, fault: Fault) -> Option<Code> {
        if fault.when == When::Late {
            self.late = Some(fault.code);
            return None;
        }
        if fault.lasting == Lasting::Sticky
            && let Some(device) = self.current_index()
        {
            self.kill(device, fault.code);
        }
        Some(fault.code)
    }

    /// Whether the call under way is a wait that is left out. `orders` is what it would order before what knows `known`
    /// and all that the host knows.
    pub(crate) fn skips(&mut self, orders: &Clock, known: &Clock) -> bool {
        if !std::mem::take(&mut self.skipping) {
            return false;
        }
        let mut known = known.clone();
        known.join(&self.host);
        let became = if orders.within(&known) { Skipped::Redundant } else { Skipped::Missed };
        self.skipped = self.skipped.max(became);
        true
    }

    /// Says what happens, if that is asked for.
    pub(crate) fn tell(&self, what: fmt::Arguments<'_>) {
        if self.config.trace == Trace::Stderr {
            eprintln!("cudasim: {what}");
        }
    }

    fn current_device_death(&self) -> Option<Code> {
        self.devices.get(self.current_index()? as usize)?.dead
    }
}
