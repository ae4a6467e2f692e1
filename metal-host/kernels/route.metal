// Mixtures of experts. A pair is a row of the batch and one of the experts that it uses; `Tile` is in linear.metal.

struct Route {
    Batch batch;
    uint experts;
    uint used;
    // Whether the probabilities of the chosen experts are divided by their sum.
    uint normalize;
    // Most pairs of a tile.
    uint tile;
};

// Whether (bits, index) is chosen before (other, other_index): higher bits first, then the lower index.
static inline bool before(uint bits, uint index, uint other, uint other_index) {
    return bits > other || (bits == other && index < other_index);
}

// The experts with the highest p = softmax(logits (rows, experts)), ascending, and p as weights, both (rows, used). One SIMD
// group a row. The pairs of a single row are its tiles. A weight of 0 is not computed.
kernel void route(device const float* logits [[buffer(0)]], device uint* chosen [[buffer(1)]],
                  device float* weights [[buffer(2)]], device uint* order [[buffer(3)]],
                  device uint4* tiles [[buffer(4)]], constant Route& p [[buffer(5)]], THREAD) {
    device const float* x = logits + group.x * p.experts;
    float top = -as_type<float>(0x7f800000u);
    for (uint i = lane; i < p.experts; i += 32) {
        top = max(top, x[i]);
    }
    top = simd_max(top);
    float sum = 0.0f;
    for (uint i = lane; i < p.experts; i += 32) {
        sum += exp(x[i] - top);
    }
    sum = simd_sum(sum);
    // The last that was chosen; none is before the first.
    uint last = 0xffffffffu;
    uint last_index = 0;
    float of_chosen = 0.0f;
    uint count = 0;
    for (; count < p.used; count++) {
        uint best = 0;
        uint index = 0xffffffffu;
        for (uint i = lane; i < p.experts; i += 32) {
            uint bits = as_type<uint>(exp(x[i] - top));
            // Negative only if it is NaN.
            bool takes = bits >> 31 == 0 && (count == 0 || before(last, last_index, bits, i));
            if (takes && before(bits, i, best, index)) {
                best = bits;
                index = i;
            }
        }
        uint most = simd_max(best);
        uint first = simd_min(best == most ? index : 0xffffffffu);
        if (first == 0xffffffffu) {
            break;
        }
        last = most;
        last_index = first;
        of_chosen += as_type<float>(most);
    }
    uint base = group.x * p.used;
    uint found = 0;
    for (uint from = 0; from < p.experts; from += 32) {
        uint i = from + lane;
        uint bits = i < p.experts ? as_type<uint>(exp(x[i] - top)) : 0x80000000u;
        bool takes = bits >> 31 == 0 && count > 0 && !before(last, last_index, bits, i);
        uint at = base + found + simd_prefix_exclusive_sum(takes ? 1u : 0u);
        found += simd_sum(takes ? 1u : 0u);
        if (takes) {
            float weight = as_type<float>(bits) / (p.normalize == 1 ? of_chosen : sum);
            chosen[at] = i;
            weights[at] = weight;
            if (p.batch.rows == 1) {
                order[at] = at;
                tiles[at] = tile_of(i, at, weight != 0.0f ? 1 : 0);
            }
        }
    }
    for (uint n = found + lane; n < p.used; n += 32) {
        chosen[base + n] = 0;
        weights[base + n] = 0.0f;
        if (p.batch.rows == 1) {
            tiles[n] = tile_of(0, n, 0);
        }
    }
}

// The pairs of each expert as tiles. One SIMD group an expert: tiles from [pairs of experts before] / tile + expert on are its
// own; those that it does not need are empty.
kernel void route_tiles(device const uint* chosen [[buffer(0)]], device const float* weights [[buffer(1)]],
                        device uint* order [[buffer(2)]], device uint4* tiles [[buffer(3)]],
                        constant Route& p [[buffer(4)]], THREAD) {
    uint expert = group.x;
    uint pairs = p.batch.rows * p.used;
    uint earlier = 0;
    uint count = 0;
    for (uint i = lane; i < pairs; i += 32) {
        bool computed = weights[i] != 0.0f;
        earlier += computed && chosen[i] < expert ? 1 : 0;
        count += computed && chosen[i] == expert ? 1 : 0;
    }
    earlier = simd_sum(earlier);
    count = simd_sum(count);
    uint found = earlier;
    for (uint from = 0; from < pairs; from += 32) {
        uint i = from + lane;
        bool takes = i < pairs && weights[i] != 0.0f && chosen[i] == expert;
        uint at = found + simd_prefix_exclusive_sum(takes ? 1u : 0u);
        found += simd_sum(takes ? 1u : 0u);
        if (takes) {
            order[at] = i;
        }
    }
    uint begin = earlier / p.tile + expert;
    uint end = expert + 1 == p.experts ? pairs / p.tile + p.experts : (earlier + count) / p.tile + expert + 1;
    for (uint t = begin + lane; t < end; t += 32) {
        uint done = (t - begin) * p.tile;
        tiles[t] = tile_of(expert, earlier + done, done < count ? min(p.tile, count - done) : 0);
    }
}

struct ExpertsAdd {
    Batch batch;
    uint cols;
    uint used;
};

// to (rows, cols) += the results (rows, used, cols) of a row's experts, times their weights. One threadgroup a row.
kernel void experts_add(device const float* weights [[buffer(0)]], device const float* results [[buffer(1)]],
                        device float* to [[buffer(2)]], constant ExpertsAdd& p [[buffer(3)]], THREAD) {
    for (uint i = simd_index * 32 + lane; i < p.cols; i += ROW_SIMDS * 32) {
        float sum = to[group.x * p.cols + i];
        for (uint e = 0; e < p.used; e++) {
            uint pair = group.x * p.used + e;
            if (weights[pair] != 0.0f) {
                sum += weights[pair] * results[pair * p.cols + i];
            }
        }
        to[group.x * p.cols + i] = sum;
    }
}
