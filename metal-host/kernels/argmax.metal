// The most likely token of each row: the largest of each threadgroup's share, the first of equals; NaN never wins. Then
// the largest of those.

enum { ARGMAX_SIMDS = 8 };

struct Argmax {
    Batch batch;
    uint vocab;
    // Threadgroups of the first pass per row.
    uint shares;
};

// Bits that order as the floats do; 0 for NaN and -inf, which are no choice.
static inline uint ordered(float x) {
    uint bits = as_type<uint>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0xff800000u) {
        return 0u;
    }
    return bits ^ ((bits >> 31) == 1u ? 0xffffffffu : 0x80000000u);
}

// The best of the pairs (bits, token) of all lanes of the threadgroup.
static inline uint2 best_of(uint bits, uint token, threadgroup float* shared, uint lane, uint simd_index) {
    threadgroup uint* found = (threadgroup uint*)shared;
    uint top = simd_max(bits);
    uint first = simd_min(bits == top ? token : 0xffffffffu);
    if (lane == 0) {
        found[2 * simd_index] = top;
        found[2 * simd_index + 1] = first;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint2 best;
    best.x = found[0];
    best.y = found[1];
    for (uint i = 1; i < ARGMAX_SIMDS; i++) {
        if (found[2 * i] > best.x || (found[2 * i] == best.x && found[2 * i + 1] < best.y)) {
            best.x = found[2 * i];
            best.y = found[2 * i + 1];
        }
    }
    return best;
}

// candidates (rows, shares)
kernel void argmax(device const float* logits [[buffer(0)]], device uint2* candidates [[buffer(1)]],
                   constant Argmax& p [[buffer(2)]], THREAD) {
    uint bits = 0;
    uint token = 0xffffffffu;
    for (uint i = (group.x * ARGMAX_SIMDS + simd_index) * 32 + lane; i < p.vocab; i += p.shares * ARGMAX_SIMDS * 32) {
        uint mine = ordered(logits[group.y * p.vocab + i]);
        if (mine > bits) {
            bits = mine;
            token = i;
        }
    }
    uint2 best = best_of(bits, token, shared, lane, simd_index);
    if (lane == 0 && simd_index == 0) {
        candidates[group.y * p.shares + group.x] = best;
    }
}

// best (rows)
kernel void argmax_last(device const uint2* candidates [[buffer(0)]], device uint2* best [[buffer(1)]],
                        constant Argmax& p [[buffer(2)]], THREAD) {
    uint bits = 0;
    uint token = 0xffffffffu;
    for (uint i = simd_index * 32 + lane; i < p.shares; i += ARGMAX_SIMDS * 32) {
        uint2 other = candidates[group.x * p.shares + i];
        if (other.x > bits || (other.x == bits && other.y < token)) {
            bits = other.x;
            token = other.y;
        }
    }
    uint2 all = best_of(bits, token, shared, lane, simd_index);
    if (lane == 0 && simd_index == 0) {
        best[group.x] = all;
    }
}
