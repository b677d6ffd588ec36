// Products for many columns, where a GPU has no matrix units for them: the threads' own arithmetic.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_product.h"
#include "lm_tile_body.h"

// dst[m, n, j, k] = sum of src0[., m, j / r2, k / r3] * src1[., n, j, k].
#define LM_TILES(name, body, F) \
    extern "C" __global__ void __launch_bounds__(256) lm_mul_mat_tile_##name(LmArgs a) { body<F>(a, lm_tile(a)); }
LM_TILES(f32, lm_tile_floats, LmF32)
LM_TILES(f16, lm_tile_floats, LmF16)
LM_TILES(bf16, lm_tile_floats, LmBf16)
LM_TILES(q4_0, lm_tile_blocks, LmQ4_0)
LM_TILES(q4_1, lm_tile_blocks, LmQ4_1)
LM_TILES(q5_0, lm_tile_blocks, LmQ5_0)
LM_TILES(q5_1, lm_tile_blocks, LmQ5_1)
LM_TILES(q8_0, lm_tile_blocks, LmQ8_0)
LM_TILES(iq4_nl, lm_tile_blocks, LmIq4Nl)
LM_TILES(q2_K, lm_tile_blocks, LmQ2K)
LM_TILES(q3_K, lm_tile_blocks, LmQ3K)
LM_TILES(q4_K, lm_tile_blocks, LmQ4K)
LM_TILES(q5_K, lm_tile_blocks, LmQ5K)
LM_TILES(q6_K, lm_tile_blocks, LmQ6K)
LM_TILES(iq4_xs, lm_tile_blocks, LmIq4Xs)
