// Products with experts for many tokens, where a GPU has no matrix units for them.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_product.h"
#include "lm_tile_body.h"

// dst[m, i, t] = sum of src0[., m, expert] * src1[., i mod ne1, t] for the pairs that experts.cu grouped in src2.
#define LM_EXPERTTILES(name, body, F)                                                          \
    extern "C" __global__ void __launch_bounds__(256) lm_mul_mat_tile_id_##name(LmArgs a) { \
        LmTile t;                                                                         \
        if (lm_expert_tile(a, t)) body<F>(a, t);                                          \
    }
LM_EXPERTTILES(f32, lm_tile_floats, LmF32)
LM_EXPERTTILES(f16, lm_tile_floats, LmF16)
LM_EXPERTTILES(bf16, lm_tile_floats, LmBf16)
LM_EXPERTTILES(q4_0, lm_tile_blocks, LmQ4_0)
LM_EXPERTTILES(q4_1, lm_tile_blocks, LmQ4_1)
LM_EXPERTTILES(q5_0, lm_tile_blocks, LmQ5_0)
LM_EXPERTTILES(q5_1, lm_tile_blocks, LmQ5_1)
LM_EXPERTTILES(q8_0, lm_tile_blocks, LmQ8_0)
LM_EXPERTTILES(iq4_nl, lm_tile_blocks, LmIq4Nl)
LM_EXPERTTILES(q2_K, lm_tile_blocks, LmQ2K)
LM_EXPERTTILES(q3_K, lm_tile_blocks, LmQ3K)
LM_EXPERTTILES(q4_K, lm_tile_blocks, LmQ4K)
LM_EXPERTTILES(q5_K, lm_tile_blocks, LmQ5K)
LM_EXPERTTILES(q6_K, lm_tile_blocks, LmQ6K)
LM_EXPERTTILES(iq4_xs, lm_tile_blocks, LmIq4Xs)
