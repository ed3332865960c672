//! Calls that make, move or remove a name.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, RenameFlags, fstat, linkat, mkdirat, mknodat, renameat_with, symlinkat,
    unlinkat,
};
use stockade_launch::ArgumentLayout;
use stockade_model::{DeniedOperation, Grant};
use stockade_permissions::guards::RootView;
use stockade_permissions::guards::git_part::{GitPathKind, GuardedContent};
use stockade_permissions::guards::pointers::leads_out;
use stockade_permissions::guards::view::ObjectPresence;
use stockade_permissions::powers::{PermissionRefusal, PermissionVerdict, to_path};
use stockade_sys::{Errno, resolve};

use super::brokered_call::{BrokeredCall, CallProgress};
use super::caller::CallingThread;
use super::confirm::find_spelled;
use super::metadata::{LISTABLE, closing};
use super::opens::set_id;
use super::service::{BrokerService, CallFailure, native_access, refuse_operation, refuse_until_granted};
use super::view::{ObjectHandle, own_directory, own_object};
use super::walk::{ResolvedName, ResolvedObject};

/// Longest path of a directory that a run may make, in bytes. The path of each file in it is then
/// shorter than `PATH_MAX`, so that programs and surveys can use it.
const MAX_DIRECTORY_PATH: usize = 3_800;

impl BrokerService {
    /// Reads a call that makes, moves or removes a name.
    pub(super) fn read_name(&self, caller: &CallingThread, shape: ArgumentLayout) -> Result<BrokeredCall, CallFailure> {
        match shape {
            ArgumentLayout::Mkdir { at } => {
                let (start, index) = first_path_argument(caller, at);
                let path = caller.read_path(index)?;
                let mode = self.mask_mode(caller, caller.unsigned_argument(index + 1))?;
                Ok(BrokeredCall::MakeDirectory {
                    resolved: self.start_resolution(caller)?.resolve_name(start, &path)?,
                    mode,
                })
            }
            ArgumentLayout::Mknod { at } => self.read_node(caller, at),
            ArgumentLayout::Symlink { at } => {
                let (start, index) = if at { (caller.int_argument(1), 2) } else { (libc::AT_FDCWD, 1) };
                let (text, path) = (caller.read_path(0)?, caller.read_path(index)?);
                Ok(BrokeredCall::MakeLink {
                    resolved: self.start_resolution(caller)?.resolve_name(start, &path)?,
                    text,
                })
            }
            ArgumentLayout::Link { at } => self.read_link(caller, at),
            ArgumentLayout::Rename { at, flags } => self.read_rename(caller, at, flags),
            ArgumentLayout::Remove { directory } => {
                let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                let path = caller.read_path(0)?;
                Ok(BrokeredCall::Remove {
                    resolved: self.start_resolution(caller)?.resolve_name(libc::AT_FDCWD, &path)?,
                    flags,
                })
            }
            _ => {
                let flags = caller.unsigned_argument(2);
                if flags & !(libc::AT_REMOVEDIR as u32) != 0 {
                    return Err(Errno::INVAL.into());
                }
                let path = caller.read_path(1)?;
                let resolved = self.start_resolution(caller)?.resolve_name(caller.int_argument(0), &path)?;
                Ok(BrokeredCall::Remove { resolved, flags: AtFlags::from_bits_retain(flags) })
            }
        }
    }

    fn read_node(&self, caller: &CallingThread, at: bool) -> Result<BrokeredCall, CallFailure> {
        let (start, index) = first_path_argument(caller, at);
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
        Ok(BrokeredCall::MakeNode {
            resolved: self.start_resolution(caller)?.resolve_name(start, &path)?,
            kind,
            mode,
            device,
        })
    }

    fn read_rename(&self, caller: &CallingThread, at: bool, with_flags: bool) -> Result<BrokeredCall, CallFailure> {
        let flags = RenameFlags::from_bits_retain(if with_flags { caller.unsigned_argument(4) } else { 0 });
        let (old_path, new_path) = (caller.read_path(usize::from(at))?, caller.read_path(if at { 3 } else { 1 })?);
        let (old_start, new_start) =
            if at { (caller.int_argument(0), caller.int_argument(2)) } else { (libc::AT_FDCWD, libc::AT_FDCWD) };
        let walk = self.start_resolution(caller)?;
        let old = walk.resolve_name(old_start, &old_path)?;
        Ok(BrokeredCall::Rename { old, new: walk.resolve_name(new_start, &new_path)?, flags })
    }

    fn read_link(&self, caller: &CallingThread, at: bool) -> Result<BrokeredCall, CallFailure> {
        let flags = if at { caller.int_argument(4) } else { 0 };
        if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return Err(Errno::INVAL.into());
        }
        let (old_start, new_start, new_index) =
            if at { (caller.int_argument(0), caller.int_argument(2), 3) } else { (libc::AT_FDCWD, libc::AT_FDCWD, 1) };
        let (old_path, new_path) = (caller.read_path(usize::from(at))?, caller.read_path(new_index)?);
        let walk = self.start_resolution(caller)?;
        let source = if old_path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            self.as_staged(ResolvedObject::from_fd(caller.open_object(old_start)?)?)?
        } else {
            self.as_staged(walk.resolve_object(old_start, &old_path, flags & libc::AT_SYMLINK_FOLLOW != 0)?)?
        };
        Ok(BrokeredCall::MakeName { source, new: walk.resolve_name(new_start, &new_path)? })
    }

    /// Checks whether a name may be made. A call that would fail without a sandbox fails with the
    /// same error.
    fn permit_new(
        &self,
        resolved: &ResolvedName,
        path: &[u8],
        operation: DeniedOperation,
    ) -> Result<PermissionVerdict, CallFailure> {
        if resolved.special {
            // Such a name can never be made; the kernel returns its own errors.
            return Ok(PermissionVerdict::Allow);
        }
        match self.decide_operation(operation, path) {
            PermissionVerdict::Refuse(refusal) => {
                if resolved.open_nofollow().is_ok() {
                    return Err(Errno::EXIST.into());
                }
                native_access(&resolved.directory.fd, Access::WRITE_OK | Access::EXEC_OK)?;
                Err(refuse_operation(operation, path, refusal))
            }
            verdict => Ok(verdict),
        }
    }

    pub(super) fn make_directory(&self, resolved: &ResolvedName, mode: Mode) -> Result<CallProgress, CallFailure> {
        let path = resolved.path();
        self.permit_new(resolved, &path, DeniedOperation::Mkdir)?;
        let is_git = self.powers.git_part(&path) == Some(GitPathKind::Top) && !self.powers.is_named(&path);
        if is_git && resolved.open_nofollow().is_err() {
            self.permit_work_tree(&path, DeniedOperation::Mkdir)?;
        }
        if resolved.open_nofollow().is_err() {
            self.permit_surveyable(&path, mode)?;
        }
        let directory = self.through_directory(resolved, &path);
        mkdirat(&directory, resolved.name_as_written().as_c_str(), mode)?;
        self.confirm_new((resolved, directory.as_fd()), &path, DeniedOperation::Mkdir)?;
        // Others may meanwhile have made files that this directory would activate.
        if is_git && let Err(failure) = self.permit_work_tree(&path, DeniedOperation::Mkdir) {
            let _ = unlinkat(&directory, &resolved.name, AtFlags::REMOVEDIR);
            return Err(failure);
        }
        Ok(CallProgress::return_zero())
    }

    /// Refuses to make a directory that later runs could not survey, or in which no name could be
    /// told by its path.
    fn permit_surveyable(&self, path: &[u8], mode: Mode) -> Result<(), CallFailure> {
        if path.len() > MAX_DIRECTORY_PATH && !self.powers.in_private_tree(path) {
            let rule = format!("a directory whose path is longer than {MAX_DIRECTORY_PATH} bytes");
            return Err(refuse_operation(DeniedOperation::Mkdir, path, PermissionRefusal::without_grant(rule)));
        }
        // A run could not open such a directory again if its name protects it.
        let is_closed = mode.bits() & LISTABLE != LISTABLE;
        if is_closed && matches!(self.decide_operation(DeniedOperation::Metadata, path), PermissionVerdict::Refuse(_)) {
            return Err(refuse_operation(DeniedOperation::Mkdir, path, closing()));
        }
        Ok(())
    }

    pub(super) fn make_node(
        &self,
        resolved: &ResolvedName,
        kind: FileType,
        mode: Mode,
        device: u64,
    ) -> Result<CallProgress, CallFailure> {
        let path = resolved.path();
        self.permit_new(resolved, &path, DeniedOperation::Mknod)?;
        if mode.bits() & 0o6000 != 0 {
            return Err(refuse_operation(DeniedOperation::Mknod, &path, set_id()));
        }
        let directory = self.through_directory(resolved, &path);
        mknodat(&directory, resolved.name_as_written().as_c_str(), kind, mode, device)?;
        self.confirm_new((resolved, directory.as_fd()), &path, DeniedOperation::Mknod)?;
        Ok(CallProgress::return_zero())
    }

    pub(super) fn make_link(&self, resolved: &ResolvedName, text: &CStr) -> Result<CallProgress, CallFailure> {
        let path = resolved.path();
        // Git makes a link that leads nowhere, to learn whether links can be made.
        let is_trial = text.to_bytes() == b"testing" && self.powers.git_part(&path) == Some(GitPathKind::Trial);
        if !is_trial || self.refusal_of_name(DeniedOperation::Symlink, &path).is_some() {
            self.permit_new(resolved, &path, DeniedOperation::Symlink)?;
        }
        if resolved.open_nofollow().is_err() {
            self.permit_link_at(&path, DeniedOperation::Symlink)?;
            self.permit_link_target(&path, text.to_bytes(), DeniedOperation::Symlink)?;
        }
        let directory = self.through_directory(resolved, &path);
        symlinkat(text, &directory, resolved.name_as_written().as_c_str())?;
        self.confirm_new((resolved, directory.as_fd()), &path, DeniedOperation::Symlink)?;
        // Others may meanwhile have made a text that the link leads elsewhere.
        if let Some(now) = resolved.path_now()?
            && let Err(failure) = self.permit_link_target(&now, text.to_bytes(), DeniedOperation::Symlink)
        {
            let _ = unlinkat(&directory, &resolved.name, AtFlags::empty());
            return Err(failure);
        }
        Ok(CallProgress::return_zero())
    }

    pub(super) fn remove(&self, resolved: &ResolvedName, flags: AtFlags) -> Result<CallProgress, CallFailure> {
        let path = resolved.path();
        // The kernel refuses to remove a directory that is not empty.
        let is_empty = flags.contains(AtFlags::REMOVEDIR)
            && self.powers.is_directory_of_settings(&path)
            && self.refusal_of_name(DeniedOperation::Remove, &path).is_none();
        if !resolved.special
            && !is_empty
            && let Err(failure) = self.permit_removal(&path, DeniedOperation::Remove)
        {
            let kind = FileType::from_raw_mode(fstat(resolved.open_nofollow()?)?.st_mode);
            match (kind == FileType::Directory, flags.contains(AtFlags::REMOVEDIR)) {
                (true, false) => return Err(Errno::ISDIR.into()),
                (false, true) => return Err(Errno::NOTDIR.into()),
                _ => native_access(&resolved.directory.fd, Access::WRITE_OK | Access::EXEC_OK)?,
            }
            return Err(failure);
        }
        if !resolved.special {
            self.permit_loss(resolved, &path)?;
        }
        unlinkat(self.through_directory(resolved, &path), resolved.name_as_written().as_c_str(), flags)?;
        Ok(CallProgress::return_zero())
    }

    /// Checks whether the name `path` may be removed or replaced.
    fn permit_old(&self, path: &[u8], operation: DeniedOperation) -> Result<PermissionVerdict, CallFailure> {
        let verdict = self.permit_operation(operation, path)?;
        match self
            .powers
            .move_refusal(&to_path(path))
            .or_else(|| self.surveys.borrow().refusal_to_move(path, operation == DeniedOperation::Remove))
        {
            Some(refusal) => Err(refuse_operation(operation, path, refusal)),
            None => Ok(verdict),
        }
    }

    /// Checks whether the name `path` may be removed without a replacement.
    pub(super) fn permit_removal(
        &self,
        path: &[u8],
        operation: DeniedOperation,
    ) -> Result<PermissionVerdict, CallFailure> {
        let verdict = self.permit_old(path, operation)?;
        self.permit_unmaking(path, operation)?;
        Ok(verdict)
    }

    pub(super) fn rename_entry(
        &self,
        old: &ResolvedName,
        new: &ResolvedName,
        flags: RenameFlags,
    ) -> Result<CallProgress, CallFailure> {
        if let Some(content_kind) = self.find_content_kind(new, flags) {
            return self.rename_guarded((old, new), (content_kind, flags), false);
        }
        let (from, to) = (old.path(), new.path());
        let mut verdict = PermissionVerdict::Private;
        if !old.special && !new.special {
            verdict = self.permit_rename((old, &from), (new, &to), flags.contains(RenameFlags::EXCHANGE))?;
        }
        if self.is_fixed(&from) || flags.contains(RenameFlags::EXCHANGE) && self.is_fixed(&to) {
            return Err(Errno::XDEV.into());
        }
        if verdict == PermissionVerdict::Allow && self.changes_owner((&from, &to), flags)? {
            self.install_copy(old, new, flags)?;
            return Ok(CallProgress::return_zero());
        }
        self.move_name((old, &from), (new, &to), (verdict, flags))?;
        self.forget_roots(&[&from, &to]);
        Ok(CallProgress::return_zero())
    }

    fn move_name(
        &self,
        (old, from): (&ResolvedName, &[u8]),
        (new, to): (&ResolvedName, &[u8]),
        (verdict, flags): (PermissionVerdict, RenameFlags),
    ) -> Result<(), CallFailure> {
        let (name, new_name) = (old.name_as_written(), new.name_as_written());
        let rename = |(one, other): &(ObjectHandle<'_>, ObjectHandle<'_>)| {
            renameat_with(one, name.as_c_str(), other, new_name.as_c_str(), flags)
        };
        let mut directories = self.through_both((old, from), (new, to));
        match rename(&directories) {
            // Two writable roots of one filesystem are two mounts inside. A stage has no other
            // view, and cannot rename directories of its lower layer.
            Err(Errno::XDEV) if verdict == PermissionVerdict::Allow && !self.is_staged(&[from, to]) => {
                directories = Self::through_own(old, new)?;
                rename(&directories)?;
            }
            other => other?,
        }
        let (one, other) = directories;
        self.confirm_moved((old, one.as_fd(), from), (new, other.as_fd(), to), flags)
    }

    /// Forgets the roots at these paths, because a path may now lead to another directory.
    fn forget_roots(&self, paths: &[&[u8]]) {
        if let Some(first) = &self.first {
            paths.iter().for_each(|path| first.roots.forget_beneath(path));
        }
    }

    fn is_staged(&self, paths: &[&[u8]]) -> bool {
        paths.iter().any(|path| self.powers.is_staged(path))
    }

    fn permit_rename(
        &self,
        (old, from): (&ResolvedName, &[u8]),
        (new, to): (&ResolvedName, &[u8]),
        exchange: bool,
    ) -> Result<PermissionVerdict, CallFailure> {
        let moved = old.open_nofollow()?;
        let both = self
            .permit_removal(from, DeniedOperation::Rename)
            .and_then(|one| Ok((one, self.permit_old(to, DeniedOperation::Rename)?)))
            .and_then(|both| {
                if exchange { self.permit_unmaking(to, DeniedOperation::Rename).map(|()| both) } else { Ok(both) }
            })
            .and_then(|both| {
                self.permit_moved(&moved, from, to)?;
                match new.open_nofollow() {
                    Ok(other) if exchange => self.permit_moved(&other, to, from)?,
                    _ => {}
                }
                Ok(both)
            });
        match both {
            // A private tree counts as a filesystem of its own, because files there were made under
            // other rules.
            Ok((one, other)) if one != other => Err(Errno::XDEV.into()),
            Ok((verdict, _)) => Ok(verdict),
            Err(failure) => {
                native_access(&old.directory.fd, Access::WRITE_OK | Access::EXEC_OK)?;
                native_access(&new.directory.fd, Access::WRITE_OK | Access::EXEC_OK)?;
                Err(failure)
            }
        }
    }

    /// Checks whether the held object may get the name `to` in place of `from`.
    fn permit_moved(&self, moved: &OwnedFd, from: &[u8], to: &[u8]) -> Result<(), CallFailure> {
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

    /// Permits only directories at the places of remotes, for the moved object and for its content.
    fn permit_at_addresses(&self, moved: &OwnedFd, kind: FileType, to: &[u8]) -> Result<(), CallFailure> {
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
        refusal.map_or(Ok(()), |refusal| Err(refuse_operation(DeniedOperation::Rename, to, refusal)))
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
    ) -> Result<(), CallFailure> {
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
    fn permit_carried(&self, moved: &OwnedFd, from: &[u8], to: &[u8]) -> Result<(), CallFailure> {
        if FileType::from_raw_mode(fstat(moved)?.st_mode) != FileType::Directory {
            return Ok(());
        }
        [from, to].into_iter().try_for_each(|end| self.permit_carried_at(moved, end))?;
        self.permit_leading(moved, to)
    }

    /// Refuses to move a directory to `end` if a file in it leads git by its place, because the
    /// file's content was judged for the old place. Checked each time, as another run may have made
    /// such a file.
    pub(super) fn permit_leading(&self, moved: &OwnedFd, end: &[u8]) -> Result<(), CallFailure> {
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
    pub(super) fn permit_carried_at(&self, moved: &OwnedFd, end: &[u8]) -> Result<(), CallFailure> {
        let end = to_path(end);
        if self.powers.is_private(&end) {
            return Ok(());
        }
        for inner in self.powers.units_carried_by(&end) {
            let unit = end.join(&inner);
            let is_granted = || {
                !matches!(
                    self.decide_operation(DeniedOperation::Rename, unit.as_os_str().as_encoded_bytes()),
                    PermissionVerdict::Refuse(_)
                )
            };
            if find_spelled(moved.as_fd(), inner.as_os_str().as_encoded_bytes())?.is_some() && !is_granted() {
                let rule = "a protected name would be moved".to_owned();
                let refusal = PermissionRefusal { rule, grant: Some(Grant::Write(unit)) };
                return Err(refuse_operation(DeniedOperation::Rename, end.as_os_str().as_encoded_bytes(), refusal));
            }
        }
        Ok(())
    }

    /// Makes a hard link. A file that may not be written by its first name gets no second name.
    pub(super) fn make_name(&self, source: &ResolvedObject, new: &ResolvedName) -> Result<CallProgress, CallFailure> {
        let to = new.path();
        let is_data = source.file_type() == FileType::RegularFile && !source.is_placeless();
        if self.find_content_kind(new, RenameFlags::empty()) == Some(GuardedContent::Reference) && is_data {
            self.permit_source(source, &to)?;
            return self.link_guarded(source, new);
        }
        let verdict = self.permit_new(new, &to, DeniedOperation::Link)?;
        if source.is_placeless() {
            return Err(Errno::XDEV.into());
        }
        if source.file_type() == FileType::Directory {
            // The kernel checks the new name first.
            let is_there = new.special || new.open_nofollow().is_ok();
            return Err(if is_there { Errno::EXIST } else { Errno::PERM }.into());
        }
        let of_source = self.permit_source(source, &to)?;
        self.permit_socket_object(&source.stat, &source.path, DeniedOperation::Link)?;
        self.permit_linked(&source.stat, &source.path, DeniedOperation::Link)?;
        if source.file_type() == FileType::Symlink {
            self.permit_link_at(&to, DeniedOperation::Link)?;
            self.permit_link_target(&to, &resolve::link_text(source.fd.as_fd())?, DeniedOperation::Link)?;
        }
        self.permit_in_git(source.file_type(), None, &to, DeniedOperation::Link)?;
        // A guarded file has one name only, because a write by another name would change it.
        let has_two = source.stat.st_nlink > 0 && self.is_across_guards(&source.path, &to);
        if !new.special && (verdict != of_source || has_two) {
            return Err(Errno::XDEV.into());
        }
        let name = new.name_as_written();
        let link = |(held, directory): &(ObjectHandle<'_>, ObjectHandle<'_>)| {
            let path = resolve::DescriptorPath::new(held.as_fd());
            linkat(CWD, path.as_c_str(), directory, name.as_c_str(), AtFlags::SYMLINK_FOLLOW)
        };
        let mut ends = self.through_link(source, (new, &to));
        match link(&ends) {
            Err(Errno::XDEV)
                if verdict == PermissionVerdict::Allow
                    && source.stat.st_nlink > 0
                    && !self.is_staged(&[&source.path, &to]) =>
            {
                ends = (ObjectHandle::Own(own_object(source)?), ObjectHandle::Own(own_directory(&new.directory)?));
                link(&ends)?;
            }
            other => other?,
        }
        self.confirm_new((new, ends.1.as_fd()), &to, DeniedOperation::Link)?;
        Ok(CallProgress::return_zero())
    }

    fn permit_source(&self, source: &ResolvedObject, to: &[u8]) -> Result<PermissionVerdict, CallFailure> {
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

/// Returns the start directory and the index of the first path of a call.
fn first_path_argument(caller: &CallingThread, at: bool) -> (i32, usize) {
    if at { (caller.int_argument(0), 1) } else { (libc::AT_FDCWD, 0) }
}
