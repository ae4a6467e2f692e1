// Products of many rows with integers, on tensor cores, of matrices that are not in tiles: a block has 16 outputs of up to 32
// rows of the batch. Results have the bits of `product`, where lane i of a warp adds up units i, i + 32, ... and warp_sum joins
// the lanes as a tree. Here warp i of four has the units of lanes i, i + 4, ..., which are a subtree, and goes through it depth
// first.
//
// mma.m8n8k16: A is (8 outputs, 16 columns), B (16 columns, 8 rows of the batch). Lane 4 g + q has columns 4 q to 4 q + 3 of
// output g in A and of row g in B, and rows 2 q and 2 q + 1 of output g in the result.

const u32 MMA_OUTPUTS = 16, MMA_TOKENS = 32;
const u32 MMA_WARPS = 4;
// Results of a lane: (outputs / 8, rows / 8, 2).
const u32 MMA_RESULTS = MMA_OUTPUTS * MMA_TOKENS / 32;
// Of the results of one row, such that a warp writes to all banks.
const u32 MMA_STRIDE = MMA_OUTPUTS + 4;

// The integers of four codes, a byte each: factor * code - offset.
__device__ __forceinline__ u32 integers(const Matrix &m, u32 codes) {
    // The codes are the integers, and may have all 8 bits; others have 7.
    if (m.offset == 0) return codes;
    return ((codes * (u32)m.factor | 0x80808080u) - (u32)m.offset * 0x01010101u) ^ 0x80808080u;
}

// What a lane reads: its outputs and rows of the batch. Those that are missing have the numbers of the last one.
struct MmaLane {
    const u32 *words;
    const Meta *meta;
    u32 outputs[MMA_OUTPUTS / 8];
    const u32 *codes[MMA_OUTPUTS / 8];
    u32 words_at[MMA_TOKENS / 8];
    u32 meta_at[MMA_TOKENS / 8][2];
    u32 count; // rows of the batch
};

// Adds the shares of unit u: weights are unpacked once for all rows.
template <class C>
__device__ __forceinline__ void add_mma_unit(const MmaLane &in, const Matrix &m, u32 u, float *sums) {
    u32 q = threadIdx.x % 4;
    bool splits = m.group == 16;
    u32 weights[MMA_OUTPUTS / 8][2];
    UnitScales scales[MMA_OUTPUTS / 8];
    for (u32 f = 0; f < MMA_OUTPUTS / 8; f++) {
        const u32 *unit = in.codes[f] + u * C::WORDS;
        weights[f][0] = integers(m, C::four(unit, q, m.levels));
        weights[f][1] = integers(m, C::four(unit, 4 + q, m.levels));
        scales[f] = unit_scales(m, in.outputs[f], u);
    }
    for (u32 t = 0; t < MMA_TOKENS / 8; t++) {
        // The whole block.
        if (8 * t >= in.count) break;
        // Indices of 32 bits: one instruction makes an address of one.
        const u32 *x = in.words + (in.words_at[t] + 8 * u);
        u32 low = x[0], high = x[4];
        Meta meta[2] = {in.meta[in.meta_at[t][0] + u], in.meta[in.meta_at[t][1] + u]};
        for (u32 f = 0; f < MMA_OUTPUTS / 8; f++) {
            int n[2] = {SUM_START, SUM_START}, k[2] = {SUM_START, SUM_START};
            mma_s8(n, weights[f][0], low);
            if (splits) mma_s8(k, weights[f][1], high);
            else mma_s8(n, weights[f][1], high);
            for (u32 i = 0; i < 2; i++) {
                float *sum = &sums[(f * MMA_TOKENS / 8 + t) * 2 + i];
                float part =
                    splits ? halves(scales[f], sum_value(n[i]), sum_value(k[i])) : sum_value(n[i]) * scales[f].low.x;
                *sum = add_unit(m, scales[f], part, meta[i], *sum);
            }
        }
    }
}

// The share of a warp in the products of the outputs from `row` on with `count` rows of the batch from `first` on: `parts` is
// (tokens, stride).
template <class C>
__device__ __forceinline__ void add_mma_units(const ProductArgs &a, const Matrix &m, u32 row, u32 first, u32 count,
                                              float *parts) {
    u32 lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    MmaLane in = {(const u32 *)a.words, a.meta};
    in.count = count;
    for (u32 f = 0; f < MMA_OUTPUTS / 8; f++) {
        in.outputs[f] = min(row + 8 * f + g, m.rows - 1);
        in.codes[f] = m.codes + (u64)in.outputs[f] * m.units * C::WORDS;
    }
    for (u32 t = 0; t < MMA_TOKENS / 8; t++) {
        in.words_at[t] = (first + min(8 * t + g, count - 1)) * m.units * 8 + q;
        for (u32 i = 0; i < 2; i++) in.meta_at[t][i] = (first + min(8 * t + 2 * q + i, count - 1)) * m.units;
    }
    float sums[MMA_RESULTS], one[MMA_RESULTS], two[MMA_RESULTS], four[MMA_RESULTS];
#pragma unroll 1
    for (u32 i = 0; i < 2; i++) {
#pragma unroll 1
        for (u32 j = 0; j < 2; j++) {
#pragma unroll 1
            for (u32 k = 0; k < 2; k++) {
                u32 from = threadIdx.x / 32 + k * 16 + j * 8 + i * 4;
                for (u32 n = 0; n < MMA_RESULTS; n++) sums[n] = 0.0f;
#pragma unroll 1
                for (u32 u = from; u < m.units; u += 32) add_mma_unit<C>(in, m, u, sums);
                if (k == 0)
                    for (u32 n = 0; n < MMA_RESULTS; n++) one[n] = sums[n];
            }
            for (u32 n = 0; n < MMA_RESULTS; n++) sums[n] = one[n] + sums[n];
            if (j == 0)
                for (u32 n = 0; n < MMA_RESULTS; n++) two[n] = sums[n];
        }
        for (u32 n = 0; n < MMA_RESULTS; n++) sums[n] = two[n] + sums[n];
        if (i == 0)
            for (u32 n = 0; n < MMA_RESULTS; n++) four[n] = sums[n];
    }
    for (u32 n = 0; n < MMA_RESULTS; n++) sums[n] = four[n] + sums[n];
    for (u32 f = 0; f < MMA_OUTPUTS / 8; f++)
        for (u32 t = 0; t < MMA_TOKENS / 8; t++)
            for (u32 i = 0; i < 2; i++)
                parts[(8 * t + 2 * q + i) * MMA_STRIDE + 8 * f + g] = sums[(f * MMA_TOKENS / 8 + t) * 2 + i];
}

template <class C> __device__ __forceinline__ void product_mma(const ProductArgs &a) {
    wait_for_launch();
    let_next_launch();
    __shared__ float parts[MMA_WARPS][MMA_TOKENS * MMA_STRIDE];
    const u32 threads = 32 * MMA_WARPS, each = MMA_OUTPUTS * MMA_TOKENS / threads;
    u32 block = blockIdx.x, which = matrix_of(a, MMA_OUTPUTS, block);
    u32 first = blockIdx.y * MMA_TOKENS, count = min(a.tokens - first, MMA_TOKENS);
    float gates[each] = {};
    u32 steps = a.epilogue == EPILOGUE_SWIGLU ? 2 : 1;
#pragma unroll 1
    for (u32 step = 0; step < steps; step++) {
        const Matrix &m = a.m[which + step];
        float *mine = parts[threadIdx.x / 32];
        add_mma_units<C>(a, m, block * MMA_OUTPUTS, first, count, mine);
        __syncthreads();
        for (u32 i = 0; i < each; i++) {
            u32 at = i * threads + threadIdx.x, token = at / MMA_OUTPUTS, row = block * MMA_OUTPUTS + at % MMA_OUTPUTS;
            if (token >= count || row >= m.rows) continue;
            u32 p = token * MMA_STRIDE + at % MMA_OUTPUTS;
            float sum = (parts[0][p] + parts[2][p]) + (parts[1][p] + parts[3][p]);
            float *out = a.out[which] + (u64)(first + token) * m.rows + row;
            if (step + 1 < steps) gates[i] = sum;
            else if (a.epilogue == EPILOGUE_SWIGLU) *out = swiglu(gates[i], sum);
            else if (a.epilogue == EPILOGUE_ADD) *out += sum;
            else *out = sum;
        }
        // Before the next step writes to `parts`.
        __syncthreads();
    }
}

#define PRODUCT_MMA(NAME, CODES)                                                                                       \
    extern "C" __global__ void __launch_bounds__(32 * MMA_WARPS) NAME(ProductArgs a) { product_mma<CODES>(a); }

PRODUCT_MMA(product_int8_1_mma, Bits2)
PRODUCT_MMA(product_int8_2_mma, Bits4)
PRODUCT_MMA(product_int8_3_mma, Bits6)
PRODUCT_MMA(product_int8_4_mma, Bits8)
PRODUCT_MMA(product_int8_5_mma, Levels)
