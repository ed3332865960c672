//! Names against patterns. It must not know paths: there is no `/` here.

/// `*` stands for any run of bytes, everything else for itself; ASCII case is
/// ignored.
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

/// `*` stands for any run of bytes, and with `any_one` each `?` and `[...]` for
/// any one; ASCII case is ignored. Both may be hostile: only the last `*` is gone
/// back to, so the time grows with the product of both lengths and no more.
pub(crate) fn glob_matches(pattern: &[u8], name: &[u8], any_one: bool) -> bool {
    let (mut at, mut seen) = (0, 0);
    // After the last `*`, and how far it reaches.
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

    /// It was exponential once: each `*` tried every length after each other.
    #[test]
    fn many_wildcards_end_soon() {
        let pattern = "*a".repeat(20_000);
        let name = "a".repeat(30_000);
        check(&(pattern.clone() + "b"), &name, true, false);
        check(&pattern, &name, true, true);
    }
}
