// The rows of the batch that are read out: how many, then which.

@group(0) @binding(5) var<storage, read> read_out: array<u32>;

fn source_row(row: u32) -> u32 {
    return read_out[1u + row];
}
