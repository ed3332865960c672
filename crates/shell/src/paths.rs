//! Classifies a path by its text alone: inside or outside the workspace, secret, or with content
//! that runs later. The lists are data. Symbolic links are not visible here, so the result only
//! decides how much to ask.

use crate::CommandContext;
use crate::glob::{glob_matches, name_matches};
use crate::knowledge::lists;

/// Location of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathLocation {
    /// The workspace or a path below it.
    Workspace,
    /// Scratch space such as `/tmp`.
    Temporary,
    /// Below a home directory, outside the workspace.
    Home,
    /// A cache below the home directory.
    Cache,
    /// A directory that contains the workspace, a home directory or everything.
    Ancestor,
    /// Part of the operating system.
    System,
    /// None of these.
    Elsewhere,
}

/// Privacy of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathSensitivity {
    /// Personal configuration: the user decides about reading.
    Private,
    /// Keys, tokens, passwords.
    Secret,
}

/// Effect of writing a path: the code of its denial, and a sentence for a person.
pub(crate) type WriteTarget = (&'static str, &'static str);

pub(crate) const DISK: WriteTarget = ("destroys-disk", "Writes to a disk or to memory directly.");
const KERNEL_SETTING: WriteTarget = ("changes-kernel", "Writes a setting of the kernel.");
pub(crate) const PERSISTENCE: WriteTarget = ("persistence", "Writes a file that runs or configures programs later.");
const LOG: WriteTarget = ("wipes-log", "Overwrites logs or histories.");
const SYSTEM: WriteTarget = ("destroys-system", "Overwrites a part of the system.");

/// Returns whether `path` is the path of `pattern`, or is below it. A wildcard in the path matches
/// every possible expansion.
fn covers_path(pattern: &str, path: &[u8]) -> bool {
    let mut rest = path;
    pattern.as_bytes().split(|b| *b == b'/').filter(|pattern_name| !pattern_name.is_empty()).all(|pattern_name| {
        let start = rest.iter().position(|b| *b != b'/').unwrap_or(rest.len());
        let name = rest[start..].split(|b| *b == b'/').next().unwrap_or_default();
        rest = &rest[start + name.len()..];
        !name.is_empty() && name_covered(pattern_name, name)
    })
}

/// Returns whether a name is, or with wildcards could be, the wanted name. There are many patterns,
/// and most differ in the first letter.
fn name_covered(pattern_name: &[u8], name: &[u8]) -> bool {
    let differ = pattern_name[0] != b'*' && !is_wildcard(name[0]) && !pattern_name[0].eq_ignore_ascii_case(&name[0]);
    !differ && (name_matches(pattern_name, name) || wildcard_could_be(name, pattern_name))
}

fn is_wildcard(byte: u8) -> bool {
    matches!(byte, b'*' | b'?' | b'[')
}

/// Returns whether a name with wildcards, not a bare `*`, could expand to `pattern_name`.
fn wildcard_could_be(name: &[u8], pattern_name: &[u8]) -> bool {
    let glob = name.iter().copied().any(is_wildcard);
    glob && name.iter().any(|b| !matches!(b, b'*' | b'?')) && glob_matches(name, pattern_name, true)
}

fn strip_base<'a>(path: &'a [u8], base: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(base)?;
    if rest.is_empty() || rest.starts_with(b"/") { Some(rest) } else { None }
}

/// Returns whether one of these absolute patterns covers `path`. Workspace and home directory take
/// precedence over their parents: the pattern `/root` covers nothing of a workspace `/root/app`. A
/// pattern for a path within them applies.
fn is_listed(patterns: &[&str], path: &[u8], context: &CommandContext) -> bool {
    let roots = [context.workspace.as_bytes(), context.home.as_bytes()];
    let is_above = |pattern: &str, root: &[u8]| strip_base(path, root).is_some() && covers_path(pattern, root);
    patterns.iter().any(|pattern| covers_path(pattern, path) && !roots.iter().any(|root| is_above(pattern, root)))
}

/// Returns the absolute form of a path, with `.` and `..` removed by text. `None` if it is relative
/// and the directory is unknown.
pub(crate) fn make_absolute(path: &[u8], cwd: Option<&[u8]>) -> Option<Vec<u8>> {
    let mut names: Vec<&[u8]> = Vec::new();
    if !path.starts_with(b"/") {
        names.extend(cwd?.split(|b| *b == b'/').filter(|n| !n.is_empty()));
    }
    for name in path.split(|b| *b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop();
            }
            _ => names.push(name),
        }
    }
    let mut out = Vec::with_capacity(path.len() + 16);
    for name in names {
        out.push(b'/');
        out.extend_from_slice(name);
    }
    if out.is_empty() {
        out.push(b'/');
    }
    Some(out)
}

/// Returns the directory that a trailing `*` expands in; other paths are unchanged.
pub(crate) fn without_trailing_globs(path: &[u8]) -> (&[u8], bool) {
    let mut path = path;
    let mut stripped = false;
    while let Some(slash) = path.iter().rposition(|b| *b == b'/') {
        let name = &path[slash + 1..];
        let globs = !name.is_empty() && name.contains(&b'*') && name.iter().all(|b| b"*?.[]!{},a-zA-Z".contains(b));
        if !globs {
            break;
        }
        stripped = true;
        path = if slash == 0 { b"/" } else { &path[..slash] };
        if path == b"/" {
            break;
        }
    }
    (path, stripped)
}

/// Returns the location of an absolute path.
pub(crate) fn locate_path(path: &[u8], context: &CommandContext) -> PathLocation {
    let (path, _) = without_trailing_globs(path);
    let (workspace, home) = (context.workspace.as_bytes(), context.home.as_bytes());
    if path == b"/" || path == home {
        return PathLocation::Ancestor;
    }
    if workspace != b"/" && strip_base(path, workspace).is_some() {
        return PathLocation::Workspace;
    }
    if strip_base(workspace, path).is_some() || strip_base(home, path).is_some() {
        return PathLocation::Ancestor;
    }
    if let Some(rest) = strip_base(path, home) {
        return if covers_path(".cache", rest) { PathLocation::Cache } else { PathLocation::Home };
    }
    if ["/tmp", "/var/tmp", "/dev/shm"].iter().any(|t| strip_base(path, t.as_bytes()).is_some()) {
        return PathLocation::Temporary;
    }
    if path.starts_with(b"/home/") || path.starts_with(b"/Users/") {
        return PathLocation::Home;
    }
    // The parent directory of the workspace may be the user's too: `/srv/app` and `/srv/lib`.
    let around = workspace.iter().rposition(|b| *b == b'/').filter(|end| *end > 0);
    let is_beside = around.is_some_and(|end| strip_base(path, &workspace[..end]).is_some());
    let top = path.split(|b| *b == b'/').nth(1).unwrap_or_default();
    let is_system = lists::has_word(lists::SYSTEM_DIRECTORIES, top) || top.iter().any(|b| b"*?[".contains(b));
    if is_system && !is_beside { PathLocation::System } else { PathLocation::Elsewhere }
}

/// Returns the privacy of an absolute path's content, if it is private.
pub(crate) fn path_sensitivity(path: &[u8], context: &CommandContext) -> Option<PathSensitivity> {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let home = strip_base(path, context.home.as_bytes());
    if is_listed(lists::SECRET_SYSTEM_PATHS, path, context) {
        return Some(PathSensitivity::Secret);
    }
    if home.is_some_and(|rest| lists::SECRET_HOME_PATHS.iter().any(|p| covers_path(p, rest))) {
        return Some(PathSensitivity::Secret);
    }
    if path
        .split(|b| *b == b'/')
        .any(|n| [&b".ssh"[..], b".gnupg", b".aws", b".kube", b".docker"].iter().any(|s| n.eq_ignore_ascii_case(s)))
    {
        return Some(PathSensitivity::Secret);
    }
    let example = lists::EXAMPLE_NAMES.iter().any(|p| name_matches(p.as_bytes(), name));
    if !example
        && lists::SECRET_NAMES.iter().any(|p| name_matches(p.as_bytes(), name) || wildcard_could_be(name, p.as_bytes()))
    {
        return Some(PathSensitivity::Secret);
    }
    let outside = strip_base(path, context.workspace.as_bytes()).is_none();
    let hidden = |rest: &[u8]| rest.split(|b| *b == b'/').any(|n| n.starts_with(b"."));
    if outside && home.is_some_and(hidden) {
        return Some(PathSensitivity::Private);
    }
    if path.ends_with(b"/.git/config") || is_listed(&["/proc/*/*", "/var/log"], path, context) {
        return Some(PathSensitivity::Private);
    }
    // A wildcard for dotted names would include secrets.
    if name.starts_with(b".") && name.iter().any(|b| matches!(b, b'*' | b'?' | b'[')) {
        return Some(PathSensitivity::Private);
    }
    None
}

/// Returns whether an absolute path's content is secret.
pub(crate) fn is_secret(path: &[u8], context: &CommandContext) -> bool {
    path_sensitivity(path, context) == Some(PathSensitivity::Secret)
}

/// Returns whether an absolute path is in the workspace or in scratch space.
pub(crate) fn is_inside(path: &[u8], context: &CommandContext) -> bool {
    matches!(locate_path(path, context), PathLocation::Workspace | PathLocation::Temporary)
}

/// Returns whether secrets are below this directory, so that a search in it counts as a search for
/// secrets.
pub(crate) fn holds_secrets(path: &[u8], context: &CommandContext) -> bool {
    let (path, _) = without_trailing_globs(path);
    matches!(locate_path(path, context), PathLocation::Ancestor)
        || strip_base(b"/root", path).is_some()
        || [&b"/etc"[..], b"/proc", b"/run", b"/var", b"/home", b"/sys", b"/dev"].contains(&path)
        || (locate_path(path, context) == PathLocation::Home && path_sensitivity(path, context).is_some())
}

/// Returns the effect of writing an absolute path, beyond changing a file. `whole`: the old content
/// is lost.
pub(crate) fn write_target(path: &[u8], whole: bool, context: &CommandContext) -> Option<WriteTarget> {
    if let Some(device) = strip_base(path, b"/dev").and_then(|rest| rest.strip_prefix(b"/")) {
        let name = device.split(|b| *b == b'/').next().unwrap_or_default();
        return lists::DISK_DEVICES.iter().any(|d| name_matches(d.as_bytes(), name)).then_some(DISK);
    }
    if is_listed(lists::KERNEL_PATHS, path, context) || path.ends_with(b"/release_agent") {
        return Some(KERNEL_SETTING);
    }
    let in_repository = |p: &&str| {
        path.windows(p.len() + 1).enumerate().any(|(i, w)| {
            w[0] == b'/'
                && w[1..].eq_ignore_ascii_case(p.as_bytes())
                && path.get(i + w.len()).is_none_or(|b| *b == b'/')
        })
    };
    if lists::PERSISTENT_REPOSITORY_PATHS.iter().any(in_repository)
        || is_listed(lists::PERSISTENT_SYSTEM_PATHS, path, context)
    {
        return Some(PERSISTENCE);
    }
    let inside = strip_base(path, context.workspace.as_bytes()).is_some();
    let any_home = strip_base(path, context.home.as_bytes()).or_else(|| {
        let rest = path.strip_prefix(b"/home/").or_else(|| path.strip_prefix(b"/Users/"))?;
        rest.iter().position(|b| *b == b'/').map(|at| &rest[at..])
    });
    if let Some(rest) = any_home.filter(|_| !inside) {
        let history = name_matches(b"*_history", rest.rsplit(|b| *b == b'/').next().unwrap_or_default());
        if whole && (history || is_log(path)) {
            return Some(LOG);
        }
        if lists::PERSISTENT_HOME_PATHS.iter().any(|p| covers_path(p, rest)) {
            return Some(PERSISTENCE);
        }
    }
    if !inside && whole && is_log(path) {
        return Some(LOG);
    }
    (whole && locate_path(path, context) == PathLocation::System).then_some(SYSTEM)
}

/// Returns whether the path is a system log, a shell history or Stockade's own audit log.
pub(crate) fn is_log(path: &[u8]) -> bool {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    covers_path("/var/log", path)
        || covers_path("/run/log", path)
        || name_matches(b"*_history", name)
        || name_matches(b"audit*.jsonl", name)
        || name_matches(b"audit*.log", name)
        || ["wtmp", "btmp", "utmp", "lastlog"].iter().any(|n| n.as_bytes() == name)
}
