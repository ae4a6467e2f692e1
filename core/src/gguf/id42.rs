//! The meaning of an id that several formats have.
#![forbid(unsafe_code)]

#[cfg(doc)]
use crate::quant::Format;

/// The meaning of tensor type 42. Three layouts with that id are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Id42 {
    /// Detected from the tensor offsets, the file's size, `general.quantization_version` and finally the
    /// weights; refused if ambiguous.
    #[default]
    Auto,
    /// 64 weights in 18 bytes, scale first: mainline llama.cpp, [`Format::Q2_0`].
    Group64,
    /// 128 weights in 34 bytes, scale first: older PrismML files, [`Format::Pq2_0`].
    Group128,
    /// 128 weights in 34 bytes, scale last: oxibonsai's converter, [`Format::Tq2_0G128`].
    CodesFirst,
}

impl Id42 {
    /// Every meaning.
    pub const ALL: [Id42; 4] = [Id42::Auto, Id42::Group64, Id42::Group128, Id42::CodesFirst];

    /// The name in options: `auto`, `64`, `128` or `codes-first`.
    pub const fn name(self) -> &'static str {
        match self {
            Id42::Auto => "auto",
            Id42::Group64 => "64",
            Id42::Group128 => "128",
            Id42::CodesFirst => "codes-first",
        }
    }

    /// The meaning called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|id42| id42.name() == name)
    }
}
