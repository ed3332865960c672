//! Files that git obeys or runs because a setting or a pointer of a repository names them
//! (git-config(1), gitrepository-layout(5)). The search includes too many files rather than too
//! few: a file named by a setting that git ignores is guarded as well.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::command_words::{CommandWord, extract_words, path_tails};
use super::settings_cache::SettingsCache;
use super::settings_text::parse_entries;
use super::view::{RootView, join_name, join_relative, parent_path};
use crate::powers::to_path;
use stockade_model::NameList;

/// Variables that name the location of the user's own settings, or of the installed git.
const SETTINGS_VARIABLES: [&str; 5] = ["HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "PATH"];
/// Their values, for a process without the user's environment.
static PRESET_VARIABLES: OnceLock<SettingsVariables> = OnceLock::new();
/// Longest settings file, in bytes. It exceeds the longest text that a run may write into one
/// (`broker::guarded_content`), because git adds lines of its own on the host.
pub(super) const MAX_SETTINGS_BYTES: u64 = 8 << 20;
/// Same limit as git's `MAX_INCLUDE_DEPTH`.
const MAX_INCLUDES: usize = 10;
/// Last parts of keys with a command or a program path as value, from git's own documentation
/// (git-config(1) of 2.49) and git-lfs-config(5).
const COMMAND_KEYS: NameList = NameList::new(include_str!("../../knowledge/git_command_keys.txt"));

/// Values of the variables that name the location of the user's settings.
pub type SettingsVariables = BTreeMap<String, OsString>;

/// Returns the values in this process.
pub fn settings_variables() -> SettingsVariables {
    SETTINGS_VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var_os(name)?))).collect()
}

/// Replaces the values of this process from now on. Only the first call has an effect.
pub fn use_settings_variables(variables: SettingsVariables) {
    let _ = PRESET_VARIABLES.set(variables);
}

fn settings_variable(name: &str) -> Option<PathBuf> {
    let value = match PRESET_VARIABLES.get() {
        Some(variables) => variables.get(name).cloned(),
        None => std::env::var_os(name),
    };
    value.filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A path that one setting names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReferencedPath {
    /// Further settings, relative to the directory of the file that names them.
    Include(Vec<u8>),
    /// A file or directory, relative to the top of the work tree.
    File(Vec<u8>),
    /// A file but no directory, relative to the same top.
    Argument(Vec<u8>),
}

/// Paths that settings name.
#[derive(Debug, Default)]
pub(super) struct ReferencedPaths {
    /// Files and directories.
    pub any: Vec<Vec<u8>>,
    /// Files; a directory at such a path is ignored.
    pub files: Vec<Vec<u8>>,
}

impl ReferencedPaths {
    /// Makes paths that may be files or directories.
    pub(super) fn of_any(any: Vec<Vec<u8>>) -> Self {
        Self { any, ..Self::default() }
    }

    pub(super) fn iter_paths(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.any.iter().chain(&self.files)
    }

    /// Returns the paths joined to `top`.
    pub(super) fn beneath_top(&self, top: &[u8]) -> Self {
        let from_top = |paths: &[Vec<u8>]| paths.iter().map(|path| join_relative(top, path)).collect();
        Self { any: from_top(&self.any), files: from_top(&self.files) }
    }
}

/// Returns the paths that the repository in the directory `repository` names, with a work tree at
/// `top`. These are its settings and hooks if they are in another directory, and every file that a
/// setting leads to.
///
/// # Errors
/// The path of a settings file that cannot be read whole.
pub(super) fn named_by_repository(
    view: RootView<'_>,
    repository: &[u8],
    top: &[u8],
    settings_cache: &SettingsCache,
) -> Result<ReferencedPaths, Vec<u8>> {
    let common_file = join_name(repository, b"commondir");
    let common_directory =
        view.read_settings(&common_file, MAX_SETTINGS_BYTES)?.map(|text| join_relative(repository, first_line(&text)));
    // The directory that git keeps for a work tree belongs to the repository above, even if it does
    // not name that one. A run may remove `commondir`, and a later process may restore it.
    let above =
        common_of_work_tree(repository).map(<[u8]>::to_vec).filter(|above| common_directory.as_ref() != Some(above));
    let common: Vec<Vec<u8>> = common_directory.into_iter().chain(above).collect();
    // Its own settings, hooks and pointers are refused by name. The targets of links with such
    // names are not.
    let own: [&[u8]; 4] = [b"config", b"config.worktree", b"hooks", b"commondir"];
    let own = own.map(|name| join_name(repository, name));
    let mut referenced = ReferencedPaths::default();
    referenced.any.extend(own.into_iter().filter(|path| view.is_link(path)));
    for common in &common {
        referenced.any.extend([b"config" as &[u8], b"hooks"].map(|name| join_name(common, name)));
    }
    let own = [repository.to_vec()];
    let directories = if common.is_empty() { &own[..] } else { &common };
    let mut settings: Vec<Vec<u8>> = directories.iter().map(|directory| join_name(directory, b"config")).collect();
    settings.push(join_name(repository, b"config.worktree"));
    let mut tops = vec![top.to_vec(), repository.to_vec()];
    for file in &settings {
        let Some(text) = settings_cache.load(view, file)? else { continue };
        tops.extend(text.work_trees.iter().map(|value| join_relative(repository, value)));
    }
    tops.sort();
    tops.dedup();
    for file in settings {
        add_named_by_settings(view, &file, (&tops, settings_cache), 0, &mut referenced)?;
    }
    Ok(referenced)
}

/// Returns the repository whose `worktrees` contain the directory `data_directory`.
pub(super) fn common_of_work_tree(data_directory: &[u8]) -> Option<&[u8]> {
    let above = parent_path(data_directory);
    (above.ends_with(b"/.git/worktrees")).then(|| parent_path(above))
}

/// Returns the directory of the repository that a `.git` file names.
pub(super) fn named_by_pointer(view: RootView<'_>, file: &[u8]) -> Vec<Vec<u8>> {
    let Some(text) = view.read_file(file, MAX_SETTINGS_BYTES) else { return Vec::new() };
    let Some(directory) = first_line(&text).strip_prefix(b"gitdir:") else { return Vec::new() };
    vec![join_relative(parent_path(file), directory.trim_ascii())]
}

/// Paths named by the user's settings, which apply in every repository.
#[derive(Debug, Default)]
pub(super) struct GlobalSettings {
    /// Directories of hooks and programs, relative to the top of each work tree.
    pub from_top: ReferencedPaths,
    /// Absolute paths.
    pub files: Vec<Vec<u8>>,
    /// The user's home directory.
    pub home: Option<Vec<u8>>,
}

impl GlobalSettings {
    /// Reads the settings of the user that runs this process. Settings that cannot be read name no
    /// paths.
    pub(super) fn of_caller() -> Self {
        let home = home_directory();
        let search_path = settings_variable("PATH").unwrap_or_default();
        let mut files = system_settings(settings_variable("GIT_CONFIG_SYSTEM"), search_path.as_os_str());
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
            settings.add_settings_file(&file, home.as_deref(), 0);
        }
        settings
    }

    fn add_settings_file(&mut self, file: &Path, home: Option<&Path>, depth: usize) {
        let Some(text) = read_bounded(file) else { return };
        let directory = file.parent().unwrap_or(Path::new("/")).as_os_str().as_bytes();
        let home_bytes = home.map(|home| home.as_os_str().as_bytes());
        for (section, key, value) in parse_entries(&text) {
            for named in find_named_paths(&section, &key, &value, home_bytes) {
                match named {
                    ReferencedPath::Include(path) => {
                        let path = join_relative(directory, &path);
                        if depth < MAX_INCLUDES && !self.files.contains(&path) {
                            self.files.push(path.clone());
                            self.add_settings_file(&to_path(&path), home, depth + 1);
                        }
                    }
                    ReferencedPath::File(path) if path.starts_with(b"/") => self.files.push(path),
                    ReferencedPath::File(path) => self.from_top.any.push(path),
                    ReferencedPath::Argument(path) => self.from_top.files.push(path),
                }
            }
        }
    }
}

/// Returns the possible paths of the settings for all users. Each installed git has its own,
/// `PREFIX/etc/gitconfig`; a distribution's git uses `/etc/gitconfig`.
fn system_settings(named: Option<PathBuf>, search_path: &OsStr) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = named.into_iter().chain([PathBuf::from("/etc/gitconfig")]).collect();
    for directory in std::env::split_paths(search_path).filter(|directory| directory.is_absolute()) {
        if let (Some("bin"), Some(prefix)) = (directory.file_name().and_then(|name| name.to_str()), directory.parent())
        {
            files.push(prefix.join("etc/gitconfig"));
        }
    }
    files.sort();
    files.dedup();
    files
}

/// Returns the home directory from `HOME` or, if that is not set, from the file of the user
/// database.
fn home_directory() -> Option<PathBuf> {
    if let Some(home) = settings_variable("HOME") {
        return Some(home);
    }
    let user = rustix::process::geteuid().as_raw().to_string();
    home_in_database(|entry| entry.get(2).is_some_and(|id| *id == user.as_bytes())).map(|home| to_path(&home))
}

/// Returns the home directory of the first matching user in the database's file. Users of other
/// databases are not found.
fn home_in_database(is_wanted: impl Fn(&[&[u8]]) -> bool) -> Option<Vec<u8>> {
    let database = read_bounded(Path::new("/etc/passwd"))?;
    let entries = database.split(|b| *b == b'\n').map(|line| line.split(|b| *b == b':').collect::<Vec<_>>());
    entries.filter(|entry| is_wanted(entry)).find_map(|entry| Some(entry.get(5)?.to_vec()))
}

fn read_bounded(path: &Path) -> Option<Vec<u8>> {
    let metadata = std::fs::metadata(path).ok()?;
    (metadata.is_file() && metadata.len() <= MAX_SETTINGS_BYTES).then(|| std::fs::read(path).ok())?
}

fn add_named_by_settings(
    view: RootView<'_>,
    file: &[u8],
    (tops, settings_cache): (&[Vec<u8>], &SettingsCache),
    depth: usize,
    referenced: &mut ReferencedPaths,
) -> Result<(), Vec<u8>> {
    // Git follows links to its settings.
    let Some(settings) = settings_cache.load(view, file)? else { return Ok(()) };
    for named in &settings.named {
        match named {
            ReferencedPath::Include(path) => {
                let path = join_relative(parent_path(file), path);
                if depth < MAX_INCLUDES && !referenced.any.contains(&path) {
                    referenced.any.push(path.clone());
                    add_named_by_settings(view, &path, (tops, settings_cache), depth + 1, referenced)?;
                }
            }
            ReferencedPath::File(path) => referenced.any.extend(tops.iter().map(|top| join_relative(top, path))),
            ReferencedPath::Argument(path) => referenced.files.extend(tops.iter().map(|top| join_relative(top, path))),
        }
    }
    Ok(())
}

/// Returns the files that one setting names.
pub(super) fn find_named_paths(section: &str, key: &str, value: &[u8], home: Option<&[u8]>) -> Vec<ReferencedPath> {
    let is_path = |path: &[u8]| !path.is_empty();
    match (section, key) {
        ("include" | "includeif", "path") if is_path(value) => {
            expand_path(value, home).into_iter().map(ReferencedPath::Include).collect()
        }
        ("core", "hookspath") if is_path(value) => {
            let paths = expand_path(value, home).into_iter();
            // Husky's hooks are in `.husky/_` and run the files beside that directory.
            let above = |path: &Vec<u8>| {
                let is_named = |part: &&[u8]| !matches!(*part, b"" | b".");
                let last = path.rsplit(|b| *b == b'/').find(is_named).filter(|last| *last == b"_")?;
                let end = path.windows(2).rposition(|pair| pair == b"/_")?;
                (last == b"_").then(|| ReferencedPath::File(path[..end].to_vec()))
            };
            paths.flat_map(|path| above(&path).into_iter().chain([ReferencedPath::File(path)])).collect()
        }
        ("core", "attributesfile") | ("init", "templatedir") if is_path(value) => {
            expand_path(value, home).into_iter().map(ReferencedPath::File).collect()
        }
        ("mergetool" | "difftool" | "browser" | "man" | "lfs", "path") | ("submodule", "update") => {
            named_by_command(value, home)
        }
        // A credential helper is the suffix of a command name, unless it is a path.
        ("credential", "helper") if !value.starts_with(b"!") => {
            let called = value.split(u8::is_ascii_whitespace).next().unwrap_or_default();
            let others = |named: &ReferencedPath| !matches!(named, ReferencedPath::Argument(name) if name == called);
            named_by_command(value, home).into_iter().filter(others).collect()
        }
        // `!` starts a shell command in aliases and helpers.
        ("alias", _) if !value.starts_with(b"!") => Vec::new(),
        // For a remote, only the transport that is a command of its own.
        ("remote", "url" | "pushurl") if !value.starts_with(b"ext::") => Vec::new(),
        ("remote", "url" | "pushurl") => named_by_command(&value[b"ext::".len()..], home),
        (section, key) if matches!(section, "alias" | "pager") || COMMAND_KEYS.contains(key) => {
            named_by_command(value, home)
        }
        _ => Vec::new(),
    }
}

fn named_by_command(command: &[u8], home: Option<&[u8]>) -> Vec<ReferencedPath> {
    let named = |word: CommandWord| match word {
        CommandWord::Path(path) => expand_path(&path, home).into_iter().map(ReferencedPath::File).collect(),
        CommandWord::Name(name) => vec![ReferencedPath::Argument(name)],
    };
    extract_words(command).into_iter().flat_map(named).collect()
}

/// Returns the possible meanings of a path with its first component expanded, as git and shells
/// expand it.
fn expand_path(path: &[u8], home: Option<&[u8]>) -> Vec<Vec<u8>> {
    let (first, rest) = match path.iter().position(|b| *b == b'/') {
        Some(end) => (&path[..end], &path[end + 1..]),
        None => (path, &b""[..]),
    };
    let home = match first {
        b"%(prefix)" => return [b"/usr" as &[u8], b"/usr/local"].map(|prefix| join_name(prefix, rest)).to_vec(),
        b"~" | b"$HOME" | b"${HOME}" => home.map(<[u8]>::to_vec),
        [b'~', user @ ..] => home_in_database(|entry| entry.first() == Some(&user)),
        _ => return vec![path.to_vec()],
    };
    // The home directory is unknown: it may be any directory above.
    home.map_or_else(|| path_tails(path), |home| vec![join_name(&home, rest)])
}

fn first_line(text: &[u8]) -> &[u8] {
    text.split(|b| *b == b'\n').next().unwrap_or(text).trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn referenced(files: &[(&str, &str)], of: impl FnOnce(RootView<'_>) -> ReferencedPaths) -> Vec<String> {
        let scratch = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = scratch.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = std::fs::File::open(scratch.path()).unwrap();
        let view = RootView::new(root.as_fd());
        let ReferencedPaths { any, files } = of(view);
        let end = |path: &Vec<u8>| String::from_utf8(view.resolve_path(path).unwrap().end).unwrap();
        let mut found: Vec<String> = any.iter().map(end).chain(files.iter().map(|path| end(path) + "?")).collect();
        found.sort();
        found.dedup();
        found
    }

    #[test]
    fn settings_name_includes_hooks_and_programs() {
        let config = "[core]\n\tbare = false\n\thookspath = \"tools/ho\\\noks\" ; comment\n[Include] path = ../shared.cfg\n\
                      [includeIf \"gitdir:/x/\"]\n  path = /abs.cfg\n[filter \"x\"] clean = ./f.sh %f\n\
                      [alias]\n a = !\"./a b\" c\n s = status\n d = !sh d.sh\n[remote \"o\"] url = ../o\n\
                      [remote \"e\"] url = ext::sh ./e\n[gc] recentObjectsHook = r/o\n";
        let files = [("w/.git/config", config), ("w/shared.cfg", "[core]\nfsmonitor=./mon\n[include]path=x.cfg\n")];
        let found =
            referenced(&files, |view| named_by_repository(view, b"/w/.git", b"/w", &SettingsCache::default()).unwrap());
        let expected = [
            "/abs.cfg",
            "/w/.git/a",
            "/w/.git/d.sh?",
            "/w/.git/e",
            "/w/.git/f.sh",
            "/w/.git/mon",
            "/w/.git/r/o",
            "/w/.git/tools/hooks",
            "/w/a",
            "/w/d.sh?",
            "/w/e",
            "/w/f.sh",
            "/w/mon",
            "/w/r/o",
            "/w/shared.cfg",
            "/w/tools/hooks",
            "/w/x.cfg",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn another_directory_with_the_settings_is_found() {
        let files = [("r/HEAD", ""), ("r/commondir", "../y\n"), ("y/config", "[core] hooksPath=h\n")];
        let found =
            referenced(&files, |view| named_by_repository(view, b"/r", b"/r", &SettingsCache::default()).unwrap());
        assert_eq!(found, ["/r/h", "/y/config", "/y/hooks"]);
        let pointer = referenced(&[("w/.git", "gitdir: ../meta\n")], |view| {
            ReferencedPaths::of_any(named_by_pointer(view, b"/w/.git"))
        });
        assert_eq!(pointer, ["/meta"]);
    }

    #[test]
    fn each_installed_git_has_settings_for_all_users() {
        let found = system_settings(Some("/s".into()), OsStr::new("/usr/local/bin:bin:/opt/x/sbin:/opt/y/bin:"));
        assert_eq!(
            found,
            ["/etc/gitconfig", "/opt/y/etc/gitconfig", "/s", "/usr/local/etc/gitconfig"].map(PathBuf::from)
        );
    }

    #[test]
    fn settings_that_are_not_read_whole_are_named() {
        let scratch = tempfile::tempdir().unwrap();
        let git = scratch.path().join("w/.git");
        std::fs::create_dir_all(&git).unwrap();
        let root = std::fs::File::open(scratch.path()).unwrap();
        let view = RootView::new(root.as_fd());
        let named =
            || named_by_repository(view, b"/w/.git", b"/w", &SettingsCache::default()).map(|referenced| referenced.any);
        for name in ["config.worktree", "config", "more"] {
            std::fs::write(git.join("config"), "[include] path = more\n").unwrap();
            let file = std::fs::File::create(git.join(name)).unwrap();
            file.set_len(MAX_SETTINGS_BYTES + 1).unwrap();
            assert_eq!(named(), Err(format!("/w/.git/{name}").into_bytes()));
            file.set_len(0).unwrap();
        }
        assert!(named().is_ok());
    }

    #[test]
    fn settings_of_the_person_hold_everywhere() {
        let scratch = tempfile::tempdir().unwrap();
        let (home, file) = (scratch.path(), scratch.path().join(".gitconfig"));
        std::fs::write(home.join("more"), "[core] fsmonitor = ./mon\n").unwrap();
        let text =
            "[core]\nhooksPath = .githooks\n[include] path = ~/more\n[diff] external = /w/diff x\n[user] name = /x\n";
        let text = format!("{text}[credential]\nhelper = store.sh\nhelper = !sh own.sh\n");
        std::fs::write(&file, text).unwrap();
        let mut settings = GlobalSettings::default();
        settings.add_settings_file(&file, Some(home), 0);
        assert_eq!(settings.from_top.any, [b".githooks".to_vec(), b"./mon".to_vec()]);
        assert_eq!(settings.from_top.files, [b"own.sh".to_vec()]);
        assert_eq!(settings.files, [home.join("more").as_os_str().as_bytes().to_vec(), b"/w/diff".to_vec()]);
    }

    #[test]
    fn homes_are_expanded_as_git_does() {
        let check = |path: &str, expected: &[&str]| {
            let found = expand_path(path.as_bytes(), Some(b"/h"));
            assert_eq!(found, expected.iter().map(|p| p.as_bytes().to_vec()).collect::<Vec<_>>(), "{path}");
        };
        check("~/a", &["/h/a"]);
        check("${HOME}/a/b", &["/h/a/b"]);
        check("%(prefix)/x", &["/usr/x", "/usr/local/x"]);
        check("~root/x", &["/root/x"]);
        check("~nobody-of-this-name/a/b", &["a/b", "b"]);
        check("a/~/b", &["a/~/b"]);
    }
}
