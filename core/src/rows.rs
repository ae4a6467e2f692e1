//! Rows of a batch that a device computes together.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use crate::device::{Batch, Readout};
use crate::model::Program;

/// At most as many rows of a batch as the device computes together, possibly across several runs.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'b> {
    batch: &'b Batch<'b>,
    /// The run of the first row, and the index of that row within it.
    run: usize,
    run_row: usize,
    len: usize,
}

/// Rows of one sequence: tokens at consecutive positions.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'b> {
    /// Index of the run in the batch, and so of the sequence.
    pub sequence: usize,
    /// Index of the first row among those computed together.
    pub row: usize,
    /// Index of the first row within the run.
    pub run_row: usize,
    /// Their tokens.
    pub tokens: &'b [u32],
    /// Position of the first row.
    pub position: usize,
}

/// A row that is read out.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Index among the rows computed together.
    pub row: usize,
    /// Index of the run in the batch, and so of the sequence.
    pub sequence: usize,
    /// Index within the run.
    pub run_row: usize,
    /// The kind of output.
    pub readout: Readout,
}

impl<'b> Rows<'b> {
    /// Divides `batch` into parts of at most `most` rows. Each run has tokens, as
    /// [`check_run`](crate::device::check_run) makes sure.
    pub fn parts(batch: &'b Batch<'b>, most: usize) -> impl Iterator<Item = Rows<'b>> {
        let mut next = (0, 0);
        core::iter::from_fn(move || {
            let (run, run_row) = next;
            let mut left = most.max(1);
            while let Some(found) = batch.get(next.0)
                && left > 0
            {
                let taken = left.min(found.tokens.len() - next.1);
                left -= taken;
                next.1 += taken;
                if next.1 == found.tokens.len() {
                    next = (next.0 + 1, 0);
                }
            }
            let len = most.max(1) - left;
            (len > 0).then_some(Rows { batch, run, run_row, len })
        })
    }

    /// Number of rows.
    #[allow(clippy::len_without_is_empty, reason = "a part has rows")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The rows, sequence by sequence.
    pub fn segments(self) -> impl Iterator<Item = Segment<'b>> + Clone {
        let mut row = 0;
        let runs = self.batch.iter().enumerate().skip(self.run);
        runs.map_while(move |(sequence, run)| {
            let run_row = if sequence == self.run { self.run_row } else { 0 };
            let rest = &run.tokens[run_row..];
            let tokens = &rest[..rest.len().min(self.len - row)];
            let segment = Segment { sequence, row, run_row, tokens, position: run.position + run_row };
            row += tokens.len();
            (!tokens.is_empty()).then_some(segment)
        })
    }

    /// The rows that are read out, in order.
    pub fn wanted(self) -> impl Iterator<Item = Wanted> + Clone {
        self.segments().flat_map(move |segment| {
            let run = self.batch[segment.sequence];
            (0..segment.tokens.len()).filter_map(move |i| {
                let run_row = segment.run_row + i;
                let readout = run.wants.of(run_row, run.tokens.len())?;
                Some(Wanted { row: segment.row + i, sequence: segment.sequence, run_row, readout })
            })
        })
    }
}

/// Rows that are read out together, for devices that compute several outputs at once.
#[derive(Clone, Debug)]
pub struct ReadoutGroup {
    /// The kind of their outputs.
    pub readout: Readout,
    /// The rows, in order.
    pub rows: Vec<Wanted>,
}

impl Rows<'_> {
    /// The rows that are read out, in groups of one kind. `limit` returns the kind that the device reads out for
    /// another, and how many rows of it.
    pub fn groups(self, limit: impl Fn(Readout) -> (Readout, usize)) -> Vec<ReadoutGroup> {
        let mut groups: Vec<ReadoutGroup> = Vec::new();
        for wanted in self.wanted() {
            let (readout, most) = limit(wanted.readout);
            match groups.last_mut() {
                Some(last) if last.readout == readout && last.rows.len() < most => last.rows.push(wanted),
                _ => groups.push(ReadoutGroup { readout, rows: Vec::from([wanted]) }),
            }
        }
        groups
    }
}

/// The tokens of rows, and for each of [`Program::rotations`] the cosines and then the sines of their positions' angles,
/// `(rotations, rows, head_dim)`. Pairs that are not rotated have the angle 0.
pub fn tokens_and_angles(program: &Program, segments: &[Segment<'_>]) -> (Vec<u32>, Vec<f32>) {
    let d = program.heads.dim;
    let (mut tokens, mut angles) = (Vec::new(), Vec::new());
    for segment in segments {
        tokens.extend_from_slice(segment.tokens);
    }
    for rope in &program.rotations {
        for segment in segments {
            for position in segment.position..segment.position + segment.tokens.len() {
                let at = angles.len();
                angles.resize(at + d / 2, 1.0);
                angles.resize(at + d, 0.0);
                let (cos, sin) = angles[at..].split_at_mut(d / 2);
                rope.angles(position, cos, sin);
            }
        }
    }
    (tokens, angles)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Run, Wants};
    use alloc::vec::Vec;

    #[test]
    fn parts_cover_every_row_once_and_in_order() {
        let tokens: Vec<u32> = (0..10).collect();
        let run =
            |range: core::ops::Range<usize>, position, wants| Run { tokens: &tokens[range], position, wants };
        let batch = [
            run(0..4, 7, Wants::Last(Readout::Logits)),
            run(4..5, 0, Wants::Each(Readout::Best)),
            run(5..10, 2, Wants::Each(Readout::Hidden)),
        ];
        for most in 1..12 {
            let (mut seen, mut wanted) = (Vec::new(), Vec::new());
            for rows in Rows::parts(&batch, most) {
                assert!(rows.len() <= most);
                assert_eq!(rows.segments().map(|s| s.tokens.len()).sum::<usize>(), rows.len());
                for s in rows.segments() {
                    assert_eq!(s.position, batch[s.sequence].position + s.run_row);
                    seen.extend_from_slice(s.tokens);
                }
                wanted.extend(rows.wanted().map(|w| (w.sequence, w.run_row)));
            }
            assert_eq!(seen, tokens);
            assert_eq!(wanted, [(0, 3), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]);
        }
    }
}
