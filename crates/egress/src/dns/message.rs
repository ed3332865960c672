//! DNS messages: reads one question and writes the answer. Accepts only messages of stub resolvers
//! (a header, one question, perhaps EDNS). Every other message is an error with an answer of its
//! own. The work is bounded by the message: only EDNS is read after the question, and a question
//! with a compression pointer is refused.
//!
//! This module must not depend on sockets or the table of names.
//!
//! Facts: RFC 1035 (messages), RFC 6891 (EDNS), RFC 9460 (types 64 and 65).

use std::net::IpAddr;

use hickory_resolver::proto::ProtoError;
use hickory_resolver::proto::op::{Edns, Header, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_resolver::proto::rr::rdata::PTR;
use hickory_resolver::proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_resolver::proto::serialize::binary::{BinDecodable, BinDecoder, EncodedSize};

/// Longest question that is read; a longer datagram is answered "format error".
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Time to live of an answer in seconds. A name keeps its address for the whole run. The time is
/// short, so that "no such name" is asked again.
const TTL_S: u32 = 60;
/// Longest datagram that the answer to an EDNS question announces.
const MAX_PAYLOAD_BYTES: u16 = 1232;
/// Bytes of a question besides its name: type and class.
const QUESTION_TAIL_BYTES: usize = 4;

/// Question, with the data that an answer must repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsQuestion {
    /// Answer without code and records. It repeats the case of the name's letters.
    reply: Message,
    /// The name in lower case, without a trailing dot, if every byte of it is a letter, digit, `-`
    /// or `_`. `None` for other names, which cannot be hosts.
    pub name: Option<String>,
    /// The type.
    pub kind: RecordType,
}

/// Message that is not one question of the Internet's class. `answer` is the error message to send.
/// `None` if even that would be wrong (an answer, a fragment).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnanswerableQuery {
    /// The error message to send.
    pub answer: Option<Vec<u8>>,
}

impl DnsQuestion {
    /// Reads one query. Errors: see [`UnanswerableQuery`].
    pub fn parse_query(message: &[u8]) -> Result<Self, UnanswerableQuery> {
        let mut decoder = BinDecoder::new(message);
        let header = Header::read(&mut decoder).ok();
        // An answer is never answered, because two servers would exchange messages forever.
        let header = header.filter(|header| header.message_type == MessageType::Query);
        let Some(header) = header else { return Err(UnanswerableQuery { answer: None }) };
        let mut reply = Message::response(header.id, header.op_code);
        reply.metadata.recursion_desired = header.recursion_desired;
        reply.metadata.recursion_available = true;
        let empty = reply.clone();
        let error = |code| UnanswerableQuery { answer: encode_with_code(empty.clone(), code).ok() };
        if header.op_code != OpCode::Query {
            return Err(error(ResponseCode::NotImp));
        }
        if message.len() > MAX_MESSAGE_BYTES || header.counts.queries != 1 {
            return Err(error(ResponseCode::FormErr));
        }
        let query = Query::read(&mut decoder).map_err(|_| error(ResponseCode::FormErr))?;
        // A shorter encoding has a compression pointer.
        let name_bytes = query.name().iter().map(|label| label.len() + 1).sum::<usize>() + 1;
        if Header::LEN + name_bytes + QUESTION_TAIL_BYTES != decoder.index() {
            return Err(error(ResponseCode::FormErr));
        }
        if query.query_class() != DNSClass::IN {
            return Err(error(ResponseCode::Refused));
        }
        if header.counts.answers == 0 && header.counts.authorities == 0 && asks_edns(&mut decoder, &header) {
            let mut edns = Edns::new();
            edns.set_max_payload(MAX_PAYLOAD_BYTES);
            reply.set_edns(edns);
        }
        let (name, kind) = (plain_name(query.name()), query.query_type());
        reply.add_query(query);
        Ok(Self { reply, name, kind })
    }

    /// Writes the message that answers the question; `None` if the data does not fit a message.
    pub fn encode_answer(&self, code: ResponseCode, data: Vec<RData>) -> Option<Vec<u8>> {
        let mut reply = self.reply.clone();
        let name = self.reply.queries.first()?.name();
        reply.add_answers(data.into_iter().map(|data| Record::from_rdata(name.clone(), TTL_S, data)));
        encode_with_code(reply, code).ok()
    }
}

fn encode_with_code(mut reply: Message, code: ResponseCode) -> Result<Vec<u8>, ProtoError> {
    reply.metadata.response_code = code;
    reply.to_vec()
}

fn asks_edns(decoder: &mut BinDecoder<'_>, header: &Header) -> bool {
    let count = usize::from(header.counts.additionals);
    Message::read_records(decoder, count, true, header.op_code).is_ok_and(|(_, edns, _)| edns.is_some())
}

/// Returns a name in lower case, if every byte of it may be in a host's name.
fn plain_name(name: &Name) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let labels: Vec<&[u8]> = name.iter().collect();
    let is_host = labels.iter().all(|label| label.iter().all(is_plain));
    String::from_utf8(labels.join(&b'.')).ok().filter(|_| is_host).map(|text| text.to_ascii_lowercase())
}

/// Returns the content of a PTR record; `None` if the name fits none.
pub fn pointer_to(name: &str) -> Option<RData> {
    let mut name = Name::from_ascii(name).ok()?;
    name.set_fqdn(true);
    Some(RData::PTR(PTR(name)))
}

/// Returns the address of a reverse name: `4.3.2.1.in-addr.arpa` or the nibbles of `ip6.arpa`.
/// `None` for every other name.
pub fn parse_reverse_name(name: &str) -> Option<IpAddr> {
    let mut name = Name::from_ascii(name).ok()?;
    name.set_fqdn(true);
    let network = name.parse_arpa_name().ok()?;
    let address = network.addr();
    // A network has a shorter name, and `01` is another spelling of a number.
    (Name::from(address) == name && network.prefix_len() == network.max_prefix_len()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut out = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            out.push(label.len() as u8);
            out.extend(label.as_bytes());
        }
        out.push(0);
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        out
    }

    #[test]
    fn a_question_is_read_and_answered() {
        let question = DnsQuestion::parse_query(&query("PyPI.org", 1)).unwrap();
        assert_eq!((question.name.as_deref(), question.kind), (Some("pypi.org"), RecordType::A));
        let address: IpAddr = "198.18.0.9".parse().unwrap();
        let answer = question.encode_answer(ResponseCode::NoError, vec![address.into()]).unwrap();
        assert_eq!(answer[..12], [0x12, 0x34, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        // The answer repeats the question with its spelling.
        assert_eq!(answer[12..26], *b"\x04PyPI\x03org\0\0\x01\0\x01");
        assert_eq!(answer[answer.len() - 6..], [0, 4, 198, 18, 0, 9]);
    }

    #[test]
    fn edns_is_answered_with_edns() {
        let mut message = query("a.b", 28);
        message[11] = 1;
        message.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        let answer = DnsQuestion::parse_query(&message).unwrap().encode_answer(ResponseCode::NXDomain, vec![]).unwrap();
        assert_eq!(answer[2..4], [0x81, 0x83]);
        assert_eq!(answer[10..12], [0, 1]);
        assert_eq!(answer[answer.len() - 11..][..3], [0, 0, 41]);
    }

    #[track_caller]
    fn refused(message: &[u8], code: Option<ResponseCode>) {
        let answer = DnsQuestion::parse_query(message).expect_err("must not be read").answer;
        assert_eq!(answer.map(|a| a[3] & 15), code.map(ResponseCode::low));
    }

    #[test]
    fn a_message_without_a_question_has_its_own_answer() {
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
        refused(&with(2, 0x28), Some(ResponseCode::NotImp));
        refused(&with(5, 2), Some(ResponseCode::FormErr));
        refused(&with(5, 0), Some(ResponseCode::FormErr));
        // A compression pointer ahead and one back, a label of 64, another class.
        let mut pointer = good[..12].to_vec();
        pointer.extend([0xc0, 4, 0, 1, 0, 1]);
        refused(&pointer, Some(ResponseCode::FormErr));
        refused(&with(12, 0xc0), Some(ResponseCode::FormErr));
        refused(&with(12, 64), Some(ResponseCode::FormErr));
        refused(&with(good.len() - 1, 3), Some(ResponseCode::Refused));
        let mut long = query(&["a".repeat(60).as_str(); 5].join("."), 1);
        refused(&long, Some(ResponseCode::FormErr));
        long.resize(5000, 0);
        refused(&long, Some(ResponseCode::FormErr));
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
