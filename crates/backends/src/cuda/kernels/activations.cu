// Activations to 8 bits, for products with blocks: one record (lm_product.h) per row.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_product.h"

// A warp rounds a block of PARTS * 32 values.
template <int PARTS> LM_DEVICE void lm_round_rows(const LmArgs& a) {
    const LmTensor& x = a.src[0];
    LmLong blocks = x.ne[0] / (PARTS * 32), n = blocks * lm_rows(x);
    for (LmLong flat = lm_first() / 32; flat < n; flat += lm_step() / 32) {
        LmIndex at = lm_split(flat, blocks, x.ne[1], x.ne[2]);
        LmLong part = at.at[0] * PARTS;
        float values[PARTS];
        LM_UNROLL
        for (int i = 0; i < PARTS; i++) {
            LmLong element = (part + i) * 32 + (threadIdx.x & 31);
            values[i] = lm_load(x.type, lm_at(x, element, at.at[1], at.at[2], at.at[3]));
        }
        lm_round_block<PARTS>(values, lm_at(a.dst, 0, at.at[1], at.at[2], at.at[3]), x.ne[0], part);
    }
}

// src0: rows of a float type, any strides. dst: records, ne[0] their bytes. i[0]: blocks of 256, not of 32.
extern "C" __global__ void lm_activations(LmArgs a) {
    if (a.i[0]) {
        lm_round_rows<8>(a);
    } else {
        lm_round_rows<1>(a);
    }
}
