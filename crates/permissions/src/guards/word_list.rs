//! Lists of words in files of `knowledge/`: one word in each line. The files have no comments. The
//! meaning of each list is explained where the list is used.

/// The words of one file.
#[derive(Clone, Copy)]
pub(super) struct WordList(pub(super) &'static str);

impl WordList {
    pub(super) fn words(self) -> impl Iterator<Item = &'static str> {
        self.0.lines()
    }

    pub(super) fn contains(self, word: impl AsRef<[u8]>) -> bool {
        self.words().any(|known| known.as_bytes() == word.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_whole_line() {
        let list = WordList("HEAD\ngc.log\n");
        assert!(list.contains("HEAD") && list.contains(b"gc.log"));
        for other in ["", "HEA", "log", "HEAD\ngc.log", "head"] {
            assert!(!list.contains(other), "{other}");
        }
    }
}
