// The most likely token of each row: of equals the first; NaN and -inf never. One block a row.

struct ArgmaxArgs {
    const float *logits; // (rows, vocab)
    u64 *best;           // (rows): bits that order as the logits do, above the complement of the token; 0 if there is none
    u32 vocab, unused;
};

__device__ __forceinline__ u32 ordered(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0xff800000u) return 0;
    // Both zeros are equal.
    if (bits == 0x80000000u) bits = 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

extern "C" __global__ void argmax(ArgmaxArgs a) {
    __shared__ u64 found[256];
    const float *row = a.logits + (u64)blockIdx.x * a.vocab;
    u64 mine = 0;
    for (u32 i = threadIdx.x; i < a.vocab; i += 256) {
        u32 order = ordered(row[i]);
        u64 key = order ? (u64)order << 32 | (u32)~i : 0;
        mine = key > mine ? key : mine;
    }
    found[threadIdx.x] = mine;
    __syncthreads();
    for (u32 half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half && found[threadIdx.x + half] > found[threadIdx.x])
            found[threadIdx.x] = found[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) a.best[blockIdx.x] = found[0];
}
