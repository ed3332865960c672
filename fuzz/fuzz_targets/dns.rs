//! Any bytes as a question for a name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_egress::fuzzing::{DnsQuestion, Message, ResponseCode, pointer_to};

fuzz_target!(|bytes: &[u8]| check_dns_message(bytes));

/// Checks a question for a name: the answer is well formed and repeats the name.
fn check_dns_message(bytes: &[u8]) {
    let question = match DnsQuestion::parse_query(bytes) {
        Ok(question) => question,
        Err(unanswerable) => {
            assert!(unanswerable.answer.is_none_or(|answer| answer.len() >= 12 && answer[2] & 0x80 != 0));
            return;
        }
    };
    let address = std::net::IpAddr::from(std::net::Ipv4Addr::LOCALHOST);
    let records = vec![address.into(), pointer_to("a.test").expect("a name")];
    let answer = question.encode_answer(ResponseCode::NoError, records).expect("two records fit");
    let Ok(read) = Message::from_vec(&answer) else { panic!("an answer that cannot be read: {answer:?}") };
    assert_eq!((read.queries.len(), read.answers.len()), (1, 2));
    if let Some(name) = &question.name {
        let labels: Vec<&[u8]> = read.queries[0].name().iter().collect();
        assert_eq!(labels.join(&b'.').to_ascii_lowercase(), name.as_bytes());
    }
}
