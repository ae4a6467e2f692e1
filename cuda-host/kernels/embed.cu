// x (tokens, cols) = table[token], exactly: a block has some columns of a token, one a thread or each `gridDim.y`th block of them.

struct EmbedArgs {
    Matrix table;
    const u32 *tokens;
    float *x;
};

template <class C> __device__ void look_up(const EmbedArgs &a) {
    wait_for_launch();
    let_next_launch();
    u64 row = a.tokens[blockIdx.x];
    for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < a.table.units * 32; i += gridDim.y * blockDim.x) {
        const u32 *unit = a.table.codes + (row * a.table.units + i / 32) * C::WORDS;
        float value;
        if constexpr (C::FLOAT) {
            value = C::value(unit, i % 32);
        } else {
            u32 word;
            if (C::SIMPLE && in_tiles(a.table)) word = tile_four<C::SIMPLE ? C::WORDS : 8>(a.table, row, i / 32, i % 32 / 4);
            else word = C::four(unit, i % 32 / 4, a.table.levels);
            int code = (signed char)(word >> (8 * (i % 4)) & 255);
            float2 w = group_scale(a.table, row, i / a.table.group);
            // Two roundings, as on the CPU.
            value = __fadd_rn(__fmul_rn((float)(code * a.table.factor - a.table.offset), w.x), w.y);
        }
        a.x[(u64)blockIdx.x * a.table.units * 32 + i] = value;
    }
}

extern "C" __global__ void embed(EmbedArgs a) {
    switch (a.table.kind) {
    case Bits1::KIND: look_up<Bits1>(a); break;
    case Bits2::KIND: look_up<Bits2>(a); break;
    case Bits4::KIND: look_up<Bits4>(a); break;
    case Bits6::KIND: look_up<Bits6>(a); break;
    case Bits8::KIND: look_up<Bits8>(a); break;
    case Levels::KIND: look_up<Levels>(a); break;
    case F16::KIND: look_up<F16>(a); break;
    case Bf16::KIND: look_up<Bf16>(a); break;
    case F32::KIND: look_up<F32>(a); break;
    }
}
