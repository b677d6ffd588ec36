// Rotary position embedding: adjacent pairs or halves, with frequency factors and YaRN.
#include "lm_args.h"
#include "lm_common.h"

// The angle and magnitude of a pair. f[0] frequency scale, f[1] extrapolation, f[2] magnitude, f[3] and f[4] the first and
// last pair of YaRN's ramp, f[5] the factor from angle to angle.
struct LmRotation {
    float cosine, sine;
};
LM_DEVICE LmRotation lm_rotation(const LmArgs& a, int position, int pair) {
    // Multiplied up from pair to pair, as the reference does: its rounding shows at large positions.
    float theta = static_cast<float>(position);
    for (int k = 0; k < pair; k++) theta *= a.f[5];
    if (a.src[2].data) theta /= static_cast<const float*>(a.src[2].data)[pair];
    float angle = a.f[0] * theta, magnitude = a.f[2];
    if (a.f[1] != 0.0f) {
        float width = a.f[4] - a.f[3];
        float along = (static_cast<float>(pair) - a.f[3]) / (width > 0.001f ? width : 0.001f);
        along = along < 0.0f ? 0.0f : along > 1.0f ? 1.0f : along;
        float mix = (1.0f - along) * a.f[1];
        angle = angle * (1.0f - mix) + theta * mix;
        magnitude *= 1.0f + 0.1f * logf(1.0f / a.f[0]);
    }
    LmRotation rotation = {cosf(angle) * magnitude, sinf(angle) * magnitude};
    return rotation;
}

// dst = src0 rotated by the positions src1 (factors: src2); F32 or F16, rows packed; dst may stand on src0.
// i[0]: rotated channels. i[1]: halves, not adjacent pairs. i[2]: first rotated channel. A thread takes two channels:
// the pairs first, then what stays.
extern "C" __global__ void lm_rope(LmArgs a) {
    int dims = a.i[0], pairs = dims / 2, offset = a.i[2], type = a.dst.type, size = type == LM_F32 ? 4 : 2;
    LmLong width = a.dst.ne[0], tasks = pairs + (width - dims), n = tasks * lm_rows(a.dst);
    for (LmLong flat = lm_first(); flat < n; flat += lm_step()) {
        LmIndex at = lm_split(flat, tasks, a.dst.ne[1], a.dst.ne[2]);
        const LmByte* x = lm_row_at(a.src[0], at);
        LmByte* y = lm_row_at(a.dst, at);
        LmLong task = at.at[0];
        if (task >= pairs) {
            LmLong rest = task - pairs, channel = rest < offset ? rest : rest + dims;
            lm_store(type, y + channel * size, lm_load(type, x + channel * size));
            continue;
        }
        int position = static_cast<const int*>(a.src[1].data)[at.at[2]];
        LmRotation r = lm_rotation(a, position, static_cast<int>(task));
        LmLong first = offset + (a.i[1] ? task : 2 * task), second = first + (a.i[1] ? pairs : 1);
        float p = lm_load(type, x + first * size), q = lm_load(type, x + second * size);
        lm_store(type, y + first * size, p * r.cosine - q * r.sine);
        lm_store(type, y + second * size, p * r.sine + q * r.cosine);
    }
}
