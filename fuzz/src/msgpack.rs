//! `MessagePack` written by hand, as peers with byte strings write it: not by the code under test.

pub(crate) fn map(pairs: usize) -> Vec<u8> {
    [&[0xdf][..], &u32::try_from(pairs).expect("few").to_be_bytes()].concat()
}

pub(crate) fn list(values: usize) -> Vec<u8> {
    [&[0xdd][..], &u32::try_from(values).expect("few").to_be_bytes()].concat()
}

pub(crate) fn bin(bytes: &[u8]) -> Vec<u8> {
    [&[0xc4, u8::try_from(bytes.len()).expect("short")][..], bytes].concat()
}

/// Text of any length.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&[0xdb][..], &u32::try_from(text.len()).expect("short").to_be_bytes(), text.as_bytes()].concat()
}

/// A name of a field.
pub(crate) fn key(name: &str) -> Vec<u8> {
    text(name)
}
