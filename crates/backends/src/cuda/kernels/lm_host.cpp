// All kernels compiled for the host, their registry, and the fibers that run them.
#define LM_HOST 1
#include "lm_args.h"
#include "lm_host.h"
#include "lm_common.h"

#include "activations.cu"
#include "attention.cu"
#include "copy.cu"
#include "elementwise.cu"
#include "experts.cu"
#include "mul_mat_id.cu"
#include "mul_mat_mma.cu"
#include "mul_mat_mma_id.cu"
#include "mul_mat_tile.cu"
#include "mul_mat_tile_id.cu"
#include "mul_mat_vec.cu"
#include "norm.cu"
#include "reduce.cu"
#include "rope.cu"
#include "rows.cu"

#include <new>
#include <sys/mman.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

thread_local LmHostView lm_host_view;

namespace {

enum State { RUNNABLE, AT_WARP, AT_BLOCK, DONE };
enum Kind { LM_PLAIN, LM_SYNC };

struct Fiber {
#if defined(__x86_64__)
    void* stack_pointer;
#else
    ucontext_t context;
#endif
    LmDim thread;
    State state;
    unsigned phase;
};

struct Warp {
    uint64_t slots[2][32];
    int words[2][32 * 6];
};

// A worker's fibers and shared memory; made at its first launch that needs them.
struct Worker {
    Fiber fibers[LM_HOST_THREADS];
    Warp warps[LM_HOST_THREADS / 32];
    alignas(128) unsigned char shared[LM_HOST_SHARED];
    unsigned char* stacks;
    unsigned current;
#if defined(__x86_64__)
    void* scheduler;
#else
    ucontext_t scheduler;
#endif
    void (*fn)(LmArgs);
    const LmArgs* args;
};

struct WorkerSlot {
    Worker* worker = nullptr;
    ~WorkerSlot() {
        if (!worker) return;
        munmap(worker->stacks, static_cast<size_t>(LM_HOST_STACK) * LM_HOST_THREADS);
        delete worker;
    }
};
thread_local WorkerSlot slot;

Worker* get_worker() {
    if (slot.worker) return slot.worker;
    Worker* worker = new (std::nothrow) Worker;
    if (!worker) return nullptr;
    size_t bytes = static_cast<size_t>(LM_HOST_STACK) * LM_HOST_THREADS;
    void* stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        delete worker;
        return nullptr;
    }
    worker->stacks = static_cast<unsigned char*>(stacks);
    return slot.worker = worker;
}

#if defined(__x86_64__)
extern "C" void lm_host_switch(void** save, void* load);
asm(R"(
.text
.p2align 4
.local lm_host_switch
.type lm_host_switch,@function
lm_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size lm_host_switch,.-lm_host_switch
)");
#endif

void to_scheduler(Worker* worker) {
    Fiber& fiber = worker->fibers[worker->current];
#if defined(__x86_64__)
    lm_host_switch(&fiber.stack_pointer, worker->scheduler);
#else
    swapcontext(&fiber.context, &worker->scheduler);
#endif
}

void fiber_main() {
    Worker* worker = slot.worker;
    worker->fn(*worker->args);
    worker->fibers[worker->current].state = DONE;
    to_scheduler(worker);
    __builtin_trap();
}

void start(Worker* worker, unsigned i, LmDim thread) {
    Fiber& fiber = worker->fibers[i];
    unsigned char* stack = worker->stacks + static_cast<size_t>(LM_HOST_STACK) * i;
#if defined(__x86_64__)
    // The first switch pops six registers and returns into `fiber_main`, on a stack aligned as after a call.
    void** top = reinterpret_cast<void**>(stack + LM_HOST_STACK) - 8;
    for (int k = 0; k < 8; k++) top[k] = nullptr;
    top[6] = reinterpret_cast<void*>(&fiber_main);
    fiber.stack_pointer = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack;
    fiber.context.uc_stack.ss_size = LM_HOST_STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
#endif
    fiber.thread = thread;
    fiber.state = RUNNABLE;
    fiber.phase = 0;
}

void resume(Worker* worker, unsigned i) {
    worker->current = i;
    lm_host_view.thread = worker->fibers[i].thread;
#if defined(__x86_64__)
    lm_host_switch(&worker->scheduler, worker->fibers[i].stack_pointer);
#else
    swapcontext(&worker->scheduler, &worker->fibers[i].context);
#endif
}

// Runs a warp until every lane is done or at the block's barrier.
bool run_warp(Worker* worker, unsigned first, bool backwards) {
    for (;;) {
        unsigned waiting = 0;
        for (unsigned k = 0; k < 32; k++) {
            unsigned i = first + (backwards ? 31 - k : k);
            if (worker->fibers[i].state == RUNNABLE) resume(worker, i);
            waiting += worker->fibers[i].state == AT_WARP;
        }
        if (waiting == 0) return true;
        if (waiting != 32) return false;
        for (unsigned k = 0; k < 32; k++) worker->fibers[first + k].state = RUNNABLE;
    }
}

bool run_block(Worker* worker, unsigned threads, bool backwards) {
    unsigned warps = threads / 32;
    for (;;) {
        for (unsigned k = 0; k < warps; k++) {
            unsigned warp = backwards ? warps - 1 - k : k;
            if (!run_warp(worker, warp * 32, backwards)) return false;
        }
        unsigned waiting = 0;
        for (unsigned i = 0; i < threads; i++) waiting += worker->fibers[i].state == AT_BLOCK;
        if (waiting == 0) return true;
        if (waiting != threads) return false;
        for (unsigned i = 0; i < threads; i++) worker->fibers[i].state = RUNNABLE;
    }
}

LmDim thread_of(unsigned i, const unsigned block[3]) {
    return LmDim{i % block[0], i / block[0] % block[1], i / (block[0] * block[1])};
}

bool run_with_fibers(Worker* worker, const unsigned block[3], unsigned shared, bool backwards) {
    unsigned threads = block[0] * block[1] * block[2];
    memset(worker->shared, 0xff, shared);
    for (unsigned i = 0; i < threads; i++) start(worker, i, thread_of(i, block));
    return run_block(worker, threads, backwards);
}

void run_plain(void (*fn)(LmArgs), const unsigned block[3], const LmArgs* args) {
    unsigned threads = block[0] * block[1] * block[2];
    for (unsigned i = 0; i < threads; i++) {
        lm_host_view.thread = thread_of(i, block);
        fn(*args);
    }
}

const LmHostKernel KERNELS[] = {
#define LM_KERNEL(source, name, reads, writes, kind) {source, #name, name, reads, writes},
#include "kernels.def"
#undef LM_KERNEL
};
const Kind KINDS[] = {
#define LM_KERNEL(source, name, reads, writes, kind) kind,
#include "kernels.def"
#undef LM_KERNEL
};
const size_t COUNT = sizeof KERNELS / sizeof KERNELS[0];

}  // namespace

void lm_host_sync_block() {
    Worker* worker = slot.worker;
    worker->fibers[worker->current].state = AT_BLOCK;
    to_scheduler(worker);
}

void lm_host_sync_warp() {
    Worker* worker = slot.worker;
    worker->fibers[worker->current].state = AT_WARP;
    to_scheduler(worker);
}

const uint64_t* lm_host_exchange(uint64_t value) {
    Worker* worker = slot.worker;
    unsigned i = worker->current;
    // Two buffers in turn: nobody writes one again before all lanes have read it and met once more.
    uint64_t* slots = worker->warps[i / 32].slots[worker->fibers[i].phase++ & 1];
    slots[i & 31] = value;
    lm_host_sync_warp();
    return slots;
}

const int* lm_host_exchange_six(const int words[6]) {
    Worker* worker = slot.worker;
    unsigned i = worker->current;
    int* all = worker->warps[i / 32].words[worker->fibers[i].phase++ & 1];
    memcpy(all + 6 * (i & 31), words, 6 * sizeof(int));
    lm_host_sync_warp();
    return all;
}

unsigned char* lm_host_dynamic_shared() { return slot.worker->shared; }

extern "C" const LmHostKernel* lm_host_kernels(size_t* n) {
    *n = COUNT;
    return KERNELS;
}

extern "C" int lm_host_launch(const LmHostKernel* kernel, const unsigned grid[3], const unsigned block[3],
                              unsigned shared_bytes, const LmArgs* args) {
    size_t index = static_cast<size_t>(kernel - KERNELS);
    uint64_t threads = static_cast<uint64_t>(block[0]) * block[1] * block[2];
    bool fits = index < COUNT && threads > 0 && threads <= LM_HOST_THREADS && shared_bytes <= LM_HOST_SHARED &&
                grid[0] > 0 && grid[0] <= 0x7fffffffu && grid[1] > 0 && grid[1] <= 65535 && grid[2] > 0 && grid[2] <= 65535;
    if (!fits) return 1;
    bool plain = KINDS[index] == LM_PLAIN;
    if (!plain && threads % 32 != 0) return 1;
    Worker* worker = get_worker();
    if (!worker) return 1;
    worker->fn = kernel->fn;
    worker->args = args;
    lm_host_view.block_dim = LmDim{block[0], block[1], block[2]};
    lm_host_view.grid_dim = LmDim{grid[0], grid[1], grid[2]};
    for (unsigned z = 0; z < grid[2]; z++) {
        for (unsigned y = 0; y < grid[1]; y++) {
            for (unsigned x = 0; x < grid[0]; x++) {
                lm_host_view.block = LmDim{x, y, z};
                if (plain) {
                    run_plain(kernel->fn, block, args);
                } else if (!run_with_fibers(worker, block, shared_bytes, (x + y + z) & 1)) {
                    return 2;
                }
            }
        }
    }
    return 0;
}
