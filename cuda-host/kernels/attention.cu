// Causal attention with an online softmax. A block of eight warps has two query heads that share a key head, of one row, and a part of the
// positions; 16 lanes have a position, each of them eight elements of its key and value, or 16. The results of the parts are joined (flash
// decoding): of a few parts, whose blocks are a cluster, by the first of them, and of more by the last block that ends. See core's
// attention.rs for the patterns.
//
// Of a row alone the block also rotates the heads, and stores the key and the value of the row.

struct AttentionArgs {
    RopeArgs rope; // of rows that have been rotated, k and v are null
    float *parts;  // (rows, heads, parts, dim + 2): result, highest score, sum of weights
    u32 *ended;    // (rows, heads): parts that have ended, 0 before and after
    float *out;    // (rows, heads, dim)
    signed char *words; // null if no product reads integers
    Meta *meta;
    u32 parts_count; // of the longest sequences, at most 32
    u32 clustered;    // whether the parts of a row are a cluster
    u32 cluster_most; // parts that a cluster may have
    float scale;     // of scores, whose powers of 2 are the weights
};

// The most parts of a cluster, and positions of its parts while it grows, as in the host's launches.rs.
const u32 CLUSTER = 8, PART_POSITIONS = 64;

// Parts of a row with so many positions. Up to `most` have 64 positions or less; these grow to 256; then there are as many times `most`
// as have 128 or more.
__device__ __forceinline__ u32 parts_of(u32 count, u32 most, u32 limit) {
    u32 parts = 1, each = 2 * PART_POSITIONS * most;
    while (parts < most && parts * PART_POSITIONS < count) parts *= 2;
    return min(count < 2 * each ? parts : count / each * most, limit);
}

// Query heads of a block.
const u32 QUERIES = 2;

const u32 ATTENTION_WARPS = 8, ATTENTION_THREADS = 32 * ATTENTION_WARPS;

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

// Eight elements of a cache, and their scale.
template <CacheKind KIND> struct Eight {
    static constexpr bool INTEGERS = KIND == CACHE_INT8 || KIND == CACHE_INT4;
    static constexpr u32 WORDS = KIND == CACHE_F32 ? 8 : KIND == CACHE_F16 ? 4 : KIND == CACHE_INT4 ? 1 : 2;
    u32 words[WORDS];
    float scale;
};

template <CacheKind KIND>
__device__ __forceinline__ void load_eight(const unsigned char *base, const float *scales, u64 at, Eight<KIND> &to) {
    load_unit((const u32 *)base + at / 8 * Eight<KIND>::WORDS, to.words);
    if constexpr (Eight<KIND>::INTEGERS) to.scale = scales[at / 32];
}

// Without the scale.
template <CacheKind KIND> __device__ __forceinline__ float eight_value(const Eight<KIND> &from, u32 i, u32 mantissa) {
    const u32 *w = from.words;
    if constexpr (KIND == CACHE_F32) return __uint_as_float(w[i]);
    else if constexpr (KIND == CACHE_F16) return half_value(w[i / 2] >> (16 * (i % 2)) & 0xffff);
    else if constexpr (KIND == CACHE_F8) return float8_value(w[i / 4] >> (8 * (i % 4)) & 255, mantissa);
    // The last bits of 2^23: a conversion takes longer.
    else if constexpr (KIND == CACHE_INT8)
        return __uint_as_float(((w[i / 4] ^ 0x80808080u) >> (8 * (i % 4)) & 255) | 0x4b000000u) - 8388736.0f;
    else return __uint_as_float(((w[0] ^ 0x88888888u) >> (4 * i) & 15) | 0x4b000000u) - 8388616.0f;
}

// The softmax of some positions: a lane has elements 8 (lane % 16) to 8 (lane % 16) + 7 of each query head, and those 128 after them
// with two `CHUNKS`.
template <u32 CHUNKS> struct Softmax {
    float q[QUERIES][8 * CHUNKS]; // of the query, times the scale
    float sum[QUERIES][8 * CHUNKS]; // of values
    // Of query head lane % 16 / 8: the highest score of the warp, and the lane's sum of weights.
    float top, weight;
};

// Of N numbers of which 16 lanes have a part each, the sum of number lane % 16 * N / 16.
template <u32 N> __device__ __forceinline__ float sum_of_lanes(const float (&x)[N]) {
    const u32 APART = 16 / N;
    if constexpr (N > 1) {
        bool upper = threadIdx.x & APART;
        float half[N / 2];
        for (u32 i = 0; i < N / 2; i++) {
            float keep = upper ? x[2 * i + 1] : x[2 * i], send = upper ? x[2 * i] : x[2 * i + 1];
            half[i] = keep + __shfl_xor_sync(0xffffffffu, send, APART);
        }
        return sum_of_lanes(half);
    } else {
        return x[0];
    }
}

// From scores, of which lanes have a part each, to weights: a lane's is of the query head and the position of number
// lane % 16 * N / 16. Scales the sums so far.
template <u32 KEYS, u32 CHUNKS>
__device__ __forceinline__ float weigh(Softmax<CHUNKS> &s, const float (&scores)[QUERIES * KEYS], u32 seen) {
    const u32 APART = 16 / (QUERIES * KEYS);
    u32 lane = threadIdx.x % 32;
    float score = sum_of_lanes(scores);
    for (u32 o = 1; o < APART; o *= 2) score += __shfl_xor_sync(0xffffffffu, score, o);
    bool sees = seen >> (2 * (lane % 16 / APART % KEYS) + lane / 16) & 1;
    float highest = sees ? score : -1e30f;
    for (u32 o = APART; o < 16 / QUERIES; o *= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, o));
    highest = fmaxf(s.top, fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 16)));
    float decay = exp2f(s.top - highest), weight = sees ? exp2f(score - highest) : 0.0f;
    s.top = highest;
    // Other lanes have the same number.
    s.weight = s.weight * decay + (lane % APART == 0 ? weight : 0.0f);
    for (u32 q = 0; q < QUERIES; q++) {
        float by = __shfl_sync(0xffffffffu, decay, q * (16 / QUERIES));
        for (u32 i = 0; i < 8 * CHUNKS; i++) s.sum[q][i] *= by;
    }
    return weight;
}

// The heads of a block, and its positions.
struct Part {
    u32 row, kv_head;
    u32 first, count; // query heads
    u32 query;        // position of the row
    u32 begin, end;
    u32 own; // the position of the row, if the block has it and stores it, or none
};

// The positions that the warps of a block read, in turn: half h of a warp has position 2 j + h of those that it reads at once.
template <CacheKind KIND, u32 CHUNKS> struct Reader {
    static constexpr u32 KEYS = (KIND == CACHE_F32 ? 2 : 4) / CHUNKS, WARP = 2 * KEYS, BLOCK = WARP * ATTENTION_WARPS;
    const Cache &cache;
    const Part &p;

    // Bits of the positions from `first` on that the warp sees.
    __device__ __forceinline__ u32 see(u32 first) const {
        u32 mine = first + threadIdx.x % WARP;
        return __ballot_sync(0xffffffffu, mine < p.end && sees(cache, p.query, mine)) & ((1u << WARP) - 1);
    }

    // From keys or values and from `stored`, which has the row's own. Zeros where nothing is seen: what is there may be anything.
    __device__ __forceinline__ void load(unsigned char *base, const uint4 *stored, u32 first, u32 seen,
                                         Eight<KIND> (&to)[KEYS][CHUNKS]) const {
        u32 half = threadIdx.x % 32 / 16;
        u64 head = (u64)p.kv_head * cache.capacity * cache.dim;
        const float *scales = cache_scales(cache, base), *stored_scales = (const float *)stored + cache.dim / 32 * cache.bits;
        for (u32 j = 0; j < KEYS; j++)
            for (u32 i = 0; i < CHUNKS; i++) {
                u32 position = first + 2 * j + half, element = min(threadIdx.x % 16 * 8 + 128 * i, cache.dim - 8);
                bool own = position == p.own;
                u64 at = own ? element : head + (u64)position * cache.dim + element;
                to[j][i] = {};
                if (seen >> (2 * j + half) & 1)
                    load_eight(own ? (const unsigned char *)stored : base, own ? stored_scales : scales, at, to[j][i]);
            }
    }
};

// What a block shares: its heads, and what its warps found, the highest scores and sums of weights and the sums of values. And of the
// first block of a cluster, the results of all.
struct AttentionShared {
    float heads[QUERIES + 2][256]; // queries; the key and the value before they are stored
    uint4 stored[2][64];           // the key and the value in the cache's format
    float2 tops[ATTENTION_WARPS][QUERIES];
    float values[ATTENTION_WARPS][QUERIES][256];
#if __CUDA_ARCH__ >= 900
    float parts[QUERIES * CLUSTER * (256 + 2)];
#else
    float parts[1];
#endif
};

// The heads in shared memory, of which each warp loads one at most.
__device__ __forceinline__ void load_heads(const AttentionArgs &a, const Cache &cache, const Part &p, Kind kind,
                                           const Rotation &rotation, AttentionShared &shared) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (kind <= QUERY && warp < p.count) load_head(a.rope, kind, rotation, p.first + warp, p.row, lane, shared.heads[warp]);
    if (kind > QUERY && p.own == p.query) {
        float *head = shared.heads[warp];
        load_head(a.rope, kind, rotation, p.kv_head, p.row, lane, head);
        Cache one = cache;
        one.capacity = one.kv_heads = 1;
        store_head(one, (unsigned char *)shared.stored[kind == KEY ? 0 : 1], 0, lane, head);
    }
    __syncthreads();
}

// Stores the row's own key or value, by one warp.
__device__ __forceinline__ void put_own(const Cache &cache, const Part &p, unsigned char *base, const uint4 *stored) {
    u32 lane = threadIdx.x % 32, words = cache.dim / 32 * cache.bits;
    u64 at = (u64)p.kv_head * cache.capacity + p.query;
    for (u32 i = lane; i < words; i += 32) ((u32 *)base)[at * words + i] = ((const u32 *)stored)[i];
    if (cache.bits < 16 && cache.mantissa == 0 && lane < cache.dim / 32)
        cache_scales(cache, base)[at * (cache.dim / 32) + lane] = ((const float *)stored)[words + lane];
}

// What the warps of a block find.
template <CacheKind KIND, u32 CHUNKS>
__device__ __forceinline__ void attend_warp(const AttentionArgs &a, const Cache &cache, const Part &p, AttentionShared &shared) {
    typedef Reader<KIND, CHUNKS> R;
    const u32 KEYS = R::KEYS, APART = 16 / (QUERIES * KEYS);
    u32 dim = cache.dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = 8 * (lane % 16);
    R reader = {cache, p};
    Softmax<CHUNKS> s;
    for (u32 q = 0; q < QUERIES; q++)
        for (u32 i = 0; i < 8 * CHUNKS; i += 4) {
            u32 element = column + 128 * (i / 8) + i % 8;
            // Of others 0.
            float scale = element < dim && q < p.count ? a.scale : 0.0f;
            float4 four = *(const float4 *)(shared.heads[min(q, p.count - 1)] + min(element, dim - 4));
            s.q[q][i] = four.x * scale, s.q[q][i + 1] = four.y * scale;
            s.q[q][i + 2] = four.z * scale, s.q[q][i + 3] = four.w * scale;
            for (u32 j = i; j < i + 4; j++) s.sum[q][j] = 0.0f;
        }
    s.top = -1e30f;
    s.weight = 0.0f;
#pragma unroll 1
    for (u32 first = p.begin + warp * R::WARP; first < p.end; first += R::BLOCK) {
        u32 seen = reader.see(first);
        // The same for all lanes.
        if (seen == 0) continue;
        Eight<KIND> keys[KEYS][CHUNKS], values[KEYS][CHUNKS];
        reader.load(cache.keys, shared.stored[0], first, seen, keys);
        reader.load(cache.values, shared.stored[1], first, seen, values);
        float scores[QUERIES * KEYS] = {};
        for (u32 j = 0; j < KEYS; j++)
            for (u32 i = 0; i < CHUNKS; i++) {
                float x[8];
                for (u32 e = 0; e < 8; e++) x[e] = eight_value(keys[j][i], e, cache.mantissa);
                for (u32 q = 0; q < QUERIES; q++) {
                    float sum = 0.0f;
                    for (u32 e = 0; e < 8; e++) sum += s.q[q][8 * i + e] * x[e];
                    scores[q * KEYS + j] += Eight<KIND>::INTEGERS ? sum * keys[j][i].scale : sum;
                }
            }
        float weight = weigh<KEYS>(s, scores, seen);
        for (u32 j = 0; j < KEYS; j++) {
            float weights[QUERIES];
            for (u32 q = 0; q < QUERIES; q++) weights[q] = __shfl_sync(0xffffffffu, weight, (lane & 16) + (q * KEYS + j) * APART);
            for (u32 i = 0; i < CHUNKS; i++)
                for (u32 e = 0; e < 8; e++) {
                    float x = eight_value(values[j][i], e, cache.mantissa);
                    if (Eight<KIND>::INTEGERS) x *= values[j][i].scale;
                    for (u32 q = 0; q < QUERIES; q++) s.sum[q][8 * i + e] += weights[q] * x;
                }
        }
    }
    for (u32 o = 1; o < 16 / QUERIES; o *= 2) s.weight += __shfl_xor_sync(0xffffffffu, s.weight, o);
    s.weight += __shfl_xor_sync(0xffffffffu, s.weight, 16);
    if (lane % (16 / QUERIES) == 0 && lane < 16) shared.tops[warp][lane / (16 / QUERIES)] = float2{s.top, s.weight};
    // Both halves have sums of the same elements: each adds up those of one query head.
    bool upper = lane >= 16;
    float sum[8 * CHUNKS];
    for (u32 i = 0; i < 8 * CHUNKS; i++) {
        float keep = upper ? s.sum[1][i] : s.sum[0][i], send = upper ? s.sum[0][i] : s.sum[1][i];
        sum[i] = keep + __shfl_xor_sync(0xffffffffu, send, 16);
    }
    float *to = shared.values[warp][upper ? 1 : 0] + column;
    for (u32 i = 0; i < 8 * CHUNKS; i += 4)
        *(float4 *)(to + 128 * (i / 8) + i % 8) = float4{sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
}

// A number of each lane: of a query head's result an element, and of all of them the highest score and the sum of weights.
struct Joined {
    float value, top, weight;
};

// Merges `count` parts of the positions, at most MOST, by a warp, from the highest score and the sum of weights of part
// lane % MOST, and a function that reads the lane's element of a part.
template <u32 MOST, class Value> __device__ __forceinline__ Joined join(u32 count, float2 tops, const Value &value) {
    float top = tops.x;
    for (u32 o = 1; o < MOST; o *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    float scale = tops.y != 0.0f ? exp2f(tops.x - top) : 0.0f, weight = tops.y * scale, x = 0.0f;
    for (u32 o = 1; o < MOST; o *= 2) weight += __shfl_xor_sync(0xffffffffu, weight, o);
    for (u32 p = 0; p < count; p += 8) {
        // Loads that do not wait for one another.
        float by[8], read[8];
        for (u32 j = 0; j < 8; j++) {
            by[j] = __shfl_sync(0xffffffffu, scale, p + j);
            read[j] = by[j] != 0.0f ? value(p + j) : 0.0f;
        }
        for (u32 j = 0; j < 8; j++) x += read[j] * by[j];
    }
    return Joined{x, top, weight};
}

// A number that another block has stored in memory that all blocks share, or in this one's.
__device__ __forceinline__ float read_part(const float *from) {
    return *(const volatile float *)from;
}

// Stores element `at` of the result, by warps that have a unit.
__device__ __forceinline__ void put_attention(const AttentionArgs &a, u64 at, const Joined &joined) {
    float x = joined.weight > 0.0f ? divide(joined.value, joined.weight) : joined.value;
    a.out[at] = x;
    if (a.words) put_unit(a.words, a.meta, at / 32, threadIdx.x % 32, x);
}

// Reads arguments of every line of memory that they are in, as `touch` of tiles.cu.
__device__ __forceinline__ void touch(const AttentionArgs &a) {
#ifndef CUDA_SHIM
    asm volatile("" ::"l"(a.rope.q), "l"(a.rope.v), "f"(a.rope.eps), "l"(a.parts), "l"(a.out), "l"(a.meta), "f"(a.scale));
#else
    (void)a;
#endif
}

extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, 2) attention(AttentionArgs a) {
    __shared__ __align__(16) AttentionShared shared;
    bool rotated = !a.rope.k;
    // What is read before the wait below was written before the launches that precede this one, if it is of a row alone.
    if (rotated) wait_for_launch();
    u32 dim = a.rope.dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 group = a.rope.heads / a.rope.kv_heads, blocks = (group + QUERIES - 1) / QUERIES;
    Part p;
    p.row = blockIdx.y, p.kv_head = blockIdx.x / blocks;
    u32 begin = blockIdx.x % blocks * QUERIES;
    p.first = p.kv_head * group + begin, p.count = min(group - begin, QUERIES);
    Cache cache = cache_of(a.rope.caches, p.row, a.rope.layer);
    p.query = a.rope.positions[p.row];
    u32 count = p.query + 1, parts = parts_of(count, a.cluster_most, a.parts_count);
    // The whole block, of a shorter sequence than others.
    if (blockIdx.z >= parts) {
        if (!rotated) wait_for_launch();
        let_next_launch();
        return;
    }
    if (a.clustered) enter_cluster();
    u32 span = (count + parts - 1) / parts;
    p.begin = min(blockIdx.z * span, count), p.end = min(p.begin + span, count);
    p.own = !rotated && p.begin <= p.query && p.query < p.end ? p.query : ~0u;
    Kind kind = rotated ? ROTATED : warp == QUERIES ? KEY : warp == QUERIES + 1 ? VALUE : QUERY;
    Rotation rotation = load_rotation(a.rope, kind, p.row, lane);
    touch(a);
    if (!rotated) {
        u32 bytes = dim * (cache.mantissa ? 8 : cache.bits) / 8;
        // Once for the blocks that share them.
        for (u32 i = p.begin + threadIdx.x; i < p.end && begin == 0; i += blockDim.x)
            for (u32 b = 0; b < bytes && sees(cache, p.query, i); b += 128) {
                u64 at = ((u64)p.kv_head * cache.capacity + i) * bytes + b;
                prefetch(cache.keys + at);
                prefetch(cache.values + at);
            }
    }
    if (!rotated) wait_for_launch();
    let_next_launch();
    load_heads(a, cache, p, kind, rotation, shared);
    // By warps that have few positions.
    if (p.own == p.query && begin == 0 && warp >= ATTENTION_WARPS - 2) {
        bool keys = warp % 2 == 0;
        put_own(cache, p, keys ? cache.keys : cache.values, shared.stored[keys ? 0 : 1]);
    }
#define ATTEND(KIND)                                                                                                   \
    case KIND:                                                                                                         \
        if (dim > 128) attend_warp<KIND, 2>(a, cache, p, shared);                                                      \
        else attend_warp<KIND, 1>(a, cache, p, shared);                                                                \
        break;
    switch (cache_kind(cache)) {
        ATTEND(CACHE_F32)
        ATTEND(CACHE_F16)
        ATTEND(CACHE_F8)
        ATTEND(CACHE_INT8)
        ATTEND(CACHE_INT4)
    }
    __syncthreads();
    u64 head = (u64)p.row * a.rope.heads + p.first;
    u32 size = dim + 2;
    // Of both query heads.
    float *of_blocks = a.parts + head * a.parts_count * size;
    if (a.clustered) of_blocks = of_first_block(shared.parts, of_blocks);
    // A warp has a unit.
    for (u32 i = threadIdx.x; i < p.count * dim; i += ATTENTION_THREADS) {
        u32 q = i / dim, element = i % dim;
        float2 tops = shared.tops[lane % ATTENTION_WARPS][q];
        Joined joined = join<ATTENTION_WARPS>(ATTENTION_WARPS, tops, [&](u32 w) { return shared.values[w][q][element]; });
        if (parts == 1) {
            put_attention(a, (head + q) * dim + element, joined);
            continue;
        }
        float *part = of_blocks + (q * a.parts_count + blockIdx.z) * size;
        part[element] = joined.value;
        if (element == 0) part[dim] = joined.top, part[dim + 1] = joined.weight;
    }
    if (parts == 1) return;
    // The whole block.
    if (a.clustered ? !joins_cluster(a.ended + head, blockIdx.z, parts) : !ends_last(a.ended + head, parts)) return;
    for (u32 i = threadIdx.x; i < p.count * dim; i += ATTENTION_THREADS) {
        u32 q = i / dim, element = i % dim;
        const float *part = of_blocks + q * a.parts_count * size, *own = part + lane * size + dim;
        float2 tops = lane < parts ? float2{read_part(own), read_part(own + 1)} : float2{-1e30f, 0.0f};
        Joined joined = join<32>(parts, tops, [&](u32 n) { return read_part(part + n * size + element); });
        put_attention(a, (head + q) * dim + element, joined);
    }
}
