//! How attention of a batch is divided into blocks.

use shohin_core::model::Program;
use shohin_core::rows::Segment;

/// The most parts of the positions among which the attention of a single row is divided, and of as many single tokens together; a
/// warp has a lane for each.
pub(super) const PARTS: usize = 32;
const _: () = assert!(PARTS <= 32);

/// The most parts of a cluster, and positions of its parts while it grows, as in `attention.cu`. And query heads of a block.
const CLUSTER: usize = 8;
const PART_POSITIONS: usize = 64;
const QUERIES: usize = 2;

/// What the launches of a batch depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) rows: usize,
    /// Parts of the positions, which attention computes apart.
    pub(super) parts: usize,
    /// Parts that a cluster may have.
    pub(super) cluster_most: usize,
}

impl Shape {
    /// Of so many rows, whose positions are not divided.
    pub(super) fn whole(rows: usize) -> Shape {
        Shape { rows, parts: 1, cluster_most: 1 }
    }

    /// That of `segments`. A few single tokens need parts to keep a GPU of so many `processors` busy. With
    /// more blocks than these, or blocks without positions, every layer of a token takes longer.
    pub(super) fn of(segments: &[Segment<'_>], program: &Program, processors: usize) -> Shape {
        let rows: usize = segments.iter().map(|segment| segment.tokens.len()).sum();
        if rows > segments.len() {
            return Shape::whole(rows);
        }
        // Of all ranks of a tensor-parallel model, so that each has the parts of the whole one.
        let blocks = attention_blocks(program) * rows * program.ranks / program.stages.max(1);
        let longest = segments.iter().map(|segment| segment.position + 1).max().unwrap_or(1);
        let limit = PARTS / rows.clamp(1, PARTS);
        // Clusters on all multiprocessors would wait for one another.
        let most = 1 << (processors / 2 / blocks.max(1)).clamp(1, CLUSTER.min(limit)).ilog2();
        let limit = (processors / blocks.max(1)).clamp(most, limit) / most * most;
        Shape { rows, cluster_most: most, parts: parts_of(longest, most).min(limit) }
    }
}

/// Parts of a row with so many positions, of which a cluster may have `most`, as in `attention.cu`.
fn parts_of(positions: usize, most: usize) -> usize {
    let each = 2 * PART_POSITIONS * most;
    if positions < 2 * each {
        positions.div_ceil(PART_POSITIONS).next_power_of_two().min(most)
    } else {
        positions / each * most
    }
}

/// Blocks that the query heads of a row take.
pub(super) fn attention_blocks(program: &Program) -> usize {
    let heads = program.heads;
    heads.kv * (heads.query / heads.kv.max(1)).div_ceil(QUERIES)
}
