// How codes are unpacked: four neighbouring weights, one a byte. `kind` of a matrix is KIND. SIMPLE: simple matrices are products
// with code of their own, which is worth its length for the common ones.
#pragma once

// The words of a unit, in as few loads as their number allows.
template <int WORDS> __device__ __forceinline__ void load_unit(const u32 *p, u32 (&unit)[WORDS]) {
    if constexpr (WORDS % 4 == 0) {
        for (u32 i = 0; i < WORDS; i += 4) {
            uint4 x = *(const uint4 *)(p + i);
            unit[i] = x.x, unit[i + 1] = x.y, unit[i + 2] = x.z, unit[i + 3] = x.w;
        }
    } else if constexpr (WORDS % 2 == 0) {
        for (u32 i = 0; i < WORDS; i += 2) {
            uint2 x = *(const uint2 *)(p + i);
            unit[i] = x.x, unit[i + 1] = x.y;
        }
    } else {
        for (u32 i = 0; i < WORDS; i++) unit[i] = p[i];
    }
}

struct Bits1 {
    static constexpr u32 KIND = 0, WORDS = 1;
    static constexpr bool FLOAT = false, SIMPLE = true;
    __device__ static u32 four(const u32 *w, u32 s, const u32 *) { return w[0] >> s & 0x01010101u; }
};

struct Bits2 {
    static constexpr u32 KIND = 1, WORDS = 2;
    static constexpr bool FLOAT = false, SIMPLE = true;
    __device__ static u32 four(const u32 *w, u32 s, const u32 *) { return w[s / 4] >> (2 * (s % 4)) & 0x03030303u; }
};

struct Bits4 {
    static constexpr u32 KIND = 2, WORDS = 4;
    static constexpr bool FLOAT = false, SIMPLE = true;
    __device__ static u32 four(const u32 *w, u32 s, const u32 *) { return w[s / 2] >> (4 * (s % 2)) & 0x0f0f0f0fu; }
};

struct Bits6 {
    static constexpr u32 KIND = 3, WORDS = 6;
    static constexpr bool FLOAT = false, SIMPLE = false;
    __device__ static u32 four(const u32 *w, u32 s, const u32 *) {
        return (w[s / 2] >> (4 * (s % 2)) & 0x0f0f0f0fu) | (w[4 + s / 4] >> (2 * (s % 4)) & 0x03030303u) << 4;
    }
};

struct Bits8 {
    static constexpr u32 KIND = 4, WORDS = 8;
    static constexpr bool FLOAT = false, SIMPLE = true;
    __device__ static u32 four(const u32 *w, u32 s, const u32 *) { return w[s]; }
};

struct Levels {
    static constexpr u32 KIND = 5, WORDS = 4;
    static constexpr bool FLOAT = false, SIMPLE = false;
    __device__ static u32 four(const u32 *w, u32 s, const u32 *levels) {
        u32 codes = w[s / 2] >> (4 * (s % 2)), all = 0;
        for (u32 b = 0; b < 4; b++) {
            u32 code = codes >> (8 * b) & 15;
            all |= (levels[code / 4] >> (8 * (code % 4)) & 255) << (8 * b);
        }
        return all;
    }
};

struct F16 {
    static constexpr u32 KIND = 6, WORDS = 16;
    static constexpr bool FLOAT = true, SIMPLE = false;
    __device__ static float value(const u32 *w, u32 i) { return half_value(w[i / 2] >> (16 * (i % 2)) & 0xffff); }
};

struct Bf16 {
    static constexpr u32 KIND = 7, WORDS = 16;
    static constexpr bool FLOAT = true, SIMPLE = false;
    __device__ static float value(const u32 *w, u32 i) {
        return __uint_as_float((w[i / 2] >> (16 * (i % 2)) & 0xffff) << 16);
    }
};

struct F32 {
    static constexpr u32 KIND = 8, WORDS = 32;
    static constexpr bool FLOAT = true, SIMPLE = false;
    __device__ static float value(const u32 *w, u32 i) { return __uint_as_float(w[i]); }
};
