//! Schedules.
#![forbid(unsafe_code)]
/// S
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// C
    Constant,
}
/// P
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Plateau {}
impl Plateau {
    /// F
    pub fn factor(&self) -> f64 {
        1.0
    }
    /// O
    pub fn observe(&mut self, _: &Schedule, _: f64) {}
}
impl Schedule {
    /// R
    pub fn rate(&self, _: u64, base: f64, _: u64) -> f64 {
        base
    }
}

impl core::fmt::Display for Schedule {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{self:?}")
    }
}
