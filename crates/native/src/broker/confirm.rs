//! A second look after a name was made. Between a decision and its act another broker of
//! the same directory may have moved that directory, or made what was not there: then the
//! name is guarded after all, and is taken back. Both brokers look again, so of two acts
//! that together would plant something the later one sees the other.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fstat, openat2, renameat_with, unlinkat,
};
use stockade_model::{Grant, Operation};
use stockade_sys::{Errno, resolve};

use super::service::{Failure, Service, refused};
use super::view::same;
use super::walk::{Object, Place};
use crate::guards::repository::{self, RepositoryState};
use crate::guards::{View, fold};
use crate::powers::{Refusal, creates_name, to_path};

/// Names that are tried for what cannot go back to its own.
const MAX_TAKEN_BACK: u32 = 16;

/// What was known of a place before a name was made there.
pub(super) struct Before {
    path: Vec<u8>,
    repository: Option<RepositoryState>,
}

impl Service {
    /// Looks at the place that is about to get the name `path`.
    pub(super) fn look_before(&self, path: &[u8]) -> Before {
        let repository = self.repository_around(path);
        Before { path: path.to_vec(), repository }
    }

    fn repository_around(&self, path: &[u8]) -> Option<RepositoryState> {
        RepositoryState::around(path, self.surveys.borrow().parts(), &|p| self.exists(p))
    }

    fn is_needed(&self, path: &[u8]) -> bool {
        repository::is_needed(path, self.surveys.borrow().parts(), &|p| self.exists(p))
    }

    /// Is the name that was made at `place` still one that may be made?
    pub(super) fn confirm_name(&self, place: &Place, before: &Before, operation: Operation) -> Result<(), Failure> {
        if place.special {
            return Ok(());
        }
        // In a directory that was removed nothing has a name.
        let Ok(mut now) = resolve::path_of(place.directory.fd.as_fd()) else { return Ok(()) };
        if !now.ends_with(b"/") {
            now.push(b'/');
        }
        now.extend_from_slice(place.name.as_bytes());
        self.confirm_path(&now, before, operation)
    }

    /// As [`confirm_name`](Self::confirm_name), for a name that is at `now`.
    fn confirm_path(&self, now: &[u8], before: &Before, operation: Operation) -> Result<(), Failure> {
        if now != before.path {
            self.permit(operation, now)?;
            if operation == Operation::Symlink {
                self.permit_link_at(now, operation)?;
            }
        }
        let after = before.repository.and_then(|_| self.repository_around(now));
        match (before.repository, after) {
            (Some(before), Some(after)) if after.gives_more_than(before) => {
                Err(refused(operation, now, repository::refusal(now)))
            }
            _ => Ok(()),
        }
    }

    /// [`confirm_name`](Self::confirm_name) for a name that was just made and is removed
    /// where it may not stay.
    pub(super) fn confirm_new(
        &self,
        (place, directory): (&Place, BorrowedFd<'_>),
        before: &Before,
        operation: Operation,
    ) -> Result<(), Failure> {
        let confirmed = self.confirm_name(place, before, operation);
        if confirmed.is_err() {
            let flags = if operation == Operation::Mkdir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            // Somebody else may have removed it: then it is gone as it should be.
            let _ = unlinkat(directory, &place.name, flags);
        }
        confirmed
    }

    /// The same for an opened file, which may have been there before: one that holds
    /// nothing is removed.
    pub(super) fn confirm_opened(&self, opened: &OwnedFd, before: &Before) -> Result<(), Failure> {
        let now = Object::path_of(opened)?;
        let confirmed = self.confirm_path(&now, before, Operation::Create);
        if confirmed.is_err()
            && let Ok(stat) = fstat(opened)
            && stat.st_size == 0
        {
            self.remove_empty(&now, &stat);
        }
        confirmed
    }

    fn remove_empty(&self, path: &[u8], stat: &Stat) {
        let Some(first) = &self.first else { return };
        let end = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
        let (Ok(parent), Ok(name)) = (CString::new(&path[..end.max(1)]), CString::new(&path[end + 1..])) else {
            return;
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let Ok(directory) = openat2(&first.root, &parent, flags, Mode::empty(), how) else { return };
        let is_same = resolve::step(directory.as_fd(), &name).and_then(fstat).is_ok_and(|found| same(stat, &found));
        if is_same {
            // The caller gets no descriptor of it in any case.
            let _ = unlinkat(&directory, &name, AtFlags::empty());
        }
    }

    /// May a link be called `path`? What stands where a guarded name could be beneath
    /// would make ordinary names mean guarded ones.
    pub(super) fn permit_link_at(&self, path: &[u8], operation: Operation) -> Result<(), Failure> {
        let is_named = || self.powers.root_length(path) == Some(path.len());
        if self.powers.units_carried_by(&to_path(path)).is_empty() || self.powers.in_private_tree(path) || is_named() {
            return Ok(());
        }
        let rule = "a link would stand for a directory with protected names".to_owned();
        Err(refused(operation, path, Refusal { rule, grant: Some(Grant::Write(to_path(path))) }))
    }

    /// Looks again at what was moved, and moves it back where it may not stay.
    pub(super) fn confirm_moved(
        &self,
        ((old, from), (new, to)): ((&Place, BorrowedFd<'_>), (&Place, BorrowedFd<'_>)),
        (before_old, before_new): (&Before, &Before),
        flags: RenameFlags,
    ) -> Result<(), Failure> {
        if old.special || new.special {
            return Ok(());
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let look = |place: &Place, before: &Before| {
            self.confirm_name(place, before, Operation::Rename)?;
            match place.step() {
                Ok(moved) => self.confirm_carried(&moved),
                Err(_) => Ok(()),
            }
        };
        let confirmed = look(new, before_new).and_then(|()| if exchange { look(old, before_old) } else { Ok(()) });
        if confirmed.is_err() {
            move_back((new, to), (old, from), exchange);
        }
        confirmed
    }

    fn confirm_carried(&self, moved: &OwnedFd) -> Result<(), Failure> {
        let stat = fstat(moved)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.permit_carried_at(moved, &Object::path_of(moved)?),
            FileType::Symlink => self.permit_link_at(&Object::path_of(moved)?, Operation::Rename),
            _ => Ok(()),
        }
    }

    /// What a survey of the writable trees says of `path`, see [`guards`](crate::guards).
    pub(super) fn refusal_of_place(&self, operation: Operation, path: &[u8]) -> Option<Refusal> {
        let first = self.first.as_ref()?;
        let root_length = self.powers.root_length(path)?;
        let mut surveys = self.surveys.borrow_mut();
        surveys.complete(View::new(first.root.as_fd()), self.powers.names(), self.powers.writable());
        if let Some(refusal) = surveys.refusal(root_length, path) {
            return Some(refusal);
        }
        let parts = surveys.parts().named_by_settings()?;
        let creates = creates_name(operation);
        repository::guarded_part(creates, root_length, path, parts, &|p| self.exists(p)).map(repository::refusal)
    }

    /// Whether `path` is guarded, granted or not.
    pub(super) fn is_guarded(&self, path: &[u8]) -> bool {
        self.powers.has_guarded_name(path) || self.surveys.borrow().refusal(0, path).is_some()
    }

    /// Refuses to take away what holds a repository with settings together.
    pub(super) fn permit_unmaking(&self, path: &[u8], operation: Operation) -> Result<(), Failure> {
        let is_named = || self.powers.root_length(path) == Some(path.len());
        if self.powers.in_private_tree(path) || !self.is_needed(path) || is_named() {
            return Ok(());
        }
        Err(refused(operation, path, repository::refusal(path)))
    }

    /// May the file with `stat`, reached by `path`, be changed? One that has a guarded
    /// name as well is the guarded file.
    pub(super) fn permit_linked(&self, stat: &Stat, path: &[u8], operation: Operation) -> Result<(), Failure> {
        let is_named = || self.powers.root_length(path) == Some(path.len());
        if !self.surveys.borrow().is_linked(stat) || self.is_guarded(path) || is_named() {
            return Ok(());
        }
        let rule = "another name of a protected file".to_owned();
        Err(refused(operation, path, Refusal { rule, grant: Some(Grant::Write(to_path(path))) }))
    }
}

/// Gives what is at `new` its name `old` back, or one like it.
fn move_back((new, to): (&Place, BorrowedFd<'_>), (old, from): (&Place, BorrowedFd<'_>), exchange: bool) {
    if exchange {
        // It fails where one of both is gone: then there is nothing to take back.
        let _ = renameat_with(to, &new.name, from, &old.name, RenameFlags::EXCHANGE);
        return;
    }
    let is_back = |name: &CStr| match renameat_with(to, &new.name, from, name, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => false,
        Ok(()) | Err(_) => true,
    };
    if is_back(&old.name) {
        return;
    }
    for number in 0..MAX_TAKEN_BACK {
        let name = [old.name.as_bytes(), format!(".taken-back-{number}").as_bytes()].concat();
        if CString::new(name).is_ok_and(|name| is_back(&name)) {
            return;
        }
    }
}

/// The names in a held directory that spell `inner`, which has one component or more.
pub(super) fn find_spelled(directory: BorrowedFd<'_>, inner: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let (first, rest) = match inner.iter().position(|b| *b == b'/') {
        Some(at) => (&inner[..at], Some(&inner[at + 1..])),
        None => (inner, None),
    };
    for (entry, _) in stockade_files::object::entries(directory)? {
        if fold(&entry) != fold(first) {
            continue;
        }
        let Some(rest) = rest else { return Ok(Some(entry)) };
        let name = CString::new(entry.clone()).map_err(|_| Errno::INVAL)?;
        let held = resolve::step(directory, &name)?;
        if FileType::from_raw_mode(fstat(&held)?.st_mode) == FileType::Directory
            && let Some(found) = find_spelled(held.as_fd(), rest)?
        {
            return Ok(Some([&entry[..], b"/", &found].concat()));
        }
    }
    Ok(None)
}
