// Products for many columns by matrix units (sm_80 and later).
#include "lm_args.h"
#include "lm_common.h"
#include "lm_mma.h"
#include "lm_product.h"
#include "lm_tile.h"

// Of the tile a warp computes 16 rows and 32 columns, in four steps of 8 columns.
enum { LM_STEPS = 4 };
struct LmWarp {
    int row, column, g, t;
};
LM_DEVICE LmWarp lm_warp() {
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    LmWarp w = {warp % 4 * 16, warp / 4 * 32, lane / 4, lane % 4};
    return w;
}
LM_DEVICE void lm_write_warp(const LmArgs& a, const LmTile& t, const LmWarp& w, const float sum[LM_STEPS][4]) {
    LM_UNROLL
    for (int n = 0; n < LM_STEPS; n++) {
        LM_UNROLL
        for (int i = 0; i < 4; i++) {
            int row = w.row + w.g + i / 2 * 8, column = w.column + 8 * n + 2 * w.t + i % 2;
            if (row >= t.rows || column >= t.columns) continue;
            *reinterpret_cast<float*>(lm_at(a.dst, t.row + row, t.column + column, t.j, t.k)) = sum[n][i];
        }
    }
}

// Scales of one element: exact integer sums of its first and second 16 products in, what they add to it out.
template <class F> LM_DEVICE float lm_scaled(int first, int second, const LmFour& ws, const LmFour& xs) {
    float value = F::GROUP == 32 ? ws.v[0] * static_cast<float>(first)
                                 : ws.v[0] * static_cast<float>(first) + ws.v[1] * static_cast<float>(second);
    return F::MIN ? xs.v[0] * value + (ws.v[2] * xs.v[1] + ws.v[3] * xs.v[2]) : xs.v[0] * value;
}

template <class F> LM_DEVICE void lm_add_part_mma(const LmPartTiles& s, const LmWarp& w, int inner, float sum[LM_STEPS][4]) {
    int row = w.row + w.g;
    const int* upper = s.weights + row * LM_PART_ROW + inner * 8 + w.t;
    const int* lower = upper + 8 * LM_PART_ROW;
    int a[4] = {upper[0], lower[0], upper[4], lower[4]};
    LmFour ws[2] = {s.weight_scales[inner * LM_TILE + row], s.weight_scales[inner * LM_TILE + row + 8]};
    LM_UNROLL
    for (int n = 0; n < LM_STEPS; n++) {
        int column = w.column + 8 * n;
        const int* from = s.columns + (column + w.g) * LM_PART_ROW + inner * 8 + w.t;
        int b[2] = {from[0], from[4]}, first[4] = {0, 0, 0, 0}, second[4] = {0, 0, 0, 0};
        if (F::GROUP == 32) {
            lm_mma_32(first, a, b);
        } else {
            lm_mma_16(first, a[0], a[1], b[0]);
            lm_mma_16(second, a[2], a[3], b[1]);
        }
        LM_UNROLL
        for (int i = 0; i < 4; i++) {
            LmFour xs = s.column_scales[inner * LM_TILE + column + 2 * w.t + i % 2];
            sum[n][i] += lm_scaled<F>(first[i], second[i], ws[i / 2], xs);
        }
    }
}

// src0: blocks. src1: records of the activations (lm_activations).
template <class F> LM_DEVICE void lm_mma_blocks(const LmArgs& a) {
    LM_PART_TILES(s);
    LmTile t = lm_tile(a);
    LmWarp w = lm_warp();
    float sum[LM_STEPS][4] = {};
    for (LmLong first = 0; first < a.src[0].ne[0] / 32; first += LM_PARTS) {
        lm_load_parts<F>(a, t, s, first);
        __syncthreads();
        if (w.row < t.rows && w.column < t.columns) {
            LM_UNROLL
            for (int inner = 0; inner < LM_PARTS; inner++) lm_add_part_mma<F>(s, w, inner, sum);
        }
        __syncthreads();
    }
    lm_write_warp(a, t, w, sum);
}

// src0: rows of 16-bit floats. src1: activations of a float type, any strides.
enum { LM_DEPTH = 32, LM_HALF_ROW = LM_DEPTH + 8 };
template <class F> LM_DEVICE void lm_mma_floats(const LmArgs& a) {
    __shared__ LmWords weights[LM_TILE * LM_HALF_ROW / 8];
    __shared__ LmWords columns[LM_TILE * LM_HALF_ROW / 8];
    LmTile t = lm_tile(a);
    LmWarp w = lm_warp();
    LmLong k = a.src[0].ne[0];
    float sum[LM_STEPS][4] = {};
    for (LmLong first = 0; first < k; first += LM_DEPTH) {
        for (int e = threadIdx.x; e < LM_TILE * LM_DEPTH; e += blockDim.x) {
            int line = e / LM_DEPTH, inner = e % LM_DEPTH;
            LmLong i = first + inner;
            unsigned short weight = 0, x = 0;
            if (line < t.rows && i < k) {
                weight = reinterpret_cast<const unsigned short*>(t.weights + (t.row + line) * a.src[0].nb[1])[i];
            }
            if (line < t.columns && i < k) x = F::to(lm_load(a.src[1].type, lm_at(a.src[1], i, t.column + line, t.j, t.k)));
            reinterpret_cast<unsigned short*>(weights)[line * LM_HALF_ROW + inner] = weight;
            reinterpret_cast<unsigned short*>(columns)[line * LM_HALF_ROW + inner] = x;
        }
        __syncthreads();
        if (w.row < t.rows && w.column < t.columns) {
            LM_UNROLL
            for (int half = 0; half < LM_DEPTH / 16; half++) {
                const int* upper = reinterpret_cast<const int*>(weights) + (w.row + w.g) * (LM_HALF_ROW / 2) + half * 8 + w.t;
                const int* lower = upper + 8 * (LM_HALF_ROW / 2);
                int words[4] = {upper[0], lower[0], upper[4], lower[4]};
                LM_UNROLL
                for (int n = 0; n < LM_STEPS; n++) {
                    int line = w.column + 8 * n + w.g;
                    const int* from = reinterpret_cast<const int*>(columns) + line * (LM_HALF_ROW / 2) + half * 8 + w.t;
                    int b[2] = {from[0], from[4]};
                    F::mma(sum[n], words, b);
                }
            }
        }
        __syncthreads();
    }
    lm_write_warp(a, t, w, sum);
}

// dst[m, n, j, k] = sum of src0[., m, j / r2, k / r3] * src1[., n, j, k].
#define LM_MMAS(name, body, F) \
    extern "C" __global__ void __launch_bounds__(256) lm_mul_mat_mma_##name(LmArgs a) { body<F>(a); }
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
