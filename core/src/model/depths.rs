//! Mixture of depths (Raposo et al. 2024, arXiv 2404.02258): blocks that only some tokens pass through.
//!
//! ```text
//! r = w . x
//! x += r (block(x) - x)   if r > 0; otherwise x stays as it is
//! ```
//! for a block with a router `w`, the tensor `blk.N.depth_router.weight` `(cols)`, and the residual stream `x` of a token
//! before it. `block(x) - x` is what attention and the feed-forward block add, equation 1 of the paper. Among the tokens
//! that take part, attention is causal: the others have no keys in this layer. Positions stay those in the sequence.
//!
//! In training the tokens with the largest `r` take part, which depends on later ones. To generate, the paper trains
//! `sigmoid(r)` to predict whether a token is among them (section 3.5, the first of two methods), so that a token takes
//! part where `sigmoid(r) > 1/2`. Devices compute that here for prompts, too: no result depends on later tokens.
#![forbid(unsafe_code)]

use alloc::vec::Vec;

use super::names::tensor_name;
use crate::gguf::Header;
use crate::limits::Limits;

/// The router's tensor in a block of the file, without `blk.N.` and `.weight`.
pub const ROUTER: &str = "depth_router";

/// The property of a model that devices without such blocks refuse, and how they say it.
pub const REFUSED: &str = "the number of blocks that tokens skip (blk.N.depth_router.weight)";

/// Which of the first `layers` have a router in the file, in order.
pub(super) fn routed(header: &Header<'_>, layers: usize) -> Vec<usize> {
    let has_router = |layer: &usize| header.tensor(&tensor_name(Some(*layer), ROUTER, ".weight")).is_some();
    (0..layers.min(Limits::DEFAULT.layers as usize)).filter(has_router).collect()
}
