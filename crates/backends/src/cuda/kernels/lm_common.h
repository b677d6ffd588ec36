// What the kernels share: places of elements, 16-bit floats, sums over a warp and a block.
#ifndef LM_COMMON_H
#define LM_COMMON_H

#ifdef LM_HOST
#define LM_DEVICE static inline
#define LM_CALLED static
#define LM_UNROLL
#define LM_DEVICE_MEMBER inline
#define LM_DEVICE_STATIC static inline
#else
#define LM_DEVICE static __device__ __forceinline__
#define LM_CALLED static __device__ __noinline__
#define LM_UNROLL _Pragma("unroll")
#define LM_DEVICE_MEMBER __device__ __forceinline__
#define LM_DEVICE_STATIC static __device__ __forceinline__
#define LM_DYNAMIC_SHARED(type, name)                       \
    extern __shared__ __align__(16) unsigned char lm_raw[]; \
    type* name = reinterpret_cast<type*>(lm_raw)
#endif

// ggml's numbers of the types.
enum LmType {
    LM_F32 = 0,
    LM_F16 = 1,
    LM_Q4_0 = 2,
    LM_Q4_1 = 3,
    LM_Q5_0 = 6,
    LM_Q5_1 = 7,
    LM_Q8_0 = 8,
    LM_Q2_K = 10,
    LM_Q3_K = 11,
    LM_Q4_K = 12,
    LM_Q5_K = 13,
    LM_Q6_K = 14,
    LM_IQ4_NL = 20,
    LM_IQ4_XS = 23,
    LM_I32 = 26,
    LM_I64 = 27,
    LM_BF16 = 30,
};

typedef unsigned char LmByte;
typedef long long LmLong;

#define LM_ALL_LANES 0xffffffffu

// The thread's number in the whole grid, and how many there are (grids and blocks have one dimension where this is used).
LM_DEVICE LmLong lm_first() { return static_cast<LmLong>(blockIdx.x) * blockDim.x + threadIdx.x; }
LM_DEVICE LmLong lm_step() { return static_cast<LmLong>(gridDim.x) * blockDim.x; }

LM_DEVICE LmLong lm_count(const LmTensor& t) { return t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3]; }
LM_DEVICE LmLong lm_rows(const LmTensor& t) { return t.ne[1] * t.ne[2] * t.ne[3]; }

// Indices of an element or, with at[0] = 0, of a row.
struct LmIndex {
    LmLong at[4];
};

// Splits a flat number by extents; numbers below 2^32 by the cheaper division.
LM_DEVICE LmIndex lm_split(LmLong flat, LmLong n0, LmLong n1, LmLong n2) {
    LmIndex index;
    if (flat >> 32 == 0 && n0 >> 31 == 0 && n1 >> 31 == 0 && n2 >> 31 == 0) {
        unsigned rest = static_cast<unsigned>(flat), part;
        unsigned s0 = static_cast<unsigned>(n0), s1 = static_cast<unsigned>(n1), s2 = static_cast<unsigned>(n2);
        part = rest / s0, index.at[0] = rest - part * s0, rest = part;
        part = rest / s1, index.at[1] = rest - part * s1, rest = part;
        part = rest / s2, index.at[2] = rest - part * s2;
        index.at[3] = part;
        return index;
    }
    index.at[0] = flat % n0, flat /= n0;
    index.at[1] = flat % n1, flat /= n1;
    index.at[2] = flat % n2;
    index.at[3] = flat / n2;
    return index;
}
LM_DEVICE LmIndex lm_index(const LmTensor& t, LmLong flat) { return lm_split(flat, t.ne[0], t.ne[1], t.ne[2]); }
LM_DEVICE LmIndex lm_row_index(const LmTensor& t, LmLong row) { return lm_split(row, 1, t.ne[1], t.ne[2]); }

// The same indices in a smaller tensor that repeats.
LM_DEVICE LmLong lm_wrap_one(LmLong i, LmLong n) { return n == 1 ? 0 : i < n ? i : i % n; }
LM_DEVICE LmIndex lm_wrap(const LmTensor& t, LmIndex index) {
    for (int k = 0; k < 4; k++) index.at[k] = lm_wrap_one(index.at[k], t.ne[k]);
    return index;
}

LM_DEVICE LmByte* lm_at(const LmTensor& t, LmLong i0, LmLong i1, LmLong i2, LmLong i3) {
    return static_cast<LmByte*>(t.data) + i0 * t.nb[0] + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3];
}
LM_DEVICE LmByte* lm_at(const LmTensor& t, const LmIndex& i) { return lm_at(t, i.at[0], i.at[1], i.at[2], i.at[3]); }
LM_DEVICE LmByte* lm_row_at(const LmTensor& t, const LmIndex& i) { return lm_at(t, 0, i.at[1], i.at[2], i.at[3]); }

// Notes an index that names no row in the program's word: the node's number above, the index cut to 32 bits below. The
// first node that meets one stays; of its threads any.
LM_DEVICE void lm_note_index(const LmArgs& a, LmLong index) {
    volatile unsigned long long* word = static_cast<volatile unsigned long long*>(a.src[5].data);
    if (!word || *word != 0) return;
    LmLong most = 0x7fffffffLL, cut = index > most ? most : index < -most - 1 ? -most - 1 : index;
    *word = static_cast<unsigned long long>(a.l[7]) << 32 | static_cast<unsigned>(cut);
}

// 16 bytes that are read or written at once, where their address allows it.
struct alignas(16) LmWords {
    int w[4];
};
LM_DEVICE bool lm_aligned(const void* at) { return (reinterpret_cast<unsigned long long>(at) & 15) == 0; }

LM_DEVICE unsigned lm_bits(float value) { return static_cast<unsigned>(__float_as_int(value)); }
LM_DEVICE float lm_from_bits(unsigned bits) { return __int_as_float(static_cast<int>(bits)); }
LM_DEVICE float lm_infinity() { return lm_from_bits(0x7f800000u); }
LM_DEVICE float lm_nan() { return lm_from_bits(0x7fc00000u); }

LM_DEVICE float lm_half_to_float(unsigned short half) {
#ifdef LM_HOST
    // Moving exponent and fraction into place leaves the value 2^112 times too small, subnormals included.
    unsigned rest = half & 0x7fffu;
    unsigned special = rest >= 0x7c00u ? 0x7f800000u : 0u;
    return lm_from_bits((half & 0x8000u) << 16 | lm_bits(lm_from_bits(rest << 13) * lm_from_bits(0x77800000u)) | special);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
#endif
}

// Nearest even; overflow gives infinity.
LM_DEVICE unsigned short lm_float_to_half(float value) {
#ifdef LM_HOST
    unsigned bits = lm_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    unsigned half;
    if (magnitude >= 143u << 23) {
        half = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (magnitude < 113u << 23) {
        half = lm_bits(lm_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    }
    return static_cast<unsigned short>(sign | half);
#else
    unsigned short half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
#endif
}

LM_DEVICE float lm_bfloat_to_float(unsigned short bits) { return lm_from_bits(static_cast<unsigned>(bits) << 16); }
// Nearest even; a NaN stays one.
LM_DEVICE unsigned short lm_float_to_bfloat(float value) {
    unsigned bits = lm_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>(bits >> 16 | 64u);
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
LM_DEVICE float lm_round_to_half(float value) { return lm_half_to_float(lm_float_to_half(value)); }
LM_DEVICE float lm_round_to_bfloat(float value) { return lm_bfloat_to_float(lm_float_to_bfloat(value)); }

// One element of a float type.
LM_DEVICE float lm_load(int type, const LmByte* at) {
    if (type == LM_F32) return *reinterpret_cast<const float*>(at);
    unsigned short bits = *reinterpret_cast<const unsigned short*>(at);
    return type == LM_F16 ? lm_half_to_float(bits) : lm_bfloat_to_float(bits);
}
LM_DEVICE void lm_store(int type, LmByte* at, float value) {
    if (type == LM_F32) {
        *reinterpret_cast<float*>(at) = value;
    } else {
        *reinterpret_cast<unsigned short*>(at) = type == LM_F16 ? lm_float_to_half(value) : lm_float_to_bfloat(value);
    }
}

// Combines the values of a warp's 32 lanes as a butterfly does: all lanes get the result.
struct LmSum {
    template <class T> LM_DEVICE_MEMBER T operator()(T a, T b) const { return a + b; }
};
struct LmLarger {
    // NaN does not count.
    template <class T> LM_DEVICE_MEMBER T operator()(T a, T b) const { return b > a ? b : a; }
};

template <class Op, class T> LM_DEVICE T lm_warp_fold(T value, Op op) {
#ifdef LM_HOST
    // The butterfly in one exchange.
    const uint64_t* lanes = lm_host_exchange(lm_host_pack(value));
    T values[32];
    for (unsigned k = 0; k < 32; k++) values[k] = lm_host_lane_value<T>(lanes, k);
    for (unsigned half = 16; half > 0; half /= 2) {
        for (unsigned k = 0; k < half; k++) values[k] = op(values[k], values[k + half]);
    }
    return values[0];
#else
    LM_UNROLL
    for (int mask = 16; mask > 0; mask >>= 1) value = op(value, __shfl_xor_sync(LM_ALL_LANES, value, mask));
    return value;
#endif
}

// Combines the values of a block of one dimension (whole warps): all threads get the result. `space` holds 32 values that
// nobody else uses; `neutral` stands for the lanes of absent warps.
template <class Op, class T> LM_DEVICE T lm_block_fold(T value, Op op, T neutral, T* space) {
    value = lm_warp_fold(value, op);
    if (blockDim.x == 32) return value;
    unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    __syncthreads();
    if (lane == 0) space[warp] = value;
    __syncthreads();
    return lm_warp_fold(lane < warps ? space[lane] : neutral, op);
}

#endif
