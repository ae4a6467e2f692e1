// x (rows, 32 units) = the embedding's rows of the tokens. One threadgroup a row.

template <typename W>
static inline void embed_codes(device const uint* codes, device const uint* scales, uint id, device float4* x, uint index,
                               constant Matrix& m) {
    for (uint i = index; i < m.units * 8; i += 64) {
        uint u = i / 8;
        uint s = i % 8;
        float2 d = General::at(scales, id, u * m.unit_groups + s * m.unit_groups / 8, m);
        x[i] = values(W::four(W::load(codes, id * m.units + u), s, m), m) * d.x + d.y;
    }
}

template <typename F>
static inline void embed_floats(device const uint* codes, uint id, device float4* x, uint index, constant Matrix& m) {
    for (uint i = index; i < m.units * 8; i += 64) {
        x[i] = F::four(codes, id * m.units + i / 8, i % 8);
    }
}

#define EMBED(NAME, CALL) \
    kernel void NAME(device const uint* codes [[buffer(0)]], device const uint* scales [[buffer(1)]], \
                     device const uint* tokens [[buffer(2)]], device float4* x [[buffer(3)]], \
                     constant Matrix& m [[buffer(4)]], THREAD) { \
        uint index = simd_index * 32 + lane; \
        uint id = tokens[group.x]; \
        device float4* row = x + group.x * m.units * 8; \
        CALL; \
    }

EMBED(embed_1bit, embed_codes<Bits1>(codes, scales, id, row, index, m))
EMBED(embed_2bit, embed_codes<Bits2>(codes, scales, id, row, index, m))
EMBED(embed_4bit, embed_codes<Bits4>(codes, scales, id, row, index, m))
EMBED(embed_6bit, embed_codes<Bits6>(codes, scales, id, row, index, m))
EMBED(embed_8bit, embed_codes<Bits8>(codes, scales, id, row, index, m))
EMBED(embed_levels, embed_codes<Levels>(codes, scales, id, row, index, m))
EMBED(embed_f16, embed_floats<Float16>(codes, id, row, index, m))
EMBED(embed_bf16, embed_floats<BFloat16>(codes, id, row, index, m))
EMBED(embed_f32, embed_floats<Float32>(codes, id, row, index, m))
