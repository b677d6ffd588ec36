// Products of a tile by matrix units.
#ifndef LM_MMA_BODY_H
#define LM_MMA_BODY_H

#include "lm_mma.h"
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
            *lm_column_out(a, t, row, column) = sum[n][i];
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
template <class F> LM_DEVICE void lm_mma_blocks(const LmArgs& a, const LmTile& t) {
    LM_PART_TILES(s);
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
template <class F> LM_DEVICE void lm_mma_floats(const LmArgs& a, const LmTile& t) {
    __shared__ LmWords weights[LM_TILE * LM_HALF_ROW / 8];
    __shared__ LmWords columns[LM_TILE * LM_HALF_ROW / 8];
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
            if (line < t.columns && i < k) x = F::to(lm_load(a.src[1].type, lm_column_in(a, t, line) + i * a.src[1].nb[0]));
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

#endif
