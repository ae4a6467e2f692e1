//! The most likely token.
#![forbid(unsafe_code)]

use crate::error::{Error, Result};

/// Index of the largest of `logits`, the first among equals. NaN never wins; if all are -inf or NaN, that is an error.
pub fn argmax(logits: &[f32]) -> Result<u32> {
    let mut best = (f32::NEG_INFINITY, None);
    for (i, &x) in logits.iter().enumerate() {
        if x > best.0 {
            best = (x, Some(i as u32));
        }
    }
    best.1.ok_or(error!(Logits { problem: "every logit is NaN or -inf" }))
}

#[cfg(test)]
mod tests {
    use super::argmax;

    #[test]
    fn first_of_equals_and_never_nan() {
        assert_eq!(argmax(&[1.0, 3.0, f32::NAN, 3.0]), Ok(1));
        assert_eq!(argmax(&[f32::NEG_INFINITY, -5.0]), Ok(1));
        assert_eq!(argmax(&[f32::INFINITY, f32::MAX, f32::INFINITY]), Ok(0));
        assert_eq!(argmax(&[1.0, f32::MAX, f32::INFINITY]), Ok(2));
        assert!(argmax(&[f32::NAN, f32::NEG_INFINITY]).is_err());
        assert!(argmax(&[]).is_err());
    }
}
