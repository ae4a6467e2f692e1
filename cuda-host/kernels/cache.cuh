// Keys and values of a sequence. Those of a layer: codes (kv_heads, capacity, dim), then scales (kv_heads, capacity, dim / 32) as
// f32.
#pragma once

struct Cache {
    unsigned char *keys;   // of the first layer
    unsigned char *values; // likewise
    u64 layer;             // bytes from one layer to the next
    u32 capacity, kv_heads, dim;
    u32 bits;     // 32, 16: floats; 8, 4: integers with a scale
    u32 mantissa; // of floats of 8 bits, which core's cache/float8.rs describes; otherwise 0
    u32 pattern;  // of attention. 0: full, 1: window, 2: dilated, 3: strided, 4: BigBird
    u32 a, b, c;  // numbers of the pattern
    u32 unused;
};

// A layer of the cache of a row.
__device__ __forceinline__ Cache cache_of(const Cache *caches, u32 row, u32 layer) {
    Cache c = caches[row];
    c.keys += layer * c.layer;
    c.values += layer * c.layer;
    assume_global(c.keys);
    assume_global(c.values);
    return c;
}

// By 16-bit floats: of E5M2 the same ones, of E4M3 those divided by 256. All bits of the exponent are set in a NaN.
__device__ __forceinline__ float float8_value(u32 bits, u32 mantissa) {
    u32 nan = mantissa == 3 ? 0x7f : 0x7c;
    float x = half_value((bits & 128) << 8 | (bits & 127) << (10 - mantissa)) * (mantissa == 3 ? 256.0f : 1.0f);
    return (bits & nan) == nan ? __uint_as_float(0x7fc00000u) : x;
}

// To nearest even; larger magnitudes become the largest.
__device__ __forceinline__ u32 float8_bits(float x, u32 mantissa) {
    u32 shift = 23 - mantissa, bias = (1u << (6 - mantissa)) - 1;
    u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    u32 clamped = min(magnitude, __float_as_uint(mantissa == 3 ? 448.0f : 57344.0f)), odd = clamped >> shift & 1;
    u32 normal = (clamped + (1u << (shift - 1)) - 1 + odd - ((127 - bias) << 23)) >> shift;
    // The last bit of the sum is worth the smallest magnitude.
    u32 unit = (127 + 24 - bias - mantissa) << 23;
    u32 subnormal = __float_as_uint(__fadd_rn(__uint_as_float(clamped), __uint_as_float(unit))) - unit;
    u32 rounded = clamped < (128 - bias) << 23 ? subnormal : normal;
    return (magnitude > 0x7f800000u ? 0x7f : rounded) | (bits >> 24 & 128);
}

__device__ __forceinline__ float *cache_scales(const Cache &c, unsigned char *base) {
    return (float *)(base + (u64)c.kv_heads * c.capacity * c.dim / 8 * c.bits);
}

// How a cache stores its elements.
enum CacheKind { CACHE_F32, CACHE_F16, CACHE_F8, CACHE_INT8, CACHE_INT4 };

__device__ __forceinline__ CacheKind cache_kind(const Cache &c) {
    if (c.mantissa != 0) return CACHE_F8;
    return c.bits == 32 ? CACHE_F32 : c.bits == 16 ? CACHE_F16 : c.bits == 8 ? CACHE_INT8 : CACHE_INT4;
}

// A warp stores a key or a value from element `at` of the cache on: x[k] is element 32 k + lane.
template <CacheKind KIND>
__device__ __forceinline__ void cache_put(const Cache &c, unsigned char *base, u64 at, u32 lane, const float (&x)[8]) {
    for (u32 k = 0; k < 8; k++) {
        // The whole warp.
        if (32 * k >= c.dim) break;
        u64 to = at + 32 * k + lane;
        if constexpr (KIND == CACHE_F8) {
            base[to] = (unsigned char)float8_bits(x[k], c.mantissa);
        } else if constexpr (KIND == CACHE_F32) {
            ((float *)base)[to] = x[k];
        } else if constexpr (KIND == CACHE_F16) {
            float finite = x[k] != x[k] ? x[k] : fminf(fmaxf(x[k], -65504.0f), 65504.0f);
            ((unsigned short *)base)[to] = (unsigned short)half_bits(finite);
        } else {
            const float largest = KIND == CACHE_INT8 ? 127.0f : 7.0f;
            float scale = warp_max(fabsf(x[k])) / largest;
            float q = rintf(x[k] * (scale > 1e-30f ? 1.0f / scale : 0.0f));
            int code = q != q ? 0 : (int)fminf(fmaxf(q, -largest), largest);
            if constexpr (KIND == CACHE_INT8) {
                ((signed char *)base)[to] = (signed char)code;
            } else {
                int next = __shfl_xor_sync(0xffffffffu, code, 1);
                if (lane % 2 == 0) base[to / 2] = (unsigned char)((code & 15) | (next & 15) << 4);
            }
            if (lane == 0) cache_scales(c, base)[to / 32] = scale;
        }
    }
}
