// The positions that a row sees: the last WINDOW and the first SINKS.

fn pattern_sees(queries: vec4<u32>, key: u32) -> vec4<bool> {
    return (queries - vec4(key) < vec4(WINDOW)) | vec4(key < SINKS);
}

// Whether no row from `first_query` on sees any of the WORKGROUP positions from `tile` on.
fn pattern_skips(first_query: u32, last_query: u32, tile: u32) -> bool {
    return tile >= SINKS && first_query - min(first_query, tile + WORKGROUP - 1u) >= WINDOW;
}
