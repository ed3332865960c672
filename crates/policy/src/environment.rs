//! The caller's variables that the command receives (L8).

use std::collections::BTreeMap;

use stockade_model::{EnvironmentRules, NameList, Profile, RawText, text_matches};

/// Returns the whole environment of a command: the caller's variables that pass, then the variables that
/// the profile sets.
///
/// A variable for an editor or a pager passes if its value is a well-known program, which would also be
/// found without the variable. A variable for a package registry passes if its address contains no
/// credentials. A `drop` pattern of a shipped profile does not apply to these variables; one of a
/// configuration file does.
///
/// Another variable passes if its exact name is in `pass` and not in `drop`. It also passes if a pattern of
/// `pass` matches it and no entry of `drop` does. So an exact name in `pass` outweighs a pattern in `drop`.
/// This allows a grant of one variable that looks like a secret.
pub fn effective_environment(
    profile: &Profile,
    caller_environment: &BTreeMap<String, RawText>,
) -> BTreeMap<String, RawText> {
    let mut result: BTreeMap<String, RawText> = caller_environment
        .iter()
        .filter(|(name, value)| {
            allows_variable(&profile.environment, name)
                || names_known_tool(&profile.environment, name, value)
                || names_registry(&profile.environment, name, value)
        })
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    result.extend(profile.environment.set.iter().map(|(name, value)| (name.clone(), value.clone())));
    result
}

/// Variables that name an editor, and variables that name a pager.
const EDITOR_VARIABLES: &[&str] = &["EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR"];
const PAGER_VARIABLES: &[&str] = &["PAGER", "GIT_PAGER", "MANPAGER"];
/// Allowed values. Each is looked up in `PATH`, like the program's own default.
const ALLOWED_EDITORS: NameList = NameList::new(include_str!("../knowledge/editors.txt"));
const ALLOWED_PAGERS: &[&str] = &["less", "less -F", "less -R", "less -FR", "less -FRX", "more", "most", "cat", ""];

/// Returns whether a variable is dropped although its value would let it pass: by its exact name, or by a
/// pattern of a configuration file. A pattern of a shipped profile does not drop such variables.
fn is_held_back(environment: &EnvironmentRules, name: &str) -> bool {
    environment.drop.iter().any(|entry| entry.pattern == name || entry.is_own && text_matches(&entry.pattern, name))
}

fn names_known_tool(environment: &EnvironmentRules, name: &str, value: &RawText) -> bool {
    let Some(value) = value.to_str() else { return false };
    let is_editor = EDITOR_VARIABLES.contains(&name) && ALLOWED_EDITORS.contains(value);
    let is_pager = PAGER_VARIABLES.contains(&name) && ALLOWED_PAGERS.contains(&value);
    (is_editor || is_pager) && !is_held_back(environment, name)
}

/// Variables that name package registries.
const REGISTRY_VARIABLES: NameList = NameList::new(include_str!("../knowledge/registry_variables.txt"));
/// Allowed values besides addresses: the keywords of Go.
const REGISTRY_WORDS: &[&str] = &["direct", "off", "sum.golang.org"];

/// Returns whether a variable contains addresses of registries and nothing else. The egress rules decide
/// whether a run may connect to them. No address may contain a name or a password.
fn names_registry(environment: &EnvironmentRules, name: &str, value: &RawText) -> bool {
    let words = value.to_str().unwrap_or_default().split([' ', ',', '|']).filter(|word| !word.is_empty());
    names_package_registry(name)
        && !looks_secret(name)
        && !is_held_back(environment, name)
        && words.clone().next().is_some()
        && words.into_iter().all(|word| REGISTRY_WORDS.contains(&word) || is_plain_address(word))
}

/// Returns whether a text is a web address of a host and a path without a possible secret. Some services
/// put tokens into paths.
fn is_plain_address(text: &str) -> bool {
    const SECRET_WORDS: &[&str] = &["auth", "token", "tok", "priv", "private", "key", "secret", "access"];
    let text = text.strip_prefix("sparse+").unwrap_or(text);
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let Some((host, path)) = rest.map(|rest| rest.split_once('/').unwrap_or((rest, ""))) else { return false };
    let is_host = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    let mut steps = path.split('/').filter(|step| !step.is_empty());
    !host.is_empty()
        && host.bytes().all(is_host)
        && is_words(host)
        && steps.all(|step| is_words(step) && !SECRET_WORDS.contains(&step))
}

/// Returns whether a host or a path segment consists of words: lower-case letters, or a few short parts
/// with digits or capitals, such as `v2` or a port.
fn is_words(step: &str) -> bool {
    let is_word = |word: &&str| word.len() <= MAX_WORD_BYTES && word.bytes().all(|b| b.is_ascii_lowercase());
    let mut others = step.split(['-', '_', '.', '~', ':', '[', ']']).filter(|word| !is_word(word));
    let is_short = |word: &str| word.len() <= MAX_MIXED_PART_BYTES && word.bytes().all(|b| b.is_ascii_alphanumeric());
    let is_address = step.split(':').next().is_some_and(|host| host.parse::<std::net::Ipv4Addr>().is_ok());
    is_address || others.by_ref().take(MAX_MIXED_PARTS).all(is_short) && others.next().is_none()
}

/// Longest part of an address that counts as a word.
const MAX_WORD_BYTES: usize = 16;
/// Longest part that may contain digits and capitals, and most such parts of one segment.
const MAX_MIXED_PART_BYTES: usize = 6;
const MAX_MIXED_PARTS: usize = 2;

/// Variables that change the behaviour of programs of these names. If such a program failed and the
/// variables did not pass, they are reported.
const REPORTED_VARIABLES: NameList = NameList::new(include_str!("../knowledge/reported_variables.txt"));

/// Returns whether a variable names a package registry: without it, tools use the public one.
pub fn names_package_registry(name: &str) -> bool {
    REGISTRY_VARIABLES.names().any(|pattern| text_matches(pattern, name))
}

/// Returns the caller's variables whose absence may have made a command fail: they did not pass, and the
/// command names a program that reads them. Sorted.
pub fn missed_variables(
    caller: &BTreeMap<String, RawText>,
    passed: &BTreeMap<String, RawText>,
    argv: &[RawText],
) -> Vec<String> {
    let is_break = |b: &u8| !b.is_ascii_alphanumeric() && !b"-_.+".contains(b);
    let text = argv.iter().take(MAX_ARGUMENTS).flat_map(|argument| argument.as_bytes().split(is_break));
    let words: Vec<&str> = text.filter_map(|word| std::str::from_utf8(word).ok()).take(MAX_WORDS).collect();
    let is_named = |program: &str| words.iter().any(|word| text_matches(program, word));
    let rows = REPORTED_VARIABLES.names().filter_map(|row| row.split_once(" : "));
    let reported_names: Vec<&str> = rows
        .filter(|(_, programs)| programs.split(' ').any(is_named))
        .flat_map(|(names, _)| names.split(' '))
        .collect();
    let is_reported = |name: &&String| reported_names.iter().any(|own| text_matches(own, name));
    // A variable that may contain a password is never named in a hint.
    let may_be_secret = |name: &&String| looks_secret(name);
    // A variable name of the caller may be any text.
    let is_name =
        |name: &&String| name.len() <= MAX_NAME_BYTES && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let missed = caller.keys().filter(|name| !passed.contains_key(*name) && !may_be_secret(name)).filter(is_name);
    missed.filter(is_reported).cloned().collect()
}

/// Returns whether the name of a variable contains a word that is typical of secrets.
pub(crate) fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL", "AUTH", "COOKIE", "SESSION"]
        .iter()
        .any(|word| name.contains(word))
}

/// Longest variable name that is reported.
const MAX_NAME_BYTES: usize = 64;
/// Most arguments and words of a command that are searched for programs.
const MAX_ARGUMENTS: usize = 64;
const MAX_WORDS: usize = 1000;

/// Returns whether a variable of this name passes.
pub(crate) fn allows_variable(environment: &EnvironmentRules, name: &str) -> bool {
    let EnvironmentRules { pass, drop, .. } = environment;
    if drop.iter().any(|entry| entry.pattern == name) {
        return false;
    }
    pass.iter().any(|entry| entry == name)
        || (pass.iter().any(|pattern| text_matches(pattern, name))
            && !drop.iter().any(|entry| text_matches(&entry.pattern, name)))
}

#[cfg(test)]
mod tests {
    use stockade_model::DroppedVariables;

    use super::*;

    #[test]
    fn well_known_editors_pass() {
        let shown = |name: &str, value: &str, drop: &[&str]| {
            let shipped = |name: &&str| DroppedVariables { pattern: (*name).to_owned(), is_own: false };
            let drop = drop.iter().map(shipped).collect();
            names_known_tool(&EnvironmentRules { drop, ..EnvironmentRules::default() }, name, &RawText::from(value))
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
    fn addresses_of_registries_pass_without_credentials() {
        let shown = |name: &str, value: &str| names_registry(&EnvironmentRules::default(), name, &RawText::from(value));
        for (name, value) in [
            ("PIP_INDEX_URL", "https://pypi.example.com/simple"),
            ("PIP_EXTRA_INDEX_URL", "https://a.example/simple http://10.0.0.1:8080/b"),
            ("npm_config_registry", "http://localhost:4873/"),
            ("GOPROXY", "https://proxy.golang.org,direct"),
            ("PIP_INDEX_URL", "https://nexus.corp.example:8443/repository/pypi-group/simple"),
            ("npm_config_registry", "https://art.example/artifactory/api/npm/npm-v2/"),
            ("CARGO_REGISTRIES_OWN_INDEX", "sparse+https://crates.example.com/index/"),
        ] {
            assert!(shown(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("PIP_INDEX_URL", "https://user:word@pypi.example.com/simple"),
            ("PIP_INDEX_URL", "https://dl.example.com/0123456789abcdef0123456789abcdef/simple"),
            ("PIP_INDEX_URL", "https://www.myget.org/F/feed/auth/01234567-89ab-cdef-0123-456789abcdef/python/"),
            ("PIP_INDEX_URL", "https://www.myget.org/f/01234567-89ab-cdef-0123-456789abcdef/python/"),
            ("PIP_EXTRA_INDEX_URL", "https://dl.cloudsmith.io/Zk3vQ9xT2pLm8RwA/acme/private/python/simple/"),
            ("NPM_CONFIG_REGISTRY", "https://npm.fury.io/AbCdEfGhIjKlMnOpQrSt/acme/"),
            ("GOPROXY", "https://gp.example/xoxb-123456789012-123456789012-AbCd"),
            ("YARN_REGISTRY", "https://h.example/glpat-aB3dE6f/x"),
            ("YARN_REGISTRY", "https://h.example/aB3dE6-x9y8z7-q1w2e3/x"),
            ("CARGO_REGISTRIES_X_TOKEN_INDEX", "https://a.example/"),
            ("PIP_INDEX_URL", "https://a.example/?token=x"),
            ("PIP_INDEX_URL", "file:///etc"),
            ("PIP_INDEX_URL", ""),
            ("PIP_TRUSTED_HOST", "https://a.example/"),
            ("CARGO_REGISTRIES_OWN_TOKEN", "https://a.example/"),
        ] {
            assert!(!shown(name, value), "{name}={value}");
        }
        let entry = DroppedVariables { pattern: "GOPROXY".to_owned(), is_own: false };
        let dropped = EnvironmentRules { drop: vec![entry], ..EnvironmentRules::default() };
        assert!(!names_registry(&dropped, "GOPROXY", &RawText::from("direct")));
    }

    #[test]
    fn variables_are_missed_by_the_programs_that_read_them() {
        let odd = "CARGO_BUILD_\u{1b}]0;x\u{7}\r\nallow?";
        let caller: BTreeMap<String, RawText> =
            ["PYTHONPATH", "NODE_OPTIONS", "LD_LIBRARY_PATH", "PATH", "GITHUB_TOKEN", odd]
                .map(|name| (name.to_owned(), RawText::from("x")))
                .into();
        let passed = BTreeMap::from([("PATH".to_owned(), RawText::from("x"))]);
        for (command, expected) in [
            (&["python3", "-m", "app"][..], &["LD_LIBRARY_PATH", "PYTHONPATH"][..]),
            (&["sh", "-c", "cd x && npm test"], &["LD_LIBRARY_PATH", "NODE_OPTIONS"]),
            (&["cat", "nodes.txt"], &["LD_LIBRARY_PATH"]),
            (&["cargo", "build"], &["LD_LIBRARY_PATH"]),
        ] {
            let argv: Vec<RawText> = command.iter().map(|word| RawText::from(*word)).collect();
            assert_eq!(missed_variables(&caller, &passed, &argv), expected, "{command:?}");
        }
    }
}
