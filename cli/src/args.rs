//! Value parsers shared by several commands.

/// Parses a count.
pub(crate) fn whole<T: std::str::FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "expected a whole number, 0 or more")
}
