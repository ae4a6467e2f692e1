//! Storage of keys and values on the GPU: a row for each cache format.

use crate::shader::part;
use shohin_core::KvFormat;

/// The storage of a cache format in the layout of [`FlatKv`](shohin_core::cache::FlatKv).
#[derive(Debug)]
pub(crate) struct KvStorage {
    /// Writes a key or value.
    pub(crate) put: &'static str,
    /// Reads four elements.
    pub(crate) get: &'static str,
    /// The same on devices with 16-bit floats.
    pub(crate) get_native: &'static str,
}

static F32: KvStorage =
    KvStorage { put: part!("kv_put_f32"), get: part!("kv_get_f32"), get_native: part!("kv_get_f32") };

static F16: KvStorage =
    KvStorage { put: part!("kv_put_f16"), get: part!("kv_get_f16"), get_native: part!("kv_get_f16_native") };

/// A part for integers of this many bits.
macro_rules! integers {
    ($bits:literal, $part:literal) => {
        concat!("const KV_BITS = ", $bits, "u;\n", part!($part))
    };
}

static Q8: KvStorage = KvStorage {
    put: integers!(8, "kv_put_integers"),
    get: integers!(8, "kv_get_integers"),
    get_native: integers!(8, "kv_get_integers"),
};

static Q4: KvStorage = KvStorage {
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
    put: floats!(3, "kv_put_f8"),
    get: floats!(3, "kv_get_f8"),
    get_native: floats!(3, "kv_get_f8"),
};

static FP8_E5M2: KvStorage = KvStorage {
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
}
