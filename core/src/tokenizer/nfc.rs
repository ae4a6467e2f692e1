//! Unicode normalization form C (UAX #15, Unicode 16.0), which Hugging Face's Qwen tokenizers apply to
//! text first and llama.cpp does not. 24 kB of tables.
#![forbid(unsafe_code)]

use crate::sort;
use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

use super::nfc_tables::{COMBINING, COMPOSE, COMPOSE_WIDE, DECOMPOSE, DECOMPOSE_WIDE};

/// `text` in normalization form C: the same `Å` however it was typed. Takes `n log n` steps.
pub fn nfc(text: &str) -> Cow<'_, str> {
    // Nothing below U+0300, which is CC 80 in UTF-8, changes.
    if text.bytes().all(|b| b < 0xCC) {
        return Cow::Borrowed(text);
    }
    let mut chars: Vec<(char, u8)> = Vec::with_capacity(text.len() / 2);
    for c in text.chars() {
        decompose(c, &mut chars);
    }
    for marks in chars.chunk_by_mut(|a, b| a.1 != 0 && b.1 != 0) {
        if marks.len() > 1 {
            let class = |i: u32| marks.get(i as usize).map(|(_, class)| (*class, i));
            let order = sort::sorted(marks.len(), &|a, b| class(a).cmp(&class(b)));
            let sorted: Vec<(char, u8)> =
                order.into_iter().filter_map(|i| marks.get(i as usize).copied()).collect();
            marks.copy_from_slice(&sorted);
        }
    }
    compose(&mut chars);
    let out: String = chars.into_iter().map(|(c, _)| c).collect();
    Cow::Owned(out)
}

const HANGUL: u32 = 0xAC00; // syllables L V T, composed by arithmetic
const L: u32 = 0x1100;
const V: u32 = 0x1161;
const T: u32 = 0x11A7;
const VS: u32 = 21;
const TS: u32 = 28;

/// The canonical combining class of `c`.
fn combining(c: char) -> u8 {
    let after = COMBINING.partition_point(|run| run >> 8 <= c as u32);
    after.checked_sub(1).and_then(|i| COMBINING.get(i)).map_or(0, |run| *run as u8)
}

fn char(code: u32) -> char {
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER) // not reached: codes come from tables
}

/// Appends the full canonical decomposition of `c` with the classes.
fn decompose(c: char, out: &mut Vec<(char, u8)>) {
    let syllable = (c as u32).wrapping_sub(HANGUL);
    if syllable < 11_172 {
        out.push((char(L + syllable / (VS * TS)), 0));
        out.push((char(V + syllable / TS % VS), 0));
        if !syllable.is_multiple_of(TS) {
            out.push((char(T + syllable % TS), 0));
        }
        return;
    }
    // Only the first of two decomposes further, at most three times.
    let mut seconds = ['\0'; 4];
    let (mut first, mut count) = (c, 0);
    while let Some((head, second)) = decomposition(first) {
        first = head;
        if let (Some(second), Some(free)) = (second, seconds.get_mut(count)) {
            *free = second;
            count += 1;
        }
    }
    out.push((first, combining(first)));
    for second in seconds.iter().take(count).rev() {
        out.push((*second, combining(*second)));
    }
}

/// One step of decomposition.
fn decomposition(c: char) -> Option<(char, Option<char>)> {
    let code = c as u32;
    let (first, second) = match u16::try_from(code) {
        Ok(code) if let Some([_, a, b]) = find(&DECOMPOSE, |row: &[u16; 3]| row[0].cmp(&code)) => {
            (u32::from(*a), u32::from(*b))
        }
        _ => {
            let [_, a, b] = find(&DECOMPOSE_WIDE, |row: &[u32; 3]| row[0].cmp(&code))?;
            (*a, *b)
        }
    };
    Some((char(first), (second != 0).then(|| char(second))))
}

/// The row of a table of triples for which `order` is equal.
fn find<T>(table: &[T], order: impl FnMut(&[T; 3]) -> core::cmp::Ordering) -> Option<&[T; 3]> {
    let rows = table.as_chunks::<3>().0;
    rows.get(rows.binary_search_by(order).ok()?)
}

/// The character composed of `a` and `b`.
fn composition(a: char, b: char) -> Option<char> {
    let (a, b) = (a as u32, b as u32);
    let (l, v) = (a.wrapping_sub(L), b.wrapping_sub(V));
    if l < 19 && v < VS {
        return Some(char(HANGUL + (l * VS + v) * TS));
    }
    let (lv, t) = (a.wrapping_sub(HANGUL), b.wrapping_sub(T));
    if lv < 11_172 && lv.is_multiple_of(TS) && (1..TS).contains(&t) {
        return Some(char(a + t));
    }
    let code = match (u16::try_from(a), u16::try_from(b)) {
        (Ok(a), Ok(b)) => u32::from(find(&COMPOSE, |row: &[u16; 3]| (row[0], row[1]).cmp(&(a, b)))?[2]),
        _ => find(&COMPOSE_WIDE, |row: &[u32; 3]| (row[0], row[1]).cmp(&(a, b)))?[2],
    };
    Some(char(code))
}

/// Composes in place: each mark with the last starter, unless a mark of the same or a higher class is between
/// them.
fn compose(chars: &mut Vec<(char, u8)>) {
    let mut kept = 0;
    let mut starter = None;
    let mut last_class = 0;
    for i in 0..chars.len() {
        let Some((c, class)) = chars.get(i).copied() else { break };
        if let Some(s) = starter
            && (kept == s + 1 || last_class < class)
            && let Some((base, _)) = chars.get_mut(s)
            && let Some(both) = composition(*base, c)
        {
            *base = both;
            continue;
        }
        if class == 0 {
            starter = Some(kept);
        }
        last_class = class;
        if let Some(free) = chars.get_mut(kept) {
            *free = (c, class);
        }
        kept += 1;
    }
    chars.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn every_code_point_normalizes_as_python_says() {
        // Printed by tests/oracle/unicode_tables.py: FNV-1a over NFC(before + c + after) for all c.
        for (before, after, expected) in [
            ("", "", 0x23fc43766d7c2eb9_u64),
            ("a", "\u{301}", 0x5748283698680eb8),
            ("", "\u{345}\u{323}\u{301}", 0x504c239a82a3b818),
            ("\u{1100}", "\u{11a8}", 0xc57cf341ced3c4f9),
        ] {
            let mut hash = 0xcbf2_9ce4_8422_2325_u64;
            for c in '\0'..=char::MAX {
                for b in nfc(&format!("{before}{c}{after}")).bytes() {
                    hash = (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
                }
            }
            assert_eq!(hash, expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn plain_text_is_not_copied() {
        assert!(matches!(nfc("naïve Ünïcödé ñ"), Cow::Borrowed(_)));
        assert_eq!(nfc("e\u{301}"), "é");
    }

    #[test]
    fn a_million_marks_are_sorted_in_time() {
        let text: String = "a".chars().chain((0..1_000_000).map(|i| ['\u{301}', '\u{323}'][i % 2])).collect();
        assert_eq!(nfc(&text).chars().count(), 1_000_000); // only the first dot below composes
    }
}
