// The rows of one sequence in a batch: how many, the position of the first, the first row of the batch, and the positions
// in each part of flash decoding.
@group(0) @binding(6) var<storage, read> sequence: array<u32, 4>;
