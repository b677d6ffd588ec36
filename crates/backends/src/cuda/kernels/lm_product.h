// Activations as products meet them: rounded the way the weights' format asks for.
#ifndef LM_PRODUCT_H
#define LM_PRODUCT_H

#include "lm_blocks.h"

// A record holds a row of k activations in 8 bits: k codes, then for each 32 of them the scale, and two numbers that a
// minimum multiplies with. For weights in blocks of 32, blocks of 32 with scale and sum rounded to half: the first number
// is scale * sum. For weights in blocks of 256, blocks of 256: the numbers are the sums of the first and second 16 codes.
struct LmRecord {
    const signed char* codes;
    const float* d;
    const float* t0;
    const float* t1;
};
LM_DEVICE LmRecord lm_record(const LmByte* at, LmLong k) {
    const float* d = reinterpret_cast<const float*>(at + k);
    LmRecord r = {reinterpret_cast<const signed char*>(at), d, d + k / 32, d + k / 32 * 2};
    return r;
}

// Rounds a block to 8 bits by a warp: `values` are the lane's elements, one of each of the block's parts, from `part` on.
template <int PARTS> LM_DEVICE void lm_round_block(const float values[PARTS], LmByte* record, LmLong k, LmLong part) {
    unsigned lane = threadIdx.x & 31;
    signed char* codes = reinterpret_cast<signed char*>(record);
    float* d = reinterpret_cast<float*>(record + k);
    float* t0 = d + k / 32;
    float* t1 = t0 + k / 32;
    float most = 0.0f;
    LM_UNROLL
    for (int i = 0; i < PARTS; i++) most = fabsf(values[i]) > most ? fabsf(values[i]) : most;
    most = lm_warp_fold(most, LmLarger());
    float factor = most == 0.0f ? 0.0f : 127.0f / most;
    float scale = PARTS == 1 ? lm_round_to_half(most / 127.0f) : most == 0.0f ? 0.0f : 1.0f / factor;
    LM_UNROLL
    for (int i = 0; i < PARTS; i++) {
        int code = static_cast<int>(rintf(values[i] * factor));
        codes[(part + i) * 32 + lane] = static_cast<signed char>(code);
        int first = lm_warp_fold(lane < 16 ? code : 0, LmSum());
        int second = lm_warp_fold(lane < 16 ? 0 : code, LmSum());
        if (lane != 0) continue;
        float both = lm_round_to_half(most / 127.0f * static_cast<float>(first + second));
        d[part + i] = scale;
        t0[part + i] = PARTS == 1 ? both : static_cast<float>(first);
        t1[part + i] = static_cast<float>(second);
    }
}

// One part of a record: 32 codes, scale, the two numbers.
struct LmPart {
    int q[8];
    float d, t0, t1;
};
LM_DEVICE LmPart lm_part(const LmRecord& r, LmLong part) {
    LmPart p;
    const LmWords* words = reinterpret_cast<const LmWords*>(r.codes + part * 32);
    LmWords low = words[0], high = words[1];
LM_UNROLL
    for (int k = 0; k < 4; k++) {
        p.q[k] = low.w[k];
        p.q[k + 4] = high.w[k];
    }
    p.d = r.d[part];
    p.t0 = r.t0[part];
    p.t1 = r.t1[part];
    return p;
}

// What a part of weights and a part of activations add to their product: exact integer sums, then the scales.
template <class F> LM_DEVICE float lm_part_product(const int w[8], const LmScales& s, const LmPart& x) {
    int first = 0, second = 0;
LM_UNROLL
    for (int k = 0; k < 4; k++) {
        first = __dp4a(w[k], x.q[k], first);
        second = __dp4a(w[k + 4], x.q[k + 4], second);
    }
    if (!F::WIDE) {
        float value = s.d * x.d * static_cast<float>(first + second);
        return F::MIN ? value + s.m * x.t0 : value;
    }
    float value = s.d * x.d * static_cast<float>(s.s0 * first + s.s1 * second);
    return F::MIN ? value + s.m * x.d * (static_cast<float>(s.t0) * x.t0 + static_cast<float>(s.t1) * x.t1) : value;
}

// Dot product of a row of blocks and a record by the lanes of a warp: each lane gets its own parts' sum.
template <class F> LM_DEVICE float lm_lane_dot(const LmByte* row, const LmRecord& x, LmLong k) {
    float sum = 0.0f;
    for (LmLong part = threadIdx.x & 31; part < k / 32; part += 32) {
        const LmByte* b = row + part / (F::LEN / 32) * F::SIZE;
        int inner = static_cast<int>(part % (F::LEN / 32)), w[8];
        F::codes(b, inner, w);
        LmScales s = F::scales(b, inner);
        sum += lm_part_product<F>(w, s, lm_part(x, part));
    }
    return sum;
}

// Float weights and what they round activations to.
struct LmF32 {
    enum { SIZE = 4, TYPE = LM_F32 };
    LM_DEVICE_STATIC float round(float x) { return x; }
};
struct LmF16 {
    enum { SIZE = 2, TYPE = LM_F16 };
    LM_DEVICE_STATIC float round(float x) { return lm_round_to_half(x); }
};
struct LmBf16 {
    enum { SIZE = 2, TYPE = LM_BF16 };
    LM_DEVICE_STATIC float round(float x) { return lm_round_to_bfloat(x); }
};

#endif
