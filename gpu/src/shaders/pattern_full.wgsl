// The positions that a row sees: all up to its own.

fn pattern_sees(queries: vec4<u32>, key: u32) -> vec4<bool> {
    return vec4(true);
}

fn pattern_skips(first_query: u32, last_query: u32, tile: u32) -> bool {
    return false;
}
