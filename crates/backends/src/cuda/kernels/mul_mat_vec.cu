// Products for few columns: a warp computes one element of each of up to 8 columns, so that weights are read once.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_product.h"

// Where the columns of a block of threads are. Grid: x counts rows in groups of as many as a block has warps, y groups
// of columns, z matrices of the result (dimensions 2 and 3). Weights repeat over dimensions 2 and 3.
struct LmPlace {
    LmLong row, column, j, k;
    const LmByte* weights;
};
LM_DEVICE LmPlace lm_place(const LmArgs& a, LmLong columns) {
    LmPlace p;
    p.row = static_cast<LmLong>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    p.column = static_cast<LmLong>(blockIdx.y) * columns;
    p.j = blockIdx.z % a.dst.ne[2];
    p.k = blockIdx.z / a.dst.ne[2];
    LmLong wj = p.j / (a.dst.ne[2] / a.src[0].ne[2]), wk = p.k / (a.dst.ne[3] / a.src[0].ne[3]);
    p.weights = lm_at(a.src[0], 0, p.row, wj, wk);
    return p;
}

// src0: blocks. src1: records of the activations (lm_activations), ne and nb as the activations' but in bytes.
template <class F, int COLUMNS> LM_DEVICE void lm_vec_blocks(const LmArgs& a) {
    LmPlace p = lm_place(a, COLUMNS);
    if (p.row >= a.dst.ne[0]) return;
    LmLong k = a.src[0].ne[0];
    LmRecord x[COLUMNS];
    float sum[COLUMNS];
LM_UNROLL
    for (int c = 0; c < COLUMNS; c++) {
        LmLong column = p.column + c < a.dst.ne[1] ? p.column + c : a.dst.ne[1] - 1;
        x[c] = lm_record(lm_at(a.src[1], 0, column, p.j, p.k), k);
        sum[c] = 0.0f;
    }
    for (LmLong part = threadIdx.x & 31; part < k / 32; part += 32) {
        const LmByte* b = p.weights + part / (F::LEN / 32) * F::SIZE;
        int inner = static_cast<int>(part % (F::LEN / 32)), w[8];
        F::codes(b, inner, w);
        LmScales s = F::scales(b, inner);
LM_UNROLL
        for (int c = 0; c < COLUMNS; c++) sum[c] += lm_part_product<F>(w, s, lm_part(x[c], part));
    }
LM_UNROLL
    for (int c = 0; c < COLUMNS; c++) {
        float total = lm_warp_fold(sum[c], LmSum());
        if ((threadIdx.x & 31) != 0 || p.column + c >= a.dst.ne[1]) continue;
        *reinterpret_cast<float*>(lm_at(a.dst, p.row, p.column + c, p.j, p.k)) = total;
    }
}

// Eight 16-bit weights of a lane at once, as far as whole groups of eight go; the number of elements that are done. None
// where weights or activations do not lie for it.
template <class F, int COLUMNS>
LM_DEVICE LmLong lm_vec_eights(const LmTensor& xs, const LmByte* weights, const LmByte* const x[COLUMNS], LmLong k, float sum[COLUMNS]) {
    bool fits = F::SIZE == 2 && xs.type == LM_F32 && xs.nb[0] == 4 && lm_aligned(weights);
    LM_UNROLL
    for (int c = 0; c < COLUMNS; c++) fits = fits && lm_aligned(x[c]);
    if (!fits) return 0;
    for (LmLong i = (threadIdx.x & 31) * 8; i + 8 <= k; i += 256) {
        LmWords w = *reinterpret_cast<const LmWords*>(weights + i * 2);
        LM_UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            LM_UNROLL
            for (int part = 0; part < 2; part++) {
                LmWords four = *reinterpret_cast<const LmWords*>(x[c] + (i + 4 * part) * 4);
                LM_UNROLL
                for (int e = 0; e < 4; e++) {
                    unsigned short bits = static_cast<unsigned short>(w.w[2 * part + e / 2] >> (e % 2 * 16));
                    float weight = static_cast<int>(F::TYPE) == LM_F16 ? lm_half_to_float(bits) : lm_bfloat_to_float(bits);
                    sum[c] = fmaf(weight, F::round(__int_as_float(four.w[e])), sum[c]);
                }
            }
        }
    }
    return k / 8 * 8;
}

// src0: rows of a float type. src1: activations of a float type, any strides.
template <class F, int COLUMNS> LM_DEVICE void lm_vec_floats(const LmArgs& a) {
    LmPlace p = lm_place(a, COLUMNS);
    if (p.row >= a.dst.ne[0]) return;
    const LmByte* x[COLUMNS];
    float sum[COLUMNS];
LM_UNROLL
    for (int c = 0; c < COLUMNS; c++) {
        LmLong column = p.column + c < a.dst.ne[1] ? p.column + c : a.dst.ne[1] - 1;
        x[c] = lm_at(a.src[1], 0, column, p.j, p.k);
        sum[c] = 0.0f;
    }
    LmLong k = a.src[0].ne[0], done = lm_vec_eights<F, COLUMNS>(a.src[1], p.weights, x, k, sum);
    for (LmLong i = done + (threadIdx.x & 31); i < k; i += 32) {
        float w = lm_load(F::TYPE, p.weights + i * F::SIZE);
LM_UNROLL
        for (int c = 0; c < COLUMNS; c++) sum[c] = fmaf(w, F::round(lm_load(a.src[1].type, x[c] + i * a.src[1].nb[0])), sum[c]);
    }
LM_UNROLL
    for (int c = 0; c < COLUMNS; c++) {
        float total = lm_warp_fold(sum[c], LmSum());
        if ((threadIdx.x & 31) != 0 || p.column + c >= a.dst.ne[1]) continue;
        *reinterpret_cast<float*>(lm_at(a.dst, p.row, p.column + c, p.j, p.k)) = total;
    }
}

// dst[m, n, j, k] = sum of src0[., m, j / r2, k / r3] * src1[., n, j, k], one or up to 8 columns to a block of threads.
#define LM_VEC(name, body, F)                                                     \
    extern "C" __global__ void lm_mul_mat_vec1_##name(LmArgs a) { body<F, 1>(a); } \
    extern "C" __global__ void lm_mul_mat_vec8_##name(LmArgs a) { body<F, 8>(a); }
LM_VEC(f32, lm_vec_floats, LmF32)
LM_VEC(f16, lm_vec_floats, LmF16)
LM_VEC(bf16, lm_vec_floats, LmBf16)
LM_VEC(q4_0, lm_vec_blocks, LmQ4_0)
LM_VEC(q4_1, lm_vec_blocks, LmQ4_1)
LM_VEC(q5_0, lm_vec_blocks, LmQ5_0)
LM_VEC(q5_1, lm_vec_blocks, LmQ5_1)
LM_VEC(q8_0, lm_vec_blocks, LmQ8_0)
LM_VEC(iq4_nl, lm_vec_blocks, LmIq4Nl)
LM_VEC(q2_K, lm_vec_blocks, LmQ2K)
LM_VEC(q3_K, lm_vec_blocks, LmQ3K)
LM_VEC(q4_K, lm_vec_blocks, LmQ4K)
LM_VEC(q5_K, lm_vec_blocks, LmQ5K)
LM_VEC(q6_K, lm_vec_blocks, LmQ6K)
LM_VEC(iq4_xs, lm_vec_blocks, LmIq4Xs)
