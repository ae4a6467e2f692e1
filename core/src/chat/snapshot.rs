//! A conversation as bytes that can be kept: its messages, and the keys and values of its tokens.
//!
//! ```text
//! magic (8) | fingerprint (32) | layout (1) | kv format (1) | activations (1) | attention (1, 4, 4, 4) | tokens (4)
//! | kept (4) | dropped (4) | length of the messages (4) | tokens of the messages (4) | known messages (4)
//! | known tokens (4) | start of the reply (4) | length of the tools (4) | ids (4 each) | ids of the messages (4 each)
//! | messages | tools | keys and values | checksum (32)
//! ```
//! Numbers are little-endian; messages are JSON, an array in OpenAI's form, and so are tools, an array of strings. See
//! [`PrefixState`] and [`History`] for the numbers. The checksum is the SHA-256 of all before. Hosts bring the hash function.
#![forbid(unsafe_code)]

use super::openai::{messages_json, parse_messages};
use super::{History, Known, PrefixState};
use crate::error::{Error, Result};
use crate::json::{self, Value};
use crate::{Activations, AttentionPattern, KvFormat, SessionOptions};
use alloc::string::String;
use alloc::vec::Vec;

const MAGIC: [u8; 6] = *b"shohin";
const VERSION: [u8; 2] = [0, 4];
const ORIGIN: usize = 48;
/// Where an origin has its layout.
const LAYOUT: usize = 32;
/// And the format of its cache, with [`ROTATED`] if heads are: files of before that are not read as those.
const FORMAT: usize = 33;
const ROTATED: u8 = 0x80;
/// Numbers after the origin.
const NUMBERS: usize = 9;
const HEAD: usize = 8 + ORIGIN + 4 * NUMBERS;
const SUM: usize = 32;

/// SHA-256 of some bytes.
pub type Digest = fn(&[u8]) -> [u8; 32];

/// Which bytes of a model's files are hashed to tell it from others: the first 64 KiB and 256 bytes of each later 64 KiB,
/// so that a gigabyte takes milliseconds. The hash ends with the length of all files, 8 bytes.
#[derive(Clone, Debug, Default)]
pub struct Fingerprint {
    at: u64,
}

impl Fingerprint {
    const STRIDE: u64 = 1 << 16;
    const SAMPLE: u64 = 1 << 8;

    /// Takes the next bytes; passes those that are hashed to `hash`.
    pub fn push(&mut self, mut bytes: &[u8], hash: &mut dyn FnMut(&[u8])) {
        while !bytes.is_empty() {
            let within = self.at % Self::STRIDE;
            let (counts, most) = match () {
                () if self.at < Self::STRIDE => (true, Self::STRIDE - self.at),
                () if within < Self::SAMPLE => (true, Self::SAMPLE - within),
                () => (false, Self::STRIDE - within),
            };
            let len = usize::try_from(most).unwrap_or(usize::MAX).min(bytes.len());
            let (now, later) = bytes.split_at(len);
            if counts {
                hash(now);
            }
            self.at += len as u64;
            bytes = later;
        }
    }

    /// The last bytes to be hashed.
    pub fn finish(self) -> [u8; 8] {
        self.at.to_le_bytes()
    }
}

/// Who ordered the keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A CPU.
    Cpu,
    /// A GPU.
    Gpu,
}

/// The model and the settings under which keys and values are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin([u8; ORIGIN]);

impl Origin {
    /// Of a model with this hash of what [`Fingerprint`] says.
    pub fn new(
        fingerprint: [u8; 32],
        layout: Layout,
        session: &SessionOptions,
        activations: Activations,
    ) -> Origin {
        let format = KvFormat::ALL.iter().position(|&format| format == session.kv).unwrap_or(usize::MAX);
        let mut origin = [0; ORIGIN];
        origin[..32].copy_from_slice(&fingerprint);
        origin[FORMAT..35].copy_from_slice(&[format as u8, u8::from(activations == Activations::Int8)]);
        let (kind, numbers) = match session.attention {
            AttentionPattern::Full => (0, [0; 3]),
            AttentionPattern::Window { window, sinks } => (1, [window, sinks, 0]),
            AttentionPattern::Dilated { blocks, step } => (2, [blocks, step, 0]),
            AttentionPattern::Strided { blocks, stride } => (3, [blocks, stride, 0]),
            AttentionPattern::BigBird { blocks, global, random } => (4, [blocks, global, random]),
        };
        origin[35] = kind;
        for (bytes, n) in origin[36..].as_chunks_mut().0.iter_mut().zip(numbers) {
            *bytes = n.to_le_bytes();
        }
        Origin(origin).on(layout)
    }

    /// The same on a device with another layout.
    #[must_use]
    pub fn on(mut self, layout: Layout) -> Origin {
        self.0[LAYOUT] = u8::from(layout == Layout::Gpu);
        let format = self.0[FORMAT] & !ROTATED;
        let of_cpus =
            KvFormat::ALL.get(usize::from(format)).is_some_and(|format| format.is_rotated_on_cpus());
        self.0[FORMAT] = if of_cpus && layout == Layout::Cpu { format | ROTATED } else { format };
        self
    }

    /// What distinguishes `other`.
    fn difference(&self, other: &[u8; ORIGIN]) -> Option<&'static str> {
        let parts: [(core::ops::Range<usize>, &str); 5] = [
            (0..32, "another model"),
            (32..33, "another kind of device (a CPU or a GPU)"),
            (33..34, "another format of the KV cache"),
            (34..35, "another precision of activations"),
            (35..ORIGIN, "another attention pattern"),
        ];
        parts
            .into_iter()
            .find(|(part, _)| self.0.get(part.clone()) != other.get(part.clone()))
            .map(|(_, what)| what)
    }
}

/// What a conversation continues from.
#[derive(Clone, Debug)]
pub struct Snapshot<'b> {
    /// The messages.
    pub history: History,
    /// The tokens that the session held.
    pub prefix: PrefixState,
    /// The output of [`Session::export`](crate::Session::export).
    pub kv: &'b [u8],
}

/// The bytes before the keys and values, with room for `len` bytes of these.
///
/// # Errors
/// [`Error::Memory`]; [`Error::Limit`] for texts of 4 GB.
pub fn begin(origin: &Origin, history: &History, prefix: &PrefixState, len: usize) -> Result<Vec<u8>> {
    let History { messages, tokens, tools, known, reply_start } = history;
    let (messages, tools) = (messages_json(messages), tools_json(tools));
    let need = HEAD + 4 * (prefix.tokens.len() + tokens.len()) + messages.len() + tools.len() + len + SUM;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(need).map_err(|_| error!(Memory { need: need as u64, have: 0 }))?;
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION);
    bytes.extend_from_slice(&origin.0);
    let numbers: [usize; NUMBERS] = [
        prefix.tokens.len(),
        prefix.kept,
        prefix.dropped,
        messages.len(),
        tokens.len(),
        known.messages,
        known.tokens,
        *reply_start,
        tools.len(),
    ];
    for n in numbers {
        let limit = error!(Limit { what: "size of a session", found: n as u64, max: u64::from(u32::MAX) });
        bytes.extend_from_slice(&u32::try_from(n).map_err(|_| limit)?.to_le_bytes());
    }
    prefix.tokens.iter().chain(tokens).for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
    bytes.extend_from_slice(messages.as_bytes());
    bytes.extend_from_slice(tools.as_bytes());
    Ok(bytes)
}

fn tools_json(tools: &[String]) -> String {
    let mut out = String::from("[");
    for (i, tool) in tools.iter().enumerate() {
        out.push_str(if i == 0 { "" } else { "," });
        json::string(tool, &mut out);
    }
    out.push(']');
    out
}

fn parse_tools(text: &str) -> Option<Vec<String>> {
    Value::parse(text).ok()?.elements()?.into_iter().map(Value::as_string).collect()
}

/// Appends the checksum: the end of a snapshot.
pub fn seal(mut bytes: Vec<u8>, digest: Digest) -> Vec<u8> {
    let sum = digest(&bytes);
    bytes.extend_from_slice(&sum);
    bytes
}

/// Bytes of a snapshot by which [`extent`] tells how long it can be.
pub const HEAD_LEN: usize = HEAD;

/// How much a snapshot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Tokens whose keys and values it has.
    pub held: usize,
    /// An upper bound on its length in bytes, whatever the cache format.
    pub most: u64,
}

/// How much a snapshot of `origin` can hold that begins with `head`, for a model with `per_token` bytes of keys and values
/// per token at 16 bits and `state` bytes of a recurrent one: before the whole is read. The kind of device may differ.
///
/// # Errors
/// [`Error::SnapshotDamaged`] for fewer than [`HEAD_LEN`] bytes, [`Error::SnapshotForeign`].
pub fn extent(head: &[u8], origin: &Origin, per_token: u64, state: u64) -> Result<Extent> {
    check_kind(head)?;
    let head = head.first_chunk::<HEAD>().ok_or(Error::SnapshotDamaged)?;
    // A session of another model has other sizes.
    let from = head[8..].first_chunk::<ORIGIN>().ok_or(Error::SnapshotDamaged)?;
    let layout = if from[LAYOUT] == 0 { Layout::Cpu } else { Layout::Gpu };
    let origin = origin.on(layout);
    if let Some(what) = origin.difference(from) {
        return Err(error!(SnapshotForeign { what }));
    }
    let word =
        |at: usize| head.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word));
    let [len, dropped, text, encoded, tools] = [0, 2, 3, 4, 8].map(|n| word(8 + ORIGIN + 4 * n));
    let held = len.saturating_sub(dropped);
    // Those of 32 bits take twice as much, and some room is for what a cache holds beside them.
    let kv = (u64::from(held) + 64).saturating_mul(per_token.saturating_mul(4));
    let ids = u64::from(len) + u64::from(encoded);
    let rest = (HEAD + SUM) as u64 + 4 * ids + u64::from(text) + u64::from(tools);
    // A state comes with the tokens.
    let state = if state > 0 { state.saturating_add(4 * u64::from(held)) } else { 0 };
    Ok(Extent { held: held as usize, most: rest.saturating_add(kv).saturating_add(state) })
}

/// Before the checksum, so that any other file is called by its name.
fn check_kind(bytes: &[u8]) -> Result<()> {
    match bytes.first_chunk::<8>() {
        None => Err(Error::SnapshotDamaged),
        Some(found) if found[..6] != MAGIC => Err(error!(SnapshotForeign { what: "another kind of file" })),
        Some(found) if found[6..] != VERSION => Err(error!(SnapshotForeign { what: "another version" })),
        Some(_) => Ok(()),
    }
}

/// Reads a snapshot.
///
/// # Errors
/// [`Error::SnapshotDamaged`], [`Error::SnapshotForeign`].
pub fn open<'b>(bytes: &'b [u8], origin: &Origin, digest: Digest) -> Result<Snapshot<'b>> {
    let damaged = || Error::SnapshotDamaged;
    let (body, sum) = bytes.split_last_chunk::<SUM>().ok_or_else(damaged)?;
    let (head, rest) = body.split_first_chunk::<HEAD>().ok_or_else(damaged)?;
    check_kind(head)?;
    if digest(body) != *sum {
        return Err(damaged());
    }
    let (from, numbers) = head[8..].split_first_chunk::<ORIGIN>().ok_or_else(damaged)?;
    if let Some(what) = origin.difference(from) {
        return Err(error!(SnapshotForeign { what }));
    }
    let words: Vec<usize> =
        numbers.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word) as usize).collect();
    let [len, kept, dropped, messages, encoded, known_messages, known_tokens, reply_start, tools] = words[..]
    else {
        return Err(damaged());
    };
    let ids = |rest: &'b [u8], len: usize| {
        let (ids, rest) = rest.split_at_checked(len.checked_mul(4)?)?;
        Some((ids.as_chunks().0.iter().map(|&id| u32::from_le_bytes(id)).collect::<Vec<u32>>(), rest))
    };
    let text = |rest: &'b [u8], len: usize| {
        let (text, rest) = rest.split_at_checked(len)?;
        Some((core::str::from_utf8(text).ok()?, rest))
    };
    let (prefix, rest) = ids(rest, len).ok_or_else(damaged)?;
    let (tokens, rest) = ids(rest, encoded).ok_or_else(damaged)?;
    let (messages, rest) = text(rest, messages).ok_or_else(damaged)?;
    let (tools, kv) = text(rest, tools).ok_or_else(damaged)?;
    let messages = parse_messages(messages).map_err(|_| damaged())?;
    let tools = parse_tools(tools).ok_or_else(damaged)?;
    let is_cut = kept.checked_add(dropped).is_none_or(|end| dropped > 0 && end > len);
    if is_cut || known_messages > messages.len() || known_tokens.max(reply_start) > encoded {
        return Err(damaged());
    }
    let known = Known { messages: known_messages, tokens: known_tokens };
    let history = History { messages, tokens, tools, known, reply_start };
    Ok(Snapshot { history, prefix: PrefixState { tokens: prefix, kept, dropped }, kv })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(bytes: &[u8]) -> [u8; 32] {
        let sum = bytes.iter().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
        let mut out = [0; 32];
        out[..4].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn origin(kv: KvFormat, layout: Layout) -> Origin {
        let session = SessionOptions { kv, ..SessionOptions::default() };
        Origin::new([1; 32], layout, &session, Activations::Int8)
    }

    /// Of before CPUs rotated the heads of that format.
    #[test]
    fn unrotated_keys_of_q4_are_refused_by_name() {
        for kv in KvFormat::ALL {
            let origin = origin(kv, Layout::Cpu);
            let history = History::default();
            let bytes = begin(&origin, &history, &PrefixState::default(), 0).unwrap();
            assert!(open(&seal(bytes.clone(), digest), &origin, digest).is_ok());
            let mut old = bytes;
            let format = KvFormat::ALL.iter().position(|&format| format == kv).unwrap();
            old[8 + FORMAT] = format as u8;
            match open(&seal(old, digest), &origin, digest) {
                Ok(_) => assert!(!kv.is_rotated_on_cpus()),
                Err(error) => {
                    assert_eq!(kv, KvFormat::Q4);
                    assert_eq!(error, error!(SnapshotForeign { what: "another format of the KV cache" }));
                }
            }
        }
    }

    #[test]
    fn an_origin_is_the_same_on_another_device() {
        for kv in KvFormat::ALL {
            let [cpu, gpu] = [Layout::Cpu, Layout::Gpu].map(|layout| origin(kv, layout));
            assert!(cpu != gpu && cpu.on(Layout::Gpu) == gpu && gpu.on(Layout::Cpu) == cpu);
        }
    }
}
