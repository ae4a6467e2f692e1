//! The name that somebody probably meant.

/// The name that is most like `word`, if one is like it.
pub(crate) fn nearest<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    const LIKE: f64 = 0.8;
    let word = word.to_lowercase();
    let likeness = |name: &str| strsim::jaro_winkler(&word, &name.to_lowercase());
    let best = names.map(|name| (likeness(name), name)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(likeness, _)| *likeness > LIKE).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn names_that_are_like_no_other_are_not_guessed() {
        let names = || ["bonsai-1.7b", "bonsai-4b", "ternary-bonsai-1.7b"].into_iter();
        assert_eq!(nearest("Bonsai-1.7", names()), Some("bonsai-1.7b"));
        assert_eq!(nearest("bonsai1.7b", names()), Some("bonsai-1.7b"));
        assert_eq!(nearest("gpt", names()), None);
    }
}
