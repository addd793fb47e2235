//! As much `MessagePack` as pipes need, over `rmp`'s markers and numbers. Reads what a stranger wrote: nothing is allocated by
//! a length that is only declared, and nesting is bounded. (`rmp`'s own measure of a message panics on extensions.)

use rmp::Marker;
use rmp::decode::{RmpRead, marker_to_len, read_bool, read_int, read_map_len, read_marker, read_str_from_slice};
use rmp::encode::{ByteBuf, write_array_len, write_bool, write_map_len, write_str, write_uint};

/// Arrays and maps within one another; the protocol itself needs three.
const MAX_DEPTH: u8 = 8;

/// Why bytes are no message of a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PipeDecodeError {
    /// Truncated, nested too deeply, or not `MessagePack` at all.
    #[error("not MessagePack")]
    Malformed,
    /// More than one value.
    #[error("bytes behind the message")]
    Trailing,
    /// Longer than such a message may be.
    #[error("too long: {got} bytes, at most {max}")]
    TooLong {
        /// The limit, bytes.
        max: usize,
        /// The length, bytes.
        got: usize,
    },
    /// A field is not there.
    #[error("{field} is missing")]
    Missing {
        /// Its name.
        field: &'static str,
    },
    /// A field is there twice.
    #[error("{field} is given twice")]
    Repeated {
        /// Its name.
        field: &'static str,
    },
    /// A field has a value of another kind.
    #[error("{field} is of another type")]
    Type {
        /// Its name.
        field: &'static str,
    },
    /// A field of bytes has another length.
    #[error("{field} has {got} bytes instead of {expected}")]
    Length {
        /// Its name.
        field: &'static str,
        /// What it must have.
        expected: usize,
        /// What it has, or claims to have.
        got: usize,
    },
    /// A signal that this build does not know.
    #[error("an unknown signal")]
    Unknown,
}

type Result<T> = std::result::Result<T, PipeDecodeError>;

/// One whole, well-formed value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value<'a>(&'a [u8]);

impl<'a> Value<'a> {
    /// A message that is one value and nothing else.
    pub(super) fn whole(bytes: &'a [u8], max: usize) -> Result<Self> {
        if bytes.len() > max {
            return Err(PipeDecodeError::TooLong { max, got: bytes.len() });
        }
        let (value, rest) = Self::first(bytes)?;
        if rest.is_empty() { Ok(value) } else { Err(PipeDecodeError::Trailing) }
    }

    fn first(bytes: &'a [u8]) -> Result<(Self, &'a [u8])> {
        let mut rest = bytes;
        skip(&mut rest, MAX_DEPTH)?;
        let (value, rest) = bytes.split_at_checked(bytes.len() - rest.len()).ok_or(PipeDecodeError::Malformed)?;
        Ok((Self(value), rest))
    }

    /// A field of exactly so many bytes, written as bin or as an array of integers.
    pub(super) fn bytes<const N: usize>(self, field: &'static str) -> Result<[u8; N]> {
        let wrong = PipeDecodeError::Type { field };
        let mut rest = self.0;
        let marker = read_marker(&mut rest).map_err(|_| wrong)?;
        let bin = matches!(marker, Marker::Bin8 | Marker::Bin16 | Marker::Bin32);
        let got = if bin { bin_len(marker, &mut rest) } else { array_len(marker, &mut rest) }.ok_or(wrong)?;
        if got != N {
            return Err(PipeDecodeError::Length { field, expected: N, got });
        }
        let mut bytes = [0; N];
        if bin {
            rest.read_exact_buf(&mut bytes).map_err(|_| wrong)?;
        } else {
            for byte in &mut bytes {
                *byte = read_int(&mut rest).map_err(|_| wrong)?;
            }
        }
        Ok(bytes)
    }

    pub(super) fn text(self, field: &'static str) -> Result<&'a str> {
        read_str_from_slice(self.0).map(|(text, _)| text).map_err(|_| PipeDecodeError::Type { field })
    }

    pub(super) fn flag(self, field: &'static str) -> Result<bool> {
        let mut rest = self.0;
        read_bool(&mut rest).map_err(|_| PipeDecodeError::Type { field })
    }

    pub(super) fn is_nil(self) -> bool {
        self.0.first() == Some(&Marker::Null.to_u8())
    }

    pub(super) fn map(self, field: &'static str) -> Result<Map<'a>> {
        let mut entries = self.0;
        let count = read_map_len(&mut entries).map_err(|_| PipeDecodeError::Type { field })?;
        Ok(Map { entries, count })
    }

    pub(super) fn list(self, field: &'static str) -> Result<impl Iterator<Item = Value<'a>>> {
        let wrong = PipeDecodeError::Type { field };
        let mut rest = self.0;
        let marker = read_marker(&mut rest).map_err(|_| wrong)?;
        let count = array_len(marker, &mut rest).ok_or(wrong)?;
        Ok((0..count).map_while(move |_| {
            let (value, behind) = Self::first(rest).ok()?;
            rest = behind;
            Some(value)
        }))
    }
}

/// A well-formed map.
#[derive(Debug, Clone, Copy)]
pub(super) struct Map<'a> {
    entries: &'a [u8],
    count: u32,
}

impl<'a> Map<'a> {
    pub(super) const fn len(self) -> u32 {
        self.count
    }

    pub(super) fn entries(self) -> impl Iterator<Item = (Value<'a>, Value<'a>)> {
        let mut rest = self.entries;
        (0..self.count).map_while(move |_| {
            let (key, behind) = Value::first(rest).ok()?;
            let (value, behind) = Value::first(behind).ok()?;
            rest = behind;
            Some((key, value))
        })
    }

    /// The field of this name, if it is there. Other keys, of whatever type, are ignored.
    pub(super) fn find(self, field: &'static str) -> Result<Option<Value<'a>>> {
        let mut found = self.entries().filter(|(key, _)| key.text(field) == Ok(field)).map(|(_, value)| value);
        let first = found.next();
        if found.next().is_some() { Err(PipeDecodeError::Repeated { field }) } else { Ok(first) }
    }

    pub(super) fn get(self, field: &'static str) -> Result<Value<'a>> {
        self.find(field)?.ok_or(PipeDecodeError::Missing { field })
    }
}

fn bin_len(marker: Marker, rest: &mut &[u8]) -> Option<usize> {
    let bytes = match marker {
        Marker::Bin8 => 1,
        Marker::Bin16 => 2,
        _ => 4,
    };
    big_endian(rest, bytes)
}

fn array_len(marker: Marker, rest: &mut &[u8]) -> Option<usize> {
    match marker {
        Marker::FixArray(count) => Some(count.into()),
        Marker::Array16 => big_endian(rest, 2),
        Marker::Array32 => big_endian(rest, 4),
        _ => None,
    }
}

fn big_endian(rest: &mut &[u8], bytes: usize) -> Option<usize> {
    let (number, behind) = rest.split_at_checked(bytes)?;
    *rest = behind;
    Some(number.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte)))
}

/// Goes past one value.
fn skip(rest: &mut &[u8], depth: u8) -> Result<()> {
    let marker = read_marker(rest).map_err(|_| PipeDecodeError::Malformed)?;
    let past = |rest: &mut &[u8], bytes: usize| {
        *rest = rest.get(bytes..).ok_or(PipeDecodeError::Malformed)?;
        Ok(())
    };
    let measured = |rest: &mut &[u8], length: usize, extra: usize| {
        let bytes = big_endian(rest, length).and_then(|bytes| bytes.checked_add(extra));
        past(rest, bytes.ok_or(PipeDecodeError::Malformed)?)
    };
    match marker {
        Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::False | Marker::True => Ok(()),
        Marker::U8 | Marker::I8 => past(rest, 1),
        Marker::U16 | Marker::I16 | Marker::FixExt1 => past(rest, 2),
        Marker::FixExt2 => past(rest, 3),
        Marker::U32 | Marker::I32 | Marker::F32 => past(rest, 4),
        Marker::FixExt4 => past(rest, 5),
        Marker::U64 | Marker::I64 | Marker::F64 => past(rest, 8),
        Marker::FixExt8 => past(rest, 9),
        Marker::FixExt16 => past(rest, 17),
        Marker::FixStr(bytes) => past(rest, bytes.into()),
        Marker::Str8 | Marker::Bin8 => measured(rest, 1, 0),
        Marker::Str16 | Marker::Bin16 => measured(rest, 2, 0),
        Marker::Str32 | Marker::Bin32 => measured(rest, 4, 0),
        // Behind the length stands the extension's type.
        Marker::Ext8 => measured(rest, 1, 1),
        Marker::Ext16 => measured(rest, 2, 1),
        Marker::Ext32 => measured(rest, 4, 1),
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => skip_inside(rest, marker, 1, depth),
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => skip_inside(rest, marker, 2, depth),
        Marker::Reserved => Err(PipeDecodeError::Malformed),
    }
}

/// Goes past the elements of an array or the pairs of a map.
fn skip_inside(rest: &mut &[u8], marker: Marker, values_each: u64, depth: u8) -> Result<()> {
    let depth = depth.checked_sub(1).ok_or(PipeDecodeError::Malformed)?;
    let count = match array_len(marker, rest) {
        Some(count) => count as u64,
        None => marker_to_len(rest, marker).map_err(|_| PipeDecodeError::Malformed)?.into(),
    };
    // Each value takes a byte at least, so a count that lies runs out of bytes, not of time.
    (0..count * values_each).try_for_each(|_| skip(rest, depth))
}

/// Writes one message. Memory is all that could run out, so nothing here fails.
#[derive(Default)]
pub(super) struct Writer(ByteBuf);

impl Writer {
    pub(super) fn map(&mut self, pairs: usize) -> &mut Self {
        let _ = write_map_len(&mut self.0, small(pairs));
        self
    }

    pub(super) fn list(&mut self, values: usize) -> &mut Self {
        let _ = write_array_len(&mut self.0, small(values));
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        let _ = write_str(&mut self.0, text);
        self
    }

    pub(super) fn flag(&mut self, flag: bool) -> &mut Self {
        let _ = write_bool(&mut self.0, flag);
        self
    }

    /// As an array of integers: what deployed agents write, and all peers read.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.list(bytes.len());
        for byte in bytes {
            let _ = write_uint(&mut self.0, u64::from(*byte));
        }
        self
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0.into_vec()
    }
}

/// Nothing that is written has 2³² of anything.
fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
