//! Replaces texts by asterisks in a stream of pieces, wherever the pieces end.
//!
//! This module must not depend on the meaning of the texts or the transport of the bytes.

use std::time::Duration;

use memchr::memchr_iter;
use memchr::memmem::Finder;

use super::scan::SearchWords;

/// Longest wait for further bytes at the end of a message, for waits that must not depend on the
/// content.
const MESSAGE_FLUSH_DELAY: Duration = Duration::from_secs(1);
/// The same for relayed protocols, in which each answer waits.
const RELAY_FLUSH_DELAY: Duration = Duration::from_millis(5);

/// Masks every occurrence of the words, also if they overlap.
impl SearchWords {
    /// Returns the largest number of bytes that can be an incomplete text.
    fn max_partial_bytes(&self) -> usize {
        self.longest.saturating_sub(1)
    }

    /// Writes asterisks into `shown` over each text in `plain` that ends after `from`.
    fn mask_matches(&self, plain: &[u8], shown: &mut [u8], from: usize) {
        for finder in &self.finders {
            let length = finder.needle().len();
            let mut start = (from + 1).saturating_sub(length);
            while let Some(at) = plain.get(start..).and_then(|rest| finder.find(rest)) {
                shown[start + at..start + at + length].fill(b'*');
                start += at + 1;
            }
        }
    }

    /// Returns how many of the last bytes are the beginning of a text.
    fn partial_match_bytes(&self, bytes: &[u8]) -> usize {
        let begun = |finder: &Finder<'_>| {
            let text = finder.needle();
            let tail = &bytes[bytes.len().saturating_sub(text.len() - 1)..];
            let first = memchr_iter(text[0], tail).find(|at| text.starts_with(&tail[*at..]));
            first.map_or(0, |at| tail.len() - at)
        };
        self.finders.iter().map(begun).max().unwrap_or(0)
    }
}

/// Texts that one peer must not send back.
#[derive(Default)]
pub struct PeerMasks {
    /// Texts that this peer may know: the beginning of one waits for its end.
    known: SearchWords,
    /// Texts that it may not know. If the wait depended on them, the peer could find them out
    /// letter by letter. Therefore the last bytes always wait.
    foreign: SearchWords,
}

impl PeerMasks {
    /// Creates masks for these texts.
    pub fn from_texts(known: &[&[u8]], foreign: &[&[u8]]) -> Self {
        Self { known: SearchWords::new(known.iter().copied()), foreign: SearchWords::new(foreign.iter().copied()) }
    }

    fn max_partial_bytes(&self) -> usize {
        self.known.max_partial_bytes().max(self.foreign.max_partial_bytes())
    }

    /// Masks the texts in complete bytes.
    pub(crate) fn cover_all(&self, bytes: &mut [u8]) {
        let plain = bytes.to_vec();
        self.known.mask_matches(&plain, bytes, 0);
        self.foreign.mask_matches(&plain, bytes, 0);
    }
}

/// Kind of a stream, which determines how its last bytes wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Message with a known end.
    Message,
    /// A protocol that is not parsed: each side may be waiting for the last byte.
    Relay,
}

/// Masks texts in one stream. Holds back fewer bytes than the longest text has.
pub struct StreamMask {
    kind: StreamKind,
    /// Last bytes of the stream as received: first sent bytes that may begin a text, then the held
    /// bytes.
    plain: Vec<u8>,
    /// The same with asterisks.
    shown: Vec<u8>,
    /// Number of sent bytes among them.
    sent: usize,
    /// Number of held bytes that wait for more without a time-out.
    begun: usize,
}

impl StreamMask {
    /// Creates the mask of one stream.
    pub fn new(kind: StreamKind) -> Self {
        Self { kind, plain: Vec::new(), shown: Vec::new(), sent: 0, begun: 0 }
    }

    /// Adds bytes and returns the bytes that may be sent.
    pub fn push(&mut self, bytes: &[u8], masks: &PeerMasks) -> Vec<u8> {
        let known = self.plain.len();
        self.plain.extend_from_slice(bytes);
        self.shown.extend_from_slice(bytes);
        masks.known.mask_matches(&self.plain, &mut self.shown, known);
        masks.foreign.mask_matches(&self.plain, &mut self.shown, known);
        let constant = match self.kind {
            StreamKind::Message => masks.foreign.max_partial_bytes(),
            StreamKind::Relay => masks.max_partial_bytes(),
        };
        self.begun = match self.kind {
            StreamKind::Message => masks.known.partial_match_bytes(&self.plain),
            StreamKind::Relay => 0,
        };
        let ready = self.send_all_but(constant.max(self.begun));
        // Sent bytes are needed only for a text that began in them.
        let spare = self.plain.len().saturating_sub(masks.max_partial_bytes()).min(self.sent);
        self.plain.drain(..spare);
        self.shown.drain(..spare);
        self.sent -= spare;
        ready
    }

    /// Returns how long to wait for more before [`release_held`](Self::release_held). `None` if there is no
    /// time-out.
    pub(crate) fn flush_delay(&self) -> Option<Duration> {
        let pause = match self.kind {
            StreamKind::Message => MESSAGE_FLUSH_DELAY,
            StreamKind::Relay => RELAY_FLUSH_DELAY,
        };
        (self.plain.len() - self.sent > self.begun).then_some(pause)
    }

    /// Returns the held bytes, whatever they are, because nothing arrived for a while.
    pub(crate) fn release_held(&mut self) -> Vec<u8> {
        self.send_all_but(self.begun)
    }

    /// Returns the rest at the end of the stream.
    pub fn finish(&mut self) -> Vec<u8> {
        let rest = self.send_all_but(0);
        (self.plain, self.shown, self.sent, self.begun) = Default::default();
        rest
    }

    fn send_all_but(&mut self, held: usize) -> Vec<u8> {
        let end = self.plain.len().saturating_sub(held).max(self.sent);
        let ready = self.shown[self.sent..end].to_vec();
        self.sent = end;
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Masks every byte that any occurrence covers.
    fn reference(text: &[u8], secrets: &[Vec<u8>]) -> Vec<u8> {
        let mut shown = text.to_vec();
        for secret in secrets {
            for at in 0..text.len() {
                if text[at..].starts_with(secret) {
                    shown[at..at + secret.len()].fill(b'*');
                }
            }
        }
        shown
    }

    fn masks(known: &[Vec<u8>], foreign: &[Vec<u8>]) -> PeerMasks {
        PeerMasks::from_texts(
            &known.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            &foreign.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        )
    }

    /// Returns the output for these pieces, and checks that fewer bytes are held back than a secret
    /// has.
    fn pushed<'a>(masks: &PeerMasks, kind: StreamKind, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
        let mut stream = StreamMask::new(kind);
        let (mut out, mut input_bytes) = (Vec::new(), 0);
        for piece in pieces {
            input_bytes += piece.len();
            out.extend(stream.push(piece, masks));
            assert!(input_bytes - out.len() <= masks.max_partial_bytes(), "{input_bytes} {}", out.len());
            assert!(stream.plain.len() <= 2 * masks.max_partial_bytes(), "{}", stream.plain.len());
        }
        out.extend(stream.finish());
        out
    }

    #[test]
    fn a_text_is_covered_at_every_border() {
        let secrets: Vec<Vec<u8>> =
            ["secret", "secretary", "tsec", "aa", "x", "abcabcab"].iter().map(|s| s.as_bytes().to_vec()).collect();
        let text = b"a secret, secretary tsecretsec aaaa x abcabcabcab secre aab secretarsecretary";
        let whole = reference(text, &secrets);
        assert!(whole.starts_with(b"a ******, ********* ********** **** *"), "{}", whole.escape_ascii());
        for (known, foreign) in [(&secrets[..], &[][..]), (&[], &secrets), (&secrets[..3], &secrets[3..])] {
            let masks = masks(known, foreign);
            let mut covered = text.to_vec();
            masks.cover_all(&mut covered);
            assert_eq!(covered, whole);
            for kind in [StreamKind::Message, StreamKind::Relay] {
                assert_eq!(pushed(&masks, kind, text.chunks(1)), whole);
                for first in 0..=text.len() {
                    for second in first..=text.len() {
                        let pieces = [&text[..first], &text[first..second], &text[second..]];
                        assert_eq!(pushed(&masks, kind, pieces), whole, "{first} {second}");
                    }
                }
            }
        }
    }

    /// A peer that may not know a secret learns nothing from the held bytes or the wait time.
    #[test]
    fn waiting_calls_report_no_foreign_text() {
        for kind in [StreamKind::Message, StreamKind::Relay] {
            let masks = masks(&[], &[b"secret-of-another".to_vec()]);
            let seen = |text: &[u8]| {
                let mut stream = StreamMask::new(kind);
                let now = stream.push(text, &masks).len();
                (now, stream.flush_delay(), stream.release_held().len(), stream.flush_delay())
            };
            for length in 1..b"secret-of-another".len() {
                let right = seen(&b"secret-of-another"[..length]);
                assert_eq!(right, seen(&vec![b'?'; length]));
                assert_eq!((right.0, right.2, right.3), (0, length, None));
            }
        }
    }

    #[test]
    fn after_a_pause_the_rest_of_a_text_is_covered() {
        let masks = masks(&[], &[b"secret-of-another".to_vec()]);
        let mut stream = StreamMask::new(StreamKind::Message);
        let mut out = stream.push(b"x secret-", &masks);
        assert!(stream.flush_delay().is_some());
        out.extend(stream.release_held());
        out.extend(stream.push(b"of-another!", &masks));
        out.extend(stream.finish());
        assert_eq!(out, b"x secret-**********!");
        // The beginning of a known text continues to wait.
        let masks = self::masks(&[b"known-text".to_vec()], &[b"secret-of-another".to_vec()]);
        let mut stream = StreamMask::new(StreamKind::Message);
        assert_eq!(stream.push(b"some words and known", &masks), b"some");
        assert_eq!(stream.release_held(), b" words and ");
        assert_eq!(stream.flush_delay(), None);
        assert_eq!([stream.push(b"-text", &masks), stream.finish()].concat(), b"**********");
    }

    #[test]
    fn nothing_to_cover_passes_at_once() {
        let masks = PeerMasks::default();
        let mut stream = StreamMask::new(StreamKind::Message);
        assert_eq!(stream.push(b"anything", &masks), b"anything");
        assert_eq!((stream.flush_delay(), stream.finish()), (None, Vec::new()));
    }

    proptest! {
        /// Few letters, so that texts overlap and are prefixes of one another.
        #[test]
        fn pieces_do_not_matter(
            secrets in proptest::collection::vec("[ab]{1,7}", 0..4),
            others in proptest::collection::vec("[abc]{1,9}", 0..3),
            text in "[abc]{0,200}",
            cuts: Vec<usize>,
        ) {
            let bytes = |texts: &[String]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
            let masks = masks(&bytes(&secrets), &bytes(&others));
            let text = text.as_bytes();
            let whole = reference(text, &[bytes(&secrets), bytes(&others)].concat());
            let mut positions: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
            positions.extend([0, text.len()]);
            positions.sort_unstable();
            for kind in [StreamKind::Message, StreamKind::Relay] {
                let pieces = positions.windows(2).map(|ends| &text[ends[0]..ends[1]]);
                prop_assert_eq!(&pushed(&masks, kind, pieces), &whole);
            }
        }
    }
}
