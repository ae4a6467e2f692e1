// Causal attention with an online softmax: one block of four warps per query head, row and part of the positions. A warp has
// every fourth position, four at once, whose loads do not wait for one another, and a lane has four or eight elements of a head.
// The last block of a head and row that ends merges the parts (flash decoding). See core's attention.rs for the patterns.
// `rope_attention` is rope_store and attention of a single row in one launch.

struct AttentionArgs {
    const Cache *caches;  // of rows of the batch
    const float *q;       // (rows, heads, dim)
    const u32 *positions; // of rows of the batch
    float *parts;         // (rows, heads, parts, dim + 2): result, highest score, sum of weights
    u32 *ended;           // (rows, heads): parts that have ended, 0 before and after
    float *out;           // (rows, heads, dim)
    signed char *words;   // null if no product reads integers
    Meta *meta;
    u32 heads, kv_heads, dim;
    u32 layer;
    u32 parts_count; // of the longest sequences, at most 32
    float scale;
};

// Positions that are worth a part.
const u32 PART_POSITIONS = 64;

__device__ __forceinline__ bool sees(const Cache &p, u32 query, u32 key) {
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

// Positions that a warp reads at once.
const u32 KEYS = 4;

// The softmax of some positions: each lane has elements 4 lane to 4 lane + 3 of the sum of values, and with two `CHUNKS` those
// 128 after them.
template <u32 CHUNKS> struct Softmax {
    float q[4 * CHUNKS]; // of the query, times the scale
    float sum[4 * CHUNKS];
    float top, weight;
};

// Adds those of the positions `begin..end` that a warp has.
template <CacheKind KIND, u32 CHUNKS>
__device__ __forceinline__ void add_keys(const Cache &c, u32 kv_head, u32 query, u32 begin, u32 end,
                                         Softmax<CHUNKS> &s) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float *key_scales = cache_scales(c, c.keys), *value_scales = cache_scales(c, c.values);
    u64 head = (u64)kv_head * c.capacity * c.dim;
    for (u32 first = begin + warp; first < end; first += 4 * KEYS) {
        u32 mine = first + 4 * (lane % KEYS), seen = __ballot_sync(0xffffffffu, mine < end && sees(c, query, mine));
        // The same for all lanes.
        if (seen == 0) continue;
        // Without conditions: positions that are not seen are left out below, and lanes without elements have 0 as their query.
        float4 k[KEYS][CHUNKS], v[KEYS][CHUNKS];
        for (u32 j = 0; j < KEYS; j++)
            for (u32 i = 0; i < CHUNKS; i++) {
                u64 at = head + (u64)min(first + 4 * j, end - 1) * c.dim + min(4 * lane + 128 * i, c.dim - 4);
                k[j][i] = cache_four<KIND>(c, c.keys, key_scales, at);
                v[j][i] = cache_four<KIND>(c, c.values, value_scales, at);
            }
        float score[KEYS], highest = s.top;
        for (u32 j = 0; j < KEYS; j++) {
            score[j] = 0.0f;
            for (u32 i = 0; i < CHUNKS; i++) {
                const float *q = s.q + 4 * i;
                score[j] += q[0] * k[j][i].x + q[1] * k[j][i].y + q[2] * k[j][i].z + q[3] * k[j][i].w;
            }
        }
        for (u32 o = 16; o > 0; o /= 2)
            for (u32 j = 0; j < KEYS; j++) score[j] += __shfl_xor_sync(0xffffffffu, score[j], o);
        for (u32 j = 0; j < KEYS; j++)
            if (seen >> j & 1) highest = fmaxf(highest, score[j]);
        float decay = expf(s.top - highest);
        s.top = highest;
        s.weight *= decay;
        for (u32 i = 0; i < 4 * CHUNKS; i++) s.sum[i] *= decay;
        for (u32 j = 0; j < KEYS; j++) {
            // The values of others may be anything.
            if (!(seen >> j & 1)) continue;
            float w = expf(score[j] - highest);
            s.weight += w;
            for (u32 i = 0; i < CHUNKS; i++) {
                float *sum = s.sum + 4 * i;
                sum[0] += w * v[j][i].x;
                sum[1] += w * v[j][i].y;
                sum[2] += w * v[j][i].z;
                sum[3] += w * v[j][i].w;
            }
        }
    }
}

// Stores element `at` of the result, by warps that have a unit.
__device__ __forceinline__ void put_attention(const AttentionArgs &a, u64 at, float x) {
    a.out[at] = x;
    if (a.words) put_unit(a.words, a.meta, at / 32, threadIdx.x % 32, x);
}

// Merges the parts of a head and row, by a block; every lane has the highest score and the sum of weights of one.
__device__ __forceinline__ void join_parts(const AttentionArgs &a, u64 head, u32 count) {
    u32 dim = a.dim, lane = threadIdx.x % 32;
    // From the memory that all blocks share.
    const float *parts = a.parts + head * a.parts_count * (dim + 2);
    bool has = lane < count;
    float top = has ? __ldcg(parts + lane * (dim + 2) + dim) : -1e30f;
    float weight = has ? __ldcg(parts + lane * (dim + 2) + dim + 1) : 0.0f;
    float highest = warp_max(top), scale = has ? expf(top - highest) : 0.0f, total = warp_sum(weight * scale);
    // A warp has a unit.
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) {
        float x = 0.0f;
        for (u32 p = 0; p < count; p += 8) {
            // Loads that do not wait for one another.
            float read[8];
            for (u32 j = 0; j < 8; j++) read[j] = p + j < count ? __ldcg(parts + (p + j) * (dim + 2) + i) : 0.0f;
            for (u32 j = 0; j < 8; j++) x += read[j] * __shfl_sync(0xffffffffu, scale, p + j);
        }
        put_attention(a, head * dim + i, total > 0.0f ? x / total : x);
    }
}

// What a warp of a block found: the highest score, the sum of weights, and the sum of values.
struct Found {
    float tops[4], weights[4];
    float values[4][256];
};

// The positions `begin..end` for the query `q`, whose heads have at most 128 times `CHUNKS` elements.
template <CacheKind KIND, u32 CHUNKS>
__device__ __forceinline__ void attend_warp(const AttentionArgs &a, const Cache &cache, const float *q, u32 kv_head,
                                            u32 query, u32 begin, u32 end, Found &found) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Softmax<CHUNKS> s;
    for (u32 i = 0; i < 4 * CHUNKS; i++) {
        u32 element = 4 * lane + 128 * (i / 4) + i % 4;
        s.q[i] = element < a.dim ? q[element] * a.scale : 0.0f;
        s.sum[i] = 0.0f;
    }
    s.top = -1e30f;
    s.weight = 0.0f;
    add_keys<KIND, CHUNKS>(cache, kv_head, query, begin, end, s);
    for (u32 i = 0; i < 4 * CHUNKS; i++) {
        u32 element = 4 * lane + 128 * (i / 4) + i % 4;
        if (element < a.dim) found.values[warp][element] = s.sum[i];
    }
    if (lane == 0) {
        found.tops[warp] = s.top;
        found.weights[warp] = s.weight;
    }
}

// Of the row's own position, which is not in the cache yet if ROPE says so, from `rope`.
template <bool ROPE> __device__ __forceinline__ void attend(const AttentionArgs &a, const RopeArgs *rope) {
    // Positions, caches and earlier keys and values of a single row were written before the launches that precede this one.
    if (!ROPE) wait_for_launch();
    __shared__ Found found;
    // The query, and the key and the value of its own position as the cache has them.
    __shared__ float heads[ROPE ? 3 : 1][256];
    u32 dim = a.dim, lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y;
    u32 head = blockIdx.x, group = a.heads / a.kv_heads, kv_head = head / group;
    Cache cache = cache_of(a.caches, row, a.layer);
    u32 query = a.positions[row], count = query + 1;
    u32 parts = min((count + PART_POSITIONS - 1) / PART_POSITIONS, a.parts_count);
    // The whole block.
    if (blockIdx.z >= parts) return;
    u32 span = (count + parts - 1) / parts;
    u32 begin = min(blockIdx.z * span, count), end = min(begin + span, count);
    if (ROPE) {
        u32 bytes = dim * (cache.mantissa ? 8 : cache.bits) / 8;
        // Once for the query heads that share them.
        for (u32 i = begin + threadIdx.x; i < end && head % group == 0; i += blockDim.x)
            for (u32 b = 0; b < bytes && sees(cache, query, i); b += 128) {
                u64 at = ((u64)kv_head * cache.capacity + i) * bytes + b;
                prefetch(cache.keys + at);
                prefetch(cache.values + at);
            }
        wait_for_launch();
    }
    let_next_launch();
    const float *q = a.q + ((u64)row * a.heads + head) * dim;
    bool own = ROPE && begin <= query && query < end;
    if constexpr (ROPE) {
        __shared__ uint4 stored[2][64];
        Kind kind = warp == 0 ? QUERY : warp == 1 ? KEY : VALUE;
        // The same for all lanes.
        if (kind == QUERY || (own && warp < 3)) {
            load_head(*rope, kind, kind == QUERY ? head : kv_head, row, lane, heads[warp]);
            if (kind != QUERY) {
                Cache one = cache;
                one.keys = one.values = (unsigned char *)stored[warp - 1];
                one.capacity = one.kv_heads = 1;
                store_head(one, one.keys, 0, lane, heads[warp]);
                u64 at = ((u64)kv_head * cache.capacity + query) * dim;
                if (head % group == 0)
                    store_head(cache, kind == KEY ? cache.keys : cache.values, at, lane, heads[warp]);
                __syncwarp();
                for (u32 i = 4 * lane; i < dim; i += 128) {
                    float *to = heads[warp] + i;
                    float4 x = cache_any(one, one.keys, i);
                    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
                }
            }
        }
        __syncthreads();
        q = heads[0];
        end = own ? end - 1 : end;
    }
#define ATTEND(KIND)                                                                                                   \
    case KIND:                                                                                                         \
        if (dim <= 128) attend_warp<KIND, 1>(a, cache, q, kv_head, query, begin, end, found);                          \
        else attend_warp<KIND, 2>(a, cache, q, kv_head, query, begin, end, found);                                     \
        break;
    switch (cache_kind(cache)) {
        ATTEND(CACHE_F32)
        ATTEND(CACHE_F16)
        ATTEND(CACHE_F8)
        ATTEND(CACHE_INT8)
        ATTEND(CACHE_INT4)
    }
    __syncthreads();
    // Of the row's own position; every warp computes it.
    float last = -1e30f;
    if constexpr (ROPE) {
        if (own) {
            last = 0.0f;
            // In the order of `add_keys`.
            for (u32 i = 4 * lane; i < dim; i += 128) {
                const float *q = heads[0] + i, *k = heads[1] + i;
                last += q[0] * a.scale * k[0] + q[1] * a.scale * k[1] + q[2] * a.scale * k[2] + q[3] * a.scale * k[3];
            }
            last = warp_sum(last);
        }
    }
    float highest = last, total = 0.0f, decay[4];
    for (u32 w = 0; w < 4; w++) highest = fmaxf(highest, found.tops[w]);
    for (u32 w = 0; w < 4; w++) {
        decay[w] = expf(found.tops[w] - highest);
        total += found.weights[w] * decay[w];
    }
    float by = own ? expf(last - highest) : 0.0f;
    total += by;
    u64 at = (u64)row * a.heads + head;
    float *part = a.parts + (at * a.parts_count + blockIdx.z) * (dim + 2);
    // A warp has a unit.
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) {
        float x = 0.0f;
        for (u32 w = 0; w < 4; w++) x += found.values[w][i] * decay[w];
        if constexpr (ROPE)
            if (own) x += by * heads[2][i];
        if (parts == 1) put_attention(a, at * dim + i, total > 0.0f ? x / total : x);
        else part[i] = x;
    }
    if (parts == 1) return;
    if (threadIdx.x == 0) {
        part[dim] = highest;
        part[dim + 1] = total;
    }
    if (ends_last(a.ended + at, parts)) join_parts(a, at, parts);
}

// Four blocks at a time on each multiprocessor.
extern "C" __global__ void __launch_bounds__(128, 4) attention(AttentionArgs a) { attend<false>(a, nullptr); }

struct RopeAttentionArgs {
    RopeArgs rope;
    AttentionArgs attention;
};

extern "C" __global__ void __launch_bounds__(128, 4) rope_attention(RopeAttentionArgs a) { attend<true>(a.attention, &a.rope); }
