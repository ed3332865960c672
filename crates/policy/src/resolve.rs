//! Resolves the settings, a profile's name and grants to the powers of one run. Adds exactly the granted
//! powers (L3), and never powers over files that govern the run (L7).
//!
//! Must not know modes or consent: the approvers of the grants do not matter here.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use stockade_model::{
    EgressRules, EgressSecret, EnvironmentRules, ExecRules, FilesystemAccess, Grant, Limits, PRIVATE_TREES, Profile,
    RawText, SecretUse, TargetPattern, shell_quoted,
};

use crate::guarded::find_guarded_name;
use crate::hosts::check_breadth;
use crate::link_targets::LinkTargets;
use crate::mounts::MountsError;
use crate::settings::{OwnDirectories, OwnPathStep, PolicySettings};
use crate::spec::{ProfileSpec, SourcedValue, values_of};
use crate::text::ConfigPath;

/// Reason why a profile cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// There is no profile of this name.
    #[error("there is no profile `{name}`\nhint: {hint}")]
    UnknownProfile {
        /// The requested name, escaped.
        name: String,
        /// Advice.
        hint: String,
    },
    /// The workspace is not absolute and normal.
    #[error("the workspace `{path}` is not an absolute path without `..`\nhint: give an absolute path")]
    MalformedWorkspace {
        /// The path, escaped.
        path: String,
    },
    /// The workspace is in a hidden directory.
    #[error("the workspace `{path}` lies in `{hidden}`, which is hidden from runs\nhint: {hint}")]
    HiddenWorkspace {
        /// The path, escaped.
        path: String,
        /// The hidden directory, escaped.
        hidden: String,
        /// Advice.
        hint: String,
    },
    /// A power would reach files that govern the run (L7).
    #[error(
        "`{power} {path}` would reach Stockade's own files in `{own}`\nhint: choose a directory that neither contains them nor is inside them"
    )]
    OwnFiles {
        /// `write`, `read`, `socket` ...
        power: &'static str,
        /// The path, escaped.
        path: String,
        /// Stockade's own directory, escaped.
        own: String,
    },
    /// A second mount shows Stockade's own files within reach of a power (L7).
    #[error(
        "`{power} {path}` would reach Stockade's own files: `{location}` is `{own}` by another mount\nhint: choose a directory that neither contains them nor is inside them, or unmount it: findmnt --target {}",
        shell_quoted(location)
    )]
    OwnByMount {
        /// `write`, `read`, `socket` ...
        power: &'static str,
        /// The path, escaped.
        path: String,
        /// The path that the mount gives, escaped.
        location: String,
        /// Stockade's own directory at that path, escaped.
        own: String,
    },
    /// The other paths of hidden files cannot be found.
    #[error(transparent)]
    Mounts(#[from] MountsError),
    /// A power could change the way to Stockade's own files (L7).
    #[error(
        "`{power} {path}` would reach Stockade's own files: the link `{link}` on the way to `{target}` leads through `{location}`\nhint: remove the link, or point it to a directory that no run may write"
    )]
    OwnLink {
        /// `write`.
        power: &'static str,
        /// The path, escaped.
        path: String,
        /// The link, escaped.
        link: String,
        /// The name that the link leads through, escaped.
        location: String,
        /// The file that is found through the link, escaped.
        target: String,
    },
    /// A grant names hosts without a common owner.
    #[error("`connect {targets}`: {why}\nhint: name the hosts, or the domain that owns them")]
    TooWide {
        /// The hosts.
        targets: String,
        /// The reason.
        why: String,
    },
    /// A grant is for a secret that the profile does not have.
    #[error("`{grant}`: the profile `{profile}` has no such secret\nhint: {hint}")]
    UnknownSecret {
        /// The grant.
        grant: String,
        /// The profile's name.
        profile: String,
        /// The existing secrets, as advice.
        hint: String,
    },
    /// A secret would be sent to a denied host.
    #[error("`{grant}`: the profile denies `{entry}`\nhint: only the owner of the `deny` can remove it")]
    DeniedSecret {
        /// The grant.
        grant: String,
        /// The entry of `egress.deny`.
        entry: String,
    },
    /// A grant to write is for a hidden path.
    #[error("`{path}` is hidden, so it cannot be written\nhint: {hint}")]
    HiddenWrite {
        /// The path, escaped.
        path: String,
        /// Advice.
        hint: String,
    },
}

/// Returns the powers of a run: the profile with workspace and home substituted and the grants merged.
/// `workspace` is absolute and canonical.
///
/// `connect`, `sign`, `listen`, `exec` and `effect` are not merged into the profile: they stay in the
/// plan's list of grants, from which the backend reads them. A grant that gives nothing new changes nothing.
///
/// # Errors
/// See [`ResolveError`]; no command may run then.
pub fn resolve_profile(
    settings: &PolicySettings,
    name: &str,
    workspace: &Path,
    grants: &[Grant],
) -> Result<Profile, ResolveError> {
    let Some(spec) = settings.profiles.get(name) else { return Err(unknown_profile(settings, name)) };
    let is_normal = |c: Component<'_>| matches!(c, Component::RootDir | Component::Normal(_));
    if !workspace.is_absolute() || !workspace.components().all(is_normal) {
        return Err(ResolveError::MalformedWorkspace { path: escape_path(workspace) });
    }
    let mut profile = instantiate_profile(spec, name, &settings.home, workspace);
    if !spec.sandboxed {
        return Ok(profile);
    }
    hide_in_other_homes(settings, &mut profile.filesystem);
    for path in &settings.own.state {
        profile.filesystem.hide.push(path.as_path().into());
    }
    hide_link_targets(&mut profile.filesystem);
    hide_other_paths(settings, &mut profile.filesystem)?;
    if let Some(hidden) = hidden_by(&profile.filesystem, workspace) {
        let is_guarded = settings.find_guarded_name(&Grant::Read(hidden.clone())).is_some();
        let hint = if is_guarded {
            "choose another `--workspace`"
        } else {
            "choose another `--workspace`, or `reveal` it in your configuration"
        };
        let (path, hidden, hint) = (escape_path(workspace), escape_path(&hidden), hint.to_owned());
        return Err(ResolveError::HiddenWorkspace { path, hidden, hint });
    }
    // Grants to read come first, because `write` may depend on paths that `read` reveals.
    let (reads, others): (Vec<&Grant>, Vec<&Grant>) = grants.iter().partition(|g| matches!(g, Grant::Read(_)));
    for grant in reads.into_iter().chain(others) {
        add_grant(&mut profile, grant, &settings.home)?;
    }
    check_own(settings, workspace, &profile.filesystem)?;
    normalise_lists(&mut profile.filesystem);
    Ok(profile)
}

/// Checks that a profile of this name exists.
///
/// # Errors
/// [`ResolveError::UnknownProfile`], with the existing names.
pub fn require_profile(settings: &PolicySettings, name: &str) -> Result<(), ResolveError> {
    settings.profiles.get(name).map(drop).ok_or_else(|| unknown_profile(settings, name))
}

/// Returns the grants that must be approved together, so that a question shows everything that a yes gives:
/// a hidden path can be written only if it can be read.
pub fn complete_grants(profile: &Profile, grants: &[Grant]) -> Vec<Grant> {
    let mut all = Vec::with_capacity(grants.len());
    for grant in grants {
        if let Grant::Write(path) = grant
            && hidden_by(&profile.filesystem, path).is_some()
        {
            all.push(Grant::Read(path.clone()));
        }
        all.push(grant.clone());
    }
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|grant| seen.insert(grant.clone()));
    all
}

impl PolicySettings {
    /// Returns the directory of a file that may be granted instead of the file, once many of its files are
    /// requested. Write access to the directory must include the file itself. The directory must not
    /// contain protected or hidden paths, Stockade's own files, the home directory or the workspace.
    pub fn grantable_directory(&self, workspace: &Path, profile: &Profile, file: &Path) -> Option<PathBuf> {
        let directory = file.parent()?;
        let filesystem = &profile.filesystem;
        let is_around = |path: &Path| path.starts_with(directory);
        let is_grantable = directory.parent().is_some()
            && !is_around(workspace)
            && !is_around(&self.home)
            && !self.other_homes.iter().any(|home| is_around(home))
            && !filesystem.hide.iter().any(|hidden| is_around(hidden.as_path()))
            && hidden_by(filesystem, directory).is_none()
            && !filesystem.protect.iter().any(|name| holds_name(file, name))
            && !is_writable(filesystem, directory)
            && self.find_guarded_name(&Grant::Write(directory.to_owned())).is_none();
        let mut wider = filesystem.clone();
        push(&mut wider.write, directory);
        (is_grantable && check_own(self, workspace, &wider).is_ok()).then(|| directory.to_owned())
    }
}

/// Returns whether the profile already has the power, as far as the profile shows this.
pub(crate) fn has_power(profile: &Profile, grant: &Grant) -> bool {
    if !profile.sandboxed {
        return true;
    }
    let filesystem = &profile.filesystem;
    match grant {
        Grant::Listen(_) | Grant::Exec(_) | Grant::Sign(_) | Grant::Effect(_) => false,
        Grant::Limit(limit, amount) => profile.limits.get(*limit).is_none_or(|own| own >= *amount),
        Grant::Connect(targets) => {
            let egress = &profile.egress;
            let is_restricted = egress.deny.iter().chain(&egress.ask).any(|entry| entry.overlaps(targets));
            !is_restricted && egress.allow.iter().any(|entry| entry.admits_all(targets))
        }
        Grant::Secret(secret_use) => {
            let is_it = |secret: &&EgressSecret| secret.name == secret_use.name();
            let covers = |entry: &TargetPattern| entry.covers(secret_use.targets());
            profile.egress.secrets.iter().find(is_it).is_some_and(|secret| secret.hosts.iter().any(covers))
        }
        Grant::Write(path) => hidden_by(filesystem, path).is_none() && is_writable(filesystem, path),
        Grant::Read(path) => hidden_by(filesystem, path).is_none() && is_seen(filesystem, path),
        Grant::Socket(path) => filesystem.sockets.iter().any(|entry| entry.as_path() == path),
        Grant::Env(name) => crate::environment::allows_variable(&profile.environment, name),
    }
}

/// Hides the paths hidden in the home directory of `HOME` in the user's other homes too. Paths revealed
/// there are not revealed in the others.
fn hide_in_other_homes(settings: &PolicySettings, filesystem: &mut FilesystemAccess) {
    let own: Vec<PathBuf> = filesystem
        .hide
        .iter()
        .filter_map(|hidden| hidden.as_path().strip_prefix(&settings.home).ok().map(Path::to_owned))
        .collect();
    for home in &settings.other_homes {
        filesystem.hide.extend(own.iter().map(|name| RawText::from(home.join(name).as_path())));
    }
}

/// Hides the targets of hidden symbolic links too. Paths revealed there are not revealed under the name of
/// the link.
fn hide_link_targets(filesystem: &mut FilesystemAccess) {
    let mut targets = LinkTargets::default();
    let target_paths: Vec<PathBuf> =
        filesystem.hide.iter().filter_map(|hidden| targets.find_target(hidden.as_path())).collect();
    filesystem.hide.extend(target_paths.into_iter().map(RawText::from));
}

/// Hides the other paths that second mounts give to hidden paths. Paths revealed under one path are not
/// revealed under the others.
fn hide_other_paths(settings: &PolicySettings, filesystem: &mut FilesystemAccess) -> Result<(), MountsError> {
    let mounts = settings.mounts.as_ref().map_err(MountsError::clone)?;
    let others = mounts.other_paths(filesystem.hide.iter().map(RawText::as_path))?;
    filesystem.hide.extend(others.iter().map(|other| RawText::from(other.path.as_path())));
    Ok(())
}

fn unknown_profile(settings: &PolicySettings, name: &str) -> ResolveError {
    ResolveError::UnknownProfile { name: RawText::from(name).to_escaped(), hint: settings.advise_profile(name) }
}

fn instantiate_profile(spec: &ProfileSpec, name: &str, home: &Path, workspace: &Path) -> Profile {
    let paths = |list: &[SourcedValue<ConfigPath>]| -> Vec<RawText> {
        list.iter().map(|entry| entry.value.resolve_path(home, workspace).into()).collect()
    };
    let mut limits = Limits::default();
    spec.limits.iter().for_each(|(limit, entry)| limits.set_limit(*limit, entry.value));
    Profile {
        name: name.to_owned(),
        sandboxed: spec.sandboxed,
        filesystem: FilesystemAccess {
            write: paths(&spec.write),
            hide: paths(&spec.hide),
            reveal: paths(&spec.reveal),
            protect: spec.protect.iter().map(|entry| entry.value.0.clone()).collect(),
            sockets: paths(&spec.sockets),
            stage: spec.has_staged_writes(),
            undo_bytes: spec.has_undo().then(|| spec.undo_bytes()),
            trace: false,
            caches: if spec.has_caches() { crate::shipped::load_shipped_caches(home) } else { Vec::new() },
        },
        exec: ExecRules { ask: values_of(&spec.exec_ask), deny: values_of(&spec.exec_deny) },
        network: spec.network,
        egress: spec.egress.of_run(home, workspace),
        environment: EnvironmentRules {
            pass: spec.pass.iter().map(|entry| entry.value.as_str().to_owned()).collect(),
            drop: spec.dropped_variables(),
            set: spec.set.iter().map(|(name, entry)| (name.clone(), entry.value.as_str().into())).collect(),
        },
        limits,
    }
}

fn add_grant(profile: &mut Profile, grant: &Grant, home: &Path) -> Result<(), ResolveError> {
    let filesystem = &mut profile.filesystem;
    match grant {
        Grant::Write(path) => {
            if hidden_by(filesystem, path).is_some() {
                let hint = find_guarded_name(grant, home).map_or_else(
                    || format!("grant `read {}` as well", escape_path(path)),
                    |location| location.to_string(),
                );
                return Err(ResolveError::HiddenWrite { path: escape_path(path), hint });
            }
            if !is_writable(filesystem, path) {
                push(&mut filesystem.write, path);
            }
        }
        Grant::Read(path) => {
            if hidden_by(filesystem, path).is_some() {
                // A grant under one name of a path applies to all of its names.
                let mut targets = LinkTargets::default();
                let mut location = |path: &Path| targets.find_target(path).unwrap_or_else(|| path.to_owned());
                let granted = location(path);
                filesystem.hide.retain(|hidden| hidden.as_path() != path && location(hidden.as_path()) != granted);
                if hidden_by(filesystem, path).is_some() {
                    push(&mut filesystem.reveal, path);
                }
            } else if !is_seen(filesystem, path) {
                push(&mut filesystem.reveal, path);
            }
        }
        Grant::Socket(path) => push(&mut filesystem.sockets, path),
        Grant::Env(name) => {
            let environment = &mut profile.environment;
            if !crate::environment::allows_variable(environment, name) {
                environment.drop.retain(|dropped| dropped.pattern != *name);
                environment.pass.push(name.clone());
            }
        }
        Grant::Connect(targets) => check_breadth(targets)
            .map_err(|why| ResolveError::TooWide { targets: targets.to_string(), why: why.to_string() })?,
        Grant::Secret(secret_use) => add_secret_use(profile, secret_use)?,
        Grant::Limit(limit, amount) => profile.limits.raise_limit(*limit, *amount),
        Grant::Listen(_) | Grant::Exec(_) | Grant::Sign(_) | Grant::Effect(_) => {}
    }
    Ok(())
}

/// Adds a host to those of a secret, as the user's configuration would.
fn add_secret_use(profile: &mut Profile, secret_use: &SecretUse) -> Result<(), ResolveError> {
    let grant = || secret_use.clone().into_grant().to_string();
    let EgressRules { deny, secrets, .. } = &mut profile.egress;
    if let Some(entry) = deny.iter().find(|entry| entry.overlaps(secret_use.targets())) {
        return Err(ResolveError::DeniedSecret { grant: grant(), entry: entry.to_string() });
    }
    let Some(secret) = secrets.iter_mut().find(|secret| secret.name == secret_use.name()) else {
        let known: Vec<&str> = secrets.iter().map(|secret| secret.name.as_str()).collect();
        let hint = match known.as_slice() {
            [] => "name it in `egress.secrets` of your own configuration".to_owned(),
            known => format!("its secrets are `{}`", known.join("`, `")),
        };
        return Err(ResolveError::UnknownSecret { grant: grant(), profile: profile.name.clone(), hint });
    };
    if !secret.hosts.iter().any(|entry| entry.covers(secret_use.targets())) {
        secret.hosts.push(secret_use.targets().clone());
    }
    Ok(())
}

fn push(list: &mut Vec<RawText>, path: &Path) {
    if !list.iter().any(|entry| entry.as_path() == path) {
        list.push(path.into());
    }
}

/// Returns the entry that hides `path`: the nearest entry above it decides, and if both lists name the same
/// path it is hidden.
pub(crate) fn hidden_by(filesystem: &FilesystemAccess, path: &Path) -> Option<PathBuf> {
    let path = path.as_os_str().as_bytes();
    // Of two directories that contain a path, the longer one is nearer.
    let nearest = |list: &[RawText]| {
        let holds = |entry: &&RawText| is_beneath(path, entry.as_bytes());
        list.iter().filter(holds).map(|entry| entry.as_bytes().len()).max()
    };
    let hidden = nearest(&filesystem.hide)?;
    let is_hidden = nearest(&filesystem.reveal).is_none_or(|revealed| hidden >= revealed);
    is_hidden.then(|| Path::new(OsStr::from_bytes(&path[..hidden])).to_owned())
}

/// Returns whether `path` is `directory` or is beneath it; both are absolute and normal.
fn is_beneath(path: &[u8], directory: &[u8]) -> bool {
    match path.strip_prefix(directory) {
        Some(rest) => rest.is_empty() || rest[0] == b'/' || directory == b"/",
        None => false,
    }
}

/// Returns whether a run sees the host's content at `path`. In a tree that the run has privately, a path is
/// visible only if an entry names it.
fn is_seen(filesystem: &FilesystemAccess, path: &Path) -> bool {
    let mut named = filesystem.reveal.iter().chain(&filesystem.write);
    !PRIVATE_TREES.iter().any(|tree| path.starts_with(tree)) || named.any(|entry| path.starts_with(entry.as_path()))
}

/// Returns whether `path` is in a writable root with no protected name in between.
fn is_writable(filesystem: &FilesystemAccess, path: &Path) -> bool {
    let reaches = |root: &RawText| path.starts_with(root.as_path()) && !names_between(filesystem, root.as_path(), path);
    filesystem.write.iter().any(reaches)
}

/// Returns whether a name beneath `root` on the way to `path`, or `path` itself, is protected. A protected
/// name may begin in the root: `.git/hooks` within `/work/.git`.
fn names_between(filesystem: &FilesystemAccess, root: &Path, path: &Path) -> bool {
    let within = path.ancestors().take_while(|at| *at != root);
    within.into_iter().any(|at| filesystem.protect.iter().any(|name| ends_with_name(at, name)))
}

/// Returns whether the last parts of `path` equal `name`, in any letter case.
fn ends_with_name(path: &Path, name: &str) -> bool {
    let mut components = path.components().rev().map(Component::as_os_str);
    name.rsplit('/').all(|part| components.next().is_some_and(|component| component.eq_ignore_ascii_case(part)))
}

/// Returns whether the parts of `name` occur in sequence in `path`. Letter case is ignored, so that in
/// doubt a path is protected.
pub(crate) fn holds_name(path: &Path, name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    let components: Vec<_> = path.components().map(Component::as_os_str).collect();
    components.windows(parts.len()).any(|w| w.iter().zip(&parts).all(|(a, b)| a.eq_ignore_ascii_case(b)))
}

/// Returns whether a protected name is part of the path within a writable root.
pub(crate) fn is_protected(filesystem: &FilesystemAccess, path: &Path) -> bool {
    let is_between =
        |root: &RawText| path.starts_with(root.as_path()) && names_between(filesystem, root.as_path(), path);
    filesystem.write.iter().any(is_between)
}

/// Returns the file of Stockade, or of the workspace's own configuration, that a power would reach. No
/// approver can give such a power (L7).
pub(crate) fn own_reached(settings: &PolicySettings, workspace: &Path, power: &Grant) -> Option<PathBuf> {
    let OwnDirectories { configuration, state, passed, .. } = &settings.own;
    match power {
        Grant::Write(path) => {
            let reached = |own: &&PathBuf| path.starts_with(own) || own.starts_with(path);
            let named = [".stockade", ".stockade.toml"].into_iter().find(|name| holds_name(path, name));
            // The last of them is the nearest to the target of the link.
            let nearest_link =
                || passed.iter().map(|passed| &passed.location).rfind(|location| location.starts_with(path));
            let own = configuration.iter().chain(state).find(reached).or_else(nearest_link).cloned();
            own.or_else(|| named.map(|name| workspace.join(name)))
        }
        Grant::Read(path) | Grant::Socket(path) => state.iter().find(|own| path.starts_with(own)).cloned(),
        _ => None,
    }
}

impl PolicySettings {
    /// Returns the file or directory of Stockade at or above `path`. Also returns one that would be found
    /// elsewhere if an object were created at `path`, or a link were put there.
    pub fn own_reached(&self, path: &Path, is_link: bool) -> Option<&Path> {
        let OwnDirectories { configuration, state, passed, .. } = &self.own;
        let leads = |location: &Path| path == location || is_link && location.starts_with(path);
        let own = configuration.iter().chain(state).find(|own| path.starts_with(own) || leads(own));
        own.or_else(|| passed.iter().map(|passed| &passed.location).find(|location| leads(location)))
            .map(PathBuf::as_path)
    }
}

/// Refuses powers over Stockade's own files, and over the workspace's own configuration.
fn check_own(settings: &PolicySettings, workspace: &Path, filesystem: &FilesystemAccess) -> Result<(), ResolveError> {
    let refuse = |power, path: &RawText, own: &Path| {
        let path = path.to_escaped();
        Err(match settings.own.find_original_path(own) {
            Some(original) => {
                ResolveError::OwnByMount { power, path, location: escape_path(own), own: escape_path(original) }
            }
            None => ResolveError::OwnFiles { power, path, own: escape_path(own) },
        })
    };
    let owned = |entry: &RawText| entry.as_path().to_owned();
    let writes = filesystem.write.iter().map(|entry| ("write", entry, Grant::Write(owned(entry))));
    let reads = filesystem.reveal.iter().map(|entry| ("read", entry, Grant::Read(owned(entry))));
    let sockets = filesystem.sockets.iter().map(|entry| ("socket", entry, Grant::Socket(owned(entry))));
    for (power, entry, grant) in writes.chain(reads).chain(sockets) {
        let Some(own) = own_reached(settings, workspace, &grant) else { continue };
        return match settings.own.passed.iter().find(|passed| passed.location == own) {
            Some(OwnPathStep { location, link, target }) => Err(ResolveError::OwnLink {
                power,
                path: entry.to_escaped(),
                link: escape_path(link),
                location: escape_path(location),
                target: escape_path(target),
            }),
            None => refuse(power, entry, &own),
        };
    }
    // A `read` grant of exactly this directory removed it from the list.
    match settings.own.state.iter().find(|own| hidden_by(filesystem, own).is_none()) {
        Some(own) => refuse("read", &own.as_path().into(), own),
        None => Ok(()),
    }
}

/// Sorts the lists and removes duplicates, so that equal filesystems have equal digests.
fn normalise_lists(filesystem: &mut FilesystemAccess) {
    let FilesystemAccess { write, hide, reveal, protect, sockets, stage: _, undo_bytes: _, trace: _, caches: _ } =
        filesystem;
    for list in [write, hide, reveal, sockets] {
        list.sort();
        list.dedup();
    }
    protect.sort();
    protect.dedup();
}

fn escape_path(path: &Path) -> String {
    RawText::from(path).to_escaped()
}
