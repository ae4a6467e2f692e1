// Reading packed weights: core's quant/packed.rs has the layout.

// A packed matrix `(rows, 32 units)` and how it is multiplied.
struct Matrix {
    Batch batch;
    uint rows;
    uint units;
    // Elements between the results of two rows of the batch.
    uint stride;
    uint output;
    uint scale_words;
    uint scale_kind;
    // Numbers per scale: 2 with a minimum.
    uint parts;
    // A group is 1 << group_shift units, or unit_groups of them are a unit.
    uint group_shift;
    uint unit_groups;
    uint block_groups;
    uint block_words;
    int factor;
    int offset;
    uint levels[4];
    // Of experts, whose matrices are one after the other: pairs of a row and an expert that read the same row of the input.
    // 0 without.
    uint share;
};

// Codes of 1 bit: weight 4 s + b of a unit is bit 8 b + s of its word.
struct Bits1 {
    typedef uint Unit;
    static Unit load(device const uint* codes, uint unit) { return codes[unit]; }
    // The codes of weights 4 s .. 4 s + 4, one per byte.
    static uint four(Unit unit, uint s, constant Matrix&) { return (unit >> s) & 0x01010101u; }
};

// Codes of 2 bits: bits 8 b + 2 (s % 4) of word s / 4.
struct Bits2 {
    typedef uint2 Unit;
    static Unit load(device const uint* codes, uint unit) { return ((device const uint2*)codes)[unit]; }
    static uint four(Unit unit, uint s, constant Matrix&) { return (unit[s >> 2] >> (2 * (s & 3))) & 0x03030303u; }
};

// Codes of 4 bits: bits 8 b + 4 (s % 2) of word s / 2.
struct Bits4 {
    typedef uint4 Unit;
    static Unit load(device const uint* codes, uint unit) { return ((device const uint4*)codes)[unit]; }
    static uint four(Unit unit, uint s, constant Matrix&) { return (unit[s >> 1] >> (4 * (s & 1))) & 0x0f0f0f0fu; }
};

// Codes of 6 bits: low halves as with 4 bits, then high pairs as with 2 bits.
struct Bits6 {
    struct Unit {
        uint2 first;
        uint2 second;
        uint2 high;
    };
    static Unit load(device const uint* codes, uint unit) {
        device const uint2* at = (device const uint2*)codes + 3 * unit;
        Unit all;
        all.first = at[0];
        all.second = at[1];
        all.high = at[2];
        return all;
    }
    static uint four(Unit unit, uint s, constant Matrix&) {
        uint word = s < 4 ? unit.first[(s >> 1) & 1] : unit.second[(s >> 1) & 1];
        uint low = (word >> (4 * (s & 1))) & 0x0f0f0f0fu;
        return low | (((unit.high[s >> 2] >> (2 * (s & 3))) & 0x03030303u) << 4);
    }
};

// Codes of 8 bits: byte b of word s.
struct Bits8 {
    struct Unit {
        uint4 low;
        uint4 high;
    };
    static Unit load(device const uint* codes, uint unit) {
        device const uint4* at = (device const uint4*)codes + 2 * unit;
        Unit all;
        all.low = at[0];
        all.high = at[1];
        return all;
    }
    static uint four(Unit unit, uint s, constant Matrix&) { return s < 4 ? unit.low[s & 3] : unit.high[s & 3]; }
};

// Codes of 4 bits that are indices of 16 signed bytes.
struct Levels {
    typedef uint4 Unit;
    static Unit load(device const uint* codes, uint unit) { return ((device const uint4*)codes)[unit]; }
    static uint level(uint index, constant Matrix& m) { return (m.levels[index >> 2] >> (8 * (index & 3))) & 255u; }
    static uint four(Unit unit, uint s, constant Matrix& m) {
        uint word = unit[s >> 1] >> (4 * (s & 1));
        return level(word & 15u, m) | (level((word >> 8) & 15u, m) << 8) | (level((word >> 16) & 15u, m) << 16)
            | (level((word >> 24) & 15u, m) << 24);
    }
};

// Floats: weights 4 s .. 4 s + 4 of a unit.
struct Float16 {
    static float4 four(device const uint* codes, uint unit, uint s) {
        uint2 word = ((device const uint2*)codes)[unit * 8 + s];
        float2 low = halves(word.x);
        float2 high = halves(word.y);
        return float_four(low.x, low.y, high.x, high.y);
    }
};

struct BFloat16 {
    static float4 four(device const uint* codes, uint unit, uint s) {
        uint2 word = ((device const uint2*)codes)[unit * 8 + s];
        return float_four(as_type<float>(word.x << 16), as_type<float>(word.x & 0xffff0000u),
                          as_type<float>(word.y << 16), as_type<float>(word.y & 0xffff0000u));
    }
};

struct Float32 {
    static float4 four(device const uint* codes, uint unit, uint s) {
        return ((device const float4*)codes)[unit * 8 + s];
    }
};

// The integers of four codes.
static inline float4 values(uint word, constant Matrix& m) {
    return float_four(float(byte_of(word, 0) * m.factor - m.offset), float(byte_of(word, 1) * m.factor - m.offset),
                      float(byte_of(word, 2) * m.factor - m.offset), float(byte_of(word, 3) * m.factor - m.offset));
}

// Scales that are 16-bit floats d for whole units: w = integer d. What most models use.
struct Plain {
    static bool half_units(constant Matrix&) { return false; }
    static float2 at(device const uint* scales, uint row, uint unit, constant Matrix& m) {
        uint i = unit >> m.group_shift;
        float2 pair = halves(scales[row * m.scale_words + i / 2]);
        return float_two((i & 1u) == 1u ? pair.y : pair.x, 0.0f);
    }
};

// Any scales, and minima: w = integer d + m. Units are counted in groups: unit_groups per unit.
struct General {
    static bool half_units(constant Matrix& m) { return m.unit_groups == 2; }
    static float2 at(device const uint* scales, uint row, uint group, constant Matrix& m) {
        uint i = group >> m.group_shift;
        device const uint* from = scales + row * m.scale_words;
        if (m.scale_kind == SCALES_BLOCK) {
            device const uint* block = from + i / m.block_groups * m.block_words;
            uint number = i % m.block_groups * m.parts;
            uint bytes = block[m.parts + number / 4] >> (8 * (number % 4));
            float d = as_type<float>(block[0]) * float(byte_of(bytes, 0));
            float least = m.parts == 2 ? as_type<float>(block[1]) * float(byte_of(bytes, 1)) : 0.0f;
            return float_two(d, least);
        }
        if (m.scale_kind == SCALES_F32) {
            uint number = i * m.parts;
            return float_two(as_type<float>(from[number]), m.parts == 2 ? as_type<float>(from[number + 1]) : 0.0f);
        }
        uint number = i * m.parts;
        float2 pair = halves(from[number / 2]);
        return float_two((number & 1u) == 1u ? pair.y : pair.x, m.parts == 2 ? pair.y : 0.0f);
    }
};
