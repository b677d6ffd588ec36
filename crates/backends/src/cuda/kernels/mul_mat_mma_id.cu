// Products with experts for many tokens by matrix units (sm_80 and later).
#include "lm_args.h"
#include "lm_common.h"
#include "lm_product.h"
#include "lm_mma_body.h"

// dst[m, i, t] = sum of src0[., m, expert] * src1[., i mod ne1, t] for the pairs that experts.cu grouped in src2.
#define LM_EXPERTMMAS(name, body, F)                                                          \
    extern "C" __global__ void __launch_bounds__(256) lm_mul_mat_mma_id_##name(LmArgs a) { \
        LmTile t;                                                                        \
        if (lm_expert_tile(a, t)) body<F>(a, t);                                         \
    }
LM_EXPERTMMAS(f16, lm_mma_floats, LmHalves)
LM_EXPERTMMAS(bf16, lm_mma_floats, LmBfloats)
LM_EXPERTMMAS(q4_0, lm_mma_blocks, LmQ4_0)
LM_EXPERTMMAS(q4_1, lm_mma_blocks, LmQ4_1)
LM_EXPERTMMAS(q5_0, lm_mma_blocks, LmQ5_0)
LM_EXPERTMMAS(q5_1, lm_mma_blocks, LmQ5_1)
LM_EXPERTMMAS(q8_0, lm_mma_blocks, LmQ8_0)
LM_EXPERTMMAS(iq4_nl, lm_mma_blocks, LmIq4Nl)
LM_EXPERTMMAS(q2_K, lm_mma_blocks, LmQ2K)
LM_EXPERTMMAS(q3_K, lm_mma_blocks, LmQ3K)
LM_EXPERTMMAS(q4_K, lm_mma_blocks, LmQ4K)
LM_EXPERTMMAS(q5_K, lm_mma_blocks, LmQ5K)
LM_EXPERTMMAS(q6_K, lm_mma_blocks, LmQ6K)
LM_EXPERTMMAS(iq4_xs, lm_mma_blocks, LmIq4Xs)
