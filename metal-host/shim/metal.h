// As much of the Metal Shading Language as the kernels use, for clang++: to run them on the CPU, or, with CHECK, to check
// their address spaces.
#pragma once
#include <algorithm>
#include <cmath>

#include "fibers.h"

#define kernel extern "C" __attribute__((visibility("default")))
#ifdef CHECK
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant const
#define threadgroup
#endif
#define thread

namespace metal {

using uint = unsigned;
using half = __fp16;
typedef float float2 __attribute__((ext_vector_type(2)));
typedef float float4 __attribute__((ext_vector_type(4)));
typedef uint uint2 __attribute__((ext_vector_type(2)));
typedef uint uint3 __attribute__((ext_vector_type(3)));
typedef uint uint4 __attribute__((ext_vector_type(4)));
typedef half half2 __attribute__((ext_vector_type(2)));

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };

inline void threadgroup_barrier(mem_flags) { fibers::meet(fibers::block->all, "threadgroup_barrier"); }
inline void simdgroup_barrier(mem_flags) { fibers::meet(fibers::warp(), "simdgroup_barrier"); }

template <class T>
T simd_sum(T value) {
    // In the order of a butterfly, as hardware adds.
    return fibers::combine(value, "simd_sum", [](T* all) {
        for (unsigned width = fibers::WARP / 2; width > 0; width /= 2)
            for (unsigned i = 0; i < width; i++) all[i] += all[i + width];
        return all[0];
    });
}

template <class T>
T simd_max(T value) {
    return fibers::combine(value, "simd_max", [](T* all) { return *std::max_element(all, all + fibers::WARP); });
}

template <class T>
T simd_min(T value) {
    return fibers::combine(value, "simd_min", [](T* all) { return *std::min_element(all, all + fibers::WARP); });
}

template <class T>
T simd_prefix_exclusive_sum(T value) {
    const T* all = fibers::exchange(value, "simd_prefix_exclusive_sum");
    T sum = 0;
    for (unsigned i = 0; i < fibers::block->current->index % fibers::WARP; i++) sum += all[i];
    return sum;
}

template <class To, class From>
To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
// By value, as numbers in any address space are.
#define EXTREMES(T) \
    inline T max(T a, T b) { return a < b ? b : a; } \
    inline T min(T a, T b) { return b < a ? b : a; }
EXTREMES(float)
EXTREMES(int)
EXTREMES(uint)
#undef EXTREMES
using std::abs;
using std::copysign;
using std::exp;
using std::round;
using std::sqrt;

}  // namespace metal
