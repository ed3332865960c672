//! DNS messages: reads one question and writes the answer. Accepts only messages of stub resolvers
//! (a header, one question, perhaps EDNS). Every other message is an error with an answer of its
//! own. The work is bounded by the message, because compression pointers are not followed.
//!
//! The code is Stockade's own and not a library's. Only one question and seven kinds of answer are
//! needed, and absent code cannot be attacked.
//!
//! This module must not depend on sockets or the table of names.
//!
//! Facts: RFC 1035 (messages), RFC 6891 (EDNS), RFC 9460 (types 64 and 65).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest question that is read; a longer datagram is answered "format error".
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Time to live of an answer in seconds. A name keeps its address for the whole run. The time is
/// short, so that "no such name" is asked again.
const TTL_S: u32 = 60;

const HEADER_BYTES: usize = 12;
const CLASS_IN: u16 = 1;
const TYPE_OPT: u16 = 41;

/// Response code with its number in RFC 1035.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DnsResponseCode {
    /// Success, perhaps without records.
    NoError = 0,
    /// The question cannot be read.
    FormatError = 1,
    /// The table is full, or the real answer is unavailable.
    ServerFailure = 2,
    /// The name does not exist.
    NoSuchName = 3,
    /// The message is not a query.
    NotImplemented = 4,
    /// The class is not the Internet's.
    Refused = 5,
}

/// Type of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsQuestionType {
    /// IPv4 address.
    A,
    /// IPv6 address.
    Aaaa,
    /// Name of an address.
    Ptr,
    /// Any other type; answered without records.
    Other(u16),
}

/// Question, with the data that an answer must repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsQuestion {
    id: u16,
    recursion_desired: bool,
    /// The question's bytes as received, with the case of its letters.
    raw: Vec<u8>,
    edns: bool,
    /// The name in lower case, without a trailing dot, if every byte of it is a letter, digit, `-`
    /// or `_`. `None` for other names, which cannot be hosts.
    pub name: Option<String>,
    /// The type.
    pub kind: DnsQuestionType,
}

/// Content of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsRecord {
    /// A or AAAA.
    Address(IpAddr),
    /// PTR.
    Name(String),
}

/// Message that is not one question of the Internet's class. `answer` is the error message to send.
/// `None` if even that would be wrong (an answer, a fragment).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnanswerableQuery {
    /// The error message to send.
    pub answer: Option<Vec<u8>>,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at.checked_add(1)?)?]))
}

impl DnsQuestion {
    /// Reads one query. Errors: see [`UnanswerableQuery`].
    pub fn parse_query(message: &[u8]) -> Result<Self, UnanswerableQuery> {
        let (Some(id), Some(flags)) = (u16_at(message, 0), u16_at(message, 2)) else {
            return Err(UnanswerableQuery { answer: None });
        };
        // An answer is never answered, because two servers would exchange messages forever.
        if message.len() < HEADER_BYTES || flags & 0x8000 != 0 {
            return Err(UnanswerableQuery { answer: None });
        }
        let error = |code: DnsResponseCode| UnanswerableQuery { answer: Some(encode_header(id, flags, code)) };
        if flags & 0x7800 != 0 {
            return Err(error(DnsResponseCode::NotImplemented));
        }
        if message.len() > MAX_MESSAGE_BYTES || u16_at(message, 4) != Some(1) {
            return Err(error(DnsResponseCode::FormatError));
        }
        let (name, end) = name_at(message, HEADER_BYTES).ok_or_else(|| error(DnsResponseCode::FormatError))?;
        let (Some(kind), Some(class)) = (u16_at(message, end), u16_at(message, end + 2)) else {
            return Err(error(DnsResponseCode::FormatError));
        };
        if class != CLASS_IN {
            return Err(error(DnsResponseCode::Refused));
        }
        let kind = match kind {
            1 => DnsQuestionType::A,
            28 => DnsQuestionType::Aaaa,
            12 => DnsQuestionType::Ptr,
            other => DnsQuestionType::Other(other),
        };
        Ok(Self {
            id,
            recursion_desired: flags & 0x0100 != 0,
            raw: message[HEADER_BYTES..end + 4].to_vec(),
            edns: has_edns(message, end + 4),
            name,
            kind,
        })
    }

    /// Writes the message that answers the question.
    pub fn encode_answer(&self, code: DnsResponseCode, records: &[DnsRecord]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.raw.len() + 32 * records.len() + 16);
        let recursion = if self.recursion_desired { 0x0100 } else { 0 };
        out.extend(self.id.to_be_bytes());
        out.extend((0x8080 | recursion | code as u16).to_be_bytes());
        out.extend(1u16.to_be_bytes());
        out.extend((records.len() as u16).to_be_bytes());
        out.extend(0u16.to_be_bytes());
        out.extend(u16::from(self.edns).to_be_bytes());
        out.extend(&self.raw);
        for record in records {
            // The name is the question's: a pointer to it.
            out.extend([0xc0, HEADER_BYTES as u8]);
            let (kind, data) = match record {
                DnsRecord::Address(IpAddr::V4(v4)) => (1u16, v4.octets().to_vec()),
                DnsRecord::Address(IpAddr::V6(v6)) => (28, v6.octets().to_vec()),
                DnsRecord::Name(name) => (12, wire_name(name)),
            };
            out.extend(kind.to_be_bytes());
            out.extend(CLASS_IN.to_be_bytes());
            out.extend(TTL_S.to_be_bytes());
            out.extend((data.len() as u16).to_be_bytes());
            out.extend(data);
        }
        if self.edns {
            // Root name, type, buffer of 1232 bytes, no flags, no options.
            out.extend([0, 0, TYPE_OPT as u8, 0x04, 0xd0, 0, 0, 0, 0, 0, 0]);
        }
        out
    }
}

/// Returns a header without a question.
fn encode_header(id: u16, flags: u16, code: DnsResponseCode) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES);
    out.extend(id.to_be_bytes());
    out.extend((0x8080 | flags & 0x7900 | code as u16).to_be_bytes());
    out.extend([0; 8]);
    out
}

/// Reads the name that starts at `at`; returns it with the offset after it. `None` if it is
/// malformed, which includes a pointer in a question. The inner value is `None` for a name with
/// other bytes.
fn name_at(message: &[u8], mut at: usize) -> Option<(Option<String>, usize)> {
    let start = at;
    let mut name = String::new();
    let mut plain = true;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        if length > 63 || at + length - start > 254 {
            return None;
        }
        let label = message.get(at..at + length)?;
        at += length;
        if !name.is_empty() {
            name.push('.');
        }
        for &byte in label {
            plain &= byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            name.push(char::from(byte.to_ascii_lowercase()));
        }
    }
    Some((plain.then_some(name), at))
}

/// Returns whether the first record after the question is an EDNS record.
fn has_edns(message: &[u8], at: usize) -> bool {
    let counts = [6, 8].iter().all(|&count| u16_at(message, count) == Some(0));
    counts
        && u16_at(message, 10).is_some_and(|n| n > 0)
        && message.get(at) == Some(&0)
        && u16_at(message, at + 1) == Some(TYPE_OPT)
}

/// Encodes a name as labels. Names come from [`crate::names`], so each label fits.
fn wire_name(name: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 2);
    for label in name.split('.').filter(|l| !l.is_empty() && l.len() < 64) {
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

/// Returns the address of a reverse name: `4.3.2.1.in-addr.arpa` or the nibbles of `ip6.arpa`.
/// `None` for every other name.
pub fn parse_reverse_name(name: &str) -> Option<IpAddr> {
    if let Some(digits) = name.strip_suffix(".in-addr.arpa") {
        let mut octets = [0u8; 4];
        let mut labels = digits.split('.');
        for slot in octets.iter_mut().rev() {
            let label = labels.next()?;
            *slot = label.parse().ok().filter(|n: &u8| n.to_string() == label)?;
        }
        return labels.next().is_none().then(|| IpAddr::V4(Ipv4Addr::from(octets)));
    }
    let nibbles = name.strip_suffix(".ip6.arpa")?;
    let mut value: u128 = 0;
    let mut count = 0;
    for label in nibbles.rsplit('.') {
        let [digit] = label.as_bytes() else { return None };
        value = value << 4 | u128::from(char::from(*digit).to_digit(16)?);
        count += 1;
    }
    (count == 32).then(|| IpAddr::V6(Ipv6Addr::from(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut out = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        out.extend(wire_name(name));
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        out
    }

    #[test]
    fn a_question_is_read_and_answered() {
        let question = DnsQuestion::parse_query(&query("PyPI.org", 1)).unwrap();
        assert_eq!((question.name.as_deref(), question.kind), (Some("pypi.org"), DnsQuestionType::A));
        let answer =
            question.encode_answer(DnsResponseCode::NoError, &[DnsRecord::Address("198.18.0.9".parse().unwrap())]);
        assert_eq!(answer[..12], [0x12, 0x34, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        // The answer repeats the question with its spelling.
        assert_eq!(answer[12..26], *b"\x04PyPI\x03org\0\0\x01\0\x01"[..14].as_ref());
        assert_eq!(answer[answer.len() - 6..], [0, 4, 198, 18, 0, 9]);
    }

    #[test]
    fn edns_is_answered_with_edns() {
        let mut message = query("a.b", 28);
        message[11] = 1;
        message.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        let answer = DnsQuestion::parse_query(&message).unwrap().encode_answer(DnsResponseCode::NoSuchName, &[]);
        assert_eq!(answer[2..4], [0x81, 0x83]);
        assert_eq!(answer[10..12], [0, 1]);
        assert_eq!(answer[answer.len() - 11..][..3], [0, 0, 41]);
    }

    #[track_caller]
    fn refused(message: &[u8], code: Option<DnsResponseCode>) {
        let answer = DnsQuestion::parse_query(message).expect_err("must not be read").answer;
        assert_eq!(answer.map(|a| a[3] & 15), code.map(|c| c as u8));
    }

    #[test]
    fn what_is_no_question_has_its_own_answer() {
        refused(b"", None);
        refused(b"\x12\x34\x01", None);
        let good = query("a.b", 1);
        for length in 0..good.len() {
            assert!(DnsQuestion::parse_query(&good[..length]).is_err(), "{length}");
        }
        let with = |at: usize, byte: u8| {
            let mut message = good.clone();
            message[at] = byte;
            message
        };
        refused(&with(2, 0x80), None);
        refused(&with(2, 0x28), Some(DnsResponseCode::NotImplemented));
        refused(&with(5, 2), Some(DnsResponseCode::FormatError));
        refused(&with(5, 0), Some(DnsResponseCode::FormatError));
        // A compression pointer, a label of 64, another class.
        refused(&with(12, 0xc0), Some(DnsResponseCode::FormatError));
        refused(&with(12, 64), Some(DnsResponseCode::FormatError));
        refused(&with(good.len() - 1, 3), Some(DnsResponseCode::Refused));
        let mut long = query(&["a".repeat(60).as_str(); 5].join("."), 1);
        refused(&long, Some(DnsResponseCode::FormatError));
        long.resize(5000, 0);
        refused(&long, Some(DnsResponseCode::FormatError));
    }

    #[test]
    fn odd_bytes_are_no_host() {
        let mut message = query("a-b.c_d", 1);
        assert_eq!(DnsQuestion::parse_query(&message).unwrap().name.as_deref(), Some("a-b.c_d"));
        for odd in [0, b'.', b' ', b'/', 0x80, b'\n'] {
            message[14] = odd;
            assert_eq!(DnsQuestion::parse_query(&message).unwrap().name, None, "{odd}");
        }
    }

    #[test]
    fn reverse_names() {
        assert_eq!(parse_reverse_name("9.0.18.198.in-addr.arpa"), Some("198.18.0.9".parse().unwrap()));
        let v6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.5.d.f.ip6.arpa";
        assert_eq!(parse_reverse_name(v6), Some("fd5d::1".parse().unwrap()));
        for bad in ["9.0.18.in-addr.arpa", "1.9.0.18.198.in-addr.arpa", "09.0.18.198.in-addr.arpa", "a.ip6.arpa", "x"] {
            assert_eq!(parse_reverse_name(bad), None, "{bad}");
        }
    }
}
