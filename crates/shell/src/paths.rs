//! Classifies a path by its text alone: inside or outside the workspace, secret, or with content
//! that runs later. The lists are data. Symbolic links are not visible here, so the result only
//! decides how much to ask.

use crate::CommandContext;
use crate::glob::{glob_matches, name_matches};

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

/// Effect of writing a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteTarget {
    Disk,
    KernelSetting,
    Persistence,
    Log,
    System,
}

const SYSTEM_DIRECTORIES: &[&str] = &[
    "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "root", "run", "sbin", "srv", "sys",
    "usr", "var",
];

/// File names that contain secrets in every directory. `*` matches within a name.
const SECRET_NAMES: &[&str] = &[
    ".env",
    ".env.*",
    "*.env",
    ".envrc",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    ".netrc",
    "_netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".git-credentials",
    ".htpasswd",
    ".dockercfg",
    ".dockerconfigjson",
    ".vault-token",
    ".yarnrc.yml",
    ".s3cfg",
    ".boto",
    "credentials",
    "credentials.*",
    "shadow",
    "shadow-",
    "gshadow",
    "gshadow-",
    "kubeconfig",
    "*.kubeconfig",
    "secrets.*",
    "secret.*",
    "secrets",
    "service-account*.json",
    "wallet.dat",
    "cookies.sqlite",
    "logins.json",
    "key4.db",
    "login data",
    "master.key",
    "terraform.tfstate*",
    "*.tfvars",
    ".terraformrc",
    "token",
    "*_token",
    "*.token",
    "authinfo*",
    ".authinfo*",
    "*.ppk",
    "*.asc",
    "auth.json",
];

/// Names that look like secrets but are examples.
const EXAMPLE_NAMES: &[&str] = &[".env.example", ".env.sample", ".env.template", ".env.dist", "*.pub"];

/// Directories below a home directory whose content is secret.
const SECRET_HOME_PATHS: &[&str] = &[
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".config/op",
    ".config/doctl",
    ".config/rclone",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/sops",
    ".cargo/credentials*",
    ".password-store",
    ".local/share/keyrings",
    ".mozilla",
    ".gem/credentials",
    ".m2/settings.xml",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".psql_history",
    ".mysql_history",
    ".node_repl_history",
    ".terraform.d",
    ".oci",
    ".minikube",
    ".thunderbird",
    ".pki",
    ".electrum",
    ".bitcoin",
    ".ethereum",
    "Library/Keychains",
    ".config/helm",
    ".config/pypoetry",
    ".databrickscfg",
    ".snowsql",
    ".fly",
    ".config/fly",
    ".local/share/fish/fish_history",
];

/// Absolute paths whose content is secret.
const SECRET_SYSTEM_PATHS: &[&str] = &[
    "/etc/shadow*",
    "/etc/gshadow*",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/ssh/ssh_host_*",
    "/root",
    "/run/secrets",
    "/var/run/secrets",
    "/proc/*/environ",
    "/proc/*/mem",
    "/proc/kcore",
    "/dev/mem",
    "/dev/kmem",
    "/etc/krb5.keytab",
    "/etc/kubernetes",
    "/var/lib/kubelet",
    "/etc/wireguard",
    "/etc/NetworkManager/system-connections",
    "/etc/security/opasswd",
    "/var/lib/docker",
    "/var/spool/cron",
    "/etc/openvpn",
    "/proc/*/task/*/environ",
];

/// Files below a home directory that run or configure programs later.
const PERSISTENT_HOME_PATHS: &[&str] = &[
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".kshrc",
    ".cshrc",
    ".tcshrc",
    ".login",
    ".logout",
    ".config/fish",
    ".ssh",
    ".config/autostart",
    ".config/systemd",
    ".local/share/systemd",
    ".gitconfig",
    ".config/git",
    ".local/lib/python*",
    ".xinitrc",
    ".xprofile",
    ".xsession",
    ".xsessionrc",
    ".pam_environment",
    ".vimrc",
    ".vim",
    ".config/nvim",
    ".emacs",
    ".emacs.d",
    ".npmrc",
    ".config/pip",
    ".pip",
    ".cargo/config*",
    ".cargo/env",
    ".inputrc",
    ".tmux.conf",
    ".screenrc",
    ".gdbinit",
    ".pythonrc*",
    ".claude",
    ".claude.json",
    ".codex",
    ".cursor",
    ".gemini",
    ".config/Code",
    ".config/stockade",
    ".local/state/stockade",
    ".vscode",
    "Library/LaunchAgents",
    ".forward",
    ".procmailrc",
    ".rhosts",
    ".Xresources",
    ".config/environment.d",
    ".lesskey",
    ".lessfilter",
    ".irbrc",
    ".perldb",
    ".Rprofile",
    ".wgetrc",
    ".curlrc",
    ".netrc",
    ".docker/config.json",
    ".kube/config",
    ".local/bin",
    "bin",
    ".config/plasma-workspace",
    ".config/openbox/autostart",
    ".config/i3",
    ".config/hypr",
    ".gnupg/gpg-agent.conf",
    ".aws/config",
    ".mavenrc",
    ".gradle/init.gradle",
    ".gradle/init.d",
    ".m2/settings.xml",
    ".bundle/config",
    ".gemrc",
    ".yarnrc*",
    ".config/yarn",
    ".pypirc",
    ".ipython",
    ".jupyter",
    ".config/matplotlib",
    ".local/share/applications",
];

/// Absolute paths that run or configure programs later.
const PERSISTENT_SYSTEM_PATHS: &[&str] = &[
    "/etc/profile",
    "/etc/profile.d",
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "/etc/zsh",
    "/etc/zshrc",
    "/etc/zshenv",
    "/etc/environment",
    "/etc/environment.d",
    "/etc/cron*",
    "/etc/anacrontab",
    "/etc/at.allow",
    "/var/spool/cron",
    "/etc/systemd",
    "/lib/systemd",
    "/usr/lib/systemd",
    "/run/systemd",
    "/usr/local/lib/systemd",
    "/etc/init.d",
    "/etc/rc*",
    "/etc/init",
    "/etc/inittab",
    "/etc/ld.so.preload",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/doas.conf",
    "/etc/pam.d",
    "/etc/pam.conf",
    "/etc/security",
    "/etc/ssh",
    "/etc/udev",
    "/lib/udev",
    "/usr/lib/udev",
    "/etc/modprobe.d",
    "/etc/modules",
    "/etc/modules-load.d",
    "/etc/sysctl.conf",
    "/etc/sysctl.d",
    "/etc/xdg/autostart",
    "/etc/X11",
    "/etc/update-motd.d",
    "/etc/apt/apt.conf.d",
    "/etc/apt/sources.list*",
    "/etc/apt/trusted.gpg*",
    "/etc/polkit-1",
    "/usr/share/polkit-1",
    "/etc/dbus-1",
    "/etc/nsswitch.conf",
    "/etc/binfmt.d",
    "/etc/logrotate.d",
    "/etc/NetworkManager/dispatcher.d",
    "/etc/network/if-*",
    "/etc/gitconfig",
    "/etc/hosts.allow",
    "/etc/pip.conf",
    "/etc/npmrc",
    "/etc/docker",
    "/etc/stockade",
    "/etc/kernel",
    "/etc/initramfs-tools",
    "/etc/grub.d",
    "/etc/default",
    "/usr/lib/python*",
    "/usr/local/lib/python*",
    "/etc/subuid",
    "/etc/subgid",
    "/etc/ca-certificates*",
    "/usr/local/share/ca-certificates",
    "/root",
];

/// Files below any repository that run programs later on the host.
const PERSISTENT_REPOSITORY_PATHS: &[&str] =
    &[".git/hooks", ".git/config", ".git/config.worktree", ".git/info/attributes", ".git/modules"];

const DISK_DEVICES: &[&str] = &[
    "sd*", "hd*", "vd*", "xvd*", "nvme*", "mmcblk*", "md*", "dm-*", "mapper", "disk", "loop*", "nbd*", "zd*", "mtd*",
    "mem", "kmem", "port", "rdisk*", "disk*", "sr*", "drbd*", "bcache*", "rbd*", "dasd*", "pmem*", "block",
];

/// Returns whether `path` is the path of `pattern`, or is below it. A wildcard in the path matches
/// every possible expansion.
fn covers_path(pattern: &str, path: &[u8]) -> bool {
    let mut rest = path;
    pattern.as_bytes().split(|b| *b == b'/').filter(|wanted| !wanted.is_empty()).all(|wanted| {
        let start = rest.iter().position(|b| *b != b'/').unwrap_or(rest.len());
        let name = rest[start..].split(|b| *b == b'/').next().unwrap_or_default();
        rest = &rest[start + name.len()..];
        !name.is_empty() && name_covered(wanted, name)
    })
}

/// Returns whether a name is, or with wildcards could be, the wanted name. There are many patterns,
/// and most differ in the first letter.
fn name_covered(wanted: &[u8], name: &[u8]) -> bool {
    let differ = wanted[0] != b'*' && !is_wildcard(name[0]) && !wanted[0].eq_ignore_ascii_case(&name[0]);
    !differ && (name_matches(wanted, name) || wildcard_could_be(name, wanted))
}

fn is_wildcard(byte: u8) -> bool {
    matches!(byte, b'*' | b'?' | b'[')
}

/// Returns whether a name with wildcards, not a bare `*`, could expand to `wanted`.
fn wildcard_could_be(name: &[u8], wanted: &[u8]) -> bool {
    let glob = name.iter().copied().any(is_wildcard);
    glob && name.iter().any(|b| !matches!(b, b'*' | b'?')) && glob_matches(name, wanted, true)
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
    let is_system = SYSTEM_DIRECTORIES.iter().any(|t| t.as_bytes() == top) || top.iter().any(|b| b"*?[".contains(b));
    if is_system && !is_beside { PathLocation::System } else { PathLocation::Elsewhere }
}

/// Returns the privacy of an absolute path's content, if it is private.
pub(crate) fn path_sensitivity(path: &[u8], context: &CommandContext) -> Option<PathSensitivity> {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let home = strip_base(path, context.home.as_bytes());
    if is_listed(SECRET_SYSTEM_PATHS, path, context) {
        return Some(PathSensitivity::Secret);
    }
    if home.is_some_and(|rest| SECRET_HOME_PATHS.iter().any(|p| covers_path(p, rest))) {
        return Some(PathSensitivity::Secret);
    }
    if path
        .split(|b| *b == b'/')
        .any(|n| [&b".ssh"[..], b".gnupg", b".aws", b".kube", b".docker"].iter().any(|s| n.eq_ignore_ascii_case(s)))
    {
        return Some(PathSensitivity::Secret);
    }
    let example = EXAMPLE_NAMES.iter().any(|p| name_matches(p.as_bytes(), name));
    if !example
        && SECRET_NAMES.iter().any(|p| name_matches(p.as_bytes(), name) || wildcard_could_be(name, p.as_bytes()))
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
        return DISK_DEVICES.iter().any(|d| name_matches(d.as_bytes(), name)).then_some(WriteTarget::Disk);
    }
    let kernel = [
        "/proc/sys",
        "/proc/sysrq-trigger",
        "/sys",
        "/proc/*/mem",
        "/proc/kcore",
        "/boot",
        "/proc/*/oom_adj",
        "/proc/irq",
        "/selinux",
    ];
    if is_listed(&kernel, path, context) || path.ends_with(b"/release_agent") {
        return Some(WriteTarget::KernelSetting);
    }
    let in_repository = |p: &&str| {
        path.windows(p.len() + 1).enumerate().any(|(i, w)| {
            w[0] == b'/'
                && w[1..].eq_ignore_ascii_case(p.as_bytes())
                && path.get(i + w.len()).is_none_or(|b| *b == b'/')
        })
    };
    if PERSISTENT_REPOSITORY_PATHS.iter().any(in_repository) || is_listed(PERSISTENT_SYSTEM_PATHS, path, context) {
        return Some(WriteTarget::Persistence);
    }
    let inside = strip_base(path, context.workspace.as_bytes()).is_some();
    let any_home = strip_base(path, context.home.as_bytes()).or_else(|| {
        let rest = path.strip_prefix(b"/home/").or_else(|| path.strip_prefix(b"/Users/"))?;
        rest.iter().position(|b| *b == b'/').map(|at| &rest[at..])
    });
    if let Some(rest) = any_home.filter(|_| !inside) {
        let history = name_matches(b"*_history", rest.rsplit(|b| *b == b'/').next().unwrap_or_default());
        if whole && (history || is_log(path)) {
            return Some(WriteTarget::Log);
        }
        if PERSISTENT_HOME_PATHS.iter().any(|p| covers_path(p, rest)) {
            return Some(WriteTarget::Persistence);
        }
    }
    if !inside && whole && is_log(path) {
        return Some(WriteTarget::Log);
    }
    (whole && locate_path(path, context) == PathLocation::System).then_some(WriteTarget::System)
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
