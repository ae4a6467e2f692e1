// What all kernels share; the host puts this file in front of the others.
//
// Plain words of the language only, so that the same text also compiles as C++ (see shim/): vectors are built by
// functions, and a kernel's threadgroup memory is an argument.
#ifdef __METAL_VERSION__
#include <metal_stdlib>
#define SHARED [[threadgroup(0)]]
#else
#define SHARED
#endif
using namespace metal;

// The last arguments of every kernel. SIMD groups have 32 lanes.
#define THREAD \
    threadgroup float* shared SHARED, uint3 group [[threadgroup_position_in_grid]], \
    uint lane [[thread_index_in_simdgroup]], uint simd_index [[simdgroup_index_in_threadgroup]]

// How a product is stored.
enum Output { OUTPUT_STORE = 0, OUTPUT_ADD = 1 };

// How scales are stored.
enum ScaleKind { SCALES_F16 = 0, SCALES_F32 = 1, SCALES_BLOCK = 2 };

// The first parameters of every kernel: rows of the batch, the first of them, the position of that row in its
// sequence, the positions in each part of flash decoding, those that the cache holds, and the most parts (0 if attention
// is computed in one go).
struct Batch {
    uint rows;
    uint first;
    uint position;
    uint span;
    uint capacity;
    uint parts;
};

static inline float4 float_four(float a, float b, float c, float d) {
    float4 v;
    v.x = a;
    v.y = b;
    v.z = c;
    v.w = d;
    return v;
}

static inline float2 float_two(float a, float b) {
    float2 v;
    v.x = a;
    v.y = b;
    return v;
}

// Byte `i` of a word, signed.
static inline int byte_of(uint word, uint i) {
    return int(word << (24u - 8u * i)) >> 24;
}

// The sum of four products of signed bytes.
static inline int dot4(uint a, uint b) {
    return byte_of(a, 0) * byte_of(b, 0) + byte_of(a, 1) * byte_of(b, 1) + byte_of(a, 2) * byte_of(b, 2)
        + byte_of(a, 3) * byte_of(b, 3);
}

// 16-bit floats, two per word.
static inline float2 halves(uint word) {
    half2 pair = as_type<half2>(word);
    return float_two(float(pair.x), float(pair.y));
}

// The sum over a threadgroup of `count` SIMD groups. `shared` holds `count` numbers.
static inline float group_sum(float value, threadgroup float* shared, uint lane, uint simd_index, uint count) {
    float part = simd_sum(value);
    if (lane == 0) {
        shared[simd_index] = part;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = shared[0];
    for (uint i = 1; i < count; i++) {
        total += shared[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}

// The same with the largest integer.
static inline uint group_max(uint value, threadgroup float* shared, uint lane, uint simd_index, uint count) {
    threadgroup uint* parts = (threadgroup uint*)shared;
    uint part = simd_max(value);
    if (lane == 0) {
        parts[simd_index] = part;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint most = parts[0];
    for (uint i = 1; i < count; i++) {
        most = max(most, parts[i]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return most;
}
