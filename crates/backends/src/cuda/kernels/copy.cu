// Elements into another layout or type: DUP, CPY, CONT, REPEAT, CONCAT.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_encode.h"

template <class T> LM_DEVICE void lm_move_one(const LmByte* from, LmByte* to) {
    *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);
}

// Moves a unit: addresses are multiples of its size for sizes 1, 2, 4 and 8, of 2 for other even sizes.
LM_DEVICE void lm_move(int size, const LmByte* from, LmByte* to) {
    switch (size) {
        case 1: return lm_move_one<unsigned char>(from, to);
        case 2: return lm_move_one<unsigned short>(from, to);
        case 4: return lm_move_one<unsigned>(from, to);
        case 8: return lm_move_one<unsigned long long>(from, to);
        default: break;
    }
    if (size % 2 != 0) {
        for (int i = 0; i < size; i++) to[i] = from[i];
        return;
    }
    for (int i = 0; i < size; i += 2) lm_move_one<unsigned short>(from + i, to + i);
}

// Bytes src0 to dst; both have l[0] of them without gaps.
extern "C" __global__ void lm_copy_bytes(LmArgs a) {
    const LmByte* from = static_cast<const LmByte*>(a.src[0].data);
    LmByte* to = static_cast<LmByte*>(a.dst.data);
    LmLong units = lm_aligned(from) && lm_aligned(to) ? a.l[0] / 16 : 0;
    for (LmLong i = lm_first(); i < units; i += lm_step()) lm_move_one<LmWords>(from + 16 * i, to + 16 * i);
    for (LmLong i = 16 * units + lm_first(); i < a.l[0]; i += lm_step()) to[i] = from[i];
}

// Units of src0 in their order into dst, which has as many. i[0]: bytes of a unit. l[0], l[1]: units of a row of dst, src0.
extern "C" __global__ void lm_copy_units(LmArgs a) {
    a.dst.ne[0] = a.l[0];
    a.src[0].ne[0] = a.l[1];
    LmLong n = lm_count(a.dst);
    for (LmLong i = lm_first(); i < n; i += lm_step()) {
        lm_move(a.i[0], lm_at(a.src[0], lm_index(a.src[0], i)), lm_at(a.dst, lm_index(a.dst, i)));
    }
}

// Elements of a float type in their order into another one.
extern "C" __global__ void lm_convert(LmArgs a) {
    LmLong n = lm_count(a.dst);
    for (LmLong i = lm_first(); i < n; i += lm_step()) {
        float value = lm_load(a.src[0].type, lm_at(a.src[0], lm_index(a.src[0], i)));
        lm_store(a.dst.type, lm_at(a.dst, lm_index(a.dst, i)), value);
    }
}

// Rows of a float type into rows of blocks, extents equal, rows packed; a thread writes a block.
extern "C" __global__ void lm_quantize(LmArgs a) {
    int length = lm_block_length(a.dst.type), size = a.src[0].type == LM_F32 ? 4 : 2;
    LmLong blocks = a.dst.ne[0] / length, n = blocks * lm_rows(a.dst);
    for (LmLong i = lm_first(); i < n; i += lm_step()) {
        LmIndex at = lm_split(i, blocks, a.dst.ne[1], a.dst.ne[2]);
        LmFloats x = {lm_row_at(a.src[0], at) + at.at[0] * length * size, a.src[0].type};
        lm_encode(a.dst.type, x, lm_at(a.dst, at));
    }
}

// 32 floats into a packed row of a float type, 16 bytes at once where they lie for it.
LM_DEVICE void lm_store_part(int type, LmByte* to, const float values[32]) {
    if (!lm_aligned(to)) {
        LM_UNROLL
        for (int i = 0; i < 32; i++) lm_store(type, to + i * (type == LM_F32 ? 4 : 2), values[i]);
    } else if (type == LM_F32) {
        LM_UNROLL
        for (int i = 0; i < 8; i++) {
            LmWords words;
            LM_UNROLL
            for (int k = 0; k < 4; k++) words.w[k] = static_cast<int>(lm_bits(values[4 * i + k]));
            reinterpret_cast<LmWords*>(to)[i] = words;
        }
    } else {
        LM_UNROLL
        for (int i = 0; i < 4; i++) {
            LmWords words;
            LM_UNROLL
            for (int k = 0; k < 4; k++) {
                float low = values[8 * i + 2 * k], high = values[8 * i + 2 * k + 1];
                unsigned first = type == LM_F16 ? lm_float_to_half(low) : lm_float_to_bfloat(low);
                unsigned second = type == LM_F16 ? lm_float_to_half(high) : lm_float_to_bfloat(high);
                words.w[k] = static_cast<int>(first | second << 16);
            }
            reinterpret_cast<LmWords*>(to)[i] = words;
        }
    }
}

// Rows of blocks into packed rows of a float type, extents equal; a thread decodes 32 elements.
extern "C" __global__ void lm_dequantize(LmArgs a) {
    LmLong parts = a.dst.ne[0] / 32, n = parts * lm_rows(a.dst);
    int size = a.dst.type == LM_F32 ? 4 : 2;
    for (LmLong i = lm_first(); i < n; i += lm_step()) {
        LmIndex at = lm_split(i, parts, a.dst.ne[1], a.dst.ne[2]);
        const LmByte* from = lm_row_at(a.src[0], at);
        float values[32];
        switch (a.src[0].type) {
#define LM_CASE(number, F) \
    case number: lm_read_part<F>(from, at.at[0], values); break;
            LM_FOR_BLOCKS(LM_CASE)
#undef LM_CASE
            default: continue;
        }
        lm_store_part(a.dst.type, lm_row_at(a.dst, at) + at.at[0] * 32 * size, values);
    }
}

// dst is src0 repeated. i[0]: bytes of an element.
extern "C" __global__ void lm_repeat(LmArgs a) {
    LmLong n = lm_count(a.dst);
    for (LmLong i = lm_first(); i < n; i += lm_step()) {
        LmIndex at = lm_index(a.dst, i);
        lm_move(a.i[0], lm_at(a.src[0], lm_wrap(a.src[0], at)), lm_at(a.dst, at));
    }
}

// dst is src0 followed by src1 along a dimension. i[0]: bytes of an element. i[1]: the dimension.
extern "C" __global__ void lm_concat(LmArgs a) {
    LmLong n = lm_count(a.dst);
    int dim = a.i[1];
    for (LmLong i = lm_first(); i < n; i += lm_step()) {
        LmIndex at = lm_index(a.dst, i), from = at;
        LmLong past = 0;
        bool second = false;
        for (int k = 0; k < 4; k++) {
            if (k != dim) continue;
            second = at.at[k] >= a.src[0].ne[k];
            past = second ? a.src[0].ne[k] : 0;
            from.at[k] -= past;
        }
        lm_move(a.i[0], second ? lm_at(a.src[1], from) : lm_at(a.src[0], from), lm_at(a.dst, at));
    }
}
