//! Shaders that read matrices in the layouts of [`PackedFormat`].

use crate::shader::{Source, part};
use shohin_core::quant::packed::{BLOCK, Codes, PackedFormat, Scales};

/// Declares `codes` and unpacks them.
const fn unpack(codes: Codes) -> &'static str {
    match codes {
        Codes::Bits1 => part!("weights_1bit"),
        Codes::Bits2 | Codes::Bits2Unsigned => part!("weights_2bit"),
        Codes::Bits4 | Codes::Bits4Unsigned => part!("weights_4bit"),
        Codes::Bits6 => part!("weights_6bit"),
        Codes::Bits8 => part!("weights_8bit"),
        Codes::Iq4 | Codes::Fp4 | Codes::Iq1 | Codes::Iq2 | Codes::Iq3Xxs | Codes::Iq3S => {
            part!("weights_levels")
        }
        Codes::F16 => part!("weights_f16"),
        Codes::Bf16 => part!("weights_bf16"),
        Codes::F32 => part!("weights_f32"),
    }
}

/// Appends the code that reads a matrix of this layout.
pub(crate) fn shader(packed: PackedFormat, source: Source, rows: usize, cols: usize) -> Source {
    let facts = packed.codes.facts();
    let source = source.u32("UNITS", cols / 32).u32("ROWS", rows);
    if packed.is_float() {
        return source.part(unpack(packed.codes));
    }
    let mut source = source
        .u32("GROUP_SHIFT", packed.group.div_ceil(32).ilog2() as usize)
        .u32("SCALE_WORDS", packed.scale_words(cols))
        .u32("UNIT_GROUPS", 1 + usize::from(packed.has_half_units()))
        .i32("CODE_FACTOR", facts.factor)
        .i32("CODE_OFFSET", facts.offset);
    if let Some(levels) = facts.levels {
        source = source.bytes("LEVELS", levels.map(i8::cast_unsigned));
    }
    let source = source.part(unpack(packed.codes));
    let source = if packed.scales == Scales::F16 && !packed.minima && !packed.has_half_units() {
        source.part(part!("scale"))
    } else {
        let source = source.u32("SCALE_PARTS", packed.parts());
        let source = match packed.scales {
            Scales::F16 => source.part(part!("scale_f16")),
            Scales::F32 => source.part(part!("scale_f32")),
            Scales::Block => source
                .u32("BLOCK_GROUPS", BLOCK / packed.group)
                .u32("BLOCK_WORDS", packed.block_words())
                .part(part!("scale_block")),
        };
        source.part(part!("scale_min"))
    };
    source.part(part!("weights"))
}
