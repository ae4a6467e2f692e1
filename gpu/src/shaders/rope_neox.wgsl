// Pairs that are rotated together: i with i + PAIRS.

fn pair_first(i: u32) -> u32 {
    return i;
}

fn pair_second(i: u32) -> u32 {
    return i + PAIRS;
}
