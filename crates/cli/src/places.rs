//! Where things are: the person's home, Stockade's own state, the current
//! directory, the workspace. Looks at the machine; knows nothing of arguments.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use stockade_policy::load::Sources;
use stockade_policy::trust::{PathStep, StepObject, require_trusted_path, trace_path};

use crate::failure::{Failure, quoted};

/// The largest `/etc/passwd` that is read, in bytes.
const PASSWD_LIMIT_BYTES: u64 = 8 << 20;

/// The user who logged in, whatever became of the process since (proc(5)).
const LOGIN_UID_FILE: &str = "/proc/self/loginuid";

/// Name of the store's file of anchors in the state directory.
pub const ANCHORS_FILE: &str = "anchors.db";

/// Reads a variable of the caller's environment.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The person's home: `HOME` where it is an absolute path of a directory,
/// otherwise what `/etc/passwd` says of the user (there is no getpwuid in a
/// static program).
///
/// # Errors
/// When neither gives a directory.
pub fn home(variables: Variables<'_>) -> Result<PathBuf, Failure> {
    let usable = |path: &PathBuf| path.is_absolute() && path.is_dir();
    if let Some(path) = variables("HOME").map(PathBuf::from).filter(usable) {
        return Ok(path);
    }
    let uid = rustix::process::getuid().as_raw();
    let passwd = read_bounded(Path::new("/etc/passwd"), PASSWD_LIMIT_BYTES).unwrap_or_default();
    home_in_passwd(&passwd, uid).filter(usable).ok_or_else(|| {
        Failure::new("your home directory is not known: HOME is no directory and /etc/passwd names none")
            .hint("set HOME to an absolute path that exists")
    })
}

/// The sixth field of the first line whose third is `uid` (passwd(5)).
fn home_in_passwd(passwd: &[u8], uid: u32) -> Option<PathBuf> {
    passwd
        .split(|&b| b == b'\n')
        .map(|line| line.split(|&b| b == b':').collect::<Vec<_>>())
        .find(|fields| fields.len() >= 6 && std::str::from_utf8(fields[2]).is_ok_and(|t| t.parse() == Ok(uid)))
        .map(|fields| PathBuf::from(OsString::from_vec(fields[5].to_vec())))
}

/// The homes of the person besides `HOME`, by the user database: of the user that this
/// process acts for, and of the one that logged in or called `sudo` or `pkexec`. Variables
/// are heard because they can only add: what lies in these homes is hidden from runs.
fn other_homes(variables: Variables<'_>) -> Vec<PathBuf> {
    let number = |name: &str| variables(name)?.to_str()?.parse::<u32>().ok();
    let login = fs::read_to_string(LOGIN_UID_FILE).ok().and_then(|text| text.trim().parse().ok());
    let mut users = vec![rustix::process::geteuid().as_raw(), rustix::process::getuid().as_raw()];
    users.extend(["SUDO_UID", "PKEXEC_UID"].into_iter().filter_map(number).chain(login));
    users.sort_unstable();
    users.dedup();
    let passwd = read_bounded(Path::new("/etc/passwd"), PASSWD_LIMIT_BYTES).unwrap_or_default();
    homes_of(&passwd, &users)
}

/// The homes of these users that exist, without links, each once.
fn homes_of(passwd: &[u8], users: &[u32]) -> Vec<PathBuf> {
    // A process that nobody logged in for has the highest number, which no user has.
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

/// Where configuration and state are: the usual places, which the XDG variables
/// may move.
///
/// # Errors
/// When the home directory is not known.
pub fn sources(workspace: Option<&Path>, variables: Variables<'_>) -> Result<Sources, Failure> {
    let home = home(variables)?;
    // Rules and profiles name objects, not the links that lead to them (L5).
    let home = home.canonicalize().unwrap_or(home);
    let base = |name| variables(name).map(PathBuf::from);
    let (config, state) = (base("XDG_CONFIG_HOME"), base("XDG_STATE_HOME"));
    let other_homes = other_homes(variables);
    Ok(Sources { other_homes, ..Sources::standard(&home, config.as_deref(), state.as_deref(), workspace) })
}

/// Stockade's own directory for what it remembers and records. The path only;
/// see [`State::open`].
///
/// # Errors
/// When the home directory is not known.
pub fn state_path(variables: Variables<'_>) -> Result<PathBuf, Failure> {
    Ok(sources(None, variables)?.state_directory)
}

/// The directories of Stockade's own files: configuration of each layer, and the state. Those
/// that a link leads to are there by both names. Empty where the home directory is not known.
pub fn own_directories(variables: Variables<'_>) -> Vec<PathBuf> {
    let Ok(sources) = sources(None, variables) else { return Vec::new() };
    let files = [&sources.managed_file, &sources.system_file, &sources.user_file];
    let mut own: Vec<PathBuf> = files.into_iter().filter_map(|file| file.parent()).map(Path::to_owned).collect();
    own.push(sources.state_directory);
    own.extend(own.clone().iter().filter_map(|directory| directory.canonicalize().ok()));
    own.sort();
    own.dedup();
    own
}

/// Makes the person's directory for configuration of programs (0700) where the home has none:
/// a run cannot make it, because Stockade's own would lie in it.
pub fn make_configuration_directory(sources: &Sources) {
    let own = rustix::process::geteuid().as_raw();
    let is_own_home = fs::metadata(&sources.home).is_ok_and(|home| home.uid() == own);
    let above = sources.user_file.parent().and_then(Path::parent);
    if let Some(directory) = above.filter(|directory| is_own_home && directory.parent() == Some(&sources.home)) {
        // Where it is there, or cannot be made, everything goes on as before.
        let _ = fs::DirBuilder::new().mode(0o700).create(directory);
    }
}

/// The state directory, made and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    root: PathBuf,
}

impl State {
    /// Makes the directory where it is missing (0700) and resolves it.
    ///
    /// # Errors
    /// When it cannot be made, belongs to somebody else or is open to others.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let cannot = |e: std::io::Error| {
            Failure::new(format!("cannot use the state directory {}: {e}", quoted(path)))
                .hint("set XDG_STATE_HOME to a directory of yours")
        };
        refuse_dangling_link(path)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(cannot)?;
        let user = rustix::process::geteuid().as_raw();
        require_trusted_path(path, user).map_err(|error| {
            let failure = Failure::from(error);
            let why = format!("the state directory {} is not used, because {failure}", quoted(path));
            Failure::new(why).or_hint(failure.hint)
        })?;
        let root = path.canonicalize().map_err(cannot)?;
        let meta = fs::symlink_metadata(&root).map_err(cannot)?;
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(Failure::new(format!("the state directory {} belongs to another user", quoted(&root)))
                .hint("set XDG_STATE_HOME to a directory of yours"));
        }
        if meta.permissions().mode() & 0o077 != 0 {
            return Err(Failure::new(format!("the state directory {} is open to other users", quoted(&root)))
                .hint(format!("chmod 700 {}", stockade_model::RawText::from(root.as_path()).escaped())));
        }
        Ok(Self { root })
    }

    /// Where the record is kept.
    pub fn audit(&self) -> PathBuf {
        self.root.join("audit")
    }

    /// Where it is noted how far the audit log reached.
    pub fn anchors(&self) -> PathBuf {
        self.root.join(ANCHORS_FILE)
    }

    /// Where staged writes wait.
    pub fn stages(&self) -> PathBuf {
        self.root.join("stages")
    }

    /// Where the caches of tools are, as runs of each workspace have them.
    pub fn caches(&self) -> PathBuf {
        self.root.join("caches")
    }

    /// Where it is kept what runs changed.
    pub fn undo(&self) -> PathBuf {
        self.root.join("undo")
    }

    /// Where detached runs are.
    pub fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// Where warm sessions are.
    pub fn sessions(&self) -> PathBuf {
        self.root.join("sessions")
    }

    /// Where sandboxes that last are.
    pub fn sandboxes(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    /// True the first time this is asked, for this user: what is worth saying
    /// once was not said before. Where that cannot be noted it counts as said.
    pub fn is_first_time(&self, what: &str) -> bool {
        fs::File::create_new(self.root.join(format!("said-{what}"))).is_ok()
    }

    /// What sessions have spent on opinions.
    pub fn reviews(&self) -> PathBuf {
        self.root.join("reviews")
    }

    /// Where answers are remembered.
    pub fn approvals(&self) -> PathBuf {
        self.root.join("approvals.db")
    }
}

/// Refuses a directory of Stockade's on whose way a link leads to something that does not
/// exist: another program could choose later what that will be.
fn refuse_dangling_link(path: &Path) -> Result<(), Failure> {
    let steps = trace_path(path).steps;
    let dangling = steps.iter().find(|step| step.object == StepObject::Missing && step.link.is_some());
    let Some(PathStep { place, link: Some(link), .. }) = dangling else { return Ok(()) };
    let why = format!("leads through the link {} to {}, which does not exist", quoted(link), quoted(place));
    Err(Failure::new(format!("the directory {} {why}", quoted(path)))
        .hint("remove the link, or make its target yourself"))
}

/// A path that may not exist yet, as canonical as it can be: its longest
/// existing part is resolved, the rest is appended.
pub fn canonical_prefix(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            // Joining nothing would add a slash.
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_path_buf()
}

/// The current directory, as the kernel names it (getcwd(2)), never as `PWD`
/// claims.
///
/// # Errors
/// When it was removed, lies outside the root, or is procfs.
pub fn current_directory() -> Result<PathBuf, Failure> {
    let cwd = std::env::current_dir().map_err(|e| {
        Failure::new(format!("the current directory cannot be named: {e}")).hint("cd to a directory that exists")
    })?;
    real_directory(&cwd, "the current directory")
}

/// `path` resolved, where it is a directory that a name leads to for everybody:
/// `/proc/self/fd/3` is another directory for each process that reads it.
///
/// # Errors
/// When it is not such a directory. `what` names it in the message.
pub fn real_directory(path: &Path, what: &str) -> Result<PathBuf, Failure> {
    let refuse = |why: &str| {
        Failure::new(format!("{what} {} {why}", quoted(path))).hint("name a directory by its ordinary path")
    };
    if is_process_local(path) {
        return Err(refuse("means something else to each process"));
    }
    let real = path.canonicalize().map_err(|e| refuse(&format!("cannot be used: {e}")))?;
    if is_process_local(&real) {
        return Err(refuse("means something else to each process"));
    }
    if !real.is_dir() {
        return Err(refuse("is no directory"));
    }
    Ok(real)
}

/// What holds the system: not to be written in by a run, whoever its user is. Neither is
/// what is around it.
const SYSTEM: [&str; 18] = [
    "/etc",
    "/boot",
    "/efi",
    "/dev",
    "/sys",
    "/bin",
    "/sbin",
    "/lib",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/libexec",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/lib",
    "/var/lib/dpkg",
    "/var/spool/cron",
    "/run/systemd",
];

/// Refuses a directory that holds the system, or lies in it, as one that commands may
/// write in.
///
/// # Errors
/// Where it is one; `what` names it in the message.
pub fn refuse_system(directory: &Path, what: &str) -> Result<(), Failure> {
    let real = |path: &str| Path::new(path).canonicalize().unwrap_or_else(|_| path.into());
    match SYSTEM.iter().map(|path| real(path)).find(|own| own.starts_with(directory) || directory.starts_with(own)) {
        Some(own) => {
            let how = if directory.starts_with(&own) { "lies in" } else { "holds" };
            let why = format!("{what} {} {how} {}, where the system is", quoted(directory), quoted(&own));
            Err(Failure::new(why).hint("name the directory of a project"))
        }
        None => Ok(()),
    }
}

/// Refuses a directory that is another user's: what works in it for the caller may have
/// more rights there than the caller.
///
/// # Errors
/// Where it is, or cannot be looked at; `what` names it in the message.
pub fn demand_own(directory: &Path, what: &str) -> Result<(), Failure> {
    let user = rustix::process::geteuid().as_raw();
    let owner = directory.metadata()?.uid();
    if user == 0 || owner == user {
        return Ok(());
    }
    Err(Failure::new(format!("{what} {} is not yours, but that of uid {owner}", quoted(directory)))
        .hint("name a directory of your own, or copy it"))
}

/// True beneath `/proc` and for the links to it in `/dev`.
fn is_process_local(path: &Path) -> bool {
    ["/proc", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"].iter().any(|p| path.starts_with(p))
}

/// `~`, `~/x`, relative and absolute paths, as a person types them, to an
/// absolute one without `.` and `..`. `..` is resolved by the name alone, as
/// shells do for `cd`.
///
/// # Errors
/// For `~other`, which would need the user database.
pub fn expand(typed: &Path, home: &dyn Fn() -> Result<PathBuf, Failure>, cwd: &Path) -> Result<PathBuf, Failure> {
    let mut components = typed.components();
    let start = match components.next() {
        Some(Component::Normal(first)) if first == "~" => home()?.join(components.as_path()),
        Some(Component::Normal(first)) if first.as_encoded_bytes().starts_with(b"~") => {
            return Err(Failure::new(format!("{} names another user's home", quoted(typed)))
                .hint("write the path in full, or ./~name for a file of that name"));
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
        assert_ne!(home(&relative).ok(), Some("not/absolute".into()));
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
        assert!(sources(None, &elsewhere).unwrap().other_homes.contains(&own));
    }

    #[test]
    fn a_state_directory_behind_a_dangling_link_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("ws/new", real.join("state")).unwrap();
        let failure = State::open(&real.join("state/stockade")).unwrap_err();
        assert!(failure.what.contains("the link ") && failure.hint.is_some(), "{failure}");
        assert!(!real.join("ws").exists());
    }

    #[test]
    fn a_state_directory_in_what_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let around = dir.path().join("shared");
        fs::create_dir(&around).unwrap();
        State::open(&around.join("stockade")).unwrap();
        fs::set_permissions(&around, fs::Permissions::from_mode(0o777)).unwrap();
        let failure = State::open(&around.join("stockade")).unwrap_err();
        assert!(failure.what.contains("by its group and by everybody"), "{failure}");
    }

    #[test]
    fn state_is_made_private_and_must_stay_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/stockade");
        let state = State::open(&path).unwrap();
        assert_eq!(fs::metadata(&state.root).unwrap().permissions().mode() & 0o777, 0o700);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let failure = State::open(&path).unwrap_err();
        assert!(failure.what.contains("open to other users"), "{failure}");
    }

    #[test]
    fn state_lies_where_the_variables_say() {
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
        // The link's target is resolved here and now, to what it meant to us.
        assert_eq!(real_directory(&link, "it").ok(), std::env::current_dir().unwrap().canonicalize().ok());
        assert!(real_directory(dir.path(), "it").is_ok());
    }

    #[test]
    fn what_holds_the_system_is_no_workspace() {
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
        let shown = |typed: &str| expand(Path::new(typed), &home, Path::new("/w/p")).map(|p| p.display().to_string());
        for (typed, wanted) in [
            ("~", "/home/u"),
            ("~/x/../y", "/home/u/y"),
            ("a/./b", "/w/p/a/b"),
            ("../z", "/w/z"),
            ("/../etc", "/etc"),
            ("./~x", "/w/p/~x"),
        ] {
            assert_eq!(shown(typed).unwrap(), wanted, "{typed}");
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
