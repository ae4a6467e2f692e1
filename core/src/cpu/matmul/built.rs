//! Which classes of formats the build has.
#![forbid(unsafe_code)]

use crate::quant::WeightClass;

/// Whether the build has formats of these classes: kernels of other ones are left out.
#[allow(dead_code, reason = "not every target has a kernel that uses it")]
pub(super) const ONE_BIT: bool = WeightClass::OneBit.is_available();
#[allow(dead_code, reason = "as above")]
pub(super) const TERNARY: bool = WeightClass::Ternary.is_available();
