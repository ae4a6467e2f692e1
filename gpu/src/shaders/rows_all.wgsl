// Every row of the batch.

fn source_row(row: u32) -> u32 {
    return row;
}
