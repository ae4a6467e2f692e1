// gate = silu(gate) * up, as floats and as integers: one warp a unit of 32.

struct GateArgs {
    float *gate;
    const float *up;
    signed char *words; // null if no product reads integers
    Meta *meta;
    u32 units; // of all rows
    u32 unused;
};

extern "C" __global__ void gate(GateArgs a) {
    wait_for_launch();
    let_next_launch();
    u32 unit = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (unit >= a.units) return;
    u64 at = (u64)unit * 32 + lane;
    float y = swiglu(a.gate[at], a.up[at]);
    a.gate[at] = y;
    if (a.words) put_unit(a.words, a.meta, unit, lane, y);
}
