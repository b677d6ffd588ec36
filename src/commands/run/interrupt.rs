//! Ctrl-C: the token that is being computed is finished, then the command ends as if it had been asked for no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Exit status of a command that was interrupted, as shells have it.
pub const STATUS: u8 = 130;

#[derive(Debug, Default)]
struct Flags {
    came: AtomicBool,
    /// The command waits for somebody to type: there is nothing to finish.
    idle: AtomicBool,
}

/// Whether Ctrl-C was pressed. A second one ends the command at once.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Flags>);

impl Interrupt {
    /// Listens from now on, in a thread of its own: a press after this is heard. Where the system gives no such thread,
    /// Ctrl-C keeps its usual effect.
    #[must_use]
    pub fn listen() -> Self {
        let this = Self::default();
        let flags = Arc::clone(&this.0);
        let (unready, ready) = channel::<()>();
        // Without the thread nobody listens.
        drop(std::thread::Builder::new().name("interrupt".into()).spawn(move || listen(&flags, unready)));
        // Nothing is ever sent: this ends when the thread listens, or was not made.
        let _ = ready.recv();
        this
    }

    /// Whether it came.
    #[must_use]
    pub fn came(&self) -> bool {
        self.0.came.load(Ordering::Relaxed)
    }

    /// Waits for something while nothing is to be finished; `None` if Ctrl-C came before.
    pub fn while_idle<T>(&self, wait: impl FnOnce() -> Option<T>) -> Option<T> {
        self.0.idle.store(true, Ordering::SeqCst);
        // Who presses it from here on finds `idle`; who did before is found here.
        let outcome = if self.0.came.load(Ordering::SeqCst) { None } else { wait() };
        self.0.idle.store(false, Ordering::SeqCst);
        outcome
    }
}

#[cfg(unix)]
type Presses = tokio::signal::unix::Signal;
#[cfg(windows)]
type Presses = tokio::signal::windows::CtrlC;

#[cfg(unix)]
fn presses() -> std::io::Result<Presses> {
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
}
#[cfg(windows)]
fn presses() -> std::io::Result<Presses> {
    tokio::signal::windows::ctrl_c()
}

fn listen(flags: &Flags, unready: Sender<()>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
    runtime.block_on(async {
        let Ok(mut presses) = presses() else { return };
        drop(unready);
        while presses.recv().await.is_some() {
            let again = flags.came.swap(true, Ordering::SeqCst);
            if again || flags.idle.load(Ordering::SeqCst) {
                std::process::exit(STATUS.into());
            }
        }
    });
}
