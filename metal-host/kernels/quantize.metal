// Activations as 8-bit integers with a scale per 32, rounded as core's cpu/activations.rs does.

// SIMD groups of the kernels that take a row of the batch.
enum { ROW_SIMDS = 4 };

// Factors of the step that all scales of a row are multiples of.
enum { LARGEST_FACTOR = 32767 };

// Quantizes 32 numbers, of which `largest` is the largest magnitude.
static inline void quantize_unit(device const float* x, float largest, float step, float to_factor,
                                 device uint* words, device float2* scale) {
    // Rounded up, so that no integer is above 127, unless it is so close above one that it rounds to 127.
    float exact = largest * to_factor - 0.002f;
    int whole = int(exact);
    int factor = min(whole + (float(whole) < exact ? 1 : 0), int(LARGEST_FACTOR));
    float inverse = factor > 0 ? 1.0f / (float(factor) * step) : 0.0f;
    int sum = 0;
    int squares = 0;
    float products[8] = {};
    for (uint s = 0; s < 8; s++) {
        uint word = 0;
        for (uint b = 0; b < 4; b++) {
            float v = x[4 * s + b] * inverse;
            // The largest float below 1/2: half away from zero.
            int q = int(v + copysign(as_type<float>(0x3effffffu), v));
            word |= (uint(q) & 255u) << (8 * b);
            sum += q;
            squares += q * q;
            products[(4 * s + b) % 8] += v * float(q);
        }
        words[s] = word;
    }
    float product = ((products[0] + products[4]) + (products[2] + products[6]))
        + ((products[1] + products[5]) + (products[3] + products[7]));
    // The factor that brings the integers closest, by least squares.
    float fit = product / float(max(squares, 1));
    factor = min(int(float(factor) * fit + 0.5f), int(LARGEST_FACTOR));
    *scale = float_two(float(factor) * step, float(sum));
}

// Quantizes a row of `units`, which the threadgroup has written.
static inline void quantize_row(device const float* x, uint units, device uint* words, device float2* scale,
                                threadgroup float* shared, uint lane, uint simd_index) {
    const uint magnitude = 0x7fffffffu;
    uint index = simd_index * 32 + lane;
    threadgroup_barrier(mem_flags::mem_device);
    uint bits = 0;
    for (uint i = index; i < units * 32; i += ROW_SIMDS * 32) {
        bits = max(bits, as_type<uint>(x[i]) & magnitude);
    }
    bits = group_max(bits, shared, lane, simd_index, ROW_SIMDS);
    const uint tiny = (127u - 90u) << 23;
    const uint infinite = 255u << 23;
    bool usable = bits >= tiny && bits < infinite;
    float most = as_type<float>(bits);
    float step = most / (127.0f * float(LARGEST_FACTOR));
    float to_factor = float(LARGEST_FACTOR) / most;
    for (uint u = index; u < units; u += ROW_SIMDS * 32) {
        if (usable) {
            uint largest = 0;
            for (uint i = 0; i < 32; i++) {
                largest = max(largest, as_type<uint>(x[u * 32 + i]) & magnitude);
            }
            quantize_unit(x + u * 32, as_type<float>(largest), step, to_factor, words + u * 8, scale + u);
        } else {
            // NaN and infinity show in every result; what is tiny counts as zero.
            for (uint s = 0; s < 8; s++) {
                words[u * 8 + s] = 0;
            }
            scale[u] = float_two(as_type<float>(bits < infinite ? 0u : 0x7fc00000u), 0.0f);
        }
    }
}

struct Quantize {
    Batch batch;
    uint units;
};

// words (rows, units, 8), scale (rows, units): the scale, and the sum of the integers. One threadgroup a row.
kernel void quantize(device const float* x [[buffer(0)]], device uint* words [[buffer(1)]],
                     device float2* scale [[buffer(2)]], constant Quantize& p [[buffer(3)]], THREAD) {
    uint units = p.units;
    uint at = group.x * units;
    quantize_row(x + at * 32, units, words + at * 8, scale + at, shared, lane, simd_index);
}
