//! Allow-list of the keys and values of project settings that are harmless. Every other setting
//! counts as code. It may make an editor, a package manager or a shell prompt run a program or
//! fetch from another source, now or in a later version. Pure.

use serde_json::Value;
use stockade_model::NameList;
use toml::Table;

use super::project_part::ProjectFile;
use super::settings_allow_list::ContentVerdict;
use super::settings_words::shorten_text;

/// Deepest nesting of values that is examined.
const MAX_DEPTH: u32 = 8;

/// Checks the text `new`. `there` are the text when the run first changed the file, and the current
/// text; both are empty if there was no file. Only the user may add code.
pub fn check_project_file(file: ProjectFile, there: [&[u8]; 2], new: &[u8]) -> ContentVerdict {
    if new == there[1] {
        return ContentVerdict::Harmless;
    }
    let carries = |what: String| ContentVerdict::Carries { what, without: None };
    // A run may not remove further settings of the user.
    if let Some(line) = lost_with(file, there) {
        return carries(format!("the existing file has settings that Stockade does not check: {line}"));
    }
    find_code(file, new).map_or(ContentVerdict::Harmless, carries)
}

/// Returns the setting that would be lost with the file. `there` are its text when the run first
/// changed it, and its current text.
pub fn lost_with(file: ProjectFile, there: [&[u8]; 2]) -> Option<String> {
    there.into_iter().find_map(|text| find_code(file, text))
}

/// Returns the first part that may carry code.
fn find_code(file: ProjectFile, text: &[u8]) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    let Ok(text) = std::str::from_utf8(text) else { return Some("text that is not valid UTF-8".to_owned()) };
    if has_odd_characters(text) {
        return Some("characters that end a line for some readers and not for others".to_owned());
    }
    match file {
        ProjectFile::EditorSettings => in_json(text, editor_settings),
        ProjectFile::EditorTasks => in_json(text, |value| check_tasks(value, 0)),
        ProjectFile::EditorExtensions => in_json(text, check_extensions),
        ProjectFile::Npm => text.lines().find(|line| !is_harmless_npm(line)).map(|line| line_key(line, '=')),
        ProjectFile::Yarn => text.lines().find(|line| !is_harmless_yarn(line)).map(|line| line_key(line, ':')),
        // Mise takes the whole file for a template, including its comments.
        ProjectFile::ToolVersions if text.contains('{') => Some("a template".to_owned()),
        ProjectFile::ToolVersions => text.lines().find(|line| !is_harmless_version(line)).map(shorten_text),
        ProjectFile::RustToolchain => check_toolchain(text),
        ProjectFile::Cargo => in_toml(text, check_cargo),
    }
}

/// Returns whether the text has a character that ends a line or a comment for only some readers.
/// For example, npm and YAML end a line at a single carriage return.
fn has_odd_characters(text: &str) -> bool {
    let plain = text.replace("\r\n", "\n");
    plain.contains(|c: char| matches!(c, '\u{2028}' | '\u{2029}') || c.is_control() && c != '\n' && c != '\t')
}

/// Returns the key of a line, without its value, which may be a secret.
fn line_key(line: &str, end: char) -> String {
    shorten_text(line.split(end).next().unwrap_or_default().trim())
}

// ---- Lines ----

/// Keys of npm's and pnpm's settings that change the layout and the reports of packages, but
/// neither their source nor the programs that run.
const NPM_KEYS: NameList = NameList::new(include_str!("../../knowledge/npm_keys.txt"));
/// Keys with patterns of package names as values.
const NPM_PATTERN_KEYS: &[&str] = &["hoist-pattern[]", "public-hoist-pattern[]"];

fn is_harmless_npm(line: &str) -> bool {
    let line = line.trim();
    if line.is_empty() || line.starts_with(['#', ';']) {
        return true;
    }
    let (key, value) = line.split_once('=').map_or((line, "true"), |(key, value)| (key.trim(), value.trim()));
    let is_word = value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.^~\"'".contains(c));
    let is_pattern = value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.*@/!\"'".contains(c));
    NPM_KEYS.contains(key) && is_word || NPM_PATTERN_KEYS.contains(&key) && is_pattern
}

/// Keys of yarn's settings with the same properties.
const YARN_KEYS: NameList = NameList::new(include_str!("../../knowledge/yarn_keys.txt"));

/// Returns whether a line is one key with one word. Values with more parts are not parsed.
fn is_harmless_yarn(line: &str) -> bool {
    let line = line.split(" #").next().unwrap_or_default();
    if line.trim().is_empty() || line.starts_with('#') {
        return true;
    }
    line.split_once(": ").is_some_and(|(key, value)| {
        let value = value.trim().trim_matches(['"', '\'']);
        YARN_KEYS.contains(key) && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_^~".contains(c))
    })
}

/// Returns whether a line has only names of tools and versions. A version that is a path or a
/// repository revision would run programs from there.
fn is_harmless_version(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default();
    line.split_whitespace().all(is_plain_word)
}

fn is_plain_word(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with(['-', '.'])
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
}

// ---- TOML ----

fn in_toml(text: &str, look: impl Fn(&Table) -> Option<String>) -> Option<String> {
    text.parse::<Table>().map_or_else(|_| Some("text that cannot be parsed reliably".to_owned()), |table| look(&table))
}

fn check_toolchain(text: &str) -> Option<String> {
    // The short form is the name of a channel alone.
    if is_channel(text.trim()) {
        return None;
    }
    in_toml(text, |table| {
        table.iter().find_map(|(section, value)| match value.as_table().filter(|_| section == "toolchain") {
            Some(keys) => {
                keys.iter().find(|(key, value)| !is_harmless_toolchain(key, value)).map(|(key, _)| shorten_text(key))
            }
            None => Some(shorten_text(section)),
        })
    })
}

fn is_harmless_toolchain(key: &str, value: &toml::Value) -> bool {
    let is_word = |value: &toml::Value| value.as_str().is_some_and(is_plain_word);
    match key {
        "channel" => value.as_str().is_some_and(is_channel),
        "profile" => is_word(value),
        "components" | "targets" => value.as_array().is_some_and(|all| all.iter().all(is_word)),
        _ => false,
    }
}

/// Returns whether this is a published toolchain. Other names are local directories.
fn is_channel(word: &str) -> bool {
    let starts = ["stable", "beta", "nightly"].iter().any(|channel| word.starts_with(channel));
    is_plain_word(word) && (starts || word.starts_with(|c: char| c.is_ascii_digit()))
}

fn check_cargo(table: &Table) -> Option<String> {
    let keys = |section: &String, value: &toml::Value| -> Option<String> {
        let Some(keys) = value.as_table() else { return Some(section.clone()) };
        let bad = keys.iter().find(|(key, value)| !is_harmless_cargo(section, key, value));
        bad.map(|(key, _)| shorten_text(&format!("{section}.{key}")))
    };
    table.iter().find_map(|(section, value)| keys(section, value))
}

/// Common targets that the compiler itself supports.
const COMMON_TARGETS: NameList = NameList::new(include_str!("../../knowledge/rust_targets.txt"));

fn is_harmless_cargo(section: &str, key: &str, value: &toml::Value) -> bool {
    let is_switch = value.is_bool() || value.is_integer();
    match (section, key) {
        ("build", "jobs" | "incremental" | "pipelining") => is_switch,
        ("build", "rustflags") => are_lints(value),
        // With another directory, `cargo clean` would remove its content.
        ("build", "target-dir") => {
            value.as_str().is_some_and(|word| is_plain_word(word) && (word == "target" || word.starts_with("target-")))
        }
        ("target", _) => {
            value.as_table().is_some_and(|keys| keys.iter().all(|(key, value)| key == "rustflags" && are_lints(value)))
        }
        // A target file of another name could choose the linker.
        ("build", "target") => value.as_str().is_some_and(|word| COMMON_TARGETS.contains(word)),
        ("net", "retry" | "offline") => is_switch,
        ("term", "quiet" | "verbose" | "unicode") => is_switch,
        ("term", "color") => value.as_str().is_some_and(is_plain_word),
        ("future-incompat-report", "frequency") => value.as_str().is_some_and(is_plain_word),
        ("cargo-new", "vcs") => value.as_str().is_some_and(is_plain_word),
        ("profile", _) => {
            value.as_table().is_some_and(|keys| keys.iter().all(|(key, value)| is_of_profile(key, value)))
        }
        _ => false,
    }
}

/// Returns whether these compiler flags only set lint levels and the target processor.
fn are_lints(value: &toml::Value) -> bool {
    let words: Vec<&str> = match value {
        toml::Value::String(text) => text.split(' ').collect(),
        toml::Value::Array(all) => all.iter().map(|word| word.as_str().unwrap_or("?")).collect(),
        _ => return false,
    };
    let is_lint = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_:".contains(c))
    };
    let is_processor = |word: &str| word.strip_prefix("target-cpu=").is_some_and(is_plain_word);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let (flag, joined) = word.split_at_checked(2).unwrap_or((word, ""));
        let rest = if joined.is_empty() { words.next().unwrap_or_default() } else { joined };
        let is_harmless = match flag {
            "-D" | "-W" | "-A" => is_lint(rest),
            "-C" => is_processor(rest),
            _ => false,
        };
        if !is_harmless {
            return false;
        }
    }
    true
}

fn is_of_profile(key: &str, value: &toml::Value) -> bool {
    let is_plain = value.is_bool() || value.is_integer() || value.as_str().is_some_and(is_plain_word);
    let known = ["codegen-units", "debug", "debug-assertions", "incremental", "inherits", "lto", "opt-level"];
    is_plain && (known.contains(&key) || ["overflow-checks", "panic", "split-debuginfo", "strip"].contains(&key))
}

// ---- JSON with comments ----

fn in_json(text: &str, look: impl Fn(&Value) -> Option<String>) -> Option<String> {
    let unreliable = || Some("text that cannot be parsed reliably".to_owned());
    let Some(plain) = without_comments(text) else { return unreliable() };
    match serde_json::from_str(&plain) {
        Ok(value) if count_text_keys(&plain) == Some(count_keys(&value)) => look(&value),
        _ => unreliable(),
    }
}

/// Returns the number of keys in a value. A key that occurs twice in the text counts once.
fn count_keys(value: &Value) -> usize {
    match value {
        Value::Array(all) => all.iter().map(count_keys).sum(),
        Value::Object(all) => all.len() + all.values().map(count_keys).sum::<usize>(),
        _ => 0,
    }
}

/// Returns the number of keys in a valid text: strings before a colon.
fn count_text_keys(text: &str) -> Option<usize> {
    let (mut rest, mut count) = (text, 0);
    while let Some(start) = rest.find('"') {
        rest = &rest[start..];
        rest = &rest[string_length(rest)?..];
        count += usize::from(rest.trim_start().starts_with(':'));
    }
    Some(count)
}

/// Returns the text without comments and without commas before a closing bracket.
fn without_comments(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first == '"' {
            let length = string_length(rest)?;
            plain.push_str(&rest[..length]);
            rest = &rest[length..];
        } else if rest.starts_with("//") {
            rest = &rest[rest.find(['\n', '\r']).unwrap_or(rest.len())..];
        } else if rest.starts_with("/*") {
            rest = &rest[2 + rest[2..].find("*/")? + 2..];
            plain.push(' ');
        } else {
            if matches!(first, ']' | '}') {
                let end = plain.trim_end().len();
                plain.truncate(plain[..end].strip_suffix(',').map_or(plain.len(), str::len));
            }
            plain.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    Some(plain)
}

/// Returns the length of the string at the beginning of `text`, with its quotes.
fn string_length(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return Some(at + 1),
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    None
}

/// Prefixes of keys that control the display, search and layout of text.
const EDITOR_SECTIONS: NameList = NameList::new(include_str!("../../knowledge/editor_sections.txt"));
const EDITOR_KEYS: NameList = NameList::new(include_str!("../../knowledge/editor_keys.txt"));

fn editor_settings(value: &Value) -> Option<String> {
    let Some(all) = value.as_object() else { return Some("settings that are not an object".to_owned()) };
    let is_of_language = |key: &str| key.starts_with('[') && key.ends_with(']');
    all.iter().find_map(|(key, value)| {
        if is_of_language(key) {
            return editor_settings(value);
        }
        // The cargo subcommand for checks. Any other could be a program of this name.
        let is_check = key == "rust-analyzer.check.command" && matches!(value.as_str(), Some("check" | "clippy"));
        let is_known =
            is_check || EDITOR_KEYS.contains(key.as_str()) || EDITOR_SECTIONS.names().any(|part| key.starts_with(part));
        let is_end = key == "files.eol" && matches!(value.as_str(), Some("\n" | "\r\n"));
        (!is_end && (!is_known || !is_plain(value, 0))).then(|| shorten_text(key))
    })
}

/// Returns whether a value contains no variables that are replaced later.
fn is_plain(value: &Value, depth: u32) -> bool {
    match value {
        Value::String(text) => !text.contains("${") && !text.chars().any(char::is_control),
        Value::Array(all) => depth < MAX_DEPTH && all.iter().all(|value| is_plain(value, depth + 1)),
        Value::Object(all) => depth < MAX_DEPTH && all.values().all(|value| is_plain(value, depth + 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Returns the reason why tasks run without the user. Other tasks run only when the user starts
/// them.
fn check_tasks(value: &Value, depth: u32) -> Option<String> {
    if depth > MAX_DEPTH {
        return Some("values too deep".to_owned());
    }
    match value {
        Value::String(text) if text.eq_ignore_ascii_case("folderopen") => Some("runOn: folderOpen".to_owned()),
        Value::Array(all) => all.iter().find_map(|value| check_tasks(value, depth + 1)),
        Value::Object(all) if all.keys().any(|key| key.eq_ignore_ascii_case("runon")) => Some("runOn".to_owned()),
        Value::Object(all) => all.values().find_map(|value| check_tasks(value, depth + 1)),
        _ => None,
    }
}

fn check_extensions(value: &Value) -> Option<String> {
    let Some(all) = value.as_object() else { return Some("recommendations that are not an object".to_owned()) };
    let is_name = |value: &Value| {
        value
            .as_str()
            .is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')))
    };
    let is_harmless = |key: &str, value: &Value| {
        matches!(key, "recommendations" | "unwantedRecommendations")
            && value.as_array().is_some_and(|names| names.iter().all(is_name))
    };
    all.iter().find(|(key, value)| !is_harmless(key, value)).map(|(key, _)| shorten_text(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is_harmless(file: ProjectFile, text: &str) -> bool {
        check_project_file(file, [b"", b""], text.as_bytes()) == ContentVerdict::Harmless
    }

    #[test]
    fn display_settings_are_harmless_and_all_others_are_code() {
        use ProjectFile::*;
        for (file, harmless, code) in [
            (
                EditorSettings,
                &[
                    "{}",
                    "// of the team\n{\"editor.tabSize\": 2, \"files.exclude\": {\"**/dist\": true,}, /* x */}",
                    "{\"[rust]\": {\"editor.formatOnSave\": true}, \"search.exclude\": {\"a\": true}}",
                    "{\"cSpell.words\": [\"https://x // y\"]}",
                ][..],
                &[
                    "",
                    "[]",
                    "{\"git.path\": \"./x\"}",
                    "{\"editor.fontFamily\": \"${command:x}\"}",
                    "{\"[rust]\": {\"rust-analyzer.server.path\": \"x\"}}",
                    "{\"editor.a\": 1, \"editor.a\": 2}",
                    "{\"editor.a\": 1} {}",
                    "{} // \u{2028}, \"git.path\": 1",
                    "{\"editor.a\": 1 /* }",
                ][1..],
            ),
            (
                EditorTasks,
                &["{\"version\": \"2.0.0\", \"tasks\": [{\"label\": \"x\", \"command\": \"make\"}]}"],
                &[
                    "{\"tasks\": [{\"runOptions\": {\"runOn\": \"folderOpen\"}}]}",
                    "{\"tasks\": [{\"runOptions\": {\"run\\u004fn\": \"default\"}}]}",
                    "{\"tasks\": [{\"runOptions\": {\"runOn\": \"folderOpen\"}}], \"tasks\": []}",
                ],
            ),
            (
                EditorExtensions,
                &["{\"recommendations\": [\"rust-lang.rust-analyzer\"]}"],
                &["{\"recommendations\": [\"a b\"]}", "{\"other\": 1}"],
            ),
            (
                Npm,
                &["fund=false\naudit = false\n; x\n# y\n\nsave-exact", "public-hoist-pattern[]=*eslint*"],
                &[
                    "# x\rscript-shell=./x",
                    "registry=http://x",
                    "//x/:_authToken=y",
                    "script-shell=./x",
                    "fund=${HOME}",
                    "node-options=--require=x",
                ],
            ),
            (
                Yarn,
                &["nodeLinker: node-modules\n\n# x\nenableTelemetry: 0\ncompressionLevel: mixed # y\n"],
                &[
                    "yarnPath: .yarn/releases/yarn.cjs",
                    "nodeLinker: pnp\nplugins:\n  - path: x",
                    "npmRegistryServer: \"http://x\"",
                ],
            ),
            (
                ToolVersions,
                &["nodejs 20.1.0 # x\nruby 3.2\n"],
                &["nodejs 20 # {{ exec(command='x') }}", "nodejs path:./x", "nodejs ref:abc", "x -y"],
            ),
            (
                RustToolchain,
                &["1.80\n", "nightly-2026-01-01", "[toolchain]\nchannel = \"stable\"\ncomponents = [\"clippy\"]"],
                &["x", "./x", "[toolchain]\npath = \"x\"", "[other]\na = 1", "[toolchain]\nchannel = \"x\""],
            ),
            (
                Cargo,
                &[
                    "[build]\njobs = 2\nrustflags = [\"-D\", \"warnings\", \"-Ctarget-cpu=native\"]\ntarget-dir = \"target-x\"\n[profile.dev]\ndebug = 0",
                    "[net]\nretry = 2\n[term]\ncolor = \"always\"",
                ],
                &[
                    "[build]\nrustc-wrapper = \"x\"",
                    "[build]\nrustflags = [\"-Clinker=x\"]",
                    "[build]\nrustflags = [\"-D\", \"-Clinker=x\"]",
                    "[build]\nrustflags = [\"x.rs\"]",
                    "[build]\ntarget-dir = \"../x\"",
                    "[build]\ntarget-dir = \"src\"",
                    "[build]\ntarget = \"evil\"",
                    "[target.x]\nrunner = \"x\"",
                    "[build]\ntarget = \"x.json\"",
                    "[target.x]\nrunner = \"x\"",
                    "[env]\nA = \"b\"",
                    "include = \"x\"",
                    "[alias]\nfmt = \"run\"",
                    "[profile.dev]\nrustflags = [\"x\"]",
                ],
            ),
        ] {
            for text in harmless {
                assert!(is_harmless(file, text), "{file:?}: {text}");
            }
            for text in code {
                assert!(!is_harmless(file, text), "{file:?}: {text}");
            }
        }
    }

    #[test]
    fn further_settings_of_the_user_stay() {
        let token = &b"//registry.npmjs.org/:_authToken=x\n"[..];
        for there in [[token, token], [b"", token], [token, b""]] {
            let ContentVerdict::Carries { what, .. } = check_project_file(ProjectFile::Npm, there, b"fund=false\n")
            else {
                panic!("it is given up")
            };
            assert!(what.ends_with("_authToken"), "{what}");
            assert!(lost_with(ProjectFile::Npm, there).is_some());
        }
        assert_eq!(lost_with(ProjectFile::Npm, [b"", b"fund=false\n"]), None);
    }
}
