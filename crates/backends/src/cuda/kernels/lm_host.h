// CUDA's language on the host: each thread of a block is a fiber, barriers and shuffles switch between them.
//
// Kernels that never synchronise run thread after thread without fibers. A block runs on one thread of the host; shared
// memory belongs to that thread and is filled with a NaN pattern before each block. Threads run in ascending order in even
// blocks and in descending order in odd ones, so that a missing barrier shows. A barrier that not all threads reach is an
// error of the launch.
#ifndef LM_HOST_H
#define LM_HOST_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

struct LmDim {
    unsigned x, y, z;
};

// Sizes of the dynamic shared memory, the largest block, and a fiber's stack.
enum { LM_HOST_SHARED = 228 * 1024, LM_HOST_THREADS = 1024, LM_HOST_STACK = 64 * 1024 };

// What the running thread sees of itself.
struct LmHostView {
    LmDim thread, block, block_dim, grid_dim;
};
extern thread_local LmHostView lm_host_view;

void lm_host_sync_block();
void lm_host_sync_warp();
// Puts a value where the warp's lanes see it, waits for all of them, and returns the 32 values.
const uint64_t* lm_host_exchange(uint64_t value);
// The same for six words of each lane: lane n's stand from 6 n on.
const int* lm_host_exchange_six(const int words[6]);
unsigned char* lm_host_dynamic_shared();

#define __global__
#define __device__
#define __constant__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define threadIdx (lm_host_view.thread)
#define blockIdx (lm_host_view.block)
#define blockDim (lm_host_view.block_dim)
#define gridDim (lm_host_view.grid_dim)
#define __syncthreads() lm_host_sync_block()
#define __syncwarp(...) lm_host_sync_warp()
// Shared memory whose size the launch gives.
#define LM_DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(lm_host_dynamic_shared())

template <class T> static inline T lm_host_lane_value(const uint64_t* lanes, unsigned lane) {
    T value;
    memcpy(&value, &lanes[lane & 31], sizeof value);
    return value;
}
template <class T> static inline uint64_t lm_host_pack(T value) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}
template <class T> static inline T __shfl_xor_sync(unsigned, T value, int mask) {
    const uint64_t* lanes = lm_host_exchange(lm_host_pack(value));
    return lm_host_lane_value<T>(lanes, (threadIdx.x & 31) ^ static_cast<unsigned>(mask));
}
template <class T> static inline T __shfl_down_sync(unsigned, T value, unsigned delta) {
    const uint64_t* lanes = lm_host_exchange(lm_host_pack(value));
    unsigned lane = threadIdx.x & 31;
    return lm_host_lane_value<T>(lanes, lane + delta < 32 ? lane + delta : lane);
}
template <class T> static inline T __shfl_sync(unsigned, T value, int from) {
    const uint64_t* lanes = lm_host_exchange(lm_host_pack(value));
    return lm_host_lane_value<T>(lanes, static_cast<unsigned>(from));
}

// Blocks run one after another, so an atomic operation is a plain one.
template <class T> static inline T atomicAdd(T* at, T value) {
    T old = *at;
    *at = old + value;
    return old;
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) {
        c += static_cast<int8_t>(static_cast<unsigned>(a) >> (8 * i)) * static_cast<int8_t>(static_cast<unsigned>(b) >> (8 * i));
    }
    return c;
}
static inline float __int_as_float(int bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline int __float_as_int(float value) {
    int bits;
    memcpy(&bits, &value, 4);
    return bits;
}

// A kernel: the file it stands in, its name, and which operands it reads and writes (bit 0 the result, bit 1 + n source n).
extern "C" {
struct LmHostKernel {
    const char* source;
    const char* name;
    void (*fn)(LmArgs);
    unsigned reads, writes;
};
// All kernels, in the order of kernels.def.
const LmHostKernel* lm_host_kernels(size_t* n);
// Runs a kernel to its end. 0: done. 1: a bad grid, block or amount of shared memory. 2: a barrier that not all threads
// of a warp or block reached.
int lm_host_launch(const LmHostKernel*, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes, const LmArgs*);
}

#endif
