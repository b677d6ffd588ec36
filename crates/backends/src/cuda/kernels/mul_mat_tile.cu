// Products for many columns: a block of 256 threads computes 64 rows of 64 columns, through shared memory.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_product.h"

// A thread computes rows x + 16 i and columns y + 16 j of the tile, i and j below 4. Rows of shared memory are padded, so
// that 16 threads read 16 of them at once.
enum { LM_TILE = 64, LM_SIDE = 16, LM_EACH = 4, LM_PARTS = 4, LM_PART_ROW = LM_PARTS * 8 + 4, LM_FLOATS = 32 };

// The tile's place. Grid: x tiles of rows, y tiles of columns, z matrices of the result (dimensions 2 and 3).
struct LmTile {
    LmLong row, column, j, k;
    int rows, columns;
    unsigned x, y;
    const LmByte* weights;
};
LM_DEVICE LmTile lm_tile(const LmArgs& a) {
    LmTile t;
    t.row = static_cast<LmLong>(blockIdx.x) * LM_TILE;
    t.column = static_cast<LmLong>(blockIdx.y) * LM_TILE;
    t.j = blockIdx.z % a.dst.ne[2];
    t.k = blockIdx.z / a.dst.ne[2];
    t.rows = a.dst.ne[0] - t.row < LM_TILE ? static_cast<int>(a.dst.ne[0] - t.row) : LM_TILE;
    t.columns = a.dst.ne[1] - t.column < LM_TILE ? static_cast<int>(a.dst.ne[1] - t.column) : LM_TILE;
    t.x = threadIdx.x % LM_SIDE;
    t.y = threadIdx.x / LM_SIDE;
    t.weights = lm_at(a.src[0], 0, 0, t.j / (a.dst.ne[2] / a.src[0].ne[2]), t.k / (a.dst.ne[3] / a.src[0].ne[3]));
    return t;
}
LM_DEVICE void lm_write_tile(const LmArgs& a, const LmTile& t, const float sum[LM_EACH][LM_EACH]) {
    LM_UNROLL
    for (int j = 0; j < LM_EACH; j++) {
        LM_UNROLL
        for (int i = 0; i < LM_EACH; i++) {
            int row = t.x + LM_SIDE * i, column = t.y + LM_SIDE * j;
            if (row >= t.rows || column >= t.columns) continue;
            *reinterpret_cast<float*>(lm_at(a.dst, t.row + row, t.column + column, t.j, t.k)) = sum[i][j];
        }
    }
}

// Scales of a part of weights with their factors, or of a part of activations.
struct alignas(16) LmFour {
    float v[4];
};
struct LmPartTiles {
    int* weights;
    int* columns;
    LmFour* weight_scales;
    LmFour* column_scales;
};
LM_DEVICE void lm_put_part(int* row, const int q[8]) {
    LmWords* to = reinterpret_cast<LmWords*>(row);
    LmWords low = {{q[0], q[1], q[2], q[3]}}, high = {{q[4], q[5], q[6], q[7]}};
    to[0] = low;
    to[1] = high;
}
LM_DEVICE void lm_get_part(const int* row, int q[8]) {
    const LmWords* from = reinterpret_cast<const LmWords*>(row);
    LmWords low = from[0], high = from[1];
    LM_UNROLL
    for (int k = 0; k < 4; k++) {
        q[k] = low.w[k];
        q[k + 4] = high.w[k];
    }
}

// A thread unpacks one part of one row of weights, and copies one part of one record; what lies outside counts as zero.
template <class F> LM_DEVICE void lm_load_parts(const LmArgs& a, const LmTile& t, const LmPartTiles& s, LmLong first) {
    LmLong k = a.src[0].ne[0], part = first + threadIdx.x % LM_PARTS;
    int line = threadIdx.x / LM_PARTS, inner = threadIdx.x % LM_PARTS, place = inner * LM_TILE + line;
    int q[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    LmFour scales = {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (line < t.rows && part < k / 32) {
        const LmByte* b = t.weights + (t.row + line) * a.src[0].nb[1] + part / (F::LEN / 32) * F::SIZE;
        int within = static_cast<int>(part % (F::LEN / 32));
        F::codes(b, within, q);
        LmScales w = F::scales(b, within);
        scales.v[0] = w.d * static_cast<float>(w.s0);
        scales.v[1] = w.d * static_cast<float>(w.s1);
        scales.v[2] = w.m * static_cast<float>(w.t0);
        scales.v[3] = w.m * static_cast<float>(w.t1);
    }
    lm_put_part(s.weights + line * LM_PART_ROW + inner * 8, q);
    s.weight_scales[place] = scales;
    LmPart x = {{0, 0, 0, 0, 0, 0, 0, 0}, 0.0f, 0.0f, 0.0f};
    if (line < t.columns && part < k / 32) x = lm_part(lm_record(lm_at(a.src[1], 0, t.column + line, t.j, t.k), k), part);
    lm_put_part(s.columns + line * LM_PART_ROW + inner * 8, x.q);
    float unit = F::WIDE ? x.d : 1.0f;
    LmFour numbers = {{x.d, unit * x.t0, F::WIDE ? unit * x.t1 : 0.0f, 0.0f}};
    s.column_scales[place] = numbers;
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
        int row = t.x + LM_SIDE * i;
        lm_get_part(s.weights + row * LM_PART_ROW + inner * 8, w[i]);
        ws[i] = s.weight_scales[inner * LM_TILE + row];
    }
    LM_UNROLL
    for (int j = 0; j < LM_EACH; j++) {
        if (LM_SIDE * j >= t.columns) continue;
        int column = t.y + LM_SIDE * j, x[8];
        lm_get_part(s.columns + column * LM_PART_ROW + inner * 8, x);
        LmFour xs = s.column_scales[inner * LM_TILE + column];
        LM_UNROLL
        for (int i = 0; i < LM_EACH; i++) sum[i][j] += lm_tile_product<F>(w[i], ws[i], x, xs);
    }
}

// src0: blocks. src1: records of the activations (lm_activations).
template <class F> LM_DEVICE void lm_tile_blocks(const LmArgs& a) {
    __shared__ LmWords weights[LM_TILE * LM_PART_ROW / 4];
    __shared__ LmWords columns[LM_TILE * LM_PART_ROW / 4];
    __shared__ LmFour weight_scales[LM_TILE * LM_PARTS];
    __shared__ LmFour column_scales[LM_TILE * LM_PARTS];
    LmPartTiles s = {weights[0].w, columns[0].w, weight_scales, column_scales};
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
                float x = columns[t.y + LM_SIDE * j][inner];
                LM_UNROLL
                for (int i = 0; i < LM_EACH; i++) sum[i][j] = fmaf(weights[t.x + LM_SIDE * i][inner], x, sum[i][j]);
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
