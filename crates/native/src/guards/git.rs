//! Files that git would obey or run because a setting or a pointer of a repository
//! names them (git-config(1), gitrepository-layout(5)). It reads too much rather than
//! too little: a file that is named by a setting which git ignores is guarded as well.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::view::{View, absolute, join, parent};
use crate::powers::to_path;

/// Variables that say where the person's own settings are.
const SETTINGS_VARIABLES: [&str; 3] = ["HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL"];
/// Their values in a process that has no environment of the person's.
static GIVEN_VARIABLES: OnceLock<SettingsVariables> = OnceLock::new();
/// Settings larger than this are not read; their file is guarded all the same.
const MAX_SETTINGS_BYTES: u64 = 1 << 20;
/// As git: `MAX_INCLUDE_DEPTH`.
const MAX_INCLUDES: usize = 10;
/// Last parts of keys whose value is a command.
const COMMAND_KEYS: &[&str] = &[
    "alternaterefscommand",
    "askpass",
    "clean",
    "cmd",
    "command",
    "defaultkeycommand",
    "difffilter",
    "driver",
    "editor",
    "external",
    "fsmonitor",
    "gitproxy",
    "helper",
    "packobjectshook",
    "pager",
    "process",
    "program",
    "receivepack",
    "smudge",
    "sshcommand",
    "textconv",
    "tocmd",
    "uploadpack",
];

/// Values of variables that say where the person's own settings are.
pub(crate) type SettingsVariables = BTreeMap<String, OsString>;

/// Those of this process.
pub(crate) fn settings_variables() -> SettingsVariables {
    SETTINGS_VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var_os(name)?))).collect()
}

/// Takes these for those of this process from now on; only the first ones count.
pub(crate) fn use_settings_variables(given: SettingsVariables) {
    let _ = GIVEN_VARIABLES.set(given);
}

fn settings_variable(name: &str) -> Option<PathBuf> {
    let value = match GIVEN_VARIABLES.get() {
        Some(given) => given.get(name).cloned(),
        None => std::env::var_os(name),
    };
    value.filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// What one setting names.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    /// More settings, from the directory of the file that names them.
    Include(Vec<u8>),
    /// A file or directory, from the top of the work tree.
    File(Vec<u8>),
}

/// What the repository in the directory `repository`, with a work tree at `top`, names: its
/// settings and hooks where they lie in another directory, and every file that a setting
/// leads to. `home` is what `~` means.
pub(super) fn named_by_repository(view: View<'_>, repository: &[u8], top: &[u8], home: Option<&[u8]>) -> Vec<Vec<u8>> {
    let common_file = join(repository, b"commondir");
    let common = view.read(&common_file, MAX_SETTINGS_BYTES).map(|text| absolute(repository, first_line(&text)));
    // Its own settings, hooks and pointers are refused by name. What links of such a
    // name lead to is not.
    let own: [&[u8]; 4] = [b"config", b"config.worktree", b"hooks", b"commondir"];
    let own = own.map(|name| join(repository, name));
    let mut places: Vec<Vec<u8>> = own.into_iter().filter(|path| view.is_link(path)).collect();
    if let Some(common) = &common {
        places.extend([b"config" as &[u8], b"hooks"].map(|name| join(common, name)));
    }
    let settings = [join(common.as_deref().unwrap_or(repository), b"config"), join(repository, b"config.worktree")];
    let mut tops = vec![top.to_vec(), repository.to_vec()];
    for file in &settings {
        let text = view.read(file, MAX_SETTINGS_BYTES).unwrap_or_default();
        let trees = entries(&text).filter(|(section, key, _)| section == "core" && key == "worktree");
        tops.extend(trees.map(|(_, _, value)| absolute(repository, &value)));
    }
    tops.sort();
    tops.dedup();
    for file in settings {
        add_named_by_settings(view, &file, (&tops, home), 0, &mut places);
    }
    places
}

/// What a `.git` file names: the directory of its repository.
pub(super) fn named_by_pointer(view: View<'_>, file: &[u8]) -> Vec<Vec<u8>> {
    let Some(text) = view.read(file, MAX_SETTINGS_BYTES) else { return Vec::new() };
    let Some(directory) = first_line(&text).strip_prefix(b"gitdir:") else { return Vec::new() };
    vec![absolute(parent(file), directory.trim_ascii())]
}

/// What the settings of the person name, which hold in every repository.
#[derive(Debug, Default)]
pub(super) struct GlobalSettings {
    /// Directories of hooks, from the top of each work tree.
    pub hooks: Vec<Vec<u8>>,
    /// Absolute paths.
    pub files: Vec<Vec<u8>>,
    /// Where the person's own settings are.
    pub home: Option<Vec<u8>>,
}

impl GlobalSettings {
    /// Of the person who runs this process. What cannot be read names nothing.
    pub(super) fn of_caller() -> Self {
        let home = home_directory();
        let mut files = vec![PathBuf::from("/etc/gitconfig")];
        match settings_variable("GIT_CONFIG_GLOBAL") {
            Some(file) => files.push(file),
            None => {
                let configuration =
                    settings_variable("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
                files.extend(configuration.map(|directory| directory.join("git/config")));
                files.extend(home.as_ref().map(|home| home.join(".gitconfig")));
            }
        }
        let own = home.as_deref().and_then(|home| std::fs::canonicalize(home).ok());
        let mut settings = Self { home: own.map(|home| home.into_os_string().into_vec()), ..Self::default() };
        for file in files {
            if let Ok(followed) = std::fs::canonicalize(&file) {
                settings.files.push(followed.into_os_string().into_vec());
            }
            let home = settings.home.clone().map(|home| to_path(&home));
            settings.add(&file, home.as_deref(), 0);
        }
        settings
    }

    fn add(&mut self, file: &Path, home: Option<&Path>, depth: usize) {
        let Some(text) = read_bounded(file) else { return };
        let directory = file.parent().unwrap_or(Path::new("/")).as_os_str().as_bytes();
        let home_bytes = home.map(|home| home.as_os_str().as_bytes());
        for (section, key, value) in entries(&text) {
            for named in named(&section, &key, &value, home_bytes) {
                match named {
                    Named::Include(path) => {
                        let path = absolute(directory, &path);
                        if depth < MAX_INCLUDES && !self.files.contains(&path) {
                            self.files.push(path.clone());
                            self.add(&to_path(&path), home, depth + 1);
                        }
                    }
                    Named::File(path) if path.starts_with(b"/") => self.files.push(path),
                    Named::File(path) => self.hooks.push(path),
                }
            }
        }
    }
}

/// From `HOME` or, where that is not set, from the user database's file.
fn home_directory() -> Option<PathBuf> {
    if let Some(home) = settings_variable("HOME") {
        return Some(home);
    }
    let user = rustix::process::geteuid().as_raw().to_string();
    let database = read_bounded(Path::new("/etc/passwd"))?;
    let fields = |line: &[u8]| line.split(|b| *b == b':').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let entry =
        database.split(|b| *b == b'\n').map(fields).find(|entry| entry.get(2) == Some(&user.clone().into_bytes()))?;
    Some(to_path(entry.get(5)?))
}

fn read_bounded(path: &Path) -> Option<Vec<u8>> {
    let metadata = std::fs::metadata(path).ok()?;
    (metadata.is_file() && metadata.len() <= MAX_SETTINGS_BYTES).then(|| std::fs::read(path).ok())?
}

fn add_named_by_settings(
    view: View<'_>,
    file: &[u8],
    (tops, home): (&[Vec<u8>], Option<&[u8]>),
    depth: usize,
    places: &mut Vec<Vec<u8>>,
) {
    // Git follows links to its settings.
    let followed = view.resolve(file).map_or_else(|| file.to_vec(), |chain| chain.end);
    let Some(text) = view.read(&followed, MAX_SETTINGS_BYTES) else { return };
    for (section, key, value) in entries(&text) {
        for named in named(&section, &key, &value, home) {
            match named {
                Named::Include(path) => {
                    let path = absolute(parent(file), &path);
                    if depth < MAX_INCLUDES && !places.contains(&path) {
                        places.push(path.clone());
                        add_named_by_settings(view, &path, (tops, home), depth + 1, places);
                    }
                }
                Named::File(path) => places.extend(tops.iter().map(|top| absolute(top, &path))),
            }
        }
    }
}

/// The files that one setting names, with `~` replaced.
fn named(section: &str, key: &str, value: &[u8], home: Option<&[u8]>) -> Vec<Named> {
    let expand = |path: &[u8]| match (path.strip_prefix(b"~/"), home) {
        (Some(rest), Some(home)) => join(home, rest),
        _ => path.to_vec(),
    };
    let is_path = |path: &[u8]| !path.is_empty() && !path.starts_with(b"%");
    match (section, key) {
        ("include" | "includeif", "path") if is_path(value) => vec![Named::Include(expand(value))],
        ("core", "hookspath" | "attributesfile") | ("init", "templatedir") if is_path(value) => {
            vec![Named::File(expand(value))]
        }
        ("mergetool" | "difftool", "path") | ("submodule", "update") => {
            words(value).map(|w| Named::File(expand(&w))).collect()
        }
        // `!` starts a shell command in aliases and helpers.
        ("alias", _) if !value.starts_with(b"!") => Vec::new(),
        (section, key) if matches!(section, "alias" | "pager") || COMMAND_KEYS.contains(&key) => {
            words(value).map(|word| Named::File(expand(&word))).collect()
        }
        _ => Vec::new(),
    }
}

/// Every word of a command that is a path: any of them may be the program's script.
fn words(command: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let parts = command.split(|b| {
        b.is_ascii_whitespace() || matches!(b, b'!' | b'"' | b'\'' | b';' | b'&' | b'|' | b'(' | b')' | b'=')
    });
    parts.filter(|word| word.contains(&b'/') && word.iter().any(|b| *b != b'/')).map(<[u8]>::to_vec)
}

fn first_line(text: &[u8]) -> &[u8] {
    text.split(|b| *b == b'\n').next().unwrap_or(text).trim_ascii()
}

/// The settings of a file as (section, key, value); section and key in lower case.
fn entries(text: &[u8]) -> impl Iterator<Item = (String, String, Vec<u8>)> {
    let mut section = String::new();
    logical_lines(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)).into_iter().filter_map(move |line| {
        let mut line = line.trim_ascii();
        while let Some(header) = line.strip_prefix(b"[") {
            let end = header.iter().position(|b| *b == b']')?;
            let first = header[..end].split(|b| b.is_ascii_whitespace() || *b == b'.' || *b == b'"').next()?;
            section = String::from_utf8_lossy(first).to_ascii_lowercase();
            line = header[end + 1..].trim_ascii();
        }
        if line.is_empty() || matches!(line[0], b'#' | b';') {
            return None;
        }
        let (key, value) = match line.iter().position(|b| *b == b'=') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        };
        let key = String::from_utf8_lossy(key.trim_ascii()).to_ascii_lowercase();
        Some((section.clone(), key, unquoted(value)))
    })
}

/// Lines, with those joined that a backslash continues.
fn logical_lines(text: &[u8]) -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = Vec::new();
    let mut continues = false;
    for line in text.split(|b| *b == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (line, goes_on) = match line.strip_suffix(b"\\") {
            Some(rest) if !rest.ends_with(b"\\") && (continues || !is_comment(line)) => (rest, true),
            _ => (line, false),
        };
        match lines.last_mut().filter(|_| continues) {
            Some(last) => last.extend_from_slice(line),
            None => lines.push(line.to_vec()),
        }
        continues = goes_on;
    }
    lines
}

fn is_comment(line: &[u8]) -> bool {
    matches!(line.trim_ascii_start().first(), Some(b'#' | b';'))
}

/// A value without quotes, escapes and comment.
fn unquoted(value: &[u8]) -> Vec<u8> {
    let (mut plain, mut quoted, mut escaped) = (Vec::new(), false, false);
    for byte in value.trim_ascii() {
        match byte {
            _ if escaped => {
                plain.push(*byte);
                escaped = false;
            }
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b'#' | b';' if !quoted => break,
            _ => plain.push(*byte),
        }
    }
    if quoted { plain } else { plain.trim_ascii_end().to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn places(files: &[(&str, &str)], of: impl FnOnce(View<'_>) -> Vec<Vec<u8>>) -> Vec<String> {
        let scratch = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = scratch.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = std::fs::File::open(scratch.path()).unwrap();
        let mut found = of(View::new(root.as_fd()));
        found.sort();
        found.dedup();
        found.into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
    }

    #[test]
    fn settings_name_includes_hooks_and_programs() {
        let config = "[core]\n\tbare = false\n\thookspath = \"tools/ho\\\noks\" ; comment\n[Include] path = ../shared.cfg\n\
                      [includeIf \"gitdir:/x/\"]\n  path = /abs.cfg\n[filter \"x\"] clean = ./f.sh %f\n\
                      [alias]\n a = !\"./a b\" c\n s = status\n[remote \"o\"] url = ../o\n";
        let files = [("w/.git/config", config), ("w/shared.cfg", "[core]\nfsmonitor=./mon\n[include]path=x.cfg\n")];
        let found = places(&files, |view| named_by_repository(view, b"/w/.git", b"/w", None));
        let expected = [
            "/abs.cfg",
            "/w/.git/a",
            "/w/.git/f.sh",
            "/w/.git/mon",
            "/w/.git/tools/hooks",
            "/w/a",
            "/w/f.sh",
            "/w/mon",
            "/w/shared.cfg",
            "/w/tools/hooks",
            "/w/x.cfg",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn another_directory_with_the_settings_is_found() {
        let files = [("r/HEAD", ""), ("r/commondir", "../y\n"), ("y/config", "[core] hooksPath=h\n")];
        let found = places(&files, |view| named_by_repository(view, b"/r", b"/r", None));
        assert_eq!(found, ["/r/h", "/y/config", "/y/hooks"]);
        let pointer = places(&[("w/.git", "gitdir: ../meta\n")], |view| named_by_pointer(view, b"/w/.git"));
        assert_eq!(pointer, ["/meta"]);
    }

    #[test]
    fn settings_of_the_person_hold_everywhere() {
        let scratch = tempfile::tempdir().unwrap();
        let (home, file) = (scratch.path(), scratch.path().join(".gitconfig"));
        std::fs::write(home.join("more"), "[core] fsmonitor = ./mon\n").unwrap();
        let text =
            "[core]\nhooksPath = .githooks\n[include] path = ~/more\n[diff] external = /w/diff x\n[user] name = /x\n";
        std::fs::write(&file, text).unwrap();
        let mut settings = GlobalSettings::default();
        settings.add(&file, Some(home), 0);
        assert_eq!(settings.hooks, [b".githooks".to_vec(), b"./mon".to_vec()]);
        assert_eq!(settings.files, [home.join("more").as_os_str().as_bytes().to_vec(), b"/w/diff".to_vec()]);
    }
}
