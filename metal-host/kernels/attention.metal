// Causal attention with an online softmax. A threadgroup takes a row of the batch, a part of the positions (flash
// decoding) and query heads of one key-value head, a SIMD group each, which read the same keys and values.

enum { ATTENTION_SIMDS = 8 };

// Whether the pattern lets position `query` read position `key`, which is not after it; see core's attention.rs.
static inline bool sees(uint query, uint key, constant Heads& h) {
    if (h.pattern == 0) {
        return true;
    }
    if (h.pattern == 1) {
        return query - key < h.numbers[0] || key < h.numbers[1];
    }
    // Blocks of 64 positions.
    uint from = query / 64;
    uint to = key / 64;
    uint back = from - to;
    if (h.pattern == 2) {
        return back % h.numbers[1] == 0 && back / h.numbers[1] < h.numbers[0];
    }
    if (back < h.numbers[0]) {
        return true;
    }
    if (h.pattern == 3) {
        return back % h.numbers[1] == 0;
    }
    if (to < h.numbers[1]) {
        return true;
    }
    if (from + 1 <= h.numbers[0] + h.numbers[1]) {
        return false;
    }
    uint choices = from + 1 - h.numbers[0] - h.numbers[1];
    for (uint i = 0; i < h.numbers[2]; i++) {
        uint hash = from * 64 + i;
        hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
        hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
        hash ^= hash >> 16;
        if (h.numbers[1] + hash % choices == to) {
            return true;
        }
    }
    return false;
}

// Of each SIMD group: its query (dim), then the softmax weights of 32 positions.
template <typename Kv>
static inline void attend(device const uint* keys, device const uint* values, device const float* q, device float* out,
                          device float* parts, threadgroup float* shared, uint3 group, uint lane, uint simd_index,
                          constant Heads& h) {
    uint share = h.query / h.kv;
    uint groups = (share + ATTENTION_SIMDS - 1) / ATTENTION_SIMDS;
    uint kv_head = group.x / groups;
    uint in_share = group.x % groups * ATTENTION_SIMDS + simd_index;
    if (in_share >= share) {
        return;
    }
    uint head = kv_head * share + in_share;
    uint row = h.batch.first + group.y;
    uint seen = h.batch.position + group.y + 1;
    uint begin = min(group.z * h.batch.span, seen);
    uint end = min(begin + h.batch.span, seen);
    threadgroup float* query = shared + simd_index * (h.dim + 32);
    threadgroup float* weights = query + h.dim;
    device const float* from = q + (row * h.query + head) * h.dim;
    for (uint i = lane; i < h.dim; i += 32) {
        query[i] = from[i] * h.score_scale;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    // A lane adds up elements lane, lane + 32, ... of the values.
    float total[8] = {};
    float highest = -1e30f;
    float sum = 0.0f;
    for (uint tile = begin; tile < end; tile += 32) {
        bool inside = tile + lane < end && sees(seen - 1, tile + lane, h);
        // Nothing is read of tiles that the pattern leaves out.
        if (h.pattern != 0 && simd_max(inside ? 1u : 0u) == 0u) {
            continue;
        }
        // A position beyond the end reads one that is there, and gets no weight.
        uint key = kv_head * h.batch.capacity + min(tile + lane, end - 1);
        float score = 0.0f;
        for (uint i = 0; i < h.dim / 4; i++) {
            float4 k = Kv::four(keys, key, i, h);
            score += query[4 * i] * k.x + query[4 * i + 1] * k.y + query[4 * i + 2] * k.z + query[4 * i + 3] * k.w;
        }
        score = inside ? score : -1e30f;
        float top = max(highest, simd_max(score));
        float weight = inside ? exp(score - top) : 0.0f;
        float decay = exp(highest - top);
        sum = sum * decay + weight;
        highest = top;
        weights[lane] = weight;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        uint count = min(end - tile, 32u);
        for (uint j = 0; j < h.dim / 32; j++) {
            float added = total[j] * decay;
            for (uint i = 0; i < count; i++) {
                if (h.pattern != 0 && weights[i] == 0.0f) {
                    continue;
                }
                added += weights[i] * Kv::one(values, kv_head * h.batch.capacity + tile + i, lane + 32 * j, h);
            }
            total[j] = added;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    float all = simd_sum(sum);
    if (h.batch.parts == 0) {
        device float* to = out + (row * h.query + head) * h.dim;
        for (uint j = 0; j < h.dim / 32; j++) {
            to[lane + 32 * j] = total[j] / all;
        }
    } else {
        device float* to = parts + (head * h.batch.parts + group.z) * (h.dim + 2);
        for (uint j = 0; j < h.dim / 32; j++) {
            to[lane + 32 * j] = total[j];
        }
        if (lane == 0) {
            to[h.dim] = highest;
            to[h.dim + 1] = all;
        }
    }
}

#define ATTENTION(NAME, KV) \
    kernel void attention_##NAME(device const uint* keys [[buffer(0)]], device const uint* values [[buffer(1)]], \
                                 device const float* q [[buffer(2)]], device float* out [[buffer(3)]], \
                                 device float* parts [[buffer(4)]], constant Heads& h [[buffer(5)]], THREAD) { \
        attend<KV>(keys, values, q, out, parts, shared, group, lane, simd_index, h); \
    }

ATTENTION(f32, KvF32)
ATTENTION(f16, KvF16)
ATTENTION(q8, KvIntegers<8>)
ATTENTION(q4, KvIntegers<4>)
ATTENTION(fp8_e4m3, KvFloat8<3>)
ATTENTION(fp8_e5m2, KvFloat8<2>)

// Joins the parts (query heads, MAX_PARTS, dim + 2) of one row: results, highest score, sum of weights. One SIMD group a
// head.
kernel void attention_combine(device const float* parts [[buffer(0)]], device float* out [[buffer(1)]],
                              constant Heads& h [[buffer(2)]], THREAD) {
    uint count = (h.batch.position + h.batch.span) / h.batch.span;
    device const float* from = parts + group.x * h.batch.parts * (h.dim + 2);
    float highest = -1e30f;
    for (uint p = 0; p < count; p++) {
        highest = max(highest, from[p * (h.dim + 2) + h.dim]);
    }
    float sum = 0.0f;
    for (uint p = 0; p < count; p++) {
        sum += from[p * (h.dim + 2) + h.dim + 1] * exp(from[p * (h.dim + 2) + h.dim] - highest);
    }
    device float* to = out + (h.batch.first * h.query + group.x) * h.dim;
    for (uint i = lane; i < h.dim; i += 32) {
        float y = 0.0f;
        for (uint p = 0; p < count; p++) {
            y += from[p * (h.dim + 2) + i] * exp(from[p * (h.dim + 2) + h.dim] - highest);
        }
        to[i] = y / sum;
    }
}
