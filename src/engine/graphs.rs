//! Graphs of a model that were built lately: placements of one model mostly ask for the same few.

use loadmaster_models::families::{FamilyError, GraphSpec, ModelGraph};
use parking_lot::Mutex;
use std::sync::Arc;

/// Graphs kept: one for each shape of batch that a placement is planned for, and one to spare. One of 94 layers of experts
/// takes about 3 MB.
const KEPT: usize = 6;

/// The last graphs that were asked for. Lock: a leaf, not held while graphs are built.
#[derive(Debug, Default)]
pub(super) struct Graphs(Mutex<Vec<(GraphSpec, Arc<ModelGraph>)>>);

impl Graphs {
    /// The graph that was built for this, or one built now. O(graphs kept) beside building.
    pub(super) fn get_or_build(
        &self,
        spec: GraphSpec,
        build: impl FnOnce(&GraphSpec) -> Result<ModelGraph, FamilyError>,
    ) -> Result<Arc<ModelGraph>, FamilyError> {
        if let Some(found) = self.find(&spec) {
            return Ok(found);
        }
        let built = Arc::new(build(&spec)?);
        let mut kept = self.0.lock();
        kept.truncate(KEPT - 1);
        kept.insert(0, (spec, Arc::clone(&built)));
        Ok(built)
    }

    fn find(&self, spec: &GraphSpec) -> Option<Arc<ModelGraph>> {
        let mut kept = self.0.lock();
        let at = kept.iter().position(|(of, graph)| serves(of, graph, spec))?;
        let found = kept.remove(at);
        let graph = Arc::clone(&found.1);
        kept.insert(0, found);
        Some(graph)
    }
}

/// Whether a graph that was built for one spec is that of another.
fn serves(of: &GraphSpec, graph: &ModelGraph, spec: &GraphSpec) -> bool {
    let but_homes = |s: &GraphSpec| (s.shape, s.layout, s.attention, s.homes.layers.len());
    but_homes(of) == but_homes(spec) && (of.homes == spec.homes || !graph.shares_weights)
}
