// Products with the weights of an expert that an index names: a warp computes one element.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_product.h"

// Grid: x counts rows in groups of as many as a block has warps, y indices of a token, z tokens.
struct LmExpert {
    LmLong row, i, t, x_column;
    const LmByte* weights;
    LmByte* to;
};
LM_DEVICE LmExpert lm_expert(const LmArgs& a) {
    LmExpert e;
    e.row = static_cast<LmLong>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    e.i = blockIdx.y;
    e.t = blockIdx.z;
    e.x_column = e.i % a.src[1].ne[1];
    LmLong id = *reinterpret_cast<const int*>(lm_at(a.src[2], e.i, e.t, 0, 0));
    bool inside = id >= 0 && id < a.src[0].ne[2];
    if (!inside) lm_note_index(a, id);
    e.weights = inside ? lm_at(a.src[0], 0, e.row, id, 0) : nullptr;
    e.to = lm_at(a.dst, e.row, e.i, e.t, 0);
    return e;
}
LM_DEVICE void lm_put_expert(const LmExpert& e, float sum) {
    float total = lm_warp_fold(sum, LmSum());
    if ((threadIdx.x & 31) == 0) *reinterpret_cast<float*>(e.to) = e.weights ? total : lm_nan();
}

template <class F> LM_DEVICE void lm_id_blocks(const LmArgs& a) {
    LmExpert e = lm_expert(a);
    if (e.row >= a.dst.ne[0]) return;
    LmLong k = a.src[0].ne[0];
    float sum = e.weights ? lm_lane_dot<F>(e.weights, lm_record(lm_at(a.src[1], 0, e.x_column, e.t, 0), k), k) : 0.0f;
    lm_put_expert(e, sum);
}
template <class F> LM_DEVICE void lm_id_floats(const LmArgs& a) {
    LmExpert e = lm_expert(a);
    if (e.row >= a.dst.ne[0]) return;
    const LmByte* x = lm_at(a.src[1], 0, e.x_column, e.t, 0);
    float sum = 0.0f;
    for (LmLong i = threadIdx.x & 31; e.weights && i < a.src[0].ne[0]; i += 32) {
        sum = fmaf(lm_load(F::TYPE, e.weights + i * F::SIZE), F::round(lm_load(a.src[1].type, x + i * a.src[1].nb[0])), sum);
    }
    lm_put_expert(e, sum);
}

// dst[m, i, t] = sum of src0[., m, src2[i, t]] * src1[., i mod ne1, t]; src1 are records for blocks, floats for floats. An
// index outside the experts gives NaN.
#define LM_ID(name, body, F) \
    extern "C" __global__ void lm_mul_mat_id_##name(LmArgs a) { body<F>(a); }
LM_ID(f32, lm_id_floats, LmF32)
LM_ID(f16, lm_id_floats, LmF16)
LM_ID(bf16, lm_id_floats, LmBf16)
LM_ID(q4_0, lm_id_blocks, LmQ4_0)
LM_ID(q4_1, lm_id_blocks, LmQ4_1)
LM_ID(q5_0, lm_id_blocks, LmQ5_0)
LM_ID(q5_1, lm_id_blocks, LmQ5_1)
LM_ID(q8_0, lm_id_blocks, LmQ8_0)
LM_ID(iq4_nl, lm_id_blocks, LmIq4Nl)
LM_ID(q2_K, lm_id_blocks, LmQ2K)
LM_ID(q3_K, lm_id_blocks, LmQ3K)
LM_ID(q4_K, lm_id_blocks, LmQ4K)
LM_ID(q5_K, lm_id_blocks, LmQ5K)
LM_ID(q6_K, lm_id_blocks, LmQ6K)
LM_ID(iq4_xs, lm_id_blocks, LmIq4Xs)
