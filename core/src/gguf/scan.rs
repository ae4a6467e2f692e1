//! The only parser of the header. It allocates nothing and can stop wherever the bytes end, so that the
//! whole-file and the streaming reader share its code.
#![forbid(unsafe_code)]

use super::metadata::Kind;
use crate::bytes::Cursor;
use crate::error::{Error, Name, Result};
use crate::limits::Limits;

/// Deepest nesting of arrays that any [`Limits`] can allow; it bounds the parser's stack.
const MAX_NESTING: usize = 8;

/// Bytes shown of a file that is not GGUF.
const SHOWN: u64 = 32;

/// An item of the header.
pub(super) enum Item<'b> {
    /// A key and the bytes of its value.
    Entry { key: &'b str, kind: Kind, raw: &'b [u8] },
    /// A row of the tensor table.
    Tensor { name: &'b str, dims: [u64; 4], n_dims: u8, id: u32, id_at: u64, offset: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Magic,
    Key,
    /// Inside a value whose key is at this range of bytes.
    Value {
        key: (usize, usize),
        kind: Kind,
        start: usize,
    },
    Tensor,
    Done,
}

/// An array being walked: its elements and the number left.
#[derive(Clone, Copy, Debug)]
struct Frame {
    kind: Kind,
    left: u64,
}

/// Walks a header item by item. Its state is only offsets, so the bytes may move and grow between calls.
#[derive(Clone, Debug)]
pub(super) struct Scanner {
    limits: Limits,
    /// Bytes of the whole file, of which only a part may have arrived.
    file_len: u64,
    at: usize,
    state: State,
    entries_left: u64,
    tensors_left: u64,
    frames: [Frame; MAX_NESTING],
    depth: usize,
    pub(super) entries: u64,
    pub(super) tensors: u64,
}

impl Scanner {
    pub(super) fn new(limits: Limits, file_len: u64) -> Scanner {
        Scanner {
            limits,
            file_len,
            at: 0,
            state: State::Magic,
            entries_left: 0,
            tensors_left: 0,
            frames: [Frame { kind: Kind::U8, left: 0 }; MAX_NESTING],
            depth: 0,
            entries: 0,
            tensors: 0,
        }
    }

    /// The end of the header, once [`Scanner::run`] has returned `true`.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Continues as far as `bytes` (the file from its start) reach. `Ok(true)`: the header is complete;
    /// `Ok(false)`: more bytes are needed, and the file has them.
    pub(super) fn run<'b>(
        &mut self,
        bytes: &'b [u8],
        visit: &mut dyn FnMut(Item<'b>) -> Result<()>,
    ) -> Result<bool> {
        while self.state != State::Done {
            let before = self.at as u64;
            let Some(rest) = bytes.get(self.at..) else { return Ok(false) };
            let mut cursor = Cursor::new(rest);
            match self.step(bytes, &mut cursor, visit) {
                Ok(()) => {}
                // The cursor only knows the bytes that have arrived. Not an error if the missing bytes arrive
                // later.
                Err(error @ Error::Truncated { .. }) => {
                    let at = before + cursor.position();
                    let have = self.file_len.saturating_sub(at);
                    return if cursor.asked() <= have { Ok(false) } else { Err(error.placed(at, have)) };
                }
                Err(other) => return Err(other),
            }
        }
        Ok(true)
    }

    /// Reads one item. On `Err` the scanner has not moved.
    fn step<'b>(
        &mut self,
        bytes: &'b [u8],
        c: &mut Cursor<'b>,
        visit: &mut dyn FnMut(Item<'b>) -> Result<()>,
    ) -> Result<()> {
        let base = self.at as u64;
        match self.state {
            State::Magic => {
                let magic = c.u32("file magic")?;
                if magic != u32::from_le_bytes(*b"GGUF") {
                    // The same number of bytes however the file is cut, so that the error is the same.
                    *c = Cursor::new(bytes);
                    let starts = Name::new(c.take(self.file_len.min(SHOWN), "file")?);
                    return Err(error!(NotGguf { starts }));
                }
                let version = c.u32("GGUF version")?;
                if !(2..=3).contains(&version) {
                    return Err(malformed("GGUF version", 4, u64::from(version), "2 or 3, little-endian"));
                }
                let tensors = c.u64("tensor count")?;
                cap("tensor count", tensors, self.limits.tensors)?;
                let entries = c.u64("metadata count")?;
                cap("metadata count", entries, self.limits.entries)?;
                (self.tensors, self.tensors_left) = (tensors, tensors);
                (self.entries, self.entries_left) = (entries, entries);
                self.state = State::Key;
            }
            State::Key => {
                if self.entries_left == 0 {
                    self.state = State::Tensor;
                    return Ok(());
                }
                let (key, at) = name(c, base, "metadata key", "length of a metadata key", self.limits.name)?;
                let kind = kind(c, base)?;
                self.state = State::Value {
                    key: (self.at + at, self.at + at + key.len()),
                    kind,
                    start: self.at + c.position() as usize,
                };
                self.entries_left -= 1;
                self.depth = 1;
                self.frames = [Frame { kind: Kind::U8, left: 0 }; MAX_NESTING];
                if let Some(frame) = self.frames.first_mut() {
                    *frame = Frame { kind, left: 1 };
                }
            }
            State::Value { key, kind, start } => {
                let Some(frame) = self.depth.checked_sub(1).and_then(|d| self.frames.get(d)).copied() else {
                    let text = bytes.get(key.0..key.1).and_then(|k| core::str::from_utf8(k).ok());
                    let raw = bytes.get(start..self.at);
                    if let (Some(key), Some(raw)) = (text, raw) {
                        visit(Item::Entry { key, kind, raw })?;
                    }
                    self.state = State::Key;
                    return Ok(());
                };
                self.elements(c, base, frame)?;
            }
            State::Tensor => {
                if self.tensors_left == 0 {
                    self.state = State::Done;
                    return Ok(());
                }
                let (name, _) =
                    name(c, base, "tensor name", "length of a tensor name", self.limits.name.min(64))?;
                let at = base + c.position();
                let n_dims = c.u32("dimension count")?;
                if !(1..=4).contains(&n_dims) {
                    return Err(malformed("dimension count", at, u64::from(n_dims), "1 to 4"));
                }
                let mut dims = [1; 4];
                for dim in dims.iter_mut().take(n_dims as usize) {
                    let at = base + c.position();
                    *dim = c.u64("dimension")?;
                    if *dim == 0 {
                        return Err(malformed("dimension", at, 0, "at least 1"));
                    }
                }
                let id_at = base + c.position();
                let id = c.u32("tensor type")?;
                let offset = c.u64("tensor offset")?;
                visit(Item::Tensor { name, dims, n_dims: n_dims as u8, id, id_at, offset })?;
                self.tensors_left -= 1;
            }
            State::Done => {}
        }
        // Only bytes in `bytes` were consumed, so this fits.
        self.at += c.position() as usize;
        Ok(())
    }

    /// Continues inside the innermost value: a run of fixed-size elements, one string, or the head of an
    /// array.
    fn elements(&mut self, c: &mut Cursor<'_>, base: u64, frame: Frame) -> Result<()> {
        let mut left = 0;
        let mut inner = None;
        match frame.kind {
            _ if frame.left == 0 => {}
            Kind::Str => {
                string(c, "metadata string", "length of a metadata string", self.limits.string)?;
                left = frame.left - 1;
            }
            Kind::Array => {
                let kind = kind(c, base)?;
                let len = c.u64("array length")?;
                cap("array length", len, self.limits.array)?;
                // The value itself is the first frame, but not an array around anything.
                let nesting = self.limits.nesting.min(MAX_NESTING as u64 - 1);
                cap("array nesting", self.depth as u64, nesting)?;
                inner = Some(Frame { kind, left: len });
                left = frame.left - 1;
            }
            fixed => {
                let bytes = frame.left.saturating_mul(fixed.size().unwrap_or(1));
                let at = base + c.position();
                let raw = c.take(bytes, "metadata value")?;
                if fixed == Kind::Bool
                    && let Some(i) = raw.iter().position(|b| *b > 1)
                {
                    let found = raw.get(i).copied().unwrap_or(0);
                    return Err(malformed("metadata bool", at + i as u64, u64::from(found), "0 or 1"));
                }
            }
        }
        if let Some(outer) = self.depth.checked_sub(1).and_then(|d| self.frames.get_mut(d)) {
            outer.left = left;
        }
        match inner {
            Some(frame) => {
                if let Some(slot) = self.frames.get_mut(self.depth) {
                    *slot = frame;
                    self.depth += 1;
                }
            }
            None if left == 0 => self.depth -= 1,
            None => {}
        }
        Ok(())
    }
}

fn malformed(what: &'static str, at: u64, found: u64, expected: &'static str) -> Error {
    error!(Malformed { what, at, found, expected })
}

fn cap(what: &'static str, found: u64, max: u64) -> Result<()> {
    if found > max { Err(error!(Limit { what, found, max })) } else { Ok(()) }
}

fn kind(c: &mut Cursor<'_>, base: u64) -> Result<Kind> {
    let at = base + c.position();
    let id = c.u32("metadata value type")?;
    Kind::of(id).ok_or(malformed("metadata value type", at, u64::from(id), "0 to 12"))
}

fn string<'b>(c: &mut Cursor<'b>, what: &'static str, length: &'static str, max: u64) -> Result<&'b [u8]> {
    let len = c.u64(what)?;
    cap(length, len, max)?;
    c.take(len, what)
}

/// A key or tensor name, and its offset in the cursor's bytes.
fn name<'b>(
    c: &mut Cursor<'b>,
    base: u64,
    what: &'static str,
    length: &'static str,
    max: u64,
) -> Result<(&'b str, usize)> {
    let at = base + c.position();
    let raw = string(c, what, length, max)?;
    if raw.is_empty() {
        return Err(malformed(length, at, 0, "at least 1"));
    }
    match core::str::from_utf8(raw) {
        Ok(text) if raw.iter().all(|byte| *byte != 0) => Ok((text, c.position() as usize - raw.len())),
        _ => Err(error!(Unsupported {
            key: Name::new(what),
            found: Name::new(raw),
            expected: "UTF-8 without NUL",
        })),
    }
}
