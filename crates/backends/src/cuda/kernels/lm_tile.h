// Tiles of products for many columns: 64 rows of 64 columns for a block of 256 threads, parts in shared memory.
#ifndef LM_TILE_H
#define LM_TILE_H

#include "lm_product.h"

// Rows of shared memory are padded, so that no two lanes that read at once meet in a bank.
enum { LM_TILE = 64, LM_PARTS = 4, LM_PART_ROW = LM_PARTS * 8 + 4 };

// The tile's place. Grid: x tiles of rows, y tiles of columns, z matrices of the result (dimensions 2 and 3).
struct LmTile {
    LmLong row, column, j, k;
    int rows, columns;
    const LmByte* weights;
    // Columns that are not neighbours: the pairs (index of a token, token) whose columns these are, else null.
    const int* pairs;
};
LM_DEVICE LmTile lm_tile(const LmArgs& a) {
    LmTile t;
    t.row = static_cast<LmLong>(blockIdx.x) * LM_TILE;
    t.column = static_cast<LmLong>(blockIdx.y) * LM_TILE;
    t.j = blockIdx.z % a.dst.ne[2];
    t.k = blockIdx.z / a.dst.ne[2];
    t.rows = a.dst.ne[0] - t.row < LM_TILE ? static_cast<int>(a.dst.ne[0] - t.row) : LM_TILE;
    t.columns = a.dst.ne[1] - t.column < LM_TILE ? static_cast<int>(a.dst.ne[1] - t.column) : LM_TILE;
    t.weights = lm_at(a.src[0], 0, 0, t.j / (a.dst.ne[2] / a.src[0].ne[2]), t.k / (a.dst.ne[3] / a.src[0].ne[3]));
    t.pairs = nullptr;
    return t;
}

// Pairs grouped by expert (experts.cu), behind each other: where each expert's pairs start, where its tiles of columns do,
// each list with its end, and the pairs, i + t * (indices of a token).
struct LmGroups {
    int* starts;
    int* tiles;
    int* pairs;
};
LM_DEVICE LmGroups lm_groups(void* data, LmLong experts) {
    int* starts = static_cast<int*>(data);
    LmGroups g = {starts, starts + experts + 1, starts + 2 * (experts + 1)};
    return g;
}

// The tile's place among the tiles of all experts; false: there are fewer. Grid: x tiles of rows, y tiles of columns.
LM_DEVICE bool lm_expert_tile(const LmArgs& a, LmTile& t) {
    int experts = static_cast<int>(a.src[0].ne[2]), y = static_cast<int>(blockIdx.y);
    LmGroups g = lm_groups(a.src[2].data, experts);
    if (y >= g.tiles[experts]) return false;
    int e = 0;
    for (int end = experts; end - e > 1;) {
        int middle = (e + end) / 2;
        if (g.tiles[middle] <= y) e = middle;
        else end = middle;
    }
    int first = g.starts[e] + (y - g.tiles[e]) * LM_TILE, rest = g.starts[e + 1] - first;
    t.row = static_cast<LmLong>(blockIdx.x) * LM_TILE;
    t.column = t.j = t.k = 0;
    t.rows = a.dst.ne[0] - t.row < LM_TILE ? static_cast<int>(a.dst.ne[0] - t.row) : LM_TILE;
    t.columns = rest < LM_TILE ? rest : LM_TILE;
    t.weights = lm_at(a.src[0], 0, 0, e, 0);
    t.pairs = g.pairs + first;
    return true;
}

// The activations of a tile's column, and an element of its result.
LM_DEVICE const LmByte* lm_column_in(const LmArgs& a, const LmTile& t, int column) {
    if (!t.pairs) return lm_at(a.src[1], 0, t.column + column, t.j, t.k);
    LmLong pair = t.pairs[column], used = a.dst.ne[1];
    return lm_at(a.src[1], 0, pair % used % a.src[1].ne[1], pair / used, 0);
}
LM_DEVICE float* lm_column_out(const LmArgs& a, const LmTile& t, int row, int column) {
    if (!t.pairs) return reinterpret_cast<float*>(lm_at(a.dst, t.row + row, t.column + column, t.j, t.k));
    LmLong pair = t.pairs[column], used = a.dst.ne[1];
    return reinterpret_cast<float*>(lm_at(a.dst, t.row + row, pair % used, pair / used, 0));
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
    if (line < t.columns && part < k / 32) x = lm_part(lm_record(lm_column_in(a, t, line), k), part);
    lm_put_part(s.columns + line * LM_PART_ROW + inner * 8, x.q);
    float unit = F::WIDE ? x.d : 1.0f;
    LmFour numbers = {{x.d, unit * x.t0, F::WIDE ? unit * x.t1 : 0.0f, 0.0f}};
    s.column_scales[place] = numbers;
}

// Shared memory of a tile of blocks.
#define LM_PART_TILES(name)                                      \
    __shared__ LmWords lm_weights[LM_TILE * LM_PART_ROW / 4];    \
    __shared__ LmWords lm_columns[LM_TILE * LM_PART_ROW / 4];    \
    __shared__ LmFour lm_weight_scales[LM_TILE * LM_PARTS];      \
    __shared__ LmFour lm_column_scales[LM_TILE * LM_PARTS];      \
    LmPartTiles name = {lm_weights[0].w, lm_columns[0].w, lm_weight_scales, lm_column_scales}

#endif
