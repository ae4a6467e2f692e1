//! The wire format of Protocol Buffers, read in place.

/// A field's value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'f> {
    Varint(u64),
    /// A number of 4 or 8 bytes, a text, bytes, a message or packed numbers.
    Bytes(&'f [u8]),
}

impl<'f> Value<'f> {
    pub(crate) fn bytes(self) -> Option<&'f [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            Value::Varint(_) => None,
        }
    }

    pub(crate) fn text(self) -> Option<&'f str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    pub(crate) fn number(self) -> Option<u64> {
        match self {
            Value::Varint(number) => Some(number),
            Value::Bytes(_) => None,
        }
    }

    /// The numbers of a repeated field, which is packed or has one number each time.
    pub(crate) fn numbers(self, out: &mut Vec<u64>) -> Option<()> {
        match self {
            Value::Varint(number) => out.push(number),
            Value::Bytes(mut rest) => {
                while !rest.is_empty() {
                    out.push(varint(&mut rest)?);
                }
            }
        }
        Some(())
    }
}

/// The fields of a message: number and value, or `None` and the end at bytes that are no field.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'f>(pub(crate) &'f [u8]);

impl<'f> Iterator for Fields<'f> {
    type Item = Option<(u32, Value<'f>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = field(&mut self.0);
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

fn field<'f>(rest: &mut &'f [u8]) -> Option<(u32, Value<'f>)> {
    let key = varint(rest)?;
    let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
    let len = match key & 7 {
        0 => return Some((number, Value::Varint(varint(rest)?))),
        1 => 8,
        2 => usize::try_from(varint(rest)?).ok()?,
        5 => 4,
        _ => return None,
    };
    let (bytes, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some((number, Value::Bytes(bytes)))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
