// The most likely token of each row: of equals the first; NaN and -inf never. Some blocks a row, of which the last one that ends
// has the result.

struct ArgmaxArgs {
    const float *logits; // (rows, vocab)
    u64 *best;           // (rows): bits that order as the logits do, above the complement of the token; 0 if there is none
    u64 *found;          // (rows, blocks): those of each block
    u32 *ended;          // (rows): blocks that have ended, 0 before and after
    u32 vocab, unused;
};

const u32 ARGMAX_THREADS = 256;

__device__ __forceinline__ u64 warp_best(u64 x) {
    for (int o = 16; o > 0; o /= 2) {
        u64 other = __shfl_xor_sync(0xffffffffu, x, o);
        x = other > x ? other : x;
    }
    return x;
}

// By the block, for its first warp.
__device__ __forceinline__ u64 block_best(u64 x) {
    __shared__ u64 warps[ARGMAX_THREADS / 32];
    u32 lane = threadIdx.x % 32;
    x = warp_best(x);
    if (lane == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_best(lane < ARGMAX_THREADS / 32 ? warps[lane] : 0);
}

extern "C" __global__ void __launch_bounds__(ARGMAX_THREADS) argmax(ArgmaxArgs a) {
    wait_for_launch();
    let_next_launch();
    u32 row = blockIdx.y, each = (a.vocab + gridDim.x - 1) / gridDim.x, end = min(a.vocab, (blockIdx.x + 1) * each);
    const float *logits = a.logits + (u64)row * a.vocab;
    const float lowest = __uint_as_float(0xff800000u);
    float top = lowest;
    u32 token = 0;
    for (u32 from = blockIdx.x * each + threadIdx.x; from < end; from += 8 * ARGMAX_THREADS) {
        // Loads that do not wait for one another.
        float x[8];
        for (u32 j = 0; j < 8; j++) x[j] = from + j * ARGMAX_THREADS < end ? logits[from + j * ARGMAX_THREADS] : lowest;
        for (u32 j = 0; j < 8; j++) {
            if (!(x[j] > top)) continue;
            top = x[j];
            token = from + j * ARGMAX_THREADS;
        }
    }
    u32 bits = __float_as_uint(top);
    // Both zeros are equal.
    if (bits == 0x80000000u) bits = 0;
    u32 order = bits >> 31 ? ~bits : bits | 0x80000000u;
    u64 best = block_best(top > lowest ? (u64)order << 32 | (u32)~token : 0);
    u64 *found = a.found + row * gridDim.x;
    if (threadIdx.x == 0) found[blockIdx.x] = best;
    // The whole block.
    if (!ends_last(a.ended + row, gridDim.x)) return;
    best = block_best(threadIdx.x < gridDim.x ? __ldcg(found + threadIdx.x) : 0);
    if (threadIdx.x == 0) a.best[row] = best;
}
