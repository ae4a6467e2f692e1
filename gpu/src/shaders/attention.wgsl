// Causal attention over the positions of a pattern, with an online softmax: one workgroup takes a key-value head and ROWS_TILE
// rows (token and query head) that look at it, and goes through WORKGROUP positions at a time.

// (rows of the batch, Q_STRIDE): queries (HEADS, HEAD_DIM) from Q_FIRST on.
@group(0) @binding(4) var<storage, read> q: array<f32>;

// Query heads that share a key-value head.
const SHARE = HEADS / KV_HEADS;
// Rows by four.
const FOURS = (ROWS_TILE + 3u) / 4u;
// Lanes that go along a head while values are added, and how many positions go on at the same time.
const PARTS = WORKGROUP / QUADS;

// (ROWS_TILE, QUADS): queries, at last results.
var<workgroup> rows: array<vec4<f32>, ROWS_TILE * QUADS>;
// (FOURS, WORKGROUP): softmax weights of the positions.
var<workgroup> weights: array<vec4<f32>, FOURS * WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn attention(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let kv_head = group.x;
    let tokens = sequence[0];
    let start = sequence[1];
    let first_row = group.y * ROWS_TILE;
    // Rows after the last one repeat it; their results are not stored.
    let last_row = tokens * SHARE - 1u;
    for (var i = lane.index; i < ROWS_TILE * QUADS; i += WORKGROUP) {
        let row = min(first_row + i / QUADS, last_row);
        let head = Q_FIRST + (kv_head * SHARE + row % SHARE) * HEAD_DIM;
        let at = (sequence[2] + row / SHARE) * Q_STRIDE + head + i % QUADS * 4u;
        rows[i] = vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * SCORE_SCALE;
    }
    workgroupBarrier();

    // Positions that each row sees.
    var sees = array<vec4<u32>, FOURS>();
    for (var f = 0u; f < FOURS; f++) {
        let row = min(vec4(first_row + 4u * f) + vec4(0u, 1u, 2u, 3u), vec4(last_row));
        sees[f] = vec4(start + 1u) + row / vec4(SHARE);
    }
    let most = start + 1u + min(first_row + ROWS_TILE - 1u, last_row) / SHARE;
    // This workgroup's share of them.
    let begin = min(group.z * span(most), most);
    let end = min(begin + span(most), most);

    var highest = array<vec4<f32>, FOURS>();
    var sum = array<vec4<f32>, FOURS>();
    var total = array<vec4<f32>, ROWS_TILE>();
    for (var f = 0u; f < FOURS; f++) {
        highest[f] = vec4(LOWEST);
    }
    let quad = lane.index % QUADS;
    let part = lane.index / QUADS;
    let first_query = start + first_row / SHARE;
    for (var tile = begin; tile < end; tile += WORKGROUP) {
        if pattern_skips(first_query, most - 1u, tile) {
            continue;
        }
        let position = tile + lane.index;
        // A position beyond the end reads one that is there, and gets no weight.
        let key = kv_head * CAPACITY + min(position, end - 1u);
        var score = array<vec4<f32>, FOURS>();
        for (var i = 0u; i < QUADS; i++) {
            let k = key4(key, i);
            for (var row = 0u; row < ROWS_TILE; row++) {
                score[row / 4u][row % 4u] += dot(rows[row * QUADS + i], k);
            }
        }
        var decay = array<vec4<f32>, FOURS>();
        for (var f = 0u; f < FOURS; f++) {
            let seen = (vec4(position) < min(sees[f], vec4(end))) & pattern_sees(sees[f] - vec4(1u), position);
            let s = select(vec4(LOWEST), score[f], seen);
            let top = max(highest[f], group_max(s, lane));
            let weight = select(vec4(0.0), exp(s - top), seen);
            decay[f] = exp(highest[f] - top);
            sum[f] = sum[f] * decay[f] + group_sum(weight, lane);
            highest[f] = top;
            weights[f * WORKGROUP + lane.index] = weight;
        }
        workgroupBarrier();
        for (var row = 0u; row < ROWS_TILE; row++) {
            total[row] *= decay[row / 4u][row % 4u];
        }
        let count = min(WORKGROUP, end - tile);
        if part < PARTS {
            for (var i = part; i < count; i += PARTS) {
                let v = value4(kv_head * CAPACITY + tile + i, quad);
                for (var row = 0u; row < ROWS_TILE; row++) {
                    total[row] += weights[row / 4u * WORKGROUP + i][row % 4u] * v;
                }
            }
        }
        workgroupBarrier();
    }

    // The parts are added up one after the other.
    for (var p = 0u; p < PARTS; p++) {
        if part == p {
            for (var row = 0u; row < ROWS_TILE; row++) {
                let before = select(rows[row * QUADS + quad], vec4(0.0), p == 0u);
                rows[row * QUADS + quad] = before + total[row];
            }
        }
        workgroupBarrier();
    }
    finish(lane.index, group, first_row, last_row, &highest, &sum);
}
