//! What is read out of a batch.

use shohin_core::device::{Output, Readout, unordered};
use shohin_core::model::Program;
use shohin_core::rows::ReadoutGroup;

/// Bytes of what is read out of a row: floats, or pairs of an ordered logit, see [`unordered`], and its token.
pub fn row_bytes(program: &Program, readout: Readout) -> usize {
    match readout {
        Readout::Logits => 4 * program.vocab(),
        Readout::Best => 8,
        Readout::Top(count) => 8 * count,
        Readout::Hidden => 4 * program.tensor(program.output).cols,
    }
}

/// Memory for what is read out.
#[derive(Default)]
pub(crate) struct Kept {
    bytes: Vec<u8>,
    hidden: Vec<f32>,
    chosen: Vec<(u32, f32)>,
    /// Of the last row, if its logits were read out.
    pub(crate) logits: Vec<f32>,
}

/// Passes on what is read out of a batch.
pub struct Outputs<'o> {
    pub(crate) kept: &'o mut Kept,
    pub(crate) sink: &'o mut dyn FnMut(usize, usize, Output<'_>),
}

impl core::fmt::Debug for Outputs<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Outputs").finish_non_exhaustive()
    }
}

impl Outputs<'_> {
    /// Memory for what is read out of the rows of `group`.
    pub(crate) fn bytes(&mut self, program: &Program, group: &ReadoutGroup) -> &mut [u8] {
        self.kept.bytes.resize(row_bytes(program, group.readout) * group.rows.len(), 0);
        &mut self.kept.bytes
    }

    /// Passes on what was read into [`Outputs::bytes`].
    pub(crate) fn pass(&mut self, group: &ReadoutGroup) {
        let Kept { bytes, hidden, chosen, logits } = &mut *self.kept;
        let row = bytes.len() / group.rows.len().max(1);
        for (wanted, bytes) in group.rows.iter().zip(bytes.chunks_exact(row.max(1))) {
            let words = bytes.as_chunks::<4>().0;
            let floats = words.iter().map(|&word| f32::from_le_bytes(word));
            logits.clear();
            let output = match group.readout {
                Readout::Logits => {
                    logits.extend(floats);
                    Output::Logits(logits)
                }
                Readout::Hidden => {
                    hidden.clear();
                    hidden.extend(floats);
                    Output::Hidden(hidden)
                }
                Readout::Best | Readout::Top(_) => {
                    let pairs = words.as_chunks::<2>().0.iter().map(|pair| pair.map(u32::from_le_bytes));
                    // 0 is no choice: every logit is NaN or -inf.
                    let found = pairs.filter(|[bits, _]| *bits != 0);
                    chosen.clear();
                    chosen.extend(found.map(|[bits, token]| (token, unordered(bits))));
                    Output::Top(chosen)
                }
            };
            (self.sink)(wanted.sequence, wanted.run_row, output);
        }
    }
}
