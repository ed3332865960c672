//! Locations: the user's home, Stockade's own state, the current directory, the workspace. Reads
//! the machine; knows nothing of arguments.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use stockade_model::{NameList, RawText, shell_quoted};

use stockade_policy::load::ConfigSources;
use stockade_policy::trust::{PathStep, StepObject, require_trusted_path, trace_path};

use crate::failure::{CliError, quote_path};

/// Largest part of `/etc/passwd` that is read, in bytes.
const MAX_PASSWD_BYTES: u64 = 8 << 20;

/// The user id of the login, which later changes of the process's ids do not affect (proc(5)).
const LOGIN_UID_FILE: &str = "/proc/self/loginuid";

/// Name of the store's file of anchors in the state directory.
pub const ANCHORS_FILE: &str = "anchors.db";

/// Function that reads a variable of the caller's environment.
pub type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Returns the user's home: `HOME` if it is the absolute path of a directory, otherwise the entry
/// of the user in `/etc/passwd` (a static program has no getpwuid).
///
/// # Errors
/// [`CliError`] if neither is a directory.
pub fn find_home_directory(variables: VariableLookup<'_>) -> Result<PathBuf, CliError> {
    let usable = |path: &PathBuf| path.is_absolute() && path.is_dir();
    if let Some(path) = variables("HOME").map(PathBuf::from).filter(usable) {
        return Ok(path);
    }
    let uid = rustix::process::getuid().as_raw();
    let passwd = read_bounded(Path::new("/etc/passwd"), MAX_PASSWD_BYTES).unwrap_or_default();
    home_in_passwd(&passwd, uid).filter(usable).ok_or_else(|| {
        CliError::new(
            "your home directory is not known: HOME is not a directory and /etc/passwd has no entry for this user",
        )
        .with_hint("set HOME to an absolute path that exists")
    })
}

/// Returns the sixth field of the first line whose third is `uid` (passwd(5)).
fn home_in_passwd(passwd: &[u8], uid: u32) -> Option<PathBuf> {
    passwd
        .split(|&b| b == b'\n')
        .map(|line| line.split(|&b| b == b':').collect::<Vec<_>>())
        .find(|fields| fields.len() >= 6 && std::str::from_utf8(fields[2]).is_ok_and(|t| t.parse() == Ok(uid)))
        .map(|fields| PathBuf::from(OsString::from_vec(fields[5].to_vec())))
}

/// Returns the homes of the user besides `HOME`, from the user database. They are the homes of this
/// process's user, of the login user, and of the caller of `sudo` or `pkexec`. Variables are
/// trusted here because they can only add homes: their protected files are hidden from runs.
fn other_homes(variables: VariableLookup<'_>) -> Vec<PathBuf> {
    let number = |name: &str| variables(name)?.to_str()?.parse::<u32>().ok();
    let login = fs::read_to_string(LOGIN_UID_FILE).ok().and_then(|text| text.trim().parse().ok());
    let mut users = vec![rustix::process::geteuid().as_raw(), rustix::process::getuid().as_raw()];
    users.extend(["SUDO_UID", "PKEXEC_UID"].into_iter().filter_map(number).chain(login));
    users.sort_unstable();
    users.dedup();
    let passwd = read_bounded(Path::new("/etc/passwd"), MAX_PASSWD_BYTES).unwrap_or_default();
    homes_of(&passwd, &users)
}

/// Returns the homes of these users that exist, without links, each once.
fn homes_of(passwd: &[u8], users: &[u32]) -> Vec<PathBuf> {
    // A process without a login has the highest number, which no user has.
    let homes = users.iter().filter(|&&user| user != u32::MAX).filter_map(|&user| home_in_passwd(passwd, user));
    let mut homes: Vec<PathBuf> =
        homes.filter(|home| home.is_absolute()).filter_map(|home| home.canonicalize().ok()).collect();
    homes.sort();
    homes.dedup();
    homes
}

fn read_bounded(path: &Path, limit_bytes: u64) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(limit_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the locations of configuration and state: the standard ones, which the XDG variables may
/// change.
///
/// # Errors
/// [`CliError`] if the home directory is not known.
pub fn locate_sources(workspace: Option<&Path>, variables: VariableLookup<'_>) -> Result<ConfigSources, CliError> {
    let home = find_home_directory(variables)?;
    // Rules and profiles name objects, not the links that lead to them (L5).
    let home = home.canonicalize().unwrap_or(home);
    let base = |name| variables(name).map(PathBuf::from);
    let (config, state) = (base("XDG_CONFIG_HOME"), base("XDG_STATE_HOME"));
    let other_homes = other_homes(variables);
    Ok(ConfigSources {
        other_homes,
        ..ConfigSources::at_standard_paths(&home, config.as_deref(), state.as_deref(), workspace)
    })
}

/// Returns the path of Stockade's state directory. [`StateDirectory::open`] creates and checks it.
///
/// # Errors
/// [`CliError`] if the home directory is not known.
pub fn state_path(variables: VariableLookup<'_>) -> Result<PathBuf, CliError> {
    Ok(locate_sources(None, variables)?.state_directory)
}

/// Returns the directories of Stockade's own files: the configuration of each layer, and the state.
/// Includes the canonical path of each that is reached through a link. Empty if the home directory
/// is not known.
pub fn own_directories(variables: VariableLookup<'_>) -> Vec<PathBuf> {
    let Ok(sources) = locate_sources(None, variables) else { return Vec::new() };
    let files = [&sources.managed_file, &sources.system_file, &sources.user_file];
    let mut own: Vec<PathBuf> = files.into_iter().filter_map(|file| file.parent()).map(Path::to_owned).collect();
    own.push(sources.state_directory);
    own.extend(own.clone().iter().filter_map(|directory| directory.canonicalize().ok()));
    own.sort();
    own.dedup();
    own
}

/// Creates the user's directory for the configuration of programs (0700) if the home has none. A
/// run cannot create it, because Stockade's own directory would be in it.
pub fn make_configuration_directory(sources: &ConfigSources) {
    let own = rustix::process::geteuid().as_raw();
    let is_own_home = fs::metadata(&sources.home).is_ok_and(|home| home.uid() == own);
    let above = sources.user_file.parent().and_then(Path::parent);
    if let Some(directory) = above.filter(|directory| is_own_home && directory.parent() == Some(&sources.home)) {
        // If it exists or cannot be created, nothing changes.
        let _ = fs::DirBuilder::new().mode(0o700).create(directory);
    }
}

/// The state directory, created and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDirectory {
    root: PathBuf,
}

impl StateDirectory {
    /// Creates the directory if it is missing (0700), and resolves it.
    ///
    /// # Errors
    /// [`CliError`] if it cannot be created, belongs to another user or is open to others.
    pub fn open(path: &Path) -> Result<Self, CliError> {
        let cannot = |e: std::io::Error| {
            CliError::new(format!("cannot use the state directory {}: {e}", quote_path(path)))
                .with_hint("set XDG_STATE_HOME to a directory of yours")
        };
        refuse_dangling_link(path)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(cannot)?;
        let user = rustix::process::geteuid().as_raw();
        require_trusted_path(path, user).map_err(|error| {
            let failure = CliError::from(error);
            let why = format!("the state directory {} is not used, because {failure}", quote_path(path));
            CliError::new(why).or_hint(failure.hint)
        })?;
        let root = path.canonicalize().map_err(cannot)?;
        let meta = fs::symlink_metadata(&root).map_err(cannot)?;
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(CliError::new(format!("the state directory {} belongs to another user", quote_path(&root)))
                .with_hint("set XDG_STATE_HOME to a directory of yours"));
        }
        if meta.permissions().mode() & 0o077 != 0 {
            return Err(CliError::new(format!("the state directory {} is open to other users", quote_path(&root)))
                .with_hint(format!("chmod 700 {}", shell_quoted(&RawText::from(root.as_path()).to_escaped()))));
        }
        Ok(Self { root })
    }

    /// Directory of the audit log.
    pub fn audit_directory(&self) -> PathBuf {
        self.root.join("audit")
    }

    /// File of the anchors of the audit log.
    pub fn anchors_file(&self) -> PathBuf {
        self.root.join(ANCHORS_FILE)
    }

    /// Directory of staged writes.
    pub fn stages_directory(&self) -> PathBuf {
        self.root.join("stages")
    }

    /// Directory of the tools' caches, as the runs of each workspace see them.
    pub fn caches_directory(&self) -> PathBuf {
        self.root.join("caches")
    }

    /// Directory of the backups for undo.
    pub fn undo_directory(&self) -> PathBuf {
        self.root.join("undo")
    }

    /// Directory of detached runs.
    pub fn runs_directory(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// Directory of warm sessions.
    pub fn sessions_directory(&self) -> PathBuf {
        self.root.join("sessions")
    }

    /// Directory of persistent sandboxes.
    pub fn sandboxes_directory(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    /// Returns true at the first call for this user and this message, so that a message is shown
    /// only once. Returns false if that cannot be recorded.
    pub fn is_first_time(&self, what: &str) -> bool {
        fs::File::create_new(self.root.join(format!("announced-{what}"))).is_ok()
    }

    /// Directory of the reviewer budgets that sessions have spent.
    pub fn reviews_directory(&self) -> PathBuf {
        self.root.join("reviews")
    }

    /// File of remembered answers.
    pub fn approvals_file(&self) -> PathBuf {
        self.root.join("approvals.db")
    }
}

/// Refuses a directory of Stockade if a dangling link is on its path: another program could choose
/// the target later.
fn refuse_dangling_link(path: &Path) -> Result<(), CliError> {
    let steps = trace_path(path).steps;
    let dangling = steps.iter().find(|step| step.object == StepObject::Missing && step.link.is_some());
    let Some(PathStep { location, link: Some(link), .. }) = dangling else { return Ok(()) };
    let why = format!("leads through the link {} to {}, which does not exist", quote_path(link), quote_path(location));
    Err(CliError::new(format!("the directory {} {why}", quote_path(path)))
        .with_hint("remove the link, or make its target yourself"))
}

/// Resolves the longest existing part of a path and appends the rest, so a path need not exist.
pub fn canonical_prefix(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            // Joining an empty path would add a slash.
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_path_buf()
}

/// Returns the current directory as the kernel names it (getcwd(2)), never as `PWD` claims.
///
/// # Errors
/// [`CliError`] if it was removed, is outside the root, or is procfs.
pub fn current_directory() -> Result<PathBuf, CliError> {
    let cwd = std::env::current_dir().map_err(|e| {
        CliError::new(format!("the current directory cannot be named: {e}")).with_hint("cd to a directory that exists")
    })?;
    real_directory(&cwd, "the current directory")
}

/// Resolves `path` if it is a directory with the same meaning for every process. `/proc/self/fd/3`
/// is another directory for each process that reads it.
///
/// # Errors
/// [`CliError`] if it is not such a directory. `what` names it in the message.
pub fn real_directory(path: &Path, what: &str) -> Result<PathBuf, CliError> {
    let refuse = |why: &str| {
        CliError::new(format!("{what} {} {why}", quote_path(path))).with_hint("name a directory by its ordinary path")
    };
    if is_process_local(path) {
        return Err(refuse("is a different directory in each process"));
    }
    let real = path.canonicalize().map_err(|e| refuse(&format!("cannot be used: {e}")))?;
    if is_process_local(&real) {
        return Err(refuse("is a different directory in each process"));
    }
    if !real.is_dir() {
        return Err(refuse("is no directory"));
    }
    Ok(real)
}

/// Directories of the system: no run may write in them, whichever user runs it, nor in directories
/// around them.
const SYSTEM_DIRECTORIES: NameList = NameList::new(include_str!("../data/system_directories.txt"));

/// Refuses a writable directory that contains a system directory or is inside one.
///
/// # Errors
/// [`CliError`] in that case; `what` names the directory in the message.
pub fn refuse_system(directory: &Path, what: &str) -> Result<(), CliError> {
    let real = |path: &str| Path::new(path).canonicalize().unwrap_or_else(|_| path.into());
    let meets = |own: &PathBuf| own.starts_with(directory) || directory.starts_with(own);
    let Some(own) = SYSTEM_DIRECTORIES.names().map(real).find(meets) else { return Ok(()) };
    let how = if directory.starts_with(&own) { "lies in" } else { "holds" };
    let why = format!("{what} {} {how} {}, where the system is", quote_path(directory), quote_path(&own));
    Err(CliError::new(why).with_hint("name the directory of a project"))
}

/// Refuses a directory of another user: a program that works in it for the caller may have more
/// rights there than the caller.
///
/// # Errors
/// [`CliError`] if the owner is another user or cannot be read; `what` names the directory in the
/// message.
pub fn require_own(directory: &Path, what: &str) -> Result<(), CliError> {
    let user = rustix::process::geteuid().as_raw();
    let owner = directory.metadata()?.uid();
    if user == 0 || owner == user {
        return Ok(());
    }
    Err(CliError::new(format!("{what} {} is not yours, but that of uid {owner}", quote_path(directory)))
        .with_hint("name a directory of your own, or copy it"))
}

/// Returns true for paths beneath `/proc` and for the links to it in `/dev`.
fn is_process_local(path: &Path) -> bool {
    ["/proc", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"].iter().any(|p| path.starts_with(p))
}

/// Expands `~`, `~/x`, relative and absolute paths, as a user types them, to an absolute path
/// without `.` and `..`. `..` is resolved by the name alone, as shells do for `cd`.
///
/// # Errors
/// [`CliError`] for `~other`, which would need the user database.
pub fn expand_path(
    typed: &Path,
    home: &dyn Fn() -> Result<PathBuf, CliError>,
    cwd: &Path,
) -> Result<PathBuf, CliError> {
    let mut components = typed.components();
    let start = match components.next() {
        Some(Component::Normal(first)) if first == "~" => home()?.join(components.as_path()),
        Some(Component::Normal(first)) if first.as_encoded_bytes().starts_with(b"~") => {
            return Err(CliError::new(format!("{} names another user's home", quote_path(typed)))
                .with_hint("write the path in full, or ./~name for a file of that name"));
        }
        _ => cwd.join(typed),
    };
    let mut out = PathBuf::new();
    for component in start.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_falls_back_to_the_user_database() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\nshort:x:7\ndev:x:1000:1000::/home/dev:/bin/bash\n";
        assert_eq!(home_in_passwd(passwd, 1000), Some("/home/dev".into()));
        assert_eq!(home_in_passwd(passwd, 7), None);
        assert_eq!(home_in_passwd(b"", 0), None);
        let relative = |name: &str| (name == "HOME").then(|| "not/absolute".into());
        assert_ne!(find_home_directory(&relative).ok(), Some("not/absolute".into()));
    }

    #[test]
    fn every_home_of_the_person_counts() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        fs::create_dir(real.join("one")).unwrap();
        std::os::unix::fs::symlink("one", real.join("two")).unwrap();
        let entry = |user: u32, home: &str| format!("u{user}:x:{user}:1::{}:/bin/sh\n", real.join(home).display());
        let passwd = entry(7, "one") + &entry(8, "two") + &entry(9, "none") + "n:x:10:1::relative:/bin/sh\n";
        assert_eq!(homes_of(passwd.as_bytes(), &[7, 8, 9, 10, 11, u32::MAX]), [real.join("one")]);
        let user = rustix::process::geteuid().as_raw();
        let passwd = fs::read("/etc/passwd").unwrap();
        let Some(own) = home_in_passwd(&passwd, user).and_then(|home| home.canonicalize().ok()) else { return };
        let elsewhere = |name: &str| (name == "HOME").then(|| real.clone().into_os_string());
        assert!(locate_sources(None, &elsewhere).unwrap().other_homes.contains(&own));
    }

    #[test]
    fn a_state_directory_behind_a_dangling_link_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("ws/new", real.join("state")).unwrap();
        let failure = StateDirectory::open(&real.join("state/stockade")).unwrap_err();
        assert!(failure.what.contains("the link ") && failure.hint.is_some(), "{failure}");
        assert!(!real.join("ws").exists());
    }

    #[test]
    fn a_state_directory_below_a_shared_writable_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let around = dir.path().join("shared");
        fs::create_dir(&around).unwrap();
        StateDirectory::open(&around.join("stockade")).unwrap();
        fs::set_permissions(&around, fs::Permissions::from_mode(0o777)).unwrap();
        let failure = StateDirectory::open(&around.join("stockade")).unwrap_err();
        assert!(failure.what.contains("by its group and by everybody"), "{failure}");
    }

    #[test]
    fn state_is_made_private_and_must_stay_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/it's/stockade");
        let state = StateDirectory::open(&path).unwrap();
        assert_eq!(fs::metadata(&state.root).unwrap().permissions().mode() & 0o777, 0o700);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let failure = StateDirectory::open(&path).unwrap_err();
        assert!(failure.what.contains("open to other users"), "{failure}");
        assert!(failure.hint.is_some_and(|hint| hint.ends_with(r"/a/it'\''s/stockade'")));
    }

    #[test]
    fn the_variables_name_the_state_directory() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let with = |state: &str| {
            let state = OsString::from(state);
            let variables = |name: &str| match name {
                "HOME" => Some(home.clone().into_os_string()),
                "XDG_STATE_HOME" => Some(state.clone()),
                _ => None,
            };
            state_path(&variables).unwrap()
        };
        assert_eq!(with("relative"), home.join(".local/state/stockade"));
        assert_eq!(with("/srv/state"), Path::new("/srv/state/stockade"));
    }

    #[test]
    fn directories_that_mean_something_else_to_each_process_are_refused() {
        for bad in ["/proc/self/fd/0", "/proc/self/cwd", "/dev/fd/3", "/proc", "/etc/passwd", "/nonexistent"] {
            assert!(real_directory(Path::new(bad), "it").is_err(), "{bad}");
        }
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/proc/self/cwd", &link).unwrap();
        // The target is resolved in this process, so the result is its own directory.
        assert_eq!(real_directory(&link, "it").ok(), std::env::current_dir().unwrap().canonicalize().ok());
        assert!(real_directory(dir.path(), "it").is_ok());
    }

    #[test]
    fn a_system_directory_is_no_workspace() {
        for system in ["/", "/usr", "/usr/local", "/usr/local/bin", "/etc/cron.d", "/var", "/var/lib", "/boot"] {
            assert!(refuse_system(Path::new(system), "it").is_err(), "{system}");
        }
        for other in ["/var/www/site", "/usr/local/src/x", "/var/lib/jenkins/w", "/home/u", "/opt/x", "/tmp"] {
            assert!(refuse_system(Path::new(other), "it").is_ok(), "{other}");
        }
    }

    #[test]
    fn paths_as_people_type_them() {
        let home = || Ok(PathBuf::from("/home/u"));
        let shown =
            |typed: &str| expand_path(Path::new(typed), &home, Path::new("/w/p")).map(|p| p.display().to_string());
        for (typed, expected) in [
            ("~", "/home/u"),
            ("~/x/../y", "/home/u/y"),
            ("a/./b", "/w/p/a/b"),
            ("../z", "/w/z"),
            ("/../etc", "/etc"),
            ("./~x", "/w/p/~x"),
        ] {
            assert_eq!(shown(typed).unwrap(), expected, "{typed}");
        }
        assert!(shown("~root/x").is_err());
    }

    #[test]
    fn a_path_that_does_not_exist_is_resolved_as_far_as_it_does() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        assert_eq!(canonical_prefix(&real.join("link/new/file")), real.join("new/file"));
        assert_eq!(canonical_prefix(&real.join("link")), real);
    }
}
