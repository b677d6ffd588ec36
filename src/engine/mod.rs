//! A model on a machine: prepared without devices, loaded, and run batch by batch.

mod decode;
pub mod error;
mod graphs;
pub mod load;
pub mod model;
pub mod placed;
pub mod prepare;
pub mod room;
pub mod session;
pub mod settings;

pub use error::EngineError;
pub use load::Progress;
pub use model::Model;
pub use placed::Placed;
pub use prepare::{DeviceNeed, GraphSummary, LinkTraffic, Outlook, Peak, Prepared, prepare, prepare_on, prepare_while};
pub use room::{Room, rooms};
pub use session::{Engine, Reserve};
pub use settings::{ReserveFor, Settings};
