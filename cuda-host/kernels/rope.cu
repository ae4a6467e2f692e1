// Norm and rotation of the heads of queries and keys; keys and values go into the cache. One block of one warp per head
// (queries, then keys, then values) and row of the sequence.

struct RopeArgs {
    Cache cache;
    float *q; // (rows, heads, dim), replaced
    const float *k, *v;
    const float *q_norm, *k_norm; // (dim), or null
    const u32 *positions;         // of rows of the batch
    const float *angles;          // (rows, dim): cosines, then sines
    u32 heads, first_row;
    u32 interleaved;
    float eps;
};

extern "C" __global__ void rope_store(RopeArgs a) {
    __shared__ float head[256];
    u32 dim = a.cache.dim, kv = a.cache.kv_heads, lane = threadIdx.x, index = blockIdx.x;
    u32 row = a.first_row + blockIdx.y;
    bool is_value = index >= a.heads + kv, is_key = index >= a.heads && !is_value;
    u32 in_kind = index - (is_value ? a.heads + kv : is_key ? a.heads : 0);
    const float *from = is_value ? a.v : is_key ? a.k : a.q;
    from += ((u64)row * (is_key || is_value ? kv : a.heads) + in_kind) * dim;
    for (u32 i = lane; i < dim; i += 32) head[i] = from[i];
    __syncwarp();
    if (!is_value) {
        const float *weight = is_key ? a.k_norm : a.q_norm;
        if (weight) {
            float sum = 0.0f;
            for (u32 i = lane; i < dim; i += 32) sum += head[i] * head[i];
            float scale = 1.0f / sqrtf(warp_sum(sum) / (float)dim + a.eps);
            for (u32 i = lane; i < dim; i += 32) head[i] = head[i] * (scale * weight[i]);
            __syncwarp();
        }
        const float *angles = a.angles + (u64)row * dim;
        for (u32 i = lane; i < dim / 2; i += 32) {
            u32 one = a.interleaved ? 2 * i : i, two = a.interleaved ? 2 * i + 1 : i + dim / 2;
            float x = head[one], y = head[two], c = angles[i], s = angles[dim / 2 + i];
            head[one] = x * c - y * s;
            head[two] = x * s + y * c;
        }
        __syncwarp();
    }
    if (is_key || is_value) {
        u64 at = ((u64)in_kind * a.cache.capacity + a.positions[row]) * dim;
        unsigned char *base = is_key ? a.cache.keys : a.cache.values;
        for (u32 i = lane; i < dim; i += 32) cache_put(a.cache, base, at + i - lane, lane, head[i]);
    } else {
        for (u32 i = lane; i < dim; i += 32) a.q[((u64)row * a.heads + in_kind) * dim + i] = head[i];
    }
}
