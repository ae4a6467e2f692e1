// Packed matrices times integers or floats: a warp has one output at a time, for up to TOKENS rows of the batch at once, or
// gate and up for a single row. Up to four matrices with the same input are one launch. Sums of integers are exact within a group.
//
// A single row is small: each block can normalize and round all of it for itself, in shared memory, which saves launches.

struct ProductArgs {
    Matrix m[4];          // of one expert, with the codes and scales of all
    float *out[4];        // (tokens, rows)
    const float *x;       // (tokens, cols)
    const uint4 *words;   // its integers, if blocks do not round it
    const Meta *meta;
    const float *norm;    // (cols): weights of the norm of a single row x; null: it is read as it is
    signed char *rounded; // integers of out[0] if a block makes whole units of it, or null
    Meta *rounded_meta;
    const Tile *tiles;    // of experts, one for each blockIdx.y; null without
    const u32 *order;
    const u32 *experts;
    const float *weights;
    u32 tokens, count;
    u32 epilogue; // see EPILOGUE_...
    u32 passes;   // outputs of each warp
    u32 share;    // pairs of a row and an expert that read the same row of x
    u32 used;     // experts of EPILOGUE_EXPERTS
    float eps;
    u32 unused;
};

// How a product is stored: as it is; added; silu(m[0] x) * (m[1] x); the products of `used` experts, times their weights,
// added.
enum Epilogue { EPILOGUE_STORE, EPILOGUE_ADD, EPILOGUE_SWIGLU, EPILOGUE_EXPERTS };

struct Input {
    const float *x;
    const uint4 *words;
    const Meta *meta;
};

// The input of a block that normalizes it, in shared memory.
template <bool INT8> __device__ __forceinline__ Input normalized(const ProductArgs &a) {
    DYNAMIC_SHARED(shared);
    u32 cols = a.m[0].units * 32;
    Meta *meta = (Meta *)(shared + cols / 16);
    float scale = rms_scale(a.x, cols, a.eps);
    const u32 N = 4;
    for (u32 i = threadIdx.x; i < cols; i += N * blockDim.x) {
        // A warp has units.
        u32 count = min((cols - i + blockDim.x - 1) / blockDim.x, N);
        float y[N];
        for (u32 j = 0; j < N; j++) {
            u32 at = min(i + j * blockDim.x, cols - 1);
            y[j] = a.x[at] * scale * a.norm[at];
        }
        if (INT8) put_units((signed char *)shared, meta, i / 32, blockDim.x / 32, count, threadIdx.x % 32, y);
        else
            for (u32 j = 0; j < count; j++) ((float *)shared)[i + j * blockDim.x] = y[j];
    }
    __syncthreads();
    return Input{(const float *)shared, shared, meta};
}

// The matrix whose outputs a block has, where each block has `rows` of them: `block` becomes its number within the matrix.
__device__ __forceinline__ u32 matrix_of(const ProductArgs &a, u32 rows, u32 &block) {
    u32 which = 0, outputs = a.epilogue == EPILOGUE_SWIGLU ? 1 : a.count;
    while (which + 1 < outputs && block >= (a.m[which].rows + rows - 1) / rows)
        block -= (a.m[which++].rows + rows - 1) / rows;
    return which;
}

__device__ __forceinline__ float swiglu(float gate, float up) { return divide(gate, 1.0f + expf(fminf(-gate, 80.0f))) * up; }

// The scales and minima of the halves of a unit.
struct UnitScales {
    float2 low, high;
};

__device__ __forceinline__ UnitScales unit_scales(const Matrix &m, u64 row, u32 unit) {
    if (m.group == 16) return UnitScales{group_scale(m, row, 2 * unit), group_scale(m, row, 2 * unit + 1)};
    float2 both = group_scale(m, row, unit * 32 / m.group);
    return UnitScales{both, both};
}

// From the integer sums of a unit to its share of a product. Roundings are explicit, as a compiler may fuse additions in one
// kernel and not in another: kernels that divide the work differently have the same bits.

__device__ __forceinline__ float halves(const UnitScales &w, float low, float high) {
    return __fmaf_rn(low, w.low.x, __fmul_rn(high, w.high.x));
}

__device__ __forceinline__ float add_unit(const Matrix &m, const UnitScales &w, float part, Meta meta, float sum) {
    if (m.parts == 2) {
        float minima = __fmaf_rn((float)meta.sums[0], w.low.y, __fmul_rn((float)meta.sums[1], w.high.y));
        part = __fadd_rn(part, minima);
    }
    return __fmaf_rn(part, meta.scale, sum);
}

// Adds the products of half a unit to n.
__device__ __forceinline__ int dot_half(const u32 *four, uint4 x, int n) {
    n = __dp4a((int)four[0], (int)x.x, n);
    n = __dp4a((int)four[1], (int)x.y, n);
    n = __dp4a((int)four[2], (int)x.z, n);
    return __dp4a((int)four[3], (int)x.w, n);
}

// A row of a simple matrix.
struct SimpleRow {
    const u32 *codes;
    const unsigned short *scales;
    u32 shift;
    int factor, offset;
};

__device__ __forceinline__ SimpleRow simple_row(const Matrix &m, u64 row, u32 words) {
    return SimpleRow{m.codes + row * m.units * words,
                     (const unsigned short *)(m.scales + row * m.scale_words),
                     unit_shift(m.group),
                     m.factor,
                     m.offset};
}

// Products of simple rows of `units` units with the rows `from` of the input: the input is read once for all.
template <class C, int ROWS, int TOKENS>
__device__ __forceinline__ void dot_simple(const Input &in, const SimpleRow (&rows)[ROWS], u32 units, const u32 *from,
                                           float (&sums)[ROWS][TOKENS]) {
    for (int r = 0; r < ROWS; r++)
        for (int t = 0; t < TOKENS; t++) sums[r][t] = 0.0f;
#pragma unroll 2
    for (u32 u = threadIdx.x % 32; u < units; u += 32) {
        u32 four[ROWS][8];
        float scales[ROWS];
        for (int r = 0; r < ROWS; r++) {
            u32 unit[C::WORDS];
            load_unit(rows[r].codes + u * C::WORDS, unit);
            scales[r] = half_value(rows[r].scales[u >> rows[r].shift]);
            for (u32 s = 0; s < 8; s++) four[r][s] = C::four(unit, s, nullptr);
        }
        for (int t = 0; t < TOKENS; t++) {
            u32 at = from[t] * units + u;
            uint4 x = in.words[2 * at], y = in.words[2 * at + 1];
            Meta meta = in.meta[at];
            int total = meta.sums[0] + meta.sums[1];
            for (int r = 0; r < ROWS; r++) {
                int n = dot_half(four[r] + 4, y, dot_half(four[r], x, 0));
                n = n * rows[r].factor - rows[r].offset * total;
                sums[r][t] = __fmaf_rn(__fmul_rn((float)n, scales[r]), meta.scale, sums[r][t]);
            }
        }
    }
    for (int o = 16; o > 0; o /= 2)
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < TOKENS; t++) sums[r][t] += __shfl_xor_sync(0xffffffffu, sums[r][t], o);
}

// Products of row `row` of a matrix with the rows `from` of the input. Not inlined, as the code is long; by value, as what is
// pointed to leaves the memory of arguments.
template <class C, bool INT8, int TOKENS>
__device__ __noinline__ void dot_any(Input in, Matrix m, u64 row, const u32 *from, float *sums) {
    for (int t = 0; t < TOKENS; t++) sums[t] = 0.0f;
    for (u32 u = threadIdx.x % 32; u < m.units; u += 32) {
        const u32 *packed = m.codes + (row * m.units + u) * C::WORDS;
        u32 unit[C::WORDS] = {};
        if (!INT8 && C::SIMPLE && in_tiles(m)) {
            const u32 BITS = C::SIMPLE ? C::WORDS : 8, PER = 8 / BITS;
            for (u32 s = 0; s < 8; s++) unit[s / PER] |= tile_four<BITS>(m, row, u, s) << (BITS * (s % PER));
        } else {
            for (u32 i = 0; i < C::WORDS; i++) unit[i] = packed[i];
        }
        if constexpr (C::FLOAT) {
            for (int t = 0; t < TOKENS; t++) {
                const float *x = in.x + ((u64)from[t] * m.units + u) * 32;
                for (u32 i = 0; i < 32; i++) sums[t] += C::value(unit, i) * x[i];
            }
        } else {
            u32 four[8];
            for (u32 s = 0; s < 8; s++) four[s] = C::four(unit, s, m.levels);
            UnitScales w = unit_scales(m, row, u);
            for (int t = 0; t < TOKENS; t++) {
                u64 at = (u64)from[t] * m.units + u;
                if constexpr (INT8) {
                    uint4 x = in.words[2 * at], y = in.words[2 * at + 1];
                    Meta meta = in.meta[at];
                    int n = dot_half(four, x, 0), k = dot_half(four + 4, y, 0);
                    n = n * m.factor - m.offset * meta.sums[0];
                    k = k * m.factor - m.offset * meta.sums[1];
                    float part = m.group == 16 ? halves(w, (float)n, (float)k) : (float)(n + k) * w.low.x;
                    sums[t] = add_unit(m, w, part, meta, sums[t]);
                } else {
                    const float *x = in.x + at * 32;
                    float n[2] = {0.0f, 0.0f}, sum[2] = {0.0f, 0.0f};
                    for (u32 i = 0; i < 32; i++) {
                        int code = (signed char)(four[i / 4] >> (8 * (i % 4)) & 255);
                        n[i / 16] += (float)(code * m.factor - m.offset) * x[i];
                        sum[i / 16] += x[i];
                    }
                    sums[t] += n[0] * w.low.x + n[1] * w.high.x + sum[0] * w.low.y + sum[1] * w.high.y;
                }
            }
        }
    }
    for (int t = 0; t < TOKENS; t++) sums[t] = warp_sum(sums[t]);
}

template <class C, bool INT8, int TOKENS>
__device__ __forceinline__ void dot_codes(const Input &in, const Matrix &m, u64 row, const u32 *from, float *sums) {
    if constexpr (INT8 && C::SIMPLE) {
        if (is_simple(m)) {
            SimpleRow rows[1] = {simple_row(m, row, C::WORDS)};
            float found[1][TOKENS];
            dot_simple<C, 1, TOKENS>(in, rows, m.units, from, found);
            for (int t = 0; t < TOKENS; t++) sums[t] = found[0][t];
            return;
        }
    }
    dot_any<C, INT8, TOKENS>(in, m, row, from, sums);
}

// Codes that differ from matrix to matrix.
struct Mixed {
    static constexpr bool SIMPLE = false;
};

template <class C, bool INT8, int TOKENS> struct Dot {
    __device__ __forceinline__ static void run(const Input &in, const Matrix &m, u64 row, const u32 *from, float *sums) {
        dot_codes<C, INT8, TOKENS>(in, m, row, from, sums);
    }
};

template <bool INT8, int TOKENS> struct Dot<Mixed, INT8, TOKENS> {
    __device__ __forceinline__ static void run(const Input &in, const Matrix &m, u64 row, const u32 *from, float *sums) {
        switch (m.kind) {
        case Bits1::KIND: return dot_codes<Bits1, INT8, TOKENS>(in, m, row, from, sums);
        case Bits2::KIND: return dot_codes<Bits2, INT8, TOKENS>(in, m, row, from, sums);
        case Bits4::KIND: return dot_codes<Bits4, INT8, TOKENS>(in, m, row, from, sums);
        case Bits6::KIND: return dot_codes<Bits6, INT8, TOKENS>(in, m, row, from, sums);
        case Bits8::KIND: return dot_codes<Bits8, INT8, TOKENS>(in, m, row, from, sums);
        case Levels::KIND: return dot_codes<Levels, INT8, TOKENS>(in, m, row, from, sums);
        }
        if constexpr (!INT8) {
            switch (m.kind) {
            case F16::KIND: return dot_codes<F16, INT8, TOKENS>(in, m, row, from, sums);
            case Bf16::KIND: return dot_codes<Bf16, INT8, TOKENS>(in, m, row, from, sums);
            case F32::KIND: return dot_codes<F32, INT8, TOKENS>(in, m, row, from, sums);
            }
        }
    }
};

// The outputs of a warp of a gated product, from row `first` of the matrices on and `warps` apart, for a single row of the input:
// both matrices at once, which are simple.
template <class C>
__device__ __forceinline__ void gated_pairs(const ProductArgs &a, const Input &in, u64 expert_row, u32 first, u32 warps, u32 from,
                                            u32 to, float *results) {
    u32 rows = a.m[0].rows;
    for (u32 pass = 0; pass < a.passes; pass++) {
        u32 row = first + pass * warps;
        // The whole warp.
        if (row >= rows) break;
        SimpleRow both[2] = {simple_row(a.m[0], expert_row + row, C::WORDS), simple_row(a.m[1], expert_row + row, C::WORDS)};
        float sums[2][1];
        dot_simple<C, 2, 1>(in, both, a.m[0].units, &from, sums);
        if (threadIdx.x % 32 != 0) continue;
        float y = swiglu(sums[0][0], sums[1][0]);
        a.out[0][(u64)to * rows + row] = y;
        if (a.rounded) results[pass * warps + threadIdx.x / 32] = y;
    }
}

template <class C, bool INT8, int TOKENS>
__device__ __forceinline__ void product_of(const ProductArgs &a, const Input &in) {
    __shared__ float results[32];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, rows = warps * a.passes;
    u32 block = blockIdx.x, which = matrix_of(a, rows, block);
    const Matrix &m = a.m[which];
    u32 first = blockIdx.y * TOKENS, count = a.tokens - first;
    u64 expert_row = 0;
    if (a.tiles) {
        Tile tile = a.tiles[blockIdx.y];
        first = tile.first;
        count = tile.count;
        expert_row = (u64)tile.expert * m.rows;
    }
    // The whole block.
    if (count == 0) return;
    u32 from[TOKENS], to[TOKENS];
    for (u32 t = 0; t < TOKENS; t++) {
        u32 at = first + min(t, count - 1);
        to[t] = a.tiles ? a.order[at] : at;
        from[t] = a.tiles ? to[t] / a.share : at;
    }
    bool pairs = false;
    if constexpr (INT8 && TOKENS == 1 && C::SIMPLE) {
        pairs = a.epilogue == EPILOGUE_SWIGLU && is_simple(a.m[0]) && is_simple(a.m[1]);
        if (pairs) gated_pairs<C>(a, in, expert_row, block * rows + warp, warps, from[0], to[0], results);
    }
    for (u32 pass = 0; pass < a.passes && !pairs; pass++) {
        u32 in_block = pass * warps + warp, row = block * rows + in_block;
        // The whole warp.
        if (row >= m.rows) break;
        float sums[TOKENS], gates[TOKENS] = {};
        bool adds_experts = TOKENS == 1 && a.epilogue == EPILOGUE_EXPERTS;
        float total = adds_experts ? a.out[0][row] : 0.0f;
        u32 steps = adds_experts ? a.used : a.epilogue == EPILOGUE_SWIGLU ? 2 : 1;
        // One after the other in a single loop, as the products are long when they are inlined.
#pragma unroll 1
        for (u32 step = 0; step < steps; step++) {
            if (adds_experts) {
                if (a.weights[step] == 0.0f) continue;
                expert_row = (u64)a.experts[step] * m.rows;
                from[0] = step;
            }
            const Matrix &other = a.m[adds_experts ? 0 : which + step];
            Dot<C, INT8, TOKENS>::run(in, other, expert_row + row, from, sums);
            if (adds_experts) total += a.weights[step] * sums[0];
            if (step + 1 < steps)
                for (int t = 0; t < TOKENS; t++) gates[t] = sums[t];
        }
        if (lane != 0) continue;
        for (u32 t = 0; t < TOKENS && t < count; t++) {
            float *out = a.out[which] + (u64)to[t] * m.rows + row;
            if (adds_experts) *out = total;
            if (a.epilogue == EPILOGUE_STORE) *out = sums[t];
            if (a.epilogue == EPILOGUE_ADD) *out += sums[t];
            if (a.epilogue == EPILOGUE_SWIGLU) {
                float y = swiglu(gates[t], sums[t]);
                *out = y;
                if (TOKENS == 1 && a.rounded) results[in_block] = y;
            }
        }
    }
    if (TOKENS == 1 && a.rounded) {
        __syncthreads();
        u64 unit = ((u64)to[0] * m.rows + block * rows) / 32;
        if (warp == 0) put_unit(a.rounded, a.rounded_meta, unit, lane, results[lane]);
    }
}

template <class C, bool INT8, int TOKENS> __device__ __forceinline__ void product(const ProductArgs &a) {
    wait_for_launch();
    let_next_launch();
    if constexpr (TOKENS == 1) {
        if (a.norm) {
            product_of<C, INT8, 1>(a, normalized<INT8>(a));
            return;
        }
    }
    product_of<C, INT8, TOKENS>(a, Input{a.x, a.words, a.meta});
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

extern "C" __global__ void product_int8_mixed(ProductArgs a) { product<Mixed, true, 1>(a); }
extern "C" __global__ void product_f32_mixed(ProductArgs a) { product<Mixed, false, 1>(a); }
