// Pairs of a token and an index of it, grouped by the expert that the index names.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_tile.h"

LM_DEVICE int lm_expert_of(const LmTensor& ids, LmLong pair) {
    return *reinterpret_cast<const int*>(lm_at(ids, pair % ids.ne[0], pair / ids.ne[0], 0, 0));
}

// src0: indices into l[0] experts. dst: groups, without the tiles. A block for each expert; each thread looks at a stretch
// of the pairs. Where an index names no expert, the result's column (src1) becomes NaN, and is in no group.
extern "C" __global__ void lm_group_experts(LmArgs a) {
    __shared__ int space[32];
    __shared__ int counts[256];
    LmLong experts = a.l[0], n = a.src[0].ne[0] * a.src[0].ne[1], stretch = (n + blockDim.x - 1) / blockDim.x;
    LmLong from = threadIdx.x * stretch, to = from + stretch < n ? from + stretch : n;
    int expert = static_cast<int>(blockIdx.x), less = 0, equal = 0;
    for (LmLong pair = from; pair < to; pair++) {
        int id = lm_expert_of(a.src[0], pair);
        bool inside = id >= 0 && id < experts;
        less += inside && id < expert;
        equal += id == expert;
        if (inside || expert != 0) continue;
        lm_note_index(a, id);
        float* column = reinterpret_cast<float*>(lm_at(a.src[1], 0, pair % a.src[0].ne[0], pair / a.src[0].ne[0], 0));
        for (LmLong row = 0; row < a.src[1].ne[0]; row++) column[row] = lm_nan();
    }
    counts[threadIdx.x] = equal;
    int start = lm_block_fold(less, LmSum(), 0, space);
    int all = lm_block_fold(equal, LmSum(), 0, space);
    __syncthreads();
    LmGroups g = lm_groups(a.dst.data, experts);
    if (threadIdx.x == 0) {
        g.starts[expert] = start;
        if (expert + 1 == experts) g.starts[experts] = start + all;
    }
    if (equal == 0) return;
    for (unsigned before = 0; before < threadIdx.x; before++) start += counts[before];
    for (LmLong pair = from; pair < to; pair++) {
        if (lm_expert_of(a.src[0], pair) == expert) g.pairs[start++] = static_cast<int>(pair);
    }
}

// dst: groups of l[0] experts, whose tiles are counted by one thread.
extern "C" __global__ void lm_group_tiles(LmArgs a) {
    if (threadIdx.x != 0) return;
    LmLong experts = a.l[0];
    LmGroups g = lm_groups(a.dst.data, experts);
    int tiles = 0;
    for (LmLong e = 0; e < experts; e++) {
        g.tiles[e] = tiles;
        tiles += (g.starts[e + 1] - g.starts[e] + LM_TILE - 1) / LM_TILE;
    }
    g.tiles[experts] = tiles;
}
