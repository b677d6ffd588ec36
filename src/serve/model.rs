//! A model of the service: what handlers know of it. The engine is owned by the model's thread.

use super::picture::Picture;
use super::placing::Elsewhere;
use super::worker::Mailbox;
use crate::engine::Model;
use crate::plan::Choices;
use loadmaster_models::chat::{ChatError, ChatTemplate};
use loadmaster_models::tokenizer::Tokenizer;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// How conversations become prompts of the embedded model. It was trained on a book and knows no turns: what is said
/// stands line by line, for it to go on.
pub const EMBEDDED_TEMPLATE: &str = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}";

/// What a model is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It is being brought to its devices.
    Loading,
    /// It answers.
    Ready,
    /// A device was lost; it is being placed on what is left.
    Replacing,
    /// It is going.
    Unloading,
    /// It could not be placed again.
    Failed,
}

impl Phase {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Replacing => "replacing",
            Self::Unloading => "unloading",
            Self::Failed => "failed",
        }
    }
}

/// A model with what is needed to talk to it.
pub struct Opened {
    /// The file.
    pub model: Arc<Model>,
    /// The tokenizer; a model without vocabulary takes tokens only.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// How conversations become prompts, or why they cannot.
    pub template: Result<ChatTemplate, ChatError>,
}

/// How a model was asked to be placed.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) choices: Choices,
    pub(super) elsewhere: Elsewhere,
}

/// A model of the service.
pub struct Entry {
    /// Its id.
    pub id: String,
    /// Seconds since 1970 when it was loaded.
    pub created: u64,
    /// The file, and how to talk to it.
    pub opened: Opened,
    /// How it was asked to be placed.
    pub(super) wish: Wish,
    /// The tokenizer.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Sequences that are decoded together.
    pub slots: usize,
    /// Tokens that a sequence has room for.
    pub room: u32,
    /// What waits for it.
    pub mailbox: Mailbox,
    phase: Mutex<Phase>,
    pinned: AtomicBool,
    picture: Mutex<Arc<Picture>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Entry {
    pub(super) fn new(id: String, opened: Opened, wish: Wish, size: (usize, u32), queue: usize, pinned: bool) -> Self {
        let tokenizer = opened.tokenizer.clone();
        let (slots, room) = size;
        let created = super::opening::seconds();
        Self {
            id,
            created,
            opened,
            wish,
            tokenizer,
            slots,
            room,
            mailbox: Mailbox::new(queue),
            phase: Mutex::new(Phase::Loading),
            pinned: AtomicBool::new(pinned),
            picture: Mutex::default(),
            thread: Mutex::default(),
        }
    }

    /// What it is doing.
    #[must_use]
    pub fn phase(&self) -> Phase {
        *self.phase.lock()
    }
    pub(super) fn set_phase(&self, phase: Phase) {
        *self.phase.lock() = phase;
    }
    /// Whether it never goes for another.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Relaxed)
    }
    pub(super) fn pin(&self, pinned: bool) {
        self.pinned.store(pinned, Ordering::Relaxed);
    }
    /// How it is placed.
    #[must_use]
    pub fn picture(&self) -> Arc<Picture> {
        Arc::clone(&self.picture.lock())
    }
    pub(super) fn set_picture(&self, picture: Picture) {
        let mut held = self.picture.lock();
        let since = picture.since(&held);
        *held = Arc::new(since);
    }
    pub(super) fn set_thread(&self, thread: JoinHandle<()>) {
        *self.thread.lock() = Some(thread);
    }
    /// Waits for its thread to end; what it held is free then. The lock is held meanwhile, so that whoever else waits does
    /// so, too; the thread itself never takes it.
    pub(super) fn join(&self) {
        let mut held = self.thread.lock();
        if let Some(thread) = held.take() {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({}, {:?})", self.id, self.phase())
    }
}
