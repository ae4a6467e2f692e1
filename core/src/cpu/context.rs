//! What every operation of a batch has in common.
#![forbid(unsafe_code)]

use super::isa::Isa;
use super::repack::PackedMatrix;
use super::weights::CpuWeights;
use crate::collective::Collective;
use crate::error::{Error, Result};
use crate::model::weights::ModelBytes;
use crate::pool::{Pool, Serial};

/// The weights, and what computes with them.
pub(super) struct Context<'f, B> {
    pub(super) weights: &'f CpuWeights<B>,
    pub(super) isa: Isa,
    pub(super) pool: &'f dyn Pool,
    /// The other ranks of a split program.
    pub(super) collective: Option<&'f dyn Collective>,
    #[cfg(feature = "taps")]
    pub(super) tap: Option<&'f dyn super::tap::Tap>,
}

impl<B: ModelBytes> Context<'_, B> {
    /// The pool, or a serial one for so little work that waking another thread would take longer.
    pub(super) fn pool_for(&self, elements: usize) -> &dyn Pool {
        const FEW: usize = 1 << 18; // some ten microseconds
        if elements < FEW { &Serial } else { self.pool }
    }

    /// The same for products of `n` rows with `weights`: of a model of a few million parameters, one thread
    /// computes a token as fast as several, in less processor time.
    pub(super) fn pool_for_products<'w>(
        &self,
        n: usize,
        weights: impl IntoIterator<Item = PackedMatrix<'w>>,
    ) -> &dyn Pool {
        self.pool_for(n * weights.into_iter().map(|weight| weight.data().len()).sum::<usize>())
    }

    pub(super) fn group(&self) -> Result<&dyn Collective> {
        if !cfg!(feature = "serving") {
            return Err(error!(Device { problem: "this build lacks the feature `serving`" }));
        }
        self.collective.ok_or(error!(Device { problem: "a split program needs the other ranks" }))
    }
}
