// Norm and rotation of the heads of queries and keys; keys and values go into the cache. One block of one warp per head
// (queries, then keys, then values) and row of the batch.

struct RopeArgs {
    const Cache *caches; // of rows of the batch
    float *q; // (rows, heads, dim), replaced
    const float *k, *v; // (rows, kv_heads, dim)
    const float *q_norm, *k_norm; // (dim), or null
    const u32 *positions;         // of rows of the batch
    const float *angles;          // (rows, dim): cosines, then sines
    u32 heads, kv_heads, dim;
    u32 layer;
    u32 halves; // rotated together: element i with i + halves if i is less, then 2 i with 2 i + 1
    float eps;
};

// A query that is rotated already, and those that `load_head` rotates.
enum Kind { ROTATED, QUERY, KEY, VALUE };

__device__ __forceinline__ bool rotates(Kind kind) { return kind == QUERY || kind == KEY; }

// Pairs of a lane: heads have at most 256 elements.
const u32 PAIRS = 4;

// Weights of the norm and angles of the pairs lane, lane + 32, ... of a head: what is known before the head is.
struct Rotation {
    float weights[PAIRS][2], cosines[PAIRS], sines[PAIRS];
};

__device__ __forceinline__ u32 element_of(const RopeArgs &a, u32 pair, u32 i) {
    return pair < a.halves ? pair + i * a.halves : 2 * pair + i;
}

__device__ __forceinline__ Rotation load_rotation(const RopeArgs &a, Kind kind, u32 row, u32 lane) {
    Rotation r = {};
    const float *angles = a.angles + (u64)row * a.dim, *weights = kind == QUERY ? a.q_norm : a.k_norm;
    for (u32 k = 0; k < PAIRS; k++) {
        u32 pair = lane + 32 * k;
        if (!rotates(kind) || pair >= a.dim / 2) continue;
        r.cosines[k] = angles[pair], r.sines[k] = angles[a.dim / 2 + pair];
        if (weights)
            for (u32 i = 0; i < 2; i++) r.weights[k][i] = weights[element_of(a, pair, i)];
    }
    return r;
}

// A head of the row, normalized and rotated, in shared memory, by one warp.
__device__ __forceinline__ void load_head(const RopeArgs &a, Kind kind, const Rotation &r, u32 index, u32 row, u32 lane,
                                          float *head) {
    u32 dim = a.dim, heads = kind <= QUERY ? a.heads : a.kv_heads;
    const float *from = (kind == VALUE ? a.v : kind == KEY ? a.k : a.q) + ((u64)row * heads + index) * dim;
    bool normalized = rotates(kind) && (kind == QUERY ? a.q_norm : a.k_norm);
    float x[PAIRS][2] = {}, sum = 0.0f;
    for (u32 k = 0; k < PAIRS; k++)
        for (u32 i = 0; i < 2; i++)
            if (lane + 32 * k < dim / 2) x[k][i] = from[element_of(a, lane + 32 * k, i)];
    if (normalized) {
        for (u32 k = 0; k < PAIRS; k++) sum += x[k][0] * x[k][0] + x[k][1] * x[k][1];
        float scale = rsqrtf(warp_sum(sum) / (float)dim + a.eps);
        for (u32 k = 0; k < PAIRS; k++)
            for (u32 i = 0; i < 2; i++) x[k][i] *= scale * r.weights[k][i];
    }
    for (u32 k = 0; k < PAIRS; k++) {
        u32 pair = lane + 32 * k;
        if (pair >= dim / 2) continue;
        float one = x[k][0], two = x[k][1], c = r.cosines[k], s = r.sines[k];
        head[element_of(a, pair, 0)] = rotates(kind) ? one * c - two * s : one;
        head[element_of(a, pair, 1)] = rotates(kind) ? one * s + two * c : two;
    }
    __syncwarp();
}

// Stores a key or a value, whose elements begin at `at`, by one warp.
__device__ __forceinline__ void store_head(const Cache &c, unsigned char *base, u64 at, u32 lane, const float *head) {
    float x[8];
    for (u32 k = 0; k < 8; k++) x[k] = head[min(32 * k + lane, c.dim - 1)];
    switch (cache_kind(c)) {
    case CACHE_F32: cache_put<CACHE_F32>(c, base, at, lane, x); break;
    case CACHE_F16: cache_put<CACHE_F16>(c, base, at, lane, x); break;
    case CACHE_F8: cache_put<CACHE_F8>(c, base, at, lane, x); break;
    case CACHE_INT8: cache_put<CACHE_INT8>(c, base, at, lane, x); break;
    case CACHE_INT4: cache_put<CACHE_INT4>(c, base, at, lane, x); break;
    }
}

extern "C" __global__ void rope_store(RopeArgs a) {
    wait_for_launch();
    let_next_launch();
    __shared__ float head[256];
    u32 dim = a.dim, kv = a.kv_heads, lane = threadIdx.x, index = blockIdx.x, row = blockIdx.y;
    Kind kind = index < a.heads ? QUERY : index < a.heads + kv ? KEY : VALUE;
    index -= kind == QUERY ? 0 : kind == KEY ? a.heads : a.heads + kv;
    load_head(a, kind, load_rotation(a, kind, row, lane), index, row, lane, head);
    if (kind == QUERY) {
        for (u32 i = lane; i < dim; i += 32) a.q[((u64)row * a.heads + index) * dim + i] = head[i];
    } else {
        Cache cache = cache_of(a.caches, row, a.layer);
        u64 at = ((u64)index * cache.capacity + a.positions[row]) * dim;
        store_head(cache, kind == KEY ? cache.keys : cache.values, at, lane, head);
    }
}
