// Pairs that are rotated together: 2 i with 2 i + 1.

fn pair_first(i: u32) -> u32 {
    return 2u * i;
}

fn pair_second(i: u32) -> u32 {
    return 2u * i + 1u;
}
