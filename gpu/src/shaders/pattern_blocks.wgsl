// The blocks of positions that a row sees; see AttentionPattern.

fn sees_block(a: u32, b: u32) -> bool {
    let back = a - min(a, b);
    if PATTERN == DILATED {
        return back % BLOCKS_APART == 0u && back / BLOCKS_APART < BLOCKS;
    }
    if back < BLOCKS {
        return true;
    }
    if PATTERN == STRIDED {
        return back % BLOCKS_APART == 0u;
    }
    if b < BLOCKS_GLOBAL {
        return true;
    }
    if a + 1u <= BLOCKS + BLOCKS_GLOBAL {
        return false;
    }
    let choices = a + 1u - BLOCKS - BLOCKS_GLOBAL;
    for (var i = 0u; i < BLOCKS_RANDOM; i++) {
        var hash = a * MAX_RANDOM + i;
        hash = (hash ^ (hash >> 16u)) * 0x85ebca6bu;
        hash = (hash ^ (hash >> 13u)) * 0xc2b2ae35u;
        hash ^= hash >> 16u;
        if BLOCKS_GLOBAL + hash % choices == b {
            return true;
        }
    }
    return false;
}

fn pattern_sees(queries: vec4<u32>, key: u32) -> vec4<bool> {
    let a = queries / PATTERN_BLOCK;
    let b = key / PATTERN_BLOCK;
    return vec4(sees_block(a.x, b), sees_block(a.y, b), sees_block(a.z, b), sees_block(a.w, b));
}

// Whether no row from `first_query` to `last_query` sees any of the WORKGROUP positions from `tile` on.
fn pattern_skips(first_query: u32, last_query: u32, tile: u32) -> bool {
    for (var a = first_query / PATTERN_BLOCK; a <= last_query / PATTERN_BLOCK; a++) {
        for (var b = tile / PATTERN_BLOCK; b <= (tile + WORKGROUP - 1u) / PATTERN_BLOCK; b++) {
            if sees_block(a, b) {
                return false;
            }
        }
    }
    return true;
}
