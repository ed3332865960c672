//! The powers of a run: the decision on every trapped system call, pure.
//!
//! Decisions apply to objects, never to names in a program's spelling: the caller has resolved
//! every link and `..` before. The module does no I/O. A probe supplies the few facts that only the
//! filesystem contains.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use stockade_model::{AttemptPlan, DeniedOperation, Grant, IsolationLevel, RawText};

use crate::agents::AgentSockets;
use crate::guards::repository::{self, KnownNameCheck, TrustedParts};
use crate::guards::{GuardedNames, fold_name};
use crate::programs::ProgramRules;
use crate::reachable_targets::EgressReach;

mod late;
mod names;
mod path_set;

pub use path_set::PathSet;

/// The powers of one attempt.
#[derive(Clone, Debug, Default)]
pub struct AttemptPermissions {
    workspace: Vec<u8>,
    /// Writable roots.
    pub writable: PathSet,
    private: PathSet,
    /// Hidden paths.
    pub hidden: PathSet,
    revealed: PathSet,
    sockets: PathSet,
    names: GuardedNames,
    parts: TrustedParts,
    /// Writable roots that did not exist when the sandbox's root was built. Its mounts are
    /// read-only there, so allowed operations must run in the supervisor's mount namespace.
    pub unattached: PathSet,
    /// Private trees in which Landlock lets the command make any object, see `PrivateTree` of the
    /// native backend.
    pub kernel_allowed: PathSet,
    /// Writable roots that were added while the attempt ran.
    pub added: PathSet,
    /// True if the workspace is an overlay. Operations in it must not run in the supervisor's mount
    /// namespace, because that would change the workspace itself.
    pub staged: bool,
    /// True if git's writes are checked by their content. Only a broker can do that.
    checks_content: bool,
    /// Files that a tool does not need. They cannot be written, and the approver is not asked.
    pub read_only: PathSet,
    /// Directories under a layer, of which only a part may be written. The rest is the host's, with
    /// other inode numbers.
    pub merged: PathSet,
    /// Trees in which earlier runs wrote. A path in such a tree may name another program than on
    /// the host.
    pub layers: PathSet,
    /// True if operations must not run in the supervisor's mount namespace, because paths of the
    /// sandbox name other objects there.
    pub inside: bool,
    /// The directory of the host that is the sandbox's workspace, if its path is another one. The
    /// user's links and settings contain that path.
    pub host_workspace: Option<Vec<u8>>,
    /// Ports of the host on which servers listen, if the surrounding network is the sandbox's own
    /// although its level has none. Servers in it are not restricted.
    pub own_network: Option<BTreeSet<u16>>,
    /// Writable roots that the kernel does not let the run read.
    pub late: PathSet,
    /// True if reads are recorded. This decides nothing.
    pub traced: bool,
    /// Sockets of ssh agents.
    pub agents: AgentSockets,
    /// Rules about programs.
    pub programs: ProgramRules,
    /// Targets that it may reach.
    pub reach: EgressReach,
}

/// The answer for one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermissionVerdict {
    /// A writable root covers the object.
    Allow,
    /// The object is in a tree that only this run sees.
    Private,
    /// The powers do not cover the object.
    Refuse(PermissionRefusal),
}

/// The reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermissionRefusal {
    /// The rule, in words that a policy could contain.
    pub rule: String,
    /// The smallest sufficient grant, if there is one.
    pub grant: Option<Grant>,
}

impl PermissionRefusal {
    /// Makes a refusal that no grant lifts.
    pub fn without_grant(rule: impl Into<String>) -> Self {
        Self { rule: rule.into(), grant: None }
    }

    /// Makes a refusal that this grant lifts.
    pub fn until(grant: Grant, rule: impl Into<String>) -> Self {
        Self { rule: rule.into(), grant: Some(grant) }
    }

    /// Makes a refusal that a grant to write to `path` lifts.
    pub fn until_write(path: &[u8], rule: impl Into<String>) -> Self {
        Self::until(Grant::Write(to_path(path)), rule)
    }
}

/// Returns whether a path exists; links are not followed.
pub type ExistsProbe<'a> = &'a dyn Fn(&Path) -> bool;

/// Name prefix of a file that a broker is about to move to a guarded name. By then it has no other
/// name and no process holds it open, whatever the grants of another run are.
pub const INSTALL_PREFIX: &str = ".stockade-install-";
/// Name prefix of the temporary files of undo, also beside guarded names.
pub const UNDO_PREFIX: &str = ".stockade-undo-";
/// Prefixes of all temporary names that are renamed later.
const TEMPORARY_PREFIXES: [&str; 3] = [INSTALL_PREFIX, UNDO_PREFIX, stockade_files::INCOMING_PREFIX];

/// Trees of kernel settings: no grant opens them.
const KERNEL_TREES: [&[u8]; 2] = [b"/proc", b"/sys"];

impl AttemptPermissions {
    /// Returns the powers of a plan. `private` are the absolute trees that only this run sees, with
    /// their paths in the run: the private temporary directories.
    pub fn new<P: AsRef<Path>>(plan: &AttemptPlan, private: impl IntoIterator<Item = P>) -> Self {
        let files = &plan.profile.filesystem;
        let mut powers = Self {
            workspace: normalize_path(plan.workspace.as_path()),
            writable: paths_of(&files.write),
            private: private.into_iter().collect(),
            hidden: paths_of(&files.hide),
            revealed: paths_of(&files.reveal),
            sockets: paths_of(&files.sockets),
            names: GuardedNames::new(&files.protect),
            checks_content: true,
            traced: files.trace,
            programs: ProgramRules::new(&plan.profile.exec),
            reach: EgressReach::from_plan(plan),
            ..Self::default()
        };
        for grant in plan.grants.iter().chain(&plan.effects) {
            powers.add_grant(grant);
        }
        powers
    }

    /// Returns the powers over a workspace alone, for later writes into it. Every protected name
    /// refuses.
    pub fn for_workspace(workspace: &Path, protect: &[String]) -> Self {
        let (writable, names) = (PathSet::from_iter([workspace]), GuardedNames::new(protect));
        Self { writable, workspace: normalize_path(workspace), names, ..Self::default() }
    }

    /// Returns whether a call that makes an object at `path` may continue, because it is in
    /// a tree of `kernel_allowed`.
    pub fn kernel_allows(&self, path: &[u8]) -> bool {
        self.private.deepest(path).is_some_and(|tree| self.kernel_allowed.has(tree))
    }

    /// Returns the path of the workspace in the run and on the host, if these differ.
    pub fn renamed_workspace(&self) -> Option<(&[u8], &[u8])> {
        self.host_workspace.as_deref().map(|host| (&self.workspace[..], host))
    }

    /// Returns whether `path` is in a workspace that is an overlay.
    pub fn is_staged(&self, path: &[u8]) -> bool {
        self.staged && is_at_or_beneath(&self.workspace, path)
    }

    /// Returns whether operations that these powers allow on `path` must run in the supervisor's
    /// mount namespace, see [`unattached`](Self::unattached).
    pub fn is_unattached(&self, path: &[u8]) -> bool {
        !self.is_staged(path)
            && !self.in_private_tree(path)
            && (self.unattached.covers(path) || self.unattached.reaches_beneath(path))
    }

    /// Adds powers while the attempt runs. Its mounts and its hidden paths stay the same.
    pub fn extend(&mut self, grants: &[Grant], level: IsolationLevel) {
        for grant in grants {
            self.add_grant(grant);
            if let Grant::Write(path) = grant {
                self.added.add(path);
                if level == IsolationLevel::Full && !self.inside {
                    self.unattached.add(path);
                }
            }
        }
    }

    /// Returns whether the run sees an object other than the host's around or beneath `path`. A
    /// path beneath it may then name different objects in the two mount namespaces.
    pub fn is_seen_otherwise(&self, path: &Path) -> bool {
        let path = path.as_os_str().as_bytes();
        let beneath = |other: &[u8]| is_at_or_beneath(path, other) || is_at_or_beneath(other, path);
        let replaced = self.private.paths().iter().chain(self.hidden.paths()).map(Vec::as_slice);
        KERNEL_TREES.into_iter().chain([&b"/dev"[..]]).chain(replaced).any(beneath)
    }

    fn add_grant(&mut self, grant: &Grant) {
        match grant {
            Grant::Write(p) => self.writable.add(p),
            Grant::Read(p) => self.revealed.add(p),
            Grant::Socket(p) => self.sockets.add(p),
            Grant::Exec(p) => self.programs.approve_program(normalize_path(p)),
            Grant::Effect(_) => {
                self.programs.agree_effect(grant);
                self.reach.add_grant(grant);
            }
            Grant::Connect(_) | Grant::Secret(_) => self.reach.add_grant(grant),
            Grant::Sign(_) | Grant::Listen(_) | Grant::Env(_) | Grant::Limit(..) => {}
        }
    }

    /// Returns the trees that only this run sees.
    pub fn private_trees(&self) -> impl Iterator<Item = &Path> {
        self.private.paths().iter().map(|p| Path::new(OsStr::from_bytes(p)))
    }

    /// Decides on `operation` on `object`, an absolute path without links.
    pub fn decide_operation(
        &self,
        operation: DeniedOperation,
        object: &Path,
        probe: ExistsProbe<'_>,
    ) -> PermissionVerdict {
        let path = object.as_os_str().as_bytes();
        if let Some(refusal) = self.hidden_refusal(path) {
            return PermissionVerdict::Refuse(refusal);
        }
        let root = self.writable.deepest(path);
        let private = self.private.deepest(path);
        match (root, private) {
            (Some(root), private) if private.is_none_or(|tree| tree.len() <= root.len()) => self
                .root_refusal(operation, root, path, probe)
                .map_or(PermissionVerdict::Allow, PermissionVerdict::Refuse),
            (_, Some(_)) => PermissionVerdict::Private,
            // A root that does not exist yet is made together with its parents.
            _ if operation == DeniedOperation::Mkdir && self.leads_to_root(path) => PermissionVerdict::Allow,
            _ => PermissionVerdict::Refuse(outside_refusal(path)),
        }
    }

    /// Decides on a connection to the unix socket at this path, which the run did not make.
    pub fn decide_socket(&self, object: &Path) -> PermissionVerdict {
        let path = object.as_os_str().as_bytes();
        if self.sockets.has(path) {
            return PermissionVerdict::Allow;
        }
        if self.is_private(object) {
            return PermissionVerdict::Private;
        }
        let grant = Grant::Socket(object.to_owned());
        PermissionVerdict::Refuse(PermissionRefusal::until(grant, "a unix socket of the host"))
    }

    /// Returns whether the object is in a tree that only this run sees.
    pub fn is_private(&self, object: &Path) -> bool {
        let path = object.as_os_str().as_bytes();
        self.private
            .deepest(path)
            .is_some_and(|tree| self.writable.deepest(path).is_none_or(|root| root.len() < tree.len()))
    }

    /// Returns the relative paths that would be protected units if they exist beneath a directory
    /// that is renamed to `object`: `git` for `~/.config`. Such a directory must not be moved to or
    /// from that name.
    pub fn units_carried_by(&self, object: &Path) -> Vec<PathBuf> {
        self.names.carried_by(object.as_os_str().as_bytes())
    }

    /// Returns whether `path` is, or is within, a tree that only this run sees.
    pub fn in_private_tree(&self, path: &[u8]) -> bool {
        self.is_private(Path::new(OsStr::from_bytes(path)))
    }

    /// As [`in_private_tree`](Self::in_private_tree), but not if the user has permitted to read the
    /// host's content there.
    pub fn is_only_in_run(&self, path: &[u8]) -> bool {
        let tree = self.private.deepest(path).filter(|_| self.in_private_tree(path));
        tree.is_some_and(|tree| self.revealed.deepest(path).is_none_or(|shown| shown.len() <= tree.len()))
    }

    /// Returns the names that are guarded in every writable root.
    pub fn guarded_names(&self) -> &GuardedNames {
        &self.names
    }

    /// Returns the length of the deepest writable root that contains `path`.
    pub fn root_length(&self, path: &[u8]) -> Option<usize> {
        self.writable.deepest(path).map(<[u8]>::len)
    }

    /// Returns whether `path` is itself a writable root, because a grant names it.
    pub fn is_named(&self, path: &[u8]) -> bool {
        self.root_length(path) == Some(path.len())
    }

    /// Returns the path of the workspace in the run.
    pub fn workspace(&self) -> &[u8] {
        &self.workspace
    }

    /// Returns the part of `path` beneath the workspace.
    pub fn beneath_workspace<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        path.strip_prefix(&self.workspace[..])?.strip_prefix(b"/")
    }

    /// Returns the reason why the directory `object` must stay in place. An object beneath it is
    /// protected, hidden or writable by its location, not by its name.
    pub fn move_refusal(&self, object: &Path) -> Option<PermissionRefusal> {
        let path = object.as_os_str().as_bytes();
        let stays = |rule: &str| Some(PermissionRefusal::without_grant(rule.to_owned()));
        if self.hidden.reaches_beneath(path) {
            return stays("a directory that holds hidden credentials stays in place");
        }
        if self.sockets.reaches_beneath(path) {
            return stays("a directory that holds a granted socket stays in place");
        }
        if self.writable.deepest(path).is_none() && self.writable.reaches_beneath(path) {
            return stays("a directory that holds a writable root stays in place");
        }
        None
    }

    /// Returns the refusal to read at `path`, if it is hidden.
    pub fn hidden_refusal(&self, path: &[u8]) -> Option<PermissionRefusal> {
        let hidden = self.hidden.deepest(path)?;
        let shown = |roots: &PathSet| roots.deepest(path).is_some_and(|r| r.len() >= hidden.len());
        (!shown(&self.revealed) && !shown(&self.writable) && !shown(&self.private))
            .then(|| PermissionRefusal::until(Grant::Read(to_path(path)), "hidden from runs"))
    }

    /// Returns the reason why the writable root `root` does not cover `path`, which is at or
    /// beneath it.
    fn root_refusal(
        &self,
        operation: DeniedOperation,
        root: &[u8],
        path: &[u8],
        probe: ExistsProbe<'_>,
    ) -> Option<PermissionRefusal> {
        if is_at_or_beneath(b"/proc", path) || is_at_or_beneath(b"/sys", path) {
            return Some(outside_refusal(path));
        }
        if is_momentary(root, path) {
            let rule = "a file that Stockade is renaming to its final name";
            return Some(PermissionRefusal::without_grant(rule));
        }
        if !self.permits_by_name(operation, path)
            && let Some((unit, name)) = self.find_protected_unit(root, path)
        {
            return Some(protected_refusal(unit, &name));
        }
        let is_known: KnownNameCheck<'_> = &|prefix| self.is_known_part(prefix);
        if let Some(unit) =
            repository::guarded_part(creates_name(operation), root.len(), path, (&self.parts, is_known), probe)
        {
            return Some(repository::refuse_change(unit));
        }
        let replaces =
            !matches!(operation, DeniedOperation::Write | DeniedOperation::Metadata | DeniedOperation::Truncate);
        (replaces && path == self.workspace)
            .then(|| PermissionRefusal::without_grant("the workspace itself stays in place"))
    }
}

/// Returns whether `path` has a temporary name beneath `root`. No other program needs it.
fn is_momentary(root: &[u8], path: &[u8]) -> bool {
    let beneath = path.get(root.len()..).unwrap_or_default();
    beneath
        .split(|b| *b == b'/')
        .any(|name| TEMPORARY_PREFIXES.iter().any(|prefix| fold_name(name).starts_with(prefix.as_bytes())))
}

fn outside_refusal(path: &[u8]) -> PermissionRefusal {
    if KERNEL_TREES.iter().any(|tree| is_at_or_beneath(tree, path)) {
        return PermissionRefusal::without_grant("the kernel's own files");
    }
    PermissionRefusal::until_write(path, "outside every writable root")
}

/// Returns the refusal for a protected name, with the grant for its unit.
pub fn protected_refusal(unit: &[u8], name: &str) -> PermissionRefusal {
    PermissionRefusal::until_write(unit, format!("protected name: {name}"))
}

/// Returns whether an operation makes a name.
pub fn creates_name(operation: DeniedOperation) -> bool {
    matches!(
        operation,
        DeniedOperation::Create
            | DeniedOperation::Mkdir
            | DeniedOperation::Mknod
            | DeniedOperation::Rename
            | DeniedOperation::Link
            | DeniedOperation::Symlink
            | DeniedOperation::Bind
    )
}

/// Returns the ends of all prefixes of an absolute path that are paths: `/a` and `/a/b` of `/a/b`,
/// shortest first.
pub fn prefix_ends(path: &[u8]) -> Vec<usize> {
    let slashes = path.iter().enumerate().skip(1).filter(|(_, b)| **b == b'/').map(|(at, _)| at);
    slashes.chain((path.len() > 1).then_some(path.len())).collect()
}

/// Returns whether `path` is at or beneath `root`. Both are absolute and normal.
pub fn is_at_or_beneath(root: &[u8], path: &[u8]) -> bool {
    root == b"/" || (path.starts_with(root) && (path.len() == root.len() || path[root.len()] == b'/'))
}

/// Returns a path without `.`, doubled slashes and a slash at the end.
pub fn normalize_path(path: &Path) -> Vec<u8> {
    path.components().collect::<PathBuf>().into_os_string().as_bytes().to_vec()
}

/// Returns `path`, which is at or beneath `from`, with the prefix `to` instead of `from`.
pub fn replace_prefix(path: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    is_at_or_beneath(from, path).then(|| [to, &path[from.len()..]].concat())
}

fn paths_of(paths: &[RawText]) -> PathSet {
    paths.iter().map(RawText::as_path).collect()
}

/// Converts bytes to a path.
pub fn to_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

#[cfg(test)]
#[path = "powers_tests.rs"]
mod tests;
