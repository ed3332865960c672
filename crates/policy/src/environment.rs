//! Which variables of the caller reach the command (L8).

use std::collections::BTreeMap;

use stockade_model::{Environment, Profile, RawText};

/// The whole environment of a command: what passes of the caller's, then what
/// the profile sets.
///
/// A variable that names an editor or a pager passes where it names a well-known one, which a
/// program would find without it as well.
///
/// Another passes when its name is in `pass` and not in `drop`, or when a
/// pattern of `pass` matches it and nothing in `drop` does. So a name written
/// out outweighs a pattern in `drop`, which is how one variable that looks like
/// a secret can be granted.
pub fn effective_environment(
    profile: &Profile,
    caller_environment: &BTreeMap<String, RawText>,
) -> BTreeMap<String, RawText> {
    let mut result: BTreeMap<String, RawText> = caller_environment
        .iter()
        .filter(|(name, value)| {
            passes(&profile.environment, name) || names_known_tool(&profile.environment, name, value)
        })
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    result.extend(profile.environment.set.iter().map(|(name, value)| (name.clone(), value.clone())));
    result
}

/// Variables that name an editor, and one that names a pager.
const OF_EDITOR: &[&str] = &["EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR"];
const OF_PAGER: &[&str] = &["PAGER", "GIT_PAGER", "MANPAGER"];
/// What they may say. Each is looked up in `PATH`, as the program's own choice is.
const EDITORS: &[&str] = &[
    "vi",
    "vim",
    "nvim",
    "nano",
    "pico",
    "micro",
    "hx",
    "kak",
    "joe",
    "ne",
    "ed",
    "emacs",
    "emacs -nw",
    "code --wait",
    "true",
    ":",
    "cat",
];
const PAGERS: &[&str] = &["less", "less -F", "less -R", "less -FR", "less -FRX", "more", "most", "cat", ""];

fn names_known_tool(environment: &Environment, name: &str, value: &RawText) -> bool {
    let is = |names: &[&str], values: &[&str]| {
        names.contains(&name) && value.to_str().is_some_and(|value| values.contains(&value))
    };
    (is(OF_EDITOR, EDITORS) || is(OF_PAGER, PAGERS)) && !environment.drop.iter().any(|entry| entry == name)
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
    fn well_known_editors_pass() {
        let shown = |name: &str, value: &str, drop: &[&str]| {
            let drop = drop.iter().map(ToString::to_string).collect();
            names_known_tool(&Environment { drop, ..Environment::default() }, name, &RawText::from(value))
        };
        assert!(shown("EDITOR", "nano", &["GIT_*"]));
        assert!(shown("GIT_EDITOR", "true", &["GIT_*"]));
        assert!(shown("GIT_PAGER", "cat", &["GIT_*"]));
        assert!(!shown("EDITOR", "nano", &["EDITOR"]));
        for (name, value) in [
            ("EDITOR", "/tmp/vim"),
            ("EDITOR", "vim -c '!x'"),
            ("GIT_EDITOR", "sh -c x"),
            ("PAGER", "vim"),
            ("GIT_SSH_COMMAND", "cat"),
            ("BROWSER", "cat"),
        ] {
            assert!(!shown(name, value, &["GIT_*"]), "{name}={value}");
        }
    }

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
