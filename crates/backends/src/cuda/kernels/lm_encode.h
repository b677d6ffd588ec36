// From floats to blocks: one thread writes one block. Q8_0 rounds as the x86 reference does; the other formats take plain
// nearest codes, without the reference's search for better scales.
#ifndef LM_ENCODE_H
#define LM_ENCODE_H

#include "lm_blocks.h"

// Packed elements of a float type.
struct LmFloats {
    const LmByte* at;
    int type;
    LM_DEVICE_MEMBER float operator[](int i) const { return lm_load(type, at + i * (type == LM_F32 ? 4 : 2)); }
};

LM_DEVICE float lm_inverse(float d) { return d == 0.0f ? 0.0f : 1.0f / d; }
// Nearest code from 0 to `top`; a NaN becomes 0.
LM_DEVICE unsigned lm_code(float value, float top) {
    float r = roundf(value);
    return r >= top ? static_cast<unsigned>(top) : r > 0.0f ? static_cast<unsigned>(r) : 0u;
}
// Nearest integer of a scale within what the formats hold; a NaN becomes 0.
LM_DEVICE int lm_scale_code(float value) {
    float r = roundf(value);
    return r >= 127.0f ? 127 : r >= -128.0f ? static_cast<int>(r) : r < 0.0f ? -128 : 0;
}

// The value of largest magnitude among `n`, with its sign.
LM_DEVICE float lm_extreme(const LmFloats& x, int n) {
    float most = 0.0f;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > fabsf(most)) most = x[i];
    }
    return most;
}
LM_DEVICE float lm_lowest(const LmFloats& x, int from, int n, float start) {
    for (int i = from; i < from + n; i++) start = x[i] < start ? x[i] : start;
    return start;
}
LM_DEVICE float lm_highest(const LmFloats& x, int from, int n, float start) {
    for (int i = from; i < from + n; i++) start = x[i] > start ? x[i] : start;
    return start;
}

// Index of the nearest value of the table.
LM_DEVICE unsigned lm_nearest_iq4(float value) {
    unsigned best = 0;
    float least = lm_infinity();
    for (unsigned k = 0; k < 16; k++) {
        unsigned word = k < 8 ? (k < 4 ? LM_IQ4_0 : LM_IQ4_1) : (k < 12 ? LM_IQ4_2 : LM_IQ4_3);
        float distance = fabsf(value - static_cast<float>(static_cast<signed char>(word >> (8 * (k % 4)))));
        if (distance < least) {
            least = distance;
            best = k;
        }
    }
    return best;
}

// Nibbles of 32 codes: the first 16 low, the others high.
template <class Code> LM_DEVICE void lm_put_nibbles(LmByte* to, Code code) {
    for (int i = 0; i < 16; i++) to[i] = static_cast<LmByte>((code(i) & 15u) | (code(i + 16) & 15u) << 4);
}
template <class Code> LM_DEVICE void lm_put_fifth_bits(LmByte* to, Code code) {
    for (int k = 0; k < 4; k++) {
        unsigned bits = 0;
        for (int i = 0; i < 8; i++) bits |= (code(8 * k + i) >> 4 & 1u) << i;
        to[k] = static_cast<LmByte>(bits);
    }
}

struct LmSymmetricCode {
    LmFloats x;
    float factor, zero;
    LM_DEVICE_MEMBER unsigned operator()(int i) const { return lm_code(x[i] * factor + zero, 2.0f * zero - 1.0f); }
};
struct LmRangedCode {
    LmFloats x;
    float factor, low, top;
    LM_DEVICE_MEMBER unsigned operator()(int i) const { return lm_code((x[i] - low) * factor, top); }
};
struct LmTableCode {
    LmFloats x;
    float factor;
    LM_DEVICE_MEMBER unsigned operator()(int i) const { return lm_nearest_iq4(x[i] * factor); }
};

// The extreme value gets code 0: `zero` codes below zero, `zero` - 1 above.
LM_DEVICE void lm_encode_symmetric(const LmFloats& x, LmByte* b, float zero) {
    float d = lm_extreme(x, 32) / -zero;
    LmSymmetricCode code = {x, lm_inverse(d), zero};
    lm_put_half(b, d);
    if (zero > 8.0f) lm_put_fifth_bits(b + 2, code);
    lm_put_nibbles(b + (zero > 8.0f ? 6 : 2), code);
}
// Scale and minimum from the range of the values.
LM_DEVICE void lm_encode_ranged(const LmFloats& x, LmByte* b, float top) {
    float low = lm_lowest(x, 0, 32, lm_infinity()), high = lm_highest(x, 0, 32, -lm_infinity());
    float d = (high - low) / top;
    LmRangedCode code = {x, lm_inverse(d), low, top};
    lm_put_half(b, d);
    lm_put_half(b + 2, low);
    if (top > 15.0f) lm_put_fifth_bits(b + 4, code);
    lm_put_nibbles(b + (top > 15.0f ? 8 : 4), code);
}
LM_DEVICE void lm_encode_table(const LmFloats& x, LmByte* b) {
    float d = lm_round_to_half(lm_extreme(x, 32) / -127.0f);
    LmTableCode code = {x, lm_inverse(d)};
    lm_put_half(b, d);
    lm_put_nibbles(b + 2, code);
}
LM_DEVICE void lm_encode_bytes(const LmFloats& x, LmByte* b) {
    float most = fabsf(lm_extreme(x, 32));
    float factor = most == 0.0f ? 0.0f : 127.0f / most;
    lm_put_half(b, most / 127.0f);
    for (int i = 0; i < 32; i++) b[2 + i] = static_cast<LmByte>(static_cast<int>(rintf(x[i] * factor)));
}

// Scales of all groups into a zeroed block.
template <class F> LM_DEVICE void lm_put_scales(LmByte* b, const float* s, const float* t) {
    float most_s = 0.0f, most_t = 0.0f;
    for (int g = 0; g < 256 / F::GROUP; g++) {
        most_s = fabsf(s[g]) > most_s ? fabsf(s[g]) : most_s;
        most_t = fabsf(t[g]) > most_t ? fabsf(t[g]) : most_t;
    }
    float d = most_s / static_cast<float>(F::TOP_SCALE), m = most_t / static_cast<float>(F::TOP_SCALE);
    F::put_factors(b, d, m);
    for (int g = 0; g < 256 / F::GROUP; g++) {
        F::put_scale(b, g, lm_scale_code(s[g] * lm_inverse(d)), lm_scale_code(t[g] * lm_inverse(m)));
    }
}

// A block of 256: ranges of its groups (from at most zero for formats with minima), then codes nearest under the scales
// as they are stored. `TABLE`: codes are those of the table's values.
template <class F, bool TABLE> LM_DEVICE void lm_encode_wide(const LmFloats& x, LmByte* b) {
    for (int i = 0; i < F::SIZE; i++) b[i] = 0;
    float s[16], t[16];
    for (int g = 0; g < 256 / F::GROUP; g++) {
        float low = lm_lowest(x, g * F::GROUP, F::GROUP, 0.0f), high = lm_highest(x, g * F::GROUP, F::GROUP, 0.0f);
        float most = -low > high ? -low : high;
        s[g] = F::MIN ? (high - low) / static_cast<float>(F::TOP_CODE) : most / (TABLE ? 127.0f : static_cast<float>(F::ZERO));
        t[g] = F::MIN ? -low : 0.0f;
    }
    lm_put_scales<F>(b, s, t);
    for (int i = 0; i < 256; i++) {
        LmScales scales = F::scales(b, i / 32);
        bool first = i % 32 < 16;
        float factor = lm_inverse(scales.d * static_cast<float>(first ? scales.s0 : scales.s1));
        float shifted = F::MIN ? x[i] - scales.m * static_cast<float>(first ? scales.t0 : scales.t1) : x[i];
        unsigned nearest = lm_code(shifted * factor + static_cast<float>(F::ZERO), static_cast<float>(F::TOP_CODE));
        F::put_code(b, i, TABLE ? lm_nearest_iq4(x[i] * factor) : nearest);
    }
}

// Elements of a block of a type.
LM_DEVICE int lm_block_length(int type) {
    switch (type) {
        case LM_F32: case LM_F16: case LM_BF16: case LM_I32: case LM_I64: return 1;
        case LM_Q2_K: case LM_Q3_K: case LM_Q4_K: case LM_Q5_K: case LM_Q6_K: case LM_IQ4_XS: return 256;
        default: return 32;
    }
}

// Writes a block of a format that no cache is usually kept in; a call, so that each format is compiled once.
template <int UNUSED = 0> LM_CALLED void lm_encode_rare(int type, const LmFloats& x, LmByte* b) {
    switch (type) {
        case LM_Q4_0: return lm_encode_symmetric(x, b, 8.0f);
        case LM_Q4_1: return lm_encode_ranged(x, b, 15.0f);
        case LM_Q5_0: return lm_encode_symmetric(x, b, 16.0f);
        case LM_Q5_1: return lm_encode_ranged(x, b, 31.0f);
        case LM_IQ4_NL: return lm_encode_table(x, b);
        case LM_Q2_K: return lm_encode_wide<LmQ2K, false>(x, b);
        case LM_Q3_K: return lm_encode_wide<LmQ3K, false>(x, b);
        case LM_Q4_K: return lm_encode_wide<LmQ4K, false>(x, b);
        case LM_Q5_K: return lm_encode_wide<LmQ5K, false>(x, b);
        case LM_Q6_K: return lm_encode_wide<LmQ6K, false>(x, b);
        case LM_IQ4_XS: return lm_encode_wide<LmIq4Xs, true>(x, b);
        default: return;
    }
}

// Writes a block (one element of a float type) from packed floats.
LM_DEVICE void lm_encode(int type, const LmFloats& x, LmByte* b) {
    switch (type) {
        case LM_F32: case LM_F16: case LM_BF16: return lm_store(type, b, x[0]);
        case LM_Q8_0: return lm_encode_bytes(x, b);
        default: return lm_encode_rare(type, x, b);
    }
}

#endif
