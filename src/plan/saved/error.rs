//! Why a plan cannot be used.

use crate::plan::ChoicesError;
use std::path::PathBuf;

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// The file system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The refusal.
        source: std::io::Error,
    },
    /// No plan.
    #[error("{path}: no plan: {why}", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// What was chosen makes no sense.
    #[error(transparent)]
    Choices(#[from] ChoicesError),
    /// Another model.
    #[error("the plan is for another model: its {what} is {planned}, but here it is {found}; plan again for this one")]
    OtherModel {
        /// What differs.
        what: &'static str,
        /// In the plan.
        planned: String,
        /// In the model.
        found: String,
    },
    /// Another machine.
    #[error("the plan is for another machine: {what} is {planned}, but here it is {found}; plan again for this one")]
    OtherMachine {
        /// What differs.
        what: String,
        /// In the plan.
        planned: String,
        /// In the machine.
        found: String,
    },
}
