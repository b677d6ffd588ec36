// Rows made shorter or put in order: SUM_ROWS, MEAN, SUM, ARGMAX, ARGSORT. F32 rows are packed.
#include "lm_args.h"
#include "lm_common.h"

// Sums of rows in double precision, divided by f[0], a block of threads per row. i[0]: all rows into one number.
extern "C" __global__ void lm_sum_rows(LmArgs a) {
    __shared__ double space[32];
    const LmTensor& x = a.src[0];
    LmLong rows = lm_rows(x), n = x.ne[0];
    double total = 0.0;
    for (LmLong row = blockIdx.x; row < rows; row += gridDim.x) {
        LmIndex at = lm_row_index(x, row);
        const float* values = reinterpret_cast<const float*>(lm_row_at(x, at));
        double mine = 0.0;
        for (LmLong i = threadIdx.x; i < n; i += blockDim.x) mine += static_cast<double>(values[i]);
        if (a.i[0]) {
            total += mine;
            continue;
        }
        mine = lm_block_fold(mine, LmSum(), 0.0, space);
        if (threadIdx.x == 0) lm_store(LM_F32, lm_row_at(a.dst, at), static_cast<float>(mine / static_cast<double>(a.f[0])));
    }
    if (a.i[0]) {
        total = lm_block_fold(total, LmSum(), 0.0, space);
        if (threadIdx.x == 0) *static_cast<float*>(a.dst.data) = static_cast<float>(total);
    }
}

// Bits that sort as the float does; zeros are equal.
LM_DEVICE unsigned lm_ordered(float value) {
    unsigned bits = lm_bits(value + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct LmLargest {
    LM_DEVICE_MEMBER LmLong operator()(LmLong a, LmLong b) const { return a > b ? a : b; }
};

// Index of the largest element of each row, the first one on a tie. NaN does not count, but where it stands first.
extern "C" __global__ void lm_argmax(LmArgs a) {
    __shared__ LmLong space[32];
    const LmTensor& x = a.src[0];
    LmLong n = x.ne[0];
    for (LmLong row = blockIdx.x; row < lm_rows(x); row += gridDim.x) {
        const float* values = reinterpret_cast<const float*>(lm_row_at(x, lm_row_index(x, row)));
        // The value's order above the complement of its index: the largest is the answer.
        LmLong best = 0;
        for (LmLong i = threadIdx.x; i < n; i += blockDim.x) {
            unsigned order = values[i] == values[i] ? lm_ordered(values[i]) : 0u;
            LmLong key = static_cast<LmLong>(order) << 31 | (0x7fffffffll - i);
            best = key > best ? key : best;
        }
        best = lm_block_fold(best, LmLargest(), 0ll, space);
        int index = values[0] == values[0] ? static_cast<int>(0x7fffffffll - (best & 0x7fffffffll)) : 0;
        if (threadIdx.x == 0) static_cast<int*>(a.dst.data)[row] = index;
    }
}

// Indices that sort each row, ascending or (i[0]) descending; equal elements keep their order. A thread finds the place of
// one element by counting those before it.
extern "C" __global__ void lm_argsort(LmArgs a) {
    const LmTensor& x = a.src[0];
    LmLong n = x.ne[0], count = lm_count(x);
    for (LmLong flat = lm_first(); flat < count; flat += lm_step()) {
        LmIndex at = lm_index(x, flat);
        const float* values = reinterpret_cast<const float*>(lm_row_at(x, at));
        LmLong i = at.at[0], place = 0;
        unsigned flip = a.i[0] ? 0xffffffffu : 0u, mine = lm_ordered(values[i]) ^ flip;
        for (LmLong k = 0; k < n; k++) {
            unsigned other = lm_ordered(values[k]) ^ flip;
            place += other < mine || (other == mine && k < i);
        }
        reinterpret_cast<int*>(lm_row_at(a.dst, at))[place] = static_cast<int>(i);
    }
}
