//! Decoder of data from containers, public for fuzz targets.

use crate::frames::{ChannelFrame, FrameDecoder, FrameError};

/// Longest accepted message.
const MAX_MESSAGE_BYTES: usize = 4096;

/// Checks that the bytes give the same frames however they are split, and that each frame is
/// encoded as it was read.
pub fn check_frames(bytes: &[u8]) {
    let whole = decode_split(bytes, bytes.len().max(1));
    let encoded: Vec<u8> = whole.0.iter().flat_map(ChannelFrame::encode_frame).collect();
    assert!(bytes.starts_with(&encoded));
    for cut in [1, 7] {
        assert_eq!(decode_split(bytes, cut), whole);
    }
}

fn decode_split(bytes: &[u8], cut: usize) -> (Vec<ChannelFrame>, Option<FrameError>) {
    let (mut decoder, mut frames) = (FrameDecoder::new(MAX_MESSAGE_BYTES), Vec::new());
    for part in bytes.chunks(cut) {
        decoder.push(part);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}
