// Mixtures of experts. A pair is a row of the batch and one of the experts that it uses.

// Pairs of one expert that are computed together: `count` of `order` from `first` on.
struct Tile {
    u32 expert, first, count, unused;
};

struct RouteArgs {
    const float *logits; // (rows, experts): the router's
    u32 *experts;        // (rows, used), ascending in each row
    float *weights;      // (rows, used); 0: not computed
    Tile *tiles;
    u32 *order; // (rows * used): pairs, expert by expert
    u32 count, used, rows;
    u32 normalize;
    u32 tile; // most pairs of a tile
    u32 unused;
};

// The experts with the highest p = softmax(logits), the lower index first where two are equal, and p, divided by their sum
// if `normalize` says so. One warp a row. The pairs of a single row are its tiles.
extern "C" __global__ void route(RouteArgs a) {
    wait_for_launch();
    let_next_launch();
    u32 lane = threadIdx.x, row = blockIdx.x;
    const float *x = a.logits + (u64)row * a.count;
    float top = -__uint_as_float(0x7f800000u), sum = 0.0f, chosen = 0.0f;
    for (u32 i = lane; i < a.count; i += 32) top = fmaxf(top, x[i]);
    top = warp_max(top);
    for (u32 i = lane; i < a.count; i += 32) sum += expf(x[i] - top);
    sum = warp_sum(sum);
    // Keys order as the choice does. None is above this one, and all differ.
    u64 last = ~0ull;
    for (u32 n = 0; n < a.used; n++) {
        u64 best = 0;
        for (u32 i = lane; i < a.count; i += 32) {
            u32 bits = __float_as_uint(expf(x[i] - top));
            u64 key = bits >> 31 ? 0 : (u64)bits << 32 | (u32)~i;
            if (key < last && key > best) best = key;
        }
        for (int o = 16; o > 0; o /= 2) {
            u64 other = __shfl_xor_sync(0xffffffffu, best, o);
            best = other > best ? other : best;
        }
        if (best == 0) break;
        last = best;
        chosen += __uint_as_float((u32)(best >> 32));
    }
    u32 found = 0, base = row * a.used;
    for (u32 first = 0; first < a.count; first += 32) {
        u32 i = first + lane, bits = i < a.count ? __float_as_uint(expf(x[i] - top)) : 0x80000000u;
        bool takes = !(bits >> 31) && ((u64)bits << 32 | (u32)~i) >= last;
        u32 all = __ballot_sync(0xffffffffu, takes), at = base + found + __popc(all & ((1u << lane) - 1));
        if (takes) {
            a.experts[at] = i;
            a.weights[at] = __uint_as_float(bits) / (a.normalize ? chosen : sum);
        }
        found += __popc(all);
    }
    for (u32 n = found + lane; n < a.used; n += 32) {
        a.experts[base + n] = 0;
        a.weights[base + n] = 0.0f;
    }
    if (a.rows > 1) return;
    __syncwarp();
    for (u32 n = lane; n < a.used; n += 32) {
        a.order[n] = n;
        a.tiles[n] = Tile{a.experts[n], n, a.weights[n] != 0.0f, 0};
    }
}

// The pairs of each expert as tiles. One warp an expert: tiles from [pairs of experts before] / tile + expert on are its own;
// those that it does not need are empty.
extern "C" __global__ void route_tiles(RouteArgs a) {
    wait_for_launch();
    let_next_launch();
    u32 lane = threadIdx.x, expert = blockIdx.x, pairs = a.rows * a.used, before = 0, count = 0;
    for (u32 p = lane; p < pairs; p += 32) {
        bool computed = a.weights[p] != 0.0f;
        before += computed && a.experts[p] < expert;
        count += computed && a.experts[p] == expert;
    }
    for (int o = 16; o > 0; o /= 2) {
        before += __shfl_xor_sync(0xffffffffu, before, o);
        count += __shfl_xor_sync(0xffffffffu, count, o);
    }
    u32 found = before;
    for (u32 first = 0; first < pairs; first += 32) {
        u32 p = first + lane;
        bool takes = p < pairs && a.weights[p] != 0.0f && a.experts[p] == expert;
        u32 all = __ballot_sync(0xffffffffu, takes);
        if (takes) a.order[found + __popc(all & ((1u << lane) - 1))] = p;
        found += __popc(all);
    }
    u32 begin = before / a.tile + expert, end = (before + count) / a.tile + expert + 1;
    if (expert + 1 == a.count) end = pairs / a.tile + a.count;
    for (u32 t = begin + lane; t < end; t += 32) {
        u32 done = (t - begin) * a.tile;
        a.tiles[t] = Tile{expert, before + done, done < count ? min(a.tile, count - done) : 0, 0};
    }
}

struct ExpertsAddArgs {
    const float *weights; // (rows, used)
    const float *from;    // (rows, used, cols)
    float *to;            // (rows, cols)
    u32 cols, used;
};

// Adds the results of a row's experts, times their weights.
extern "C" __global__ void experts_add(ExpertsAddArgs a) {
    wait_for_launch();
    let_next_launch();
    u64 row = blockIdx.x;
    for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
        float sum = a.to[row * a.cols + i];
        for (u32 e = 0; e < a.used; e++) {
            float weight = a.weights[row * a.used + e];
            if (weight != 0.0f) sum += weight * a.from[(row * a.used + e) * a.cols + i];
        }
        a.to[row * a.cols + i] = sum;
    }
}
