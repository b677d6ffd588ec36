//! Functions of the host in streams. One thread of the simulator calls them, in order of their queueing and without the
//! lock, since they may take locks that callers of the driver hold. They may not call the driver.
//!
//! A function may tell another thread that its stream came this far, which the simulator cannot see. So the host counts
//! as knowing what comes before a function as soon as it is called: an order that really is there is never a race, but
//! where nobody listens to the function a missing wait after it may go unseen.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Once;
use std::thread;

use crate::code::{Code, Outcome};
use crate::queue::OpId;
use crate::sim::{Simulator, simulator};
use crate::state::State;
use crate::task::{HostFunction, Task};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a host function.
pub fn inside() -> bool {
    INSIDE.get()
}

/// Starts the thread that calls host functions, once. It ends with the process.
pub fn start() -> Outcome<()> {
    static STARTED: Once = Once::new();
    let mut outcome = Ok(());
    STARTED.call_once(|| {
        let builder = thread::Builder::new().name("cudasim-host".to_owned());
        outcome = builder.spawn(|| serve(simulator())).map(|_| ()).map_err(|_| Code::OUT_OF_MEMORY);
    });
    outcome
}

fn serve(simulator: &Simulator) {
    let mut state = simulator.lock();
    loop {
        let Some((id, function)) = state.next_host_function() else {
            simulator.changed.wait(&mut state);
            continue;
        };
        let age = state.age;
        drop(state);
        INSIDE.set(true);
        // SAFETY: whoever queued the function promised that it can be called with its data until it was called.
        unsafe { (function.function)(function.data as *mut c_void) };
        INSIDE.set(false);
        state = simulator.lock();
        if state.age == age {
            state.queue.retire(id);
            simulator.changed.notify_all();
        }
    }
}

impl State {
    /// Queues a host function.
    pub(crate) fn launch_host(&mut self, stream: u64, function: HostFunction) -> Outcome<()> {
        self.here()?;
        let stream = self.stream(stream)?;
        start()?;
        self.submit(stream, Task::Host(function))?;
        Ok(())
    }

    /// The host function queued first, with all that comes before it run. Those of dead devices are dropped.
    fn next_host_function(&mut self) -> Option<(OpId, HostFunction)> {
        loop {
            let found = self.queue.pending().find_map(|(id, op)| match op.task {
                Task::Host(function) => Some((id, op.device, op.deps.clone(), function)),
                _ => None,
            });
            let (id, device, mut deps, function) = found?;
            self.force(&mut deps);
            if self.alive(device).is_ok() {
                let knows = self.queue.get(id).and_then(|op| op.knows.clone()).unwrap_or_default();
                self.host_learns(&knows);
                return Some((id, function));
            }
            self.queue.retire(id);
        }
    }
}
