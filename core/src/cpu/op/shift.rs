//! Dropping the oldest tokens of a full cache, with attention sinks.
//!
//! Models put much attention on the first tokens of a text, whatever their content, and fail without them. So
//! the first `keep` positions stay in place, the oldest `drop` after them are removed, and all later ones
//! move to the front by `drop` (StreamingLLM: Xiao et al. 2023, arXiv 2309.17453, section 3.2, which also
//! counts positions within the cache).
//!
//! A cached key is `m R(p) k`, where `R(p)` rotates pair `i` by `p s_i` ([`Rope`](crate::model::rope::Rope)).
//! Rotations compose, so `R(-drop) m R(p) k = m R(p - drop) k`: the key that its token would have at the new
//! position. The angle is computed in f64. Values do not depend on their position and are moved unchanged.
//! Beyond the first layer, both still depend on the forgotten tokens that the model saw when it computed
//! them.
//!
//! Rotated keys are rounded to the cache's format once more: by at most 2^-11 of each element with f16, by
//! half a step with q8 (1/254 of the largest element of its group of 32) and q4 (1/14). If everything after
//! `keep` is halved each time, as [`crate::generate::Overflow::Shift`] does, no key is rotated twice.
#![forbid(unsafe_code)]

use core::ops::Range;

use super::rope::{rotate, rotate_interleaved};
use crate::cache::{KvCodec, KvStorage};
use crate::cpu::simd::SimdOp;
use crate::hadamard::rotate_head;
use crate::model::program::RopePairing;

/// Moves keys and values of a layer to earlier positions.
pub(crate) struct Shift<'a, 'b, C> {
    pub(crate) cache: &'a mut KvStorage<'b, C>,
    pub(crate) layer: usize,
    /// Positions that move.
    pub(crate) from: Range<usize>,
    /// How far.
    pub(crate) by: usize,
    /// Which elements of a key are rotated together.
    pub(crate) pairing: RopePairing,
    /// The rotation by the distance of their tokens, both `(pairs)`, of the first elements of a head.
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
    /// Scratch memory, `(head_dim)`.
    pub(crate) key: &'a mut [f32],
}

impl<C: KvCodec> SimdOp for Shift<'_, '_, C> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let heads = self.cache.shape().kv_heads;
        for head in self.layer * heads..(self.layer + 1) * heads {
            for position in self.from.clone() {
                self.cache.key(head, position, self.key);
                if C::ROTATED {
                    rotate_head(self.key);
                }
                let rotated = &mut self.key[..2 * self.cos.len()];
                match self.pairing {
                    RopePairing::Neox => rotate(rotated, self.cos, self.sin),
                    RopePairing::Interleaved => rotate_interleaved(rotated, self.cos, self.sin),
                }
                if C::ROTATED {
                    rotate_head(self.key);
                }
                self.cache.set_key(head, position - self.by, self.key);
                self.cache.copy_value(head, position, position - self.by);
            }
        }
    }
}
