// y = weight x / sqrt(mean(x^2) + eps), as floats and as the integers of quantize.metal. One threadgroup a row.

struct RmsNorm {
    Batch batch;
    uint units;
    float eps;
    // Whether `rows` has the indices of the rows to read.
    uint gather;
    // Whether integers are written, too.
    uint integers;
};

kernel void rmsnorm(device const float* x [[buffer(0)]], device const float* weight [[buffer(1)]],
                    device const uint* rows [[buffer(2)]], device float* y [[buffer(3)]],
                    device uint* words [[buffer(4)]], device float2* scale [[buffer(5)]],
                    constant RmsNorm& p [[buffer(6)]], THREAD) {
    uint index = simd_index * 32 + lane;
    uint cols = p.units * 32;
    device const float* from = x + (p.gather == 1 ? rows[group.x] : group.x) * cols;
    device float* to = y + group.x * cols;
    float sum = 0.0f;
    for (uint i = index; i < cols; i += ROW_SIMDS * 32) {
        sum += from[i] * from[i];
    }
    float total = group_sum(sum, shared, lane, simd_index, ROW_SIMDS);
    float factor = 1.0f / sqrt(total / float(cols) + p.eps);
    for (uint i = index; i < cols; i += ROW_SIMDS * 32) {
        to[i] = from[i] * factor * weight[i];
    }
    if (p.integers == 1) {
        uint at = group.x * p.units;
        quantize_row(to, p.units, words + at * 8, scale + at, shared, lane, simd_index);
    }
}
