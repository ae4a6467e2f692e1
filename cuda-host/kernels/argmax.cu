// The most likely token of each row: of equals the first; NaN and -inf never. One block a row.

struct ArgmaxArgs {
    const float *logits; // (rows, vocab)
    u64 *best;           // (rows): bits that order as the logits do, above the complement of the token; 0 if there is none
    u32 vocab, unused;
};

__device__ __forceinline__ u64 warp_best(u64 x) {
    for (int o = 16; o > 0; o /= 2) {
        u64 other = __shfl_xor_sync(0xffffffffu, x, o);
        x = other > x ? other : x;
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(1024) argmax(ArgmaxArgs a) {
    __shared__ u64 found[32];
    const float *row = a.logits + (u64)blockIdx.x * a.vocab;
    const float lowest = __uint_as_float(0xff800000u);
    float top = lowest;
    u32 token = 0;
    for (u32 from = threadIdx.x; from < a.vocab; from += 8 * 1024) {
        // Loads that do not wait for one another.
        float x[8];
        for (u32 j = 0; j < 8; j++) x[j] = from + j * 1024 < a.vocab ? row[from + j * 1024] : lowest;
        for (u32 j = 0; j < 8; j++) {
            if (!(x[j] > top)) continue;
            top = x[j];
            token = from + j * 1024;
        }
    }
    u32 bits = __float_as_uint(top);
    // Both zeros are equal.
    if (bits == 0x80000000u) bits = 0;
    u32 order = bits >> 31 ? ~bits : bits | 0x80000000u;
    u64 best = warp_best(top > lowest ? (u64)order << 32 | (u32)~token : 0);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) found[warp] = best;
    __syncthreads();
    if (warp > 0) return;
    best = warp_best(found[lane]);
    if (lane == 0) a.best[blockIdx.x] = best;
}
