//! Any texts in any stream, in any pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_egress::fuzzing::{PeerMasks, StreamKind, StreamMask};

fuzz_target!(|bytes: &[u8]| check_mask(bytes));

/// Checks the mask. The input has texts to mask, each with a NUL after it, and after two NULs a
/// stream. However the stream is split, every text in it is masked and nothing else is.
fn check_mask(bytes: &[u8]) {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\0\0") else { return };
    let texts: Vec<&[u8]> = bytes[..end].split(|byte| *byte == 0).take(8).collect();
    let stream = &bytes[end + 2..];
    let mut whole = stream.to_vec();
    for text in texts.iter().filter(|text| !text.is_empty()) {
        for (at, _) in stream.windows(text.len()).enumerate().filter(|(_, window)| window == text) {
            whole[at..at + text.len()].fill(b'*');
        }
    }
    let size = usize::from(bytes[0] & 63) + 1;
    for kind in [StreamKind::Message, StreamKind::Relay] {
        let masks = PeerMasks::from_texts(&texts[..texts.len() / 2], &texts[texts.len() / 2..]);
        let mut masked = StreamMask::new(kind);
        let mut out: Vec<u8> = stream.chunks(size).flat_map(|piece| masked.push(piece, &masks)).collect();
        out.extend(masked.finish());
        assert_eq!(out, whole);
    }
}
