// Causal attention with an online softmax. `attention`: one block of four warps per query head, row and part of the
// positions; the lanes of a warp have the elements of a head, and its warps every fourth position. `attention_join` merges
// the parts (flash decoding). See core's attention.rs for the patterns. `rope_attention` is rope_store and attention of a
// single row in one launch.

struct AttentionArgs {
    Cache cache;
    const float *q;       // (rows, heads, dim)
    const u32 *positions; // of rows of the batch
    float *parts;         // (rows, heads, parts, dim + 2): result, highest score, sum of weights
    float *out;           // (rows, heads, dim)
    signed char *words;   // null if no product reads integers
    Meta *meta;
    u32 heads, first_row, parts_count;
    u32 pattern;        // 0: full, 1: window, 2: dilated, 3: strided, 4: BigBird
    u32 a, b, c;        // numbers of the pattern
    float scale;
};

__device__ __forceinline__ bool sees(const AttentionArgs &p, u32 query, u32 key) {
    if (p.pattern == 0) return true;
    if (p.pattern == 1) return query - key < p.a || key < p.b;
    u32 from = query / 64, to = key / 64, back = from - to;
    if (p.pattern == 2) return back % p.b == 0 && back / p.b < p.a;
    if (back < p.a) return true;
    if (p.pattern == 3) return back % p.b == 0;
    if (to < p.b) return true;
    if ((u64)from + 1 <= (u64)p.a + p.b) return false;
    u32 choices = from + 1 - p.a - p.b;
    for (u32 i = 0; i < p.c; i++) {
        u32 hash = from * 64 + i;
        hash = (hash ^ hash >> 16) * 0x85ebca6bu;
        hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
        hash ^= hash >> 16;
        if (p.b + hash % choices == to) return true;
    }
    return false;
}

// Of the row's own position, from `own`, if ROPE says that it is not in the cache yet.
template <bool ROPE> __device__ __forceinline__ void attend(const AttentionArgs &a, const RopeArgs *rope) {
    __shared__ float results[4][256];
    __shared__ float tops[4], weights[4];
    u32 dim = a.cache.dim, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 row = a.first_row + blockIdx.y, head = blockIdx.x, kv_head = head / (a.heads / a.cache.kv_heads);
    u32 query = a.positions[row], count = query + 1;
    u32 span = (count + a.parts_count - 1) / a.parts_count;
    u32 begin = min(blockIdx.z * span, count), end = min(begin + span, count);
    float q[8] = {}, sum[8] = {};
    const float *from = a.q + ((u64)row * a.heads + head) * dim;
    Cache own = a.cache;
    if constexpr (ROPE) {
        // A head, and a cache of this position alone, whose numbers are rounded as the other's.
        __shared__ float heads[3][256], stored[2][256];
        own.keys = (unsigned char *)stored[0];
        own.values = (unsigned char *)stored[1];
        own.capacity = own.kv_heads = 1;
        Kind kind = warp == 0 ? QUERY : warp == 1 ? KEY : VALUE;
        bool last = begin <= query && query < end;
        // The same for all lanes.
        if (kind == QUERY || (last && warp < 3)) {
            load_head(*rope, kind, kind == QUERY ? head : kv_head, row, lane, heads[warp]);
            if (kind != QUERY) {
                store_head(own, kind == KEY ? own.keys : own.values, 0, lane, heads[warp]);
                u64 at = ((u64)kv_head * a.cache.capacity + query) * dim;
                if (head % (a.heads / a.cache.kv_heads) == 0)
                    store_head(a.cache, kind == KEY ? a.cache.keys : a.cache.values, at, lane, heads[warp]);
            }
        }
        __syncthreads();
        from = heads[0];
    }
    for (u32 i = 0; i < dim / 32; i++) q[i] = from[i * 32 + lane] * a.scale;
    float top = -1e30f, weight = 0.0f;
    for (u32 key = begin + warp; key < end; key += 4) {
        // The same for all lanes.
        if (!sees(a, query, key)) continue;
        bool is_own = ROPE && key == query;
        Cache cache = a.cache;
        if (is_own) cache = own;
        u64 at = is_own ? 0 : ((u64)kv_head * a.cache.capacity + key) * dim;
        float score = 0.0f;
        for (u32 i = 0; i < dim / 32; i++) score += q[i] * cache_get(cache, cache.keys, at + i * 32 + lane);
        score = warp_sum(score);
        float highest = fmaxf(top, score), decay = expf(top - highest), w = expf(score - highest);
        top = highest;
        weight = weight * decay + w;
        for (u32 i = 0; i < dim / 32; i++)
            sum[i] = sum[i] * decay + w * cache_get(cache, cache.values, at + i * 32 + lane);
    }
    for (u32 i = 0; i < dim / 32; i++) results[warp][i * 32 + lane] = sum[i];
    if (lane == 0) {
        tops[warp] = top;
        weights[warp] = weight;
    }
    __syncthreads();
    float highest = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3])), total = 0.0f, decay[4];
    for (u32 w = 0; w < 4; w++) {
        decay[w] = expf(tops[w] - highest);
        total += weights[w] * decay[w];
    }
    float *part = a.parts + (((u64)row * a.heads + head) * a.parts_count + blockIdx.z) * (dim + 2);
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) {
        float x = 0.0f;
        for (u32 w = 0; w < 4; w++) x += results[w][i] * decay[w];
        part[i] = x;
    }
    if (threadIdx.x == 0) {
        part[dim] = highest;
        part[dim + 1] = total;
    }
}

extern "C" __global__ void attention(AttentionArgs a) { attend<false>(a, nullptr); }

struct RopeAttentionArgs {
    RopeArgs rope;
    AttentionArgs attention;
};

extern "C" __global__ void rope_attention(RopeAttentionArgs a) { attend<true>(a.attention, &a.rope); }

// Four warps per query head and row; every lane has the highest score and the sum of weights of a part: at most 32.
extern "C" __global__ void attention_join(AttentionArgs a) {
    u32 dim = a.cache.dim, lane = threadIdx.x % 32, row = a.first_row + blockIdx.y;
    u64 head = (u64)row * a.heads + blockIdx.x;
    const float *parts = a.parts + head * a.parts_count * (dim + 2);
    bool has = lane < a.parts_count;
    float top = has ? parts[lane * (dim + 2) + dim] : -1e30f, weight = has ? parts[lane * (dim + 2) + dim + 1] : 0.0f;
    float highest = warp_max(top), scale = has ? expf(top - highest) : 0.0f;
    // A warp has a unit.
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) {
        float x = 0.0f, total = 0.0f;
        for (u32 p = 0; p < a.parts_count; p += 8) {
            // Loads that do not wait for one another.
            float read[8];
            for (u32 j = 0; j < 8; j++) read[j] = p + j < a.parts_count ? parts[(p + j) * (dim + 2) + i] : 0.0f;
            // In the order of the parts, as warps of a block are added up.
            for (u32 j = 0; j < 8; j++) {
                float by = __shfl_sync(0xffffffffu, scale, p + j);
                x += read[j] * by;
                total += __shfl_sync(0xffffffffu, weight, p + j) * by;
            }
        }
        x *= total > 0.0f ? 1.0f / total : 1.0f;
        u64 at = head * dim + i;
        a.out[at] = x;
        if (a.words) put_unit(a.words, a.meta, at / 32, lane, x);
    }
}
