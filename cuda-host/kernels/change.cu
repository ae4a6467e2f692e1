// x += bias, x += other or x *= factor, as floats and as integers: one warp a unit of 32.

struct ChangeArgs {
    float *x;
    const float *other; // (cols) of a bias, as many as x has of a sum
    signed char *words; // null if no product reads integers
    Meta *meta;
    u32 units; // of all rows
    u32 cols;
    u32 change;
    float factor;
};

enum Change { BIAS, SUM, FACTOR };

extern "C" __global__ void change(ChangeArgs a) {
    wait_for_launch();
    let_next_launch();
    u32 unit = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (unit >= a.units) return;
    u64 at = (u64)unit * 32 + lane;
    float x = a.x[at], y = a.change == BIAS ? x + a.other[at % a.cols] : a.change == SUM ? x + a.other[at] : x * a.factor;
    a.x[at] = y;
    if (a.words) put_unit(a.words, a.meta, unit, lane, y);
}
