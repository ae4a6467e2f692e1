// Norm and rotation of the heads of queries and keys; keys and values go into the cache. One block of one warp per head
// (queries, then keys, then values) and row of the batch.

struct RopeArgs {
    const Cache *caches; // of rows of the batch
    float *q; // (rows, heads, dim), replaced
    const float *k, *v;
    const float *q_norm, *k_norm; // (dim), or null
    const u32 *positions;         // of rows of the batch
    const float *angles;          // (rows, dim): cosines, then sines
    u32 heads, kv_heads, dim;
    u32 layer;
    u32 interleaved;
    float eps;
};

// Normalizes and rotates a head in shared memory, by one warp.
__device__ __forceinline__ void rope_head(const RopeArgs &a, float *head, const float *weight, u32 row, u32 lane) {
    u32 dim = a.dim;
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

enum Kind { QUERY, KEY, VALUE };

// A head of the row in shared memory, as attention reads it, by one warp.
__device__ __forceinline__ void load_head(const RopeArgs &a, Kind kind, u32 index, u32 row, u32 lane, float *head) {
    u32 dim = a.dim, heads = kind == QUERY ? a.heads : a.kv_heads;
    const float *from = (kind == VALUE ? a.v : kind == KEY ? a.k : a.q) + ((u64)row * heads + index) * dim;
    for (u32 i = lane; i < dim; i += 32) head[i] = from[i];
    __syncwarp();
    if (kind != VALUE) rope_head(a, head, kind == KEY ? a.k_norm : a.q_norm, row, lane);
}

// Stores a key or a value, whose elements begin at `at`, by one warp.
__device__ __forceinline__ void store_head(const Cache &c, unsigned char *base, u64 at, u32 lane, const float *head) {
    for (u32 i = lane; i < c.dim; i += 32) cache_put(c, base, at + i - lane, lane, head[i]);
}

extern "C" __global__ void rope_store(RopeArgs a) {
    wait_for_launch();
    let_next_launch();
    __shared__ float head[256];
    u32 dim = a.dim, kv = a.kv_heads, lane = threadIdx.x, index = blockIdx.x, row = blockIdx.y;
    Kind kind = index < a.heads ? QUERY : index < a.heads + kv ? KEY : VALUE;
    index -= kind == QUERY ? 0 : kind == KEY ? a.heads : a.heads + kv;
    load_head(a, kind, index, row, lane, head);
    if (kind == QUERY) {
        for (u32 i = lane; i < dim; i += 32) a.q[((u64)row * a.heads + index) * dim + i] = head[i];
    } else {
        Cache cache = cache_of(a.caches, row, a.layer);
        u64 at = ((u64)index * cache.capacity + a.positions[row]) * dim;
        store_head(cache, kind == KEY ? cache.keys : cache.values, at, lane, head);
    }
}
