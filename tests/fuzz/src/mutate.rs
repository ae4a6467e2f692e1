//! Changes inputs in ways that know their format, so that more of them get past the first check.

use shohin_core::gguf::Gguf;
use shohin_tests::Random;
use shohin_tests::raw::{RawFile, RawTensor, RawValue};

/// The format of a target's inputs.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// No format.
    Bytes,
    /// Text that these words occur in.
    Text(&'static [&'static str]),
    /// A GGUF file.
    Gguf,
    /// [`sections`] that are GGUF files.
    Parts,
    /// A safetensors file: the length of a JSON text, that text, and data.
    SafeTensors,
    /// A message of Protocol Buffers.
    Protobuf,
}

/// The longest input that mutations make longer.
const MOST: usize = 1 << 17;

/// Words of JSON, and numbers at the limits of something.
const JSON: &[&str] = &[
    "{", "}", "[", "]", ":", ",", "\"", "null", "true", "false", "\\u0000", "\\ud800", "\\udc00", "\\\"",
    "\u{202e}", "é", "🐢", "1e999", "-0", "0.1", "1E-5",
];

const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "2",
    "7",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e-400",
    "0.5",
    "100000000000000000000000000000000000000000",
];

/// Splits a list of byte strings: the length of each in four bytes, then its bytes. A length beyond the end is that of the
/// rest.
pub fn sections(mut input: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    while let Some((len, rest)) = input.split_first_chunk() {
        let len = u32::from_le_bytes(*len) as usize;
        let (section, rest) = rest.split_at(len.min(rest.len()));
        all.push(section);
        input = rest;
    }
    all
}

/// The list of these byte strings.
pub fn join<T: AsRef<[u8]>>(sections: &[T]) -> Vec<u8> {
    let mut out = Vec::new();
    for section in sections {
        out.extend((section.as_ref().len() as u32).to_le_bytes());
        out.extend(section.as_ref());
    }
    out
}

/// Changes an input; `others` are inputs of the same target.
pub fn mutate(form: &Form, input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        // Damage that ignores the format is always possible.
        let form = if random.below(8) == 0 { &Form::Bytes } else { form };
        match form {
            Form::Bytes => bytes(input, others, random),
            Form::Text(words) => text(input, words, others, random),
            Form::Gguf => gguf(input, others, random),
            Form::Parts => parts(input, others, random),
            Form::SafeTensors => safetensors(input, random),
            Form::Protobuf => message(input, 0, random),
        }
    }
    // Insertions would otherwise add up.
    input.truncate(MOST.max(others.iter().map(Vec::len).max().unwrap_or(0) + 4096));
}

fn pick<'p, T: ?Sized>(from: &'p [&'p T], random: &mut Random) -> &'p T {
    from[random.below(from.len())]
}

/// A range of at most `most` bytes.
fn range(len: usize, most: usize, random: &mut Random) -> std::ops::Range<usize> {
    let at = random.below(len + 1);
    at..len.min(at + random.below(most + 1))
}

/// A number where something changes, given how many bytes are left.
fn number(left: usize, random: &mut Random) -> u64 {
    let left = left as u64;
    let all = [0, 1, 2, 3, 7, 8, 32, 127, 128, 255, 256, 1 << 16, 1 << 31, 1 << 32, 1 << 63, u64::MAX, left];
    let base =
        if random.below(4) == 0 { random.next() >> random.below(64) } else { all[random.below(all.len())] };
    base.wrapping_add([0, 0, 1, u64::MAX][random.below(4)])
}

fn bytes(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    if input.is_empty() {
        input.push(random.next() as u8);
        return;
    }
    match random.below(8) {
        0 | 1 => {
            let bit = random.below(8 * input.len());
            input[bit / 8] ^= 1 << (bit % 8);
        }
        2 => {
            let at = random.below(input.len());
            input[at] = random.next() as u8;
        }
        3 => {
            let width = [1, 2, 4, 8][random.below(4)];
            let at = random.below(input.len());
            let value = number(input.len() - at, random).to_le_bytes();
            for (to, from) in input[at..].iter_mut().zip(&value[..width]) {
                *to = *from;
            }
        }
        4 => {
            let gone = range(input.len(), 64, random);
            input.drain(gone);
        }
        5 => {
            let copied = input[range(input.len(), 64, random)].to_vec();
            let at = random.below(input.len() + 1);
            input.splice(at..at, copied);
        }
        6 => {
            let Some(other) = others.get(random.below(others.len().max(1))) else { return };
            let from = other[range(other.len(), 256, random)].to_vec();
            let to = range(input.len(), 256, random);
            input.splice(to, from);
        }
        _ => input.truncate(random.below(input.len()) + 1),
    }
}

/// A place between characters.
fn between(text: &str, random: &mut Random) -> usize {
    let mut at = random.below(text.len() + 1);
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// From an opening bracket or quote to its end.
fn balanced(text: &str, random: &mut Random) -> Option<std::ops::Range<usize>> {
    let bytes = text.as_bytes();
    let start = random.below(bytes.len().max(1));
    let at = start + bytes.get(start..)?.iter().position(|b| b"{[(\"".contains(b))?;
    if bytes[at] == b'"' {
        let end = at + 1 + bytes[at + 1..].iter().position(|b| *b == b'"')?;
        return Some(at..end + 1);
    }
    let mut depth = 0;
    for (i, byte) in bytes.iter().enumerate().skip(at) {
        match byte {
            b'{' | b'[' | b'(' => depth += 1,
            b'}' | b']' | b')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at..i + 1);
        }
    }
    None
}

fn text(input: &mut Vec<u8>, words: &[&str], others: &[Vec<u8>], random: &mut Random) {
    let Ok(mut text) = String::from_utf8(std::mem::take(input)) else {
        // Damaged before: it may stay so.
        *input = others.get(random.below(others.len().max(1))).cloned().unwrap_or_default();
        return;
    };
    let at = between(&text, random);
    match random.below(10) {
        0 | 1 => text.insert_str(at, pick(words, random)),
        2 => text.insert_str(at, pick(JSON, random)),
        3 => {
            // A number becomes another.
            let is_digit = |c: char| c.is_ascii_digit();
            if let Some(start) = text[at..].find(is_digit).map(|start| at + start) {
                let end = text[start..].find(|c| !is_digit(c)).map_or(text.len(), |end| start + end);
                text.replace_range(start..end, pick(NUMBERS, random));
            }
        }
        4 => {
            if let Some(part) = balanced(&text, random) {
                let copy = text[part].to_string();
                text.insert_str(at, &copy);
            }
        }
        5 => {
            if let (Some(from), Some(to)) = (balanced(&text, random), balanced(&text, random)) {
                let copy = text[from].to_string();
                text.replace_range(to, &copy);
            }
        }
        6 => {
            if let Some(part) = balanced(&text, random) {
                text.replace_range(part, pick(words, random));
            }
        }
        7 => {
            let (open, close) = [("[", "]"), ("(", ")"), ("{\"a\":", "}"), ("\"", "\"")][random.below(4)];
            let times = 1 << random.below(9);
            if let Some(part) = balanced(&text, random) {
                let inner = text[part.clone()].to_string();
                text.replace_range(part, &format!("{}{inner}{}", open.repeat(times), close.repeat(times)));
            }
        }
        8 => {
            let end = between(&text, random);
            if at.abs_diff(end) < 100 {
                text.replace_range(at.min(end)..at.max(end), "");
            }
        }
        _ => {
            let c =
                char::from_u32((random.next() >> random.below(32)) as u32 % 0x11_0000).unwrap_or('\u{fffd}');
            text.insert(at, c);
        }
    }
    *input = text.into_bytes();
}

fn gguf(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    if Gguf::parse(input).is_err() {
        return bytes(input, others, random);
    }
    let mut file = RawFile::of(input);
    let (entries, tensors) = (file.entries.len(), file.tensors.len());
    match random.below(12) {
        0 if entries > 0 => drop(file.entries.remove(random.below(entries))),
        1 if entries > 0 => file.entries.push(file.entries[random.below(entries)].clone()),
        2..=4 if entries > 0 => value(&mut file.entries[random.below(entries)].1, random),
        5 if entries > 1 => {
            // The value of another key.
            let other = file.entries[random.below(entries)].1.clone();
            file.entries[random.below(entries)].1 = other;
        }
        6 if tensors > 0 => drop(file.tensors.remove(random.below(tensors))),
        7 if tensors > 0 => {
            let copy = file.tensors[random.below(tensors)].clone();
            file.tensors.push(RawTensor { name: [&copy.name[..], b"2"].concat(), ..copy });
        }
        8 | 9 if tensors > 0 => {
            let t = &mut file.tensors[random.below(tensors)];
            match random.below(4) {
                0 => t.id = [0, 1, 2, 8, 12, 14, 30, 34, 35, 39, 40, 41, 42, 43][random.below(14)],
                1 => t.offset = number(file.data.len(), random),
                2 => t.dims.push(number(8, random)),
                _ => {
                    let i = random.below(t.dims.len().max(1));
                    if let Some(dim) = t.dims.get_mut(i) {
                        *dim = number(file.data.len(), random);
                    }
                }
            }
        }
        10 => bytes(&mut file.data, others, random),
        _ => {
            let count = number(file.data.len(), random);
            if random.below(2) == 0 { file.n_entries = Some(count) } else { file.n_tensors = Some(count) }
        }
    }
    *input = file.build();
}

/// Changes a metadata value within its type, or its type.
fn value(value: &mut RawValue, random: &mut Random) {
    match random.below(5) {
        0 => value.kind = random.below(14) as u32,
        1 if value.kind != 8 && value.kind != 9 => {
            let new = number(8, random).to_le_bytes();
            let len = value.bytes.len().min(8);
            value.bytes[..len].copy_from_slice(&new[..len]);
        }
        2 if value.kind == 6 => {
            let all = [0.0, -1.0, 1e-30, 1e30, f32::NAN, f32::INFINITY];
            *value = RawValue::f32(all[random.below(all.len())]);
        }
        3 => bytes(&mut value.bytes, &[], random),
        // A string or an array with another length and as many bytes.
        _ if value.kind == 8 => *value = RawValue::str(vec![b'a'; random.below(300)]),
        _ => *value = RawValue::u32(number(8, random) as u32),
    }
}

fn parts(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    let mut all: Vec<Vec<u8>> = sections(input).into_iter().map(<[u8]>::to_vec).collect();
    if all.is_empty() {
        return bytes(input, others, random);
    }
    let (i, j) = (random.below(all.len()), random.below(all.len()));
    match random.below(6) {
        0 => all.swap(i, j),
        1 => drop(all.remove(i)),
        2 => all.push(all[i].clone()),
        _ => gguf(&mut all[i], &[], random),
    }
    *input = join(&all);
}

fn safetensors(input: &mut Vec<u8>, random: &mut Random) {
    const WORDS: &[&str] = &[
        "\"dtype\":",
        "\"shape\":",
        "\"data_offsets\":",
        "\"F32\"",
        "\"F16\"",
        "\"BF16\"",
        "\"U32\"",
        "\"U8\"",
        "\"I64\"",
        "\"F8_E4M3\"",
        "\"__metadata__\":",
        "[0,0]",
        "\"model.norm.weight\":",
    ];
    let Some((len, rest)) = input.split_first_chunk() else { return bytes(input, &[], random) };
    let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX).min(rest.len());
    let (header, data) = rest.split_at(len);
    let (mut header, data) = (header.to_vec(), data.to_vec());
    text(&mut header, WORDS, &[], random);
    *input = [&(header.len() as u64).to_le_bytes(), &header[..], &data].concat();
}

/// A number in base 128, and its length.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (i, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, i + 1));
        }
    }
    None
}

fn push_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Changes one field, and the lengths of all messages around it.
fn message(input: &mut Vec<u8>, depth: usize, random: &mut Random) {
    // Where each field starts, its tag, and where its contents are.
    let mut fields: Vec<(usize, u64, std::ops::Range<usize>)> = Vec::new();
    let mut at = 0;
    while let Some((tag, len)) = varint(&input[at..]) {
        let start = at + len;
        let contents = match tag & 7 {
            0 => varint(&input[start..]).map(|(_, len)| start..start + len),
            1 => Some(start..start + 8),
            2 => varint(&input[start..]).and_then(|(n, len)| {
                let start = start + len;
                Some(start..start.checked_add(usize::try_from(n).ok()?)?)
            }),
            5 => Some(start..start + 4),
            _ => None,
        };
        let Some(contents) = contents.filter(|contents| contents.end <= input.len()) else { break };
        fields.push((at, tag, contents.clone()));
        at = contents.end;
        if at == input.len() {
            break;
        }
    }
    if fields.is_empty() || at != input.len() {
        return bytes(input, &[], random);
    }
    let (start, tag, contents) = fields[random.below(fields.len())].clone();
    let mut field = Vec::new();
    match random.below(12) {
        // The field is gone, twice there, or another.
        0 if depth > 0 => {}
        1 => {
            field.extend(&input[start..contents.end]);
            field.extend(&input[start..contents.end]);
        }
        2 => {
            let (start, _, contents) = fields[random.below(fields.len())].clone();
            field.extend(&input[start..contents.end]);
        }
        _ => {
            let mut inner = input[contents.clone()].to_vec();
            push_varint(tag, &mut field);
            match tag & 7 {
                0 => {
                    inner.clear();
                    push_varint(number(16, random), &mut inner);
                }
                2 => {
                    if depth < 6 && random.below(6) > 0 && !inner.is_empty() {
                        message(&mut inner, depth + 1, random);
                    } else {
                        bytes(&mut inner, &[], random);
                    }
                    push_varint(inner.len() as u64, &mut field);
                }
                _ => inner.iter_mut().for_each(|byte| *byte = random.next() as u8),
            }
            field.extend(inner);
        }
    }
    input.splice(start..contents.end, field);
}
