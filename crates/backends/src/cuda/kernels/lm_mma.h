// Matrix units (sm_80 and later; a trap before): d += a * b by a warp, a of 16 rows, b of 8 columns, d 16 x 8.
//
// Lane n holds, with g = n / 4 and t = n % 4: of a row g (words 0 and 2) and row g + 8 (words 1 and 3); of b column g; of d
// rows g (0, 1) and g + 8 (2, 3) of columns 2 t and 2 t + 1. Word w of a row or column holds the elements of one 32-bit
// word at k = t words (words 0, 1 of a, 0 of b), or as many behind the middle of k (words 2, 3 of a, 1 of b).
#ifndef LM_MMA_H
#define LM_MMA_H

#include "lm_common.h"

#if defined(LM_HOST)
// A word of a lane's six: a's four, then b's two.
LM_DEVICE int lm_six(const int* all, int lane, int word) { return all[6 * lane + word]; }

// Each element of d as the layout above says; `dot(words of a, words of b)` adds up one word of each.
template <class D, class Dot> LM_DEVICE void lm_mma_host(D d[4], const int a[4], const int b[2], Dot dot) {
    int words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const int* all = lm_host_exchange_six(words);
    int g = (threadIdx.x & 31) / 4, t = (threadIdx.x & 31) % 4;
    for (int i = 0; i < 4; i++) {
        int column = 2 * t + i % 2;
        for (int k = 0; k < 4; k++) {
            d[i] = dot(lm_six(all, 4 * g + k, i / 2), lm_six(all, 4 * column + k, 4), d[i]);
            d[i] = dot(lm_six(all, 4 * g + k, 2 + i / 2), lm_six(all, 4 * column + k, 5), d[i]);
        }
    }
}
struct LmDotBytes {
    int operator()(int a, int b, int d) const { return __dp4a(a, b, d); }
};
template <class F> struct LmDotPairs {
    float operator()(int a, int b, float d) const {
        for (int k = 0; k < 2; k++) {
            unsigned short x = static_cast<unsigned short>(a >> (16 * k)), y = static_cast<unsigned short>(b >> (16 * k));
            d += F::from(x) * F::from(y);
        }
        return d;
    }
};
#endif

// Signed bytes, k = 32.
LM_DEVICE void lm_mma_32(int d[4], const int a[4], const int b[2]) {
#if defined(LM_HOST)
    lm_mma_host(d, a, b, LmDotBytes());
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm("trap;");
#endif
}

// Signed bytes, k = 16: words 0 and 1 of a, word 0 of b.
LM_DEVICE void lm_mma_16(int d[4], int a0, int a1, int b0) {
#if defined(LM_HOST)
    int a[4] = {a0, a1, 0, 0}, b[2] = {b0, 0};
    lm_mma_host(d, a, b, LmDotBytes());
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
#else
    asm("trap;");
#endif
}

// 16-bit floats, two to a word, k = 16, added up in single precision.
struct LmHalves {
    enum { TYPE = LM_F16 };
    LM_DEVICE_STATIC unsigned short to(float x) { return lm_float_to_half(x); }
    LM_DEVICE_STATIC float from(unsigned short x) { return lm_half_to_float(x); }
    LM_DEVICE_STATIC void mma(float d[4], const int a[4], const int b[2]) {
#if defined(LM_HOST)
        lm_mma_host(d, a, b, LmDotPairs<LmHalves>());
#elif __CUDA_ARCH__ >= 800
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
        asm("trap;");
#endif
    }
};
struct LmBfloats {
    enum { TYPE = LM_BF16 };
    LM_DEVICE_STATIC unsigned short to(float x) { return lm_float_to_bfloat(x); }
    LM_DEVICE_STATIC float from(unsigned short x) { return lm_bfloat_to_float(x); }
    LM_DEVICE_STATIC void mma(float d[4], const int a[4], const int b[2]) {
#if defined(LM_HOST)
        lm_mma_host(d, a, b, LmDotPairs<LmBfloats>());
#elif __CUDA_ARCH__ >= 800
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
        asm("trap;");
#endif
    }
};

#endif
