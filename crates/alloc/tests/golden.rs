//! Plans of the golden graphs under the reference's policy: every size and every offset.

#[path = "support/golden.rs"]
mod golden;

use loadmaster_alloc::{BufferIds, Placer, plan};
use loadmaster_graph::{Bytes, GraphFile};

#[test]
fn every_offset_and_size_of_every_golden_graph_is_the_references() {
    let mut checked = 0;
    for path in golden::paths() {
        let file = GraphFile::read_path(&path).unwrap();
        let golden = golden::lowered(&file);
        let ids = BufferIds::Each { nodes: &golden.node_ids, leafs: &golden.leaf_ids };
        let plan = plan(&golden.graph, &golden.arenas, ids, &Placer::Ggml).unwrap();
        let (Some(sizes), Some(places)) = (&golden.sizes, &golden.places) else { continue };
        let found: Vec<Bytes> = plan.buffer_sizes().values().copied().collect();
        assert_eq!(&found, sizes, "{}", path.display());

        for &(item, expected) in places {
            let found = plan.placement(item).map(|p| (p.arena.index(), p.chunk.index(), p.offset, p.size));
            let expected = expected.map(|p| (p.buffer.index(), p.chunk as usize, p.offset, p.size));
            assert_eq!(found, expected, "{}: {item}", path.display());
        }
        checked += 1;
    }
    assert_eq!(checked, 106);
}
