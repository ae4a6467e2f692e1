// What every kernel uses: widths, half floats, reductions by warps, and the layouts that the host passes.
// Compiled by NVRTC for GPUs, and by a C++ compiler with shim/cuda.h for tests on a CPU.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef CUDA_SHIM
__device__ __forceinline__ float half_value(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
    return value;
}

// Rounded to nearest, ties to even.
__device__ __forceinline__ u32 half_bits(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// sums (8, 8) += a (8, 16) * b (16, 8), by a warp. Lane 4 g + q has a[g][4 q ..], b[4 q ..][g] and sums[g][2 q ..].
__device__ __forceinline__ void mma_s8(int (&sums)[2], u32 a, u32 b) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(sums[0]), "+r"(sums[1])
                 : "r"(a), "r"(b));
}

// A product on tensor cores, sums (16, 8) = start + a (16, 32) * b (32, 8), by a warp. Lane 4 g + t has rows g and g + 8 and, from
// 4 t and from 16 + 4 t on, four columns of a, the same of column g of b, and columns 2 t and 2 t + 1 of the sums. Bytes of a are
// signed or not.
template <bool SIGNED>
__device__ __forceinline__ void mma_16x8x32(int (&sums)[4], const int (&start)[4], const u32 (&a)[4], u32 low, u32 high) {
#if __CUDA_ARCH__ >= 800
#define MMA(TYPE)                                                                                                      \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." TYPE ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "         \
        "{%10, %11, %12, %13};"                                                                                        \
        : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])                                                   \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high), "r"(start[0]), "r"(start[1]),               \
          "r"(start[2]), "r"(start[3]))
    if constexpr (SIGNED) MMA("s8");
    else MMA("u8");
#undef MMA
#else
    // Four smaller ones.
#define MMA(TYPE, FROM, I, A, B)                                                                                       \
    asm("mma.sync.aligned.m8n8k16.row.col.s32." TYPE ".s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"                         \
        : "=r"(sums[I]), "=r"(sums[I + 1])                                                                             \
        : "r"(a[A]), "r"(B), "r"(FROM[I]), "r"(FROM[I + 1]))
    if constexpr (SIGNED) {
        MMA("s8", start, 0, 0, low);
        MMA("s8", start, 2, 1, low);
        MMA("s8", sums, 0, 2, high);
        MMA("s8", sums, 2, 3, high);
    } else {
        MMA("u8", start, 0, 0, low);
        MMA("u8", start, 2, 1, low);
        MMA("u8", sums, 0, 2, high);
        MMA("u8", sums, 2, 3, high);
    }
#undef MMA
#endif
}

// Of a normal number, within 1 ulp.
__device__ __forceinline__ float approximate_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Kernels for GPUs that can begin a launch before the one before has ended: nothing that it wrote is read, and nothing is
// written, before this wait.
__device__ __forceinline__ void wait_for_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Memory that nothing writes meanwhile, where this stands: the compiler moves other loads behind the wait below.
__device__ __forceinline__ float4 load_now(const float4 *p) {
    float4 x;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(p) : "memory");
    return x;
}

// The same number, about which the compiler knows nothing.
__device__ __forceinline__ u32 opaque(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Into the L2 cache.
__device__ __forceinline__ void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// The next launch may begin, as far as its wait: after that of this one, so that what came before this one is done by then.
__device__ __forceinline__ void let_next_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
#endif

// For pointers that were read from memory: loads from global memory are shorter than those from any.
__device__ __forceinline__ void assume_global(const void *p) {
#ifndef CUDA_SHIM
    __builtin_assume(__isGlobal(p));
#else
    (void)p;
#endif
}

// Sums of integers start at the bits of 3 * 2^22 and are then floats above it: a conversion takes four times as long as an
// addition, or longer. Exact, as those of a unit are less than 2^21.
const int SUM_START = 0x4b400000;
const float SUM_ZERO = 12582912.0f;

__device__ __forceinline__ float sum_value(int sum) { return __uint_as_float((u32)sum) - SUM_ZERO; }

__device__ __forceinline__ float power_of_two(int exponent) { return __uint_as_float((u32)(127 + exponent) << 23); }

// Memory of a block whose size the launch says.
#ifndef CUDA_SHIM
#define DYNAMIC_SHARED(NAME) extern __shared__ uint4 NAME[]
#endif

__device__ __forceinline__ float warp_sum(float x) {
    for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
    for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}

// Magnitudes are in the order of these, and NaN is the largest.
__device__ __forceinline__ u32 magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The largest magnitude of a warp, or NaN if one of them is.
__device__ __forceinline__ float warp_top(float x) {
    u32 bits = magnitude_bits(x);
#if __CUDA_ARCH__ >= 800
    bits = __reduce_max_sync(0xffffffffu, bits);
#else
    for (int o = 16; o > 0; o /= 2) bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, o));
#endif
    return __uint_as_float(bits);
}

__device__ __forceinline__ int warp_total(int x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(0xffffffffu, x);
#else
    for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
#endif
}

// Whether a block is the last of `blocks` that ends, and sees what the others wrote. `ended` is 0 before and after. By all of the
// block.
__device__ __forceinline__ bool ends_last(u32 *ended, u32 blocks) {
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicInc(ended, blocks - 1) == blocks - 1;
    __syncthreads();
    __threadfence();
    return is_last;
}

// Blocks of a cluster run at the same time, and write to the shared memory of the first one. GPUs without clusters, and CPUs, run them in
// any order: they write to memory that all blocks share instead, and the last one that ends reads it.
#if !defined(CUDA_SHIM) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void enter_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;"); }

// Where `p` is in the first block of the cluster. That has begun when this returns.
__device__ __forceinline__ float *of_first_block(float *p, float *) {
    float *there;
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    asm("mapa.u64 %0, %1, 0;" : "=l"(there) : "l"(p));
    return there;
}

// Whether the block joins what all of them have written. By all of the block.
__device__ __forceinline__ bool joins_cluster(u32 *, u32 member, u32) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    return member == 0;
}
#else
__device__ __forceinline__ void enter_cluster() {}
__device__ __forceinline__ float *of_first_block(float *, float *instead) { return instead; }
__device__ __forceinline__ bool joins_cluster(u32 *ended, u32, u32 blocks) { return ends_last(ended, blocks); }
#endif

// The sum over the first four warps of a block, for all of it.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float part[4];
    x = warp_sum(x);
    if (threadIdx.x < 128 && threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = part[0] + part[1] + part[2] + part[3];
    __syncthreads();
    return x;
}

// The quotient rounded to nearest, if neither it nor the reciprocal of b overflows or is subnormal, without the branch of `/`.
__device__ __forceinline__ float divide(float a, float b) {
    float r = approximate_reciprocal(b);
    r = __fmaf_rn(__fmaf_rn(-b, r, 1.0f), r, r);
    float q = __fmul_rn(a, r);
    return __fmaf_rn(__fmaf_rn(-b, q, a), r, q);
}

// From an integer of a unit to a float, and back, by the largest magnitude of the unit. One that is so small that its reciprocal may
// overflow counts as zero. An infinity, NaN or one whose reciprocal is subnormal has no scale, so that it shows in every output.
__device__ __forceinline__ float scale_of(float top) {
    return top < 8e37f ? divide(top, 127.0f) : __uint_as_float(0x7fc00000u);
}
__device__ __forceinline__ float inverse_scale(float top) { return top > 1e-30f ? divide(127.0f, top) : 0.0f; }

// To nearest even, by the last bits of a sum. The magnitude of x is that of its unit at most. Any number if it is NaN.
__device__ __forceinline__ int rounded_integer(float x, float inverse) {
    return (int)__float_as_uint(__fadd_rn(__fmul_rn(x, inverse), SUM_ZERO)) - SUM_START;
}

// Scale of 32 activations, and the sums of the integers of its halves.
struct Meta {
    float scale;
    short sums[2];
};

// Quantizes `count` of N units of 32 activations, the first one and those `apart` later, one activation a lane: integers
// max / 127. Shuffles of one unit do not wait for those of another.
template <u32 N>
__device__ __forceinline__ void put_units(signed char *words, Meta *meta, u64 unit, u32 apart, u32 count, u32 lane,
                                          const float (&x)[N]) {
    float top[N];
    int q[N];
    for (u32 j = 0; j < N; j++) top[j] = warp_top(x[j]);
    for (u32 j = 0; j < N; j++) {
        q[j] = (signed char)rounded_integer(x[j], inverse_scale(top[j]));
        if (j < count) words[(unit + j * apart) * 32 + lane] = (signed char)q[j];
    }
    for (u32 j = 0; j < N; j++) {
        // Both sums at once, the second one 2^16 times.
        int both = warp_total(lane < 16 ? q[j] : q[j] * 65536), first = (short)both;
        if (lane == 0 && j < count) meta[unit + j * apart] = Meta{scale_of(top[j]), {(short)first, (short)((both - first) >> 16)}};
    }
}

__device__ __forceinline__ void put_unit(signed char *words, Meta *meta, u64 unit, u32 lane, float x) {
    const float one[1] = {x};
    put_units(words, meta, unit, 0, 1, lane, one);
}

// A matrix in the layout of core's quant/packed.rs, or in tiles (tiles.cu).
struct Matrix {
    const u32 *codes;  // (rows, units, words per unit)
    const u32 *scales; // (rows, scale_words)
    u32 rows, units;
    u32 scale_words; // in tiles: from one of its tiles to the next, in tiles
    u32 group;       // weights
    u32 scale_kind;  // 0: f16, 1: f32, 2: bytes times the f32 of a block of 256, 3: f16 in tiles
    u32 parts;       // numbers per group
    u32 block_words; // of scale_kind 2
    int factor, offset;
    u32 kind;      // of codes, see codes.cuh
    u32 levels[4]; // integers of codes that are indices, a byte each
};

// Whether each unit of 32 has one scale of 16 bits and no minimum, as in most formats.
__device__ __forceinline__ bool is_simple(const Matrix &m) {
    return m.scale_kind == 0 && m.parts == 1 && m.group >= 32;
}

// The scale of unit u of a simple matrix is the one at u >> this.
__device__ __forceinline__ u32 unit_shift(u32 group) { return 26 - __clz((int)group); }

__device__ __forceinline__ float scale_half(const u32 *row, u32 i) {
    return half_value(row[i / 2] >> (16 * (i % 2)) & 0xffff);
}

__device__ __forceinline__ bool in_tiles(const Matrix &m) { return m.scale_kind == 3; }

// The chunk of a tile that has unit u of a row.
__device__ __forceinline__ u64 tile_chunk(const Matrix &m, u64 row, u32 u) {
    return row / 16 * m.scale_words * ((m.units + 7) / 8) + u / 8;
}

// A code of each byte.
template <int BITS> __device__ __forceinline__ u32 code_mask() {
    return BITS == 1 ? 0x01010101u : BITS == 2 ? 0x03030303u : BITS == 4 ? 0x0f0f0f0fu : 0xffffffffu;
}

// Weights 4 s to 4 s + 3 of unit u of a row in tiles.
template <int BITS> __device__ __forceinline__ u32 tile_four(const Matrix &m, u64 row, u32 u, u32 s) {
    const u32 PER = 8 / BITS;
    u64 load = tile_chunk(m, row, u) * BITS + u % 8 / PER;
    u32 word = m.codes[(load * 32 + row % 8 * 4 + s % 4) * 4 + s / 4 * 2 + row % 16 / 8];
    return word >> (BITS * (u % PER)) & code_mask<BITS>();
}

// The scale and the minimum of a group of a row.
__device__ __forceinline__ float2 group_scale(const Matrix &m, u64 index, u32 g) {
    float2 w;
    if (in_tiles(m)) {
        u32 groups = 256 / m.group;
        u64 at = (tile_chunk(m, index, g / groups * 8) * 16 + index % 16) * groups + g % groups;
        return float2{half_value(((const unsigned short *)m.scales)[at]), 0.0f};
    }
    const u32 *row = m.scales + index * m.scale_words;
    u32 at = g * m.parts;
    bool both = m.parts == 2;
    if (m.scale_kind == 0) {
        w.x = scale_half(row, at);
        w.y = both ? scale_half(row, at + 1) : 0.0f;
    } else if (m.scale_kind == 1) {
        w.x = __uint_as_float(row[at]);
        w.y = both ? __uint_as_float(row[at + 1]) : 0.0f;
    } else {
        u32 groups = 256 / m.group;
        const u32 *block = row + g / groups * m.block_words;
        u32 byte = g % groups * m.parts;
        u32 bytes = block[m.parts + byte / 4] >> (8 * (byte % 4));
        w.x = __uint_as_float(block[0]) * (float)(signed char)(bytes & 255);
        w.y = both ? __uint_as_float(block[1]) * (float)(signed char)(bytes >> 8 & 255) : 0.0f;
    }
    return w;
}
