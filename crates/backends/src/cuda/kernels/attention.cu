// FLASH_ATTN_EXT: softmax(K q * scale + slope * mask) V, with a running maximum instead of all scores at once.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_product.h"

// src: 0 q [d, queries, heads, batch] F32, 1 k [d, keys, ...], 2 v [dv, keys, ...], 3 mask [keys, queries, ...] F16 or
// absent, 4 sinks [heads] F32 or absent. dst: [dv, heads, queries, batch] F32; or with more than one split partial results
// [dv + 2, splits, heads * queries, batch] (weighted sum, maximum, sum of weights), which lm_flash_attn_join joins.
// f[0] scale, f[1] largest bias, f[2] and f[3] bases of the slopes, f[4] soft cap (0: none). l[0] heads in the first
// sequence of slopes, l[1] heads that share keys and values, l[2] splits, l[3] keys of a split (a multiple of 128).
// Grid: x groups of COLUMNS (query, head) pairs that share keys, y groups of heads, z splits and batches.
enum { LM_KEYS = 128 };

LM_DEVICE float lm_slope_of(const LmArgs& a, LmLong head) {
    if (a.f[1] <= 0.0f) return 1.0f;
    return head < a.l[0] ? powf(a.f[2], static_cast<float>(head + 1)) : powf(a.f[3], static_cast<float>(2 * (head - a.l[0]) + 1));
}

// A column of the block: one query of one head.
struct LmColumn {
    LmLong head, query;
    bool real;
};
template <int COLUMNS> LM_DEVICE LmColumn lm_column(const LmArgs& a, int c) {
    LmLong flat = static_cast<LmLong>(blockIdx.x) * COLUMNS + c, count = a.l[1] * a.src[0].ne[1];
    LmColumn column;
    column.real = flat < count;
    if (!column.real) flat = count - 1;
    column.head = blockIdx.y * a.l[1] + flat % a.l[1];
    column.query = flat / a.l[1];
    return column;
}

// Shared memory of a block: queries (floats, or records within as many bytes), scores, sums of values, and per column the
// running maximum, the sum of weights and the factor of the last step.
template <int COLUMNS> struct LmSpace {
    LmByte* queries;
    LmLong query_bytes;
    float *scores, *sums, *most, *total, *factor;
};
template <int COLUMNS> LM_DEVICE LmSpace<COLUMNS> lm_space(const LmArgs& a, float* memory) {
    LmLong d = (a.src[0].ne[0] + 3) / 4 * 4;
    LmSpace<COLUMNS> s;
    s.queries = reinterpret_cast<LmByte*>(memory);
    s.query_bytes = d * 4;
    s.scores = memory + COLUMNS * d;
    s.sums = s.scores + COLUMNS * LM_KEYS;
    s.most = s.sums + COLUMNS * a.src[2].ne[0];
    s.total = s.most + COLUMNS;
    s.factor = s.total + COLUMNS;
    return s;
}

template <int PARTS> LM_DEVICE void lm_round_query(const float* q, LmByte* record, LmLong d) {
    float values[PARTS];
    for (LmLong part = 0; part < d / 32; part += PARTS) {
        LM_UNROLL
        for (int i = 0; i < PARTS; i++) values[i] = q[(part + i) * 32 + (threadIdx.x & 31)];
        lm_round_block<PARTS>(values, record, d, part);
    }
}

// A warp rounds a query as the keys' type asks for.
LM_DEVICE void lm_load_query(const float* q, LmByte* to, int key_type, LmLong d) {
    switch (key_type) {
        case LM_F32: case LM_F16: case LM_BF16:
            for (LmLong i = threadIdx.x & 31; i < d; i += 32) {
                float x = q[i];
                x = key_type == LM_F16 ? lm_round_to_half(x) : key_type == LM_BF16 ? lm_round_to_bfloat(x) : x;
                reinterpret_cast<float*>(to)[i] = x;
            }
            return;
        case LM_Q2_K: case LM_Q3_K: case LM_Q4_K: case LM_Q5_K: case LM_Q6_K: case LM_IQ4_XS:
            return lm_round_query<8>(q, to, d);
        default: return lm_round_query<1>(q, to, d);
    }
}

// Products of a key and all queries, by one thread.
template <int COLUMNS> LM_DEVICE void lm_float_scores(const LmSpace<COLUMNS>& s, const LmByte* key, int type, LmLong d, float* sum) {
    int size = type == LM_F32 ? 4 : 2;
    LmLong i = 0;
    if (type == LM_F16 && lm_aligned(key)) {
        for (; i + 8 <= d; i += 8) {
            LmWords v = *reinterpret_cast<const LmWords*>(key + i * 2);
            LM_UNROLL
            for (int k = 0; k < 8; k++) {
                float x = lm_half_to_float(static_cast<unsigned short>(v.w[k / 2] >> (k % 2 * 16)));
                LM_UNROLL
                for (int c = 0; c < COLUMNS; c++) {
                    sum[c] = fmaf(reinterpret_cast<const float*>(s.queries + c * s.query_bytes)[i + k], x, sum[c]);
                }
            }
        }
    }
    for (; i < d; i++) {
        float x = lm_load(type, key + i * size);
        LM_UNROLL
        for (int c = 0; c < COLUMNS; c++) sum[c] = fmaf(reinterpret_cast<const float*>(s.queries + c * s.query_bytes)[i], x, sum[c]);
    }
}
template <class F, int COLUMNS> LM_DEVICE void lm_block_scores(const LmSpace<COLUMNS>& s, const LmByte* key, LmLong d, float* sum) {
    for (LmLong part = 0; part < d / 32; part++) {
        const LmByte* b = key + part / (F::LEN / 32) * F::SIZE;
        int inner = static_cast<int>(part % (F::LEN / 32)), w[8];
        F::codes(b, inner, w);
        LmScales scales = F::scales(b, inner);
        LM_UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            sum[c] += lm_part_product<F>(w, scales, lm_part(lm_record(s.queries + c * s.query_bytes, d), part));
        }
    }
}
template <int COLUMNS> LM_DEVICE void lm_scores(const LmSpace<COLUMNS>& s, const LmByte* key, int type, LmLong d, float* sum) {
    switch (type) {
        case LM_F32: case LM_F16: case LM_BF16: return lm_float_scores(s, key, type, d, sum);
#define LM_CASE(number, F) \
    case number: return lm_block_scores<F>(s, key, d, sum);
            LM_FOR_BLOCKS(LM_CASE)
#undef LM_CASE
        default: return;
    }
}

// Scores of a key for all columns into shared memory; keys that no column sees are not read.
template <int COLUMNS>
LM_DEVICE void lm_score_key(const LmArgs& a, const LmSpace<COLUMNS>& s, const LmByte* keys, LmLong key, LmLong end, LmLong batch) {
    const LmTensor& m = a.src[3];
    float bias[COLUMNS], sum[COLUMNS];
    bool seen = false;
    LM_UNROLL
    for (int c = 0; c < COLUMNS; c++) {
        LmColumn column = lm_column<COLUMNS>(a, c);
        bias[c] = key < end ? 0.0f : -lm_infinity();
        sum[c] = 0.0f;
        if (m.data && key < end) {
            const LmByte* row = lm_at(m, 0, column.query, lm_wrap_one(column.head, m.ne[2]), lm_wrap_one(batch, m.ne[3]));
            bias[c] = lm_half_at(row + 2 * key);
        }
        seen = seen || bias[c] != -lm_infinity();
    }
    if (seen) lm_scores(s, keys + key * a.src[1].nb[1], a.src[1].type, a.src[0].ne[0], sum);
    LM_UNROLL
    for (int c = 0; c < COLUMNS; c++) {
        float score = sum[c] * a.f[0];
        if (a.f[4] != 0.0f) score = tanhf(score) * a.f[4];
        if (m.data) score += lm_slope_of(a, lm_column<COLUMNS>(a, c).head) * bias[c];
        s.scores[c * LM_KEYS + threadIdx.x] = bias[c] == -lm_infinity() ? bias[c] : score;
    }
}

// A warp turns a column's scores into weights and moves its maximum and sum along.
template <int COLUMNS> LM_DEVICE void lm_weigh(const LmSpace<COLUMNS>& s, int c) {
    unsigned lane = threadIdx.x & 31;
    float* scores = s.scores + c * LM_KEYS;
    float before = s.most[c], most = before, sum = 0.0f;
    for (int i = 0; i < LM_KEYS / 32; i++) most = scores[i * 32 + lane] > most ? scores[i * 32 + lane] : most;
    most = lm_warp_fold(most, LmLarger());
    for (int i = 0; i < LM_KEYS / 32; i++) {
        float weight = most == -lm_infinity() ? 0.0f : expf(scores[i * 32 + lane] - most);
        scores[i * 32 + lane] = weight;
        sum += weight;
    }
    sum = lm_warp_fold(sum, LmSum());
    if (lane != 0) return;
    float factor = before == -lm_infinity() ? 0.0f : expf(before - most);
    s.factor[c] = factor;
    s.total[c] = s.total[c] * factor + sum;
    s.most[c] = most;
}

// Adds the weighted values of the chunk; a thread owns components. Values without weight are not read.
template <int COLUMNS> LM_DEVICE void lm_add_values(const LmArgs& a, const LmSpace<COLUMNS>& s, const LmByte* values, int keys) {
    LmLong dv = a.src[2].ne[0];
    for (LmLong i = threadIdx.x; i < dv; i += blockDim.x) {
        float sum[COLUMNS];
        LM_UNROLL
        for (int c = 0; c < COLUMNS; c++) sum[c] = s.sums[c * dv + i] * s.factor[c];
        for (int key = 0; key < keys; key++) {
            float weight[COLUMNS];
            bool seen = false;
            LM_UNROLL
            for (int c = 0; c < COLUMNS; c++) {
                weight[c] = s.scores[c * LM_KEYS + key];
                seen = seen || weight[c] != 0.0f;
            }
            if (!seen) continue;
            float value = lm_read(a.src[2].type, values + key * a.src[2].nb[1], i);
            LM_UNROLL
            for (int c = 0; c < COLUMNS; c++) sum[c] = weight[c] != 0.0f ? fmaf(weight[c], value, sum[c]) : sum[c];
        }
        LM_UNROLL
        for (int c = 0; c < COLUMNS; c++) s.sums[c * dv + i] = sum[c];
    }
}

// The result of a column: the sink takes weight away; no weight at all gives zeros.
LM_DEVICE float lm_share(const LmArgs& a, LmLong head, float most, float total) {
    float sink = a.src[4].data ? static_cast<const float*>(a.src[4].data)[head] : -lm_infinity();
    float top = sink > most ? sink : most;
    if (top == -lm_infinity()) return 0.0f;
    float factor = expf(most - top), all = total * factor + expf(sink - top);
    return all == 0.0f ? 0.0f : factor / all;
}

template <int COLUMNS> LM_DEVICE void lm_write(const LmArgs& a, const LmSpace<COLUMNS>& s, LmLong split, LmLong batch) {
    LmLong dv = a.src[2].ne[0];
    for (int c = 0; c < COLUMNS; c++) {
        LmColumn column = lm_column<COLUMNS>(a, c);
        if (!column.real) return;
        if (a.l[2] == 1) {
            float share = lm_share(a, column.head, s.most[c], s.total[c]);
            float* to = reinterpret_cast<float*>(lm_at(a.dst, 0, column.head, column.query, batch));
            for (LmLong i = threadIdx.x; i < dv; i += blockDim.x) to[i] = s.sums[c * dv + i] * share;
            continue;
        }
        float* to = reinterpret_cast<float*>(lm_at(a.dst, 0, split, column.query * a.src[0].ne[2] + column.head, batch));
        for (LmLong i = threadIdx.x; i < dv; i += blockDim.x) to[i] = s.sums[c * dv + i];
        if (threadIdx.x == 0) {
            to[dv] = s.most[c];
            to[dv + 1] = s.total[c];
        }
    }
}

template <int COLUMNS> LM_DEVICE void lm_attend(const LmArgs& a) {
    LM_DYNAMIC_SHARED(float, memory);
    LmSpace<COLUMNS> s = lm_space<COLUMNS>(a, memory);
    const LmTensor &q = a.src[0], &k = a.src[1], &v = a.src[2];
    LmLong split = blockIdx.z % a.l[2], batch = blockIdx.z / a.l[2], first_head = blockIdx.y * a.l[1];
    const LmByte* keys = lm_at(k, 0, 0, first_head / (q.ne[2] / k.ne[2]), batch / (q.ne[3] / k.ne[3]));
    const LmByte* values = lm_at(v, 0, 0, first_head / (q.ne[2] / v.ne[2]), batch / (q.ne[3] / v.ne[3]));
    LmLong start = split * a.l[3], end = start + a.l[3] < k.ne[1] ? start + a.l[3] : k.ne[1];
    int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    for (int c = warp; c < COLUMNS; c += warps) {
        LmColumn column = lm_column<COLUMNS>(a, c);
        const float* from = reinterpret_cast<const float*>(lm_at(q, 0, column.query, column.head, batch));
        lm_load_query(from, s.queries + c * s.query_bytes, k.type, q.ne[0]);
    }
    for (LmLong i = threadIdx.x; i < COLUMNS * v.ne[0]; i += blockDim.x) s.sums[i] = 0.0f;
    if (threadIdx.x < COLUMNS) {
        s.most[threadIdx.x] = -lm_infinity();
        s.total[threadIdx.x] = 0.0f;
    }
    __syncthreads();
    for (LmLong chunk = start; chunk < end; chunk += LM_KEYS) {
        lm_score_key<COLUMNS>(a, s, keys, chunk + threadIdx.x, end, batch);
        __syncthreads();
        for (int c = warp; c < COLUMNS; c += warps) lm_weigh<COLUMNS>(s, c);
        __syncthreads();
        int count = end - chunk < LM_KEYS ? static_cast<int>(end - chunk) : LM_KEYS;
        lm_add_values<COLUMNS>(a, s, values + chunk * v.nb[1], count);
        __syncthreads();
    }
    lm_write<COLUMNS>(a, s, split, batch);
}

extern "C" __global__ void lm_flash_attn_1(LmArgs a) { lm_attend<1>(a); }
extern "C" __global__ void lm_flash_attn_4(LmArgs a) { lm_attend<4>(a); }
extern "C" __global__ void lm_flash_attn_8(LmArgs a) { lm_attend<8>(a); }

// dst = the splits' partial results (src0) joined, sinks (src4) included; dst as lm_flash_attn's. A block of threads takes
// a query of a head.
extern "C" __global__ void lm_flash_attn_join(LmArgs a) {
    LmLong dv = a.dst.ne[0], heads = a.dst.ne[1], splits = a.src[0].ne[1];
    for (LmLong row = blockIdx.x; row < lm_rows(a.dst); row += gridDim.x) {
        LmIndex at = lm_row_index(a.dst, row);
        const LmByte* parts = lm_at(a.src[0], 0, 0, at.at[2] * heads + at.at[1], at.at[3]);
        LmLong stride = a.src[0].nb[1];
        float most = -lm_infinity(), total = 0.0f;
        for (LmLong k = 0; k < splits; k++) {
            float m = reinterpret_cast<const float*>(parts + k * stride)[dv];
            most = m > most ? m : most;
        }
        for (LmLong k = 0; k < splits; k++) {
            const float* part = reinterpret_cast<const float*>(parts + k * stride);
            if (part[dv] != -lm_infinity()) total += part[dv + 1] * expf(part[dv] - most);
        }
        float share = lm_share(a, at.at[1], most, total);
        float* to = reinterpret_cast<float*>(lm_row_at(a.dst, at));
        for (LmLong i = threadIdx.x; i < dv; i += blockDim.x) {
            float sum = 0.0f;
            for (LmLong k = 0; k < splits; k++) {
                const float* part = reinterpret_cast<const float*>(parts + k * stride);
                if (part[dv] != -lm_infinity()) sum += part[i] * expf(part[dv] - most);
            }
            to[i] = sum * share;
        }
    }
}
