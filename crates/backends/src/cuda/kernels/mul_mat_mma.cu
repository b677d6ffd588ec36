// Products for many columns by matrix units (sm_80 and later).
#include "lm_args.h"
#include "lm_common.h"
#include "lm_product.h"
#include "lm_mma_body.h"

// dst[m, n, j, k] = sum of src0[., m, j / r2, k / r3] * src1[., n, j, k].
#define LM_MMAS(name, body, F) \
    extern "C" __global__ void __launch_bounds__(256) lm_mul_mat_mma_##name(LmArgs a) { body<F>(a, lm_tile(a)); }
LM_MMAS(f16, lm_mma_floats, LmHalves)
LM_MMAS(bf16, lm_mma_floats, LmBfloats)
LM_MMAS(q4_0, lm_mma_blocks, LmQ4_0)
LM_MMAS(q4_1, lm_mma_blocks, LmQ4_1)
LM_MMAS(q5_0, lm_mma_blocks, LmQ5_0)
LM_MMAS(q5_1, lm_mma_blocks, LmQ5_1)
LM_MMAS(q8_0, lm_mma_blocks, LmQ8_0)
LM_MMAS(iq4_nl, lm_mma_blocks, LmIq4Nl)
LM_MMAS(q2_K, lm_mma_blocks, LmQ2K)
LM_MMAS(q3_K, lm_mma_blocks, LmQ3K)
LM_MMAS(q4_K, lm_mma_blocks, LmQ4K)
LM_MMAS(q5_K, lm_mma_blocks, LmQ5K)
LM_MMAS(q6_K, lm_mma_blocks, LmQ6K)
LM_MMAS(iq4_xs, lm_mma_blocks, LmIq4Xs)
