//! Expansion of base-3 digits to 2-bit codes.
#![forbid(unsafe_code)]

use crate::cpu::isa::Isa;
use crate::cpu::parallel::for_each_chunk;
use crate::cpu::simd::{SimdOp, dispatch};
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::quant::trits::{Ptq1_0, Tq1_0};
use crate::quant::{Block, Format, MAX_BLOCK};

/// Expands the blocks `from` of base-3 `format` to [`Format::expanded`] in `to`: the same weights. The work
/// is spread over `pool`.
///
/// # Errors
/// [`Error::Length`] if `from` is not whole blocks or `to` does not have as many; [`Error::Unsupported`] for
/// another format.
pub fn expand(isa: Isa, format: Format, from: &[u8], to: &mut [u8], pool: &dyn Pool) -> Result<()> {
    const JOB: usize = 1024; // blocks
    let Some(expanded) = format.expanded() else {
        return Err(error!(Unsupported {
            key: crate::Name::new("format to expand"),
            found: crate::Name::new(format.name()),
            expected: "PTQ1_0 or TQ1_0",
        }));
    };
    let (small, large) = (format.block_bytes(), expanded.block_bytes());
    if !from.len().is_multiple_of(small) || from.len() / small * large != to.len() {
        return Err(error!(Length {
            what: "expanded weights",
            expected: (from.len() / small * large) as u64,
            found: to.len() as u64,
        }));
    }
    for_each_chunk(pool, to, JOB * large, &|job, to| {
        let from = &from[job * JOB * small..][..to.len() / large * small];
        if matches!(expanded, Format::Tq2_0) {
            dispatch(isa, Expand::<Tq1_0, true> { from, to, digits: Default::default() });
        } else {
            dispatch(isa, Expand::<Ptq1_0, false> { from, to, digits: Default::default() });
        }
    });
    Ok(())
}

/// Converts blocks of `B` to blocks of codes: in four planes with the scale last, or in sequence after the
/// scale.
struct Expand<'a, B, const PLANES: bool> {
    from: &'a [u8],
    to: &'a mut [u8],
    digits: core::marker::PhantomData<B>,
}

impl<B: Block, const PLANES: bool> SimdOp for Expand<'_, B, PLANES> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut w = [0; MAX_BLOCK];
        let w = &mut w[..B::LEN];
        for (from, to) in self.from.chunks_exact(B::BYTES).zip(self.to.chunks_exact_mut(B::LEN / 4 + 2)) {
            B::integers(from, w);
            let scale = &from[B::BYTES - 2..];
            let code = |w: i8| (w + 1) as u8;
            if PLANES {
                let (codes, d) = to.split_at_mut(B::LEN / 4);
                for (codes, w) in codes.as_chunks_mut::<32>().0.iter_mut().zip(w.as_chunks::<128>().0) {
                    for (m, byte) in codes.iter_mut().enumerate() {
                        let plane = |l: usize| code(w[32 * l + m]) << (2 * l);
                        *byte = plane(0) | plane(1) | plane(2) | plane(3);
                    }
                }
                d.copy_from_slice(scale);
            } else {
                let (d, codes) = to.split_at_mut(2);
                d.copy_from_slice(scale);
                for (byte, w) in codes.iter_mut().zip(w.as_chunks::<4>().0) {
                    *byte = code(w[0]) | code(w[1]) << 2 | code(w[2]) << 4 | code(w[3]) << 6;
                }
            }
        }
    }
}
