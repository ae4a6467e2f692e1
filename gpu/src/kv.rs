//! Storage of keys and values on the GPU: a row for each cache format.

use crate::shader::part;
use shohin_core::KvFormat;
use std::ops::Range;

/// Layout of keys and values of a cache format in a layer's buffers: codes `(kv_heads, capacity, head_dim)`,
/// then, if the format has them, scales `(kv_heads, capacity, head_dim / 32)` as f32.
#[derive(Debug)]
pub(crate) struct KvStorage {
    /// Bits per element.
    bits: usize,
    /// Whether groups of 32 elements share a scale.
    scales: bool,
    /// Writes a key or value.
    pub(crate) put: &'static str,
    /// Reads four elements.
    pub(crate) get: &'static str,
    /// The same on devices with 16-bit floats.
    pub(crate) get_native: &'static str,
}

static F32: KvStorage = KvStorage {
    bits: 32,
    scales: false,
    put: part!("kv_put_f32"),
    get: part!("kv_get_f32"),
    get_native: part!("kv_get_f32"),
};

static F16: KvStorage = KvStorage {
    bits: 16,
    scales: false,
    put: part!("kv_put_f16"),
    get: part!("kv_get_f16"),
    get_native: part!("kv_get_f16_native"),
};

/// A part for integers of this many bits.
macro_rules! integers {
    ($bits:literal, $part:literal) => {
        concat!("const KV_BITS = ", $bits, "u;\n", part!($part))
    };
}

static Q8: KvStorage = KvStorage {
    bits: 8,
    scales: true,
    put: integers!(8, "kv_put_integers"),
    get: integers!(8, "kv_get_integers"),
    get_native: integers!(8, "kv_get_integers"),
};

static Q4: KvStorage = KvStorage {
    bits: 4,
    scales: true,
    put: integers!(4, "kv_put_integers"),
    get: integers!(4, "kv_get_integers"),
    get_native: integers!(4, "kv_get_integers"),
};

/// A part for floats of 8 bits with this many bits of mantissa.
macro_rules! floats {
    ($mantissa:literal, $part:literal) => {
        concat!("const MANTISSA = ", $mantissa, "u;\n", part!($part))
    };
}

static FP8_E4M3: KvStorage = KvStorage {
    bits: 8,
    scales: false,
    put: floats!(3, "kv_put_f8"),
    get: floats!(3, "kv_get_f8"),
    get_native: floats!(3, "kv_get_f8"),
};

static FP8_E5M2: KvStorage = KvStorage {
    bits: 8,
    scales: false,
    put: floats!(2, "kv_put_f8"),
    get: floats!(2, "kv_get_f8"),
    get_native: floats!(2, "kv_get_f8"),
};

impl KvStorage {
    /// The storage of a format.
    pub(crate) const fn of(format: KvFormat) -> &'static KvStorage {
        match format {
            KvFormat::F32 => &F32,
            KvFormat::F16 => &F16,
            KvFormat::Q8 => &Q8,
            KvFormat::Q4 => &Q4,
            KvFormat::Fp8E4M3 => &FP8_E4M3,
            KvFormat::Fp8E5M2 => &FP8_E5M2,
        }
    }

    /// Bytes of the codes of `numbers` elements, a multiple of 32.
    const fn code_bytes(&self, numbers: u64) -> u64 {
        numbers * self.bits as u64 / 8
    }

    /// Bytes of their scales.
    const fn scale_bytes(&self, numbers: u64) -> u64 {
        if self.scales { numbers / 8 } else { 0 }
    }

    /// Bytes of `numbers` elements, a multiple of 32.
    pub(crate) const fn bytes(&self, numbers: u64) -> u64 {
        self.code_bytes(numbers) + self.scale_bytes(numbers)
    }

    /// The ranges of the first `len` positions of each head in a buffer of keys or of values.
    pub(crate) fn spans(&self, kv_heads: u64, capacity: u64, head_dim: u64, len: u64) -> Vec<Range<u64>> {
        let (codes, scales) = (self.code_bytes(head_dim), self.scale_bytes(head_dim));
        let rows = |at: u64, row: u64| {
            (0..kv_heads).map(move |head| at + head * capacity * row..at + (head * capacity + len) * row)
        };
        let all = rows(0, codes).chain(rows(kv_heads * capacity * codes, scales));
        all.filter(|span| !span.is_empty()).collect()
    }
}
