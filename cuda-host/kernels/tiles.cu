// Products of matrices in tiles, on tensor cores. A tile has 16 outputs and a chunk of 256 columns, eight units of 32. Lane
// 4 g + t of a warp has outputs g and g + 8 and in each unit columns 4 t to 4 t + 3 and 16 + 4 t to 16 + 4 t + 3: a word for each
// of the four, with a byte a column, in which codes of fewer than 8 bits are those of 8 / BITS units.
//
//     codes (tiles, chunks, BITS, 32 lanes, 4 words), scales (tiles, chunks, 16 outputs, groups of a chunk) as f16
//
// Tiles of gate and up alternate.
//
// `tiles_one`: a single row. The columns of B are the units of a chunk, one after the other with zeros in the others, so that the
// products of eight units add up in one result, whose column j is the sum of unit j: codes are masked and not shifted, and
// every lane scales four sums. A block has up to 16 tiles at a time, whose chunks its warps divide evenly: one or two neighbouring chunks
// of a tile are added up at once, and what they make when all are done.
//
// `tiles_few` and `tiles_many`: up to 8 and 32 rows, which are columns of B; a block keeps their chunk in shared memory. A warp has
// two tiles, and the `split`th part of the units of each chunk.

struct TilesArgs {
    const uint4 *codes;
    const unsigned short *scales;
    float *out[3];            // (tokens, rows): of the outputs up to ends[0], from there to ends[1], ...
    const float *x;           // (cols), rounded by each block
    const float *norm;        // (cols)
    const signed char *words; // (tokens, cols), if blocks do not round x
    const Meta *meta;
    signed char *rounded; // integers of a gated product of a single row, or null
    Meta *rounded_meta;
    u32 ends[3];
    u32 tiles, chunks, units; // of 32 columns: the last chunk may have fewer than 8
    u32 tokens;
    u32 groups; // of a chunk, with a scale each
    u32 epilogue;
    u32 block_tiles; // of a single row: those that a block has at a time
    u32 split;       // of several rows: 1 << split warps have the same tiles
    u32 zero;        // 0, which the compiler does not know
    int factor, offset;
    float eps;
    float per_column; // 1 / cols
    u32 sums_reciprocal; // of a single row: 2^20 / sums of a tile, rounded up
    float offset_of_code; // offset / factor
};

const u32 ONE_WARPS = 16, ONE_THREADS = 32 * ONE_WARPS;
// Loads of a thread that normalizes x, each of four numbers, before it waits for the first: up to 4096 columns.
const u32 NORM_LOADS = 2;

// A part of a chunk that a warp loads before it needs it: at most two loads of a lane.
template <int BITS> struct Piece {
    static constexpr int LOADS = BITS == 1 ? 1 : 2, UNITS = 8 * LOADS / BITS;
    uint4 codes[LOADS];
};

// Scales of outputs g and g + 8: of columns 2 t and 2 t + 1, if each unit has its own.
struct TileScales {
    u32 two[2];
};

template <int BITS> __device__ __forceinline__ TileScales load_scales(const unsigned short *scales, u32 groups) {
    if constexpr (BITS >= 4) return TileScales{__ldg((const u32 *)scales), __ldg((const u32 *)scales + 32)};
    else return TileScales{__ldg(scales), __ldg(scales + 8 * groups)};
}

template <int BITS> __device__ __forceinline__ void load_piece(const uint4 *codes, Piece<BITS> &to) {
    for (int i = 0; i < Piece<BITS>::LOADS; i++) to.codes[i] = __ldg(codes + 32 * i);
}

// Whether the unit that is a lane's own, unit g, is one of the upper four, and which of four it is.
struct OwnUnit {
    u32 upper, in_four[4];
};

// With one bit, the pipe that masks codes limits the loop: numbers that the compiler does not know are multiplied by, on another one.
template <int BITS> __device__ __forceinline__ OwnUnit own_unit() {
    OwnUnit own;
    u32 g = threadIdx.x % 32 / 4;
    own.upper = g / 4;
    for (u32 i = 0; i < 4; i++) own.in_four[i] = g % 4 == i;
    if constexpr (BITS == 1) {
        own.upper = opaque(own.upper);
        for (u32 i = 0; i < 4; i++) own.in_four[i] = opaque(own.in_four[i]);
    }
    return own;
}

template <int BITS> __device__ __forceinline__ uint2 words_if(u32 own, uint2 words) {
    if constexpr (BITS == 1) return uint2{words.x * own, words.y * own};
    else return uint2{own ? words.x : 0, own ? words.y : 0};
}

// Products that wait for one another: of one bit, half of those of a chunk.
template <int BITS> constexpr u32 CHAINS = BITS == 1 ? 2 : 1;

// The sums of the units of a piece, each in its column: `words` are those of unit g, if that is one of the lower four, and one of the
// upper four.
template <int BITS>
__device__ __forceinline__ void add_piece(const Piece<BITS> &piece, int from, const OwnUnit &own, const uint2 (&words)[2],
                                          int (&sums)[CHAINS<BITS>][4]) {
    const int PER = 8 / BITS;
#pragma unroll
    for (int j = 0; j < Piece<BITS>::UNITS; j++) {
        uint4 q = piece.codes[j / PER];
        u32 mask = code_mask<BITS>() << (BITS * (j % PER));
        u32 a[4] = {q.x & mask, q.y & mask, q.z & mask, q.w & mask};
        uint2 b = words_if<BITS>(own.in_four[(from + j) % 4], words[(from + j) / 4]);
        int(&n)[4] = sums[j % CHAINS<BITS>];
        mma_16x8x32<BITS == 8>(n, n, a, b.x, b.y);
    }
}

// Adds the share of a chunk to the sums of outputs g and g + 8. `units`: of columns 2 t and 2 t + 1 what their sums are
// multiplied by, and what is added.
template <int BITS>
__device__ __forceinline__ void add_chunk(const int (&n)[4], const TileScales &scales, float4 units, float (&sums)[2]) {
    for (u32 f = 0; f < 2; f++) {
        float p = sum_value(n[2 * f]), q = sum_value(n[2 * f + 1]);
        if constexpr (BITS >= 4) {
            sums[f] = __fmaf_rn(__fmaf_rn(p, units.x, units.y), half_value(scales.two[f] & 0xffff), sums[f]);
            sums[f] = __fmaf_rn(__fmaf_rn(q, units.z, units.w), half_value(scales.two[f] >> 16), sums[f]);
        } else {
            float both = __fmaf_rn(q, units.z, __fmaf_rn(p, units.x, units.y + units.w));
            sums[f] = __fmaf_rn(both, half_value(scales.two[f]), sums[f]);
        }
    }
}

// x of a block, in shared memory: words (units, 4, 2), those that a lane reads beside one another, and of units what sums of
// products with the codes of weights, where these are in their bytes, are multiplied by, and what is added.
struct RowOfBlock {
    u32 *words;
    float2 *units;
};

__device__ __forceinline__ u32 *word_of(const RowOfBlock &to, u32 unit, u32 s) {
    return to.words + 8 * unit + 2 * (s % 4) + s / 4;
}

template <int BITS> __device__ __forceinline__ float2 unit_of(const TilesArgs &a, u32 unit, float scale, int total) {
    return float2{scale * (float)a.factor * power_of_two(-BITS * (int)(unit % (8 / BITS))), scale * (float)(-a.offset * total)};
}

// Copies the integers of x.
template <int BITS> __device__ __forceinline__ void copy_row(const TilesArgs &a, const RowOfBlock &to) {
    for (u32 i = threadIdx.x; i < 16 * a.chunks; i += ONE_THREADS) {
        // Loads that do not wait for one another.
        uint4 four = i < 2 * a.units ? *((const uint4 *)a.words + i) : uint4{0, 0, 0, 0};
        Meta meta = i < a.units ? a.meta[i] : Meta{0.0f, {0, 0}};
        u32 unit = i / 2, s = i % 2 * 4;
        *word_of(to, unit, s) = four.x, *word_of(to, unit, s + 1) = four.y;
        *word_of(to, unit, s + 2) = four.z, *word_of(to, unit, s + 3) = four.w;
        if (i < 8 * a.chunks) to.units[i] = unit_of<BITS>(a, i, meta.scale, meta.sums[0] + meta.sums[1]);
    }
}

// Four numbers of x and of the norm's weights: zeros after the last column.
struct NormLoads {
    float4 x, weights;
};

__device__ __forceinline__ float4 load_four(const float *from, u32 i, const TilesArgs &a) {
    return i < 8 * a.units ? load_now((const float4 *)from + i) : float4{0.0f, 0.0f, 0.0f, 0.0f};
}

// Rounds four numbers of x times the weights of the norm, the threads of eight lanes a unit. Returns the sum of their squares.
template <int BITS>
__device__ __forceinline__ float round_four(const TilesArgs &a, const NormLoads &loads, u32 i, const RowOfBlock &to) {
    float4 v = loads.x, w = loads.weights;
    float y[4] = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
    u32 bits = max(max(magnitude_bits(y[0]), magnitude_bits(y[1])), max(magnitude_bits(y[2]), magnitude_bits(y[3])));
    for (u32 o = 1; o < 8; o *= 2) bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, o));
    float top = __uint_as_float(bits);
    float inverse = inverse_scale(top);
    u32 word = 0;
    for (u32 j = 0; j < 4; j++) word |= (u32)(rounded_integer(y[j], inverse) & 255) << (8 * j);
    int total = __dp4a((int)word, 0x01010101, 0);
    for (u32 o = 1; o < 8; o *= 2) total += __shfl_xor_sync(0xffffffffu, total, o);
    *word_of(to, i / 8, i % 8) = word;
    if (i % 8 == 0) to.units[i / 8] = unit_of<BITS>(a, i / 8, scale_of(top), total);
    return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

// Rounds x times the weights of the norm. That all of it is divided by its norm changes an integer only where a number lies halfway
// between two: outputs are divided by that. The sum of the squares of each warp's numbers goes to `squares`.
template <int BITS>
__device__ __forceinline__ void round_row(const TilesArgs &a, NormLoads (&loads)[NORM_LOADS], const RowOfBlock &to, float *squares) {
    u32 fours = 64 * a.chunks;
    for (u32 k = 0; k < NORM_LOADS; k++) loads[k].x = load_four(a.x, threadIdx.x + k * ONE_THREADS, a);
    float sum = 0.0f;
    // Whole warps.
    for (u32 k = 0; k < NORM_LOADS; k++) {
        u32 i = threadIdx.x + k * ONE_THREADS;
        if (i < fours) sum += round_four<BITS>(a, loads[k], i, to);
    }
#pragma unroll 1
    for (u32 i = threadIdx.x + NORM_LOADS * ONE_THREADS; i < fours; i += ONE_THREADS)
        sum += round_four<BITS>(a, NormLoads{load_four(a.x, i, a), load_four(a.norm, i, a)}, i, to);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
}

// Where output `row` of a row of the batch is stored, or null after the last one; of gated products they have been combined.
__device__ __forceinline__ float *output_of(const TilesArgs &a, u32 token, u32 row) {
    if (row >= a.ends[2]) return nullptr;
    u32 i = row < a.ends[0] ? 0 : row < a.ends[1] ? 1 : 2, begin = i == 0 ? 0 : i == 1 ? a.ends[0] : a.ends[1];
    u32 end = i == 0 ? a.ends[0] : i == 1 ? a.ends[1] : a.ends[2];
    return (i == 0 ? a.out[0] : i == 1 ? a.out[1] : a.out[2]) + ((u64)token * (end - begin) + (row - begin));
}

__device__ __forceinline__ void store_output(const TilesArgs &a, u32 token, u32 row, float y) {
    float *out = output_of(a, token, row);
    if (out) *out = a.epilogue == EPILOGUE_ADD ? *out + y : y;
}

// Reads arguments of every line of memory that they are in. The first read of a line takes long, and this one is early.
__device__ __forceinline__ void touch(const TilesArgs &a) {
#ifndef CUDA_SHIM
    asm volatile("" ::"l"(a.codes), "l"(a.out[2]), "l"(a.rounded_meta), "r"(a.units), "f"(a.eps));
#else
    (void)a;
#endif
}

// Chunks that follow one another, of one tile or several, as a warp reads them: some pieces are on their way when it needs one.
template <int BITS> struct ChunkReader {
    static constexpr int LOADS = Piece<BITS>::LOADS, UNITS = Piece<BITS>::UNITS, PIECES = 8 / UNITS;
    static constexpr int AHEAD = BITS == 8 ? 2 : 1;
    // Chunks that memory is asked for before they are read: more at once would be slower.
    static constexpr u32 DISTANCE = BITS == 1 ? 4 : 2;
    // Of the next piece and the next scales to be read.
    const uint4 *codes;
    const unsigned short *scales;
    Piece<BITS> pieces[AHEAD];
    TileScales scales_of_chunk;

    // `chunk`: of all tiles.
    __device__ __forceinline__ void begin(const TilesArgs &a, u32 chunk, u32 count) {
        u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, groups = a.groups;
        const uint4 *first_codes = a.codes + (u64)chunk * (32 * BITS);
        const unsigned short *first = a.scales + (u64)chunk * (16 * groups);
        codes = first_codes + lane;
        scales = first + (g * groups + t * groups / 4);
        // A line of memory a lane: of the first chunks, and of as many scales.
        const u32 LINES = 4 * BITS;
        for (u32 line = lane; line < DISTANCE * LINES; line += 32)
            if (line < count * LINES) prefetch(first_codes + 8 * line);
        if (64 * lane < count * 16 * groups) prefetch(first + 64 * lane);
        if (count == 0) return;
        load_scales(a);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) load_piece(i);
    }

    __device__ __forceinline__ void load_scales(const TilesArgs &a) {
        scales_of_chunk = ::load_scales<BITS>(scales, a.groups);
        scales += 16 * a.groups;
    }

    __device__ __forceinline__ void expect_piece() const {
        // A lane for each line of memory.
        if (threadIdx.x % 8 != 0) return;
        for (int i = 0; i < LOADS; i++) prefetch(codes + (32 * BITS * DISTANCE - 32 * LOADS * AHEAD + 32 * i));
    }

    __device__ __forceinline__ void load_piece(int to) {
        ::load_piece<BITS>(codes, pieces[to]);
        codes += 32 * LOADS;
    }
};

// The sum over the warps of a block, by every thread that asks for it.
__device__ __forceinline__ float sum_of_warps(const float *from) {
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 w = 0; w < ONE_WARPS; w += 4) {
        float4 four = *(const float4 *)(from + w);
        sum.x += four.x, sum.y += four.y, sum.z += four.z, sum.w += four.w;
    }
    return sum.x + sum.y + (sum.z + sum.w);
}

template <int BITS, bool NORM> __device__ __forceinline__ void tiles_one(const TilesArgs &a) {
    DYNAMIC_SHARED(shared);
    __shared__ __align__(16) float squares[ONE_WARPS], results[ONE_WARPS][16];
    typedef ChunkReader<BITS> Reader;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    bool gated = a.epilogue == EPILOGUE_SWIGLU;
    // Chunks that are added up at once, and how many sums of them a tile has.
    u32 together = a.chunks > 8 ? 2 : 1, sums_of_tile = (a.chunks + together - 1) / together;
    RowOfBlock x = {(u32 *)shared, (float2 *)(shared + 16 * a.chunks)};
    // (sums of the tiles of a block, lanes t, rows g, 2)
    float2 *sums = (float2 *)(shared + 20 * a.chunks);
    u32 base = blockIdx.x * a.block_tiles, stride = gridDim.x * a.block_tiles;
    // What the warp has of the tiles from `base` on: the chunk of a tile that it begins with, how many chunks it has, where in x
    // these begin and where the first sum is stored.
    u32 chunk, count;
    const uint2 *word;
    const float4 *unit;
    float2 *sum;
    // Where it stores an output, if it has a tile.
    float *out = nullptr;
    Reader reader = {};
    auto begin = [&](u32 tile) {
        u32 tiles = min(a.block_tiles, a.tiles - tile), all = tiles * sums_of_tile;
        u32 from = all * warp / ONE_WARPS, to = all * (warp + 1) / ONE_WARPS;
        u32 from_tile = from * a.sums_reciprocal >> 20, to_tile = to * a.sums_reciprocal >> 20;
        chunk = (from - from_tile * sums_of_tile) * together;
        count = (to_tile - from_tile) * a.chunks + (to - to_tile * sums_of_tile) * together - chunk;
        reader.begin(a, (tile + from_tile) * a.chunks + chunk, count);
        word = (const uint2 *)x.words + (32 * chunk + 4 * g + t);
        unit = (const float4 *)x.units + (4 * chunk + t);
        sum = sums + (from * 32 + 8 * t + g);
        out = !gated && warp < tiles && lane < 16 ? output_of(a, 0, (tile + warp) * 16 + lane) : nullptr;
    };
    if (base < a.tiles) begin(base);
    touch(a);
    float before = 0.0f;
    if constexpr (NORM) {
        NormLoads loads[NORM_LOADS];
        for (u32 k = 0; k < NORM_LOADS; k++) loads[k].weights = load_four(a.norm, threadIdx.x + k * ONE_THREADS, a);
        wait_for_launch();
        let_next_launch();
        if (out && a.epilogue == EPILOGUE_ADD) before = *out;
        round_row<BITS>(a, loads, x, squares);
    } else {
        wait_for_launch();
        let_next_launch();
        if (out && a.epilogue == EPILOGUE_ADD) before = *out;
        copy_row<BITS>(a, x);
    }
    __syncthreads();
    OwnUnit own = own_unit<BITS>();
    // The whole block.
#pragma unroll 1
    while (base < a.tiles) {
        u32 until = together;
        float two[2] = {};
#pragma unroll 1
        for (u32 left = count; left > 0; left--) {
            uint2 all = *word, upper = words_if<BITS>(own.upper, all), words[2] = {{all.x - upper.x, all.y - upper.y}, upper};
            float4 units = *unit;
            int chains[CHAINS<BITS>][4] = {{SUM_START, SUM_START, SUM_START, SUM_START}};
#pragma unroll
            for (int p = 0; p < Reader::PIECES; p++) {
                const int SLOT = p % Reader::AHEAD;
                add_piece<BITS>(reader.pieces[SLOT], p * Reader::UNITS, own, words, chains);
                if (left > Reader::DISTANCE) reader.expect_piece();
                // Of this chunk or of the next one.
                if (p + Reader::AHEAD < Reader::PIECES || left > 1) reader.load_piece(SLOT);
            }
            int n[4];
            for (u32 i = 0; i < 4; i++) n[i] = CHAINS<BITS> == 2 ? chains[0][i] + chains[CHAINS<BITS> - 1][i] : chains[0][i];
            add_chunk<BITS>(n, reader.scales_of_chunk, units, two);
            if (left > 1) reader.load_scales(a);
            word += 32, unit += 4, chunk++, until--;
            if (until == 0 || chunk == a.chunks) {
                *sum = float2{two[0], two[1]};
                two[0] = two[1] = 0.0f, until = together, sum += 32;
                if (chunk == a.chunks) word -= 32 * chunk, unit -= 4 * chunk, chunk = 0;
            }
        }
        u32 tiles = min(a.block_tiles, a.tiles - base), first = base;
        float *to = out;
        base += stride;
        // Memory is asked early.
        if (base < a.tiles) begin(base);
        __syncthreads();
        // A warp has a tile: half of it adds up lanes t = 0 and 2, the other one 1 and 3.
        if (warp < tiles) {
            const float *from = (const float *)(sums + warp * sums_of_tile * 32) + (lane / 16 * 16 + lane % 8 * 2 + lane / 8 % 2);
            float y = 0.0f;
#pragma unroll 8
            for (u32 i = 0; i < sums_of_tile; i++) y += from[64 * i] + from[64 * i + 32];
            y += __shfl_xor_sync(0xffffffffu, y, 16);
            if constexpr (NORM) y *= rsqrtf(sum_of_warps(squares) * a.per_column + a.eps);
            if (to) *to = before + y;
            if (gated && lane < 16) results[warp][lane] = y;
        }
        if (out && a.epilogue == EPILOGUE_ADD && base < a.tiles) before = *out;
        if (gated || base < a.tiles) __syncthreads();
        // A warp has a unit of 32 outputs, of two tiles of gate and two of up.
        if (gated && 4 * warp < tiles) {
            u32 tile = 4 * warp + lane / 16 * 2, at = first * 8 + warp * 32 + lane;
            float y = swiglu(results[tile][lane % 16], results[tile + 1][lane % 16]);
            if (at < a.ends[0]) a.out[0][at] = y;
            // The whole warp.
            if (a.rounded && at < a.ends[0]) put_unit(a.rounded, a.rounded_meta, at / 32, lane, y);
        }
    }
}

const u32 MANY_WARPS = 8, MANY_THREADS = 32 * MANY_WARPS;
// Words of a row of the batch in shared memory, so that a warp reads from all banks.
const u32 MANY_STRIDE = 64 + 8;
// Words of scales that a thread loads: 16 tiles have 64 each at most.
const u32 MANY_SCALES = 16 * 64 / MANY_THREADS;

// A chunk of the rows of the batch: words as in `RowOfBlock`, and for each unit the float that a sum of zero is, and the factor of
// what exceeds it. And the scales of the tiles of the block, of all rows of a tile and all groups of the chunk.
template <u32 TOKENS> struct RowsOfBlock {
    u32 words[TOKENS * MANY_STRIDE];
    float2 units[8][TOKENS];
    u32 scales[MANY_SCALES * MANY_THREADS];
};

// What a thread loads of a chunk before it is needed.
template <u32 TOKENS> struct RowsLoaded {
    static constexpr u32 LOADS = (TOKENS * 16 + MANY_THREADS - 1) / MANY_THREADS;
    uint4 words[LOADS];
    Meta meta;
    u32 scales[MANY_SCALES];
};

template <u32 TOKENS>
__device__ __forceinline__ void load_rows(const TilesArgs &a, u32 first, u32 count, u32 chunk, RowsLoaded<TOKENS> &to) {
    for (u32 k = 0; k < RowsLoaded<TOKENS>::LOADS; k++) {
        u32 i = threadIdx.x + k * MANY_THREADS, token = min(i / 16, count - 1), at = chunk * 16 + i % 16;
        bool has = at < 2 * a.units;
        to.words[k] = has ? *((const uint4 *)a.words + ((u64)(first + token) * 2 * a.units + at)) : uint4{0, 0, 0, 0};
    }
    // Words of a tile, and those of all tiles of the block.
    u32 words = 8 * a.groups, tiles = 2 * MANY_WARPS >> a.split;
    for (u32 k = 0; k < MANY_SCALES; k++) {
        // The last tile again, if there is no other.
        u32 i = threadIdx.x + k * MANY_THREADS, tile = min(blockIdx.x * tiles + i / words, a.tiles - 1);
        if (i < words * tiles) to.scales[k] = __ldg((const u32 *)a.scales + ((u64)tile * a.chunks + chunk) * words + i % words);
    }
    u32 token = min(threadIdx.x / 8, count - 1), unit = chunk * 8 + threadIdx.x % 8;
    to.meta = unit < a.units ? a.meta[(u64)(first + token) * a.units + unit] : Meta{0.0f, {0, 0}};
}

template <int BITS, u32 TOKENS>
__device__ __forceinline__ void store_rows(const TilesArgs &a, const RowsLoaded<TOKENS> &from, RowsOfBlock<TOKENS> &to) {
    for (u32 k = 0; k < RowsLoaded<TOKENS>::LOADS; k++) {
        u32 i = threadIdx.x + k * MANY_THREADS;
        if (i >= TOKENS * 16) break;
        u32 *words = to.words + (i / 16 * MANY_STRIDE + i % 16 / 2 * 8 + i % 2);
        uint4 four = from.words[k];
        words[0] = four.x, words[2] = four.y, words[4] = four.z, words[6] = four.w;
    }
    for (u32 k = 0; k < MANY_SCALES; k++) to.scales[threadIdx.x + k * MANY_THREADS] = from.scales[k];
    if (threadIdx.x >= TOKENS * 8) return;
    // A code c at bit p of a byte counts 2^p c, and is worth factor c - offset: that of one bit counts twice as much, as half its
    // offset is no integer.
    const u32 PER = 8 / BITS;
    u32 unit = threadIdx.x % 8;
    int bit = (int)(BITS == 1 ? max(unit, 1u) : BITS * (unit % PER));
    float offset = BITS == 8 ? 0.0f : power_of_two(bit) * a.offset_of_code;
    to.units[unit][threadIdx.x / 8] = float2{SUM_ZERO + offset * (float)(from.meta.sums[0] + from.meta.sums[1]),
                                             from.meta.scale * (float)a.factor * power_of_two(-bit)};
}

template <int BITS, u32 TOKENS> __device__ __forceinline__ void tiles_many(const TilesArgs &a) {
    __shared__ __align__(16) RowsOfBlock<TOKENS> rows[2];
    const u32 CHUNK = 32 * BITS, PER = 8 / BITS, SPAN = BITS <= 2 ? 2 : 1, BLOCKS = TOKENS / 8;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    // Units of a chunk that the warp has, and those of a load.
    u32 split = 1 << a.split, part = warp & (split - 1), units = 8 >> a.split, begin = part * units, together = min(units, PER);
    u32 first = blockIdx.y * TOKENS, count = min(a.tokens - first, TOKENS);
    u32 groups = a.groups, shift = __clz((int)groups) - 28, tile_of_block = (warp >> a.split) * 2;
    u32 tile = blockIdx.x * (2 * MANY_WARPS >> a.split) + tile_of_block;
    const uint4 *codes[2];
    uint4 next[2];
    for (u32 r = 0; r < 2; r++) {
        // The last tile again, if there is no other.
        u64 at = (u64)min(tile + r, a.tiles - 1) * a.chunks;
        codes[r] = a.codes + (at * CHUNK + begin / PER * 32 + lane);
        next[r] = __ldg(codes[r]);
    }
    // The load after the last one of a chunk.
    u32 jump = CHUNK - (units / together - 1) * 32;
    wait_for_launch();
    let_next_launch();
    RowsLoaded<TOKENS> loaded = {};
    load_rows(a, first, count, 0, loaded);
    store_rows<BITS>(a, loaded, rows[0]);
    __syncthreads();
    float sums[2][BLOCKS][4] = {};
    // Four registers: a constant, or one register, would be copied for each product.
    int start[4];
    for (u32 i = 0; i < 4; i++) start[i] = SUM_START + (int)(a.zero >> i);
#pragma unroll 1
    for (u32 chunk = 0; chunk < a.chunks; chunk++) {
        const RowsOfBlock<TOKENS> &in = rows[chunk % 2];
        bool more = chunk + 1 < a.chunks;
        if (more) load_rows(a, first, count, chunk + 1, loaded);
#pragma unroll 1
        for (u32 at = begin; at < begin + units; at += together) {
            uint4 now[2] = {next[0], next[1]};
            bool ends = at + together == begin + units;
            for (u32 r = 0; r < 2; r++) {
                codes[r] += !ends ? 32 : more ? jump : 0;
                next[r] = __ldg(codes[r]);
            }
#pragma unroll 1
            for (u32 unit = at; unit < at + together; unit += SPAN) {
                u32 codes_of[SPAN][2][4];
                float scale[2][2];
                const unsigned short *scales =
                    (const unsigned short *)in.scales + ((tile_of_block * 16 + g) * groups + (unit >> shift));
                for (u32 r = 0; r < 2; r++) {
                    scale[r][0] = half_value(scales[r * 16 * groups]), scale[r][1] = half_value(scales[(r * 16 + 8) * groups]);
                    for (u32 v = 0; v < SPAN; v++) {
                        u32 mask = code_mask<BITS>() << (BITS * ((unit + v) % PER)), *to = codes_of[v][r];
                        to[0] = now[r].x & mask, to[1] = now[r].y & mask, to[2] = now[r].z & mask, to[3] = now[r].w & mask;
                        if (BITS == 1 && v == 0 && unit == 0)
                            for (u32 i = 0; i < 4; i++) to[i] *= 2;
                    }
                }
#pragma unroll
                for (u32 b = 0; b < BLOCKS; b++) {
                    float both[2][4];
#pragma unroll
                    for (u32 v = 0; v < SPAN; v++) {
                        uint2 word = *(const uint2 *)(in.words + ((8 * b + g) * MANY_STRIDE + (unit + v) * 8 + 2 * t));
                        float4 two = *(const float4 *)&in.units[unit + v][8 * b + 2 * t];
                        for (u32 r = 0; r < 2; r++) {
                            int n[4];
                            mma_16x8x32<BITS == 8>(n, start, codes_of[v][r], word.x, word.y);
                            for (u32 i = 0; i < 4; i++) {
                                float zero = i % 2 ? two.z : two.x, by = i % 2 ? two.w : two.y;
                                float sum = __fadd_rn(__uint_as_float((u32)n[i]), -zero);
                                both[r][i] = v == 0 ? __fmul_rn(sum, by) : __fmaf_rn(sum, by, both[r][i]);
                            }
                        }
                    }
                    for (u32 r = 0; r < 2; r++)
                        for (u32 i = 0; i < 4; i++) sums[r][b][i] = __fmaf_rn(both[r][i], scale[r][i / 2], sums[r][b][i]);
                }
            }
        }
        if (more) store_rows<BITS>(a, loaded, rows[(chunk + 1) % 2]);
        __syncthreads();
    }
    // Halves of the warps of the same tiles, and halves of these.
    float *joined = (float *)rows;
    for (u32 half = split / 2; half > 0; half /= 2) {
        float *at = joined + (((warp >> a.split) * half + (part & (half - 1))) * (8 * BLOCKS) * 32 + lane);
        if (part >= half && part < 2 * half)
#pragma unroll
            for (u32 i = 0; i < 8 * BLOCKS; i++) at[32 * i] = sums[i / 4 / BLOCKS][i / 4 % BLOCKS][i % 4];
        __syncthreads();
        if (part < half)
#pragma unroll
            for (u32 i = 0; i < 8 * BLOCKS; i++) sums[i / 4 / BLOCKS][i / 4 % BLOCKS][i % 4] += at[32 * i];
        __syncthreads();
    }
    if (part > 0) return;
#pragma unroll
    for (u32 b = 0; b < BLOCKS; b++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 token = 8 * b + 2 * t + i % 2, row = tile * 16 + i / 2 * 8 + g;
            if (token >= count) continue;
            if (a.epilogue == EPILOGUE_SWIGLU) {
                if (tile < a.tiles) store_output(a, first + token, row - tile * 8, swiglu(sums[0][b][i], sums[1][b][i]));
                continue;
            }
            for (u32 r = 0; r < 2; r++)
                if (tile + r < a.tiles) store_output(a, first + token, row + 16 * r, sums[r][b][i]);
        }
}

// Rows as core packs them, in tiles: a thread has a word of codes, or a scale.

struct RetileArgs {
    const u32 *codes; // (rows, units, BITS)
    const u32 *scales; // (rows, scale_words)
    u32 *tiles;
    unsigned short *tile_scales;
    u32 rows, units;
    u32 scale_words;
    u32 bits;
    u32 shift;
    u32 first, apart; // the first tile, and from one tile to the next
    u32 unused;
};

template <class C> __device__ __forceinline__ u32 tile_word(const RetileArgs &a, u32 tile, u32 chunk, u32 at) {
    const u32 PER = 8 / C::WORDS;
    u32 i = at % 4, lane = at / 4 % 32, load = at / 128, row = tile * 16 + i % 2 * 8 + lane / 4, word = 0;
    for (u32 f = 0; f < PER && row < a.rows; f++) {
        u32 unit = chunk * 8 + load * PER + f;
        if (unit >= a.units) break;
        const u32 *from = a.codes + ((u64)row * a.units + unit) * C::WORDS;
        word |= C::four(from, lane % 4 + i / 2 * 4, nullptr) << (C::WORDS * f);
    }
    return word;
}

extern "C" __global__ void retile(RetileArgs a) {
    wait_for_launch();
    let_next_launch();
    u32 chunks = (a.units + 7) / 8, tile = blockIdx.x, groups = 8 >> a.shift;
    u64 to = (u64)(a.first + tile * a.apart) * chunks;
    for (u32 n = threadIdx.x; n < chunks * a.bits * 128; n += blockDim.x) {
        u32 chunk = n / (a.bits * 128), at = n % (a.bits * 128), word = 0;
        switch (a.bits) {
        case 1: word = tile_word<Bits1>(a, tile, chunk, at); break;
        case 2: word = tile_word<Bits2>(a, tile, chunk, at); break;
        case 4: word = tile_word<Bits4>(a, tile, chunk, at); break;
        case 8: word = tile_word<Bits8>(a, tile, chunk, at); break;
        }
        a.tiles[to * a.bits * 128 + n] = word;
    }
    for (u32 n = threadIdx.x; n < chunks * groups * 16; n += blockDim.x) {
        u32 chunk = n / (groups * 16), row = tile * 16 + n / groups % 16, group = chunk * groups + n % groups;
        bool has = row < a.rows && group << a.shift < a.units;
        u32 both = has ? a.scales[(u64)row * a.scale_words + group / 2] : 0;
        a.tile_scales[to * groups * 16 + n] = (unsigned short)(both >> (16 * (group % 2)));
    }
}

#define TILES(BITS)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(ONE_THREADS, 2) tiles_one_##BITS(TilesArgs a) {                       \
        tiles_one<BITS, false>(a);                                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONE_THREADS, 2) tiles_norm_##BITS(TilesArgs a) {                      \
        tiles_one<BITS, true>(a);                                                                                      \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(MANY_THREADS, 2) tiles_few_##BITS(TilesArgs a) {                      \
        tiles_many<BITS, 8>(a);                                                                                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(MANY_THREADS, 2) tiles_many_##BITS(TilesArgs a) {                     \
        tiles_many<BITS, 32>(a);                                                                                       \
    }

TILES(1)
TILES(2)
TILES(4)
TILES(8)
