// The formats of quantized blocks: codes in parts of 32 elements, four signed bytes to a word, and the scales of a part.
//
// An element is d * s * code + m * t: s and t are integers, one of each for 16 elements, d and m belong to the block.
#ifndef LM_BLOCKS_H
#define LM_BLOCKS_H

#include "lm_common.h"

// Scales of 32 elements: `s0`, `t0` of the first 16, `s1`, `t1` of the others.
struct LmScales {
    float d, m;
    int s0, s1, t0, t1;
};

// 32 bits at an address that is a multiple of 2 or 4.
LM_DEVICE unsigned lm_word2(const LmByte* at) {
    const unsigned short* halves = reinterpret_cast<const unsigned short*>(at);
    return static_cast<unsigned>(halves[0]) | static_cast<unsigned>(halves[1]) << 16;
}
LM_DEVICE unsigned lm_word4(const LmByte* at) { return *reinterpret_cast<const unsigned*>(at); }

LM_DEVICE float lm_half_at(const LmByte* at) { return lm_half_to_float(*reinterpret_cast<const unsigned short*>(at)); }
LM_DEVICE void lm_put_half(LmByte* at, float value) { *reinterpret_cast<unsigned short*>(at) = lm_float_to_half(value); }

// Bytes below 128 less those of `zero`, as signed bytes; no borrow runs from byte to byte.
LM_DEVICE int lm_less(unsigned bytes, unsigned zero) {
    return static_cast<int>(((bytes | 0x80808080u) - zero) ^ 0x80808080u);
}
// Bits 0 to 3 to the lowest bits of four bytes.
LM_DEVICE unsigned lm_spread(unsigned bits) { return (bits & 15u) * 0x00204081u & 0x01010101u; }

LM_DEVICE unsigned lm_bytes(unsigned low, unsigned high, unsigned selector) {
#ifdef LM_HOST
    uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    unsigned picked = 0;
    for (unsigned k = 0; k < 4; k++) picked |= static_cast<unsigned>(both >> (8 * (selector >> (4 * k) & 7)) & 255) << (8 * k);
    return picked;
#else
    return __byte_perm(low, high, selector);
#endif
}

// The sixteen values of the non-linear formats, in order.
#define LM_IQ4_0 0xbfad9881u
#define LM_IQ4_1 0xf6eaddcfu
#define LM_IQ4_2 0x26190d01u
#define LM_IQ4_3 0x71594535u

// Values of four nibbles (the low 16 bits).
LM_DEVICE unsigned lm_iq4_four(unsigned nibbles) {
    unsigned low = lm_bytes(LM_IQ4_0, LM_IQ4_1, nibbles & 0x7777u);
    unsigned high = lm_bytes(LM_IQ4_2, LM_IQ4_3, nibbles & 0x7777u);
    return lm_bytes(low, high, 0x3210u | (nibbles & 0x8888u) >> 1);
}
// Values of the low and of the high nibbles of four bytes.
LM_DEVICE void lm_iq4_pairs(unsigned bytes, int& low, int& high) {
    unsigned first = lm_iq4_four(bytes & 0xffffu), second = lm_iq4_four(bytes >> 16);
    low = static_cast<int>(lm_bytes(first, second, 0x6420u));
    high = static_cast<int>(lm_bytes(first, second, 0x7531u));
}

struct LmBlock32 {
    enum { LEN = 32, WIDE = 0, GROUP = 32 };
};
struct LmBlock256 {
    enum { LEN = 256, WIDE = 1 };
};
LM_DEVICE LmScales lm_one_scale(float d, float m) {
    LmScales s = {d, m, 1, 1, 1, 1};
    return s;
}

struct LmQ4_0 : LmBlock32 {
    enum { SIZE = 18, ALIGN = 2, MIN = 0, ZERO = 8 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int, int q[8]) {
LM_UNROLL
        for (int k = 0; k < 4; k++) {
            unsigned v = lm_word2(b + 2 + 4 * k);
            q[k] = lm_less(v & 0x0f0f0f0fu, 0x08080808u);
            q[k + 4] = lm_less(v >> 4 & 0x0f0f0f0fu, 0x08080808u);
        }
    }
    LM_DEVICE_STATIC LmScales scales(const LmByte* b, int) { return lm_one_scale(lm_half_at(b), 0.0f); }
};

struct LmQ4_1 : LmBlock32 {
    enum { SIZE = 20, ALIGN = 4, MIN = 1, ZERO = 0 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int, int q[8]) {
LM_UNROLL
        for (int k = 0; k < 4; k++) {
            unsigned v = lm_word4(b + 4 + 4 * k);
            q[k] = static_cast<int>(v & 0x0f0f0f0fu);
            q[k + 4] = static_cast<int>(v >> 4 & 0x0f0f0f0fu);
        }
    }
    LM_DEVICE_STATIC LmScales scales(const LmByte* b, int) { return lm_one_scale(lm_half_at(b), lm_half_at(b + 2)); }
};

struct LmQ5_0 : LmBlock32 {
    enum { SIZE = 22, ALIGN = 2, MIN = 0, ZERO = 16 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int, int q[8]) {
        unsigned high = lm_word2(b + 2);
LM_UNROLL
        for (int k = 0; k < 4; k++) {
            unsigned v = lm_word2(b + 6 + 4 * k);
            q[k] = lm_less((v & 0x0f0f0f0fu) | lm_spread(high >> 4 * k) << 4, 0x10101010u);
            q[k + 4] = lm_less((v >> 4 & 0x0f0f0f0fu) | lm_spread(high >> (16 + 4 * k)) << 4, 0x10101010u);
        }
    }
    LM_DEVICE_STATIC LmScales scales(const LmByte* b, int) { return lm_one_scale(lm_half_at(b), 0.0f); }
};

struct LmQ5_1 : LmBlock32 {
    enum { SIZE = 24, ALIGN = 4, MIN = 1, ZERO = 0 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int, int q[8]) {
        unsigned high = lm_word4(b + 4);
LM_UNROLL
        for (int k = 0; k < 4; k++) {
            unsigned v = lm_word4(b + 8 + 4 * k);
            q[k] = static_cast<int>((v & 0x0f0f0f0fu) | lm_spread(high >> 4 * k) << 4);
            q[k + 4] = static_cast<int>((v >> 4 & 0x0f0f0f0fu) | lm_spread(high >> (16 + 4 * k)) << 4);
        }
    }
    LM_DEVICE_STATIC LmScales scales(const LmByte* b, int) { return lm_one_scale(lm_half_at(b), lm_half_at(b + 2)); }
};

struct LmQ8_0 : LmBlock32 {
    enum { SIZE = 34, ALIGN = 2, MIN = 0, ZERO = 0 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int, int q[8]) {
LM_UNROLL
        for (int k = 0; k < 8; k++) q[k] = static_cast<int>(lm_word2(b + 2 + 4 * k));
    }
    LM_DEVICE_STATIC LmScales scales(const LmByte* b, int) { return lm_one_scale(lm_half_at(b), 0.0f); }
};

struct LmIq4Nl : LmBlock32 {
    enum { SIZE = 18, ALIGN = 2, MIN = 0, ZERO = 0 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int, int q[8]) {
LM_UNROLL
        for (int k = 0; k < 4; k++) lm_iq4_pairs(lm_word2(b + 2 + 4 * k), q[k], q[k + 4]);
    }
    LM_DEVICE_STATIC LmScales scales(const LmByte* b, int) { return lm_one_scale(lm_half_at(b), 0.0f); }
};

struct LmQ2K : LmBlock256 {
    enum { SIZE = 84, ALIGN = 4, MIN = 1, ZERO = 0, GROUP = 16, TOP_SCALE = 15, TOP_CODE = 3 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int part, int q[8]) {
        const LmByte* from = b + 16 + part / 4 * 32;
LM_UNROLL
        for (int k = 0; k < 8; k++) q[k] = static_cast<int>(lm_word4(from + 4 * k) >> (part % 4 * 2) & 0x03030303u);
    }
    LM_DEVICE_STATIC LmScales scales(const LmByte* b, int part) {
        int first = b[2 * part], second = b[2 * part + 1];
        LmScales s = {lm_half_at(b + 80), -lm_half_at(b + 82), first & 15, second & 15, first >> 4, second >> 4};
        return s;
    }
    LM_DEVICE_STATIC void put_code(LmByte* b, int i, unsigned code) {
        b[16 + i / 128 * 32 + i % 32] |= static_cast<LmByte>((code & 3u) << (i % 128 / 32 * 2));
    }
    LM_DEVICE_STATIC void put_scale(LmByte* b, int g, int s, int t) { b[g] = static_cast<LmByte>(s | t << 4); }
    LM_DEVICE_STATIC void put_factors(LmByte* b, float d, float m) {
        lm_put_half(b + 80, d);
        lm_put_half(b + 82, m);
    }
};

struct LmQ3K : LmBlock256 {
    enum { SIZE = 110, ALIGN = 2, MIN = 0, ZERO = 4, GROUP = 16, TOP_SCALE = 31, TOP_CODE = 7 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int part, int q[8]) {
        const LmByte* from = b + 32 + part / 4 * 32;
LM_UNROLL
        for (int k = 0; k < 8; k++) {
            unsigned low = lm_word2(from + 4 * k) >> (part % 4 * 2) & 0x03030303u;
            unsigned high = lm_word2(b + 4 * k) >> part & 0x01010101u;
            q[k] = lm_less(low | high << 2, 0x04040404u);
        }
    }
    LM_DEVICE_STATIC int scale(const LmByte* b, int g) {
        int low = b[96 + g % 8] >> (g / 8 * 4) & 15, high = b[104 + g % 4] >> (g / 4 * 2) & 3;
        return (low | high << 4) - 32;
    }
    LM_DEVICE_STATIC LmScales scales(const LmByte* b, int part) {
        LmScales s = {lm_half_at(b + 108), 0.0f, scale(b, 2 * part), scale(b, 2 * part + 1), 0, 0};
        return s;
    }
    LM_DEVICE_STATIC void put_code(LmByte* b, int i, unsigned code) {
        b[32 + i / 128 * 32 + i % 32] |= static_cast<LmByte>((code & 3u) << (i % 128 / 32 * 2));
        b[i % 32] |= static_cast<LmByte>((code >> 2 & 1u) << (i / 32));
    }
    LM_DEVICE_STATIC void put_scale(LmByte* b, int g, int s, int) {
        unsigned code = static_cast<unsigned>(s + 32);
        b[96 + g % 8] |= static_cast<LmByte>((code & 15u) << (g / 8 * 4));
        b[104 + g % 4] |= static_cast<LmByte>((code >> 4) << (g / 4 * 2));
    }
    LM_DEVICE_STATIC void put_factors(LmByte* b, float d, float) { lm_put_half(b + 108, d); }
};

// What Q4_K and Q5_K share: two factors, then 6-bit scales and minima in 12 bytes, the first four of each in the low bits
// of four bytes each, the others split between the last four bytes and the high bits of the first eight.
struct LmSixBits : LmBlock256 {
    enum { MIN = 1, ZERO = 0, GROUP = 32, TOP_SCALE = 63 };
    LM_DEVICE_STATIC LmScales scales(const LmByte* b, int g) {
        const LmByte* p = b + 4;
        int s = g < 4 ? p[g] & 63 : (p[g + 4] & 15) | p[g - 4] >> 6 << 4;
        int t = g < 4 ? p[g + 4] & 63 : p[g + 4] >> 4 | p[g] >> 6 << 4;
        LmScales scales = {lm_half_at(b), -lm_half_at(b + 2), s, s, t, t};
        return scales;
    }
    LM_DEVICE_STATIC void put_scale(LmByte* b, int g, int s, int t) {
        LmByte* p = b + 4;
        if (g < 4) {
            p[g] |= static_cast<LmByte>(s & 63);
            p[g + 4] |= static_cast<LmByte>(t & 63);
        } else {
            p[g + 4] |= static_cast<LmByte>((s & 15) | t << 4);
            p[g - 4] |= static_cast<LmByte>(s >> 4 << 6);
            p[g] |= static_cast<LmByte>(t >> 4 << 6);
        }
    }
    LM_DEVICE_STATIC void put_factors(LmByte* b, float d, float m) {
        lm_put_half(b, d);
        lm_put_half(b + 2, m);
    }
};

struct LmQ4K : LmSixBits {
    enum { SIZE = 144, ALIGN = 4, TOP_CODE = 15 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int part, int q[8]) {
        const LmByte* from = b + 16 + part / 2 * 32;
LM_UNROLL
        for (int k = 0; k < 8; k++) q[k] = static_cast<int>(lm_word4(from + 4 * k) >> (part % 2 * 4) & 0x0f0f0f0fu);
    }
    LM_DEVICE_STATIC void put_code(LmByte* b, int i, unsigned code) {
        b[16 + i / 64 * 32 + i % 32] |= static_cast<LmByte>((code & 15u) << (i % 64 / 32 * 4));
    }
};

struct LmQ5K : LmSixBits {
    enum { SIZE = 176, ALIGN = 4, TOP_CODE = 31 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int part, int q[8]) {
        const LmByte* from = b + 48 + part / 2 * 32;
LM_UNROLL
        for (int k = 0; k < 8; k++) {
            unsigned low = lm_word4(from + 4 * k) >> (part % 2 * 4) & 0x0f0f0f0fu;
            unsigned high = lm_word4(b + 16 + 4 * k) >> part & 0x01010101u;
            q[k] = static_cast<int>(low | high << 4);
        }
    }
    LM_DEVICE_STATIC void put_code(LmByte* b, int i, unsigned code) {
        b[48 + i / 64 * 32 + i % 32] |= static_cast<LmByte>((code & 15u) << (i % 64 / 32 * 4));
        b[16 + i % 32] |= static_cast<LmByte>((code >> 4 & 1u) << (i / 32));
    }
};

struct LmQ6K : LmBlock256 {
    enum { SIZE = 210, ALIGN = 2, MIN = 0, ZERO = 32, GROUP = 16, TOP_SCALE = 127, TOP_CODE = 63 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int part, int q[8]) {
        int half = part / 4, quarter = part % 4;
        const LmByte* low = b + half * 64 + quarter % 2 * 32;
        const LmByte* high = b + 128 + half * 32;
LM_UNROLL
        for (int k = 0; k < 8; k++) {
            unsigned l = lm_word2(low + 4 * k) >> (quarter / 2 * 4) & 0x0f0f0f0fu;
            unsigned h = lm_word2(high + 4 * k) >> (quarter * 2) & 0x03030303u;
            q[k] = lm_less(l | h << 4, 0x20202020u);
        }
    }
    LM_DEVICE_STATIC LmScales scales(const LmByte* b, int part) {
        int s0 = static_cast<signed char>(b[192 + 2 * part]), s1 = static_cast<signed char>(b[193 + 2 * part]);
        LmScales s = {lm_half_at(b + 208), 0.0f, s0, s1, 0, 0};
        return s;
    }
    LM_DEVICE_STATIC void put_code(LmByte* b, int i, unsigned code) {
        int half = i / 128, j = i % 128;
        b[half * 64 + j % 64] |= static_cast<LmByte>((code & 15u) << (j / 64 * 4));
        b[128 + half * 32 + j % 32] |= static_cast<LmByte>((code >> 4) << (j / 32 * 2));
    }
    LM_DEVICE_STATIC void put_scale(LmByte* b, int g, int s, int) { b[192 + g] = static_cast<LmByte>(s); }
    LM_DEVICE_STATIC void put_factors(LmByte* b, float d, float) { lm_put_half(b + 208, d); }
};

struct LmIq4Xs : LmBlock256 {
    enum { SIZE = 136, ALIGN = 4, MIN = 0, ZERO = 0, GROUP = 32, TOP_SCALE = 31, TOP_CODE = 15 };
    LM_DEVICE_STATIC void codes(const LmByte* b, int part, int q[8]) {
LM_UNROLL
        for (int k = 0; k < 4; k++) lm_iq4_pairs(lm_word4(b + 8 + part * 16 + 4 * k), q[k], q[k + 4]);
    }
    LM_DEVICE_STATIC LmScales scales(const LmByte* b, int part) {
        int low = b[4 + part / 2] >> (part % 2 * 4) & 15;
        int high = (b[2] | b[3] << 8) >> (2 * part) & 3;
        int scale = (low | high << 4) - 32;
        LmScales s = {lm_half_at(b), 0.0f, scale, scale, 0, 0};
        return s;
    }
    LM_DEVICE_STATIC void put_code(LmByte* b, int i, unsigned code) {
        b[8 + i / 32 * 16 + i % 16] |= static_cast<LmByte>((code & 15u) << (i % 32 / 16 * 4));
    }
    LM_DEVICE_STATIC void put_scale(LmByte* b, int g, int s, int) {
        unsigned code = static_cast<unsigned>(s + 32);
        b[4 + g / 2] |= static_cast<LmByte>((code & 15u) << (g % 2 * 4));
        b[2 + g / 4] |= static_cast<LmByte>((code >> 4) << (2 * (g % 4)));
    }
    LM_DEVICE_STATIC void put_factors(LmByte* b, float d, float) { lm_put_half(b, d); }
};

// Element i of a part: its byte of the codes, under its scales.
template <class F> LM_DEVICE float lm_part_value(const int q[8], const LmScales& s, int i) {
    int code = static_cast<signed char>(static_cast<unsigned>(q[i / 4]) >> (8 * (i % 4)));
    float value = s.d * static_cast<float>(i < 16 ? s.s0 : s.s1) * static_cast<float>(code);
    return F::MIN ? value + s.m * static_cast<float>(i < 16 ? s.t0 : s.t1) : value;
}

// X(number, format) for every format.
#define LM_FOR_BLOCKS(X) \
    X(LM_Q4_0, LmQ4_0)   \
    X(LM_Q4_1, LmQ4_1)   \
    X(LM_Q5_0, LmQ5_0)   \
    X(LM_Q5_1, LmQ5_1)   \
    X(LM_Q8_0, LmQ8_0)   \
    X(LM_IQ4_NL, LmIq4Nl) \
    X(LM_Q2_K, LmQ2K)    \
    X(LM_Q3_K, LmQ3K)    \
    X(LM_Q4_K, LmQ4K)    \
    X(LM_Q5_K, LmQ5K)    \
    X(LM_Q6_K, LmQ6K)    \
    X(LM_IQ4_XS, LmIq4Xs)

// The 32 elements `part` of a row of blocks as floats.
template <class F> LM_DEVICE void lm_read_part(const LmByte* row, LmLong part, float out[32]) {
    const LmByte* b = row + part / (F::LEN / 32) * F::SIZE;
    int inner = static_cast<int>(part % (F::LEN / 32));
    int q[8];
    F::codes(b, inner, q);
    LmScales s = F::scales(b, inner);
LM_UNROLL
    for (int i = 0; i < 32; i++) out[i] = lm_part_value<F>(q, s, i);
}

// Element i of a row of blocks: decodes its part, so for places that read few.
template <class F> LM_DEVICE float lm_read_one(const LmByte* row, LmLong i) {
    LmLong part = i / 32;
    const LmByte* b = row + part / (F::LEN / 32) * F::SIZE;
    int inner = static_cast<int>(part % (F::LEN / 32));
    int q[8];
    F::codes(b, inner, q);
    int j = static_cast<int>(i % 32), word = 0;
LM_UNROLL
    for (int k = 0; k < 8; k++) word = k == j / 4 ? q[k] : word;
    LmScales s = F::scales(b, inner);
    int code = static_cast<signed char>(static_cast<unsigned>(word) >> (8 * (j % 4)));
    float value = s.d * static_cast<float>(j < 16 ? s.s0 : s.s1) * static_cast<float>(code);
    return F::MIN ? value + s.m * static_cast<float>(j < 16 ? s.t0 : s.t1) : value;
}

// Element i of a row of blocks of any format; a call, so that each format is compiled once.
template <int UNUSED = 0> LM_CALLED float lm_read_blocks(int type, const LmByte* row, LmLong i) {
    switch (type) {
#define LM_CASE(number, F) \
    case number: return lm_read_one<F>(row, i);
        LM_FOR_BLOCKS(LM_CASE)
#undef LM_CASE
        default: return lm_nan();
    }
}

// Element i of a packed row of any readable type.
LM_DEVICE float lm_read(int type, const LmByte* row, LmLong i) {
    switch (type) {
        case LM_F32: return reinterpret_cast<const float*>(row)[i];
        case LM_F16: return lm_half_to_float(reinterpret_cast<const unsigned short*>(row)[i]);
        case LM_BF16: return lm_bfloat_to_float(reinterpret_cast<const unsigned short*>(row)[i]);
        default: return lm_read_blocks(type, row, i);
    }
}

#endif
