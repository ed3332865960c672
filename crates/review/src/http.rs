//! One HTTP/1.1 exchange (RFC 9112): one request, one response, then the
//! connection is closed. Redirects are not followed, nothing is kept, encoded
//! contents are refused, and everything received is bounded.

use std::io::{self, Read, Write};

use crate::connect::ConnectError;

/// Longest head of a response, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Most header fields of a response.
const MAX_FIELDS: usize = 64;
/// Longest body of a response, in bytes.
pub(crate) const MAX_BODY_BYTES: usize = 64 * 1024;
/// Longest line of a chunk's size, in bytes.
const MAX_CHUNK_LINE_BYTES: usize = 256;
/// Interim responses (status 1xx) before the real one.
const MAX_INTERIM: usize = 4;

/// Why there is no response. Never holds the other end's own text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("it did not answer in time")]
    TimedOut,
    #[error("its certificate is not accepted: {0}")]
    Certificate(rustls::CertificateError),
    #[error("the connection failed: {0}")]
    Connection(io::ErrorKind),
    #[error("its answer was cut off")]
    CutOff,
    #[error("its answer is too long")]
    TooLong,
    #[error("its answer is no HTTP that is understood here")]
    Malformed,
    #[error("it answered with status {status}{}", meaning(*status))]
    Status {
        status: u16,
        /// What came with it, for the record.
        body: Vec<u8>,
    },
}

fn meaning(status: u16) -> &'static str {
    match status {
        300..=399 => ": redirects are not followed",
        401 | 403 => ": the key is not accepted",
        404 => ": no such path or model",
        429 => ": too many requests",
        _ => "",
    }
}

impl From<io::Error> for ExchangeError {
    fn from(error: io::Error) -> Self {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match (error.kind(), tls) {
            (_, Some(rustls::Error::InvalidCertificate(why))) => Self::Certificate(why.clone()),
            (io::ErrorKind::TimedOut, _) => Self::TimedOut,
            (io::ErrorKind::UnexpectedEof, _) => Self::CutOff,
            (kind, _) => Self::Connection(kind),
        }
    }
}

/// Sends `request` whole and reads the body of the response.
pub(crate) fn exchange(connection: &mut (impl Read + Write), request: &[u8]) -> Result<Vec<u8>, ExchangeError> {
    connection.write_all(request)?;
    connection.flush()?;
    let mut incoming = Incoming { connection, bytes: Vec::new(), closed: false };
    let mut head = incoming.head()?;
    for _ in 0..MAX_INTERIM {
        if !(100..200).contains(&head.status) {
            break;
        }
        head = incoming.head()?;
    }
    let body = match head.length {
        Length::Bytes(length) => incoming.exactly(length),
        Length::Chunked => incoming.chunks(),
        Length::ToTheEnd => incoming.to_the_end(),
    };
    match head.status {
        200 => body,
        // Why it does not answer is worth a look, where it can be had.
        status => Err(ExchangeError::Status { status, body: body.unwrap_or_default() }),
    }
}

struct Head {
    status: u16,
    length: Length,
}

#[derive(Clone, Copy)]
enum Length {
    Bytes(usize),
    Chunked,
    ToTheEnd,
}

/// What was received and not yet used.
struct Incoming<'a, C> {
    connection: &'a mut C,
    bytes: Vec<u8>,
    closed: bool,
}

impl<C: Read> Incoming<'_, C> {
    /// Receives more; false at the end.
    fn more(&mut self) -> Result<bool, ExchangeError> {
        let mut buffer = [0; 8 * 1024];
        while !self.closed {
            match self.connection.read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(length) => {
                    self.bytes.extend_from_slice(&buffer[..length]);
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    fn need_more(&mut self) -> Result<(), ExchangeError> {
        if self.more()? { Ok(()) } else { Err(ExchangeError::CutOff) }
    }

    fn head(&mut self) -> Result<Head, ExchangeError> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
            let mut response = httparse::Response::new(&mut fields);
            match response.parse(&self.bytes) {
                Ok(httparse::Status::Complete(length)) => {
                    let status = response.code.ok_or(ExchangeError::Malformed)?;
                    let head = Head { status, length: body_length(response.headers)? };
                    self.bytes.drain(..length);
                    return Ok(head);
                }
                Ok(httparse::Status::Partial) => {}
                Err(_) => return Err(ExchangeError::Malformed),
            }
            if self.bytes.len() > MAX_HEAD_BYTES {
                return Err(ExchangeError::TooLong);
            }
            self.need_more()?;
        }
    }

    fn exactly(&mut self, length: usize) -> Result<Vec<u8>, ExchangeError> {
        if length > MAX_BODY_BYTES {
            return Err(ExchangeError::TooLong);
        }
        while self.bytes.len() < length {
            self.need_more()?;
        }
        let rest = self.bytes.split_off(length);
        Ok(std::mem::replace(&mut self.bytes, rest))
    }

    fn to_the_end(&mut self) -> Result<Vec<u8>, ExchangeError> {
        while self.more()? {
            if self.bytes.len() > MAX_BODY_BYTES {
                return Err(ExchangeError::TooLong);
            }
        }
        Ok(std::mem::take(&mut self.bytes))
    }

    fn chunks(&mut self) -> Result<Vec<u8>, ExchangeError> {
        let mut body = Vec::new();
        loop {
            let size = self.chunk_size()?;
            if size == 0 {
                // Trailers say nothing that is wanted.
                return Ok(body);
            }
            if size > MAX_BODY_BYTES || body.len() + size > MAX_BODY_BYTES {
                return Err(ExchangeError::TooLong);
            }
            body.extend(self.exactly(size)?);
            if self.exactly(2)? != b"\r\n" {
                return Err(ExchangeError::Malformed);
            }
        }
    }

    fn chunk_size(&mut self) -> Result<usize, ExchangeError> {
        let end = loop {
            if let Some(end) = self.bytes.windows(2).position(|pair| pair == b"\r\n") {
                break end;
            }
            if self.bytes.len() > MAX_CHUNK_LINE_BYTES {
                return Err(ExchangeError::Malformed);
            }
            self.need_more()?;
        };
        let line: Vec<u8> = self.bytes.drain(..end + 2).take(end).collect();
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let digits = std::str::from_utf8(digits).map_err(|_| ExchangeError::Malformed)?;
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ExchangeError::Malformed);
        }
        // More digits than fit are more than is read.
        usize::from_str_radix(digits, 16).map_err(|_| ExchangeError::TooLong)
    }
}

/// RFC 9112, 6.3, at its strictest: what says two things says nothing.
fn body_length(fields: &[httparse::Header<'_>]) -> Result<Length, ExchangeError> {
    let mut length = Length::ToTheEnd;
    for field in fields {
        let value = std::str::from_utf8(field.value).map_err(|_| ExchangeError::Malformed)?.trim();
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if is("content-encoding") && !value.eq_ignore_ascii_case("identity") {
            return Err(ExchangeError::Malformed);
        }
        let said = if is("transfer-encoding") {
            if !value.eq_ignore_ascii_case("chunked") {
                return Err(ExchangeError::Malformed);
            }
            Length::Chunked
        } else if is("content-length") {
            let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            match value.parse() {
                Ok(bytes) if digits => Length::Bytes(bytes),
                _ if digits => return Err(ExchangeError::TooLong),
                _ => return Err(ExchangeError::Malformed),
            }
        } else {
            continue;
        };
        if !matches!(length, Length::ToTheEnd) {
            return Err(ExchangeError::Malformed);
        }
        length = said;
    }
    Ok(length)
}
