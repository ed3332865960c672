//! First message of a TLS client: the server name that it asks for. The bytes may come in any
//! pieces and in any number of records.
//!
//! This module must not depend on the consequences.
//!
//! Facts: RFC 8446, 4.1.2 and 5.1; RFC 6066, 3; RFC 9849 (encrypted hello).

/// Most bytes of a hello that are waited for.
pub const MAX_HELLO_BYTES: usize = 16 << 10;

const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME_EXTENSION: u16 = 0;
/// The extension as published, and its form in the drafts before 2020.
const ENCRYPTED_HELLO_EXTENSIONS: [u16; 2] = [0xfe0d, 0xffce];

/// Kind of the first bytes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstBytesKind {
    /// Not TLS.
    Other,
    /// Perhaps TLS; more bytes decide.
    Incomplete,
    /// A client hello.
    Hello(ClientHello),
    /// Malformed TLS.
    Malformed(&'static str),
}

/// Content of a client hello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// The server name, as sent.
    pub server_name: Option<Vec<u8>>,
    /// True if it contains an encrypted hello, or an imitation of one, which browsers always send.
    pub encrypted: bool,
}

/// Parses the first bytes of a connection.
pub fn parse_first_bytes(bytes: &[u8]) -> FirstBytesKind {
    match bytes {
        [] | [HANDSHAKE_RECORD] => return FirstBytesKind::Incomplete,
        [HANDSHAKE_RECORD, 3, ..] => {}
        _ => return FirstBytesKind::Other,
    }
    let message = match join_handshake_message(bytes) {
        Ok(message) => message,
        Err(Some(why)) => return FirstBytesKind::Malformed(why),
        Err(None) if bytes.len() >= MAX_HELLO_BYTES => {
            return FirstBytesKind::Malformed("the client hello is too long");
        }
        Err(None) => return FirstBytesKind::Incomplete,
    };
    match parse_hello_body(&message) {
        Some(Ok(hello)) => FirstBytesKind::Hello(hello),
        Some(Err(why)) => FirstBytesKind::Malformed(why),
        None => FirstBytesKind::Malformed("the client hello ends too soon"),
    }
}

/// Returns the body of the first handshake message, joined from its records. The error is `None` if
/// bytes are missing.
fn join_handshake_message(mut bytes: &[u8]) -> Result<Vec<u8>, Option<&'static str>> {
    let mut message = Vec::new();
    loop {
        let [kind, major, _, high, low, rest @ ..] = bytes else { return Err(None) };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *kind != HANDSHAKE_RECORD || *major != 3 || length == 0 || length > MAX_HELLO_BYTES {
            return Err(Some("a TLS record is not part of a client hello"));
        }
        message.extend_from_slice(&rest[..length.min(rest.len())]);
        if let [kind, a, b, c, body @ ..] = message.as_slice() {
            let body_length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if *kind != CLIENT_HELLO {
                return Err(Some("the first message is not a client hello"));
            }
            if body_length > MAX_HELLO_BYTES {
                return Err(Some("the client hello is too long"));
            }
            if let Some(body) = body.get(..body_length) {
                return Ok(body.to_vec());
            }
        }
        bytes = rest.get(length..).ok_or(None)?;
    }
}

/// Reader that takes bytes from the front.
struct HelloCursor<'a>(&'a [u8]);

impl<'a> HelloCursor<'a> {
    fn take_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (prefix, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(prefix)
    }
    fn take_u8(&mut self) -> Option<usize> {
        self.take_bytes(1).map(|b| usize::from(b[0]))
    }
    fn take_u16(&mut self) -> Option<u16> {
        self.take_bytes(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }
    /// Reads a field with its length in the two bytes before it.
    fn take_field(&mut self) -> Option<&'a [u8]> {
        let length = self.take_u16()?;
        self.take_bytes(usize::from(length))
    }
}

/// Parses the body; `None` if it ends too early.
fn parse_hello_body(body: &[u8]) -> Option<Result<ClientHello, &'static str>> {
    let mut at = HelloCursor(body);
    at.take_bytes(2 + 32)?;
    let session = at.take_u8()?;
    at.take_bytes(session)?;
    at.take_field()?;
    let compressions = at.take_u8()?;
    at.take_bytes(compressions)?;
    let mut hello = ClientHello::default();
    if at.0.is_empty() {
        return Some(Ok(hello));
    }
    let mut extensions = HelloCursor(at.take_field()?);
    if !at.0.is_empty() {
        return Some(Err("the client hello has data after its extensions"));
    }
    let mut names = 0;
    while !extensions.0.is_empty() {
        let kind = extensions.take_u16()?;
        let value = extensions.take_field()?;
        if kind == SERVER_NAME_EXTENSION {
            names += 1;
            match server_name(value)? {
                Ok(name) => hello.server_name = Some(name),
                Err(why) => return Some(Err(why)),
            }
        }
        hello.encrypted |= ENCRYPTED_HELLO_EXTENSIONS.contains(&kind);
    }
    if names > 1 {
        return Some(Err("the client hello names servers twice"));
    }
    Some(Ok(hello))
}

fn server_name(value: &[u8]) -> Option<Result<Vec<u8>, &'static str>> {
    let mut outer = HelloCursor(value);
    let mut list = HelloCursor(outer.take_field()?);
    let kind = list.take_u8()?;
    let name = list.take_field()?;
    if kind != 0 || !list.0.is_empty() || !outer.0.is_empty() || name.is_empty() {
        return Some(Err("the client hello's server name is not one name"));
    }
    Some(Ok(name.to_vec()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Builds a client hello with these extensions.
    pub(crate) fn build_hello_body(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        let mut list = Vec::new();
        for (kind, value) in extensions {
            list.extend(kind.to_be_bytes());
            list.extend((value.len() as u16).to_be_bytes());
            list.extend(value);
        }
        body.extend((list.len() as u16).to_be_bytes());
        body.extend(list);
        body
    }

    pub(crate) fn server_name_extension(name: &[u8]) -> (u16, Vec<u8>) {
        let mut value = ((name.len() + 3) as u16).to_be_bytes().to_vec();
        value.push(0);
        value.extend((name.len() as u16).to_be_bytes());
        value.extend(name);
        (0, value)
    }

    /// Splits it into records of at most `piece` bytes.
    pub(crate) fn split_into_records(body: &[u8], piece: usize) -> Vec<u8> {
        let mut message = vec![1];
        message.extend(&(body.len() as u32).to_be_bytes()[1..]);
        message.extend(body);
        let mut out = Vec::new();
        for part in message.chunks(piece) {
            out.extend([22, 3, 1]);
            out.extend((part.len() as u16).to_be_bytes());
            out.extend(part);
        }
        out
    }

    fn parse_named_hello(name: &[u8]) -> FirstBytesKind {
        FirstBytesKind::Hello(ClientHello { server_name: Some(name.to_vec()), encrypted: false })
    }

    #[test]
    fn the_server_name_is_found_however_it_is_cut() {
        let body = build_hello_body(&[(10, vec![0; 6]), server_name_extension(b"allowed.test"), (0xfe, vec![])]);
        for piece in [1, 2, 3, 5, 40, 16384] {
            let bytes = split_into_records(&body, piece);
            assert_eq!(parse_first_bytes(&bytes), parse_named_hello(b"allowed.test"), "{piece}");
            for length in 0..bytes.len() {
                assert_eq!(parse_first_bytes(&bytes[..length]), FirstBytesKind::Incomplete, "{piece} {length}");
            }
        }
    }

    #[test]
    fn missing_and_encrypted_keys_are_reported() {
        assert_eq!(
            parse_first_bytes(&split_into_records(&build_hello_body(&[]), 999)),
            FirstBytesKind::Hello(ClientHello::default())
        );
        assert_eq!(
            parse_first_bytes(&split_into_records(&build_hello_body(&[])[..43 - 2], 999)),
            FirstBytesKind::Hello(ClientHello::default())
        );
        let seen = parse_first_bytes(&split_into_records(
            &build_hello_body(&[server_name_extension(b"outer.test"), (0xfe0d, vec![1])]),
            999,
        ));
        assert_eq!(
            seen,
            FirstBytesKind::Hello(ClientHello { server_name: Some(b"outer.test".to_vec()), encrypted: true })
        );
    }

    #[test]
    fn non_tls_and_malformed_tls() {
        for other in [&b"GET / HTTP/1.1"[..], b"SSH-2.0", &[22, 2], &[0x80, 0x2e, 1]] {
            assert_eq!(parse_first_bytes(other), FirstBytesKind::Other);
        }
        let two = build_hello_body(&[server_name_extension(b"a.test"), server_name_extension(b"b.test")]);
        let mut pair = server_name_extension(b"a.test").1;
        pair.extend([0, 0, 1, b'b']);
        pair[1] += 4;
        let mut cut = build_hello_body(&[server_name_extension(b"a.test")]);
        cut.truncate(50);
        let mut tail = build_hello_body(&[]);
        tail.push(0);
        for bad in [
            two,
            build_hello_body(&[(0, pair)]),
            build_hello_body(&[server_name_extension(b"")]),
            build_hello_body(&[(0, vec![])]),
            cut,
            tail,
            vec![],
        ] {
            assert!(
                matches!(parse_first_bytes(&split_into_records(&bad, 999)), FirstBytesKind::Malformed(_)),
                "{bad:?}"
            );
        }
        for bad in
            [&[22, 3, 1, 0, 0][..], &[22, 3, 1, 0, 4, 2, 0, 0, 0], &[22, 3, 1, 0x50, 0], &[22, 3, 1, 0, 4, 1, 9, 9, 9]]
        {
            assert!(matches!(parse_first_bytes(bad), FirstBytesKind::Malformed(_)), "{bad:?}");
        }
        let mixed = [split_into_records(&build_hello_body(&[]), 9)[..14].to_vec(), vec![23, 3, 1, 0, 1, 0]].concat();
        assert!(matches!(parse_first_bytes(&mixed), FirstBytesKind::Malformed(_)));
        let slow: Vec<u8> = split_into_records(&vec![0; MAX_HELLO_BYTES], 1);
        assert!(matches!(parse_first_bytes(&slow[..MAX_HELLO_BYTES]), FirstBytesKind::Malformed(_)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_fall_over(mut bytes: Vec<u8>, cut in 0usize..200) {
            parse_first_bytes(&bytes);
            bytes.splice(0..0, [22, 3, 1]);
            parse_first_bytes(&bytes);
            let mut good = split_into_records(&build_hello_body(&[server_name_extension(b"a.test"), (0xfe0d, vec![1])]), 7);
            good.truncate(cut);
            good.extend(bytes);
            parse_first_bytes(&good);
        }
    }
}
