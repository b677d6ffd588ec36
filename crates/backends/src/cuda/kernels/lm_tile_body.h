// Products of a tile by the threads' own arithmetic.
#ifndef LM_TILE_BODY_H
#define LM_TILE_BODY_H

#include "lm_tile.h"

// A thread computes rows x + 16 i and columns y + 16 j of the tile, i and j below 4.
enum { LM_SIDE = 16, LM_EACH = 4, LM_FLOATS = 32 };

LM_DEVICE int lm_tile_x() { return threadIdx.x % LM_SIDE; }
LM_DEVICE int lm_tile_y() { return threadIdx.x / LM_SIDE; }

LM_DEVICE void lm_write_tile(const LmArgs& a, const LmTile& t, const float sum[LM_EACH][LM_EACH]) {
    LM_UNROLL
    for (int j = 0; j < LM_EACH; j++) {
        LM_UNROLL
        for (int i = 0; i < LM_EACH; i++) {
            int row = lm_tile_x() + LM_SIDE * i, column = lm_tile_y() + LM_SIDE * j;
            if (row >= t.rows || column >= t.columns) continue;
            *lm_column_out(a, t, row, column) = sum[i][j];
        }
    }
}

template <class F> LM_DEVICE float lm_tile_product(const int w[8], const LmFour& ws, const int x[8], const LmFour& xs) {
    int first = 0, second = 0;
    LM_UNROLL
    for (int k = 0; k < 4; k++) {
        first = __dp4a(w[k], x[k], first);
        second = __dp4a(w[k + 4], x[k + 4], second);
    }
    float value = F::WIDE ? xs.v[0] * (ws.v[0] * static_cast<float>(first) + ws.v[1] * static_cast<float>(second))
                          : ws.v[0] * xs.v[0] * static_cast<float>(first + second);
    return F::MIN ? value + (ws.v[2] * xs.v[1] + ws.v[3] * xs.v[2]) : value;
}

template <class F> LM_DEVICE void lm_add_part(const LmTile& t, const LmPartTiles& s, int inner, float sum[LM_EACH][LM_EACH]) {
    int w[LM_EACH][8];
    LmFour ws[LM_EACH];
    LM_UNROLL
    for (int i = 0; i < LM_EACH; i++) {
        int row = lm_tile_x() + LM_SIDE * i;
        lm_get_part(s.weights + row * LM_PART_ROW + inner * 8, w[i]);
        ws[i] = s.weight_scales[inner * LM_TILE + row];
    }
    LM_UNROLL
    for (int j = 0; j < LM_EACH; j++) {
        if (LM_SIDE * j >= t.columns) continue;
        int column = lm_tile_y() + LM_SIDE * j, x[8];
        lm_get_part(s.columns + column * LM_PART_ROW + inner * 8, x);
        LmFour xs = s.column_scales[inner * LM_TILE + column];
        LM_UNROLL
        for (int i = 0; i < LM_EACH; i++) sum[i][j] += lm_tile_product<F>(w[i], ws[i], x, xs);
    }
}

// src0: blocks. src1: records of the activations (lm_activations).
template <class F> LM_DEVICE void lm_tile_blocks(const LmArgs& a, const LmTile& t) {
    LM_PART_TILES(s);
    float sum[LM_EACH][LM_EACH] = {};
    for (LmLong first = 0; first < a.src[0].ne[0] / 32; first += LM_PARTS) {
        lm_load_parts<F>(a, t, s, first);
        __syncthreads();
        LM_UNROLL
        for (int inner = 0; inner < LM_PARTS; inner++) lm_add_part<F>(t, s, inner, sum);
        __syncthreads();
    }
    lm_write_tile(a, t, sum);
}

// src0: rows of a float type. src1: activations of a float type, any strides.
template <class F> LM_DEVICE void lm_tile_floats(const LmArgs& a, const LmTile& t) {
    __shared__ float weights[LM_TILE][LM_FLOATS + 1];
    __shared__ float columns[LM_TILE][LM_FLOATS + 1];
    LmLong k = a.src[0].ne[0];
    float sum[LM_EACH][LM_EACH] = {};
    for (LmLong first = 0; first < k; first += LM_FLOATS) {
        for (int e = threadIdx.x; e < LM_TILE * LM_FLOATS; e += blockDim.x) {
            int line = e / LM_FLOATS, inner = e % LM_FLOATS;
            LmLong i = first + inner;
            bool row = line < t.rows && i < k, column = line < t.columns && i < k;
            weights[line][inner] = row ? lm_load(F::TYPE, t.weights + (t.row + line) * a.src[0].nb[1] + i * F::SIZE) : 0.0f;
            columns[line][inner] = column ? F::round(lm_load(a.src[1].type, lm_column_in(a, t, line) + i * a.src[1].nb[0])) : 0.0f;
        }
        __syncthreads();
        for (int inner = 0; inner < LM_FLOATS; inner++) {
            LM_UNROLL
            for (int j = 0; j < LM_EACH; j++) {
                if (LM_SIDE * j >= t.columns) continue;
                float x = columns[lm_tile_y() + LM_SIDE * j][inner];
                LM_UNROLL
                for (int i = 0; i < LM_EACH; i++) sum[i][j] = fmaf(weights[lm_tile_x() + LM_SIDE * i][inner], x, sum[i][j]);
            }
        }
        __syncthreads();
    }
    lm_write_tile(a, t, sum);
}

#endif
