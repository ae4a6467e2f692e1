//! Value parsers shared by several commands.

use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;

/// Parses a count.
pub(crate) fn whole<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "expected a smaller number",
        _ => "expected a whole number, 0 or more",
    })
}

/// Parses `512MiB`, `4GiB`, `3.5 GB` or a plain number of bytes.
pub(crate) fn byte_count<T: TryFrom<u64>>(text: &str) -> Result<T, &'static str> {
    const WRONG: &str = "expected a number of bytes, such as 4GiB, 512MiB or 6e9";
    let text = text.trim();
    let unit = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(unit.len());
    let scale = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(WRONG),
    };
    let number: f64 = number.trim().parse().map_err(|_| WRONG)?;
    let bytes = number * scale;
    if !(bytes.is_finite() && bytes >= 0.0 && bytes.fract() == 0.0) {
        return Err(WRONG);
    }
    const LARGE: &str = "expected fewer bytes: no memory of this machine can be as large";
    let bytes = Some(bytes).filter(|bytes| *bytes < u64::MAX as f64).ok_or(LARGE)?;
    T::try_from(bytes as u64).map_err(|_| LARGE)
}

#[cfg(test)]
mod tests {
    use super::{byte_count, whole};

    #[test]
    fn counts_are_whole() {
        assert_eq!(whole(&u64::MAX.to_string()), Ok(u64::MAX));
        assert!(whole::<u64>("18446744073709551616").is_err_and(|problem| problem.contains("smaller")));
        assert!(whole::<u64>("-1").is_err_and(|problem| problem.contains("0 or more")));
    }

    #[test]
    fn bytes_have_units() {
        for (text, want) in [
            ("0", 0),
            ("4096", 4096),
            ("6e9", 6_000_000_000),
            ("4GiB", 4 << 30),
            ("512M", 512 << 20),
            ("3.5 GB", 3_500_000_000),
        ] {
            assert_eq!(byte_count::<u64>(text), Ok(want), "{text}");
        }
        assert!(byte_count::<u8>("256").is_err());
        for wrong in ["", "GiB", "-1", "0.5", "1e30", "4 gigs", "nan", "inf"] {
            assert!(byte_count::<u64>(wrong).is_err(), "{wrong}");
        }
    }
}
