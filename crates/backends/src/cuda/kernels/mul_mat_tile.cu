// Products for many columns, where a GPU has no matrix units for them: the threads' own arithmetic.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_product.h"
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
            *reinterpret_cast<float*>(lm_at(a.dst, t.row + row, t.column + column, t.j, t.k)) = sum[i][j];
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
template <class F> LM_DEVICE void lm_tile_blocks(const LmArgs& a) {
    LM_PART_TILES(s);
    LmTile t = lm_tile(a);
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
template <class F> LM_DEVICE void lm_tile_floats(const LmArgs& a) {
    __shared__ float weights[LM_TILE][LM_FLOATS + 1];
    __shared__ float columns[LM_TILE][LM_FLOATS + 1];
    LmTile t = lm_tile(a);
    LmLong k = a.src[0].ne[0];
    float sum[LM_EACH][LM_EACH] = {};
    for (LmLong first = 0; first < k; first += LM_FLOATS) {
        for (int e = threadIdx.x; e < LM_TILE * LM_FLOATS; e += blockDim.x) {
            int line = e / LM_FLOATS, inner = e % LM_FLOATS;
            LmLong i = first + inner;
            bool row = line < t.rows && i < k, column = line < t.columns && i < k;
            weights[line][inner] = row ? lm_load(F::TYPE, t.weights + (t.row + line) * a.src[0].nb[1] + i * F::SIZE) : 0.0f;
            columns[line][inner] = column ? F::round(lm_load(a.src[1].type, lm_at(a.src[1], i, t.column + line, t.j, t.k))) : 0.0f;
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

// dst[m, n, j, k] = sum of src0[., m, j / r2, k / r3] * src1[., n, j, k].
#define LM_TILES(name, body, F) \
    extern "C" __global__ void __launch_bounds__(256) lm_mul_mat_tile_##name(LmArgs a) { body<F>(a); }
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
