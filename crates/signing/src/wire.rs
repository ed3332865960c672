//! Strings and numbers in the format of ssh (RFC 4251, section 5).
//!
//! This module must not know messages.

/// Reader of bytes. Returns `None` for missing data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SshWireReader<'a>(&'a [u8]);

impl<'a> SshWireReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn read_byte(&mut self) -> Option<u8> {
        self.take_bytes(1).map(|bytes| bytes[0])
    }

    pub(crate) fn read_number(&mut self) -> Option<u32> {
        self.take_bytes(4)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    pub(crate) fn read_string(&mut self) -> Option<&'a [u8]> {
        let length = self.read_number()?;
        self.take_bytes(usize::try_from(length).ok()?)
    }

    /// Reads a non-negative integer, without leading zeros.
    pub(crate) fn read_unsigned(&mut self) -> Option<&'a [u8]> {
        let bytes = self.read_string()?;
        match bytes {
            [first, ..] if *first >= 0x80 => None,
            [0, rest @ ..] => rest.first().is_some_and(|next| *next >= 0x80).then_some(rest),
            _ => Some(bytes),
        }
    }

    /// Reads exactly these bytes.
    pub(crate) fn expect_bytes(&mut self, expected: &[u8]) -> Option<()> {
        (self.take_bytes(expected.len())? == expected).then_some(())
    }

    /// Checks that no bytes are left.
    pub(crate) fn expect_end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Appends a string.
pub(crate) fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    // All strings are shorter than a message.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_input_is_not_read() {
        let mut out = Vec::new();
        put_string(&mut out, b"abc");
        for length in 0..out.len() {
            assert_eq!(SshWireReader::new(&out[..length]).read_string(), None, "{length}");
        }
        let mut reader = SshWireReader::new(&out);
        assert_eq!(reader.read_string(), Some(&b"abc"[..]));
        assert_eq!(reader.expect_end(), Some(()));
        assert_eq!(SshWireReader::new(&[0xff, 0xff, 0xff, 0xff, 1]).read_string(), None);
    }

    #[test]
    fn numbers_have_one_form() {
        let read = |bytes: &[u8]| {
            let mut out = Vec::new();
            put_string(&mut out, bytes);
            SshWireReader::new(&out).read_unsigned().map(<[u8]>::to_vec)
        };
        assert_eq!(read(&[1, 2]), Some(vec![1, 2]));
        assert_eq!(read(&[0, 0x80]), Some(vec![0x80]));
        assert_eq!(read(&[]), Some(vec![]));
        for bad in [&[0x80][..], &[0], &[0, 1]] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
