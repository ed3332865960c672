//! Globs: over text, in which `*` matches any text, and over paths, in which `*` stays within one name. No
//! state; linear in the product of the lengths.

pub(crate) use stockade_model::text_matches;
use stockade_model::wildcard_matches;

/// Returns whether `pattern` matches all of one name: `*` matches any text, `?` one character, every other
/// character itself.
pub(crate) fn name_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    wildcard_matches(&pattern, &name, '*', |pattern_part, found| pattern_part == '?' || pattern_part == found)
}

/// Returns whether the parts of a pattern match those of a path or of a parent directory: a pattern for a
/// directory covers its content. `**` matches any number of parts, including none. At the end of a pattern
/// it is like `*`: it matches the content of a directory, but not the directory.
pub(crate) fn parts_cover(pattern: &[&str], path: &[&str]) -> bool {
    let last = pattern.len().saturating_sub(1);
    let pattern_part = |i: usize| if i == last && pattern[i] == "**" { "*" } else { pattern[i] };
    // `reached[i]`: the first `i` parts of the pattern match the parts read so far.
    let mut reached = vec![false; pattern.len() + 1];
    reached[0] = true;
    for part in path {
        if reached[pattern.len()] {
            return true;
        }
        let mut next = vec![false; pattern.len() + 1];
        for i in 0..pattern.len() {
            // A `**` that matches no part.
            reached[i + 1] |= reached[i] && pattern_part(i) == "**";
            if reached[i] {
                next[i] |= pattern_part(i) == "**";
                next[i + 1] |= pattern_part(i) != "**" && name_matches(pattern_part(i), part);
            }
        }
        reached = next;
    }
    reached[pattern.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*.rs", "a.rs", true),
            ("*.rs", "a.rst", false),
            ("?", "é", true),
            ("?", "", false),
            ("a?c*", "abcd", true),
            ("**", "x", true),
        ] {
            assert_eq!(name_matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn paths() {
        for (pattern, path, expected) in [
            ("src", "src", true),
            ("src", "src/a/b", true),
            ("src", "srcs", false),
            ("src/*", "src", false),
            ("src/*", "src/a", true),
            ("src/*", "src/a/b", true),
            ("src/**", "src", false),
            ("src/**", "src/a/b", true),
            ("src/*.rs", "src/a/b.rs", false),
            ("src/**/*.rs", "src/a/b.rs", true),
            ("src/**/*.rs", "src/b.rs", true),
            ("**/.env", ".env", true),
            ("**/.env", "a/b/.env", true),
            ("**/.env", "a/.envrc", false),
            ("a/**/b/**/c", "a/x/b/c", true),
            ("a/**/b/**/c", "a/b/x/y/c/z", true),
            ("a/**/b/**/c", "a/b/x", false),
            ("**", "a", true),
        ] {
            let parts = |text: &'static str| text.split('/').collect::<Vec<_>>();
            assert_eq!(parts_cover(&parts(pattern), &parts(path)), expected, "{pattern} {path}");
        }
        assert!(!parts_cover(&["a"], &[]) && parts_cover(&[], &["a"]));
    }
}
