//! Names of an adapter's factors.

/// Ends of the names of the factor that is multiplied first, and of the second.
pub(super) const A: &str = ".lora_a";
pub(super) const B: &str = ".lora_b";
