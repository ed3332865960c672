//! Selects the mount namespace through which an object is changed, and detects whether it is still
//! the object that was shown to the approver.
//!
//! A path that was granted after the run's root was built is read-only inside. The supervisor (the
//! "front") changes it in its own mount namespace, by the same path without links. Both namespaces
//! must show the very same object there.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Stat, fstat, unlinkat};
use stockade_permissions::guards::view::parent_path;
use stockade_sys::{Errno, resolve};

use super::brokered_call::BrokeredCall;
use super::service::BrokerService;
use super::walk::{ResolvedDirectory, ResolvedName, ResolvedObject};

/// A held object to act through.
pub(super) enum ObjectHandle<'a> {
    /// As the caller's mount namespace shows it.
    Seen(BorrowedFd<'a>),
    /// As the supervisor's mount namespace shows it.
    Own(OwnedFd),
}

impl AsFd for ObjectHandle<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Seen(fd) => *fd,
            Self::Own(fd) => fd.as_fd(),
        }
    }
}

/// A name that may be changed, with its directory to act through.
pub(super) struct NameHandle<'a> {
    pub name: &'a ResolvedName,
    pub directory: ObjectHandle<'a>,
}

impl NameHandle<'_> {
    /// Removes the object with this name; a slash after the name is ignored.
    pub fn unlink(&self, flags: AtFlags) -> Result<(), Errno> {
        unlinkat(&self.directory, &self.name.name, flags)
    }
}

/// Objects that had the names of a call when its question was raised. Holding an object keeps its
/// inode number from being reused.
pub(super) struct PinnedObjects(Vec<Option<(OwnedFd, Stat)>>);

impl PinnedObjects {
    /// Holds the objects that have the names of `broker_call` now.
    pub fn pin_objects(broker_call: &BrokeredCall) -> Result<Self, Errno> {
        let pin = |resolved: &ResolvedName| match resolved.open_nofollow() {
            Ok(fd) => fstat(&fd).map(|stat| Some((fd, stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        };
        broker_call.resolved_names().map(pin).collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether the directories, names and objects of `broker_call` are those that were shown. A
    /// name may be gone, and a free name may have a new object, because the answer was about the
    /// name. A new link counts as changed, because it would be followed.
    pub fn still_hold(&self, broker_call: &BrokeredCall) -> bool {
        let is_at = |fd: &OwnedFd, path: &[u8]| ResolvedObject::path_of(fd).is_ok_and(|now| now == path);
        for (resolved, pin) in broker_call.resolved_names().zip(&self.0) {
            if !is_at(&resolved.directory.fd, &resolved.directory.path) {
                return false;
            }
            let now = resolved.open_nofollow().and_then(fstat);
            match (pin, now) {
                (_, Err(_)) => {}
                (Some((_, then)), Ok(now)) if is_same_object(then, &now) => {}
                (None, Ok(now)) if FileType::from_raw_mode(now.st_mode) != FileType::Symlink => {}
                _ => return false,
            }
        }
        broker_call.held_object().is_none_or(|object| object.is_placeless() || is_at(&object.fd, &object.path))
    }
}

impl BrokerService {
    /// Returns `name` with its directory, in which the name is created or removed.
    pub fn through_name<'p>(&self, name: &'p ResolvedName) -> NameHandle<'p> {
        let own = || own_directory(&name.directory, self.powers.merged.has(&name.directory.path));
        NameHandle { name, directory: self.open_own_or_seen(&name.directory.fd, &name.path, own) }
    }

    /// Returns two names with their directories, both in one mount namespace.
    pub fn through_both<'p>(&self, one: &'p ResolvedName, other: &'p ResolvedName) -> [NameHandle<'p>; 2] {
        let is_unattached = self.powers.is_unattached(&one.path) || self.powers.is_unattached(&other.path);
        match is_unattached.then(|| Self::through_own(one, other)) {
            Some(Ok(both)) => both,
            _ => [one, other].map(|name| NameHandle { name, directory: ObjectHandle::Seen(name.directory.fd.as_fd()) }),
        }
    }

    /// Returns two names with their directories in the supervisor's mount namespace.
    pub fn through_own<'p>(one: &'p ResolvedName, other: &'p ResolvedName) -> Result<[NameHandle<'p>; 2], Errno> {
        Ok([own_name(one)?, own_name(other)?])
    }

    /// Returns an object, and its new name with its directory, both in one mount namespace. An
    /// object without a name cannot be found by path, so the caller's descriptor is used.
    pub fn through_link<'p>(
        &self,
        source: &'p ResolvedObject,
        new: &'p ResolvedName,
    ) -> (ObjectHandle<'p>, NameHandle<'p>) {
        if let Some(copy) = self.copy_of(source) {
            return (ObjectHandle::Own(copy), self.through_name(new));
        }
        if source.stat.st_nlink != 0
            && (self.powers.is_unattached(&source.path) || self.powers.is_unattached(&new.path))
            && let (Ok(object), Ok(new)) = (own_object(source, false), own_name(new))
        {
            return (ObjectHandle::Own(object), new);
        }
        (ObjectHandle::Seen(source.fd.as_fd()), self.through_name(new))
    }

    /// Returns an object to change. If it has no name, the caller's descriptor is the only way to it.
    pub fn through_object<'p>(&self, object: &'p ResolvedObject) -> ObjectHandle<'p> {
        if let Some(copy) = self.copy_of(object) {
            return ObjectHandle::Own(copy);
        }
        if object.stat.st_nlink == 0 || object.is_placeless() {
            return ObjectHandle::Seen(object.fd.as_fd());
        }
        let is_merged = || self.powers.merged.has(parent_path(&object.path));
        self.open_own_or_seen(&object.fd, &object.path, || own_object(object, is_merged()))
    }

    /// Returns the supervisor's object if it can be opened. Else returns the caller's, which is the
    /// one that was decided on; it may be read-only there.
    fn open_own_or_seen<'p>(
        &self,
        seen: &'p OwnedFd,
        path: &[u8],
        own: impl FnOnce() -> Result<OwnedFd, Errno>,
    ) -> ObjectHandle<'p> {
        let own = self.powers.is_unattached(path).then(own);
        own.and_then(Result::ok).map_or(ObjectHandle::Seen(seen.as_fd()), ObjectHandle::Own)
    }
}

/// Returns a name with its directory in the supervisor's mount namespace.
pub(super) fn own_name(name: &ResolvedName) -> Result<NameHandle<'_>, Errno> {
    Ok(NameHandle { name, directory: ObjectHandle::Own(own_directory(&name.directory, false)?) })
}

/// Opens a held directory in the supervisor's mount namespace. Beneath an overlay layer
/// (`is_merged`), each mount namespace has other inode numbers; the approval is for the
/// supervisor's.
pub(super) fn own_directory(directory: &ResolvedDirectory, is_merged: bool) -> Result<OwnedFd, Errno> {
    let text = CString::new(&directory.path[..]).map_err(|_| Errno::INVAL)?;
    let own = resolve::directory_without_links(&text)?;
    let is_same = is_merged || is_same_object(&fstat(&directory.fd)?, &fstat(&own)?);
    if is_same { Ok(own) } else { Err(Errno::STALE) }
}

/// Opens a held object in the supervisor's mount namespace; `is_merged` as for a directory.
pub(super) fn own_object(object: &ResolvedObject, is_merged: bool) -> Result<OwnedFd, Errno> {
    let end = object.path.iter().rposition(|b| *b == b'/').ok_or(Errno::STALE)?;
    let (parent, name) = (&object.path[..end.max(1)], &object.path[end + 1..]);
    let parent = CString::new(parent).map_err(|_| Errno::INVAL)?;
    let directory = resolve::directory_without_links(&parent)?;
    let name = if name.is_empty() { c".".to_owned() } else { CString::new(name).map_err(|_| Errno::INVAL)? };
    let own = resolve::open_component(directory.as_fd(), &name)?;
    let is_same = is_merged || is_same_object(&object.stat, &fstat(&own)?);
    if is_same { Ok(own) } else { Err(Errno::STALE) }
}

pub(super) fn is_same_object(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}
