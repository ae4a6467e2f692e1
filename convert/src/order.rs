//! The order of rows and columns in a folder and in a GGUF file.

use crate::error::ConvertError;
use shohin_core::model::Recurrence;
use shohin_core::model::hugging_face::RowOrder;

/// How the rows of heads of this many rows change places: GGUF files of Llama have rows `i` and `i + head / 2` side by
/// side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Same,
    /// As GGUF has them, from the order of a folder.
    SideBySide(usize),
    /// Back to the order of a folder.
    Halves(usize),
    /// Heads of values in turns, from those side by side.
    InTurns(ValueHeads),
    /// Back.
    Grouped(ValueHeads),
}

impl Order {
    /// The row of the source that becomes row `row`.
    pub(crate) fn source(self, row: usize) -> usize {
        match self {
            Order::Same => row,
            Order::SideBySide(head) => row / head * head + row % 2 * (head / 2) + row % head / 2,
            Order::Halves(head) => {
                let (first, i) = (row / head * head, row % head);
                first + i % (head / 2) * 2 + i / (head / 2)
            }
            Order::InTurns(heads) => heads.source(row, heads.keys, heads.each),
            Order::Grouped(heads) => heads.source(row, heads.each, heads.keys),
        }
    }
}

/// Heads of values, each of `rows` rows, from row `first` on: `each` for each of `keys` heads of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueHeads {
    first: usize,
    rows: usize,
    keys: usize,
    each: usize,
}

impl ValueHeads {
    /// The row of the source, which has `outer` groups of `inner` heads, that becomes row `row` of as many turns.
    fn source(self, row: usize, outer: usize, inner: usize) -> usize {
        let Some(at) = row.checked_sub(self.first) else { return row };
        let (head, within) = (at / self.rows, at % self.rows);
        self.first + (head % outer * inner + head / outer) * self.rows + within
    }
}

/// What the order of rows depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadCounts {
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) recurrence: Recurrence,
}

/// From a folder to a GGUF file, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToGguf,
    ToFolder,
}

/// The order of the rows and that of the numbers in a row of the tensor `name` of a GGUF file, of this shape. Vectors have one row.
pub(crate) fn orders(
    order: RowOrder,
    name: &str,
    [rows, cols]: [usize; 2],
    counts: &HeadCounts,
    direction: Direction,
) -> Result<(Order, Order), ConvertError> {
    let in_columns = rows == 1 || order == RowOrder::ValueHeadColumns;
    let len = if in_columns { cols } else { rows };
    let wrong = |heads: usize| {
        let name = name.strip_suffix(".weight").unwrap_or(name);
        let what = if in_columns { "columns" } else { "rows" };
        ConvertError::tensor(name, format!("has {len} {what} for {heads} heads"))
    };
    let interleaved = |heads: u32| {
        let heads = heads as usize;
        if heads == 0 || !len.is_multiple_of(2 * heads) {
            return Err(wrong(heads));
        }
        Ok(match direction {
            Direction::ToGguf => Order::SideBySide(len / heads),
            Direction::ToFolder => Order::Halves(len / heads),
        })
    };
    let values = |first: usize| {
        let Recurrence { key_heads: keys, value_heads, .. } = counts.recurrence;
        let each = value_heads.checked_div(keys).unwrap_or(0);
        let rows = len.checked_sub(first).filter(|_| each > 0 && each * keys == value_heads);
        let rows = rows.filter(|rows| rows.is_multiple_of(value_heads)).ok_or_else(|| wrong(value_heads))?;
        let heads = ValueHeads { first, rows: (rows / value_heads).max(1), keys, each };
        Ok::<_, ConvertError>(match direction {
            Direction::ToGguf => Order::InTurns(heads),
            Direction::ToFolder => Order::Grouped(heads),
        })
    };
    let found = match order {
        RowOrder::Same => Order::Same,
        RowOrder::InterleavedQueries => interleaved(counts.heads)?,
        RowOrder::InterleavedKeys => interleaved(counts.kv_heads)?,
        RowOrder::ValueHeads | RowOrder::ValueHeadColumns => values(0)?,
        RowOrder::MixedValueHeads => {
            let Recurrence { key_heads, head_dim, .. } = counts.recurrence;
            values(2 * key_heads.saturating_mul(head_dim))?
        }
    };
    Ok(if in_columns { (Order::Same, found) } else { (found, Order::Same) })
}
