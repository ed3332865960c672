//! Finds words in a stream of pieces.
//!
//! This module must not depend on the meaning of the words.

use memchr::memmem::Finder;

/// Words to find.
#[derive(Default)]
pub(crate) struct SearchWords {
    pub(super) finders: Vec<Finder<'static>>,
    pub(super) longest: usize,
}

impl SearchWords {
    pub(super) fn new<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let words = words.into_iter().filter(|word| !word.is_empty());
        let finders: Vec<_> = words.map(|word| Finder::new(word).into_owned()).collect();
        let longest = finders.iter().map(|finder| finder.needle().len()).max().unwrap_or(0);
        Self { finders, longest }
    }

    /// Returns which word these bytes contain.
    pub(super) fn find_word(&self, bytes: &[u8]) -> Option<usize> {
        self.finders.iter().position(|finder| finder.find(bytes).is_some())
    }
}

/// End of the previous bytes, to find a word that is split over two pieces.
#[derive(Debug, Default)]
pub(super) struct SplitWordScanner {
    tail: Vec<u8>,
}

impl SplitWordScanner {
    /// Returns which word ends in these bytes.
    pub(super) fn find_word(&mut self, words: &SearchWords, bytes: &[u8]) -> Option<usize> {
        let overlap = words.longest.saturating_sub(1);
        if overlap == 0 {
            return None;
        }
        let mut border = std::mem::take(&mut self.tail);
        border.extend_from_slice(&bytes[..overlap.min(bytes.len())]);
        let found = words.find_word(&border).or_else(|| words.find_word(bytes));
        let rest = if bytes.len() >= overlap { bytes } else { border.as_slice() };
        self.tail = rest[rest.len().saturating_sub(overlap)..].to_vec();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words() -> SearchWords {
        SearchWords::new([&b"secret"[..], b"longer-secret"])
    }

    proptest! {
        #[test]
        fn a_word_is_found_however_it_is_cut(before in "[a-z]{0,20}", after in "[a-z]{0,20}", cuts: Vec<usize>) {
            let words = words();
            for text in [format!("{before}longer-secret{after}"), format!("{before}-secre-{after}")] {
                let mut positions: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
                positions.extend([0, text.len()]);
                positions.sort_unstable();
                let mut passing = SplitWordScanner::default();
                let found = positions.windows(2).any(|w| passing.find_word(&words, &text.as_bytes()[w[0]..w[1]]).is_some());
                prop_assert_eq!(found, text.contains("secret"));
            }
        }
    }
}
