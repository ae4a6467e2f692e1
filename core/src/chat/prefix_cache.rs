//! A cache of values by their prefixes: sessions of ended replies, found by the tokens that they begin with.
#![forbid(unsafe_code)]

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;

/// Values by the tokens that they hold, none of which are the beginning of those of another one.
///
/// Tokens are in lexicographic order, so that those with the longest beginning in common with others are next to where
/// these would be.
#[derive(Debug)]
pub(super) struct PrefixCache<T> {
    entries: BTreeMap<Vec<u32>, Entry<T>>,
    uses: u64,
}

#[derive(Debug)]
struct Entry<T> {
    value: T,
    /// When it was used last.
    used: u64,
}

impl<T> Default for PrefixCache<T> {
    fn default() -> Self {
        PrefixCache { entries: BTreeMap::new(), uses: 0 }
    }
}

/// How many tokens both begin with.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<T> PrefixCache<T> {
    /// Keeps a value. One with a beginning of its tokens is replaced; one that begins with its tokens stays in its place.
    pub(super) fn insert(&mut self, tokens: Vec<u32>, value: T) {
        if tokens.is_empty() {
            return;
        }
        // An entry between the two would begin with the shorter one, too.
        let before =
            self.entries.range::<[u32], _>((Bound::Unbounded, Bound::Excluded(&*tokens))).next_back();
        if let Some((shorter, _)) = before.filter(|(held, _)| tokens.starts_with(held)) {
            let shorter = shorter.clone();
            self.entries.remove(&shorter);
        }
        self.uses += 1;
        let from = self.entries.range_mut::<[u32], _>((Bound::Included(&*tokens), Bound::Unbounded)).next();
        if let Some((_, longer)) = from.filter(|(held, _)| held.starts_with(&tokens)) {
            longer.used = self.uses;
            return;
        }
        self.entries.insert(tokens, Entry { value, used: self.uses });
    }

    /// The tokens of a value with the most tokens in common with `tokens`, from the first on, and their number.
    pub(super) fn longest(&self, tokens: &[u32]) -> Option<(&[u32], usize)> {
        let before = self.entries.range::<[u32], _>((Bound::Unbounded, Bound::Excluded(tokens))).next_back();
        let from = self.entries.range::<[u32], _>((Bound::Included(tokens), Bound::Unbounded)).next();
        let both = before.into_iter().chain(from).map(|(held, _)| (&**held, common(held, tokens)));
        both.max_by_key(|(_, common)| *common).filter(|(_, common)| *common > 0)
    }

    /// The value with these tokens, which is now the one used last.
    pub(super) fn get_mut(&mut self, tokens: &[u32]) -> Option<&mut T> {
        self.uses += 1;
        let entry = self.entries.get_mut(tokens)?;
        entry.used = self.uses;
        Some(&mut entry.value)
    }

    /// Takes the value with these tokens out.
    pub(super) fn take(&mut self, tokens: &[u32]) -> Option<T> {
        self.entries.remove(tokens).map(|entry| entry.value)
    }

    /// Takes the value that was not used for longest out.
    pub(super) fn evict(&mut self) -> Option<T> {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used)?.0.clone();
        self.take(&oldest)
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tokens of all values.
    pub(super) fn tokens(&self) -> usize {
        self.entries.keys().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_is_found_and_the_oldest_goes_first() {
        let mut state = 1_u32;
        let mut random = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % n
        };
        let (mut cache, mut model): (PrefixCache<u32>, Vec<(Vec<u32>, u32)>) =
            (PrefixCache::default(), Vec::new());
        for value in 0..3000 {
            let len = 1 + random(7);
            let tokens: Vec<u32> = (0..len).map(|_| random(3)).collect();
            let want = model.iter().map(|(held, _)| common(held, &tokens)).max().unwrap_or(0);
            let found = cache.longest(&tokens).map(|(held, found)| (held.to_vec(), found));
            assert_eq!(found.as_ref().map_or(0, |(_, found)| *found), want);
            if let Some((held, found)) = found {
                assert_eq!(common(&held, &tokens), found);
                let at = model.iter().position(|(tokens, _)| *tokens == held).unwrap();
                let entry = model.remove(at);
                assert_eq!(cache.get_mut(&held), Some(&mut { entry.1 }));
                model.push(entry);
            }
            if random(4) == 0 && cache.len() > 5 {
                assert_eq!(cache.evict(), Some(model.remove(0).1));
            }
            model.retain(|(held, _)| !tokens.starts_with(held) || *held == tokens);
            // Of several, the first in their order.
            let longer = model.iter().enumerate().filter(|(_, (held, _))| held.starts_with(&tokens));
            match longer.min_by_key(|(_, (held, _))| held.clone()).map(|(at, _)| at) {
                Some(longer) => {
                    let longer = model.remove(longer);
                    model.push(longer);
                }
                None => model.push((tokens.clone(), value)),
            }
            cache.insert(tokens, value);
            assert_eq!(
                (cache.len(), cache.tokens()),
                (model.len(), model.iter().map(|(t, _)| t.len()).sum())
            );
        }
        cache.insert(Vec::new(), 0);
        assert!(cache.longest(&[]).is_none() && cache.longest(&[9]).is_none());
        while let Some(value) = cache.evict() {
            assert_eq!(value, model.remove(0).1);
        }
        assert!(model.is_empty());
    }
}
