//! Patterns with wildcards. The one matcher of this workspace: `*` stands for any text, and the caller says
//! which other characters stand for more than themselves.

/// Returns whether the pattern matches all of the text. Every character but `*` stands for itself.
pub fn text_matches(pattern: impl AsRef<[u8]>, text: impl AsRef<[u8]>) -> bool {
    wildcard_matches(pattern.as_ref(), text.as_ref(), b'*', |pattern_item, found| pattern_item == found)
}

/// Returns whether the pattern matches all of the text. `star` stands for any text; `fits` compares another
/// item of the pattern with one item of the text.
///
/// Both may be hostile: only the last `star` is retried, so the time is at most proportional to the product
/// of both lengths. The function does not allocate.
pub fn wildcard_matches<T: Copy + PartialEq>(pattern: &[T], text: &[T], star: T, fits: impl Fn(T, T) -> bool) -> bool {
    let (mut p, mut t) = (0, 0);
    // Position after the last star, and the end of its match.
    let mut retry: Option<(usize, usize)> = None;
    while let Some(found) = text.get(t) {
        match (pattern.get(p), retry) {
            (Some(pattern_item), _) if *pattern_item == star => {
                p += 1;
                retry = Some((p, t));
            }
            (Some(pattern_item), _) if fits(*pattern_item, *found) => (p, t) = (p + 1, t + 1),
            (_, Some((after, reach))) => {
                retry = Some((after, reach + 1));
                (p, t) = (after, reach + 1);
            }
            _ => return false,
        }
    }
    pattern.get(p..).is_some_and(|rest| rest.iter().all(|item| *item == star))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("A", "A", true),
            ("A", "AB", false),
            ("LC_*", "LC_", true),
            ("LC_*", "LC_ALL", true),
            ("LC_*", "XLC_ALL", false),
            ("*TOKEN*", "GH_TOKEN", true),
            ("*TOKEN*", "TOKENS", true),
            ("*TOKEN*", "TOKE", false),
            ("*A*B*", "xAyAzBw", true),
            ("*", "", true),
            ("*AB", "AAB", true),
        ] {
            assert_eq!(text_matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn stars() {
        for (pattern, text, expected) in [
            ("/*", "/", true),
            ("/a*b", "/axxb", true),
            ("/a*b", "/axxbc", false),
            ("/*a*b*", "/xxaxb", true),
            ("/", "/x", false),
        ] {
            assert_eq!(text_matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    /// Tries every length for each star.
    fn matches_slowly(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, found) => found.is_none(),
            (Some((b'*', rest)), _) => (0..=text.len()).any(|length| matches_slowly(rest, &text[length..])),
            (Some((pattern_item, rest)), Some((found, after))) => {
                (*pattern_item == b'?' || pattern_item == found) && matches_slowly(rest, after)
            }
            (Some(_), None) => false,
        }
    }

    proptest::proptest! {
        #[test]
        fn retrying_the_last_star_is_enough(pattern in "[ab*?]{0,8}", text in "[ab?]{0,10}") {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            let found = wildcard_matches(pattern, text, b'*', |pattern_item, found| pattern_item == b'?' || pattern_item == found);
            proptest::prop_assert_eq!(found, matches_slowly(pattern, text));
        }
    }
}
