// Packed matrices times integers or floats: a warp has one output, for up to TOKENS rows of the batch at once. Up to four
// matrices with the same input are one launch. Sums of integers are exact within a group.

struct ProductArgs {
    Matrix m[4];
    float *out[4]; // (tokens, rows)
    const float *x;
    const uint4 *words;
    const Meta *meta;
    u32 tokens, count;
    u32 epilogue; // 0: store, 1: add, 2: silu(m[0] x) * (m[1] x)
    u32 unused;
};

template <class C, bool INT8, int TOKENS>
__device__ __forceinline__ void dot(const ProductArgs &a, const Matrix &m, u32 row, u32 first, float *sums) {
    const u32 *scales = m.scales + (u64)row * m.scale_words;
    u32 last = a.tokens - 1;
    for (u32 u = threadIdx.x % 32; u < m.units; u += 32) {
        const u32 *packed = m.codes + ((u64)row * m.units + u) * C::WORDS;
        u32 unit[C::WORDS];
        for (u32 i = 0; i < C::WORDS; i++) unit[i] = packed[i];
        if constexpr (C::FLOAT) {
            for (int t = 0; t < TOKENS; t++) {
                const float *x = a.x + ((u64)min(first + t, last) * m.units + u) * 32;
                for (u32 i = 0; i < 32; i++) sums[t] += C::value(unit, i) * x[i];
            }
        } else {
            u32 four[8];
            for (u32 s = 0; s < 8; s++) four[s] = C::four(unit, s, m.levels);
            float2 low, high;
            if (m.group == 16) {
                low = group_scale(m, scales, 2 * u);
                high = group_scale(m, scales, 2 * u + 1);
            } else {
                low = high = group_scale(m, scales, u * 32 / m.group);
            }
            for (int t = 0; t < TOKENS; t++) {
                u64 at = (u64)min(first + t, last) * m.units + u;
                if constexpr (INT8) {
                    uint4 x = a.words[2 * at], y = a.words[2 * at + 1];
                    Meta meta = a.meta[at];
                    int n = 0, k = 0;
                    n = __dp4a((int)four[0], (int)x.x, n);
                    n = __dp4a((int)four[1], (int)x.y, n);
                    n = __dp4a((int)four[2], (int)x.z, n);
                    n = __dp4a((int)four[3], (int)x.w, n);
                    k = __dp4a((int)four[4], (int)y.x, k);
                    k = __dp4a((int)four[5], (int)y.y, k);
                    k = __dp4a((int)four[6], (int)y.z, k);
                    k = __dp4a((int)four[7], (int)y.w, k);
                    n = n * m.factor - m.offset * meta.sums[0];
                    k = k * m.factor - m.offset * meta.sums[1];
                    float part = m.group == 16 ? (float)n * low.x + (float)k * high.x : (float)(n + k) * low.x;
                    part += (float)meta.sums[0] * low.y + (float)meta.sums[1] * high.y;
                    sums[t] += part * meta.scale;
                } else {
                    const float *x = a.x + at * 32;
                    float n[2] = {0.0f, 0.0f}, sum[2] = {0.0f, 0.0f};
                    for (u32 i = 0; i < 32; i++) {
                        int code = (signed char)(four[i / 4] >> (8 * (i % 4)) & 255);
                        n[i / 16] += (float)(code * m.factor - m.offset) * x[i];
                        sum[i / 16] += x[i];
                    }
                    sums[t] += n[0] * low.x + n[1] * high.x + sum[0] * low.y + sum[1] * high.y;
                }
            }
        }
    }
    for (int t = 0; t < TOKENS; t++) sums[t] = warp_sum(sums[t]);
}

template <class C, bool INT8, int TOKENS> __device__ __forceinline__ void product(const ProductArgs &a) {
    u32 block = blockIdx.x, which = 0, outputs = a.epilogue == 2 ? 1 : a.count;
    while (which + 1 < outputs && block >= (a.m[which].rows + 3) / 4) block -= (a.m[which++].rows + 3) / 4;
    const Matrix &m = a.m[which];
    u32 row = block * 4 + threadIdx.x / 32, first = blockIdx.y * TOKENS;
    // A whole warp; there is no barrier.
    if (row >= m.rows) return;
    float sums[TOKENS] = {}, gates[TOKENS] = {};
#pragma unroll 1
    for (u32 pass = 0;; pass++) {
        for (int t = 0; t < TOKENS; t++) sums[t] = 0.0f;
        dot<C, INT8, TOKENS>(a, a.m[which + pass], row, first, sums);
        if (a.epilogue != 2 || pass == 1) break;
        for (int t = 0; t < TOKENS; t++) gates[t] = sums[t];
    }
    if (threadIdx.x % 32 != 0) return;
    for (int t = 0; t < TOKENS; t++) {
        if (first + t >= a.tokens) return;
        float *out = a.out[which] + (u64)(first + t) * m.rows + row;
        if (a.epilogue == 0) *out = sums[t];
        if (a.epilogue == 1) *out += sums[t];
        if (a.epilogue == 2) *out = gates[t] / (1.0f + expf(fminf(-gates[t], 88.0f))) * sums[t];
    }
}

// Kernels are named after the codes and the input; those of `_many` have 8 or 2 rows of the batch at once.
#define PRODUCT(NAME, CODES, INT8)                                                                                     \
    extern "C" __global__ void NAME(ProductArgs a) { product<CODES, INT8, 1>(a); }                                     \
    extern "C" __global__ void NAME##_many(ProductArgs a) { product<CODES, INT8, INT8 ? 8 : 2>(a); }

PRODUCT(product_int8_0, Bits1, true)
PRODUCT(product_int8_1, Bits2, true)
PRODUCT(product_int8_2, Bits4, true)
PRODUCT(product_int8_3, Bits6, true)
PRODUCT(product_int8_4, Bits8, true)
PRODUCT(product_int8_5, Levels, true)
PRODUCT(product_f32_0, Bits1, false)
PRODUCT(product_f32_1, Bits2, false)
PRODUCT(product_f32_2, Bits4, false)
PRODUCT(product_f32_3, Bits6, false)
PRODUCT(product_f32_4, Bits8, false)
PRODUCT(product_f32_5, Levels, false)
PRODUCT(product_f32_6, F16, false)
PRODUCT(product_f32_7, Bf16, false)
PRODUCT(product_f32_8, F32, false)
