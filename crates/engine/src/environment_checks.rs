//! Checks the conditions that an `allow` depends on in the environment of a command: repositories
//! configure no driver, and the toolchain is the user's own. The shell crate lists the conditions;
//! this module reads the files. It must not depend on why a command needs them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use stockade_model::{RawText, RunRequest};
use stockade_shell::{
    SanitizeSettings, default_toolchain, has_no_submodules, is_plain_configuration, is_quiet_configuration,
    is_quiet_hook, leaves_hooks,
};

/// Longest configuration that is read, in bytes.
const CONFIGURATION_BYTES_MAX: u64 = 1 << 20;
/// Longest index that is read, in bytes.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Returns whether all required conditions are met.
pub fn are_conditions_met(needed: &SanitizeSettings, request: &RunRequest, home: &Path) -> bool {
    !needed.unknown_repository
        && needed.absent.iter().all(|path| is_absent(path.as_path()))
        && needed.plain_repositories.iter().all(|directory| is_plain(directory.as_path()))
        && (needed.quiet_repositories.is_empty() || has_usual_environment(request, home) && has_usual_hooks(home))
        && needed.quiet_repositories.iter().all(|directory| is_quiet(directory.as_path()))
        && (!needed.rustup || find_toolchain(request, home).is_some())
}

/// Returns whether nothing exists at a path. An error other than "not found" counts as false.
fn is_absent(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns the directory above `path` that git takes for a repository.
pub fn repository_around(path: &Path) -> Option<PathBuf> {
    let is_there = |path: &Path| path.symlink_metadata().is_ok();
    let is_one = |directory: &&Path| ["HEAD", "objects", "refs"].iter().all(|mark| is_there(&directory.join(mark)));
    path.ancestors().skip(1).find(is_one).map(Path::to_owned)
}

/// Removes and sets the variables that the run must carry.
pub fn apply_variables(
    needed: &SanitizeSettings,
    request: &RunRequest,
    home: &Path,
    environment: &mut BTreeMap<String, RawText>,
) {
    environment.retain(|name, _| !needed.remove.iter().any(|beginning| name.starts_with(beginning)));
    let set = needed.environment.iter().map(|(name, value)| (name.clone(), RawText::from(value.as_str())));
    environment.extend(set);
    if let Some(Toolchain::Named(name)) = find_toolchain(request, home).filter(|_| needed.rustup) {
        environment.insert("RUSTUP_TOOLCHAIN".to_owned(), RawText::from(name.as_str()));
    }
}

/// Source of the compiler that `cargo` uses.
enum Toolchain {
    /// Rustup is not installed, so that no file of a repository is read.
    Installed,
    Named(String),
}

/// Returns the source of the compiler; `None` if it is unknown.
fn find_toolchain(request: &RunRequest, home: &Path) -> Option<Toolchain> {
    let own = home.join(".rustup");
    let rustup_home = request.environment.get("RUSTUP_HOME").map(RawText::as_path);
    if rustup_home.is_some_and(|rustup_home| rustup_home != own) {
        return None;
    }
    match fs::metadata(own.join("settings.toml")) {
        Err(_) => Some(Toolchain::Installed),
        Ok(_) => {
            let settings = read_regular_file(&own.join("settings.toml"), CONFIGURATION_BYTES_MAX)?;
            default_toolchain(&settings).map(Toolchain::Named)
        }
    }
}

/// Returns whether no repository that git could find from a directory names a driver or contains a
/// submodule. Every repository above counts, because git skips a broken one.
fn is_plain(directory: &Path) -> bool {
    let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    all_around(&directory, is_plain_configuration, &|_| true)
}

/// Returns whether no repository that git could find from a directory configures a program that git
/// starts while it changes the repository. A directory that does not exist may become one.
fn is_quiet(directory: &Path) -> bool {
    let Ok(directory) = fs::canonicalize(directory) else { return false };
    // Also for a repository without a work tree of its own, whose configuration may name one.
    repository_around(&directory.join("within")).is_none()
        && all_around(&directory, is_quiet_configuration, &has_quiet_hooks)
}

/// Returns whether each repository around a directory has a valid configuration, no submodules and
/// valid hooks.
fn all_around(directory: &Path, configuration: fn(&[u8]) -> bool, hooks: &dyn Fn(&Path) -> bool) -> bool {
    let is_fine = |git: &Path| {
        common_of(git)
            .is_some_and(|common| is_plain_repository(git, &common, configuration) && hooks(&common.join("hooks")))
    };
    directory.ancestors().all(|above| match fs::metadata(above.join(".git")) {
        Err(_) => true,
        Ok(found) if found.is_dir() => is_fine(&above.join(".git")),
        Ok(found) if found.is_file() => pointed_to(&above.join(".git"), above).is_some_and(|git| is_fine(&git)),
        Ok(_) => false,
    })
}

fn has_quiet_hooks(hooks: &Path) -> bool {
    match fs::read_dir(hooks) {
        Ok(mut entries) => {
            entries.all(|entry| entry.is_ok_and(|entry| is_quiet_hook(entry.file_name().as_encoded_bytes())))
        }
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Returns whether no variable of the caller directs git to another repository or configuration.
fn has_usual_environment(request: &RunRequest, home: &Path) -> bool {
    // Names of persons, and settings that only an exchange with another host uses.
    const HARMLESS_PREFIXES: &[&str] =
        &["GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_SSL_", "GIT_TERMINAL_PROMPT", "GIT_OPTIONAL_LOCKS"];
    // Only well-known programs can have these values here: see `effective_environment`.
    const EDITOR_VARIABLES: &[&str] = &["GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GIT_PAGER"];
    request.environment.iter().all(|(name, value)| match name.as_str() {
        "HOME" => value.as_path() == home,
        "XDG_CONFIG_HOME" => value.as_path() == home.join(".config"),
        name if name.starts_with("GIT_") => {
            EDITOR_VARIABLES.contains(&name) || HARMLESS_PREFIXES.iter().any(|beginning| name.starts_with(beginning))
        }
        _ => true,
    })
}

/// Returns whether the user's own configuration leaves the hooks in their repositories.
fn has_usual_hooks(home: &Path) -> bool {
    let own = [home.join(".gitconfig"), home.join(".config/git/config"), PathBuf::from("/etc/gitconfig")];
    own.iter().all(|file| match fs::metadata(file) {
        Err(error) => error.kind() == io::ErrorKind::NotFound,
        Ok(_) => read_regular_file(file, CONFIGURATION_BYTES_MAX).is_some_and(|text| leaves_hooks(&text)),
    })
}

/// Returns the target of a `.git` file (worktrees, submodules): gitrepository-layout(5).
fn pointed_to(file: &Path, beside: &Path) -> Option<PathBuf> {
    let text = String::from_utf8(read_regular_file(file, 4096)?).ok()?;
    Some(beside.join(text.strip_prefix("gitdir: ")?.trim_end_matches(['\n', '\r'])))
}

/// Returns the repository whose configuration and hooks apply to this one.
fn common_of(git: &Path) -> Option<PathBuf> {
    match fs::metadata(git.join("commondir")) {
        Err(_) => Some(git.to_owned()),
        Ok(_) => {
            let text = read_regular_file(&git.join("commondir"), 4096).and_then(|text| String::from_utf8(text).ok())?;
            Some(git.join(text.trim_end_matches(['\n', '\r'])))
        }
    }
}

fn is_plain_repository(git: &Path, common: &Path, configuration: fn(&[u8]) -> bool) -> bool {
    is_absent_or(&common.join("config"), CONFIGURATION_BYTES_MAX, configuration)
        && is_absent_or(&git.join("index"), INDEX_BYTES_MAX, has_no_submodules)
        && !has_shared_index(git)
        && !has_shared_index(common)
}

/// Returns whether a file does not exist, or its content passes the check.
fn is_absent_or(file: &Path, bytes_max: u64, check: fn(&[u8]) -> bool) -> bool {
    fs::metadata(file).is_err() || read_regular_file(file, bytes_max).is_some_and(|text| check(&text))
}

/// Returns whether entries of the index are in another file.
fn has_shared_index(git: &Path) -> bool {
    fs::read_dir(git).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.file_name().as_encoded_bytes().starts_with(b"sharedindex."))
    })
}

/// Reads a regular file that is not too long.
fn read_regular_file(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    let found = fs::metadata(path).ok().filter(|found| found.is_file() && found.len() <= bytes_max)?;
    let mut text = Vec::with_capacity(usize::try_from(found.len()).ok()?);
    File::open(path).ok()?.take(bytes_max + 1).read_to_end(&mut text).ok()?;
    (text.len() as u64 <= bytes_max).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap_or(path)).ok();
        assert!(fs::write(path, text).is_ok());
    }

    #[test]
    fn every_repository_that_git_could_find_is_looked_at() {
        let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
        let top = directory.path();
        let inner = top.join("a/b");
        fs::create_dir_all(&inner).ok();
        assert!(is_plain(&inner), "no repository at all");
        assert!(is_plain(&top.join("not-there")));
        write(&top.join(".git/config"), "[core]\n\tbare = false\n");
        assert!(is_plain(&inner));
        write(&top.join("a/.git/config"), "[filter \"x\"]\n\tclean = x\n");
        assert!(!is_plain(&inner));
        assert!(is_plain(top));
        // A work tree: `.git` is a file, and its configuration is in another repository.
        fs::remove_dir_all(top.join("a/.git")).ok();
        write(&top.join("a/.git"), "gitdir: ../.git/worktrees/a\n");
        write(&top.join(".git/worktrees/a/commondir"), "../..\n");
        assert!(is_plain(&inner));
        write(&top.join(".git/config"), "[diff \"x\"]\n\ttextconv = x\n");
        assert!(!is_plain(&inner));
        write(&top.join(".git/config"), "");
        write(&top.join(".git/worktrees/a/index"), "DIRC\0\0\u{0}");
        assert!(is_plain(&inner));
        assert!(fs::write(top.join(".git/worktrees/a/index"), [0, 0, 0xe0, 0]).is_ok());
        assert!(!is_plain(&inner));
        write(&top.join(".git/worktrees/a/index"), "");
        write(&top.join(".git/sharedindex.12"), "");
        assert!(!is_plain(&inner));
    }

    #[test]
    fn a_repository_that_starts_nothing_is_quiet() {
        let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
        let top = directory.path();
        let inner = top.join("a/b");
        fs::create_dir_all(&inner).ok();
        assert!(is_quiet(&inner), "no repository at all");
        assert!(!is_quiet(&top.join("not-there")));
        write(&top.join(".git/config"), "[core]\n\tbare = false\n");
        write(&top.join(".git/hooks/pre-commit.sample"), "");
        assert!(is_quiet(&inner));
        write(&top.join(".git/hooks/pre-commit"), "");
        assert!(!is_quiet(&inner));
        fs::remove_file(top.join(".git/hooks/pre-commit")).ok();
        write(&top.join(".git/config"), "[core]\n\thooksPath = x\n");
        assert!(!is_quiet(&inner) && is_plain(&inner));
        write(&top.join(".git/config"), "");
        // A repository without a work tree of its own.
        for part in ["HEAD", "objects/x", "refs/x"] {
            assert!(is_quiet(&inner), "{part}");
            write(&top.join("a").join(part), "");
        }
        assert!(!is_quiet(&inner) && !is_quiet(&top.join("a")) && is_quiet(top));
    }

    #[test]
    fn a_name_at_which_a_file_is_is_no_branch() {
        let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
        let top = directory.path();
        write(&top.join("file"), "");
        assert!(std::os::unix::fs::symlink("nowhere", top.join("link")).is_ok());
        assert!(is_absent(&top.join("main")) && is_absent(&top.join("feature/x")));
        assert!(!is_absent(&top.join("file")) && !is_absent(&top.join("link")) && !is_absent(&top.join("file/x")));
    }

    #[test]
    fn the_users_settings_of_hooks_are_read() {
        let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
        assert!(has_usual_hooks(directory.path()));
        write(&directory.path().join(".gitconfig"), "[user]\n\tname = x\n");
        assert!(has_usual_hooks(directory.path()));
        write(&directory.path().join(".config/git/config"), "[core]\n\thooksPath = .githooks\n");
        assert!(!has_usual_hooks(directory.path()));
    }
}
