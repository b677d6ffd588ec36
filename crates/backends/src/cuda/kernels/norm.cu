// Rows scaled by a statistic of theirs, and soft maximum. A block of threads takes a row.
#include "lm_args.h"
#include "lm_common.h"

enum LmNorm { LM_RMS_NORM, LM_L2_NORM, LM_NORM };

LM_DEVICE double lm_row_sum(double mine, double* space) { return lm_block_fold(mine, LmSum(), 0.0, space); }

// Sum of (x - shift)^2: squares in single, the sum in double precision.
LM_DEVICE double lm_squares(const float* x, LmLong n, float shift, double* space) {
    double mine = 0.0;
    for (LmLong i = threadIdx.x; i < n; i += blockDim.x) {
        float v = x[i] - shift;
        mine += static_cast<double>(v * v);
    }
    return lm_row_sum(mine, space);
}

// dst = src0 with every row normalised; F32, rows packed. i[0]: LmNorm. f[0]: epsilon.
extern "C" __global__ void lm_norm(LmArgs a) {
    __shared__ double space[32];
    LmLong n = a.dst.ne[0];
    for (LmLong row = blockIdx.x; row < lm_rows(a.dst); row += gridDim.x) {
        LmIndex at = lm_row_index(a.dst, row);
        const float* x = reinterpret_cast<const float*>(lm_row_at(a.src[0], at));
        float* y = reinterpret_cast<float*>(lm_row_at(a.dst, at));
        float shift = 0.0f, scale;
        if (a.i[0] == LM_NORM) {
            double mine = 0.0;
            for (LmLong i = threadIdx.x; i < n; i += blockDim.x) mine += static_cast<double>(x[i]);
            shift = static_cast<float>(lm_row_sum(mine, space) / static_cast<double>(n));
        }
        double squares = lm_squares(x, n, shift, space);
        if (a.i[0] == LM_L2_NORM) {
            float length = static_cast<float>(sqrt(squares));
            scale = 1.0f / (length > a.f[0] ? length : a.f[0]);
        } else {
            scale = 1.0f / sqrtf(static_cast<float>(squares / static_cast<double>(n)) + a.f[0]);
        }
        for (LmLong i = threadIdx.x; i < n; i += blockDim.x) y[i] = (x[i] - shift) * scale;
    }
}

// ALiBi's slope of a head. f[1]: largest bias (0: slope 1). f[2], f[3]: the two bases. l[0]: heads in the first sequence.
LM_DEVICE float lm_slope(const LmArgs& a, LmLong head) {
    if (a.f[1] <= 0.0f) return 1.0f;
    return head < a.l[0] ? powf(a.f[2], static_cast<float>(head + 1)) : powf(a.f[3], static_cast<float>(2 * (head - a.l[0]) + 1));
}

LM_DEVICE float lm_masked(float score, float slope, float bias) { return bias == -lm_infinity() ? bias : score + slope * bias; }

// dst = softmax(src0 * f[0] + slope * src1) by rows, a sink per head (src2) only taking weight away; F32 (the mask also
// F16), rows packed; a row without any score above minus infinity becomes zeros. dst may stand on src0 or src1.
extern "C" __global__ void lm_soft_max(LmArgs a) {
    __shared__ float space[32];
    __shared__ double sums[32];
    LmLong n = a.dst.ne[0];
    for (LmLong row = blockIdx.x; row < lm_rows(a.dst); row += gridDim.x) {
        LmIndex at = lm_row_index(a.dst, row);
        const float* x = reinterpret_cast<const float*>(lm_row_at(a.src[0], at));
        float* y = reinterpret_cast<float*>(lm_row_at(a.dst, at));
        const LmTensor& m = a.src[1];
        const LmByte* mask = nullptr;
        if (m.data) mask = lm_at(m, 0, at.at[1], lm_wrap_one(at.at[2], m.ne[2]), lm_wrap_one(at.at[3], m.ne[3]));
        int mask_size = m.type == LM_F32 ? 4 : 2;
        float slope = mask ? lm_slope(a, at.at[2]) : 1.0f;
        float sink = a.src[2].data ? static_cast<const float*>(a.src[2].data)[at.at[2]] : -lm_infinity();
        float most = -lm_infinity();
        for (LmLong i = threadIdx.x; i < n; i += blockDim.x) {
            float score = x[i] * a.f[0];
            if (mask) score = lm_masked(score, slope, lm_load(m.type, mask + i * mask_size));
            y[i] = score;
            most = score > most ? score : most;
        }
        most = lm_block_fold(most, LmLarger(), -lm_infinity(), space);
        most = most > sink ? most : sink;
        if (most == -lm_infinity()) {
            for (LmLong i = threadIdx.x; i < n; i += blockDim.x) y[i] = 0.0f;
            continue;
        }
        double sum = 0.0;
        for (LmLong i = threadIdx.x; i < n; i += blockDim.x) {
            float weight = expf(y[i] - most);
            y[i] = weight;
            sum += static_cast<double>(weight);
        }
        sum = lm_block_fold(sum, LmSum(), 0.0, sums) + static_cast<double>(expf(sink - most));
        float inverse = static_cast<float>(1.0 / sum);
        for (LmLong i = threadIdx.x; i < n; i += blockDim.x) y[i] *= inverse;
    }
}
