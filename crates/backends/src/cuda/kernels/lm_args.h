// What every kernel takes: one plain struct by value, laid out alike on host and device.
#ifndef LM_ARGS_H
#define LM_ARGS_H

// A tensor: `ne` extents, innermost first; `nb` strides in bytes; `type` ggml's number. `data` null: absent.
struct LmTensor {
    void* data;
    long long ne[4];
    long long nb[4];
    int type;
    int pad;
};

// A node: its result, its sources, and numbers whose meaning stands at each kernel.
struct LmArgs {
    LmTensor dst;
    LmTensor src[6];
    float f[16];
    int i[32];
    long long l[8];
};

#endif
