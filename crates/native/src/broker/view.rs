//! Selects the mount namespace through which an object is changed, and detects whether it is still
//! the object that was shown to the approver.
//!
//! A path that was granted after the run's root was built is read-only inside. The supervisor (the
//! "front") changes it in its own mount namespace, by the same path without links. Both namespaces
//! must show the very same object there.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Stat, fstat};
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

/// Objects that had the names of a call when its question was raised. Holding an object keeps its
/// inode number from being reused.
pub(super) struct PinnedObjects(Vec<Option<(OwnedFd, Stat)>>);

/// The object is not the one that was shown.
pub(super) struct ObjectChangedError;

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
    pub fn still_hold(&self, broker_call: &BrokeredCall) -> Result<(), ObjectChangedError> {
        let is_at = |fd: &OwnedFd, path: &[u8]| ResolvedObject::path_of(fd).is_ok_and(|now| now == path);
        for (resolved, pin) in broker_call.resolved_names().zip(&self.0) {
            if !is_at(&resolved.directory.fd, &resolved.directory.path) {
                return Err(ObjectChangedError);
            }
            let now = resolved.open_nofollow().and_then(fstat);
            match (pin, now) {
                (_, Err(_)) => {}
                (Some((_, then)), Ok(now)) if is_same_object(then, &now) => {}
                (None, Ok(now)) if FileType::from_raw_mode(now.st_mode) != FileType::Symlink => {}
                _ => return Err(ObjectChangedError),
            }
        }
        match broker_call.held_object() {
            Some(object) if !object.is_placeless() && !is_at(&object.fd, &object.path) => Err(ObjectChangedError),
            _ => Ok(()),
        }
    }
}

impl BrokerService {
    /// Returns the directory of `resolved`, in which a name is created or removed; `path` is the whole
    /// path.
    pub fn through_directory<'p>(&self, resolved: &'p ResolvedName, path: &[u8]) -> ObjectHandle<'p> {
        self.open_own_or_seen(&resolved.directory.fd, path, || self.own_directory(&resolved.directory))
    }

    /// Returns the directories of two names, both in one mount namespace.
    pub fn through_both<'p>(
        &self,
        (one, one_path): (&'p ResolvedName, &[u8]),
        (other, other_path): (&'p ResolvedName, &[u8]),
    ) -> (ObjectHandle<'p>, ObjectHandle<'p>) {
        let is_unattached = self.powers.is_unattached(one_path) || self.powers.is_unattached(other_path);
        match is_unattached.then(|| Self::through_own(one, other)) {
            Some(Ok(both)) => both,
            _ => (ObjectHandle::Seen(one.directory.fd.as_fd()), ObjectHandle::Seen(other.directory.fd.as_fd())),
        }
    }

    /// Returns the directories of two names in the supervisor's mount namespace.
    pub fn through_own<'p>(
        one: &ResolvedName,
        other: &ResolvedName,
    ) -> Result<(ObjectHandle<'p>, ObjectHandle<'p>), Errno> {
        Ok((ObjectHandle::Own(own_directory(&one.directory)?), ObjectHandle::Own(own_directory(&other.directory)?)))
    }

    /// Returns an object and the directory of its new name, both in one mount namespace. An object
    /// without a name cannot be found by path, so the caller's descriptor is used.
    pub fn through_link<'p>(
        &self,
        source: &'p ResolvedObject,
        (new, path): (&'p ResolvedName, &[u8]),
    ) -> (ObjectHandle<'p>, ObjectHandle<'p>) {
        if let Some(copy) = self.copy_of(source) {
            return (ObjectHandle::Own(copy), self.through_directory(new, path));
        }
        let unnamed = source.stat.st_nlink == 0;
        if !unnamed
            && (self.powers.is_unattached(&source.path) || self.powers.is_unattached(path))
            && let (Ok(object), Ok(directory)) = (own_object(source), own_directory(&new.directory))
        {
            return (ObjectHandle::Own(object), ObjectHandle::Own(directory));
        }
        (ObjectHandle::Seen(source.fd.as_fd()), self.through_directory(new, path))
    }

    /// Returns an object to change. If it has no name, the caller's descriptor is the only way to it.
    pub fn through_object<'p>(&self, object: &'p ResolvedObject) -> ObjectHandle<'p> {
        if let Some(copy) = self.copy_of(object) {
            return ObjectHandle::Own(copy);
        }
        if object.stat.st_nlink == 0 || object.is_placeless() {
            return ObjectHandle::Seen(object.fd.as_fd());
        }
        self.open_own_or_seen(&object.fd, &object.path, || self.own_object(object))
    }

    /// As [`own_directory`]. Beneath an overlay layer, each mount namespace has other inode
    /// numbers; the approval is for the supervisor's.
    fn own_directory(&self, directory: &ResolvedDirectory) -> Result<OwnedFd, Errno> {
        match own_directory(directory) {
            Err(Errno::STALE) if self.powers.merged.has(&directory.path) => {
                resolve::directory_without_links(&CString::new(&directory.path[..]).map_err(|_| Errno::INVAL)?)
            }
            other => other,
        }
    }

    /// As [`own_object`], and as [`own_directory`](Self::own_directory) for a file in such a
    /// directory.
    fn own_object(&self, object: &ResolvedObject) -> Result<OwnedFd, Errno> {
        let end = object.path.iter().rposition(|b| *b == b'/').ok_or(Errno::STALE)?;
        match own_object(object) {
            Err(Errno::STALE) if self.powers.merged.has(&object.path[..end]) => {
                let parent = CString::new(&object.path[..end]).map_err(|_| Errno::INVAL)?;
                let name = CString::new(&object.path[end + 1..]).map_err(|_| Errno::INVAL)?;
                resolve::open_component(resolve::directory_without_links(&parent)?.as_fd(), &name)
            }
            other => other,
        }
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

/// Opens a held directory in the supervisor's mount namespace.
pub(super) fn own_directory(directory: &ResolvedDirectory) -> Result<OwnedFd, Errno> {
    let text = CString::new(&directory.path[..]).map_err(|_| Errno::INVAL)?;
    let own = resolve::directory_without_links(&text)?;
    if is_same_object(&fstat(&directory.fd)?, &fstat(&own)?) { Ok(own) } else { Err(Errno::STALE) }
}

/// Opens a held object in the supervisor's mount namespace.
pub(super) fn own_object(object: &ResolvedObject) -> Result<OwnedFd, Errno> {
    let end = object.path.iter().rposition(|b| *b == b'/').ok_or(Errno::STALE)?;
    let (parent, name) = (&object.path[..end.max(1)], &object.path[end + 1..]);
    let parent = CString::new(parent).map_err(|_| Errno::INVAL)?;
    let directory = resolve::directory_without_links(&parent)?;
    let name = if name.is_empty() { c".".to_owned() } else { CString::new(name).map_err(|_| Errno::INVAL)? };
    let own = resolve::open_component(directory.as_fd(), &name)?;
    if is_same_object(&object.stat, &fstat(&own)?) { Ok(own) } else { Err(Errno::STALE) }
}

pub(super) fn is_same_object(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}
