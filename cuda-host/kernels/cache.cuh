// Keys and values of a layer: codes (kv_heads, capacity, dim), then scales (kv_heads, capacity, dim / 32) as f32.
#pragma once

struct Cache {
    unsigned char *keys;
    unsigned char *values;
    u32 capacity, kv_heads, dim;
    u32 bits; // 32, 16: floats; 8, 4: integers with a scale
};

__device__ __forceinline__ float *cache_scales(const Cache &c, unsigned char *base) {
    return (float *)(base + (u64)c.kv_heads * c.capacity * c.dim / 8 * c.bits);
}

// A warp stores 32 elements, one a lane, from element `at` of the cache on.
__device__ __forceinline__ void cache_put(const Cache &c, unsigned char *base, u64 at, u32 lane, float x) {
    if (c.bits == 32) {
        ((float *)base)[at + lane] = x;
    } else if (c.bits == 16) {
        x = x != x ? x : fminf(fmaxf(x, -65504.0f), 65504.0f);
        ((unsigned short *)base)[at + lane] = (unsigned short)half_bits(x);
    } else {
        float largest = c.bits == 8 ? 127.0f : 7.0f;
        float scale = warp_max(fabsf(x)) / largest;
        float q = rintf(x * (scale > 1e-30f ? 1.0f / scale : 0.0f));
        int code = q != q ? 0 : (int)fminf(fmaxf(q, -largest), largest);
        if (c.bits == 8) {
            ((signed char *)base)[at + lane] = (signed char)code;
        } else {
            int next = __shfl_xor_sync(0xffffffffu, code, 1);
            if (lane % 2 == 0) base[(at + lane) / 2] = (unsigned char)((code & 15) | (next & 15) << 4);
        }
        if (lane == 0) cache_scales(c, base)[at / 32] = scale;
    }
}

// Element `at` of the cache.
__device__ __forceinline__ float cache_get(const Cache &c, unsigned char *base, u64 at) {
    if (c.bits == 32) return ((const float *)base)[at];
    if (c.bits == 16) return half_value(((const unsigned short *)base)[at]);
    int code;
    if (c.bits == 8) {
        code = ((const signed char *)base)[at];
    } else {
        int nibble = base[at / 2] >> (4 * (at % 2)) & 15;
        code = nibble >= 8 ? nibble - 16 : nibble;
    }
    return (float)code * cache_scales(c, base)[at / 32];
}
