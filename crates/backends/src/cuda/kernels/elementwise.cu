// Operations element by element: pairs with broadcasting, one source, gated linear units.
#include "lm_args.h"
#include "lm_common.h"

enum LmPair { LM_ADD, LM_SUB, LM_MUL, LM_DIV };

LM_DEVICE float lm_pair(int op, float a, float b) {
    switch (op) {
        case LM_ADD: return a + b;
        case LM_SUB: return a - b;
        case LM_MUL: return a * b;
        default: return a / b;
    }
}

// dst = src0 op src1, src1 repeated. i[0]: LmPair. i[1]: all three are F32, contiguous and equally shaped.
extern "C" __global__ void lm_binary(LmArgs a) {
    LmLong n = lm_count(a.dst);
    int op = a.i[0];
    if (a.i[1]) {
        const float* x = static_cast<const float*>(a.src[0].data);
        const float* y = static_cast<const float*>(a.src[1].data);
        float* to = static_cast<float*>(a.dst.data);
        for (LmLong i = lm_first(); i < n; i += lm_step()) to[i] = lm_pair(op, x[i], y[i]);
        return;
    }
    for (LmLong i = lm_first(); i < n; i += lm_step()) {
        LmIndex at = lm_index(a.dst, i);
        float x = lm_load(a.src[0].type, lm_at(a.src[0], at));
        float y = lm_load(a.src[1].type, lm_at(a.src[1], lm_wrap(a.src[1], at)));
        lm_store(a.dst.type, lm_at(a.dst, at), lm_pair(op, x, y));
    }
}

// dst[:, i, t] = src0[:, i, t] + src1[:, src2[i, t]], all F32. An index outside the rows gives NaN.
extern "C" __global__ void lm_add_id(LmArgs a) {
    LmLong n = lm_count(a.dst);
    for (LmLong i = lm_first(); i < n; i += lm_step()) {
        LmIndex at = lm_index(a.dst, i);
        LmLong id = *reinterpret_cast<const int*>(lm_at(a.src[2], at.at[1], at.at[2], 0, 0));
        bool inside = id >= 0 && id < a.src[1].ne[1];
        if (!inside) lm_note_index(a, id);
        float bias = inside ? lm_load(LM_F32, lm_at(a.src[1], at.at[0], id, 0, 0)) : lm_nan();
        lm_store(LM_F32, lm_at(a.dst, at), lm_load(LM_F32, lm_at(a.src[0], at)) + bias);
    }
}

enum LmUnary {
    LM_ABS, LM_SGN, LM_NEG, LM_STEP, LM_RELU, LM_SQR, LM_SQRT, LM_FLOOR, LM_CEIL, LM_ROUND, LM_TRUNC, LM_EXP, LM_EXPM1,
    LM_SIGMOID, LM_SILU, LM_TANH, LM_ELU, LM_LOG, LM_SIN, LM_COS, LM_SOFTPLUS, LM_HARDSWISH, LM_HARDSIGMOID, LM_GELU,
    LM_GELU_QUICK, LM_GELU_ERF, LM_SCALE, LM_CLAMP, LM_FILL,
};

LM_DEVICE float lm_silu(float x) { return x / (1.0f + expf(-x)); }
LM_DEVICE float lm_hard_gate(float x) {
    float y = (x + 3.0f) / 6.0f;
    return y < 0.0f ? 0.0f : y > 1.0f ? 1.0f : y;
}
// Argument and result rounded to half, as the reference's tables do.
LM_DEVICE float lm_gelu(float x) {
    if (x <= -10.0f) return 0.0f;
    if (x >= 10.0f) return x;
    float h = lm_round_to_half(x);
    return lm_round_to_half(0.5f * h * (1.0f + tanhf(0.79788456f * h * (1.0f + 0.044715f * h * h))));
}
LM_DEVICE float lm_gelu_quick(float x) {
    float h = lm_round_to_half(x);
    return lm_round_to_half(h / (1.0f + expf(-1.702f * h)));
}
LM_DEVICE float lm_gelu_erf(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

LM_DEVICE float lm_apply(int op, float x, float p, float q) {
    switch (op) {
        case LM_ABS: return fabsf(x);
        case LM_SGN: return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
        case LM_NEG: return -x;
        case LM_STEP: return x > 0.0f ? 1.0f : 0.0f;
        case LM_RELU: return x > 0.0f ? x : 0.0f;
        case LM_SQR: return x * x;
        case LM_SQRT: return sqrtf(x);
        case LM_FLOOR: return floorf(x);
        case LM_CEIL: return ceilf(x);
        case LM_ROUND: return roundf(x);
        case LM_TRUNC: return truncf(x);
        case LM_EXP: return expf(x);
        case LM_EXPM1: return expf(x) - 1.0f;
        case LM_SIGMOID: return 1.0f / (1.0f + expf(-x));
        case LM_SILU: return lm_silu(x);
        case LM_TANH: return tanhf(x);
        case LM_ELU: return x > 0.0f ? x : expm1f(x);
        case LM_LOG: return logf(x);
        case LM_SIN: return sinf(x);
        case LM_COS: return cosf(x);
        case LM_SOFTPLUS: return x > 20.0f ? x : log1pf(expf(x));
        case LM_HARDSWISH: return x * lm_hard_gate(x);
        case LM_HARDSIGMOID: return lm_hard_gate(x);
        case LM_GELU: return lm_gelu(x);
        case LM_GELU_QUICK: return lm_gelu_quick(x);
        case LM_GELU_ERF: return lm_gelu_erf(x);
        case LM_SCALE: return q == 0.0f ? x * p : x * p + q;
        case LM_CLAMP: {
            float y = x < p ? p : x;
            return y > q ? q : y;
        }
        default: return p;
    }
}

// dst = f(src0). i[0]: LmUnary. i[1]: both are F32, contiguous and equally shaped. f[0], f[1]: factor and offset of
// LM_SCALE, bounds of LM_CLAMP, value of LM_FILL (whose source may be absent).
extern "C" __global__ void lm_unary(LmArgs a) {
    LmLong n = lm_count(a.dst);
    int op = a.i[0];
    if (a.i[1]) {
        const float* x = static_cast<const float*>(a.src[0].data);
        float* to = static_cast<float*>(a.dst.data);
        for (LmLong i = lm_first(); i < n; i += lm_step()) to[i] = lm_apply(op, x[i], a.f[0], a.f[1]);
        return;
    }
    for (LmLong i = lm_first(); i < n; i += lm_step()) {
        LmIndex at = lm_index(a.dst, i);
        float x = op == LM_FILL ? 0.0f : lm_load(a.src[0].type, lm_at(a.src[0], at));
        lm_store(a.dst.type, lm_at(a.dst, at), lm_apply(op, x, a.f[0], a.f[1]));
    }
}

enum LmGlu { LM_REGLU, LM_GEGLU, LM_SWIGLU, LM_SWIGLU_OAI, LM_GEGLU_ERF, LM_GEGLU_QUICK, LM_SWIGLU_CLAMP };

LM_DEVICE float lm_at_most(float x, float limit) { return x > limit ? limit : x; }
LM_DEVICE float lm_within(float x, float limit) {
    float y = lm_at_most(x, limit);
    return y < -limit ? -limit : y;
}

LM_DEVICE float lm_gate(int op, float x, float g, float alpha, float limit) {
    switch (op) {
        case LM_REGLU: return x > 0.0f ? x * g : 0.0f;
        case LM_GEGLU: return lm_gelu(x) * g;
        case LM_GEGLU_ERF: return lm_gelu_erf(x) * g;
        case LM_GEGLU_QUICK: return lm_gelu_quick(x) * g;
        case LM_SWIGLU_OAI: {
            float y = lm_at_most(x, limit);
            return y / (1.0f + expf(alpha * -y)) * (lm_within(g, limit) + 1.0f);
        }
        case LM_SWIGLU_CLAMP: return lm_silu(lm_at_most(x, limit)) * lm_within(g, limit);
        default: return lm_silu(x) * g;
    }
}

// dst = f(src0) * src1, all F32 with packed rows and dst's extents (halves of one source are two views of it).
// i[0]: LmGlu. f[0], f[1]: alpha and limit.
extern "C" __global__ void lm_glu(LmArgs a) {
    LmLong n = lm_count(a.dst);
    for (LmLong i = lm_first(); i < n; i += lm_step()) {
        LmIndex at = lm_index(a.dst, i);
        float x = lm_load(LM_F32, lm_at(a.src[0], at));
        float g = lm_load(LM_F32, lm_at(a.src[1], at));
        lm_store(LM_F32, lm_at(a.dst, at), lm_gate(a.i[0], x, g, a.f[0], a.f[1]));
    }
}
