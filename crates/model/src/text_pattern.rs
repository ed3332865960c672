//! Patterns over text, in which `*` stands for any text and every other character for itself.

/// Returns whether the pattern matches all of the text. The function does not allocate; its time is linear
/// in the product of the lengths.
pub fn text_matches(pattern: impl AsRef<[u8]>, text: impl AsRef<[u8]>) -> bool {
    text_matches_by(pattern.as_ref(), text.as_ref(), |wanted, byte| wanted == byte)
}

/// Does the same as [`text_matches`]; `fits` tells whether a byte of the pattern, other than `*`,
/// stands for a byte of the text. Both may be hostile: only the last `*` is retried, so the time is
/// at most proportional to the product of both lengths.
pub fn text_matches_by(pattern: &[u8], text: &[u8], fits: impl Fn(u8, u8) -> bool) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p, t));
            p += 1;
        } else if pattern.get(p).is_some_and(|wanted| fits(*wanted, text[t])) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((star, from)) = retry {
            retry = Some((star, from + 1));
            (p, t) = (star + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
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
}
