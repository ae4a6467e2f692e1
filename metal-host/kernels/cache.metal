// Keys and values in the cache: codes (kv heads, capacity, head_dim), then, for integers, 32-bit scales
// (kv heads, capacity, head_dim / 32).

struct Heads {
    Batch batch;
    uint query;
    uint kv;
    uint dim;
    float eps;
    uint normed;
    // Rotated together: element i with i + halves if i is less, then 2 i with 2 i + 1.
    uint halves;
    float score_scale;
    // 0: full, 1: window, 2: dilated, 3: strided, 4: BigBird; and its numbers.
    uint pattern;
    uint numbers[3];
};

struct KvF32 {
    static void put(device uint* to, uint row, threadgroup const float* head, uint lane, constant Heads& h) {
        for (uint i = lane; i < h.dim; i += 32) {
            to[row * h.dim + i] = as_type<uint>(head[i]);
        }
    }
    static float4 four(device const uint* from, uint row, uint quad, constant Heads& h) {
        return ((device const float4*)from)[row * (h.dim / 4) + quad];
    }
    static float one(device const uint* from, uint row, uint i, constant Heads& h) {
        return as_type<float>(from[row * h.dim + i]);
    }
};

struct KvF16 {
    static void put(device uint* to, uint row, threadgroup const float* head, uint lane, constant Heads& h) {
        device half* numbers = (device half*)to;
        for (uint i = lane; i < h.dim; i += 32) {
            numbers[row * h.dim + i] = half(min(max(head[i], -65504.0f), 65504.0f));
        }
    }
    static float4 four(device const uint* from, uint row, uint quad, constant Heads& h) {
        uint2 words = ((device const uint2*)from)[row * (h.dim / 4) + quad];
        float2 low = halves(words.x);
        float2 high = halves(words.y);
        return float_four(low.x, low.y, high.x, high.y);
    }
    static float one(device const uint* from, uint row, uint i, constant Heads& h) {
        return float(((device const half*)from)[row * h.dim + i]);
    }
};

template <uint BITS>
struct KvIntegers {
    enum { PER_WORD = 32 / BITS, LARGEST = (1 << (BITS - 1)) - 1 };
    static uint scales(constant Heads& h) { return h.kv * h.batch.capacity * (h.dim / PER_WORD); }
    static void put(device uint* to, uint row, threadgroup const float* head, uint lane, constant Heads& h) {
        for (uint unit = lane; unit < h.dim / 32; unit += 32) {
            float most = 0.0f;
            for (uint i = 0; i < 32; i++) {
                most = max(most, abs(head[unit * 32 + i]));
            }
            float scale = most / float(LARGEST);
            float inverse = scale > 1e-30f ? 1.0f / scale : 0.0f;
            for (uint word = 0; word < BITS; word++) {
                uint codes = 0;
                for (uint i = 0; i < PER_WORD; i++) {
                    int q = int(round(head[unit * 32 + word * PER_WORD + i] * inverse));
                    q = min(max(q, -int(LARGEST)), int(LARGEST));
                    codes |= (uint(q) & ((1u << BITS) - 1u)) << (BITS * i);
                }
                to[row * (h.dim / PER_WORD) + unit * BITS + word] = codes;
            }
            to[scales(h) + row * (h.dim / 32) + unit] = as_type<uint>(scale);
        }
    }
    static int code(uint word, uint i) { return int(word << (32 - BITS - BITS * i)) >> (32 - BITS); }
    static float4 four(device const uint* from, uint row, uint quad, constant Heads& h) {
        uint word = from[row * (h.dim / PER_WORD) + quad * 4 / PER_WORD];
        uint i = quad * 4 % PER_WORD;
        float scale = as_type<float>(from[scales(h) + row * (h.dim / 32) + quad / 8]);
        return float_four(float(code(word, i)), float(code(word, i + 1)), float(code(word, i + 2)),
                          float(code(word, i + 3))) * scale;
    }
    static float one(device const uint* from, uint row, uint i, constant Heads& h) {
        uint word = from[row * (h.dim / PER_WORD) + i / PER_WORD];
        return float(code(word, i % PER_WORD)) * as_type<float>(from[scales(h) + row * (h.dim / 32) + i / 32]);
    }
};

// Floats of 8 bits with MANTISSA bits of mantissa; see core's cache/float8.rs.
template <uint MANTISSA>
struct KvFloat8 {
    // Bits of the exponent that a NaN has, all of them.
    enum { SHIFT = 23 - MANTISSA, BIAS = (1 << (6 - MANTISSA)) - 1, NOT = MANTISSA == 2 ? 0x7c : 0x7f };
    // By 16-bit floats, whose subnormal numbers every GPU keeps: of E5M2 the same ones, of E4M3 those divided by 256.
    static float load(uint bits) {
        uint magnitude = bits & 127u;
        float x = halves((bits & 128u) << 8 | magnitude << (10 - MANTISSA)).x;
        x = MANTISSA == 3 ? x * 256.0f : x;
        return (bits & uint(NOT)) == uint(NOT) ? as_type<float>(0x7fc00000u) : x;
    }
    // To nearest even; larger magnitudes become the largest.
    static uint store(float x) {
        uint bits = as_type<uint>(x);
        uint magnitude = bits & 0x7fffffffu;
        uint clamped = min(magnitude, as_type<uint>(MANTISSA == 3 ? 448.0f : 57344.0f));
        uint odd = (clamped >> SHIFT) & 1u;
        uint normal = (clamped + (1u << (SHIFT - 1)) - 1u + odd - (uint(127 - BIAS) << 23)) >> SHIFT;
        // The last bit of the sum is worth the smallest magnitude.
        uint unit = uint(127 + 24 - BIAS - MANTISSA) << 23;
        uint subnormal = as_type<uint>(as_type<float>(clamped) + as_type<float>(unit)) - unit;
        uint rounded = clamped < (uint(128 - BIAS) << 23) ? subnormal : normal;
        return (magnitude > 0x7f800000u ? 0x7fu : rounded) | ((bits >> 24) & 128u);
    }
    static void put(device uint* to, uint row, threadgroup const float* head, uint lane, constant Heads& h) {
        for (uint i = lane; i < h.dim / 4; i += 32) {
            to[row * (h.dim / 4) + i] = store(head[4 * i]) | store(head[4 * i + 1]) << 8 | store(head[4 * i + 2]) << 16
                | store(head[4 * i + 3]) << 24;
        }
    }
    static float4 four(device const uint* from, uint row, uint quad, constant Heads& h) {
        uint word = from[row * (h.dim / 4) + quad];
        return float_four(load(word & 255u), load((word >> 8) & 255u), load((word >> 16) & 255u), load(word >> 24));
    }
    static float one(device const uint* from, uint row, uint i, constant Heads& h) {
        return load((from[row * (h.dim / 4) + i / 4] >> (8 * (i % 4))) & 255u);
    }
};
