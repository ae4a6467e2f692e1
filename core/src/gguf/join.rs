//! Joins a model in several files into one stream, for readers of a single file.
#![forbid(unsafe_code)]

use crate::sort;
use alloc::vec::Vec;

use super::parts::{Of, PartError, check_count, check_place, check_tensors, is_split_key};
use super::stream::{Event, GgufStream};
use super::tensor::ID_42;
use super::{GgufBody, GgufWriter, Id42, ReadOptions, TensorType, Value, with_capacity};
use crate::error::{Error, Name, Result};

/// Result of calls whose error names a part.
type Joined<T> = core::result::Result<T, PartError>;

/// Joins the parts of a model to one GGUF file as they arrive; see [`super::Gguf::parse_parts`]. Only the
/// weights that arrived together with the headers are buffered.
///
/// First pass the beginning of every part, in any order, until [`GgufJoin::head`] reports that its header is
/// complete; then call [`GgufJoin::begin`]; then pass the rest of each part in turn to [`GgufJoin::push`],
/// and end it with [`GgufJoin::finish`].
#[derive(Clone, Debug)]
pub struct GgufJoin {
    parts: Vec<Arriving>,
    body: Option<GgufBody>,
    /// The part whose tensors are being written.
    current: usize,
    len: u64,
}

/// A part whose header is incomplete, and weights that arrived with it.
#[derive(Clone, Debug)]
struct Arriving {
    stream: GgufStream,
    complete: bool,
    held: Vec<u8>,
}

impl Arriving {
    /// Takes bytes of the file and passes those of tensors to `out`.
    fn take(&mut self, bytes: &[u8], out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let complete = &mut self.complete;
        self.stream.push(bytes, &mut |event| match event {
            Event::Header(_) => {
                *complete = true;
                Ok(())
            }
            Event::CodesFirst => Ok(()),
            Event::TensorData { bytes, .. } => out(bytes),
        })
    }
}

impl GgufJoin {
    /// Starts a join of parts with these lengths.
    ///
    /// # Errors
    /// [`Error::Limit`] for more than [`MAX_PARTS`](super::MAX_PARTS).
    pub fn new(lengths: &[u64], options: &ReadOptions) -> Result<GgufJoin> {
        check_count(lengths.len())?;
        let mut parts = with_capacity(lengths.len() as u64)?;
        parts.extend(lengths.iter().map(|len| Arriving {
            stream: GgufStream::new(*len, *options),
            complete: false,
            held: Vec::new(),
        }));
        Ok(GgufJoin { parts, body: None, current: 0, len: 0 })
    }

    fn part(&mut self, part: usize) -> Joined<&mut Arriving> {
        let found = part as u64;
        let expected = self.parts.len() as u64;
        let error = error!(Length { what: "list of parts", expected, found });
        self.parts.get_mut(part).ok_or(PartError { part, error })
    }

    /// Takes the next bytes of a part; returns whether its header is complete.
    pub fn head(&mut self, part: usize, bytes: &[u8]) -> Joined<bool> {
        let arriving = self.part(part)?;
        let mut held = core::mem::take(&mut arriving.held);
        let taken = arriving.take(bytes, &mut |data| {
            let need = data.len() as u64;
            held.try_reserve(data.len()).map_err(|_| error!(Memory { need, have: 0 }))?;
            held.extend_from_slice(data);
            Ok(())
        });
        arriving.held = held;
        taken.of(part)?;
        Ok(arriving.complete)
    }

    /// The header of the joined file, once all headers of parts are complete.
    ///
    /// # Errors
    /// If parts do not belong together, or are not in order.
    pub fn begin(&mut self) -> Joined<Vec<u8>> {
        let count = self.parts.len();
        let missing = error!(Truncated { what: "header", at: 0, need: 1, have: 0 });
        let mut headers = with_capacity(count as u64).of(0)?;
        for (i, part) in self.parts.iter().enumerate() {
            let header = part.stream.header().of(i)?.ok_or(PartError { part: i, error: missing })?;
            headers.push(header);
        }
        let first = headers.first().ok_or(PartError { part: 0, error: missing })?;
        for (i, header) in headers.iter().enumerate() {
            check_place(header, first, i, count).of(i)?;
        }
        // With blocks of 34 bytes, the reader of the joined file determines the order inside them for all
        // parts.
        let mut known = Id42::Auto;
        for (i, header) in headers.iter().enumerate() {
            let own = header.id42(Id42::Auto);
            known = header.id42(known);
            if own != Id42::Auto && (own == Id42::Group64) != (known == Id42::Group64) {
                let of_type = header.tensors().iter().find(|t| t.type_id() == ID_42);
                let name = Name::new(of_type.map_or("", |t| t.name()));
                let expected = "the layout that type 42 has in the parts before";
                return Err(error!(TensorType { name, found: ID_42, expected })).of(i);
            }
        }
        let mut writer = GgufWriter::new();
        for (key, value) in first.metadata().iter().filter(|(key, _)| !is_split_key(key)) {
            // Later parts do not state their alignment, and the offsets are new anyway.
            let value = if key == "general.alignment" { Value::U32(32) } else { value };
            writer.set(key, value).of(0)?;
        }
        for (i, header) in headers.iter().enumerate() {
            let mut order: Vec<u32> = with_capacity(header.tensors().len() as u64).of(i)?;
            order.extend(0..header.tensors().len() as u32);
            let at = |t: u32| header.tensors().get(t as usize).map(|t| (t.offset(), t.len()));
            sort::sort(&mut order, &|a, b| at(a).cmp(&at(b)));
            for t in order.into_iter().filter_map(|t| header.tensors().get(t as usize)) {
                let kind = match (t.format(), TensorType::of(t.type_id())) {
                    (Some(format), _) if t.type_id() == ID_42 => TensorType {
                        id: ID_42,
                        name: format.name(),
                        block: format.block() as u32,
                        block_bytes: format.block_bytes() as u32,
                        tail: 0,
                    },
                    (_, Some(kind)) => *kind,
                    (_, None) => continue,
                };
                writer.tensor_of(t.name(), t.dims(), &kind).of(i)?;
            }
        }
        check_tensors(first, headers.iter().map(|h| h.tensors().len()).sum()).of(0)?;
        let header = writer.header().of(0)?;
        let body = writer.body();
        self.len = header.len() as u64 + body.len();
        self.body = Some(body);
        Ok(header)
    }

    /// Bytes of the joined file, after [`GgufJoin::begin`].
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes yet.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the next bytes of a part, with parts in order, and passes the next bytes of the joined file to
    /// `out`.
    pub fn push(&mut self, part: usize, bytes: &[u8], out: &mut dyn FnMut(&[u8])) -> Joined<()> {
        if part != self.current {
            let (expected, found) = (self.current as u64, part as u64);
            return Err(PartError {
                part,
                error: error!(Length { what: "parts before this one", expected, found }),
            });
        }
        let begun = error!(Truncated { what: "header", at: 0, need: 1, have: 0 });
        let mut body = self.body.take().ok_or(PartError { part, error: begun })?;
        let arriving = self.part(part)?;
        let held = core::mem::take(&mut arriving.held);
        let mut write = |data: &[u8]| {
            body.push(data, |bytes| {
                out(bytes);
                Ok::<(), Error>(())
            })
        };
        let done = write(&held).and_then(|()| arriving.take(bytes, &mut write));
        self.body = Some(body);
        done.of(part)
    }

    /// Ends a part; the next one follows.
    ///
    /// # Errors
    /// [`Error::Truncated`] if it is not complete.
    pub fn finish(&mut self, part: usize) -> Joined<()> {
        self.part(part)?.stream.finish().of(part)?;
        self.current = part + 1;
        Ok(())
    }
}
