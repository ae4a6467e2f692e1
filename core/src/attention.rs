//! The earlier tokens that a token attends to.
#![forbid(unsafe_code)]

use core::fmt;
use core::num::NonZeroU32;
use core::ops::Range;
use core::str::FromStr;

use crate::error::{Error, Name};

/// Positions per block of the block patterns.
pub const PATTERN_BLOCK: usize = 64;

/// The earlier positions of its sequence that a token attends to, besides its own. Positions that no token of a batch
/// attends to are not read.
///
/// Positions are those in the cache. Block patterns count blocks of [`PATTERN_BLOCK`] positions: a token of block `a`
/// attends to the positions of block `b <= a` up to its own if the pattern has the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum AttentionPattern {
    /// All: what models are trained with, unless they say otherwise.
    #[default]
    Full,
    /// The last `window` positions, its own included, and the first `sinks` of the sequence: sliding-window attention
    /// (Beltagy et al. 2020, where the first positions are "global"), and StreamingLLM's attention sinks (Xiao et al.
    /// 2023).
    Window {
        /// Positions; at least 1.
        window: u32,
        /// Positions at the start.
        sinks: u32,
    },
    /// Every `step`-th of the last `blocks * step` blocks: dilated sliding windows (Beltagy et al. 2020). `a - b` is a
    /// multiple of `step`, and less than `blocks * step`.
    Dilated {
        /// Blocks; at least 1.
        blocks: u32,
        /// Distance between them; at least 1.
        step: u32,
    },
    /// The last `blocks` blocks, and every `stride`-th before them (Child et al. 2019): `a - b` is less than `blocks` or
    /// a multiple of `stride`.
    Strided {
        /// Blocks; at least 1.
        blocks: u32,
        /// Distance between those before; at least 1.
        stride: u32,
    },
    /// The last `blocks` blocks, the first `global`, and `random` others (Zaheer et al. 2020). The random ones follow from
    /// `a` alone, and some may coincide.
    BigBird {
        /// Blocks; at least 1.
        blocks: u32,
        /// Blocks at the start.
        global: u32,
        /// Random blocks.
        random: u32,
    },
}

/// Maximum number of random blocks of [`AttentionPattern::BigBird`].
pub const MAX_RANDOM: u32 = 64;

impl AttentionPattern {
    /// # Errors
    /// [`Error::Option`] for a number outside its range.
    pub fn check(&self) -> Result<(), Error> {
        let expected = if cfg!(feature = "variants") {
            "at least 1 position, block, step or stride, and at most 64 random blocks"
        } else {
            "full attention in a build without the feature `variants`"
        };
        self.is_valid().then_some(()).ok_or(error!(Option {
            what: "attention pattern",
            found: 0.0,
            expected
        }))
    }

    const fn is_valid(&self) -> bool {
        match *self {
            AttentionPattern::Full => true,
            _ if !cfg!(feature = "variants") => false,
            AttentionPattern::Window { window, .. } => window > 0,
            AttentionPattern::Dilated { blocks, step: apart }
            | AttentionPattern::Strided { blocks, stride: apart } => blocks > 0 && apart > 0,
            AttentionPattern::BigBird { blocks, random, .. } => blocks > 0 && random <= MAX_RANDOM,
        }
    }

    /// This pattern in a layer whose tokens see the last `window` positions only, if there is a window. Of two windows the smaller
    /// counts, without the first positions that only one of them shows.
    ///
    /// # Errors
    /// [`Error::Option`] for block patterns in such a layer.
    pub fn within(self, window: Option<NonZeroU32>) -> Result<Self, Error> {
        let Some(of_layer) = window.map(NonZeroU32::get) else { return Ok(self) };
        match self {
            AttentionPattern::Full => Ok(AttentionPattern::Window { window: of_layer, sinks: 0 }),
            AttentionPattern::Window { window, .. } if window >= of_layer => {
                Ok(AttentionPattern::Window { window: of_layer, sinks: 0 })
            }
            AttentionPattern::Window { window, .. } => Ok(AttentionPattern::Window { window, sinks: 0 }),
            AttentionPattern::Dilated { .. }
            | AttentionPattern::Strided { .. }
            | AttentionPattern::BigBird { .. } => Err(error!(Option {
                what: "attention pattern",
                found: 0.0,
                expected: "full or window:POSITIONS for a model with windows of its own",
            })),
        }
    }

    /// Which pattern, and its numbers in the order of its fields, for kernels: 0 is [`AttentionPattern::Full`], and so on.
    pub const fn words(self) -> [u32; 4] {
        match self {
            AttentionPattern::Full => [0; 4],
            AttentionPattern::Window { window, sinks } => [1, window, sinks, 0],
            AttentionPattern::Dilated { blocks, step } => [2, blocks, step, 0],
            AttentionPattern::Strided { blocks, stride } => [3, blocks, stride, 0],
            AttentionPattern::BigBird { blocks, global, random } => [4, blocks, global, random],
        }
    }

    /// Whether a token at position `query` attends to position `key`.
    pub fn sees(&self, query: usize, key: usize) -> bool {
        if key > query {
            return false;
        }
        match *self {
            AttentionPattern::Full => true,
            AttentionPattern::Window { window, sinks } => {
                query - key < window as usize || key < sinks as usize
            }
            _ => self.sees_block(query / PATTERN_BLOCK, key / PATTERN_BLOCK),
        }
    }

    /// The positions of block `tile` up to position `query` that a token there does not attend to, relative to the start
    /// of the block.
    pub(crate) fn hidden(&self, query: usize, tile: usize) -> Range<usize> {
        match *self {
            AttentionPattern::Full => 0..0,
            // Refused by `check`.
            _ if !cfg!(feature = "variants") => 0..0,
            AttentionPattern::Window { window, sinks } => {
                let start = tile * PATTERN_BLOCK;
                let end = (query + 1).saturating_sub(window as usize).saturating_sub(start);
                (sinks as usize).saturating_sub(start)..end.min(PATTERN_BLOCK)
            }
            _ if self.sees_block(query / PATTERN_BLOCK, tile) => 0..0,
            _ => 0..PATTERN_BLOCK,
        }
    }

    /// Whether tokens of block `a` attend to block `b`, which does not come after it.
    fn sees_block(&self, a: usize, b: usize) -> bool {
        let back = a - b;
        match *self {
            AttentionPattern::Full | AttentionPattern::Window { .. } => true,
            AttentionPattern::Dilated { blocks, step } => {
                let (blocks, step) = (blocks as usize, step as usize);
                back.is_multiple_of(step) && back / step < blocks
            }
            AttentionPattern::Strided { blocks, stride } => {
                back < blocks as usize || back.is_multiple_of(stride as usize)
            }
            AttentionPattern::BigBird { blocks, global, random } => {
                back < blocks as usize
                    || b < global as usize
                    || (0..random).any(|i| random_block(a as u32, i, blocks, global) == Some(b as u32))
            }
        }
    }
}

/// Random block `i` of block `a`: among those after the first `global` and before the last `blocks`, if there are any.
fn random_block(a: u32, i: u32, blocks: u32, global: u32) -> Option<u32> {
    let choices = (a + 1).checked_sub(blocks)?.checked_sub(global).filter(|n| *n > 0)?;
    // The finalizer of MurmurHash3, whose bits all depend on all bits of its input.
    let mut hash = a.wrapping_mul(MAX_RANDOM).wrapping_add(i);
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^= hash >> 16;
    Some(global + hash % choices)
}

impl fmt::Display for AttentionPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttentionPattern::Full => f.write_str("full"),
            AttentionPattern::Window { window, sinks: 0 } => write!(f, "window:{window}"),
            AttentionPattern::Window { window, sinks } => write!(f, "window:{window}:{sinks}"),
            AttentionPattern::Dilated { blocks, step } => write!(f, "dilated:{blocks}:{step}"),
            AttentionPattern::Strided { blocks, stride } => write!(f, "strided:{blocks}:{stride}"),
            AttentionPattern::BigBird { blocks, global, random } => {
                write!(f, "bigbird:{blocks}:{global}:{random}")
            }
        }
    }
}

/// Parses `full`, `window:POSITIONS`, `window:POSITIONS:SINKS`, `dilated:BLOCKS:STEP`, `strided:BLOCKS:STRIDE` or
/// `bigbird:BLOCKS:GLOBAL:RANDOM`.
impl FromStr for AttentionPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut words = text.split(':');
        let name = words.next();
        let mut numbers = heapless::Vec::<u32, 3>::new();
        let all = words.all(|word| word.parse().is_ok_and(|n| numbers.push(n).is_ok()));
        let pattern = match (name, &numbers[..]) {
            _ if !all => None,
            (Some("full"), []) => Some(AttentionPattern::Full),
            (Some("window"), &[window]) => Some(AttentionPattern::Window { window, sinks: 0 }),
            (Some("window"), &[window, sinks]) => Some(AttentionPattern::Window { window, sinks }),
            (Some("dilated"), &[blocks, step]) => Some(AttentionPattern::Dilated { blocks, step }),
            (Some("strided"), &[blocks, stride]) => Some(AttentionPattern::Strided { blocks, stride }),
            (Some("bigbird"), &[blocks, global, random]) => {
                Some(AttentionPattern::BigBird { blocks, global, random })
            }
            _ => None,
        };
        pattern.filter(AttentionPattern::is_valid).ok_or(error!(Unsupported {
            key: Name::new("attention"),
            found: Name::new(text),
            expected: "full, window:POSITIONS, window:POSITIONS:SINKS, dilated:BLOCKS:STEP, strided:BLOCKS:STRIDE or \
                       bigbird:BLOCKS:GLOBAL:RANDOM, of at least 1 position, block, step or stride and at most 64 random",
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    #[test]
    fn patterns_are_parsed_and_printed() {
        for text in ["full", "window:1024", "window:256:4", "dilated:8:2", "strided:4:8", "bigbird:3:1:2"] {
            assert_eq!(text.parse::<AttentionPattern>().unwrap().to_string(), text);
        }
        for text in ["", "Full", "full:1", "window", "window:0", "window:1:2:3", "dilated:1", "dilated:0:1"]
            .into_iter()
            .chain([
                "strided:1:0",
                "bigbird:1:1",
                "bigbird:1:1:65",
                "window:-1",
                "window:4294967296",
                "window:1:",
            ])
        {
            let error = text.parse::<AttentionPattern>().unwrap_err();
            assert!(error.to_string().contains("window:POSITIONS"), "{text}: {error}");
        }
    }

    #[test]
    fn hidden_positions_are_those_not_seen() {
        for text in ["full", "window:1", "window:100", "window:70:4", "window:10:200", "dilated:3:2"]
            .into_iter()
            .chain(["strided:2:3", "bigbird:2:1:2", "bigbird:1:0:0", "window:4294967295:4294967295"])
        {
            let pattern: AttentionPattern = text.parse().unwrap();
            for query in (0..1500).step_by(7) {
                for key in 0..=query {
                    let (tile, at) = (key / PATTERN_BLOCK, key % PATTERN_BLOCK);
                    let hidden = pattern.hidden(query, tile).contains(&at);
                    assert_eq!(hidden, !pattern.sees(query, key), "{text} {query} {key}");
                }
                assert!(pattern.sees(query, query) && !pattern.sees(query, query + 1), "{text}");
            }
        }
    }

    /// The blocks that the papers' figures show.
    #[test]
    fn blocks_are_those_of_the_papers() {
        let seen = |text: &str, a: usize| -> Vec<usize> {
            let pattern: AttentionPattern = text.parse().unwrap();
            (0..=a).filter(|&b| pattern.sees(a * PATTERN_BLOCK, b * PATTERN_BLOCK)).collect()
        };
        assert_eq!(seen("dilated:3:2", 9), [5, 7, 9]);
        assert_eq!(seen("dilated:3:2", 2), [0, 2]);
        assert_eq!(seen("strided:2:4", 9), [1, 5, 8, 9]);
        assert_eq!(seen("bigbird:2:1:0", 9), [0, 8, 9]);
        for a in 4..200 {
            let blocks = seen("bigbird:2:1:3", a);
            assert!((4..=6).contains(&blocks.len()) && blocks[0] == 0 && blocks.ends_with(&[a - 1, a]));
        }
        // Random blocks spread over all that there are.
        let all: alloc::collections::BTreeSet<_> =
            (400..500).flat_map(|a| seen("bigbird:1:0:4", a)).collect();
        assert!(all.len() > 250, "{}", all.len());
    }
}
