// As much of CUDA as the kernels use, to run them on a CPU (tests/shim/fibers.h).
#pragma once
#define CUDA_SHIM 1
#include "fibers.h"

#include <cmath>
#include <cstdlib>

#define __global__
#define __device__
#define __forceinline__ inline
#define __align__(N) __attribute__((aligned(N)))
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static thread_local
struct ShimWidth {
    unsigned x;
};
#define threadIdx (ShimWidth{fibers::block->current->index})
#define blockIdx (fibers::block->at)
#define blockDim (ShimWidth{fibers::block->threads})
#define gridDim (fibers::block->grid)
struct float2 {
    float x, y;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
// The launch's memory of a block, which ends where the sanitizer looks.
inline thread_local uint4 *shim_shared = nullptr;
#define DYNAMIC_SHARED(NAME) uint4 *NAME = shim_shared
using std::max;
using std::min;
inline void __syncthreads() { fibers::meet(fibers::block->all, "__syncthreads"); }
inline void __syncwarp() { fibers::meet(fibers::warp(), "__syncwarp"); }
template <class T> T __shfl_xor_sync(unsigned mask, T value, unsigned by) {
    if (mask != 0xffffffffu) fibers::fail("only whole warps are modelled");
    return fibers::exchange(value, "__shfl_xor_sync")[fibers::block->current->index % 32 ^ by];
}
template <class T> T __shfl_sync(unsigned mask, T value, unsigned from) {
    if (mask != 0xffffffffu) fibers::fail("only whole warps are modelled");
    return fibers::exchange(value, "__shfl_sync")[from % 32];
}
inline unsigned __ballot_sync(unsigned mask, bool value) {
    if (mask != 0xffffffffu) fibers::fail("only whole warps are modelled");
    const bool *all = fibers::exchange(value, "__ballot_sync");
    unsigned bits = 0;
    for (unsigned i = 0; i < fibers::WARP; i++) bits |= unsigned(all[i]) << i;
    return bits;
}
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(unsigned(bits)); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += int(int8_t(a >> i)) * int(int8_t(b >> i));
    return c;
}
// mma.m8n8k16.row.col.s32.s8.s8.s32, with the fragments of the PTX ISA: of A, lane l has row l / 4 and columns 4 (l % 4) to
// 4 (l % 4) + 3; of B, the same rows of column l / 4; of sums, row l / 4 and columns 2 (l % 4) and 2 (l % 4) + 1.
inline void mma_s8(int (&sums)[2], unsigned a, unsigned b) {
    struct Fragments {
        int8_t a[4], b[4];
    } mine;
    memcpy(mine.a, &a, 4);
    memcpy(mine.b, &b, 4);
    const Fragments *all = fibers::exchange(mine, "mma.sync");
    unsigned lane = fibers::block->current->index % fibers::WARP, row = lane / 4;
    for (unsigned i = 0; i < 2; i++) {
        unsigned column = 2 * (lane % 4) + i;
        for (unsigned k = 0; k < 16; k++) sums[i] += all[4 * row + k / 4].a[k % 4] * all[4 * column + k / 4].b[k % 4];
    }
}
// mma.m16n8k32.row.col.s32 with s8 or u8 and s8. Of A, lane l has rows l / 4 and l / 4 + 8 of columns 4 (l % 4) to 4 (l % 4) + 3,
// then those of 16 columns later; of B, the same rows of column l / 4; of sums, columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4,
// then of l / 4 + 8.
template <bool SIGNED>
void mma_16x8x32(int (&sums)[4], const int (&start)[4], const unsigned (&a)[4], unsigned low, unsigned high) {
    struct Fragments {
        uint8_t a[4][4];
        int8_t b[2][4];
    } mine;
    memcpy(mine.a, a, 16);
    memcpy(mine.b[0], &low, 4);
    memcpy(mine.b[1], &high, 4);
    int from[4];
    memcpy(from, start, sizeof from);
    const Fragments *all = fibers::exchange(mine, "mma.sync");
    unsigned lane = fibers::block->current->index % fibers::WARP;
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4, column = 2 * (lane % 4) + i % 2;
        for (unsigned k = 0; k < 32; k++) {
            uint8_t code = all[4 * row + k % 16 / 4].a[k / 16 * 2 + i / 2][k % 4];
            from[i] += (SIGNED ? int(int8_t(code)) : int(code)) * all[4 * column + k % 16 / 4].b[k / 16][k % 4];
        }
    }
    memcpy(sums, from, sizeof from);
}
template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldcg(const T *p) { return *p; }
inline void __threadfence() {}
// Blocks run one after the other.
inline unsigned atomicInc(unsigned *p, unsigned most) {
    unsigned before = *p;
    *p = before >= most ? 0 : before + 1;
    return before;
}
inline void prefetch(const void *) {}
inline unsigned opaque(unsigned x) { return x; }
inline float4 load_now(const float4 *p) { return *p; }
// One launch after the other.
inline void wait_for_launch() {}
inline void let_next_launch() {}
inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
// Subnormal numbers become 0.
inline float approximate_reciprocal(float x) {
    float y = 1.0f / x;
    return std::fabs(y) < 0x1p-126f ? 0.0f : y;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float half_value(unsigned h) {
    unsigned sign = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 0) return (sign ? -1.0f : 1.0f) * std::ldexp(float(m), -24);
    return __uint_as_float(sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13);
}
inline unsigned half_bits(float x) {
    unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000;
    float a = std::fabs(x);
    if (x != x) return sign | 0x7e00;
    if (a >= 65520.0f) return sign | 0x7c00;
    if (a < 0x1p-14f) return sign | unsigned(std::rint(a * 0x1p24f));
    unsigned m = bits & 0x7fffffff;
    m += 0xfff + (m >> 13 & 1);
    return sign | ((m >> 13) - (112 << 10));
}
