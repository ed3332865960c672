//! Calls that make, move or remove a name.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, fstat, linkat, mkdirat, mknodat, renameat_with, symlinkat, unlinkat,
};
use stockade_launch::ArgumentLayout;
use stockade_model::{DeniedOperation, Grant};
use stockade_permissions::guards::RootView;
use stockade_permissions::guards::git_part::{GitPathKind, GuardedContent};
use stockade_permissions::guards::pointers::leads_out;
use stockade_permissions::guards::view::ObjectPresence;
use stockade_permissions::powers::{PermissionRefusal, PermissionVerdict, to_path};
use stockade_sys::{Errno, resolve};

use super::brokered_call::BrokeredCall;
use super::call_result::{
    CallProgress, CallResult, native_name_access, refuse_always, refuse_if, refuse_operation, refuse_until_granted,
};
use super::caller::CallingThread;
use super::confirm::find_spelled;
use super::metadata::{LISTABLE, closing};
use super::opens::set_id;
use super::service::BrokerService;
use super::view::{NameHandle, ObjectHandle, own_name, own_object};
use super::walk::{ResolvedName, ResolvedObject};

/// Longest path of a directory that a run may make, in bytes. The path of each file in it is then
/// shorter than `PATH_MAX`, so that programs and surveys can use it.
const MAX_DIRECTORY_PATH: usize = 3_800;

impl BrokerService {
    /// Reads a call that makes, moves or removes a name; `None` for any other call.
    pub(super) fn read_name(&self, caller: &CallingThread, shape: ArgumentLayout) -> CallResult<Option<BrokeredCall>> {
        let broker_call = match shape {
            ArgumentLayout::Mkdir { at } => {
                let (start, index) = caller.first_path_argument(at);
                let path = caller.read_path(index)?;
                let mode = self.mask_mode(caller, caller.unsigned_argument(index + 1))?;
                BrokeredCall::MakeDirectory { resolved: self.resolve_name(caller, start, &path)?, mode }
            }
            ArgumentLayout::Mknod { at } => self.read_node(caller, at)?,
            ArgumentLayout::Symlink { at } => {
                let (start, index) = if at { (caller.int_argument(1), 2) } else { (libc::AT_FDCWD, 1) };
                let (text, path) = (caller.read_path(0)?, caller.read_path(index)?);
                BrokeredCall::MakeLink { resolved: self.resolve_name(caller, start, &path)?, text }
            }
            ArgumentLayout::Link { at } => self.read_link(caller, at)?,
            ArgumentLayout::Rename { at, flags } => self.read_rename(caller, at, flags)?,
            ArgumentLayout::Remove { directory } => {
                let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                let path = caller.read_path(0)?;
                BrokeredCall::Remove { resolved: self.resolve_name(caller, libc::AT_FDCWD, &path)?, flags }
            }
            ArgumentLayout::RemoveAt => {
                let flags = caller.unsigned_argument(2);
                if flags & !(libc::AT_REMOVEDIR as u32) != 0 {
                    return Err(Errno::INVAL.into());
                }
                let path = caller.read_path(1)?;
                let resolved = self.resolve_name(caller, caller.int_argument(0), &path)?;
                BrokeredCall::Remove { resolved, flags: AtFlags::from_bits_retain(flags) }
            }
            _ => return Ok(None),
        };
        Ok(Some(broker_call))
    }

    fn read_node(&self, caller: &CallingThread, at: bool) -> CallResult<BrokeredCall> {
        let (start, index) = caller.first_path_argument(at);
        let mode = caller.unsigned_argument(index + 1);
        let kind = match mode & libc::S_IFMT {
            0 => FileType::RegularFile,
            kind => FileType::from_raw_mode(kind),
        };
        if kind == FileType::Unknown {
            return Err(Errno::INVAL.into());
        }
        let path = caller.read_path(index)?;
        let (device, mode) = (caller.request.args[index + 2], self.mask_mode(caller, mode)?);
        Ok(BrokeredCall::MakeNode { resolved: self.resolve_name(caller, start, &path)?, kind, mode, device })
    }

    fn read_rename(&self, caller: &CallingThread, at: bool, with_flags: bool) -> CallResult<BrokeredCall> {
        let flags = RenameFlags::from_bits_retain(if with_flags { caller.unsigned_argument(4) } else { 0 });
        let (old_path, new_path) = (caller.read_path(usize::from(at))?, caller.read_path(if at { 3 } else { 1 })?);
        let [old_start, new_start] = start_arguments(caller, at);
        let walk = self.start_resolution(caller)?;
        let old = walk.resolve_name(old_start, &old_path)?;
        Ok(BrokeredCall::Rename { old, new: walk.resolve_name(new_start, &new_path)?, flags })
    }

    fn read_link(&self, caller: &CallingThread, at: bool) -> CallResult<BrokeredCall> {
        let flags = if at { caller.int_argument(4) } else { 0 };
        if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return Err(Errno::INVAL.into());
        }
        let [old_start, new_start] = start_arguments(caller, at);
        let (old_path, new_path) = (caller.read_path(usize::from(at))?, caller.read_path(if at { 3 } else { 1 })?);
        let walk = self.start_resolution(caller)?;
        let source = if old_path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            ResolvedObject::from_fd(caller.open_object(old_start)?)?
        } else {
            walk.resolve_object(old_start, &old_path, flags & libc::AT_SYMLINK_FOLLOW != 0)?
        };
        let source = self.as_staged(source)?;
        Ok(BrokeredCall::MakeName { source, new: walk.resolve_name(new_start, &new_path)? })
    }

    /// Checks whether a name may be made. A call that would fail without a sandbox fails with the
    /// same error.
    fn permit_new(&self, resolved: &ResolvedName, operation: DeniedOperation) -> CallResult<PermissionVerdict> {
        if resolved.special {
            // Such a name can never be made; the kernel returns its own errors.
            return Ok(PermissionVerdict::Allow);
        }
        self.permit_or_fail(operation, &resolved.path, || match resolved.open_nofollow() {
            Ok(_) => Err(Errno::EXIST),
            Err(_) => native_name_access(&resolved.directory),
        })
    }

    /// Makes a permitted name by `make`, and checks it again. `make` gets the directory and the
    /// name as it was written.
    pub(super) fn make_at<'p>(
        &self,
        resolved: &'p ResolvedName,
        operation: DeniedOperation,
        make: impl FnOnce(BorrowedFd<'_>, &CStr) -> Result<(), Errno>,
    ) -> CallResult<NameHandle<'p>> {
        let name = self.through_name(resolved);
        make(name.directory.as_fd(), &resolved.name_as_written())?;
        self.confirm_new(&name, operation)?;
        Ok(name)
    }

    pub(super) fn make_directory(&self, resolved: &ResolvedName, mode: Mode) -> CallResult {
        let path = &resolved.path;
        self.permit_new(resolved, DeniedOperation::Mkdir)?;
        let is_git = self.powers.git_part(path) == Some(GitPathKind::Top) && !self.powers.is_named(path);
        if is_git && resolved.open_nofollow().is_err() {
            self.permit_work_tree(path, DeniedOperation::Mkdir)?;
        }
        if resolved.open_nofollow().is_err() {
            self.permit_surveyable(path, mode)?;
        }
        let made = self.make_at(resolved, DeniedOperation::Mkdir, |directory, name| mkdirat(directory, name, mode))?;
        // Others may meanwhile have made files that this directory would activate.
        if is_git && let Err(failure) = self.permit_work_tree(path, DeniedOperation::Mkdir) {
            let _ = made.unlink(AtFlags::REMOVEDIR);
            return Err(failure);
        }
        Ok(CallProgress::ZERO)
    }

    /// Refuses to make a directory that later runs could not survey, or in which no name could be
    /// recognized by its path.
    fn permit_surveyable(&self, path: &[u8], mode: Mode) -> CallResult<()> {
        if path.len() > MAX_DIRECTORY_PATH && !self.powers.in_private_tree(path) {
            let rule = format!("a directory whose path is longer than {MAX_DIRECTORY_PATH} bytes");
            return Err(refuse_always(DeniedOperation::Mkdir, path, rule));
        }
        // A run could not open such a directory again if its name protects it.
        let is_closed = mode.bits() & LISTABLE != LISTABLE;
        if is_closed && self.refuses(DeniedOperation::Metadata, path) {
            return Err(refuse_operation(DeniedOperation::Mkdir, path, closing()));
        }
        Ok(())
    }

    pub(super) fn make_node(&self, resolved: &ResolvedName, kind: FileType, mode: Mode, device: u64) -> CallResult {
        self.permit_new(resolved, DeniedOperation::Mknod)?;
        if mode.bits() & 0o6000 != 0 {
            return Err(refuse_operation(DeniedOperation::Mknod, &resolved.path, set_id()));
        }
        let make = |directory: BorrowedFd<'_>, name: &CStr| mknodat(directory, name, kind, mode, device);
        self.make_at(resolved, DeniedOperation::Mknod, make).map(|_| CallProgress::ZERO)
    }

    pub(super) fn make_link(&self, resolved: &ResolvedName, text: &CStr) -> CallResult {
        let path = &resolved.path;
        // Git makes a link that leads nowhere, to learn whether links can be made.
        let is_trial = text.to_bytes() == b"testing" && self.powers.git_part(path) == Some(GitPathKind::Trial);
        if !is_trial || self.refusal_of_name(DeniedOperation::Symlink, path).is_some() {
            self.permit_new(resolved, DeniedOperation::Symlink)?;
        }
        if resolved.open_nofollow().is_err() {
            self.permit_link_at(path, DeniedOperation::Symlink)?;
            self.permit_link_target(path, text.to_bytes(), DeniedOperation::Symlink)?;
        }
        let made =
            self.make_at(resolved, DeniedOperation::Symlink, |directory, name| symlinkat(text, directory, name))?;
        // Others may meanwhile have made a text that the link leads elsewhere.
        if let Some(now) = resolved.path_now()?
            && let Err(failure) = self.permit_link_target(&now, text.to_bytes(), DeniedOperation::Symlink)
        {
            let _ = made.unlink(AtFlags::empty());
            return Err(failure);
        }
        Ok(CallProgress::ZERO)
    }

    pub(super) fn remove(&self, resolved: &ResolvedName, flags: AtFlags) -> CallResult {
        let path = &resolved.path;
        // The kernel refuses to remove a directory that is not empty.
        let is_empty = flags.contains(AtFlags::REMOVEDIR)
            && self.powers.is_directory_of_settings(path)
            && self.refusal_of_name(DeniedOperation::Remove, path).is_none();
        if !resolved.special
            && !is_empty
            && let Err(failure) = self.permit_removal(path, DeniedOperation::Remove)
        {
            let kind = FileType::from_raw_mode(fstat(resolved.open_nofollow()?)?.st_mode);
            match (kind == FileType::Directory, flags.contains(AtFlags::REMOVEDIR)) {
                (true, false) => return Err(Errno::ISDIR.into()),
                (false, true) => return Err(Errno::NOTDIR.into()),
                _ => native_name_access(&resolved.directory)?,
            }
            return Err(failure);
        }
        if !resolved.special {
            self.permit_loss(resolved, path)?;
        }
        unlinkat(self.through_name(resolved).directory, resolved.name_as_written().as_c_str(), flags)?;
        Ok(CallProgress::ZERO)
    }

    /// Checks whether the name `path` may be removed or replaced.
    fn permit_old(&self, path: &[u8], operation: DeniedOperation) -> CallResult<PermissionVerdict> {
        let verdict = self.permit_operation(operation, path)?;
        let move_refusal = self.powers.move_refusal(&to_path(path));
        let refusal =
            move_refusal.or_else(|| self.surveys.borrow().refusal_to_move(path, operation == DeniedOperation::Remove));
        refuse_if(operation, path, refusal).map(|()| verdict)
    }

    /// Checks whether the name `path` may be removed without a replacement.
    pub(super) fn permit_removal(&self, path: &[u8], operation: DeniedOperation) -> CallResult<PermissionVerdict> {
        let verdict = self.permit_old(path, operation)?;
        self.permit_unmaking(path, operation)?;
        Ok(verdict)
    }

    pub(super) fn rename_entry(&self, old: &ResolvedName, new: &ResolvedName, flags: RenameFlags) -> CallResult {
        if let Some(content_kind) = self.find_content_kind(new, flags) {
            return self.rename_guarded((old, new), (content_kind, flags), false);
        }
        let (from, to, exchange) = (&old.path, &new.path, flags.contains(RenameFlags::EXCHANGE));
        let mut verdict = PermissionVerdict::Private;
        if !old.special && !new.special {
            verdict = self.permit_rename(old, new, exchange)?;
        }
        if self.is_fixed(from) || exchange && self.is_fixed(to) {
            return Err(Errno::XDEV.into());
        }
        if verdict == PermissionVerdict::Allow && self.changes_owner((from, to), flags)? {
            self.install_copy(old, new, flags)?;
            return Ok(CallProgress::ZERO);
        }
        self.move_name(old, new, (verdict, flags))?;
        // A path may now lead to another directory.
        self.first.iter().for_each(|first| [from, to].iter().for_each(|path| first.roots.forget_beneath(path)));
        Ok(CallProgress::ZERO)
    }

    fn move_name(
        &self,
        old: &ResolvedName,
        new: &ResolvedName,
        (verdict, flags): (PermissionVerdict, RenameFlags),
    ) -> CallResult<()> {
        let (name, new_name) = (old.name_as_written(), new.name_as_written());
        let rename = |[one, other]: &[NameHandle<'_>; 2]| {
            renameat_with(&one.directory, name.as_c_str(), &other.directory, new_name.as_c_str(), flags)
        };
        let mut names = self.through_both(old, new);
        match rename(&names) {
            // Two writable roots of one filesystem are two mounts inside. A stage has no other
            // view, and cannot rename directories of its lower layer.
            Err(Errno::XDEV) if verdict == PermissionVerdict::Allow && !self.is_staged([&old.path, &new.path]) => {
                names = Self::through_own(old, new)?;
                rename(&names)?;
            }
            other => other?,
        }
        self.confirm_moved(&names, flags)
    }

    fn is_staged(&self, paths: [&[u8]; 2]) -> bool {
        paths.iter().any(|path| self.powers.is_staged(path))
    }

    fn permit_rename(&self, old: &ResolvedName, new: &ResolvedName, exchange: bool) -> CallResult<PermissionVerdict> {
        let (from, to) = (&old.path, &new.path);
        let moved = old.open_nofollow()?;
        let permit_both = || -> CallResult<_> {
            let one = self.permit_removal(from, DeniedOperation::Rename)?;
            let other = self.permit_old(to, DeniedOperation::Rename)?;
            if exchange {
                self.permit_unmaking(to, DeniedOperation::Rename)?;
            }
            self.permit_moved(&moved, from, to)?;
            match new.open_nofollow() {
                Ok(other) if exchange => self.permit_moved(&other, to, from)?,
                _ => {}
            }
            Ok((one, other))
        };
        match permit_both() {
            // A private tree counts as a filesystem of its own, because files there were made under
            // other rules.
            Ok((one, other)) if one != other => Err(Errno::XDEV.into()),
            Ok((verdict, _)) => Ok(verdict),
            Err(failure) => {
                native_name_access(&old.directory)?;
                native_name_access(&new.directory)?;
                Err(failure)
            }
        }
    }

    /// Checks whether the held object may get the name `to` in place of `from`.
    fn permit_moved(&self, moved: &OwnedFd, from: &[u8], to: &[u8]) -> CallResult<()> {
        let stat = fstat(moved)?;
        self.permit_socket_object(&stat, from, DeniedOperation::Rename)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Symlink {
            self.permit_link_at(to, DeniedOperation::Rename)?;
            self.permit_link_target(to, &resolve::link_text(moved.as_fd())?, DeniedOperation::Rename)?;
        }
        self.permit_at_addresses(moved, kind, to)?;
        if kind == FileType::Directory {
            self.permit_above_work_tree(to, false, DeniedOperation::Rename)?;
            self.permit_links_within(from, to)?;
        }
        self.permit_in_git(kind, Some(from), to, DeniedOperation::Rename)?;
        self.permit_carried(moved, from, to)
    }

    /// Permits only directories at the paths of remotes, for the moved object and for its content.
    fn permit_at_addresses(&self, moved: &OwnedFd, kind: FileType, to: &[u8]) -> CallResult<()> {
        if self.powers.in_private_tree(to) {
            return Ok(());
        }
        let surveys = self.surveys.borrow();
        let refusal = match kind {
            FileType::Directory => {
                let view = RootView::new(moved.as_fd());
                let is_free = |rest: &[u8]| {
                    matches!(view.probe_object(rest), ObjectPresence::Nothing | ObjectPresence::Is(FileType::Directory))
                };
                let mut beneath = surveys.addresses_beneath(to).map(|resolved| resolved[to.len()..].to_vec());
                let bad = beneath.find(|rest| !is_free(rest) || !is_free(&[rest, &b".git"[..]].concat()));
                bad.and_then(|rest| surveys.refusal_at_address(&[to, &rest].concat(), false))
            }
            _ => surveys.refusal_at_address(to, false),
        };
        refuse_if(DeniedOperation::Rename, to, refusal)
    }

    /// Permits only regular files to enter git's directory. A link would redirect the writes of the
    /// user's git, and a directory may contain links. A directory may only move among the objects
    /// and references of one repository.
    fn permit_in_git(
        &self,
        kind: FileType,
        from: Option<&[u8]>,
        to: &[u8],
        operation: DeniedOperation,
    ) -> CallResult<()> {
        if self.powers.git_part(to).is_none() && self.bare_part(to).is_none() || self.powers.is_named(to) {
            return Ok(());
        }
        let store = |path: &[u8]| {
            let (top, part) = GitPathKind::classify_path(path, 0)?;
            let is_own = part.is_in_store() && !path[top..].starts_with(b"/modules/");
            (is_own && self.powers.git_part(path).is_some()).then(|| path[..top].to_vec())
        };
        let moves_within = || store(to).is_some_and(|own| from.and_then(store) == Some(own));
        if kind == FileType::RegularFile || kind == FileType::Directory && moves_within() {
            return Ok(());
        }
        let rule = "a link or a directory from elsewhere in the directory of a repository";
        Err(refuse_until_granted(operation, to, rule))
    }

    /// Refuses to move a directory if that would make or unmake a protected name inside it: for
    /// example `~/x`, which contains `git`, to `~/.config`.
    fn permit_carried(&self, moved: &OwnedFd, from: &[u8], to: &[u8]) -> CallResult<()> {
        if FileType::from_raw_mode(fstat(moved)?.st_mode) != FileType::Directory {
            return Ok(());
        }
        [from, to].into_iter().try_for_each(|end| self.permit_carried_at(moved, end))?;
        self.permit_leading(moved, to)
    }

    /// Refuses to move a directory to `end` if a file in it leads git by its path, because the
    /// file's content was checked for the old path. Checked each time, as another run may have made
    /// such a file.
    pub(super) fn permit_leading(&self, moved: &OwnedFd, end: &[u8]) -> CallResult<()> {
        if self.powers.in_private_tree(end) || self.powers.is_named(end) {
            return Ok(());
        }
        let max_bytes = MAX_DIRECTORY_PATH.saturating_sub(end.len());
        let rule = match leads_out(RootView::new(moved.as_fd()).up_to(max_bytes)) {
            Ok(None) => return Ok(()),
            Ok(Some(file)) => {
                let file = String::from_utf8_lossy(&file[1..]).escape_debug().to_string();
                format!("a directory whose {file} leads git to another stays in place")
            }
            Err(Errno::NAMETOOLONG) => {
                format!("a directory stays in place if paths in it would get longer than {MAX_DIRECTORY_PATH} bytes")
            }
            Err(errno) => format!("a directory that cannot be looked through for `.git` files stays in place: {errno}"),
        };
        Err(refuse_until_granted(DeniedOperation::Rename, end, rule))
    }

    /// Checks whether a directory may have the name `end`, with its content.
    pub(super) fn permit_carried_at(&self, moved: &OwnedFd, end: &[u8]) -> CallResult<()> {
        let end = to_path(end);
        if self.powers.is_private(&end) {
            return Ok(());
        }
        for inner in self.powers.units_carried_by(&end) {
            let unit = end.join(&inner);
            let is_refused = || self.refuses(DeniedOperation::Rename, unit.as_os_str().as_encoded_bytes());
            if find_spelled(moved.as_fd(), inner.as_os_str().as_encoded_bytes())?.is_some() && is_refused() {
                let rule = "a protected name would be moved".to_owned();
                let refusal = PermissionRefusal { rule, grant: Some(Grant::Write(unit)) };
                return Err(refuse_operation(DeniedOperation::Rename, end.as_os_str().as_encoded_bytes(), refusal));
            }
        }
        Ok(())
    }

    /// Makes a hard link. A file that may not be written by its first name gets no second name.
    pub(super) fn make_name(&self, source: &ResolvedObject, new: &ResolvedName) -> CallResult {
        let to = &new.path;
        let is_data = source.file_type() == FileType::RegularFile && !source.is_placeless();
        if self.find_content_kind(new, RenameFlags::empty()) == Some(GuardedContent::Reference) && is_data {
            self.permit_source(source, to)?;
            return self.link_guarded(source, new);
        }
        let verdict = self.permit_new(new, DeniedOperation::Link)?;
        if source.is_placeless() {
            return Err(Errno::XDEV.into());
        }
        if source.file_type() == FileType::Directory {
            // The kernel checks the new name first.
            let is_there = new.special || new.open_nofollow().is_ok();
            return Err(if is_there { Errno::EXIST } else { Errno::PERM }.into());
        }
        let of_source = self.permit_source(source, to)?;
        self.permit_socket_object(&source.stat, &source.path, DeniedOperation::Link)?;
        self.permit_linked(&source.stat, &source.path, DeniedOperation::Link)?;
        if source.file_type() == FileType::Symlink {
            self.permit_link_at(to, DeniedOperation::Link)?;
            self.permit_link_target(to, &resolve::link_text(source.fd.as_fd())?, DeniedOperation::Link)?;
        }
        self.permit_in_git(source.file_type(), None, to, DeniedOperation::Link)?;
        // A guarded file has one name only, because a write by another name would change it.
        let has_two = source.stat.st_nlink > 0 && self.is_across_guards(&source.path, to);
        if !new.special && (verdict != of_source || has_two) {
            return Err(Errno::XDEV.into());
        }
        let name = new.name_as_written();
        let link = |(held, new): &(ObjectHandle<'_>, NameHandle<'_>)| {
            let path = resolve::DescriptorPath::new(held.as_fd());
            linkat(CWD, path.as_c_str(), &new.directory, name.as_c_str(), AtFlags::SYMLINK_FOLLOW)
        };
        let mut ends = self.through_link(source, new);
        match link(&ends) {
            Err(Errno::XDEV)
                if verdict == PermissionVerdict::Allow
                    && source.stat.st_nlink > 0
                    && !self.is_staged([&source.path, to]) =>
            {
                ends = (ObjectHandle::Own(own_object(source, false)?), own_name(new)?);
                link(&ends)?;
            }
            other => other?,
        }
        self.confirm_new(&ends.1, DeniedOperation::Link)?;
        Ok(CallProgress::ZERO)
    }

    fn permit_source(&self, source: &ResolvedObject, to: &[u8]) -> CallResult<PermissionVerdict> {
        let is_outside = || !self.powers.writable.covers(&source.path);
        match self.decide_operation(DeniedOperation::Write, &source.path) {
            // A path outside is on another mount, so the program gets EXDEV and copies instead. If
            // an approver permitted the new name, EXDEV would be no useful answer.
            PermissionVerdict::Refuse(_) if is_outside() && !self.powers.added.covers(to) => Err(Errno::XDEV.into()),
            PermissionVerdict::Refuse(refusal) => Err(refuse_operation(DeniedOperation::Link, &source.path, refusal)),
            verdict => Ok(verdict),
        }
    }
}

/// Returns the start directories of a call with two paths.
fn start_arguments(caller: &CallingThread, at: bool) -> [i32; 2] {
    [0, 2].map(|index| if at { caller.int_argument(index) } else { libc::AT_FDCWD })
}
