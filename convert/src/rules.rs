//! The format that each tensor gets.

use crate::error::ConvertError;
use crate::file_type::{FileType, Int8, Layers};
use crate::names::is_router;
use crate::tensor::Tensor;
use shohin_core::Format;
use std::str::FromStr;

/// A format for the tensors whose names match a pattern, in which `*` stands for any text: `blk.*.attn_v.weight=q6_k`;
/// `.weight` may be left out. `int8_channel` and `int8_tensor` are formats, too.
///
/// ```
/// use shohin_convert::TensorRule;
/// let rule: TensorRule = "blk.*.attn_v=q6_k".parse()?;
/// assert!(rule.matches("blk.10.attn_v.weight") && !rule.matches("blk.1.attn_k.weight"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRule {
    pattern: String,
    format: Format,
    int8: Option<Int8>,
}

impl TensorRule {
    /// `format` for the tensors whose names match `pattern`.
    pub fn new(pattern: impl Into<String>, format: Format) -> Self {
        TensorRule { pattern: pattern.into(), format, int8: None }
    }

    pub(crate) fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Whether it is for the tensor `name`.
    pub fn matches(&self, name: &str) -> bool {
        let short = name.strip_suffix(".weight").unwrap_or(name);
        [name, short].into_iter().any(|name| wildmatch::WildMatch::new(&self.pattern).matches(name))
    }

    /// The format of the tensors.
    pub fn format(&self) -> Format {
        self.format
    }

    /// What shares a scale in them, if blocks of Q8_0 do.
    pub fn int8(&self) -> Option<Int8> {
        self.int8
    }
}

impl FromStr for TensorRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, format) =
            text.split_once('=').ok_or("expected PATTERN=TYPE, such as blk.*.attn_v=q6_k")?;
        let (format, int8) = format_named(format)?;
        Ok(TensorRule { pattern: pattern.into(), format, int8 })
    }
}

/// The format with this name, in any case, and what shares a scale in it.
fn format_named(name: &str) -> Result<(Format, Option<Int8>), String> {
    let int8 = Int8::ALL.map(|int8| (int8.name(), (Format::Q8_0, Some(int8))));
    let formats = || Format::ALL.into_iter().filter(|format| format.has_quantizer());
    let all = || formats().map(|format| (format.name(), (format, None))).chain(int8);
    let found = all().find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, format)| format).ok_or_else(|| {
        let names: Vec<_> = all().map(|(known, _)| known.to_lowercase()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// The format of a tensor, and what shares a scale in it: those of the last rule for it, or of `file_type`, or the format
/// that keeps every bit; F32 for norms. Like llama.cpp, rows that are not whole blocks of 256 get a format with blocks of 32 and at least as many bits, or F16.
pub(crate) fn choose(
    tensor: &Tensor<'_>,
    file_type: Option<FileType>,
    rules: &[TensorRule],
    model: &Layers,
) -> Result<(Format, Option<Int8>), ConvertError> {
    let rule = rules.iter().rev().find(|rule| rule.matches(&tensor.name));
    let (wanted, int8) = match rule {
        // Readers expect norms so, and a pattern may match them with the matrices.
        _ if tensor.vector => return Ok((Format::F32, None)),
        Some(rule) => (rule.format, rule.int8),
        None if is_router(&tensor.name) => return Ok((Format::F32, None)),
        None => match file_type {
            Some(file_type) => (file_type.format(&tensor.name, model), file_type.int8()),
            None => return Ok((tensor.exact()?, None)),
        },
    };
    let fits = |format: Format| tensor.cols.is_multiple_of(format.block());
    let smaller = match wanted {
        _ if fits(wanted) => return Ok((wanted, int8)),
        Format::Q2K | Format::Q3K | Format::Tq1_0 | Format::Tq2_0 => Format::Q4_0,
        Format::Iq4Xs => Format::Iq4Nl,
        Format::Q4K => Format::Q5_0,
        Format::Q5K => Format::Q5_1,
        Format::Q6K | Format::Q8K => Format::Q8_0,
        other => {
            let fitting: Vec<_> = Format::ALL
                .into_iter()
                .filter(|format| fits(*format) && format.has_quantizer())
                .map(|format| format.name().to_lowercase())
                .collect();
            let problem = format!(
                "has rows of {} weights, but {} has blocks of {}, expected one of {}",
                tensor.cols,
                other.name(),
                other.block(),
                fitting.join(", ")
            );
            return Err(ConvertError::tensor(&tensor.name, problem));
        }
    };
    Ok((if fits(smaller) { smaller } else { Format::F16 }, None))
}
