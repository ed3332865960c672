//! Which variables of the caller reach the command (L8).

use std::collections::BTreeMap;

use stockade_model::{Environment, Profile, RawText};

/// The whole environment of a command: what passes of the caller's, then what
/// the profile sets.
///
/// A variable passes when its name is in `pass` and not in `drop`, or when a
/// pattern of `pass` matches it and nothing in `drop` does. So a name written
/// out outweighs a pattern in `drop`, which is how one variable that looks like
/// a secret can be granted.
pub fn effective_environment(
    profile: &Profile,
    caller_environment: &BTreeMap<String, RawText>,
) -> BTreeMap<String, RawText> {
    let mut result: BTreeMap<String, RawText> = caller_environment
        .iter()
        .filter(|(name, _)| passes(&profile.environment, name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    result.extend(profile.environment.set.iter().map(|(name, value)| (name.clone(), value.clone())));
    result
}

/// True where a variable of this name passes.
pub(crate) fn passes(environment: &Environment, name: &str) -> bool {
    let listed = |list: &[String]| list.iter().any(|entry| entry == name);
    if listed(&environment.drop) {
        return false;
    }
    listed(&environment.pass)
        || (environment.pass.iter().any(|pattern| glob_matches(pattern, name))
            && !environment.drop.iter().any(|pattern| glob_matches(pattern, name)))
}

/// True where `pattern`, in which each `*` stands for any text, matches all of
/// `text`. Linear in the product of their lengths.
pub(crate) fn glob_matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
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
            assert_eq!(glob_matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
