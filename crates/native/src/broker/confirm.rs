//! Checks a name again after it was made. Between a decision and its act, another broker of the
//! same directory may have moved that directory, or made a file that was missing. The name may be
//! guarded then, and is taken back. Every broker checks after each of its acts, also after taking
//! back. So the last of several acts that together would plant a file is always checked.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, OFlags, RenameFlags, Stat, fstat, renameat_with, unlinkat};
use stockade_files::object::unguessable_name;
use stockade_model::DeniedOperation;
use stockade_sys::{Errno, resolve};

use super::call_result::{CallResult, refuse_if, refuse_operation, refuse_until_granted};
use super::service::BrokerService;
use super::view::{NameHandle, is_same_object};
use super::walk::{ResolvedName, ResolvedObject};
use stockade_permissions::guards::git_part::{GitPathKind, GuardedContent};
use stockade_permissions::guards::pointers::work_trees_of_modules;
use stockade_permissions::guards::repository::{self, RepositoryState};
use stockade_permissions::guards::view::{join_name, open_in_root};
use stockade_permissions::guards::{RootView, RunSurveys, SurveyError, fold_name, open_host_root};
use stockade_permissions::powers::{PermissionRefusal, creates_name, is_at_or_beneath, prefix_ends, to_path};

/// Most attempts to remove a file that others move meanwhile.
const MAX_TAKE_BACK_ATTEMPTS: u32 = 64;
/// Time-out for taking a moved name back: others may move it meanwhile.
const TAKE_BACK_TIMEOUT: Duration = Duration::from_secs(10);

impl BrokerService {
    fn is_needed(&self, path: &[u8]) -> bool {
        match self.powers.git_part(path) {
            Some(part) if self.powers.is_known_part(path) => {
                matches!(part, GitPathKind::Needed { .. } | GitPathKind::Checked(GuardedContent::Index))
            }
            _ => repository::is_needed(path, self.surveys.borrow().trusted_parts(), &|p| self.exists_in_view(p)),
        }
    }

    /// Checks whether the name that was made at `resolved` is still permitted.
    fn confirm_name(&self, resolved: &ResolvedName, operation: DeniedOperation) -> CallResult<()> {
        if resolved.special {
            return Ok(());
        }
        resolved.path_now()?.map_or(Ok(()), |now| self.confirm_path(&now, &resolved.path, operation))
    }

    /// As [`confirm_name`](Self::confirm_name), for a name whose path is `now`. `decided` is the
    /// path that was decided on.
    fn confirm_path(&self, now: &[u8], decided: &[u8], operation: DeniedOperation) -> CallResult<()> {
        if now != decided {
            self.permit_operation(operation, now)?;
            if operation == DeniedOperation::Symlink {
                self.permit_link_at(now, operation)?;
            }
        }
        // The directory may have become a work tree meanwhile.
        let surveys = self.surveys.borrow();
        if let Some(root_length) = self.powers.root_length(now)
            && let Some(refusal) =
                surveys.refusal_in_work_tree(operation, root_length, now, &|path: &Path| self.exists_in_view(path))
        {
            return Err(refuse_operation(operation, now, refusal));
        }
        self.looked_in_vain.set(false);
        let Some(state) = RepositoryState::containing_path(now, surveys.trusted_parts(), &|p| self.exists_in_view(p))
        else {
            return Ok(());
        };
        refuse_if(operation, now, self.refusal_in_the_dark(operation, now))?;
        if self.powers.is_known_part(now) {
            return Ok(());
        }
        let known = || self.root_view().and_then(|view| surveys.repository_state(view, now));
        if self.powers.in_private_tree(now)
            || !state.gives_more_than(RepositoryState::default())
            || self.powers.is_named(now)
            || known().is_some_and(|known| !state.gives_more_than(known))
        {
            return Ok(());
        }
        Err(refuse_operation(operation, now, repository::refuse_change(now)))
    }

    /// As [`confirm_name`](Self::confirm_name), for a new name, which is removed if it may not stay.
    pub(super) fn confirm_new(&self, new: &NameHandle<'_>, operation: DeniedOperation) -> CallResult<()> {
        let confirmed = self.confirm_name(new.name, operation);
        if confirmed.is_ok() {
            self.note_written(&new.name.path);
        } else {
            let flags = if operation == DeniedOperation::Mkdir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            // If another process has removed it already, there is nothing to do.
            let _ = new.unlink(flags);
        }
        confirmed
    }

    /// The same for an opened file, which may have existed before: only an empty file is removed.
    pub(super) fn confirm_opened(&self, opened: &OwnedFd, decided: &[u8]) -> CallResult<()> {
        let confirmed = self.confirm_path(&ResolvedObject::path_of(opened)?, decided, DeniedOperation::Create);
        if confirmed.is_err() {
            // The directory may be moved once more meanwhile.
            for _ in 0..MAX_TAKE_BACK_ATTEMPTS {
                let (now, stat) = (ResolvedObject::path_of(opened)?, fstat(opened)?);
                if stat.st_size != 0 || stat.st_nlink == 0 {
                    break;
                }
                self.remove_empty(&now, &stat);
            }
        }
        confirmed
    }

    fn remove_empty(&self, path: &[u8], stat: &Stat) {
        let Some(first) = &self.first else { return };
        let end = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
        let parent = open_in_root(first.root.as_fd(), &path[..end.max(1)], OFlags::PATH | OFlags::DIRECTORY);
        let (Ok(directory), Ok(name)) = (parent, CString::new(&path[end + 1..])) else { return };
        let is_same = resolve::open_component(directory.as_fd(), &name)
            .and_then(fstat)
            .is_ok_and(|found| is_same_object(stat, &found));
        if is_same {
            // The caller gets no descriptor of it in any case.
            let _ = unlinkat(&directory, &name, AtFlags::empty());
        }
    }

    /// Checks whether a link may have the name `path`. If a guarded name could be beneath `path`,
    /// the link would turn ordinary names into guarded ones.
    pub(super) fn permit_link_at(&self, path: &[u8], operation: DeniedOperation) -> CallResult<()> {
        self.permit_above_work_tree(path, true, operation)?;
        if self.powers.units_carried_by(&to_path(path)).is_empty()
            || self.powers.in_private_tree(path)
            || self.powers.is_named(path)
        {
            return Ok(());
        }
        let rule = "a link would replace a directory with protected names";
        Err(refuse_until_granted(operation, path, rule))
    }

    /// Checks whether a link, or a directory from elsewhere, may have the name `path`. Refuses if
    /// the settings of a module name a work tree there or beneath: git would write to the target of
    /// the link.
    pub(super) fn permit_above_work_tree(
        &self,
        path: &[u8],
        is_link: bool,
        operation: DeniedOperation,
    ) -> CallResult<()> {
        let (Some(view), Some(root)) = (self.root_view(), self.powers.root_length(path)) else { return Ok(()) };
        if self.powers.in_private_tree(path) || self.powers.is_named(path) {
            return Ok(());
        }
        let tops = prefix_ends(path).into_iter().filter(|end| *end >= root && *end < path.len());
        for repository in tops.map(|end| join_name(&path[..end], b".git")) {
            let named = work_trees_of_modules(view, &repository)?;
            if named.iter().any(|tree| is_at_or_beneath(path, tree) && (is_link || tree != path)) {
                let rule = "settings of a module name a work tree there";
                return Err(refuse_until_granted(operation, path, rule));
            }
        }
        Ok(())
    }

    /// Checks a moved name again, and takes it back if it may not stay. Taking back is a move too,
    /// and other brokers move meanwhile, so the check repeats until it passes.
    pub(super) fn confirm_moved(&self, [old, new]: &[NameHandle<'_>; 2], flags: RenameFlags) -> CallResult<()> {
        if old.name.special || new.name.special {
            return Ok(());
        }
        let look = |resolved: &ResolvedName| {
            self.confirm_name(resolved, DeniedOperation::Rename)?;
            resolved.open_nofollow().map_or(Ok(()), |moved| self.confirm_carried(&moved))
        };
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let mut confirmed = look(new.name);
        if confirmed.is_err() && !exchange {
            let names = (&new.name.name, &old.name.name);
            // Fails if its old name was taken meanwhile.
            let _ = renameat_with(&new.directory, names.0, &old.directory, names.1, RenameFlags::NOREPLACE);
        }
        // The old name is checked too, because it was free for a moment.
        for resolved in [new, old] {
            let deadline = Instant::now() + TAKE_BACK_TIMEOUT;
            while let Err(failure) = look(resolved.name) {
                confirmed = Err(failure);
                rename_out_of_way(resolved);
                if Instant::now() > deadline {
                    break;
                }
            }
        }
        confirmed
    }

    fn confirm_carried(&self, moved: &OwnedFd) -> CallResult<()> {
        let stat = fstat(moved)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let now = ResolvedObject::path_of(moved)?;
                self.permit_carried_at(moved, &now)?;
                self.permit_leading(moved, &now)?;
                self.permit_links_within(&now, &now)
            }
            FileType::Symlink => {
                let now = ResolvedObject::path_of(moved)?;
                self.permit_link_at(&now, DeniedOperation::Rename)?;
                self.permit_link_target(&now, &resolve::link_text(moved.as_fd())?, DeniedOperation::Rename)
            }
            _ => Ok(()),
        }
    }

    /// Returns the refusal of `path` by the survey of the writable trees, see
    /// [`guards`](stockade_permissions::guards).
    pub(super) fn refusal_of_name(&self, operation: DeniedOperation, path: &[u8]) -> Option<PermissionRefusal> {
        self.first.as_ref()?;
        let root_length = self.powers.root_length(path)?;
        if creates_name(operation)
            && root_length < path.len()
            && let Some(refusal) = self.refusal_of_completion(path)
        {
            return Some(refusal);
        }
        if self.make_surveys().is_err() {
            return Some(PermissionRefusal::without_grant(SurveyError::Unreadable.to_string()));
        }
        let surveys = self.surveys.borrow();
        let may_lead = !matches!(
            operation,
            DeniedOperation::Mkdir | DeniedOperation::Remove | DeniedOperation::Metadata | DeniedOperation::Rename
        );
        if let Some(refusal) = surveys.refusal_at_address(path, false).filter(|_| may_lead) {
            return Some(refusal);
        }
        let is_known = |prefix: &[u8]| self.powers.is_known_part(prefix);
        let exists = |path: &Path| self.exists_in_view(path);
        surveys
            .refusal_of(creates_name(operation), root_length, path, (&is_known, &exists))
            .or_else(|| surveys.refusal_in_work_tree(operation, root_length, path, &exists))
    }

    /// Returns the refusal of a new name if a look-up of existing files failed. By a descriptor, a
    /// run can work in a directory whose permissions it has removed.
    pub(super) fn refusal_in_the_dark(&self, operation: DeniedOperation, path: &[u8]) -> Option<PermissionRefusal> {
        (self.looked_in_vain.get() && creates_name(operation)).then(|| {
            PermissionRefusal::until_write(path, "a directory that is closed, so that its content cannot be checked")
        })
    }

    /// Returns the part that `path` is of a user's bare repository, one that is not called `.git`.
    pub(super) fn bare_part(&self, path: &[u8]) -> Option<GitPathKind> {
        self.surveys.borrow().bare_part(self.powers.root_length(path)?, path)
    }

    /// Returns the refusal of an operation on such a part, unless its name shows that it is harmless.
    pub(super) fn refusal_in_bare(&self, operation: DeniedOperation, path: &[u8]) -> Option<PermissionRefusal> {
        self.bare_part(path).filter(|part| !part.allows_operation(operation)).map(|_| repository::refuse_change(path))
    }

    /// Surveys the writable roots that were not surveyed yet.
    pub(super) fn make_surveys(&self) -> Result<(), Errno> {
        let Some(first) = &self.first else { return Ok(()) };
        let mut surveys = self.surveys.borrow_mut();
        if !surveys.are_complete(self.powers.writable.paths()) {
            self.complete_surveys(&mut surveys, open_host_root()?.as_fd(), first.root.as_fd());
        }
        Ok(())
    }

    /// Surveys a path of the host in the host's view, because the host's programs read it there: a
    /// run may see another `/tmp`, and no hidden paths.
    fn complete_surveys(&self, surveys: &mut RunSurveys, host: BorrowedFd<'_>, own: BorrowedFd<'_>) {
        let (host, own) = (RootView::new(host), RootView::new(own).without_hidden(self.powers.hidden.paths()));
        if let Some((inside, tree)) =
            self.powers.renamed_workspace().filter(|(inside, _)| !surveys.has_surveyed(inside))
        {
            surveys.complete_on_host(host, self.powers.guarded_names(), inside, tree);
        }
        let view_of = |root: &[u8]| if host.shows_as(own, root) { host } else { own };
        surveys.survey_new_roots(view_of, self.powers.guarded_names(), self.powers.writable.paths());
        surveys.guard_parts_of(self.powers.workspace());
    }

    /// Returns whether `path` is guarded, granted or not.
    pub(super) fn is_guarded(&self, path: &[u8]) -> bool {
        self.powers.has_guarded_name(path) || self.surveys.borrow().find_refusal(0, path).is_some()
    }

    /// Refuses to remove a part without which a directory with settings is no repository. Does not
    /// apply to parts that are checked by their names.
    pub(super) fn permit_unmaking(&self, path: &[u8], operation: DeniedOperation) -> CallResult<()> {
        if operation == DeniedOperation::Remove && self.powers.is_known_part(path) {
            return Ok(());
        }
        if self.powers.in_private_tree(path) || !self.is_needed(path) || self.powers.is_named(path) {
            return Ok(());
        }
        Err(refuse_operation(operation, path, repository::refuse_change(path)))
    }

    /// Checks whether the file with `stat`, reached by `path`, may be changed. A file that also has
    /// a guarded name is guarded.
    pub(super) fn permit_linked(&self, stat: &Stat, path: &[u8], operation: DeniedOperation) -> CallResult<()> {
        if !self.surveys.borrow().is_linked(stat) || self.is_guarded(path) || self.powers.is_named(path) {
            return Ok(());
        }
        let rule = "another name of a protected file";
        Err(refuse_until_granted(operation, path, rule))
    }
}

/// Renames the object at `resolved` to an unguessable name beside it, which has no meaning.
fn rename_out_of_way(resolved: &NameHandle<'_>) {
    let Ok(end) = unguessable_name() else { return };
    let Ok(name) = CString::new(format!("taken-back-{end}")) else { return };
    // Fails if the object is gone, which is fine.
    let _ = renameat_with(&resolved.directory, &resolved.name.name, &resolved.directory, &name, RenameFlags::NOREPLACE);
}

/// Returns a path in a held directory that spells `inner`, which has one component or more. Case is folded.
pub(super) fn find_spelled(directory: BorrowedFd<'_>, inner: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let (first, rest) = match inner.iter().position(|b| *b == b'/') {
        Some(at) => (&inner[..at], Some(&inner[at + 1..])),
        None => (inner, None),
    };
    for (entry, _) in stockade_files::object::list_entries(directory)? {
        if fold_name(&entry) != fold_name(first) {
            continue;
        }
        let Some(rest) = rest else { return Ok(Some(entry)) };
        let name = CString::new(entry.clone()).map_err(|_| Errno::INVAL)?;
        let held = resolve::open_component(directory, &name)?;
        if FileType::from_raw_mode(fstat(&held)?.st_mode) == FileType::Directory
            && let Some(found) = find_spelled(held.as_fd(), rest)?
        {
            return Ok(Some([&entry[..], b"/", &found].concat()));
        }
    }
    Ok(None)
}
