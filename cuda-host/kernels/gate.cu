// gate = f(gate) * up, as floats and as integers: one warp a unit of 32.

struct GateArgs {
    float *gate;
    const float *up;
    signed char *words; // null if no product reads integers
    Meta *meta;
    u32 units; // of all rows
    u32 activation;
};

enum Activation { SILU, GELU_TANH, RELU2 };

__device__ __forceinline__ float gated(u32 activation, float x, float up) {
    if (activation == SILU) return swiglu(x, up);
    if (activation == RELU2) {
        x = x < 0.0f ? 0.0f : x;
        return x * x * up;
    }
    // x / 2 (1 + tanh(u)) = x / (1 + exp(-2 u)), with 2 sqrt(2 / pi).
    float u = 1.5957692f * (x + 0.044715f * x * x * x);
    return divide(x, 1.0f + expf(fminf(-u, 80.0f))) * up;
}

extern "C" __global__ void gate(GateArgs a) {
    wait_for_launch();
    let_next_launch();
    u32 unit = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (unit >= a.units) return;
    u64 at = (u64)unit * 32 + lane;
    float y = gated(a.activation, a.gate[at], a.up[at]);
    a.gate[at] = y;
    if (a.words) put_unit(a.words, a.meta, unit, lane, y);
}
