//! Matches names against patterns. It must not depend on paths: there is no `/` here.

/// Returns whether the pattern matches. `*` matches any bytes, every other byte matches itself;
/// ASCII case is ignored.
pub(crate) fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    // Most names end in another letter.
    if let (Some(wanted), Some(last)) = (pattern.last(), name.last())
        && *wanted != b'*'
        && !wanted.eq_ignore_ascii_case(last)
    {
        return false;
    }
    glob_matches(pattern, name, false)
}

/// Returns whether the pattern matches. `*` matches any bytes; with `any_one`, each `?` and `[...]`
/// matches any one byte; ASCII case is ignored. Both arguments may be hostile. Only the last `*` is
/// retried, so the time is at most proportional to the product of both lengths.
pub(crate) fn glob_matches(pattern: &[u8], name: &[u8], any_one: bool) -> bool {
    let (mut at, mut seen) = (0, 0);
    // Position after the last `*`, and the end of its match.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let here = name.get(seen);
        let step = match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                star = Some((at, seen));
                continue;
            }
            Some(b'?') if any_one => here.map(|_| at + 1),
            Some(b'[') if any_one => {
                let class = &pattern[at + 1..];
                here.map(|_| at + 1 + class.iter().position(|b| *b == b']').map_or(class.len(), |end| end + 1))
            }
            Some(byte) => here.filter(|b| b.eq_ignore_ascii_case(byte)).map(|_| at + 1),
            None if here.is_none() => return true,
            None => None,
        };
        (at, seen) = match (step, star) {
            (Some(next), _) => (next, seen + 1),
            (None, Some((after, reach))) if reach < name.len() => {
                star = Some((after, reach + 1));
                (after, reach + 1)
            }
            _ => return false,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, name: &str, any_one: bool, wanted: bool) {
        assert_eq!(glob_matches(pattern.as_bytes(), name.as_bytes(), any_one), wanted, "{pattern} {name}");
    }

    #[test]
    fn patterns_match_as_shells_have_it() {
        for (pattern, name, wanted) in [
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
            check(pattern, name, false, wanted);
        }
        for (pattern, name, wanted) in [
            ("?assw[d]x", "passwd", false),
            ("?ass[w]d", "passwd", true),
            ("[abc", "x", true),
            ("[abc", "xy", false),
            ("*[x]?", "shadow", true),
            ("?", "", false),
        ] {
            check(pattern, name, true, wanted);
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
