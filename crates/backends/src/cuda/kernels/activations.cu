// Activations to 8 bits, for products with blocks: one record (lm_product.h) per row.
#include "lm_args.h"
#include "lm_common.h"
#include "lm_product.h"

// A warp rounds 32 or 256 values. src0: rows of a float type, any strides. dst: records, ne[0] their bytes, one for each
// row of src0 in order. i[0]: blocks of 256.
extern "C" __global__ void lm_activations(LmArgs a) {
    const LmTensor& x = a.src[0];
    LmLong k = x.ne[0], length = a.i[0] ? 256 : 32, blocks = k / length, n = blocks * lm_rows(x);
    unsigned lane = threadIdx.x & 31;
    for (LmLong flat = lm_first() / 32; flat < n; flat += lm_step() / 32) {
        LmIndex at = lm_split(flat, blocks, x.ne[1], x.ne[2]);
        LmByte* record = static_cast<LmByte*>(a.dst.data) + flat / blocks * a.dst.nb[1];
        signed char* codes = reinterpret_cast<signed char*>(record);
        float* d = reinterpret_cast<float*>(record + k);
        float* t0 = d + k / 32;
        float* t1 = t0 + k / 32;
        float values[8], most = 0.0f;
        for (int i = 0; i < length / 32; i++) {
            LmLong element = at.at[0] * length + i * 32 + lane;
            values[i] = lm_load(x.type, lm_at(x, element, at.at[1], at.at[2], at.at[3]));
            most = fabsf(values[i]) > most ? fabsf(values[i]) : most;
        }
        most = lm_warp_fold(most, LmLarger());
        float factor = most == 0.0f ? 0.0f : 127.0f / most;
        float scale = !a.i[0] ? lm_round_to_half(most / 127.0f) : most == 0.0f ? 0.0f : 1.0f / factor;
        for (int i = 0; i < length / 32; i++) {
            LmLong part = at.at[0] * (length / 32) + i;
            int code = static_cast<int>(rintf(values[i] * factor));
            codes[part * 32 + lane] = static_cast<signed char>(code);
            int first = lm_warp_fold(lane < 16 ? code : 0, LmSum());
            int second = lm_warp_fold(lane < 16 ? 0 : code, LmSum());
            if (lane != 0) continue;
            d[part] = scale;
            t0[part] = a.i[0] ? static_cast<float>(first) : lm_round_to_half(most / 127.0f * static_cast<float>(first + second));
            t1[part] = static_cast<float>(second);
        }
    }
}
