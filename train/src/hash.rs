//! Numbers that follow from a counter.
#![forbid(unsafe_code)]

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014) of `z + 0x9e3779b97f4a7c15`.
pub(crate) fn hash(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_splitmix64_with_the_seed_0() {
        assert_eq!([hash(0), hash(0x9e37_79b9_7f4a_7c15)], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }
}
