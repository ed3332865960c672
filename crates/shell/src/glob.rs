//! Matches names against patterns. It must not depend on paths: there is no `/` here.

use std::borrow::Cow;

use stockade_model::wildcard_matches;

/// Returns whether the pattern matches. `*` matches any bytes, every other byte matches itself;
/// ASCII case is ignored.
pub(crate) fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    // Most names end in another letter.
    if let (Some(expected), Some(last)) = (pattern.last(), name.last())
        && *expected != b'*'
        && !expected.eq_ignore_ascii_case(last)
    {
        return false;
    }
    wildcard_matches(pattern, name, b'*', |expected, byte| expected.eq_ignore_ascii_case(&byte))
}

/// Returns whether the pattern matches. `*` matches any bytes; with `any_one`, each `?` and `[...]`
/// matches any one byte; ASCII case is ignored. Both arguments may be hostile.
pub(crate) fn glob_matches(pattern: &[u8], name: &[u8], any_one: bool) -> bool {
    let classes_read = if any_one { replace_classes(pattern) } else { Cow::Borrowed(pattern) };
    let fits = |expected: u8, found: u8| any_one && expected == b'?' || expected.eq_ignore_ascii_case(&found);
    wildcard_matches(&classes_read, name, b'*', fits)
}

/// Replaces each `[...]` by `?`. A class that is not closed reaches to the end.
fn replace_classes(pattern: &[u8]) -> Cow<'_, [u8]> {
    if !pattern.contains(&b'[') {
        return Cow::Borrowed(pattern);
    }
    let mut rest = pattern.iter();
    let mut replaced = Vec::with_capacity(pattern.len());
    while let Some(byte) = rest.next() {
        if *byte == b'[' {
            rest.by_ref().find(|byte| **byte == b']');
        }
        replaced.push(if *byte == b'[' { b'?' } else { *byte });
    }
    Cow::Owned(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, name: &str, any_one: bool, expected: bool) {
        assert_eq!(glob_matches(pattern.as_bytes(), name.as_bytes(), any_one), expected, "{pattern} {name}");
    }

    #[test]
    fn patterns_match_as_shells_have_it() {
        for (pattern, name, expected) in [
            ("", "", true),
            ("*", "", true),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbX", false),
            ("*.PEM", "key.pem", true),
            ("id_*", "id_rsa", true),
            ("id_*x", "id_rsa", false),
            ("**", "any", true),
            ("?", "a", false),
        ] {
            check(pattern, name, false, expected);
        }
        for (pattern, name, expected) in [
            ("?assw[d]x", "passwd", false),
            ("?ass[w]d", "passwd", true),
            ("[abc", "x", true),
            ("[abc", "xy", false),
            ("*[x]?", "shadow", true),
            ("?", "", false),
        ] {
            check(pattern, name, true, expected);
        }
    }

    /// An earlier version took exponential time: each `*` tried every length for each other.
    #[test]
    fn many_wildcards_end_soon() {
        let pattern = "*a".repeat(20_000);
        let name = "a".repeat(30_000);
        check(&(pattern.clone() + "b"), &name, true, false);
        check(&pattern, &name, true, true);
    }
}
