// Per head: norm and rotation of queries and keys; keys and values go into the cache. One SIMD group per head (queries,
// then keys, then values) and row of the sequence.

template <typename Kv>
static inline void rope_head(device uint* keys, device uint* values, device float* q, device const float* k,
                             device const float* v, device const float* q_norm, device const float* k_norm,
                             device const float* angles, threadgroup float* head, uint3 group, uint lane,
                             constant Heads& h) {
    uint row = h.batch.first + group.y;
    uint position = h.batch.position + group.y;
    bool is_query = group.x < h.query;
    bool is_value = group.x >= h.query + h.kv;
    uint index = is_query ? group.x : is_value ? group.x - h.query - h.kv : group.x - h.query;
    uint at = (row * (is_query ? h.query : h.kv) + index) * h.dim;
    device const float* from = (is_query ? q : is_value ? v : k) + at;
    for (uint i = lane; i < h.dim; i += 32) {
        head[i] = from[i];
    }
    uint cache_row = index * h.batch.capacity + position;
    if (is_value) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        Kv::put(values, cache_row, head, lane, h);
        return;
    }
    if (h.normed == 1) {
        device const float* norm = is_query ? q_norm : k_norm;
        // A lane's own elements only: no barrier is needed before.
        float sum = 0.0f;
        for (uint i = lane; i < h.dim; i += 32) {
            sum += head[i] * head[i];
        }
        float scale = 1.0f / sqrt(simd_sum(sum) / float(h.dim) + h.eps);
        for (uint i = lane; i < h.dim; i += 32) {
            head[i] = head[i] * scale * norm[i];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device const float* angle = angles + row * h.dim;
    for (uint i = lane; i < h.dim / 2; i += 32) {
        uint first = i < h.halves ? i : 2 * i;
        uint second = i < h.halves ? i + h.halves : 2 * i + 1;
        float a = head[first];
        float b = head[second];
        float c = angle[i];
        float s = angle[h.dim / 2 + i];
        head[first] = a * c - b * s;
        head[second] = a * s + b * c;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (is_query) {
        for (uint i = lane; i < h.dim; i += 32) {
            q[at + i] = head[i];
        }
    } else {
        Kv::put(keys, cache_row, head, lane, h);
    }
}

#define ROPE_STORE(NAME, KV) \
    kernel void rope_store_##NAME(device uint* keys [[buffer(0)]], device uint* values [[buffer(1)]], \
                                  device float* q [[buffer(2)]], device const float* k [[buffer(3)]], \
                                  device const float* v [[buffer(4)]], device const float* q_norm [[buffer(5)]], \
                                  device const float* k_norm [[buffer(6)]], device const float* angles [[buffer(7)]], \
                                  constant Heads& h [[buffer(8)]], THREAD) { \
        rope_head<KV>(keys, values, q, k, v, q_norm, k_norm, angles, shared, group, lane, h); \
    }

ROPE_STORE(f32, KvF32)
ROPE_STORE(f16, KvF16)
ROPE_STORE(q8, KvIntegers<8>)
ROPE_STORE(q4, KvIntegers<4>)
ROPE_STORE(fp8_e4m3, KvFloat8<3>)
ROPE_STORE(fp8_e5m2, KvFloat8<2>)
