//! Opening models: by path, or the one in the program.

use super::error::EngineError;
use super::graphs::Graphs;
use loadmaster_backends::mmap;
use loadmaster_models::SharedBytes;
use loadmaster_models::families::{self, GraphSpec, ModelGraph};
use loadmaster_models::gguf::Gguf;
use loadmaster_models::hparams::HParams;
use std::path::Path;
use std::sync::Arc;

/// What the embedded model is called.
pub const EMBEDDED_NAME: &str = "alice-Q8_0 (embedded)";

/// Bytes at an address that kernels can compute on in place.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// A small model, trained on Alice's Adventures in Wonderland, which is in the public domain.
static EMBEDDED: &Aligned<[u8]> = &Aligned(*include_bytes!("../../assets/alice-Q8_0.gguf"));

/// A model's file and hyper-parameters.
#[derive(Debug)]
pub struct Model {
    /// What it is called, for people.
    pub name: String,
    /// The file.
    pub file: Gguf,
    /// The hyper-parameters.
    pub params: HParams,
    graphs: Graphs,
}

impl Model {
    /// Maps a model's file, or all files of a split model. Errors: unreadable or broken files, an architecture that is
    /// not supported.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let file = Gguf::open(path, mmap)?;
        Self::of(path.display().to_string(), file)
    }

    /// The model in the program.
    pub fn embedded() -> Result<Self, EngineError> {
        let bytes: SharedBytes = Arc::new(&EMBEDDED.0);
        Self::of(EMBEDDED_NAME.to_owned(), Gguf::from_bytes(bytes)?)
    }

    /// A model from a file that is open already.
    pub fn of(name: String, file: Gguf) -> Result<Self, EngineError> {
        let params = HParams::from_gguf(&file)?;
        Ok(Self { name, file, params, graphs: Graphs::default() })
    }

    /// A graph of the model. The last few are kept. Errors: those of [`families::build`].
    pub fn graph(&self, spec: GraphSpec) -> Result<Arc<ModelGraph>, EngineError> {
        Ok(self.graphs.get_or_build(spec, |spec| families::build(&self.file, &self.params, spec))?)
    }
}
