//! Weights that are multiplied in place of their masters.
#![forbid(unsafe_code)]
use shohin_core::cpu::Isa;
/// Weights that share a scale.
pub const GROUP: usize = 128;
/// Ternary or 1-bit weights in groups of [`GROUP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fake {
    /// -1, 0 or 1 times the scale.
    Ternary,
    /// -1 or 1 times the scale.
    OneBit,
}
/// Ternary or 1-bit weights in groups of [`GROUP`].
pub fn fake(_: Isa, kind: Fake, weights: &[f32], out: &mut [f32]) {
    for (w, out) in weights.chunks(GROUP).zip(out.chunks_mut(GROUP)) {
        let mut sums = [0.0f32; 16];
        for w in w.chunks_exact(16) {
            for i in 0..16 {
                sums[i] += w[i].abs();
            }
        }
        let d = half::bf16::from_f32(sums.iter().sum::<f32>() / w.len() as f32).to_f32();
        let over = d.max(1e-12);
        for (w, out) in w.iter().zip(out) {
            *out = match kind {
                Fake::Ternary => d * libm::rintf(w / over).clamp(-1.0, 1.0),
                Fake::OneBit => {
                    if *w >= 0.0 {
                        d
                    } else {
                        -d
                    }
                }
            };
        }
    }
}

impl Fake {
    /// The format that holds what is multiplied.
    pub fn format(self) -> shohin_core::Format {
        match self {
            Fake::Ternary => shohin_core::Format::Pq2_0,
            Fake::OneBit => shohin_core::Format::Q1_0,
        }
    }
}

/// P
pub fn pack(isa: Isa, kind: Fake, weights: &[f32], bytes: &mut [u8]) -> crate::Result<()> {
    let mut out = alloc::vec![0.0; weights.len()];
    fake(isa, kind, weights, &mut out);
    shohin_core::quant::pack(kind.format(), &out, bytes)?;
    Ok(())
}
