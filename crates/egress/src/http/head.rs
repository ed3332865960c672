//! Heads of HTTP/1 messages. Anything that two parsers could read differently is refused: bare line
//! feeds, folded lines, two lengths, two hosts.
//!
//! This module must not depend on sockets or targets.
//!
//! Facts: RFC 9110 and RFC 9112.

use stockade_model::NameList;

/// Longest head, in bytes.
pub const MAX_HEAD_BYTES: usize = 64 << 10;
/// Most fields of a head.
pub const FIELDS_MAX: usize = 128;

/// Field of a head, as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderField {
    /// Name, with the case that was received.
    pub name: String,
    /// Value, without spaces around it.
    pub value: Vec<u8>,
}

/// Framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// No body.
    None,
    /// This many bytes.
    Length(u64),
    /// Chunks.
    Chunked,
    /// Until the connection is closed; answers only.
    UntilClose,
}

/// Head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// The method.
    pub method: String,
    /// The request target, as it was written.
    pub target: String,
    /// 0 or 1, of `HTTP/1.x`.
    pub minor: u8,
    /// The fields in their order.
    pub fields: Vec<HeaderField>,
    /// Framing of the body.
    pub framing: BodyFraming,
}

/// Head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// 0 or 1, of `HTTP/1.x`.
    pub minor: u8,
    /// The status.
    pub status: u16,
    /// The reason phrase.
    pub reason: String,
    /// The fields in their order.
    pub fields: Vec<HeaderField>,
    /// Framing of the body.
    pub framing: BodyFraming,
}

/// Returns the end of the head at the start of `bytes`. `Ok(None)` if it is incomplete.
///
/// # Errors
/// The reason if the bytes cannot be a head.
pub fn end_of_head(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut line_start = 0;
    for (at, &byte) in bytes.iter().enumerate().take(MAX_HEAD_BYTES) {
        match byte {
            b'\n' if at == 0 || bytes[at - 1] != b'\r' => return Err("a line ends in a bare line feed"),
            b'\n' if at - line_start == 1 => return Ok(Some(at + 1)),
            b'\n' => line_start = at + 1,
            0 => return Err("the head contains a NUL byte"),
            _ if at > 0 && bytes[at - 1] == b'\r' => return Err("a carriage return has no line feed after it"),
            b' ' | b'\t' if at == line_start && at > 0 => return Err("a line is folded"),
            _ => {}
        }
    }
    if bytes.len() >= MAX_HEAD_BYTES { Err("the head is too long") } else { Ok(None) }
}

fn fields_of(headers: &[httparse::Header<'_>]) -> Vec<HeaderField> {
    headers.iter().map(|h| HeaderField { name: h.name.to_owned(), value: h.value.to_vec() }).collect()
}

/// Returns all values of a field.
pub fn field_values<'a>(fields: &'a [HeaderField], name: &str) -> impl Iterator<Item = &'a [u8]> {
    fields.iter().filter(move |f| f.name.eq_ignore_ascii_case(name)).map(|f| f.value.as_slice())
}

/// Returns whether a field with a list of words contains this word.
pub fn has_word(fields: &[HeaderField], name: &str, word: &str) -> bool {
    let words = field_values(fields, name).flat_map(|v| v.split(|b| *b == b','));
    words.map(<[u8]>::trim_ascii).any(|w| w.eq_ignore_ascii_case(word.as_bytes()))
}

/// Fields that determine the end, the target, the purpose or the next protocol of a message.
const GUARDED_FIELDS: NameList = NameList::new(include_str!("../../data/guarded_fields.txt"));

/// Returns whether some servers take a field of this name for another one. Gateways to programs
/// (CGI and similar) make the same variable of `_`, `.` and `-`.
fn is_misspelt(name: &str) -> bool {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let read: String = name.chars().map(letter).collect();
    GUARDED_FIELDS.contains(&read) && !read.eq_ignore_ascii_case(name)
}

/// Returns the length in the fields. Both kinds of length, or one of them twice, are refused.
fn parse_body_length(fields: &[HeaderField], minor: u8) -> Result<Option<BodyFraming>, &'static str> {
    let mut lengths = field_values(fields, "content-length");
    let mut codings = field_values(fields, "transfer-encoding");
    match (lengths.next(), lengths.next(), codings.next(), codings.next()) {
        (None, _, None, _) => Ok(None),
        (Some(length), None, None, _) => {
            let digits = !length.is_empty() && length.len() <= 18 && length.iter().all(u8::is_ascii_digit);
            let number = std::str::from_utf8(length).ok().filter(|_| digits).and_then(|t| t.parse().ok());
            number.map(|n| Some(BodyFraming::Length(n))).ok_or("the length is not a number")
        }
        (None, _, Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") && minor == 1 => {
            Ok(Some(BodyFraming::Chunked))
        }
        (None, _, Some(_), _) => Err("the transfer coding is not `chunked` alone"),
        _ => Err("the length occurs twice"),
    }
}

impl RequestHead {
    /// Parses a complete head, as found by [`end_of_head`].
    ///
    /// # Errors
    /// The reason if it is invalid.
    pub fn parse_head(head: &[u8]) -> Result<Self, &'static str> {
        let mut headers = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(head) {
            Ok(httparse::Status::Complete(length)) if length == head.len() => {}
            Ok(_) => return Err("the head is not complete"),
            Err(httparse::Error::TooManyHeaders) => return Err("the head has too many fields"),
            Err(_) => return Err("the head is not well formed"),
        }
        let (Some(method), Some(target), Some(minor)) = (parsed.method, parsed.path, parsed.version) else {
            return Err("the head is not well formed");
        };
        if target.bytes().any(|b| b <= b' ' || b == 0x7f || matches!(b, b'\\' | b'"' | b'<' | b'>')) {
            return Err("the request target contains invalid bytes");
        }
        let fields = fields_of(parsed.headers);
        if fields.iter().any(|f| f.value.iter().any(|b| *b < b' ' && *b != b'\t' || *b == 0x7f)) {
            return Err("a header field contains invalid bytes");
        }
        if fields.iter().any(|field| is_misspelt(&field.name)) {
            return Err("some servers confuse the name of a header field with another one");
        }
        let framing = parse_body_length(&fields, minor)?.unwrap_or(BodyFraming::None);
        Ok(Self { method: method.to_owned(), target: target.to_owned(), minor, fields, framing })
    }

    /// Returns the head to forward.
    pub fn encode_head(&self) -> Vec<u8> {
        let line = format!("{} {} HTTP/1.{}", self.method, self.target, self.minor);
        encode_lines(line.into_bytes(), &self.fields, |_| {})
    }

    /// Returns whether the client keeps the connection open for further requests.
    pub fn is_kept(&self) -> bool {
        is_kept(self.minor, &self.fields)
    }

    /// Replaces a field at any position, or adds it at the front.
    pub fn set_field(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.fields.insert(0, HeaderField { name: name.to_owned(), value: value.into() });
    }

    /// Removes words from a field with a list; removes a field that becomes empty.
    pub fn remove_words(&mut self, name: &str, words: &[&str]) {
        let is_kept = |word: &&[u8]| {
            let word = word.trim_ascii();
            !word.is_empty() && !words.iter().any(|other| word.eq_ignore_ascii_case(other.as_bytes()))
        };
        for field in self.fields.iter_mut().filter(|field| field.name.eq_ignore_ascii_case(name)) {
            let remaining_words: Vec<&[u8]> =
                field.value.split(|b| *b == b',').filter(is_kept).map(<[u8]>::trim_ascii).collect();
            field.value = remaining_words.join(&b", "[..]);
        }
        self.fields.retain(|field| !field.value.is_empty() || !field.name.eq_ignore_ascii_case(name));
    }

    /// Removes a field.
    pub fn remove(&mut self, name: &str) {
        self.fields.retain(|f| !f.name.eq_ignore_ascii_case(name));
    }
}

impl ResponseHead {
    /// Parses a complete head of an answer to a request with this method.
    ///
    /// # Errors
    /// The reason if it is invalid.
    pub fn parse_head(head: &[u8], method: &str) -> Result<Self, &'static str> {
        let mut headers = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Response::new(&mut headers);
        match parsed.parse(head) {
            Ok(httparse::Status::Complete(length)) if length == head.len() => {}
            _ => return Err("the answer's head is not well formed"),
        }
        let (Some(status @ 100..), Some(minor)) = (parsed.code, parsed.version) else {
            return Err("the answer's head is not well formed");
        };
        let reason = parsed.reason.unwrap_or_default().to_owned();
        let fields = fields_of(parsed.headers);
        let has_none = method == "HEAD" || matches!(status, 100..=199 | 204 | 304);
        let framing = match parse_body_length(&fields, minor) {
            _ if has_none => BodyFraming::None,
            body_length => body_length?.unwrap_or(BodyFraming::UntilClose),
        };
        Ok(Self { minor, status, reason, fields, framing })
    }

    /// Returns the head to forward, with `change` applied to each part that does not determine the
    /// end of the body. The change keeps lengths.
    pub fn bytes_with(&self, change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut reason = self.reason.clone().into_bytes();
        change(&mut reason);
        let status = format!("HTTP/1.{} {} ", self.minor, self.status).into_bytes();
        encode_lines([status, reason].concat(), &self.fields, change)
    }

    /// Returns whether the server keeps the connection open for further answers.
    pub fn is_kept(&self) -> bool {
        self.framing != BodyFraming::UntilClose && is_kept(self.minor, &self.fields)
    }
}

/// Returns whether the reader of an answer finds its end by this field.
fn says_length(field: &HeaderField) -> bool {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    let has_digits = !field.value.is_empty() && field.value.iter().all(u8::is_ascii_digit);
    (is("content-length") && has_digits) || (is("transfer-encoding") && field.value.eq_ignore_ascii_case(b"chunked"))
}

fn is_kept(minor: u8, fields: &[HeaderField]) -> bool {
    match minor {
        0 => has_word(fields, "connection", "keep-alive"),
        _ => !has_word(fields, "connection", "close"),
    }
}

/// Returns a head, with `change` applied to each field that does not determine the end of the body.
fn encode_lines(mut out: Vec<u8>, fields: &[HeaderField], change: impl Fn(&mut [u8])) -> Vec<u8> {
    out.extend(b"\r\n");
    for field in fields {
        let mut line = [field.name.as_bytes(), b": ", &field.value].concat();
        if !says_length(field) {
            change(&mut line);
            line[field.name.len()..][..2].copy_from_slice(b": ");
        }
        out.extend(line);
        out.extend(b"\r\n");
    }
    out.extend(b"\r\n");
    out
}

/// Checks the fields after a chunked body, which are a head without its first line. None of them
/// may determine the start, the end or the target of a message.
///
/// # Errors
/// The reason for the refusal.
pub fn check_trailer(lines: &[u8]) -> Result<(), &'static str> {
    let mut headers = [httparse::EMPTY_HEADER; FIELDS_MAX];
    match httparse::parse_headers(lines, &mut headers) {
        Ok(httparse::Status::Complete((length, fields))) if length == lines.len() => {
            let is_guarded = |name: &str| GUARDED_FIELDS.contains(name.to_ascii_lowercase());
            let odd = |h: &httparse::Header<'_>| is_guarded(h.name) || is_misspelt(h.name);
            if fields.iter().any(odd) { Err("a header field is not allowed after the body") } else { Ok(()) }
        }
        _ => Err("the trailer fields are not well formed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8]) -> Result<RequestHead, &'static str> {
        let end = end_of_head(text)?.ok_or("incomplete")?;
        RequestHead::parse_head(&text[..end])
    }

    #[test]
    fn a_request_is_read_and_written_as_it_was() {
        let text = b"POST /a?b=c HTTP/1.1\r\nHost: a.test\r\nX-Odd:  two words \r\nContent-Length: 5\r\n\r\n";
        let request = read(text).unwrap();
        assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/a?b=c"));
        assert_eq!(request.framing, BodyFraming::Length(5));
        assert!(request.is_kept());
        let sent = String::from_utf8(request.encode_head()).unwrap();
        assert_eq!(sent, "POST /a?b=c HTTP/1.1\r\nHost: a.test\r\nX-Odd: two words\r\nContent-Length: 5\r\n\r\n");
        assert!(!read(b"GET / HTTP/1.0\r\n\r\n").unwrap().is_kept());
        assert!(!read(b"GET / HTTP/1.1\r\nConnection: x, Close\r\n\r\n").unwrap().is_kept());
    }

    #[test]
    fn ambiguous_text_is_refused() {
        for bad in [
            &b"GET / HTTP/1.1\nHost: a\n\n"[..],
            b"GET / HTTP/1.1\r\nHost: a\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            b"GET / HTTP/1.1\r\nHo\0st: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: b\0\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: b\rc: d\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: b\x01\r\n\r\n",
            b"GET /a b HTTP/1.1\r\n\r\n",
            b"GET /\x7f HTTP/1.1\r\n\r\n",
            b"GET / HTTP/2.0\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: \r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"\r\nGET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer_Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent_Length: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding\t: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding\x0b: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: \"chunked\"\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked;x=y\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding:\r\n chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding:\r\nX: y\r\n\r\n",
            b"GET / HTTP/1.1\r\ntransfer.encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nTRANSFER~ENCODING: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer\xe2\x80\x90Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent.Length: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 0x1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length[]: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\n: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
            b"GET / HTTP/1.1\r\nProxy_Connection: close\r\n\r\n",
            b"GET / HTTP/1.1\r\nProxy.Authorization: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nKeep_Alive: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHTTP2_Settings: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nX_HTTP_Method_Override: DELETE\r\n\r\n",
            b"GET / HTTP/1.1\r\nX-Original_URL: /admin\r\n\r\n",
        ] {
            assert!(read(bad).is_err(), "{}", bad.escape_ascii());
        }
        let long = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(100_000));
        assert_eq!(read(long.as_bytes()), Err("the head is too long"));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(129));
        assert_eq!(read(many.as_bytes()), Err("the head has too many fields"));
    }

    #[test]
    fn answers() {
        let read = |text: &[u8], method| ResponseHead::parse_head(text, method);
        let of = |text: &[u8], method| read(text, method).unwrap().framing;
        assert_eq!(of(b"HTTP/1.1 200 OK\r\n\r\n", "GET"), BodyFraming::UntilClose);
        assert_eq!(of(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "GET"), BodyFraming::Length(3));
        assert_eq!(of(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "HEAD"), BodyFraming::None);
        assert_eq!(of(b"HTTP/1.1 204 No\r\n\r\n", "GET"), BodyFraming::None);
        assert_eq!(of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", "GET"), BodyFraming::Chunked);
        let both = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(read(both, "GET").is_err());
        for none in [&b"SSH-2.0-x\r\n\r\n"[..], b"HTTP/1.1 099 OK\r\n\r\n"] {
            assert!(read(none, "GET").is_err());
        }
    }

    #[test]
    fn a_change_of_an_answer_leaves_its_form() {
        let text = b"HTTP/1.1 200 so fine\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n";
        let answer = ResponseHead::parse_head(text, "HEAD").unwrap();
        let changed = answer.bytes_with(|bytes| bytes.fill(b'*'));
        assert_eq!(
            String::from_utf8(changed).unwrap(),
            "HTTP/1.1 200 *******\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n*: *\r\n\r\n"
        );
        // If there is no body, these fields can have any content.
        let answer = ResponseHead::parse_head(b"HTTP/1.1 204 No\r\nContent-Length: a secret\r\n\r\n", "GET").unwrap();
        assert!(!String::from_utf8(answer.bytes_with(|bytes| bytes.fill(b'*'))).unwrap().contains("secret"));
    }

    #[test]
    fn words_are_taken_out_of_a_list() {
        let text = b"GET / HTTP/1.1\r\nConnection: Upgrade, close ,HTTP2-Settings\r\nconnection: upgrade\r\n\r\n";
        let mut request = read(text).unwrap();
        request.remove_words("Connection", &["upgrade", "http2-settings"]);
        assert_eq!(request.encode_head(), b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
    }

    #[test]
    fn trailers() {
        assert!(check_trailer(b"x-amz-checksum-crc32: AAAA\r\n\r\n").is_ok());
        assert!(check_trailer(b"\r\n").is_ok());
        assert!(check_trailer(b"Host: b\r\n\r\n").is_err());
        assert!(check_trailer(b"a b\r\n\r\n").is_err());
        for name in ["Content_Length", "Upgrade", "TE", "Transfer.Encoding", "Expect", "Proxy-Authorization"] {
            assert!(check_trailer(format!("{name}: 1\r\n\r\n").as_bytes()).is_err(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_fall_over(bytes: Vec<u8>) {
            let _ = read(&bytes);
            let _ = read(&[&b"GET / HTTP/1.1\r\n"[..], &bytes, b"\r\n\r\n"].concat());
        }

        #[test]
        fn forwarded_requests_are_parsed_the_same(name in "[A-Za-z-]{1,9}", value in "[ -~]{0,20}", path in "/[!-~]{0,9}") {
            let text = format!("GET {path} HTTP/1.1\r\n{name}: {value}\r\n\r\n");
            if let Ok(request) = read(text.as_bytes()) {
                prop_assert_eq!(read(&request.encode_head()), Ok(request));
            }
        }
    }
}
