// What the ranks of a split program have computed, side by side or added: one block a row and 1024 columns.

struct GatherArgs {
    const float *from; // (ranks, rows, part), where the last rank may have fewer columns, without gaps between its rows
    float *to;         // (rows, cols)
    u32 rows, part, cols;
    u32 add; // to += from instead of to = from
};

extern "C" __global__ void gather(GatherArgs a) {
    wait_for_launch();
    let_next_launch();
    u32 row = blockIdx.x, end = min(a.cols, (blockIdx.y + 1) * 1024);
    for (u32 i = blockIdx.y * 1024 + threadIdx.x; i < end; i += blockDim.x) {
        u32 first = i / a.part * a.part, mine = min(a.part, a.cols - first);
        float x = a.from[(u64)first * a.rows + (u64)row * mine + (i - first)];
        float *to = a.to + (u64)row * a.cols + i;
        *to = a.add ? __fadd_rn(*to, x) : x;
    }
}
