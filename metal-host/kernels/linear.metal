// y = x W^T: each SIMD group takes four rows of the matrix and a tile of rows of the batch, one or eight, its lanes go
// along the matrix' rows. Weights are unpacked once for the tile.

// Lanes of a threadgroup, by SIMD groups.
enum { LINEAR_SIMDS = 2, LINEAR_ROWS = 4 };

// The codes of a unit, four per word.
template <typename W>
static inline void unpack(typename W::Unit unit, thread uint* words, constant Matrix& m) {
    for (uint s = 0; s < 8; s++) {
        words[s] = W::four(unit, s, m);
    }
}

// Times 8-bit integers with a scale per unit: exact before the scales.
struct Int8 {
    // Adds the products of `W` with the rows `tokens` of the input to `sums (LINEAR_ROWS, T)`.
    template <typename W, typename S, uint T>
    static void add(device const uint* codes, device const uint* scales, device const uint* input,
                    device const float2* input_scale, thread const uint* rows, thread const uint* tokens,
                    thread float* sums, uint lane, constant Matrix& m) {
        device const uint4* words = (device const uint4*)input;
        for (uint u = lane; u < m.units; u += 32) {
            for (uint r = 0; r < LINEAR_ROWS; r++) {
                uint w[8];
                unpack<W>(W::load(codes, rows[r] * m.units + u), w, m);
                float2 d = S::at(scales, rows[r], S::half_units(m) ? 2 * u : u, m);
                float2 e = d;
                if (S::half_units(m)) {
                    e = S::at(scales, rows[r], 2 * u + 1, m);
                }
                for (uint t = 0; t < T; t++) {
                    uint at = tokens[t] * m.units + u;
                    uint4 low = words[2 * at];
                    uint4 high = words[2 * at + 1];
                    float2 scale = input_scale[at];
                    int a = dot4(low.x, w[0]) + dot4(low.y, w[1]) + dot4(low.z, w[2]) + dot4(low.w, w[3]);
                    int b = dot4(high.x, w[4]) + dot4(high.y, w[5]) + dot4(high.z, w[6]) + dot4(high.w, w[7]);
                    float value;
                    if (S::half_units(m)) {
                        const uint ones = 0x01010101u;
                        float first = float(dot4(low.x, ones) + dot4(low.y, ones) + dot4(low.z, ones) + dot4(low.w, ones));
                        float second = scale.y - first;
                        value = (float(a * m.factor) - first * float(m.offset)) * d.x + first * d.y;
                        value += (float(b * m.factor) - second * float(m.offset)) * e.x + second * e.y;
                    } else {
                        value = (float((a + b) * m.factor) - scale.y * float(m.offset)) * d.x + scale.y * d.y;
                    }
                    sums[r * T + t] += value * scale.x;
                }
            }
        }
    }
};

// Times 32-bit floats.
struct Exact {
    template <typename W, typename S, uint T>
    static void add(device const uint* codes, device const uint* scales, device const uint* input,
                    device const float2*, thread const uint* rows, thread const uint* tokens, thread float* sums,
                    uint lane, constant Matrix& m) {
        device const float4* x = (device const float4*)input;
        for (uint u = lane; u < m.units; u += 32) {
            for (uint r = 0; r < LINEAR_ROWS; r++) {
                uint w[8];
                unpack<W>(W::load(codes, rows[r] * m.units + u), w, m);
                float2 d = S::at(scales, rows[r], S::half_units(m) ? 2 * u : u, m);
                float2 e = d;
                if (S::half_units(m)) {
                    e = S::at(scales, rows[r], 2 * u + 1, m);
                }
                for (uint t = 0; t < T; t++) {
                    uint at = (tokens[t] * m.units + u) * 8;
                    float value = 0.0f;
                    for (uint half_unit = 0; half_unit < 2; half_unit++) {
                        float product = 0.0f;
                        float4 sum = float4(0.0f);
                        for (uint s = 4 * half_unit; s < 4 * half_unit + 4; s++) {
                            sum += x[at + s];
                            product += dot(values(w[s], m), x[at + s]);
                        }
                        float2 scale = half_unit == 0 ? d : e;
                        value += product * scale.x + (sum.x + sum.y + sum.z + sum.w) * scale.y;
                    }
                    sums[r * T + t] += value;
                }
            }
        }
    }
};

// Floats times 32-bit floats: W reads the weights, S is unused.
struct Floats {
    template <typename W, typename S, uint T>
    static void add(device const uint* codes, device const uint*, device const uint* input, device const float2*,
                    thread const uint* rows, thread const uint* tokens, thread float* sums, uint lane,
                    constant Matrix& m) {
        device const float4* x = (device const float4*)input;
        for (uint i = lane; i < m.units * 8; i += 32) {
            for (uint r = 0; r < LINEAR_ROWS; r++) {
                float4 w = W::four(codes, rows[r] * m.units + i / 8, i % 8);
                for (uint t = 0; t < T; t++) {
                    sums[r * T + t] += dot(w, x[tokens[t] * m.units * 8 + i]);
                }
            }
        }
    }
};

// Pairs of a row of the batch and an expert that are computed together: `count` of `order` from `first` on.
struct Tile {
    uint expert;
    uint first;
    uint count;
};

static inline uint4 tile_of(uint expert, uint first, uint count) {
    uint4 tile;
    tile.x = expert;
    tile.y = first;
    tile.z = count;
    tile.w = 0;
    return tile;
}

// The results of a threadgroup: rows of the batch, or pairs, which are in the order of `tiles (tiles)` and `order`.
static inline Tile take_tile(device const uint4* tiles, uint index, uint most, constant Matrix& m) {
    Tile tile;
    if (m.share > 0) {
        uint4 words = tiles[index];
        tile.expert = words.x;
        tile.first = words.y;
        tile.count = words.z;
    } else {
        tile.expert = 0;
        tile.first = index * most;
        tile.count = min(most, m.batch.rows - tile.first);
    }
    return tile;
}

// Result `t` of a tile.
static inline uint result_of(device const uint* order, Tile tile, uint t, constant Matrix& m) {
    return m.share > 0 ? order[tile.first + t] : tile.first + t;
}

// The rows of the matrix and of the input that a SIMD group takes. Those after the last one repeat it; their results
// are not stored.
template <uint T>
static inline void take_rows(thread uint* rows, thread uint* tokens, uint first_row, device const uint* order, Tile tile,
                             constant Matrix& m) {
    for (uint r = 0; r < LINEAR_ROWS; r++) {
        rows[r] = tile.expert * m.rows + min(first_row + r, m.rows - 1);
    }
    for (uint t = 0; t < T; t++) {
        uint result = result_of(order, tile, min(t, tile.count - 1), m);
        tokens[t] = m.share > 0 ? result / m.share : result;
    }
}

// Result `lane` of the tile, summed over the lanes.
template <uint T>
static inline float lane_result(thread const float* sums, uint lane) {
    float mine = 0.0f;
    for (uint i = 0; i < LINEAR_ROWS * T; i++) {
        float total = simd_sum(sums[i]);
        if (lane == i) {
            mine = total;
        }
    }
    return mine;
}

template <typename I, typename W, typename S, uint T>
static inline void linear_rows(device const uint* codes, device const uint* scales, device const uint* input,
                               device const float2* input_scale, device float* output, device const uint4* tiles,
                               device const uint* order, uint3 group, uint lane, uint simd_index, constant Matrix& m) {
    uint first_row = (group.x * LINEAR_SIMDS + simd_index) * LINEAR_ROWS;
    Tile tile = take_tile(tiles, group.y, T, m);
    if (tile.count == 0) {
        return;
    }
    uint rows[LINEAR_ROWS];
    uint tokens[T];
    float sums[LINEAR_ROWS * T] = {};
    take_rows<T>(rows, tokens, first_row, order, tile, m);
    I::template add<W, S, T>(codes, scales, input, input_scale, rows, tokens, sums, lane, m);
    float value = lane_result<T>(sums, lane);
    uint row = first_row + lane / T;
    if (lane < LINEAR_ROWS * T && row < m.rows && lane % T < tile.count) {
        uint at = result_of(order, tile, lane % T, m) * m.stride + row;
        output[at] = m.output == OUTPUT_ADD ? output[at] + value : value;
    }
}

static inline float gated(float gate, float up) {
    return gate / (1.0f + exp(min(-gate, 88.0f))) * up;
}

// The same over two matrices of one layout: silu(x G^T) * (x U^T).
template <typename I, typename W, typename S, uint T>
static inline void swiglu_rows(device const uint* codes, device const uint* scales, device const uint* up_codes,
                               device const uint* up_scales, device const uint* input,
                               device const float2* input_scale, device float* output, device const uint4* tiles,
                               device const uint* order, uint3 group, uint lane, uint simd_index, constant Matrix& m) {
    uint first_row = (group.x * LINEAR_SIMDS + simd_index) * LINEAR_ROWS;
    Tile tile = take_tile(tiles, group.y, T, m);
    if (tile.count == 0) {
        return;
    }
    uint rows[LINEAR_ROWS];
    uint tokens[T];
    float sums[LINEAR_ROWS * T] = {};
    take_rows<T>(rows, tokens, first_row, order, tile, m);
    I::template add<W, S, T>(codes, scales, input, input_scale, rows, tokens, sums, lane, m);
    float gate = lane_result<T>(sums, lane);
    float up_sums[LINEAR_ROWS * T] = {};
    I::template add<W, S, T>(up_codes, up_scales, input, input_scale, rows, tokens, up_sums, lane, m);
    float up = lane_result<T>(up_sums, lane);
    uint row = first_row + lane / T;
    if (lane < LINEAR_ROWS * T && row < m.rows && lane % T < tile.count) {
        output[result_of(order, tile, lane % T, m) * m.stride + row] = gated(gate, up);
    }
}

#define LINEAR_TILE(NAME, INPUT, WEIGHTS, SCALES, T) \
    kernel void linear_##NAME(device const uint* codes [[buffer(0)]], device const uint* scales [[buffer(1)]], \
                              device const uint* input [[buffer(2)]], device const float2* input_scale [[buffer(3)]], \
                              device float* output [[buffer(4)]], device const uint4* tiles [[buffer(5)]], \
                              device const uint* order [[buffer(6)]], constant Matrix& m [[buffer(7)]], THREAD) { \
        linear_rows<INPUT, WEIGHTS, SCALES, T>(codes, scales, input, input_scale, output, tiles, order, group, lane, \
                                            simd_index, m); \
    } \
    kernel void swiglu_##NAME(device const uint* codes [[buffer(0)]], device const uint* scales [[buffer(1)]], \
                              device const uint* up_codes [[buffer(2)]], device const uint* up_scales [[buffer(3)]], \
                              device const uint* input [[buffer(4)]], device const float2* input_scale [[buffer(5)]], \
                              device float* output [[buffer(6)]], device const uint4* tiles [[buffer(7)]], \
                              device const uint* order [[buffer(8)]], constant Matrix& m [[buffer(9)]], THREAD) { \
        swiglu_rows<INPUT, WEIGHTS, SCALES, T>(codes, scales, up_codes, up_scales, input, input_scale, output, tiles, \
                                            order, group, lane, simd_index, m); \
    }

#define LINEAR(NAME, INPUT, WEIGHTS, SCALES) \
    LINEAR_TILE(NAME##_1, INPUT, WEIGHTS, SCALES, 1) \
    LINEAR_TILE(NAME##_8, INPUT, WEIGHTS, SCALES, 8)

#define LINEAR_CODES(NAME, WEIGHTS, SCALES) \
    LINEAR(NAME##_int8, Int8, WEIGHTS, SCALES) \
    LINEAR(NAME##_f32, Exact, WEIGHTS, SCALES)

LINEAR_CODES(1bit_plain, Bits1, Plain)
LINEAR_CODES(2bit_plain, Bits2, Plain)
LINEAR_CODES(4bit_plain, Bits4, Plain)
LINEAR_CODES(8bit_plain, Bits8, Plain)
LINEAR_CODES(1bit_general, Bits1, General)
LINEAR_CODES(2bit_general, Bits2, General)
LINEAR_CODES(4bit_general, Bits4, General)
LINEAR_CODES(6bit_general, Bits6, General)
LINEAR_CODES(8bit_general, Bits8, General)
LINEAR_CODES(levels_general, Levels, General)
LINEAR(f16, Floats, Float16, Plain)
LINEAR(bf16, Floats, BFloat16, Plain)
LINEAR(f32, Floats, Float32, Plain)

enum Activation { ACTIVATION_SILU = 0, ACTIVATION_GELU_TANH = 1, ACTIVATION_RELU2 = 2 };

struct Gate {
    Batch batch;
    uint cols;
    uint activation;
};

static inline float gated_by(uint activation, float x, float up) {
    if (activation == ACTIVATION_SILU) {
        return gated(x, up);
    }
    if (activation == ACTIVATION_RELU2) {
        float positive = x < 0.0f ? 0.0f : x;
        return positive * positive * up;
    }
    // x / 2 (1 + tanh(u)) = x / (1 + exp(-2 u)), with 2 sqrt(2 / pi).
    float u = 1.5957692f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exp(min(-u, 80.0f))) * up;
}

// gate (rows, cols) = f(gate) * up: of halves that were computed apart. Each thread has one.
kernel void gate(device float* gates [[buffer(0)]], device const float* ups [[buffer(1)]],
                 constant Gate& p [[buffer(2)]], THREAD) {
    uint col = (group.x * LINEAR_SIMDS + simd_index) * 32 + lane;
    if (col < p.cols) {
        uint at = group.y * p.cols + col;
        gates[at] = gated_by(p.activation, gates[at], ups[at]);
    }
}

enum ChangeKind { CHANGE_BIAS = 0, CHANGE_SUM = 1, CHANGE_FACTOR = 2 };

struct Change {
    Batch batch;
    uint cols;
    uint kind;
    float factor;
};

// x (rows, cols) += other, a bias (cols) or a sum (rows, cols), or x *= factor. Each thread has one.
kernel void change(device float* x [[buffer(0)]], device const float* other [[buffer(1)]],
                   constant Change& p [[buffer(2)]], THREAD) {
    uint col = (group.x * LINEAR_SIMDS + simd_index) * 32 + lane;
    if (col < p.cols) {
        uint at = group.y * p.cols + col;
        if (p.kind == CHANGE_FACTOR) {
            x[at] = x[at] * p.factor;
        } else {
            x[at] = x[at] + other[p.kind == CHANGE_BIAS ? col : at];
        }
    }
}
