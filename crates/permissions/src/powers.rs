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

/// The powers of one attempt.
#[derive(Clone, Debug, Default)]
pub struct AttemptPermissions {
    workspace: Vec<u8>,
    writable: Vec<Vec<u8>>,
    private: Vec<Vec<u8>>,
    hidden: Vec<Vec<u8>>,
    revealed: Vec<Vec<u8>>,
    sockets: Vec<Vec<u8>>,
    names: GuardedNames,
    parts: TrustedParts,
    unattached: Vec<Vec<u8>>,
    kernel_allowed: Vec<Vec<u8>>,
    added: Vec<Vec<u8>>,
    staged: Option<Vec<u8>>,
    /// True if git's writes are judged by their content. Only a broker can do that.
    checks_content: bool,
    /// See [`keep_read_only`](Self::keep_read_only).
    read_only: Vec<Vec<u8>>,
    /// See [`merged_at`](Self::merged_at).
    merged: Vec<Vec<u8>>,
    /// See [`layered_at`](Self::layered_at).
    layers: Vec<Vec<u8>>,
    /// See [`stay_inside`](Self::stay_inside).
    inside: bool,
    /// See [`workspace_lies_at`](Self::workspace_lies_at).
    host_workspace: Option<Vec<u8>>,
    /// See [`in_own_network`](Self::in_own_network).
    pub own_network: Option<BTreeSet<u16>>,
    /// See [`read_late`](Self::read_late).
    late: Vec<Vec<u8>>,
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

    /// Makes a refusal that a grant to write to `path` lifts.
    pub fn until_write(path: &[u8], rule: impl Into<String>) -> Self {
        Self { rule: rule.into(), grant: Some(Grant::Write(to_path(path))) }
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
            writable: normal_all(&files.write),
            private: private.into_iter().map(|p| normalize_path(p.as_ref())).collect(),
            hidden: normal_all(&files.hide),
            revealed: normal_all(&files.reveal),
            sockets: normal_all(&files.sockets),
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
        let workspace = normalize_path(workspace);
        Self { writable: vec![workspace.clone()], workspace, names: GuardedNames::new(protect), ..Self::default() }
    }

    /// Adds approved paths, as a grant for writing does.
    pub fn approve_paths(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        self.writable.extend(paths.into_iter().map(|path| normalize_path(&path)));
    }

    /// Adds writable roots that did not exist when the sandbox's root was built. Its mounts are
    /// read-only there, so allowed operations must run in the supervisor's mount namespace.
    pub fn not_attached(&mut self, roots: impl IntoIterator<Item = PathBuf>) {
        self.unattached.extend(roots.into_iter().map(|r| normalize_path(&r)));
    }

    /// Adds private trees in which Landlock lets the command make any object, see
    /// `PrivateTree` of the native backend.
    pub fn allow_by_kernel(&mut self, trees: impl IntoIterator<Item = PathBuf>) {
        self.kernel_allowed.extend(trees.into_iter().map(|tree| normalize_path(&tree)));
    }

    /// Returns whether a call that makes an object at `path` may continue, because it is in such a
    /// tree.
    pub fn kernel_allows(&self, path: &[u8]) -> bool {
        deepest_root(&self.private, path).is_some_and(|tree| self.kernel_allowed.iter().any(|allowed| allowed == tree))
    }

    /// Marks the workspace as an overlay. Operations in it must not run in the supervisor's mount
    /// namespace, because that would change the workspace itself.
    pub fn mark_staged(&mut self) {
        self.staged = Some(self.workspace.clone());
    }

    /// Forbids operations in the supervisor's mount namespace, because paths of the sandbox name
    /// other objects there.
    pub fn stay_inside(&mut self) {
        self.inside = true;
    }

    /// Adds files that a tool does not need. They cannot be written, and the approver is not asked.
    pub fn keep_read_only(&mut self, files: &[PathBuf]) {
        self.read_only.extend(files.iter().map(|file| normalize_path(file)));
    }

    /// See [`keep_read_only`](Self::keep_read_only).
    pub fn is_kept_read_only(&self, path: &[u8]) -> bool {
        self.read_only.iter().any(|file| file == path)
    }

    /// Adds directories under a layer, of which only a part may be written. The rest is the host's,
    /// with other inode numbers.
    pub fn merged_at(&mut self, directories: impl IntoIterator<Item = PathBuf>) {
        self.merged.extend(directories.into_iter().map(|directory| normalize_path(&directory)));
    }

    /// Returns whether `path` is such a directory.
    pub fn is_merged(&self, path: &[u8]) -> bool {
        self.merged.iter().any(|directory| directory == path)
    }

    /// Adds trees in which earlier runs wrote. A path in such a tree may name another program than
    /// on the host.
    pub fn layered_at(&mut self, trees: impl IntoIterator<Item = PathBuf>) {
        self.layers.extend(trees.into_iter().map(|tree| normalize_path(&tree)));
    }

    /// Returns whether `path` is in such a tree.
    pub fn is_in_layer(&self, path: &[u8]) -> bool {
        self.layers.iter().any(|tree| is_at_or_beneath(tree, path))
    }

    /// Hides these paths as well.
    pub fn hide_too(&mut self, paths: &[RawText]) {
        let new: Vec<Vec<u8>> = normal_all(paths).into_iter().filter(|path| !self.hidden.contains(path)).collect();
        self.hidden.extend(new);
    }

    /// Sets the directory of the host that is the sandbox's workspace. The user's links and
    /// settings contain that path.
    pub fn workspace_lies_at(&mut self, directory: &Path) {
        self.host_workspace = Some(normalize_path(directory));
    }

    /// Returns the path of the workspace in the run and on the host, if these differ.
    pub fn renamed_workspace(&self) -> Option<(&[u8], &[u8])> {
        self.host_workspace.as_deref().map(|host| (&self.workspace[..], host))
    }

    /// Returns whether [`stay_inside`](Self::stay_inside) was called.
    pub fn is_inside(&self) -> bool {
        self.inside
    }

    /// Marks the surrounding network as the sandbox's own, although its level has none. Servers in
    /// it are not restricted. `served` are ports of the host on which servers listen.
    pub fn in_own_network(&mut self, served: BTreeSet<u16>) {
        self.own_network = Some(served);
    }

    /// See [`mark_staged`](Self::mark_staged).
    pub fn is_staged(&self, path: &[u8]) -> bool {
        self.staged.as_ref().is_some_and(|workspace| is_at_or_beneath(workspace, path))
    }

    /// Returns whether operations that these powers allow on `path` must run in the supervisor's
    /// mount namespace, see [`not_attached`](Self::not_attached).
    pub fn is_unattached(&self, path: &[u8]) -> bool {
        !self.is_staged(path)
            && !self.in_private_tree(path)
            && self.unattached.iter().any(|root| is_at_or_beneath(root, path) || is_at_or_beneath(path, root))
    }

    /// Adds powers while the attempt runs. Its mounts and its hidden paths stay the same.
    pub fn extend(&mut self, grants: &[Grant], level: IsolationLevel) {
        for grant in grants {
            self.add_grant(grant);
            if let Grant::Write(path) = grant {
                push_new(&mut self.added, path);
                if level == IsolationLevel::Full && !self.inside {
                    push_new(&mut self.unattached, path);
                }
            }
        }
    }

    /// Returns whether the run sees an object other than the host's around or beneath `path`. A
    /// path beneath it may then name different objects in the two mount namespaces.
    pub fn is_seen_otherwise(&self, path: &Path) -> bool {
        let path = path.as_os_str().as_bytes();
        let beneath = |other: &[u8]| is_at_or_beneath(path, other) || is_at_or_beneath(other, path);
        let replaced = self.private.iter().chain(&self.hidden).map(Vec::as_slice);
        KERNEL_TREES.into_iter().chain([&b"/dev"[..]]).chain(replaced).any(beneath)
    }

    /// Returns whether a power over `path` was added while the attempt ran.
    pub fn was_added(&self, path: &[u8]) -> bool {
        self.added.iter().any(|root| is_at_or_beneath(root, path))
    }

    fn add_grant(&mut self, grant: &Grant) {
        match grant {
            Grant::Write(p) => push_new(&mut self.writable, p),
            Grant::Read(p) => push_new(&mut self.revealed, p),
            Grant::Socket(p) => push_new(&mut self.sockets, p),
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
        self.private.iter().map(|p| Path::new(OsStr::from_bytes(p)))
    }

    /// Returns the writable roots.
    pub fn writable_roots(&self) -> impl Iterator<Item = &Path> {
        self.writable.iter().map(|p| Path::new(OsStr::from_bytes(p)))
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
        let root = deepest_root(&self.writable, path);
        let private = deepest_root(&self.private, path);
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
        if self.sockets.iter().any(|s| s == path) {
            return PermissionVerdict::Allow;
        }
        if self.is_private(object) {
            return PermissionVerdict::Private;
        }
        PermissionVerdict::Refuse(PermissionRefusal {
            rule: "a unix socket of the host".to_owned(),
            grant: Some(Grant::Socket(object.to_owned())),
        })
    }

    /// Returns whether the object is in a tree that only this run sees.
    pub fn is_private(&self, object: &Path) -> bool {
        let path = object.as_os_str().as_bytes();
        deepest_root(&self.private, path)
            .is_some_and(|tree| deepest_root(&self.writable, path).is_none_or(|root| root.len() < tree.len()))
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
        let tree = deepest_root(&self.private, path).filter(|_| self.in_private_tree(path));
        tree.is_some_and(|tree| deepest_root(&self.revealed, path).is_none_or(|shown| shown.len() <= tree.len()))
    }

    /// Returns the names that are guarded in every writable root.
    pub fn guarded_names(&self) -> &GuardedNames {
        &self.names
    }

    /// Returns the hidden paths.
    pub fn hidden_paths(&self) -> &[Vec<u8>] {
        &self.hidden
    }

    /// Returns the writable roots. Roots are only added, never removed.
    pub fn writable(&self) -> &[Vec<u8>] {
        &self.writable
    }

    /// Returns the length of the deepest writable root that contains `path`.
    pub fn root_length(&self, path: &[u8]) -> Option<usize> {
        deepest_root(&self.writable, path).map(<[u8]>::len)
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

    /// Returns whether the object is a writable root or beneath one.
    pub fn is_in_writable_root(&self, object: &Path) -> bool {
        deepest_root(&self.writable, object.as_os_str().as_bytes()).is_some()
    }

    /// Returns the reason why the directory `object` must stay in place. An object beneath it is
    /// protected, hidden or writable by its location, not by its name.
    pub fn move_refusal(&self, object: &Path) -> Option<PermissionRefusal> {
        let path = object.as_os_str().as_bytes();
        let beneath = |t: &&Vec<u8>| t.len() > path.len() && is_at_or_beneath(path, t);
        let stays = |rule: &str| Some(PermissionRefusal::without_grant(rule.to_owned()));
        if self.hidden.iter().any(|hidden| beneath(&hidden)) {
            return stays("a directory that holds hidden credentials stays in place");
        }
        if self.sockets.iter().any(|socket| socket.len() > path.len() && is_at_or_beneath(path, socket)) {
            return stays("a directory that holds a granted socket stays in place");
        }
        // The rules of a private tree depend on the location of its content. If a directory above a
        // writable root is moved, the root would be taken for private.
        if deepest_root(&self.writable, path).is_none() && self.writable.iter().any(|root| beneath(&root)) {
            return stays("a directory that holds a writable root stays in place");
        }
        None
    }

    /// Returns the refusal to read at `path`, if it is hidden.
    pub fn hidden_refusal(&self, path: &[u8]) -> Option<PermissionRefusal> {
        let hidden = deepest_root(&self.hidden, path)?;
        let shown = |roots: &[Vec<u8>]| deepest_root(roots, path).is_some_and(|r| r.len() >= hidden.len());
        (!shown(&self.revealed) && !shown(&self.writable) && !shown(&self.private))
            .then(|| PermissionRefusal { rule: "hidden from runs".to_owned(), grant: Some(Grant::Read(to_path(path))) })
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
            let rule = "a file that Stockade is putting into its place";
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

fn deepest_root<'a>(roots: &'a [Vec<u8>], path: &[u8]) -> Option<&'a [u8]> {
    roots.iter().filter(|r| is_at_or_beneath(r, path)).max_by_key(|r| r.len()).map(Vec::as_slice)
}

fn push_new(paths: &mut Vec<Vec<u8>>, path: &Path) {
    let path = normalize_path(path);
    if !paths.contains(&path) {
        paths.push(path);
    }
}

fn normalize_path(path: &Path) -> Vec<u8> {
    path.components().collect::<PathBuf>().into_os_string().as_bytes().to_vec()
}

/// Returns `path`, which is at or beneath `from`, with the prefix `to` instead of `from`.
pub fn replace_prefix(path: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    is_at_or_beneath(from, path).then(|| [to, &path[from.len()..]].concat())
}

fn normal_all(paths: &[RawText]) -> Vec<Vec<u8>> {
    paths.iter().map(|p| normalize_path(p.as_path())).collect()
}

/// Converts bytes to a path.
pub fn to_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

#[cfg(test)]
#[path = "powers_tests.rs"]
mod tests;
