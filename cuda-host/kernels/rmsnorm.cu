// y = x / sqrt(mean(x^2) + eps) * weight, as floats and as integers: one block a row.

struct NormArgs {
    const float *x;
    const float *weight;
    const u32 *rows; // those to read, or null for all
    float *out;
    signed char *words; // null if no product reads integers
    Meta *meta;
    u32 cols;
    float eps;
};

// 1 / sqrt(mean(x^2) + eps), added up by four warps, so that larger blocks give the same bits.
__device__ __forceinline__ float rms_scale(const float *x, u32 cols, float eps) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x; threadIdx.x < 128 && i < cols; i += 16 * 128) {
        // Loads that do not wait for one another.
        float read[16];
        for (u32 j = 0; j < 16; j++) read[j] = i + j * 128 < cols ? x[i + j * 128] : 0.0f;
        for (u32 j = 0; j < 16; j++) sum += read[j] * read[j];
    }
    return 1.0f / sqrtf(block_sum(sum) / (float)cols + eps);
}

extern "C" __global__ void rmsnorm(NormArgs a) {
    wait_for_launch();
    let_next_launch();
    u32 row = a.rows ? a.rows[blockIdx.x] : blockIdx.x;
    const float *x = a.x + (u64)row * a.cols;
    float scale = rms_scale(x, a.cols, a.eps);
    for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
        float y = x[i] * scale * a.weight[i];
        u64 at = (u64)blockIdx.x * a.cols + i;
        a.out[at] = y;
        // A warp has a unit.
        if (a.words) put_unit(a.words, a.meta, at / 32, threadIdx.x % 32, y);
    }
}

// The integers of x (rows, cols): one warp a unit.

struct QuantizeArgs {
    const float *x;
    signed char *words;
    Meta *meta;
    u32 units; // of all rows
    u32 unused;
};

extern "C" __global__ void quantize(QuantizeArgs a) {
    wait_for_launch();
    let_next_launch();
    u32 unit = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (unit >= a.units) return;
    put_unit(a.words, a.meta, unit, lane, a.x[(u64)unit * 32 + lane]);
}
